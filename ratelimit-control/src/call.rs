//! A command on its way from a client to the owner of the datapath. Each is defined once: a type with its arguments, and
//! a [`Call`] that says its route, who may send it and its report.
//!
//! The client, the server and the owner know no command by name: [`Client::call`](super::client::Client::call) sends
//! any, one handler takes any, and an owner that lacks a [`Carry`] for one of them does not compile.

use std::fmt;

use axum::Router;
use axum::http::StatusCode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::oneshot;

use super::proto::{
    AcceptList, Allow, ApplyRequest, ChargeRequest, Check, CheckPrefix, Confirm, Deny, Detach, Explain, FleetStatus,
    Forget, Healthz, HistoryOf, Import, ModeRequest, PrefixRequest, Problem, ReloadRequest, Rollback, Series,
    SourceRequest, StandingOf, Stats, Suggest, UnblockRequest, Worst,
};
use super::requester::Requester;
use super::server::{BODY_BYTES_MAX, Service, method};
use ratelimit_report::snapshot::ListFilter;

/// Sixteen interfaces with every counter are 100 kB.
const REPORT_BYTES_MAX: usize = 4 << 20;

/// A command: its arguments and its route. TCP serves only the commands that `server` names.
pub trait Call: Serialize + DeserializeOwned + fmt::Debug + Send + 'static {
    /// Its answer.
    type Report: Serialize + DeserializeOwned + fmt::Debug + Send + 'static;

    /// Where it goes, and who may send it.
    const ROUTE: Route;

    /// The longest report that a client reads.
    const REPORT_BYTES_MAX: usize = REPORT_BYTES_MAX;

    /// The longest body that the socket takes.
    const BODY_BYTES_MAX: usize = BODY_BYTES_MAX;

    /// Whether a report may be large: few such are made at a time.
    const SIZE: Size = Size::Small;

    /// Refuses arguments that make no sense, before the owner is asked.
    fn check(&self) -> Result<(), Problem> {
        Ok(())
    }

    /// The status that goes with a report.
    fn status(_report: &Self::Report) -> StatusCode {
        StatusCode::OK
    }
}

/// Where a command goes over the control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// How it is sent.
    pub verb: Verb,
    /// Where to; `{ip}` stands for the argument of that name, which is an address.
    pub path: &'static str,
    /// Where its other arguments are.
    pub arguments: Arguments,
    /// Who may send it.
    pub access: Access,
}

/// How much of the daemon's memory an answer may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// Less than a page of numbers for each rule.
    Small,
    /// As much as events, episodes or minutes that are asked for at one time: some MB.
    Medium,
    /// As much as there are entries: 100 MB.
    Large,
}

/// The method of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// GET.
    Get,
    /// POST.
    Post,
}

/// Where arguments are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// Behind the path; a body is ignored.
    Query,
    /// JSON in the body.
    Body,
    /// The same; an empty body stands for an empty object.
    BodyOrNothing,
}

/// Who may send a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every user who may connect to the socket.
    Connect,
    /// Root and the daemon's own user.
    Change,
}

impl Route {
    /// To ask something, with the arguments in the query.
    pub const fn ask(path: &'static str) -> Self {
        Self { verb: Verb::Get, path, arguments: Arguments::Query, access: Access::Connect }
    }

    /// To change something, with the arguments in the body.
    pub const fn change(path: &'static str) -> Self {
        Self { verb: Verb::Post, path, arguments: Arguments::Body, access: Access::Change }
    }
}

/// Does what a command says. `When` is the owner's own notion of now.
pub trait Carry<C: Call, When> {
    /// Does it, for the one who asks.
    fn carry(&mut self, call: C, by: &Requester, when: When) -> Result<C::Report, Problem>;
}

/// Takes a command that is answered later and from elsewhere, for as long as it takes.
pub trait Defer<C: Call, When> {
    /// Begins it. What it gives is done once the owner is free again; the reply follows whenever it is there.
    fn defer(&mut self, ask: Ask<C>, when: When) -> Answer;
}

/// Where an answer goes.
pub type Reply<T> = oneshot::Sender<Result<T, Problem>>;

/// A command on its way to the owner.
#[derive(Debug)]
pub struct Ask<C: Call> {
    /// What is asked.
    pub call: C,
    /// By whom.
    pub by: Requester,
    /// Where the answer goes.
    pub reply: Reply<C::Report>,
}

impl<C: Call> Ask<C> {
    fn carry_out<When>(self, owner: &mut impl Carry<C, When>, when: When) -> Answer {
        let Self { call, by, reply } = self;
        let report = owner.carry(call, &by, when);
        Answer(Box::new(move || drop(reply.send(report))))
    }
}

/// Turns of the runtime in which connections see which clients have gone, while the owner was busy or the daemon stood still.
const LOOKS: usize = 3;

/// An answer that is not sent yet.
#[must_use]
pub struct Answer(Box<dyn FnOnce() + Send>);

impl Answer {
    /// What is left to do for it.
    pub fn by(send: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(send))
    }

    /// Sends it. One that nobody waits for is dropped.
    pub fn send(self) {
        (self.0)();
    }
}

/// Makes the items that each command needs, from the one list of commands.
macro_rules! commands {
    (now { $($name:ident($call:ty),)* } later { $($later:ident($slow:ty),)* }) => {
        /// What the owner of the datapath is asked to do.
        #[derive(Debug)]
        pub enum Command {
            $(#[doc = concat!("[`", stringify!($call), "`].")] $name(Ask<$call>),)*
            $(#[doc = concat!("[`", stringify!($slow), "`].")] $later(Ask<$slow>),)*
        }

        $(impl From<Ask<$slow>> for Command {
            fn from(ask: Ask<$slow>) -> Self {
                Self::$later(ask)
            }
        })*

        $(impl From<Ask<$call>> for Command {
            fn from(ask: Ask<$call>) -> Self {
                Self::$name(ask)
            }
        })*

        impl Command {
            /// Where each goes.
            pub const ROUTES: &[Route] = &[$(<$call as Call>::ROUTE,)* $(<$slow as Call>::ROUTE,)*];

            /// Where it goes.
            const fn route(&self) -> Route {
                match self {
                    $(Self::$name(_) => <$call as Call>::ROUTE,)*
                    $(Self::$later(_) => <$slow as Call>::ROUTE,)*
                }
            }

            /// Whether nobody waits for its answer any more.
            fn is_abandoned(&self) -> bool {
                match self {
                    $(Self::$name(ask) => ask.reply.is_closed(),)*
                    $(Self::$later(ask) => ask.reply.is_closed(),)*
                }
            }

            /// Has the owner do it.
            pub fn carry_out<When, Owner>(self, owner: &mut Owner, when: When) -> Answer
            where
                Owner: $(Carry<$call, When> +)* $(Defer<$slow, When> +)*
            {
                match self {
                    $(Self::$name(ask) => ask.carry_out(owner, when),)*
                    $(Self::$later(ask) => owner.defer(ask, when),)*
                }
            }
        }

        /// All that the socket takes.
        pub(super) fn routes() -> Router<Service> {
            Router::new()
                $(.route(<$call as Call>::ROUTE.path, method::<$call>()))*
                $(.route(<$slow as Call>::ROUTE.path, method::<$slow>()))*
        }
    };
}

impl Command {
    /// The same, unless its client has gone: a command that was given up must not be carried out later.
    pub async fn awaited(self) -> Option<Self> {
        let route = self.route();
        // Questions change nothing, and an application may charge without waiting.
        if route.access != Access::Change {
            return Some(self);
        }
        for _ in 0..LOOKS {
            tokio::task::yield_now().await;
        }
        if !self.is_abandoned() {
            return Some(self);
        }
        tracing::warn!("{} is not carried out: who asked for it has gone", route.path);
        None
    }
}

commands! {
    now {
        Stats(Stats),
        Health(Healthz),
        Suggest(Suggest),
        Explain(Explain),
        Fleet(FleetStatus),
        Standing(StandingOf),
        Charge(ChargeRequest),
        Allow(Allow),
        Deny(Deny),
        Import(Import),
        Unblock(UnblockRequest),
        Unallow(PrefixRequest),
        Reset(SourceRequest),
        Mode(ModeRequest),
        Apply(ApplyRequest),
        Confirm(Confirm),
        Rollback(Rollback),
        Reload(ReloadRequest),
        AcceptList(AcceptList),
        Detach(Detach),
    }
    later {
        Check(Check),
        CheckPrefix(CheckPrefix),
        List(ListFilter),
        History(HistoryOf),
        Worst(Worst),
        Series(Series),
        Forget(Forget),
    }
}

/// A command as a client sends it: path with query, and body.
pub(super) fn encode<C: Call>(call: &C) -> serde_json::Result<(String, Vec<u8>)> {
    let Route { path, arguments, .. } = C::ROUTE;
    match arguments {
        Arguments::Body | Arguments::BodyOrNothing => Ok((path.to_owned(), serde_json::to_vec(call)?)),
        Arguments::Query => Ok((with_query(path, call)?, Vec::new())),
    }
}

/// A path with arguments in it and behind it.
pub(super) fn with_query(path: &str, arguments: &impl Serialize) -> serde_json::Result<String> {
    let (mut path, mut query) = (path.to_owned(), Vec::new());
    let fields = serde_json::to_value(arguments)?;
    for (name, value) in fields.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        let value = escaped(&value.as_str().map_or_else(|| Value::to_string(value), str::to_owned));
        let place = format!("{{{name}}}");
        if path.contains(&place) {
            path = path.replace(&place, &value);
        } else {
            query.push(format!("{name}={value}"));
        }
    }
    let mark = if query.is_empty() { "" } else { "?" };
    Ok(format!("{path}{mark}{}", query.join("&")))
}

/// A query's value: what is not plainly safe is percent-encoded.
fn escaped(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    value.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_go_where_the_route_says() {
        let explain =
            Explain { ip: "2001:db8::7".parse().unwrap(), to: "53/udp".to_owned(), address: Some("::1".to_owned()) };
        let (target, body) = encode(&explain).unwrap();
        assert_eq!(target, "/api/v1/explain/2001%3Adb8%3A%3A7?address=%3A%3A1&to=53%2Fudp");
        assert!(body.is_empty());
        assert_eq!(encode(&ListFilter::default()).unwrap().0, "/api/v1/list");
        assert_eq!(encode(&ListFilter { most: Some(7), ..ListFilter::default() }).unwrap().0, "/api/v1/list?most=7");
        assert_eq!(encode(&Confirm {}).unwrap(), ("/v1/confirm".to_owned(), Vec::new()));
        let reset = SourceRequest { source: "192.0.2.7".parse().unwrap(), fleet: false };
        assert_eq!(encode(&reset).unwrap(), ("/v1/reset".to_owned(), br#"{"source":"192.0.2.7"}"#.to_vec()));
    }
}
