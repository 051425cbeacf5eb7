//! Client of CrowdSec's local API over HTTP or HTTPS. Opens one connection per request, and limits the time of each
//! step and the size of each answer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::book::Pull;
use crate::decision::{self, Delta};

/// User agent: the name and version that the local API shows for this bouncer.
pub const USER_AGENT: &str = concat!("crowdsec-ratelimitd/", env!("CARGO_PKG_VERSION"));
/// Maximum time to connect, including the TLS handshake.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Maximum time until an answer begins, and between two of its frames.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Maximum time for a whole answer of changes.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const ALL_WITHIN: Duration = Duration::from_secs(300);
/// Maximum size in bytes of a decision stream, enough for a million decisions. // 1048576 x 250 B
const STREAM_BYTES_MAX: usize = 256 << 20;
/// Maximum size in bytes of any other answer.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Maximum number of bytes of an error body that are shown.
const SHOWN_BYTES: usize = 200;
/// Capacity of the queue of answer frames that wait to be parsed.
const WAITING: usize = 8;

/// Failure of a request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The local API cannot be reached.
    #[error("the local API at {0} cannot be reached: {1}")]
    Unreachable(String, io::Error),
    /// The local API took too long.
    #[error("the local API at {0} was silent for too long")]
    TimedOut(String),
    /// The local API refuses the key.
    #[error("the local API refuses this key (HTTP {0})")]
    Refused(u16),
    /// The local API answered with an error status.
    #[error("the local API answered HTTP {0}: {1}")]
    Status(u16, String),
    /// The answer broke off or cannot be parsed.
    #[error("the answer of the local API cannot be read: {0}")]
    Unintelligible(String),
}

/// Failure to set up the client.
#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    /// The URL does not name a local API.
    #[error("`{0}` is no URL of a local API: write http://127.0.0.1:8080/ or https://HOST:PORT/")]
    Url(String),
    /// The trusted certificates cannot be read, or there are none.
    #[error("certificates of {0} cannot be read: {1}")]
    Certificates(PathBuf, String),
}

/// Client of one local API.
#[derive(Clone)]
pub struct Api {
    host: String,
    port: u16,
    path: String,
    tls: Option<(tokio_rustls::TlsConnector, ServerName<'static>)>,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.place())
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Start of an answer and the task of its connection. Dropping it closes the connection.
struct Answer {
    status: StatusCode,
    body: Incoming,
    _connection: JoinSet<()>,
}

impl Api {
    /// Creates a client for the API at a URL, without connecting. `ca_file` replaces the system's trusted
    /// certificates.
    pub fn new(url: &str, ca_file: Option<&Path>) -> Result<Self, BaseError> {
        let wrong = || BaseError::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) | None => return Err(wrong()),
        };
        let authority = uri.authority().filter(|of| !of.as_str().contains('@')).ok_or_else(wrong)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if uri.query().is_some() || host.is_empty() {
            return Err(wrong());
        }
        let tls = if is_tls {
            let name = ServerName::try_from(host.clone()).map_err(|_| wrong())?;
            Some((trusting(ca_file)?, name))
        } else {
            None
        };
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Ok(Self { host, port, path: uri.path().trim_end_matches('/').to_owned(), tls })
    }

    /// Returns true if the key would cross the network unencrypted.
    pub fn is_in_the_clear(&self) -> bool {
        let is_loopback = self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        self.tls.is_none() && !is_loopback && self.host != "localhost"
    }

    fn place(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        format!("{scheme}://{host}:{}{}/", self.port, self.path)
    }

    /// Pulls decisions. `query` excludes the `?`. Parses while receiving, so memory use does not grow with the
    /// answer's size. `pull` sets the time limit for the whole answer.
    pub async fn decisions(&self, key: &HeaderValue, query: &str, pull: Pull) -> Result<Delta, ClientError> {
        let within = match pull {
            Pull::All => ALL_WITHIN,
            Pull::Changes => ANSWER_WITHIN,
        };
        let target = format!("/v1/decisions/stream?{query}");
        let pulled = async {
            let answer = self.send(Method::GET, &target, &[("x-api-key", key)], Bytes::new()).await?;
            if answer.status != StatusCode::OK {
                return Err(self.refusal(answer).await);
            }
            self.stream(answer).await
        };
        tokio::time::timeout(within, pulled).await.map_err(|_| ClientError::TimedOut(self.place()))?
    }

    /// Posts a JSON body, and returns the answer's status and body.
    pub(crate) async fn post(
        &self,
        target: &str,
        token: Option<&HeaderValue>,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let headers: Vec<(&str, &HeaderValue)> = token.iter().map(|token| ("authorization", *token)).collect();
        let answer = self.send(Method::POST, target, &headers, body.into()).await?;
        let status = answer.status;
        Ok((status, self.whole(answer).await?))
    }

    async fn send(
        &self,
        method: Method,
        target: &str,
        headers: &[(&str, &HeaderValue)],
        body: Bytes,
    ) -> Result<Answer, ClientError> {
        let unreachable = |error| ClientError::Unreachable(self.place(), error);
        let timed_out = |_| ClientError::TimedOut(self.place());
        let stream = tokio::time::timeout(CONNECT_WITHIN, self.connect()).await.map_err(timed_out)?;
        let io = TokioIo::new(stream.map_err(unreachable)?);
        let broken = |error: hyper::Error| ClientError::Unintelligible(error.to_string());
        let host = if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        };
        let mut request = Request::builder().method(method).uri(format!("{}{target}", self.path));
        request = request.header(header::HOST, host).header(header::USER_AGENT, USER_AGENT);
        request = request.header(header::CONTENT_TYPE, "application/json").header(header::ACCEPT, "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).map_err(|error| ClientError::Unintelligible(error.to_string()))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.map_err(broken)?;
        let mut task = JoinSet::new();
        task.spawn(async {
            // A connection error also appears in the answer.
            let _ = connection.await;
        });
        let response = tokio::time::timeout(SILENCE_MAX, sender.send_request(request)).await.map_err(timed_out)?;
        let (parts, body) = response.map_err(broken)?.into_parts();
        Ok(Answer { status: parts.status, body, _connection: task })
    }

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        Ok(match &self.tls {
            Some((connector, name)) => Box::new(connector.connect(name.clone(), stream).await?),
            None => Box::new(stream),
        })
    }

    /// Parses an answer of decisions while it arrives.
    async fn stream(&self, mut answer: Answer) -> Result<Delta, ClientError> {
        let (pieces, waiting) = mpsc::channel(WAITING);
        let began = Instant::now();
        let since = move || i64::try_from(began.elapsed().as_nanos()).unwrap_or(i64::MAX);
        let reading = tokio::task::spawn_blocking(move || {
            decision::read_slowly(io::BufReader::new(Pieces::new(waiting)), &since)
        });
        let mut bytes = 0;
        let mut broken = None;
        loop {
            let frame = match tokio::time::timeout(SILENCE_MAX, answer.body.frame()).await {
                Ok(None) => break,
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => {
                    broken = Some(ClientError::Unintelligible(error.to_string()));
                    break;
                }
                Err(_) => {
                    broken = Some(ClientError::TimedOut(self.place()));
                    break;
                }
            };
            let Ok(data) = frame.into_data() else { continue };
            bytes += data.len();
            if bytes > STREAM_BYTES_MAX {
                broken = Some(ClientError::Unintelligible(format!("it is longer than {STREAM_BYTES_MAX} bytes")));
                break;
            }
            // The parser stops reading only after an error.
            if pieces.send(data).await.is_err() {
                break;
            }
        }
        drop(pieces);
        let read = reading.await.map_err(|error| ClientError::Unintelligible(error.to_string()))?;
        match broken {
            Some(error) => Err(error),
            None => read.map_err(|error| ClientError::Unintelligible(error.to_string())),
        }
    }

    async fn whole(&self, answer: Answer) -> Result<Bytes, ClientError> {
        let body = Limited::new(answer.body, ANSWER_BYTES_MAX).collect();
        let body = tokio::time::timeout(SILENCE_MAX, body).await.map_err(|_| ClientError::TimedOut(self.place()))?;
        Ok(body.map_err(|error| ClientError::Unintelligible(error.to_string()))?.to_bytes())
    }

    async fn refusal(&self, answer: Answer) -> ClientError {
        let status = answer.status;
        let body = self.whole(answer).await.unwrap_or_default();
        refused(status, &body)
    }
}

/// Returns the error for a status other than success.
pub(crate) fn refused(status: StatusCode, body: &[u8]) -> ClientError {
    if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
        return ClientError::Refused(status.as_u16());
    }
    let text = String::from_utf8_lossy(body.get(..SHOWN_BYTES).unwrap_or(body)).into_owned();
    ClientError::Status(status.as_u16(), ratelimit_policy::config::syntax::printable(text.trim()))
}

fn trusting(ca_file: Option<&Path>) -> Result<tokio_rustls::TlsConnector, BaseError> {
    let system = || PathBuf::from("this system");
    let mut roots = rustls::RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let wrong = |error: String| BaseError::Certificates(path.to_owned(), error);
            for of in CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))? {
                let of = of.map_err(|error| wrong(error.to_string()))?;
                roots.add(of).map_err(|error| wrong(error.to_string()))?;
            }
        }
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    if roots.is_empty() {
        let path = ca_file.map_or_else(system, Path::to_owned);
        return Err(BaseError::Certificates(path, "there are none".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| BaseError::Certificates(system(), error.to_string()))?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(tokio_rustls::TlsConnector::from(Arc::new(config)))
}

/// Blocking reader of the frames of an answer.
struct Pieces {
    waiting: mpsc::Receiver<Bytes>,
    current: Bytes,
}

impl Pieces {
    const fn new(waiting: mpsc::Receiver<Bytes>) -> Self {
        Self { waiting, current: Bytes::new() }
    }
}

impl io::Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.waiting.blocking_recv() {
                Some(piece) => self.current = piece,
                None => return Ok(0),
            }
        }
        let length = into.len().min(self.current.len());
        into[..length].copy_from_slice(&self.current.split_to(length));
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_the_local_api_is() {
        for (url, place) in [
            ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/"),
            ("http://[::1]:8080/lapi/", "http://[::1]:8080/lapi/"),
            ("http://localhost", "http://localhost:80/"),
        ] {
            let api = Api::new(url, None).unwrap();
            assert_eq!(format!("{api:?}"), place);
            assert!(!api.is_in_the_clear());
        }
        assert!(Api::new("http://192.0.2.1:8080/", None).unwrap().is_in_the_clear());
        for url in ["", "127.0.0.1:8080", "ftp://a/", "http://", "http://u:p@a/", "http://a/?x", "unix:///a"] {
            assert!(matches!(Api::new(url, None), Err(BaseError::Url(_))), "{url}");
        }
        let missing = Api::new("https://a/", Some(Path::new("/nonexistent")));
        assert!(matches!(missing, Err(BaseError::Certificates(..))));
    }
}
