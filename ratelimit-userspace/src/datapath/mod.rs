//! The kernel side, seen from this side. [`Datapath`] is what the daemon drives; `kernel` is the one file that
//! knows how, `fake` the one that pretends.

use std::net::IpAddr;

use ipnet::IpNet;
use ratelimit_common::layout::{Fault, Source, Tally};
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;

use crate::config::OnExit;
use crate::desired::Policy;

mod batch;
pub mod fake;
mod interface;
pub mod kernel;
mod link_info;
pub mod pins;

/// How an XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before a socket buffer exists.
    Native,
    /// In the network stack, on a socket buffer: works everywhere, costs several times as much.
    Generic,
}

impl XdpMode {
    /// The mode's name in JSON and metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

/// Why the datapath could not do what it was asked. Every message names the object and what would mend it.
#[derive(Debug, thiserror::Error)]
pub enum DatapathError {
    /// The interface does not exist (now).
    #[error("no interface {name}; there are {present}")]
    NoSuchInterface {
        /// The one asked for.
        name: String,
        /// Those that exist, joined by commas.
        present: String,
    },
    /// Another program has the interface.
    #[error("interface {interface} already has an XDP program: {owner}")]
    Occupied {
        /// The interface.
        interface: String,
        /// The other program's name and id, who holds it, and how to take it off.
        owner: String,
    },
    /// The kernel or the driver cannot.
    #[error("{what}: {why}")]
    Unsupported {
        /// What was tried.
        what: String,
        /// What the kernel lacks, and what to do.
        why: String,
    },
    /// Not privileged.
    #[error("{what}: permission denied; run as root, or with CAP_BPF and CAP_NET_ADMIN")]
    NotPrivileged {
        /// What was tried.
        what: String,
    },
    /// Another daemon has the pinned state.
    #[error("the pinned state in {path} belongs to another ratelimitd that runs; {remedy}")]
    InUse {
        /// The directory.
        path: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The pinned state is not what this version writes.
    #[error("pinned state in {path} does not fit: {why}")]
    Pins {
        /// The directory or pin.
        path: String,
        /// What does not fit, and what to do.
        why: String,
    },
    /// Anything else.
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

/// One interface's attachment and counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceReading {
    /// Its name.
    pub name: String,
    /// How the program is attached; none while the interface is away or was taken from us.
    pub attached: Option<XdpMode>,
    /// Counters of packets that no rule judged, by reason.
    pub unruled: Tallies,
    /// Counters of each rule, by reason, in the order of the policy's rules.
    pub rules: Vec<Tallies>,
}

/// Packets and bytes by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tallies(pub Vec<(Reason, Tally)>);

impl Tallies {
    /// What one reason has come to.
    pub fn of(&self, reason: Reason) -> Tally {
        self.0.iter().find(|(other, _)| *other == reason).map_or(Tally::default(), |(_, tally)| *tally)
    }
}

/// Everything but the sources, read at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The datapath's clock: what the packet path would call now.
    pub now: Nanos,
    /// The interfaces, sorted by name.
    pub interfaces: Vec<InterfaceReading>,
    /// Packets on interfaces that the configuration does not list, while it changes.
    pub unlisted: Tallies,
    /// Failed map operations.
    pub faults: Vec<(Fault, u64)>,
    /// Sources remembered of each family at most.
    pub sources_capacity: u64,
}

/// One window of one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceReading {
    /// The source: an address with its full length, or the prefix that is one client.
    pub prefix: IpNet,
    /// Which limit's window, see [`crate::desired::Limit::slot`].
    pub slot: u32,
    /// Its words.
    pub window: Source,
}

/// What the daemon asks of the kernel side. One task owns it.
pub trait Datapath: Send + 'static {
    /// Replaces what packets are judged by, all at once. Counters and windows stay. On an error the old policy goes on.
    fn apply(&mut self, policy: &Policy) -> Result<(), DatapathError>;

    /// The interfaces that an earlier run left limited, by the policy that it applied, and that this run has not taken over;
    /// sorted.
    fn kept(&self) -> Vec<String>;

    /// Attaches to an interface, or takes over the pinned attachment of an earlier run without a gap. An interface that
    /// was attached, went away and is back is attached anew: whatever is left of the old attachment is replaced.
    fn attach(&mut self, interface: &str) -> Result<XdpMode, DatapathError>;

    /// Detaches from an interface and forgets it; its counters stay readable until it is gone from [`Datapath::read`].
    fn detach(&mut self, interface: &str) -> Result<(), DatapathError>;

    /// Reads attachments, counters and faults.
    fn read(&mut self) -> Result<Reading, DatapathError>;

    /// Visits every window of every source, in no order; a source that comes or goes meanwhile may be missed.
    fn visit_sources(&mut self, visit: &mut dyn FnMut(SourceReading)) -> Result<(), DatapathError>;

    /// The windows of the source that `address` belongs to under the applied policy.
    fn source(&mut self, address: IpAddr) -> Result<Vec<SourceReading>, DatapathError>;

    /// Ends a run that could not start, called once and last: takes off what it has attached itself. What it took over from
    /// an earlier run goes on, under that run's policy if this one has applied none.
    fn abandon(&mut self) -> Result<(), DatapathError>;

    /// Ends the run, called once and last: [`OnExit::Detach`] takes off and unpins everything, pins of earlier runs
    /// too; [`OnExit::Keep`] leaves link and maps pinned.
    fn shutdown(&mut self, on_exit: OnExit) -> Result<(), DatapathError>;
}
