//! Service of one connection: its place, the handshake, one request, and the time limit. Knows streams and a router;
//! must not know what is asked.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use http_body_util::LengthLimitError;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::ServiceExt as _;

use super::follow::Lasting;
use super::import;
use super::large::Impatient;
use super::places::{Caller, Place};
use super::server::{BODY_BYTES_MAX, CONNECTION_TIME_MAX, CONNECTIONS_EACH, Door, HEADER_TIME_MAX, Peer, Refusal};

/// Maximum bytes of a request's head. hyper accepts no smaller buffer.
const HEAD_BYTES_MAX: usize = 8192;

/// Serves a new connection, if it gets a place.
pub(super) fn admit<S>(connections: &mut JoinSet<()>, door: &Door, stream: S, peer: Peer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let caller = door.caller(peer);
    let Some(place) = door.places.take(caller) else {
        tracing::debug!("a control connection was closed: {caller:?} has {CONNECTIONS_EACH} open requests");
        return;
    };
    let id = place.id();
    let lasting = Lasting::default();
    // Only root and the daemon's own user may send commands with long bodies.
    let body_bytes_max = match caller {
        Caller::Privileged => BODY_BYTES_MAX.max(import::BODY_BYTES_MAX),
        Caller::User(_) | Caller::Address(_) => BODY_BYTES_MAX,
    };
    let (router, tls, lasts) = (door.router(caller), door.tls.clone(), lasting.clone());
    let served = Served { peer, router, body_bytes_max };
    let answering = async move {
        let place = Arc::new(place);
        match tls {
            None => connection(stream, served, place, lasts).await,
            Some(tls) => match timeout(HEADER_TIME_MAX, tls.accept(stream)).await {
                Ok(Ok(stream)) => connection(stream, served, place, lasts).await,
                Ok(Err(error)) => tracing::debug!("a TLS handshake failed: {error}"),
                Err(_) => tracing::debug!("a TLS handshake took longer than {HEADER_TIME_MAX:?}"),
            },
        }
    };
    let task = connections.spawn(async move {
        tokio::pin!(answering);
        // A connection that runs out of time is dropped, which closes it. One that follows events lasts until another
        // needs its place.
        while timeout(CONNECTION_TIME_MAX, &mut answering).await.is_err() && lasting.is_set() {}
    });
    door.places.held_by(id, task);
}

/// Properties of one connection's service.
struct Served {
    peer: Peer,
    router: Router,
    body_bytes_max: usize,
}

fn connection<S>(stream: S, served: Served, place: Arc<Place>, lasting: Lasting) -> impl Future<Output = ()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = Impatient::new(stream, lasting.clone());
    let Served { peer, router, body_bytes_max } = served;
    let service = service_fn(move |request: Request<Incoming>| {
        let (router, place, lasting) = (router.clone(), Arc::clone(&place), lasting.clone());
        async move {
            let (parts, body) = request.into_parts();
            // With a Content-Length beside it, this header allows request smuggling (RFC 9112 6.1), and hyper does not
            // tell whether there was one.
            if parts.headers.contains_key(header::TRANSFER_ENCODING) {
                return Ok(refusal(StatusCode::BAD_REQUEST, "give the length of a body only as Content-Length"));
            }
            // Do not wait for a body that is declared too long.
            if body.size_hint().lower() > body_bytes_max as u64 {
                return Ok(too_long(body_bytes_max));
            }
            // While the body is incomplete, the connection waits for its client and may be replaced.
            let body = match to_bytes(Body::new(body), body_bytes_max).await {
                Ok(body) => Body::from(body),
                Err(error) => return Ok(unread(&error, body_bytes_max)),
            };
            let mut request = Request::from_parts(parts, body);
            request.extensions_mut().insert(peer);
            request.extensions_mut().insert(lasting);
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

/// Returns the refusal of a request with an incomplete or too long body.
fn unread(error: &axum::Error, bytes_max: usize) -> Response {
    let is_too_long = std::error::Error::source(error).is_some_and(|source| source.is::<LengthLimitError>());
    if is_too_long { too_long(bytes_max) } else { refusal(StatusCode::BAD_REQUEST, "its body is incomplete") }
}

fn too_long(bytes_max: usize) -> Response {
    refusal(StatusCode::PAYLOAD_TOO_LARGE, &format!("a body has at most {bytes_max} bytes"))
}

fn refusal(status: StatusCode, why: &str) -> Response {
    Refusal::plain(status, why).into_response()
}
