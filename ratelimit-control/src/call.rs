//! Commands on their way from a client to the owner of the datapath. Each is defined once: a type with its arguments,
//! and a [`Call`] with its route, permissions and report.
//!
//! The client, the server and the owner know no command by name. [`Client::call`](super::client::Client::call) sends
//! any, and one handler accepts any. An owner that lacks a [`Carry`] for one of them does not compile.

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

/// Maximum bytes of a report. The report of sixteen interfaces with every counter has 100 kB.
const REPORT_BYTES_MAX: usize = 4 << 20;

/// A command: its arguments and its route. TCP serves only the commands that `server` names.
pub trait Call: Serialize + DeserializeOwned + fmt::Debug + Send + 'static {
    /// Type of the answer.
    type Report: Serialize + DeserializeOwned + fmt::Debug + Send + 'static;

    /// Route of the command, with the permission that it needs.
    const ROUTE: Route;

    /// Maximum bytes of a report that a client reads.
    const REPORT_BYTES_MAX: usize = REPORT_BYTES_MAX;

    /// Maximum bytes of a body that the socket accepts.
    const BODY_BYTES_MAX: usize = BODY_BYTES_MAX;

    /// Size class of the report. Few large reports are made at a time.
    const SIZE: Size = Size::Small;

    /// Returns the size class of the report for these arguments.
    fn size(&self) -> Size {
        Self::SIZE
    }

    /// Refuses invalid arguments before the owner is asked.
    fn check(&self) -> Result<(), Problem> {
        Ok(())
    }

    /// Returns the HTTP status for a report.
    fn status(_report: &Self::Report) -> StatusCode {
        StatusCode::OK
    }
}

/// Route of a command over the control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// HTTP method of the request.
    pub verb: Verb,
    /// Path; `{ip}` stands for the argument of that name, which is an address.
    pub path: &'static str,
    /// Place of the other arguments.
    pub arguments: Arguments,
    /// Permission that the sender needs.
    pub access: Access,
}

/// Memory of the daemon that an answer may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// Up to a page of numbers for each rule.
    Small,
    /// Some MB: as many events, episodes or minutes as one request may ask for.
    Medium,
    /// Up to 100 MB: as many as there are entries.
    Large,
}

/// HTTP method of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// GET, for questions.
    Get,
    /// POST, for changes.
    Post,
}

/// Place of a command's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// The query; a body is ignored.
    Query,
    /// JSON in the body.
    Body,
    /// JSON in the body; an empty body stands for an empty object.
    BodyOrNothing,
}

/// Permission that the sender of a command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every user who may connect to the socket.
    Connect,
    /// Root and the daemon's own user.
    Change,
}

impl Route {
    /// Returns the route of a question, with its arguments in the query.
    pub const fn ask(path: &'static str) -> Self {
        Self { verb: Verb::Get, path, arguments: Arguments::Query, access: Access::Connect }
    }

    /// Returns the route of a change, with its arguments in the body.
    pub const fn change(path: &'static str) -> Self {
        Self { verb: Verb::Post, path, arguments: Arguments::Body, access: Access::Change }
    }
}

/// Owner that carries out a command at once. `When` is the owner's own notion of now.
pub trait Carry<C: Call, When> {
    /// Carries out the command for the requester `by`.
    fn carry(&mut self, call: C, by: &Requester, when: When) -> Result<C::Report, Problem>;
}

/// Owner that answers a command later and from elsewhere.
pub trait Defer<C: Call, When> {
    /// Begins the command. The returned answer is sent once the owner is free again; the reply may follow at any later
    /// time.
    fn defer(&mut self, ask: Ask<C>, when: When) -> Answer;
}

/// Sender of a command's result.
pub type Reply<T> = oneshot::Sender<Result<T, Problem>>;

/// A command on its way to the owner.
#[derive(Debug)]
pub struct Ask<C: Call> {
    /// The command with its arguments.
    pub call: C,
    /// The requester of the command.
    pub by: Requester,
    /// Sender of the result.
    pub reply: Reply<C::Report>,
}

impl<C: Call> Ask<C> {
    fn carry_out<When>(self, owner: &mut impl Carry<C, When>, when: When) -> Answer {
        let Self { call, by, reply } = self;
        let report = owner.carry(call, &by, when);
        Answer(Box::new(move || drop(reply.send(report))))
    }
}

/// Number of turns of the runtime after which connections have noticed clients that left while the owner was busy or
/// the daemon was stopped.
const LOOKS: usize = 3;

/// An answer that is not sent yet.
#[must_use]
pub struct Answer(Box<dyn FnOnce() + Send>);

impl Answer {
    /// Returns an answer that this closure sends.
    pub fn by(send: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(send))
    }

    /// Sends the answer. It is dropped if nobody waits for it.
    pub fn send(self) {
        (self.0)();
    }
}

/// Generates the items for all commands from one list.
macro_rules! commands {
    (now { $($name:ident($call:ty),)* } later { $($later:ident($slow:ty),)* }) => {
        /// Command for the owner of the datapath.
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
            /// Routes of all commands.
            pub const ROUTES: &[Route] = &[$(<$call as Call>::ROUTE,)* $(<$slow as Call>::ROUTE,)*];

            /// Returns the route of this command.
            const fn route(&self) -> Route {
                match self {
                    $(Self::$name(_) => <$call as Call>::ROUTE,)*
                    $(Self::$later(_) => <$slow as Call>::ROUTE,)*
                }
            }

            /// Returns true if nobody waits for the answer any more.
            fn is_abandoned(&self) -> bool {
                match self {
                    $(Self::$name(ask) => ask.reply.is_closed(),)*
                    $(Self::$later(ask) => ask.reply.is_closed(),)*
                }
            }

            /// Makes the owner carry out this command.
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

        /// Returns the routes of the socket.
        pub(super) fn routes() -> Router<Service> {
            Router::new()
                $(.route(<$call as Call>::ROUTE.path, method::<$call>()))*
                $(.route(<$slow as Call>::ROUTE.path, method::<$slow>()))*
        }
    };
}

impl Command {
    /// Returns the command unless its client has gone: a command that was given up must not be carried out later.
    pub async fn awaited(self) -> Option<Self> {
        let route = self.route();
        // Questions change nothing, and an application may charge without waiting for the answer.
        if route.access != Access::Change {
            return Some(self);
        }
        for _ in 0..LOOKS {
            tokio::task::yield_now().await;
        }
        if !self.is_abandoned() {
            return Some(self);
        }
        tracing::warn!("{} was not run: the client disconnected", route.path);
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

/// Encodes a command as a client sends it: path with query, and body.
pub(super) fn encode<C: Call>(call: &C) -> serde_json::Result<(String, Vec<u8>)> {
    let Route { path, arguments, .. } = C::ROUTE;
    match arguments {
        Arguments::Body | Arguments::BodyOrNothing => Ok((path.to_owned(), serde_json::to_vec(call)?)),
        Arguments::Query => Ok((with_query(path, call)?, Vec::new())),
    }
}

/// Returns a path with its arguments filled in, and the others in the query.
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

/// Percent-encodes a query's value, except for characters that are always safe.
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
