//! Connection to the store that limits how much is read.
//!
//! The store's client keeps each answer in memory until it is complete, and allocates as many elements as the answer
//! announces. Each byte therefore passes through this module first. The stream ends with an [`Excess`] if an answer is
//! longer, deeper, slower or more numerous than any answer that the fleet requests. The client then receives nothing of
//! that part.

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

/// Maximum bytes of one answer. 1024 hosts with 256 limits each take 3.4 MB.
pub const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// Maximum elements that one answer announces, over all its arrays. The client needs 65 536 x 100 B = 6.6 MB for them.
pub const ELEMENTS_MAX: u64 = 65_536;

/// Maximum nesting depth of arrays. The map of a cluster has 4.
pub const DEPTH_MAX: usize = 8;

/// Maximum bytes of one line: a status, an error or a number.
pub const LINE_BYTES_MAX: usize = 4096;

/// Maximum time from the first byte of an answer to its last.
pub const ANSWER_TAKES_MAX: Duration = Duration::from_secs(1);

/// Maximum bytes that are read of the error with which a server ends a connection.
const WHY_BYTES_MAX: usize = 1024;

/// Reason why a stream was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    /// The answer has too many bytes.
    #[error("an answer of more than {ANSWER_BYTES_MAX} bytes")]
    Bytes,
    /// The answer has too many elements.
    #[error("an answer of more than {ELEMENTS_MAX} elements")]
    Elements,
    /// The arrays are nested too deeply.
    #[error("an answer of more than {DEPTH_MAX} nested arrays")]
    Depth,
    /// A line is too long.
    #[error("a line of more than {LINE_BYTES_MAX} bytes")]
    Line,
    /// The answer was not complete in time.
    #[error("an answer that takes longer than {} s", ANSWER_TAKES_MAX.as_secs_f64())]
    Slow,
    /// The server sent more answers than there were requests.
    #[error("an answer without a request")]
    Unasked,
    /// The first byte belongs to a TLS record.
    #[error("TLS in answer to plain text")]
    Tls,
    /// The bytes are not a valid answer.
    #[error("bytes that are not an answer of a store")]
    Garbled,
}

/// Observations about a stream, for the owner of the connection.
#[derive(Debug, Default)]
pub struct Notes(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    excess: Option<Excess>,
    error: Option<String>,
    farewell: Option<String>,
}

impl Notes {
    /// Returns the reason why the stream was ended, if it was.
    pub fn excess(&self) -> Option<Excess> {
        self.told(|told| told.excess)
    }

    /// Returns the text of the last error that the store answered.
    pub fn error(&self) -> Option<String> {
        self.told(|told| told.error.clone())
    }

    /// Returns the error text that was a server's only answer before it ended the connection.
    pub fn farewell(&self) -> Option<String> {
        self.told(|told| told.farewell.clone())
    }

    fn told<T>(&self, change: impl FnOnce(&mut Told) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Stream with bounded answers.
#[derive(Debug)]
pub struct Bounded<S> {
    stream: S,
    notes: Arc<Notes>,
    asked: u64,
    answered: u64,
    questions: Frames,
    answers: Frames,
    /// Text of the first answer, if it is an error and no answer followed.
    only_error: Option<String>,
    /// Deadline for the end of the current answer.
    ends_by: Option<Pin<Box<Sleep>>>,
}

impl<S> Bounded<S> {
    /// Bounds the answers on `stream`. Observations are stored in `notes`.
    pub fn new(stream: S, notes: Arc<Notes>) -> Self {
        let (questions, answers) = (Frames::unbounded(), Frames::bounded());
        Self { stream, notes, asked: 0, answered: 0, questions, answers, only_error: None, ends_by: None }
    }

    fn end(&self, excess: Excess) -> io::Error {
        self.notes.told(|told| told.excess.get_or_insert(excess).to_owned());
        io::Error::new(io::ErrorKind::ConnectionAborted, excess)
    }

    /// Stores the server's only error as its farewell at the end of the stream.
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
        // This program's own requests are unbounded.
        self.questions.take(bytes, count).unwrap_or_default();
    }

    fn is_answered(&mut self, bytes: &[u8]) -> Result<(), Excess> {
        let Self { notes, asked, answered, answers, only_error, .. } = self;
        answers.take(bytes, |part| {
            match part {
                Framed::Begins(kind) => {
                    // A server that refuses a connection sends the reason before any request.
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
    /// Reads the server's last words after a write failed, because the client reads nothing then.
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
        // Checked here too, because bytes may keep coming one by one.
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
