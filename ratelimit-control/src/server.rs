//! The control API's server: one router, two surfaces. Knows [`Handle`]; must not know the datapath.
//!
//! Over the socket everything, writing only for root and the daemon's own user. Over TCP nothing that writes and
//! nothing that names a source. No client, however slow, holds a connection beyond [`CONNECTION_TIME_MAX`], and no number of them
//! keeps another caller out: see [`Surface::room`].

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http_body_util::LengthLimitError;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt;

use super::places::{Caller, Place, Places, Room};
use super::proto::{CHECK, DETACH, HEALTHZ, METRICS, Problem, ProblemKind, STATS};
use super::requester::{Requester, SUDO_USER};
use super::{Handle, routes};
use ratelimit_report::export;

/// Connections over the socket at a time, and those of them that only root and the daemon's own user can have.
const SOCKET_CONNECTIONS_MAX: usize = 256;
const SOCKET_CONNECTIONS_KEPT: usize = 128;
/// Connections over TCP. // with those of the socket 384 descriptors of the 1024 that a process has unless it is said
const TCP_CONNECTIONS_MAX: usize = 128;
/// Connections of one user, or one address, of either surface.
pub const CONNECTIONS_EACH: usize = 32;
/// Connections of both surfaces.
pub(super) const CONNECTIONS_MAX: usize = SOCKET_CONNECTIONS_MAX + TCP_CONNECTIONS_MAX;
/// A request's head must be there by then.
pub const HEADER_TIME_MAX: Duration = Duration::from_secs(5);
/// A connection, which carries one request, is over by then.
pub const CONNECTION_TIME_MAX: Duration = Duration::from_secs(30);
/// How long connections may go on while the daemon stops.
const STOP_TIME_MAX: Duration = Duration::from_secs(1);
/// After accept(2) has failed, for want of descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Statistics over TCP may be so old: whoever asks there is not known, and a reading visits every source.
const TCP_AGE_MAX: Duration = Duration::from_secs(1);
/// What is asked for fits into this.
const BODY_BYTES_MAX: usize = 4096;
/// Bytes of a request's head. hyper takes no smaller buffer.
const HEAD_BYTES_MAX: usize = 8192;

/// Where a request comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    /// The Unix socket.
    Socket,
    /// `--listen`.
    Tcp,
}

/// Who sent a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// User of the process that connected over the socket, by SO_PEERCRED; none if the kernel did not tell.
    pub uid: Option<u32>,
    /// Where a connection over TCP comes from.
    pub address: Option<IpAddr>,
}

impl Surface {
    const fn room(self) -> Room {
        match self {
            Self::Socket => Room {
                all: SOCKET_CONNECTIONS_MAX,
                others: SOCKET_CONNECTIONS_MAX - SOCKET_CONNECTIONS_KEPT,
                each: CONNECTIONS_EACH,
            },
            Self::Tcp => Room { all: TCP_CONNECTIONS_MAX, others: TCP_CONNECTIONS_MAX, each: CONNECTIONS_EACH },
        }
    }
}

/// What a surface serves, and to how many.
#[derive(Clone, Debug)]
pub struct Door {
    /// For root and the daemon's own user, whose commands go before others'.
    first: Router,
    others: Router,
    places: Places,
    own_uid: u32,
}

impl Door {
    /// The API of a surface, for a daemon that runs as `own_uid`.
    pub fn new(handle: &Handle, surface: Surface, own_uid: u32) -> Self {
        Self {
            first: router(handle.first(), surface, own_uid),
            others: router(handle.clone(), surface, own_uid),
            places: Places::new(surface.room()),
            own_uid,
        }
    }

    fn caller(&self, peer: Peer) -> Caller {
        peer.address.map_or_else(|| Caller::by_uid(peer.uid, self.own_uid), Caller::at)
    }

    fn router(&self, caller: Caller) -> Router {
        match caller {
            Caller::Privileged => self.first.clone(),
            Caller::User(_) | Caller::Address(_) => self.others.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) handle: Handle,
    surface: Surface,
    own_uid: u32,
}

/// The API of a surface, for a daemon that runs as `own_uid`.
pub fn router(handle: Handle, surface: Surface, own_uid: u32) -> Router {
    let reading = Router::new()
        .route(METRICS, get(metrics))
        .route(HEALTHZ, get(healthz))
        .route(STATS, get(stats))
        .route(&format!("{CHECK}/{{ip}}"), get(check));
    let routes = match surface {
        Surface::Socket => routes::add_to(reading.route(DETACH, post(detach))),
        Surface::Tcp => reading,
    };
    routes
        .fallback(|| async { problem(ProblemKind::NotFound, "no such path").into_response() })
        .method_not_allowed_fallback(|| async { (StatusCode::METHOD_NOT_ALLOWED, "this path is for another method") })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(map_response(in_words))
        .with_state(Service { handle, surface, own_uid })
}

/// What axum itself refuses, it refuses in plain text: here a client finds the same shape in every refusal.
async fn in_words(response: Response) -> Response {
    let status = response.status();
    let is_problem = response.headers().get(header::CONTENT_TYPE).is_some_and(|of| of == "application/json");
    if !status.is_client_error() || is_problem {
        return response;
    }
    let text = to_bytes(response.into_body(), BODY_BYTES_MAX).await.unwrap_or_default();
    let why = format!("{}: {}", status.canonical_reason().unwrap_or("refused"), String::from_utf8_lossy(&text));
    (status, Json(Problem::new(ProblemKind::BadRequest, why))).into_response()
}

/// What connections come from.
pub trait Listener: Send + Sync + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for the next one.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + Send;
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<(UnixStream, Peer)> {
        let (stream, _) = self.accept().await?;
        let uid = stream.peer_cred().ok().map(|peer| peer.uid());
        Ok((stream, Peer { uid, address: None }))
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<(TcpStream, Peer)> {
        let (stream, address) = self.accept().await?;
        Ok((stream, Peer { uid: None, address: Some(address.ip()) }))
    }
}

/// Serves until `stop` changes, and then a moment longer for what is under way. Whoever connects is accepted at once: what waits in
/// the kernel's queue would keep others out.
pub async fn serve(listener: impl Listener, door: Door, mut stop: watch::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            next = listener.next() => next,
            Some(_) = connections.join_next() => continue,
            _ = stop.changed() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                admit(&mut connections, &door, stream, peer);
                // What has been sent already is read before another connection can take the place.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                tracing::warn!("accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    let finish = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(STOP_TIME_MAX, finish).await;
}

fn admit<S>(connections: &mut JoinSet<()>, door: &Door, stream: S, peer: Peer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let caller = door.caller(peer);
    let Some(place) = door.places.take(caller) else {
        tracing::debug!("a control connection was closed: {caller:?} has {CONNECTIONS_EACH} requests under way");
        return;
    };
    let id = place.id();
    let connection = connection(stream, peer, door.router(caller), Arc::new(place));
    let task = connections.spawn(async move {
        // A connection that runs out of time is dropped, and so closed.
        let _ = tokio::time::timeout(CONNECTION_TIME_MAX, connection).await;
    });
    door.places.held_by(id, task);
}

fn connection<S>(stream: S, peer: Peer, router: Router, place: Arc<Place>) -> impl Future<Output = ()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let (router, place) = (router.clone(), Arc::clone(&place));
        async move {
            let (parts, body) = request.into_parts();
            // While it waits for the rest of the request, it waits for its client.
            let body = match to_bytes(Body::new(body), BODY_BYTES_MAX).await {
                Ok(body) => Body::from(body),
                Err(error) => return Ok(unread(&error)),
            };
            let mut request = Request::from_parts(parts, body);
            request.extensions_mut().insert(peer);
            let _served = place.serve();
            router.oneshot(request).await
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    async move {
        if let Err(error) = connection.await {
            tracing::debug!("a control connection ended early: {error}");
        }
    }
}

/// A request without all of its body.
fn unread(error: &axum::Error) -> Response {
    let is_too_long = std::error::Error::source(error).is_some_and(|source| source.is::<LengthLimitError>());
    let status = if is_too_long { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
    let why = format!("{}: a body has at most {BODY_BYTES_MAX} bytes", status.canonical_reason().unwrap_or("refused"));
    (status, Json(Problem::new(ProblemKind::BadRequest, why))).into_response()
}

async fn metrics(State(service): State<Service>) -> Result<Response, Refusal> {
    let snapshot = service.handle.stats(age_max(service.surface)).await?;
    let text = export::metrics(snapshot)
        .map_err(|error| problem(ProblemKind::Internal, &format!("write the metrics: {error}")))?;
    Ok(([(header::CONTENT_TYPE, export::CONTENT_TYPE)], text).into_response())
}

const fn age_max(surface: Surface) -> Duration {
    match surface {
        Surface::Socket => Duration::ZERO,
        Surface::Tcp => TCP_AGE_MAX,
    }
}

async fn healthz(State(service): State<Service>) -> Result<Response, Refusal> {
    let health = service.handle.health().await?;
    let status = if health.healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok((status, Json(health)).into_response())
}

async fn stats(State(service): State<Service>) -> Result<Response, Refusal> {
    let snapshot = service.handle.stats(age_max(service.surface)).await?;
    Ok(match service.surface {
        Surface::Socket => Json(&*snapshot).into_response(),
        Surface::Tcp => Json(Arc::unwrap_or_clone(snapshot).without_sources()).into_response(),
    })
}

async fn check(State(service): State<Service>, Path(address): Path<String>) -> Result<Response, Refusal> {
    match service.surface {
        Surface::Socket => {}
        Surface::Tcp => {
            let why = "single sources are not told over TCP; use `ratelimitd check`, or the control socket";
            return Err(problem(ProblemKind::NotPermitted, why));
        }
    }
    Ok(Json(service.handle.check(parse_address(&address)?).await?).into_response())
}

pub(super) fn parse_address(text: &str) -> Result<IpAddr, Refusal> {
    let address: Result<IpAddr, _> = text.parse();
    address
        .map(|address| address.to_canonical())
        .map_err(|_| problem(ProblemKind::BadRequest, &format!("`{text}` is no IP address")))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DetachQuery {
    interface: Option<String>,
}

async fn detach(
    State(service): State<Service>,
    _by: Requester,
    Query(query): Query<DetachQuery>,
) -> Result<Response, Refusal> {
    Ok(Json(service.handle.detach(query.interface).await?).into_response())
}

impl FromRequestParts<Service> for Requester {
    type Rejection = Refusal;

    /// Whoever may change something, or why not.
    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Refusal> {
        let uid = parts.extensions.get::<Peer>().and_then(|peer| peer.uid);
        let Some(uid) = uid.filter(|uid| *uid == 0 || *uid == service.own_uid) else {
            let why = "only root and the user that the daemon runs as may change anything";
            return Err(problem(ProblemKind::NotPermitted, why));
        };
        let sudo_user = parts.headers.get(SUDO_USER).and_then(|name| name.to_str().ok());
        Ok(Self::new(uid, sudo_user))
    }
}

/// A [`Problem`] as a response.
#[derive(Debug)]
pub(super) struct Refusal(Problem);

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

pub(super) fn problem(kind: ProblemKind, message: &str) -> Refusal {
    Refusal(Problem::new(kind, message))
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self.0.kind {
            ProblemKind::BadRequest => StatusCode::BAD_REQUEST,
            ProblemKind::NotPermitted => StatusCode::FORBIDDEN,
            ProblemKind::NotFound => StatusCode::NOT_FOUND,
            ProblemKind::Conflict => StatusCode::CONFLICT,
            ProblemKind::Config => StatusCode::UNPROCESSABLE_ENTITY,
            ProblemKind::Datapath | ProblemKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            ProblemKind::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, Json(self.0)).into_response()
    }
}
