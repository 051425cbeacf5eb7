//! Answers that are made and not yet read. Their total size is bounded: beyond it, the caller with the most bytes loses
//! the oldest answer. So no slow reader delays others or fills the daemon's memory. Knows callers and bytes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use super::places::Caller;

/// Maximum bytes of a router's unread answers. The newest answer may exceed it. Root has a router of its own.
const BYTES_MAX: u64 = 64 << 20;
/// Bytes of one piece of an answer, freed once it is sent.
const PIECE_BYTES: usize = 256 << 10;

/// An answer's bytes, in pieces.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    whole: VecDeque<Vec<u8>>,
    bytes: u64,
    is_given_up: bool,
}

/// Answers with their callers, oldest first.
type Answers = VecDeque<(Caller, Weak<Mutex<Pieces>>)>;

/// The unread answers of a router.
#[derive(Clone, Debug, Default)]
pub(super) struct Unread(Arc<Mutex<Answers>>);

/// An answer that is read piece by piece. Its remaining bytes are freed when this is dropped or given up.
pub(super) struct Reading(Arc<Mutex<Pieces>>);

impl Unread {
    /// Adds a finished answer and returns its reader. Other answers may be given up for it.
    pub(super) fn add(&self, caller: Caller, pieces: Pieces) -> Reading {
        let mut all = lock(&self.0);
        all.retain(|(_, pieces)| bytes_of(pieces) > 0);
        let reading = Arc::new(Mutex::new(pieces));
        all.push_back((caller, Arc::downgrade(&reading)));
        while let Some(pieces) =
            too_much(&all, BYTES_MAX).and_then(|at| all.remove(at)).and_then(|(_, of)| of.upgrade())
        {
            *lock(&pieces) = Pieces { is_given_up: true, ..Pieces::default() };
        }
        Reading(reading)
    }
}

/// Returns the answer to give up if these exceed the maximum. The newest one is never given up.
fn too_much(all: &Answers, bytes_max: u64) -> Option<usize> {
    let mut held: BTreeMap<Caller, u64> = BTreeMap::new();
    for (caller, pieces) in all {
        *held.entry(*caller).or_default() += bytes_of(pieces);
    }
    let others = all.iter().enumerate().take(all.len().saturating_sub(1));
    let most = others.max_by_key(|(at, (caller, _))| (held.get(caller), Reverse(*at)));
    most.map(|(at, _)| at).filter(|_| held.values().sum::<u64>() > bytes_max)
}

fn bytes_of(pieces: &Weak<Mutex<Pieces>>) -> u64 {
    pieces.upgrade().map_or(0, |pieces| lock(&pieces).bytes)
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while this is locked leaves at most an incomplete answer.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl io::Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let has_room = self.whole.back().is_some_and(|last| last.len() + bytes.len() <= PIECE_BYTES);
        if !has_room {
            self.whole.push_back(Vec::new());
        }
        if let Some(last) = self.whole.back_mut() {
            last.extend_from_slice(bytes);
        }
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl HttpBody for Reading {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let mut pieces = lock(&self.0);
        if pieces.is_given_up {
            return Poll::Ready(Some(Err(io::Error::other("its client reads too slowly, and others need the memory"))));
        }
        let piece = pieces.whole.pop_front();
        pieces.bytes -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece.into()))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(lock(&self.0).bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use axum::body::Body;
    use http_body_util::BodyExt as _;

    use super::*;

    fn answer(megabytes: usize) -> Pieces {
        let mut pieces = Pieces::default();
        for _ in 0..megabytes {
            pieces.write_all(&vec![b'x'; 1 << 20]).unwrap();
        }
        pieces
    }

    /// Returns the megabytes of each complete answer; `None` for one that was given up.
    async fn read(bodies: Vec<Body>) -> Vec<Option<usize>> {
        let mut whole = Vec::new();
        for body in bodies {
            whole.push(body.collect().await.map(|all| all.to_bytes().len() >> 20).ok());
        }
        whole
    }

    #[tokio::test]
    async fn unread_answers_beyond_memory_cost_the_largest_user_its_oldest_one() {
        let unread = Unread::default();
        let user = |uid| Caller::User(Some(uid));
        let of = [(1, 10), (2, 15), (2, 15), (3, 20), (4, 10)];
        let made = || of.map(|(uid, megabytes)| Body::new(unread.add(user(uid), answer(megabytes))));
        let mut others = made().into_iter().collect::<Vec<_>>();
        let huge = Body::new(unread.add(user(5), answer(140)));
        others.push(huge);
        assert_eq!(read(others).await, [None, None, None, None, None, Some(140)]);
        assert_eq!(read(made().into()).await, [Some(10), None, Some(15), Some(20), Some(10)]);
    }

    #[tokio::test]
    async fn already_read_bytes_no_longer_count_as_unread() {
        let unread = Unread::default();
        let mut slow = Body::new(unread.add(Caller::User(None), answer(60)));
        for _ in 0..40 {
            slow.frame().await.unwrap().unwrap();
        }
        let other = unread.add(Caller::Privileged, answer(40));
        assert_eq!(slow.collect().await.unwrap().to_bytes().len(), 20 << 20);
        drop(other);
    }
}
