//! The control API: HTTP/1.1 on a Unix socket. TCP serves its read-only part and, after a login, the web page.
//!
//! `call` defines what a command is and lists all of them, and `proto` has the messages. `server` turns requests into
//! [`Command`]s for the task that owns the datapath. `client` is for the command line, and `socket` ensures that one
//! daemon owns the path. `feed` holds recent events, and `follow` streams them. None of them touches the datapath.

#![forbid(unsafe_code)]

use tokio::sync::{mpsc, oneshot};

mod call;
pub mod client;
mod connection;
pub mod feed;
mod follow;
mod import;
mod large;
mod lists;
mod orders;
pub mod orphan;
mod packed;
mod page;
mod past;
mod places;
pub mod proto;
mod questions;
mod requester;
pub mod server;
pub mod socket;
mod unread;

pub use call::{Access, Answer, Arguments, Ask, Call, Carry, Command, Defer, Reply, Route, Verb};
use feed::Feed;
use proto::{Problem, ProblemKind};
pub use requester::Requester;

/// Maximum number of commands that wait for the datapath's owner. It equals the maximum of connections, so that no
/// sender waits.
pub const COMMANDS_MAX: usize = server::CONNECTIONS_MAX;

/// Sender of commands to the owner of the datapath.
#[derive(Clone, Debug)]
pub struct Handle {
    way: mpsc::Sender<Command>,
    /// Queue of privileged commands, which come before those in the other queue.
    first: mpsc::Sender<Command>,
    /// Recent events, which can be read without the owner.
    pub(crate) feed: Feed,
}

/// Receiver of the commands.
#[derive(Debug)]
pub struct Commands {
    first: mpsc::Receiver<Command>,
    others: mpsc::Receiver<Command>,
}

impl Commands {
    /// Returns the next command, privileged ones first; `None` once every handle is gone. Cancel-safe: no command is
    /// lost.
    pub async fn recv(&mut self) -> Option<Command> {
        tokio::select! {
            biased;
            Some(command) = self.first.recv() => Some(command),
            Some(command) = self.others.recv() => Some(command),
            else => None,
        }
    }
}

impl Handle {
    /// Returns a handle and the receiver of its commands.
    pub fn channel(feed: Feed) -> (Self, Commands) {
        let (way, others) = mpsc::channel(COMMANDS_MAX);
        let (first, firsts) = mpsc::channel(COMMANDS_MAX);
        (Self { way, first, feed }, Commands { first: firsts, others })
    }

    /// Returns a handle for privileged commands, which wait only for each other.
    #[must_use]
    pub fn first(&self) -> Self {
        Self { way: self.first.clone(), first: self.first.clone(), feed: self.feed.clone() }
    }

    /// Sends a command to the owner and returns its report. Fails if the owner refuses it or the daemon stops.
    pub async fn ask<C: Call>(&self, call: C, by: Requester) -> Result<C::Report, Problem>
    where
        Command: From<Ask<C>>,
    {
        let stopping = || Problem::new(ProblemKind::Stopping, "the daemon is stopping");
        let (reply, answer) = oneshot::channel();
        self.way.send(Ask { call, by, reply }.into()).await.map_err(|_| stopping())?;
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }
}

#[cfg(test)]
mod tests;
