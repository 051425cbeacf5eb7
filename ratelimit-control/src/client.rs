//! The command line's end of the control API: one request a connection over the Unix socket.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::orphan;
use super::proto::{
    ALLOW, APPLY, ApplyReport, ApplyRequest, CHARGE, CHECK, CHECK_PREFIX, CONFIRM, ChargeRequest, ConfirmReport, DENY,
    DETACH, DetachReport, EXPLAIN, GrantReport, GrantRequest, HEALTHZ, Health, LIST, METRICS, MODE, ModeReport,
    ModeRequest, ModeWord, PrefixRequest, Problem, RELOAD, RESET, ROLLBACK, ReloadReport, ReloadRequest, ResetReport,
    RollbackReport, STANDING, STATS, SUGGEST, SourceRequest, Standing, UNALLOW, UNBLOCK, UnblockReport, UnblockRequest,
};
use super::requester::SUDO_USER;
use super::socket::GROUP;
use ratelimit_datapath::orphans::{self, Orphans};
use ratelimit_datapath::pins;
use ratelimit_policy::desired::{Grant, Sent};
use ratelimit_report::snapshot::{
    CheckReport, ExplainReport, ListFilter, ListReport, PrefixReport, Snapshot, SuggestReport,
};

/// An answer is there by then: the server's own limit, and a little for the way.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(35);
/// Between two tries to connect.
const QUEUE_PAUSE: Duration = Duration::from_millis(10);
/// Sixteen interfaces with every counter are 100 kB.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// A list of as many prefixes as the kernel takes. // 2 x 200000 x 500 B = 200 MB
const LIST_BYTES_MAX: usize = 256 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("{}no daemon answers at {path}: {why}", orphan::lead(orphans))]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// What connect(2) said.
        why: io::Error,
        /// What an earlier daemon has left.
        orphans: Orphans,
    },
    /// The socket is not for this user.
    #[error("the control socket {path} is not for this user")]
    NotPermitted {
        /// The socket.
        path: PathBuf,
        /// What it was for.
        wanted: Wanted,
    },
    /// The daemon took too long.
    #[error("the daemon at {path} did not answer within {} s", ANSWER_TIME_MAX.as_secs())]
    TimedOut {
        /// The socket.
        path: PathBuf,
    },
    /// The answer is not what this version understands.
    #[error("the daemon at {path} answered {what}")]
    Unintelligible {
        /// The socket.
        path: PathBuf,
        /// What was wrong.
        what: String,
    },
    /// The daemon said no, and why.
    #[error(transparent)]
    Refused(#[from] Problem),
}

impl ClientError {
    /// What to do, one clause each.
    pub fn help(&self) -> Vec<String> {
        match self {
            Self::NoDaemon { orphans, .. } => orphan::help(orphans),
            Self::NotPermitted { wanted: Wanted::Read, .. } => vec![
                format!("root and members of the group {GROUP} may read"),
                format!("to join the group: sudo usermod -aG {GROUP} $USER, then log in again"),
            ],
            Self::NotPermitted { wanted: Wanted::Change, .. } => {
                vec!["only root and the user that the daemon runs as may change anything".to_owned()]
            }
            Self::TimedOut { .. } => vec!["`systemctl status ratelimitd` says what it is doing".to_owned()],
            Self::Unintelligible { .. } => vec!["is it another version than this command?".to_owned()],
            // The daemon has said what to do.
            Self::Refused(_) => Vec::new(),
        }
    }
}

/// What a request is for: who may is another matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// To read.
    Read,
    /// To change something.
    Change,
}

impl From<&Method> for Wanted {
    fn from(method: &Method) -> Self {
        if *method == Method::GET { Self::Read } else { Self::Change }
    }
}

/// A daemon's address.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    pins: PathBuf,
    sudo_user: Option<HeaderValue>,
}

impl Client {
    /// The daemon behind a socket. Connects to nothing yet.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), pins: pins::ROOT.into(), sudo_user: None }
    }

    /// The same, looking elsewhere for what a dead daemon has left pinned.
    #[must_use]
    pub fn with_pins(self, pins: &Path) -> Self {
        Self { pins: pins.to_owned(), ..self }
    }

    /// The same, saying who called `sudo`.
    #[must_use]
    pub fn for_sudo_user(self, name: Option<&str>) -> Self {
        Self { sudo_user: name.and_then(|name| HeaderValue::from_str(name).ok()), ..self }
    }

    /// Statistics.
    pub async fn stats(&self) -> Result<Snapshot, ClientError> {
        self.json(Method::GET, STATS).await
    }

    /// One source.
    pub async fn check(&self, address: IpAddr) -> Result<CheckReport, ClientError> {
        self.json(Method::GET, &format!("{CHECK}/{address}")).await
    }

    /// All of a prefix; of the entries, so many of each origin.
    pub async fn check_prefix(&self, prefix: IpNet, most: u64) -> Result<PrefixReport, ClientError> {
        let prefix = escaped(&prefix.to_string());
        self.json(Method::GET, &format!("{CHECK_PREFIX}?prefix={prefix}&most={most}")).await
    }

    /// Whether everything is attached and readable.
    pub async fn health(&self) -> Result<Health, ClientError> {
        let (_, body) = self.request(Method::GET, HEALTHZ, Bytes::new()).await?;
        self.parse(&body)
    }

    /// Metrics, as text.
    pub async fn metrics(&self) -> Result<String, ClientError> {
        let (status, body) = self.request(Method::GET, METRICS, Bytes::new()).await?;
        self.succeeded(status, &body)?;
        String::from_utf8(body.to_vec()).map_err(|error| self.unintelligible(error))
    }

    /// Has the configuration file read anew.
    pub async fn reload(&self) -> Result<ReloadReport, ClientError> {
        self.reload_by(&ReloadRequest::default()).await
    }

    /// The same, and says who asks.
    pub async fn reload_by(&self, request: &ReloadRequest) -> Result<ReloadReport, ClientError> {
        self.post(RELOAD, request).await
    }

    /// Takes the filter off one interface, or off all, which ends the daemon.
    pub async fn detach(&self, interface: Option<&str>) -> Result<DetachReport, ClientError> {
        let path = interface.map_or(DETACH.to_owned(), |name| format!("{DETACH}?interface={}", escaped(name)));
        self.json(Method::POST, &path).await
    }

    /// What is allowed, denied and banned.
    pub async fn list(&self) -> Result<ListReport, ClientError> {
        self.list_of(&ListFilter::default()).await
    }

    /// The part of it that is asked for.
    pub async fn list_of(&self, filter: &ListFilter) -> Result<ListReport, ClientError> {
        let ListFilter { rule, reason, prefix, most } = filter;
        let fields = [
            ("rule", rule.clone()),
            ("reason", reason.clone()),
            ("prefix", prefix.map(|prefix| prefix.to_string())),
            ("most", most.map(|most| most.to_string())),
        ];
        let fields = fields.iter().filter_map(|(name, value)| Some(format!("{name}={}", escaped(value.as_deref()?))));
        self.json(Method::GET, &format!("{LIST}?{}", fields.collect::<Vec<_>>().join("&"))).await
    }

    /// Limits read off what was observed, of one rule or of all.
    pub async fn suggest(&self, rule: Option<&str>) -> Result<SuggestReport, ClientError> {
        let path = rule.map_or(SUGGEST.to_owned(), |rule| format!("{SUGGEST}?rule={}", escaped(rule)));
        self.json(Method::GET, &path).await
    }

    /// What would become of a packet.
    pub async fn explain(&self, sent: &Sent) -> Result<ExplainReport, ClientError> {
        let to_address = sent.to.map_or(String::new(), |to| format!("&address={}", escaped(&to.to_string())));
        let to = format!("{}/{}", sent.port, sent.protocol.label());
        self.json(Method::GET, &format!("{EXPLAIN}/{}?to={}{to_address}", sent.from, escaped(&to))).await
    }

    /// Allows or denies a prefix.
    pub async fn grant(&self, grant: Grant, request: &GrantRequest) -> Result<GrantReport, ClientError> {
        let path = match grant {
            Grant::Exempt => ALLOW,
            Grant::Denied => DENY,
        };
        self.post(path, request).await
    }

    /// Frees a prefix.
    pub async fn unblock(&self, prefix: &str) -> Result<UnblockReport, ClientError> {
        self.post(UNBLOCK, &UnblockRequest { prefix: Some(prefix.to_owned()), all: false }).await
    }

    /// Ends all bans and all denials of commands.
    pub async fn unblock_all(&self) -> Result<UnblockReport, ClientError> {
        self.post(UNBLOCK, &UnblockRequest { prefix: None, all: true }).await
    }

    /// Takes off what commands allow in a prefix.
    pub async fn unallow(&self, prefix: &str) -> Result<UnblockReport, ClientError> {
        self.post(UNALLOW, &PrefixRequest { prefix: prefix.to_owned() }).await
    }

    /// Forgets what a source has used, and its bans.
    pub async fn reset(&self, source: IpAddr) -> Result<ResetReport, ClientError> {
        self.post(RESET, &SourceRequest { source }).await
    }

    /// Says whether anything is dropped.
    pub async fn mode(&self, mode: ModeWord) -> Result<ModeReport, ClientError> {
        self.post(MODE, &ModeRequest { mode }).await
    }

    /// Puts a file in force.
    pub async fn apply(&self, request: &ApplyRequest) -> Result<ApplyReport, ClientError> {
        self.post(APPLY, request).await
    }

    /// Keeps what was put in force for a while.
    pub async fn confirm(&self) -> Result<ConfirmReport, ClientError> {
        self.json(Method::POST, CONFIRM).await
    }

    /// Ends the trial: what held before holds again.
    pub async fn roll_back(&self) -> Result<RollbackReport, ClientError> {
        self.json(Method::POST, ROLLBACK).await
    }

    /// Adds to what a source has used.
    pub async fn charge(&self, request: &ChargeRequest) -> Result<Standing, ClientError> {
        self.post(CHARGE, request).await
    }

    /// How a source stands with one rule.
    pub async fn standing(&self, source: IpAddr, rule: &str) -> Result<Standing, ClientError> {
        self.json(Method::GET, &format!("{STANDING}/{source}?rule={}", escaped(rule))).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.unintelligible(error))?;
        let (status, body) = self.request(Method::POST, path, body.into()).await?;
        self.succeeded(status, &body)?;
        self.parse(&body)
    }

    async fn json<T: DeserializeOwned>(&self, method: Method, path: &str) -> Result<T, ClientError> {
        let (status, body) = self.request(method, path, Bytes::new()).await?;
        self.succeeded(status, &body)?;
        self.parse(&body)
    }

    fn succeeded(&self, status: StatusCode, body: &[u8]) -> Result<(), ClientError> {
        if status.is_success() {
            return Ok(());
        }
        let problem = serde_json::from_slice::<Problem>(body).map_err(|_| self.unintelligible(status))?;
        Err(problem.into())
    }

    fn parse<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, ClientError> {
        serde_json::from_slice(body).map_err(|error| self.unintelligible(error))
    }

    async fn request(&self, method: Method, path: &str, body: Bytes) -> Result<(StatusCode, Bytes), ClientError> {
        let timed_out = |_| ClientError::TimedOut { path: self.socket.clone() };
        tokio::time::timeout(ANSWER_TIME_MAX, self.exchange(method, path, body)).await.map_err(timed_out)?
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<(StatusCode, Bytes), ClientError> {
        let wanted = Wanted::from(&method);
        let stream = self.connect().await.map_err(|error| self.unreachable(error, wanted))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.unintelligible(error))?;
        let connection = tokio::spawn(connection);
        let bytes_max = if path.starts_with(LIST) { LIST_BYTES_MAX } else { ANSWER_BYTES_MAX };
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, "ratelimitd");
        if let Some(name) = &self.sudo_user {
            request = request.header(SUDO_USER, name);
        }
        let request = request.body(Full::new(body)).map_err(|error| self.unintelligible(error))?;
        let response = sender.send_request(request).await.map_err(|error| self.broken_off(error, wanted))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), bytes_max).collect().await;
        connection.abort();
        Ok((status, body.map_err(|error| self.unintelligible(error))?.to_bytes()))
    }

    /// A socket whose queue is full says so at once: it is empty again in a moment.
    async fn connect(&self) -> io::Result<UnixStream> {
        loop {
            match UnixStream::connect(&self.socket).await {
                Err(full) if full.kind() == ErrorKind::WouldBlock => tokio::time::sleep(QUEUE_PAUSE).await,
                other => return other,
            }
        }
    }

    fn unreachable(&self, why: io::Error, wanted: Wanted) -> ClientError {
        if why.kind() == ErrorKind::PermissionDenied {
            return ClientError::NotPermitted { path: self.socket.clone(), wanted };
        }
        ClientError::NoDaemon { path: self.socket.clone(), why, orphans: orphans::orphans(&self.pins) }
    }

    /// A daemon that ends meanwhile closes the connection.
    fn broken_off(&self, error: hyper::Error, wanted: Wanted) -> ClientError {
        if error.is_parse() { self.unintelligible(error) } else { self.unreachable(io::Error::other(error), wanted) }
    }

    fn unintelligible(&self, what: impl fmt::Display) -> ClientError {
        ClientError::Unintelligible { path: self.socket.clone(), what: what.to_string() }
    }
}

/// A query's value: what is not plainly safe is percent-encoded.
fn escaped(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    value.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
