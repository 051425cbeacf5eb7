//! A connection to the store that reads no more than an honest store sends.
//!
//! The client of the store keeps each answer in memory until it is whole, and makes room for as many elements as the
//! answer announces. So each byte passes through here first. The stream ends with an [`Excess`] as soon as an answer is
//! longer, deeper, slower or more numerous than anything that the fleet asks for. Nothing of it reaches the client then.

mod frame;

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use frame::{Framed, Frames};

/// The most bytes of one answer. // 1024 hosts with 256 limits each are 3.4 MB
pub const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// The most elements that one answer announces, over all its arrays. // 65 536 x 100 B = 6.6 MB in the client
pub const ELEMENTS_MAX: u64 = 65_536;

/// The most arrays within each other. // the map of a cluster has 4
pub const DEPTH_MAX: usize = 8;

/// The longest line: a status, an error or a number.
pub const LINE_BYTES_MAX: usize = 4096;

/// The longest time from the first byte of an answer to its last.
pub const ANSWER_TAKES_MAX: Duration = Duration::from_secs(1);

/// What is read of the reason why a server ended a connection.
const WHY_BYTES_MAX: usize = 1024;

/// Why a stream was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    /// Too long.
    #[error("an answer of more than {ANSWER_BYTES_MAX} bytes")]
    Bytes,
    /// Too many elements.
    #[error("an answer of more than {ELEMENTS_MAX} elements")]
    Elements,
    /// Arrays within arrays.
    #[error("an answer of more than {DEPTH_MAX} arrays within each other")]
    Depth,
    /// A line without an end.
    #[error("a line of more than {LINE_BYTES_MAX} bytes")]
    Line,
    /// Begun, and not ended in time.
    #[error("an answer that takes longer than {} s", ANSWER_TAKES_MAX.as_secs_f64())]
    Slow,
    /// More answers than questions.
    #[error("an answer to no question")]
    Unasked,
    /// The first byte of a record of TLS.
    #[error("TLS in answer to plain text")]
    Tls,
    /// No answer of a store.
    #[error("what is no answer of a store")]
    Garbled,
}

/// What a stream tells beside its bytes, for those who hold the connection.
#[derive(Debug, Default)]
pub struct Notes(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    excess: Option<Excess>,
    error: Option<String>,
    farewell: Option<String>,
}

impl Notes {
    /// Why the stream was ended, where it was.
    pub fn excess(&self) -> Option<Excess> {
        self.told(|told| told.excess)
    }

    /// The last error that the store answered, in its own words.
    pub fn error(&self) -> Option<String> {
        self.told(|told| told.error.clone())
    }

    /// The error that was all that a server said before it ended a connection.
    pub fn farewell(&self) -> Option<String> {
        self.told(|told| told.farewell.clone())
    }

    fn told<T>(&self, change: impl FnOnce(&mut Told) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A stream whose answers are bounded.
#[derive(Debug)]
pub struct Bounded<S> {
    stream: S,
    notes: Arc<Notes>,
    asked: u64,
    answered: u64,
    questions: Frames,
    answers: Frames,
    /// The first answer, where it is an error and no other followed.
    only_error: Option<String>,
    /// When the answer that has begun must have ended.
    ends_by: Option<Pin<Box<Sleep>>>,
}

impl<S> Bounded<S> {
    /// Bounds what `stream` is answered; what it tells is left in `notes`.
    pub fn new(stream: S, notes: Arc<Notes>) -> Self {
        let (questions, answers) = (Frames::unbounded(), Frames::bounded());
        Self { stream, notes, asked: 0, answered: 0, questions, answers, only_error: None, ends_by: None }
    }

    fn end(&self, excess: Excess) -> io::Error {
        self.notes.told(|told| told.excess.get_or_insert(excess).to_owned());
        io::Error::new(io::ErrorKind::ConnectionAborted, excess)
    }

    /// The stream is over.
    fn ended(&mut self) {
        if let Some(error) = self.only_error.take() {
            self.notes.told(|told| told.farewell = Some(error));
        }
    }

    fn asks(&mut self, bytes: &[u8]) {
        let asked = &mut self.asked;
        let count = |part: Framed<'_>| {
            *asked += u64::from(matches!(part, Framed::Begins(_)));
            Ok(())
        };
        // What this program itself sends has no bound to exceed.
        self.questions.take(bytes, count).unwrap_or_default();
    }

    fn is_answered(&mut self, bytes: &[u8]) -> Result<(), Excess> {
        let Self { notes, asked, answered, answers, only_error, .. } = self;
        answers.take(bytes, |part| {
            match part {
                Framed::Begins(kind) => {
                    // A server that takes no connection says why before it is asked anything.
                    let is_greeting = *asked == 0 && *answered == 0 && kind == b'-';
                    if *answered >= *asked && !is_greeting {
                        return Err(Excess::Unasked);
                    }
                    *answered += u64::from(!is_greeting);
                    *only_error = None;
                }
                Framed::Error(line) => {
                    let words = String::from_utf8_lossy(line).into_owned();
                    *only_error = (*answered <= 1).then(|| words.clone());
                    notes.told(|told| told.error = Some(words));
                }
            }
            Ok(())
        })?;
        if !self.answers.is_within() {
            self.ends_by = None;
        } else if self.ends_by.is_none() {
            self.ends_by = Some(Box::pin(sleep(ANSWER_TAKES_MAX)));
        }
        Ok(())
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match &mut self.ends_by {
            Some(at) => at.as_mut().poll(cx).map(|()| self.end(Excess::Slow)),
            None => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> Bounded<S> {
    /// Notes what a server said before it ended the connection: the client reads nothing after it could not write.
    fn hear_why(&mut self, cx: &mut Context<'_>) {
        let mut bytes = [0; WHY_BYTES_MAX];
        let mut read = ReadBuf::new(&mut bytes);
        if let Poll::Ready(Ok(())) = Pin::new(&mut self.stream).poll_read(cx, &mut read) {
            self.is_answered(read.filled()).unwrap_or_default();
        }
        self.ended();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(excess) = this.notes.excess() {
            return Poll::Ready(Err(this.end(excess)));
        }
        // Also where bytes keep coming, one by one.
        if this.ends_by.as_ref().is_some_and(|at| at.deadline() <= Instant::now()) {
            return Poll::Ready(Err(this.end(Excess::Slow)));
        }
        let before = buf.filled().len();
        let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(cx, buf) else {
            let error = ready!(this.poll_end(cx));
            return Poll::Ready(Err(error));
        };
        if read.is_err() || buf.filled().len() == before {
            this.ended();
        }
        read?;
        if let Err(excess) = this.is_answered(&buf.filled()[before..]) {
            buf.set_filled(before);
            return Poll::Ready(Err(this.end(excess)));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match ready!(Pin::new(&mut this.stream).poll_write(cx, bytes)) {
            Ok(written) => {
                this.asks(&bytes[..written]);
                Poll::Ready(Ok(written))
            }
            Err(error) => {
                this.hear_why(cx);
                Poll::Ready(Err(error))
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
