//! The control API's server: one router, two surfaces. Knows [`Handle`]; must not know the datapath.
//!
//! The socket serves everything; only root and the daemon's own user may write. TCP without a login serves nothing that
//! writes and nothing that names a source. A slow client loses its connection after [`CONNECTION_TIME_MAX`]. No number
//! of clients blocks another caller: see [`Surface::room`].

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Bytes, to_bytes};
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri, header};
use axum::middleware::{from_fn, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Handle;
use super::call::{Access, Arguments, Ask, Call, Command, Size, Verb, routes};
use super::connection::admit;
use super::follow::{self, Followers};
use super::large::{self, Lanes};
use super::packed::packed;
use super::page::{self, Member};
use super::places::{Caller, Places, Room};
use super::proto::{Check, EventsOf, Healthz, METRICS, Problem, ProblemKind, Stats, parse_address};
use super::requester::{Requester, SUDO_USER};
use ratelimit_report::export;
use ratelimit_report::snapshot::Snapshot;
use ratelimit_web::{Login, Tls};

/// Maximum number of connections over the socket, and the number of these that is reserved for root and the daemon's
/// own user.
const SOCKET_CONNECTIONS_MAX: usize = 256;
const SOCKET_CONNECTIONS_KEPT: usize = 128;
/// Maximum number of connections over TCP. // with those of the socket 384 descriptors of the 1024 that a process has
/// by default
const TCP_CONNECTIONS_MAX: usize = 128;
/// Maximum number of connections of one user or address on one surface.
pub const CONNECTIONS_EACH: usize = 32;
/// Maximum number of connections of both surfaces.
pub(super) const CONNECTIONS_MAX: usize = SOCKET_CONNECTIONS_MAX + TCP_CONNECTIONS_MAX;
/// Time in which a request's head must arrive.
pub const HEADER_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum duration of a connection, which carries one request.
pub const CONNECTION_TIME_MAX: Duration = Duration::from_secs(30);
/// Time that connections may go on while the daemon stops.
const STOP_TIME_MAX: Duration = Duration::from_secs(1);
/// Pause after a failed accept(2), which mostly lacks descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum age of statistics over TCP. Anyone may ask there, and a reading visits every source.
const TCP_AGE_MAX: Duration = Duration::from_secs(1);
/// Maximum bytes of a request's body, unless its command sets another maximum.
pub(super) const BODY_BYTES_MAX: usize = 4096;

/// Surface on which a request arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    /// The Unix socket, for users of the host.
    Socket,
    /// The TCP address of `--listen`.
    Tcp,
}

/// Sender of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// User of the process that connected over the socket, by SO_PEERCRED; `None` if the kernel did not report it.
    pub uid: Option<u32>,
    /// Address of a client over TCP.
    pub address: Option<IpAddr>,
}

impl Peer {
    fn caller(self, own_uid: u32) -> Caller {
        self.address.map_or_else(|| Caller::by_uid(self.uid, own_uid), Caller::at)
    }
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

/// Service of one surface, with its places.
#[derive(Clone, Debug)]
pub struct Door {
    /// Router for the commands of root and the daemon's own user, which come before others.
    first: Router,
    others: Router,
    pub(super) places: Places,
    own_uid: u32,
    pub(super) tls: Option<Tls>,
}

impl Door {
    /// Returns the API of a surface, for a daemon that runs as `own_uid`.
    pub fn new(handle: &Handle, surface: Surface, own_uid: u32) -> Self {
        Self {
            first: router(handle.first(), surface, own_uid),
            others: router(handle.clone(), surface, own_uid),
            places: Places::new(surface.room()),
            own_uid,
            tls: None,
        }
    }

    /// Returns the API over TCP, with a login for the web page.
    pub fn with_login(handle: &Handle, login: Login, own_uid: u32) -> Self {
        let router = router_with_login(handle.clone(), login, own_uid);
        Self { first: router.clone(), others: router, places: Places::new(Surface::Tcp.room()), own_uid, tls: None }
    }

    /// Adds TLS, if there is any.
    #[must_use]
    pub fn encrypted(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    pub(super) fn caller(&self, peer: Peer) -> Caller {
        peer.caller(self.own_uid)
    }

    pub(super) fn router(&self, caller: Caller) -> Router {
        match caller {
            Caller::Privileged => self.first.clone(),
            Caller::User(_) | Caller::Address(_) => self.others.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Service {
    handle: Handle,
    surface: Surface,
    own_uid: u32,
    followers: Followers,
    lanes: Lanes,
}

/// Returns the API of a surface, for a daemon that runs as `own_uid`. The socket's API includes the web page.
pub fn router(handle: Handle, surface: Surface, own_uid: u32) -> Router {
    let service = Service::new(handle, surface, own_uid);
    match surface {
        Surface::Socket => page::with_page(complete(routes().route(EventsOf::PATH, told()), service)),
        Surface::Tcp => complete(visitor_routes(), service).layer(from_fn(packed)),
    }
}

/// Returns the API over TCP, which offers more to users who log in.
pub fn router_with_login(handle: Handle, login: Login, own_uid: u32) -> Router {
    let service = Service::new(handle, Surface::Tcp, own_uid);
    let (visitors, members) = (complete(visitor_routes(), service.clone()), complete(page::member_routes(), service));
    page::with_login(login, visitors, members).layer(from_fn(packed))
}

/// Returns the routes without a login: nothing that writes, and nothing that names a source.
fn visitor_routes() -> Router<Service> {
    Router::new()
        .route(Healthz::ROUTE.path, method::<Healthz>())
        .route(Stats::ROUTE.path, get(stats_over_tcp))
        .route(Check::ROUTE.path, get(check_over_tcp))
        .route(EventsOf::PATH, get(check_over_tcp))
}

fn complete(routes: Router<Service>, service: Service) -> Router {
    routes
        .route(METRICS, get(metrics))
        .fallback(|| async { Refusal::from(Problem::new(ProblemKind::NotFound, "no such path")) })
        .method_not_allowed_fallback(|| async { (StatusCode::METHOD_NOT_ALLOWED, "this path needs another method") })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(map_response(in_words))
        .with_state(service)
}

/// Gives axum's refusals, which are plain text, the form of all others.
async fn in_words(response: Response) -> Response {
    let status = response.status();
    let is_problem = response.headers().get(header::CONTENT_TYPE).is_some_and(|of| of == "application/json");
    if !status.is_client_error() || is_problem {
        return response;
    }
    let text = to_bytes(response.into_body(), BODY_BYTES_MAX).await.unwrap_or_default();
    Refusal::plain(status, &String::from_utf8_lossy(&text)).into_response()
}

/// Source of incoming connections.
pub trait Listener: Send + Sync + 'static {
    /// Type of a connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for the next connection.
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

/// Serves connections until `stop` changes, and then a moment longer for pending requests. Accepts every connection at
/// once, as one in the kernel's queue would block others.
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
                // Read a request that was sent already before another connection can take its place.
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

async fn metrics(State(service): State<Service>) -> Result<Response, Refusal> {
    let age_max = match service.surface {
        Surface::Socket => Duration::ZERO,
        Surface::Tcp => TCP_AGE_MAX,
    };
    let text = export::metrics(Arc::new(service.stats(age_max).await?))
        .map_err(|error| Problem::new(ProblemKind::Internal, format!("write the metrics: {error}")))?;
    Ok(([(header::CONTENT_TYPE, export::CONTENT_TYPE)], text).into_response())
}

/// Returns the handler for events.
pub(super) fn told() -> MethodRouter<Service> {
    get(events)
}

async fn events(State(service): State<Service>, request: Request) -> Result<Response, Refusal> {
    let (parts, _) = request.into_parts();
    let asked = Query::<EventsOf>::try_from_uri(&parts.uri);
    let Query(asked) = asked.map_err(|why| Refusal::plain(why.status(), &why.body_text()))?;
    if follow::is_stream(&parts, &asked) {
        return Ok(follow::answer(&service.handle.feed, &service.followers, &parts, &asked)?);
    }
    let lane = service.lanes.take(Size::Medium, service.caller(&parts)).await?;
    let report = service.handle.feed.report(&asked)?;
    Ok(large::to_its_end(large::answer(StatusCode::OK, report, lane)).await?)
}

async fn stats_over_tcp(State(service): State<Service>) -> Result<Response, Refusal> {
    Ok(Json(service.stats(TCP_AGE_MAX).await?.without_sources()).into_response())
}

async fn check_over_tcp() -> Refusal {
    let why = "single sources are not reported over TCP; use `ratelimitd check`, or the control socket";
    Problem::new(ProblemKind::NotPermitted, why).into()
}

impl Service {
    fn new(handle: Handle, surface: Surface, own_uid: u32) -> Self {
        Self { handle, surface, own_uid, followers: Followers::default(), lanes: Lanes::new() }
    }

    fn caller(&self, parts: &Parts) -> Caller {
        parts.extensions.get::<Peer>().copied().unwrap_or_default().caller(self.own_uid)
    }

    /// Returns statistics from a reading that is at most `age_max` old.
    async fn stats(&self, age_max: Duration) -> Result<Snapshot, Problem> {
        let now = Instant::now();
        let since = now.checked_sub(age_max).unwrap_or(now);
        self.handle.ask(Stats { since, sources: None }, Requester::unknown()).await
    }
}

/// Returns the handler for a command.
pub(super) fn method<C: Call>() -> MethodRouter<Service>
where
    Command: From<Ask<C>>,
{
    let carried = match C::ROUTE.verb {
        Verb::Get => get(carry::<C>),
        Verb::Post => post(carry::<C>),
    };
    // The permission is checked before the body is read.
    carried.layer(DefaultBodyLimit::max(C::BODY_BYTES_MAX))
}

/// Sends a command to the owner, if the requester is permitted.
async fn carry<C: Call>(State(service): State<Service>, request: Request) -> Result<Response, Refusal>
where
    Command: From<Ask<C>>,
{
    let (parts, body) = request.into_parts();
    let by = requester(&parts, C::ROUTE.access, service.own_uid)?;
    let caller = service.caller(&parts);
    let call: C = match C::ROUTE.arguments {
        Arguments::Query => from_query(parts).await?,
        Arguments::Body | Arguments::BodyOrNothing => {
            from_body(Request::from_parts(parts, body), C::ROUTE.arguments).await?
        }
    };
    call.check()?;
    match call.size() {
        Size::Small => {
            let report = service.handle.ask(call, by).await?;
            Ok((C::status(&report), Json(report)).into_response())
        }
        size @ (Size::Medium | Size::Large) => {
            // A large answer is not begun before a lane is free.
            let lane = service.lanes.take(size, caller).await?;
            if C::ROUTE.access == Access::Change {
                // A change that is given up before it is begun is not carried out.
                let report = service.handle.ask(call, by).await?;
                return Ok(large::to_its_end(large::answer(C::status(&report), report, lane)).await?);
            }
            let made = async move {
                let report = service.handle.ask(call, by).await?;
                large::answer(C::status(&report), report, lane).await
            };
            Ok(large::to_its_end(made).await?)
        }
    }
}

/// Returns the requester. Fails if it lacks the permission.
fn requester(parts: &Parts, access: Access, own_uid: u32) -> Result<Requester, Problem> {
    let Peer { uid, address } = parts.extensions.get::<Peer>().copied().unwrap_or_default();
    if parts.extensions.get::<Member>().is_some() {
        return Ok(Requester::web(address));
    }
    if access == Access::Change && uid.is_none_or(|uid| uid != 0 && uid != own_uid) {
        let why = "only root and the user that the daemon runs as may change anything";
        return Err(Problem::new(ProblemKind::NotPermitted, why));
    }
    let sudo_user = parts.headers.get(SUDO_USER).and_then(|name| name.to_str().ok());
    Ok(uid.map_or_else(Requester::unknown, |uid| Requester::new(uid, sudo_user)))
}

/// Reads arguments from path and query. Those in the path are addresses.
async fn from_query<C: Call>(mut parts: Parts) -> Result<C, Refusal> {
    let named = Path::<Vec<(String, String)>>::from_request_parts(&mut parts, &()).await;
    let Path(named) = named.map_err(|why| Refusal::plain(why.status(), &why.body_text()))?;
    let mut query = parts.uri.query().unwrap_or_default().to_owned();
    for (name, text) in named {
        query += &format!("&{name}={}", parse_address(&text)?);
    }
    let uri = Uri::builder().path_and_query(format!("/?{query}")).build();
    let uri = uri.map_err(|why| Refusal::plain(StatusCode::BAD_REQUEST, &why.to_string()))?;
    let Query(call) = Query::try_from_uri(&uri).map_err(|why| Refusal::plain(why.status(), &why.body_text()))?;
    Ok(call)
}

/// Reads arguments from the body, whatever its content type.
async fn from_body<C: Call>(request: Request, arguments: Arguments) -> Result<C, Refusal> {
    let bytes = Bytes::from_request(request, &()).await;
    let bytes = bytes.map_err(|why| Refusal::plain(why.status(), &why.body_text()))?;
    let is_default = bytes.is_empty() && arguments == Arguments::BodyOrNothing;
    serde_json::from_slice(if is_default { b"{}" } else { &bytes }).map_err(|error| {
        let why = format!("the body is not valid for this request: {error}");
        Problem::new(ProblemKind::BadRequest, why).into()
    })
}

/// A [`Problem`] as an HTTP response.
#[derive(Debug)]
pub(super) struct Refusal(StatusCode, Problem);

impl Refusal {
    /// Returns a refusal that comes from the library or precedes any command, in the form of all others.
    pub(super) fn plain(status: StatusCode, text: &str) -> Self {
        let why = format!("{}: {text}", status.canonical_reason().unwrap_or("refused"));
        Self(status, Problem::new(ProblemKind::BadRequest, why))
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        let status = match problem.kind {
            ProblemKind::BadRequest => StatusCode::BAD_REQUEST,
            ProblemKind::NotPermitted => StatusCode::FORBIDDEN,
            ProblemKind::NotFound => StatusCode::NOT_FOUND,
            ProblemKind::Conflict => StatusCode::CONFLICT,
            ProblemKind::Config => StatusCode::UNPROCESSABLE_ENTITY,
            ProblemKind::Datapath | ProblemKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            ProblemKind::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self(status, problem)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}
