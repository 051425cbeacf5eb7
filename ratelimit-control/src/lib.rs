//! The control API: HTTP/1.1 on a Unix socket, and over TCP its read-only part and, for who logs in, the web page.
//!
//! `call` says what a command is and lists them all, `proto` is what both ends say, `server` turns requests into
//! [`Command`]s for the task that owns the datapath, `client` is what the command line uses, `socket` makes sure that
//! one daemon owns the path. `feed` has what happened lately, `follow` sends it on. None of them touches the datapath.

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

/// Commands that wait for the datapath's owner. As many as there can be connections, so that nobody waits to wait.
pub const COMMANDS_MAX: usize = server::CONNECTIONS_MAX;

/// The way to the owner of the datapath.
#[derive(Clone, Debug)]
pub struct Handle {
    way: mpsc::Sender<Command>,
    /// The way past those who wait on the other.
    first: mpsc::Sender<Command>,
    /// What has happened, which nobody has to be asked for.
    pub(crate) feed: Feed,
}

/// The end that commands come out of.
#[derive(Debug)]
pub struct Commands {
    first: mpsc::Receiver<Command>,
    others: mpsc::Receiver<Command>,
}

impl Commands {
    /// The next one; none once every handle is gone. Loses none if it is dropped.
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
    /// A handle, and the end that its commands come out of.
    pub fn channel(feed: Feed) -> (Self, Commands) {
        let (way, others) = mpsc::channel(COMMANDS_MAX);
        let (first, firsts) = mpsc::channel(COMMANDS_MAX);
        (Self { way, first, feed }, Commands { first: firsts, others })
    }

    /// The same for those who wait for nobody's commands but their own kind's.
    #[must_use]
    pub fn first(&self) -> Self {
        Self { way: self.first.clone(), first: self.first.clone(), feed: self.feed.clone() }
    }

    /// Has a command carried out, and waits for what comes of it.
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
