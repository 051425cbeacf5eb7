//! The command line's end of the control API: one request per connection over the Unix socket.

use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use super::call::{Call, Verb, encode, with_query};
use super::orphan;
use super::proto::{EventsOf, EventsReport, METRICS, Problem};
use super::requester::SUDO_USER;
use super::socket::GROUP;
use ratelimit_datapath::Orphans;
use ratelimit_report::event::Event;

/// Maximum time for an answer: the server's own limit plus some time for the transfer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(35);
/// Pause between two attempts to connect.
const QUEUE_PAUSE: Duration = Duration::from_millis(10);
/// Maximum bytes of the metrics. The metrics of 64 rules on sixteen interfaces are below 1 MB.
const METRICS_BYTES_MAX: usize = 4 << 20;

/// Maximum bytes of all recent events, each text at its maximum length.
const EVENTS_BYTES_MAX: usize = 16 << 20;
/// Maximum bytes of one event.
const LINE_BYTES_MAX: usize = 64 << 10;

/// One line of a stream of events.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Followed {
    /// An event.
    Event(Box<Event>),
    /// Events that the reader was too slow for.
    Missed {
        /// Number of missed events.
        missed: u64,
    },
}

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens on the socket.
    #[error("{}no daemon answers at {path}: {why}", orphan::lead(orphans))]
    NoDaemon {
        /// Path of the socket.
        path: PathBuf,
        /// Error of connect(2).
        why: io::Error,
        /// Filters without a daemon that the client found. Empty if it did not search.
        orphans: Orphans,
    },
    /// This user may not use the socket.
    #[error("this user may not use the control socket {path}")]
    NotPermitted {
        /// Path of the socket.
        path: PathBuf,
        /// Purpose of the request.
        wanted: Wanted,
    },
    /// The daemon took too long.
    #[error("the daemon at {path} did not answer within {} s{}", ANSWER_TIME_MAX.as_secs(), unfinished(*wanted))]
    TimedOut {
        /// Path of the socket.
        path: PathBuf,
        /// Purpose of the request.
        wanted: Wanted,
    },
    /// The daemon closed the connection, but still runs.
    #[error("the daemon at {path} closed the connection without an answer{}", unfinished(*wanted))]
    Unanswered {
        /// Path of the socket.
        path: PathBuf,
        /// Purpose of the request.
        wanted: Wanted,
    },
    /// This version does not understand the answer.
    #[error("the daemon at {path} answered {what}")]
    Unintelligible {
        /// Path of the socket.
        path: PathBuf,
        /// Description of the fault.
        what: String,
    },
    /// The daemon refused the request, with this reason.
    #[error(transparent)]
    Refused(#[from] Problem),
}

impl ClientError {
    /// Returns the remedies, one clause each.
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
            Self::TimedOut { .. } | Self::Unanswered { .. } => {
                vec!["`systemctl status ratelimitd` says what it is doing".to_owned()]
            }
            Self::Unintelligible { .. } => vec!["does the daemon have another version than this command?".to_owned()],
            // The daemon's message says what to do.
            Self::Refused(_) => Vec::new(),
        }
    }
}

/// Returns advice about an unanswered command. The daemon does not begin a command after its client has gone.
const fn unfinished(wanted: Wanted) -> &'static str {
    match wanted {
        Wanted::Read => "",
        Wanted::Change => "; if the daemon has started the command, it will finish it: check before you repeat it",
    }
}

/// Purpose of a request. The server decides who is permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A request that only reads.
    Read,
    /// A request that changes something.
    Change,
}

impl From<&Method> for Wanted {
    fn from(method: &Method) -> Self {
        if *method == Method::GET { Self::Read } else { Self::Change }
    }
}

/// Client of the daemon at a socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    find_orphans: fn() -> Orphans,
    sudo_user: Option<HeaderValue>,
}

impl Client {
    /// Returns a client for a socket. Does not connect yet.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), find_orphans: || Orphans::Nothing, sudo_user: None }
    }

    /// Sets the search for filters without a daemon, which runs when no daemon answers.
    #[must_use]
    pub fn with_orphan_search(self, find_orphans: fn() -> Orphans) -> Self {
        Self { find_orphans, ..self }
    }

    /// Sets the user who called `sudo`, for the daemon's records.
    #[must_use]
    pub fn for_sudo_user(self, name: Option<&str>) -> Self {
        Self { sudo_user: name.and_then(|name| HeaderValue::from_str(name).ok()), ..self }
    }

    /// Sends a command and returns its report.
    pub async fn call<C: Call>(&self, call: &C) -> Result<C::Report, ClientError> {
        let (target, body) = encode(call).map_err(|error| self.unintelligible(error))?;
        let method = match C::ROUTE.verb {
            Verb::Get => Method::GET,
            Verb::Post => Method::POST,
        };
        let (status, body) = self.request(method, &target, body.into(), C::REPORT_BYTES_MAX).await?;
        if !status.is_success()
            && let Ok(problem) = serde_json::from_slice::<Problem>(&body)
        {
            return Err(problem.into());
        }
        // A report may come with a status that is no success, as health does.
        serde_json::from_slice(&body)
            .map_err(|error| if status.is_success() { self.unintelligible(error) } else { self.unintelligible(status) })
    }

    /// Returns the metrics, as text.
    pub async fn metrics(&self) -> Result<String, ClientError> {
        let (status, body) = self.request(Method::GET, METRICS, Bytes::new(), METRICS_BYTES_MAX).await?;
        if !status.is_success() {
            return Err(serde_json::from_slice::<Problem>(&body).map_err(|_| self.unintelligible(status))?.into());
        }
        String::from_utf8(body.to_vec()).map_err(|error| self.unintelligible(error))
    }

    /// Returns the recent events that match the request.
    pub async fn events(&self, asked: &EventsOf) -> Result<EventsReport, ClientError> {
        let target = with_query(EventsOf::PATH, asked).map_err(|error| self.unintelligible(error))?;
        let (status, body) = self.request(Method::GET, &target, Bytes::new(), EVENTS_BYTES_MAX).await?;
        if !status.is_success() {
            return Err(serde_json::from_slice::<Problem>(&body).map_err(|_| self.unintelligible(status))?.into());
        }
        serde_json::from_slice(&body).map_err(|error| self.unintelligible(error))
    }

    /// Passes the matching recent and following events to `take`, until it breaks. Fails if the daemon ends.
    pub async fn follow(
        &self,
        asked: &EventsOf,
        mut take: impl FnMut(Followed) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        let asked = EventsOf { follow: Some(true), ..asked.clone() };
        let target = with_query(EventsOf::PATH, &asked).map_err(|error| self.unintelligible(error))?;
        let request = Request::builder().uri(target).header(header::HOST, "ratelimitd").body(Full::new(Bytes::new()));
        let request = request.map_err(|error| self.unintelligible(error))?;
        let (response, _connection) = self.sent(request).await?;
        let status = response.status();
        let mut body = response.into_body();
        if !status.is_success() {
            let body =
                Limited::new(body, LINE_BYTES_MAX).collect().await.map_err(|error| self.unintelligible(error))?;
            let problem = serde_json::from_slice::<Problem>(&body.to_bytes());
            return Err(problem.map_err(|_| self.unintelligible(status))?.into());
        }
        let mut waiting = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| self.broken_off(error, Wanted::Read))?;
            waiting.extend_from_slice(frame.data_ref().map_or(&[][..], |bytes| bytes));
            while let Some(end) = waiting.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = waiting.drain(..=end).collect();
                if line.len() > 1 {
                    let followed = serde_json::from_slice(&line).map_err(|error| self.unintelligible(error))?;
                    if take(followed).is_break() {
                        return Ok(());
                    }
                }
            }
            if waiting.len() > LINE_BYTES_MAX {
                return Err(self.unintelligible("a line without an end"));
            }
        }
        Err(self.unreachable(io::Error::other("it has ended"), Wanted::Read))
    }

    async fn request(
        &self,
        method: Method,
        target: &str,
        body: Bytes,
        bytes_max: usize,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let mut request = Request::builder().method(method).uri(target).header(header::HOST, "ratelimitd");
        if let Some(name) = &self.sudo_user {
            request = request.header(SUDO_USER, name);
        }
        let request = request.body(Full::new(body)).map_err(|error| self.unintelligible(error))?;
        let wanted = Wanted::from(request.method());
        let timed_out = |_| ClientError::TimedOut { path: self.socket.clone(), wanted };
        tokio::time::timeout(ANSWER_TIME_MAX, self.exchange(request, bytes_max)).await.map_err(timed_out)?
    }

    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        bytes_max: usize,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let (response, _connection) = self.sent(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), bytes_max).collect().await;
        Ok((status, body.map_err(|error| self.unintelligible(error))?.to_bytes()))
    }

    /// Sends a request. Returns the head of the answer and the task of its connection, which ends when it is dropped.
    async fn sent(&self, request: Request<Full<Bytes>>) -> Result<(Response<Incoming>, JoinSet<()>), ClientError> {
        let wanted = Wanted::from(request.method());
        let stream = self.connect().await.map_err(|error| self.unreachable(error, wanted))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.unintelligible(error))?;
        let mut task = JoinSet::new();
        task.spawn(async {
            // The caller gets the error with its answer.
            let _ = connection.await;
        });
        match sender.send_request(request).await {
            Ok(response) => Ok((response, task)),
            Err(error) if !error.is_parse() && self.is_listened_to().await => {
                Err(ClientError::Unanswered { path: self.socket.clone(), wanted })
            }
            Err(error) => Err(self.broken_off(error, wanted)),
        }
    }

    /// Connects to the socket. If its queue is full, retries after a short pause, because the queue soon drains.
    async fn connect(&self) -> io::Result<UnixStream> {
        loop {
            match UnixStream::connect(&self.socket).await {
                Err(full) if full.kind() == ErrorKind::WouldBlock => tokio::time::sleep(QUEUE_PAUSE).await,
                other => return other,
            }
        }
    }

    /// Returns true if a daemon has the socket, even a busy one.
    async fn is_listened_to(&self) -> bool {
        match UnixStream::connect(&self.socket).await {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }

    fn unreachable(&self, why: io::Error, wanted: Wanted) -> ClientError {
        if why.kind() == ErrorKind::PermissionDenied {
            return ClientError::NotPermitted { path: self.socket.clone(), wanted };
        }
        ClientError::NoDaemon { path: self.socket.clone(), why, orphans: (self.find_orphans)() }
    }

    /// Returns the error for a connection that broke off, for example because the daemon ended.
    fn broken_off(&self, error: hyper::Error, wanted: Wanted) -> ClientError {
        if error.is_parse() { self.unintelligible(error) } else { self.unreachable(io::Error::other(error), wanted) }
    }

    fn unintelligible(&self, what: impl fmt::Display) -> ClientError {
        ClientError::Unintelligible { path: self.socket.clone(), what: what.to_string() }
    }
}
