//! The control API: HTTP/1.1 on a Unix socket, and its read-only part over TCP.
//!
//! `proto` is what both ends say, `server` turns requests into [`Command`]s for the task that owns the datapath, `client` is
//! what the command line uses, `socket` makes sure that one daemon owns the path. None of them touches the datapath.

#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use ratelimit_policy::config::network::Target;
use ratelimit_policy::desired::{Grant, Sent};
use ratelimit_report::snapshot::{
    CheckReport, ExplainReport, ListFilter, ListReport, PrefixReport, Snapshot, SuggestReport,
};

pub mod client;
mod orders;
pub mod orphan;
mod places;
pub mod proto;
mod requester;
mod routes;
pub mod server;
pub mod socket;

use proto::{
    ApplyReport, ApplyRequest, ChargeRequest, ConfirmReport, DetachReport, GrantReport, GrantRequest, Health,
    ModeReport, ModeWord, Problem, ProblemKind, ReloadReport, ReloadRequest, ResetReport, RollbackReport, Standing,
    UnblockReport,
};
pub use requester::Requester;

/// Commands that wait for the datapath's owner. As many as there can be connections, so that nobody waits to wait.
pub const COMMANDS_MAX: usize = server::CONNECTIONS_MAX;

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
    /// Looks at all of a prefix.
    CheckPrefix {
        /// The prefix.
        prefix: IpNet,
        /// Entries of each origin; none is all.
        most: Option<u64>,
        /// Where the answer goes.
        reply: Reply<PrefixReport>,
    },
    /// Says whether everything is attached and readable.
    Health {
        /// Where the answer goes.
        reply: Reply<Health>,
    },
    /// Reads the configuration file anew and carries it out.
    Reload {
        /// Who asks.
        request: ReloadRequest,
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
    /// Says what is allowed, denied and banned.
    List {
        /// Which of it.
        filter: ListFilter,
        /// Where the answer goes.
        reply: Reply<ListReport>,
    },
    /// Reads limits off what was observed.
    Suggest {
        /// Of the rule with this name; none is of all.
        rule: Option<String>,
        /// Where the answer goes.
        reply: Reply<SuggestReport>,
    },
    /// Says what would become of a packet, and counts nothing.
    Explain {
        /// The packet.
        sent: Sent,
        /// Where the answer goes.
        reply: Reply<ExplainReport>,
    },
    /// Lets a prefix through, or keeps it out.
    Grant {
        /// Which of the two.
        grant: Grant,
        /// Whom the request names.
        target: Target,
        /// The rest of it.
        request: GrantRequest,
        /// Who asks.
        by: Requester,
        /// Where the answer goes.
        reply: Reply<GrantReport>,
    },
    /// Frees a prefix: ends what commands deny and bans in it, and forgets the windows of what is over a limit there.
    Unblock {
        /// Which; none is all command denials and all bans.
        target: Option<Target>,
        /// Who asks.
        by: Requester,
        /// Where the answer goes.
        reply: Reply<UnblockReport>,
    },
    /// Takes off what commands allow in a prefix.
    Unallow {
        /// Which.
        target: Target,
        /// Who asks.
        by: Requester,
        /// Where the answer goes.
        reply: Reply<UnblockReport>,
    },
    /// Forgets what a source has used, and its bans.
    Reset {
        /// Its address.
        source: IpAddr,
        /// Who asks.
        by: Requester,
        /// Where the answer goes.
        reply: Reply<ResetReport>,
    },
    /// Says whether anything is dropped.
    Mode {
        /// In a word.
        mode: ModeWord,
        /// Who asks.
        by: Requester,
        /// Where the answer goes.
        reply: Reply<ModeReport>,
    },
    /// Puts a file in force.
    Apply {
        /// Which, and for how long.
        request: ApplyRequest,
        /// Who asks.
        by: Requester,
        /// Where the answer goes.
        reply: Reply<ApplyReport>,
    },
    /// Keeps what was put in force for a while.
    Confirm {
        /// Who asks.
        by: Requester,
        /// Where the answer goes.
        reply: Reply<ConfirmReport>,
    },
    /// Ends the trial: what held before holds again.
    Rollback {
        /// Who asks.
        by: Requester,
        /// Where the answer goes.
        reply: Reply<RollbackReport>,
    },
    /// Adds to what a source has used.
    Charge {
        /// How much, and where.
        request: ChargeRequest,
        /// Where the answer goes.
        reply: Reply<Standing>,
    },
    /// Says how a source stands with one rule.
    Standing {
        /// Its address.
        source: IpAddr,
        /// The rule's name.
        rule: String,
        /// Where the answer goes.
        reply: Reply<Standing>,
    },
}

/// The way to the owner of the datapath.
#[derive(Clone, Debug)]
pub struct Handle {
    way: mpsc::Sender<Command>,
    /// The way past those who wait on the other.
    first: mpsc::Sender<Command>,
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
    pub fn channel() -> (Self, Commands) {
        let (way, others) = mpsc::channel(COMMANDS_MAX);
        let (first, firsts) = mpsc::channel(COMMANDS_MAX);
        (Self { way, first }, Commands { first: firsts, others })
    }

    /// The same for those who wait for nobody's commands but their own kind's.
    #[must_use]
    pub fn first(&self) -> Self {
        Self { way: self.first.clone(), first: self.first.clone() }
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

    /// Looks at all of a prefix; of the entries, so many of each origin.
    pub async fn check_prefix(&self, prefix: IpNet, most: Option<u64>) -> Result<PrefixReport, Problem> {
        self.ask(|reply| Command::CheckPrefix { prefix, most, reply }).await
    }

    /// Says whether everything is attached and readable.
    pub async fn health(&self) -> Result<Health, Problem> {
        self.ask(|reply| Command::Health { reply }).await
    }

    /// Reads the configuration file anew and carries it out.
    pub async fn reload(&self, request: ReloadRequest) -> Result<ReloadReport, Problem> {
        self.ask(|reply| Command::Reload { request, reply }).await
    }

    /// Takes the filter off one interface, or off all.
    pub async fn detach(&self, interface: Option<String>) -> Result<DetachReport, Problem> {
        self.ask(|reply| Command::Detach { interface, reply }).await
    }

    /// Says what is allowed, denied and banned.
    pub async fn list(&self, filter: ListFilter) -> Result<ListReport, Problem> {
        self.ask(|reply| Command::List { filter, reply }).await
    }

    /// Reads limits off what was observed, of one rule or of all.
    pub async fn suggest(&self, rule: Option<String>) -> Result<SuggestReport, Problem> {
        self.ask(|reply| Command::Suggest { rule, reply }).await
    }

    /// Says what would become of a packet.
    pub async fn explain(&self, sent: Sent) -> Result<ExplainReport, Problem> {
        self.ask(|reply| Command::Explain { sent, reply }).await
    }

    /// Lets a prefix through, or keeps it out.
    pub async fn grant(
        &self,
        grant: Grant,
        target: Target,
        request: GrantRequest,
        by: Requester,
    ) -> Result<GrantReport, Problem> {
        self.ask(|reply| Command::Grant { grant, target, request, by, reply }).await
    }

    /// Frees a prefix, or ends all command denials and bans.
    pub async fn unblock(&self, target: Option<Target>, by: Requester) -> Result<UnblockReport, Problem> {
        self.ask(|reply| Command::Unblock { target, by, reply }).await
    }

    /// Takes off what commands allow in a prefix.
    pub async fn unallow(&self, target: Target, by: Requester) -> Result<UnblockReport, Problem> {
        self.ask(|reply| Command::Unallow { target, by, reply }).await
    }

    /// Forgets what a source has used, and its bans.
    pub async fn reset(&self, source: IpAddr, by: Requester) -> Result<ResetReport, Problem> {
        self.ask(|reply| Command::Reset { source, by, reply }).await
    }

    /// Says whether anything is dropped.
    pub async fn mode(&self, mode: ModeWord, by: Requester) -> Result<ModeReport, Problem> {
        self.ask(|reply| Command::Mode { mode, by, reply }).await
    }

    /// Puts a file in force.
    pub async fn apply(&self, request: ApplyRequest, by: Requester) -> Result<ApplyReport, Problem> {
        self.ask(|reply| Command::Apply { request, by, reply }).await
    }

    /// Keeps what was put in force for a while.
    pub async fn confirm(&self, by: Requester) -> Result<ConfirmReport, Problem> {
        self.ask(|reply| Command::Confirm { by, reply }).await
    }

    /// Ends the trial: what held before holds again.
    pub async fn roll_back(&self, by: Requester) -> Result<RollbackReport, Problem> {
        self.ask(|reply| Command::Rollback { by, reply }).await
    }

    /// Adds to what a source has used.
    pub async fn charge(&self, request: ChargeRequest) -> Result<Standing, Problem> {
        self.ask(|reply| Command::Charge { request, reply }).await
    }

    /// Says how a source stands with one rule.
    pub async fn standing(&self, source: IpAddr, rule: String) -> Result<Standing, Problem> {
        self.ask(|reply| Command::Standing { source, rule, reply }).await
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Problem> {
        let stopping = || Problem::new(ProblemKind::Stopping, "the daemon is stopping");
        let (reply, answer) = oneshot::channel();
        self.way.send(command(reply)).await.map_err(|_| stopping())?;
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }
}

#[cfg(test)]
mod tests;
