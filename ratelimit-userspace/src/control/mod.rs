//! The control API: HTTP/1.1 on a Unix socket, and its read-only part over TCP.
//!
//! `proto` is what both ends say, `server` turns requests into [`Command`]s for the task that owns the datapath, `client` is
//! what the command line uses, `socket` makes sure that one daemon owns the path. None of them touches the datapath.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::snapshot::{CheckReport, Snapshot};

pub mod client;
pub mod proto;
pub mod server;
pub mod socket;

use proto::{DetachReport, Health, Problem, ProblemKind, ReloadReport};

/// Commands that wait for the datapath's owner. As many as there can be connections, so that nobody waits to wait.
pub const COMMANDS_MAX: usize = 2 * server::CONNECTIONS_MAX;

/// Where an answer goes.
pub type Reply<T> = oneshot::Sender<Result<T, Problem>>;

/// What the owner of the datapath is asked to do.
#[derive(Debug)]
pub enum Command {
    /// Reads everything.
    Stats {
        /// A reading that began later than this will do.
        since: Instant,
        /// Where the answer goes.
        reply: Reply<Arc<Snapshot>>,
    },
    /// Looks at one source.
    Check {
        /// Its address.
        address: IpAddr,
        /// Where the answer goes.
        reply: Reply<CheckReport>,
    },
    /// Says whether everything is attached and readable.
    Health {
        /// Where the answer goes.
        reply: Reply<Health>,
    },
    /// Reads the configuration file anew and carries it out.
    Reload {
        /// Where the answer goes.
        reply: Reply<ReloadReport>,
    },
    /// Takes the filter off.
    Detach {
        /// From one interface, or from all, which ends the daemon.
        interface: Option<String>,
        /// Where the answer goes.
        reply: Reply<DetachReport>,
    },
}

/// The way to the owner of the datapath.
#[derive(Clone, Debug)]
pub struct Handle(mpsc::Sender<Command>);

impl Handle {
    /// A handle, and the end that its commands come out of.
    pub fn channel() -> (Self, mpsc::Receiver<Command>) {
        let (sender, receiver) = mpsc::channel(COMMANDS_MAX);
        (Self(sender), receiver)
    }

    /// Reads everything; what was read up to `age_max` before will do.
    pub async fn stats(&self, age_max: Duration) -> Result<Arc<Snapshot>, Problem> {
        let now = Instant::now();
        let since = now.checked_sub(age_max).unwrap_or(now);
        self.ask(|reply| Command::Stats { since, reply }).await
    }

    /// Looks at one source.
    pub async fn check(&self, address: IpAddr) -> Result<CheckReport, Problem> {
        self.ask(|reply| Command::Check { address, reply }).await
    }

    /// Says whether everything is attached and readable.
    pub async fn health(&self) -> Result<Health, Problem> {
        self.ask(|reply| Command::Health { reply }).await
    }

    /// Reads the configuration file anew and carries it out.
    pub async fn reload(&self) -> Result<ReloadReport, Problem> {
        self.ask(|reply| Command::Reload { reply }).await
    }

    /// Takes the filter off one interface, or off all.
    pub async fn detach(&self, interface: Option<String>) -> Result<DetachReport, Problem> {
        self.ask(|reply| Command::Detach { interface, reply }).await
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Problem> {
        let stopping = || Problem::new(ProblemKind::Stopping, "the daemon is stopping");
        let (reply, answer) = oneshot::channel();
        self.0.send(command(reply)).await.map_err(|_| stopping())?;
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }
}

#[cfg(test)]
mod tests;
