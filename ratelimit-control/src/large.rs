//! Answers that may be large. Few are made at a time, and each is serialised outside of the runtime. A client that does
//! not read loses its connection. Knows callers and bytes; must not know what is asked.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Sleep, sleep};

use super::call::Size;
use super::follow::Lasting;
use super::places::Caller;
use super::proto::{Problem, ProblemKind};
use super::unread::{Pieces, Unread};

/// Maximum number of large answers made concurrently for all callers of a router. Further ones wait. // 512 MiB each
const LARGE_AT_A_TIME: usize = 1;
/// Maximum number of medium answers made concurrently, which never wait for large ones. // some MB each
const MEDIUM_AT_A_TIME: usize = 16;
/// Time after which a client that reads nothing is dropped.
pub(super) const READ_TIME_MAX: Duration = Duration::from_secs(5);
/// Time after which a client that follows events and reads nothing is dropped: the output may be in a pager.
const FOLLOWER_READ_TIME_MAX: Duration = Duration::from_secs(600);

type OfCallers = BTreeMap<(Size, Caller), Weak<Semaphore>>;

/// The lanes in which answers are made. Each caller has one, so that a busy caller waits only for itself; all callers
/// share a few.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    medium: Arc<Semaphore>,
    large: Arc<Semaphore>,
    each: Arc<Mutex<OfCallers>>,
    unread: Unread,
}

/// Permission to make one answer, until this is dropped.
#[derive(Debug)]
pub(super) struct Lane {
    caller: Caller,
    unread: Unread,
    _all: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
}

impl Lanes {
    pub(super) fn new() -> Self {
        let of = |at_a_time| Arc::new(Semaphore::new(at_a_time));
        Self {
            medium: of(MEDIUM_AT_A_TIME),
            large: of(LARGE_AT_A_TIME),
            each: Arc::default(),
            unread: Unread::default(),
        }
    }

    /// Waits for a free lane of the caller.
    pub(super) async fn take(&self, size: Size, caller: Caller) -> Result<Lane, Problem> {
        let closed = |_: AcquireError| Problem::new(ProblemKind::Stopping, "the daemon is stopping");
        let own = self.own(size, caller).acquire_owned().await.map_err(closed)?;
        let all = match size {
            Size::Small | Size::Medium => &self.medium,
            Size::Large => &self.large,
        };
        let all = Arc::clone(all).acquire_owned().await.map_err(closed)?;
        Ok(Lane { caller, unread: self.unread.clone(), _all: all, _own: own })
    }

    fn own(&self, size: Size, caller: Caller) -> Arc<Semaphore> {
        // Each change is one call on a map, so a poisoned lock is harmless.
        let mut each = self.each.lock().unwrap_or_else(PoisonError::into_inner);
        each.retain(|_, lane| lane.strong_count() > 0);
        each.get(&(size, caller)).and_then(Weak::upgrade).unwrap_or_else(|| {
            let lane = Arc::new(Semaphore::new(1));
            each.insert((size, caller), Arc::downgrade(&lane));
            lane
        })
    }
}

/// Makes an answer to its end even if its client hangs up meanwhile, because its lane is busy until then.
pub(super) async fn to_its_end(
    made: impl Future<Output = Result<Response, Problem>> + Send + 'static,
) -> Result<Response, Problem> {
    let panicked = |_| Problem::new(ProblemKind::Internal, "write the answer: it panicked");
    tokio::spawn(made).await.map_err(panicked)?
}

/// Serialises a report into a response. The lane is free afterwards, even if the response is read slowly.
pub(super) async fn answer<R>(status: StatusCode, report: R, lane: Lane) -> Result<Response, Problem>
where
    R: Serialize + Send + 'static,
{
    let failed = |why: String| Problem::new(ProblemKind::Internal, format!("write the answer: {why}"));
    let written = spawn_blocking(move || {
        let mut pieces = Pieces::default();
        serde_json::to_writer(&mut pieces, &report).map(|()| pieces)
    });
    let pieces = written.await.map_err(|_| failed("it panicked".to_owned()))?.map_err(|why| failed(why.to_string()))?;
    let mut response = Response::new(Body::new(lane.unread.add(lane.caller, pieces)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Stream that fails writes as soon as the other end has read nothing for too long.
pub(super) struct Impatient<S> {
    stream: S,
    lasting: Lasting,
    /// Timer since a write found no room.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    pub(super) const fn new(stream: S, lasting: Lasting) -> Self {
        Self { stream, lasting, stalled: None }
    }

    /// Returns the result of a write, or a time-out if it has waited for too long.
    fn judged<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let most = if self.lasting.is_set() { FOLLOWER_READ_TIME_MAX } else { READ_TIME_MAX };
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(most)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judged(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.judged(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_made_to_its_end_though_its_client_hangs_up() {
        let (go, may_go) = oneshot::channel::<()>();
        let (made, is_made) = oneshot::channel();
        let answer = to_its_end(async move {
            may_go.await.unwrap();
            made.send(()).unwrap();
            Ok(Response::default())
        });
        assert!(timeout(Duration::ZERO, answer).await.is_err(), "its client hangs up");
        go.send(()).unwrap();
        is_made.await.unwrap();
    }
}
