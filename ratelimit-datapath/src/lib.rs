//! The kernel side for user space. The daemon drives [`Datapath`]; `kernel` does it with the kernel, `fake` without one.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use ratelimit_common::admission::Admission;
use ratelimit_common::layout::{Fault, Tally};
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_common::verdict::Reason;
use ratelimit_common::window::Cell;
use ratelimit_policy::config::OnExit;
use ratelimit_policy::desired::Policy;

mod alone;
mod batch;
mod bpf;
mod btf;
pub mod clock;
pub mod connections;
pub mod device;
pub(crate) mod encode;
mod events;
#[cfg(any(test, feature = "fixture"))]
pub mod fake;
mod fleet;
mod generic_netlink;
pub mod heap;
mod hook;
mod interface;
pub mod kernel;
mod link_info;
pub mod memory;
mod netlink;
pub mod object;
pub mod orphans;
pub mod path;
pub mod pins;
pub mod privileges;
pub mod probe;
mod routes;
mod source_reading;

pub use connections::{Connection, Ended};
pub use events::{EVENTS_PART, EventCount, EventCounts, EventLimit, KernelEvent, KernelEventKind};
pub use fleet::{KernelStep, LimitAt, STEPS_PART, Told};
pub use hook::{Attachment, Hook, XdpMode};
pub use interface::{Absent, links, loses_answers, names as interface_names};
pub use routes::default_gateways;
pub use source_reading::{SourceReading, Whose};

/// Nanoseconds for which a turn is charged as what [`Datapath::set_multiplicity`] has said.
pub const MULTIPLICITY_LASTS_NS: u64 = 12 * SECOND_NS;

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
    #[error("{what}: permission denied; run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON")]
    NotPrivileged {
        /// What was tried.
        what: String,
    },
    /// Refused although it has all that it takes: what confines it says no.
    #[error(
        "{what}: refused, although it has CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; a seccomp or AppArmor profile, SELinux, \
         a user namespace, or the kernel's lockdown forbids it"
    )]
    Forbidden {
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
        /// What is wrong, and what to do.
        why: String,
    },
    /// Two of the interfaces see the same packets.
    #[error("{what}; {instead}")]
    SharedPath {
        /// The two, and how packets go from one to the other.
        what: String,
        /// What to name instead, and why.
        instead: String,
    },
    /// Anything else.
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

impl DatapathError {
    /// Whether the other mode of XDP would be refused as well.
    const fn is_of_every_mode(&self) -> bool {
        matches!(self, Self::Occupied { .. } | Self::NotPrivileged { .. } | Self::Forbidden { .. })
    }
}

/// One interface's attachment and counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceReading {
    /// Its name.
    pub name: String,
    /// How the program is attached; none while the interface is away or was taken from us.
    pub attached: Option<Attachment>,
    /// Who has XDP there, where it is attached elsewhere.
    pub xdp_holder: Option<String>,
    /// Counters of packets that no rule judged, by reason; and of those of rules that are no more.
    pub unruled: Tallies,
    /// Counters of each rule, by reason, in the order of the policy's rules.
    pub rules: Vec<Tallies>,
}

/// Packets and bytes by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tallies(pub Vec<(Reason, Tally)>);

impl Tallies {
    /// Packets and bytes of one reason.
    pub fn of(&self, reason: Reason) -> Tally {
        self.0.iter().find(|(other, _)| *other == reason).map_or(Tally::default(), |(_, tally)| *tally)
    }

    /// Adds others, reason by reason.
    pub fn add(&mut self, others: &Self) {
        for &(reason, more) in &others.0 {
            match self.0.iter_mut().find(|(other, _)| *other == reason) {
                Some((_, tally)) => {
                    tally.packets = tally.packets.wrapping_add(more.packets);
                    tally.bytes = tally.bytes.wrapping_add(more.bytes);
                }
                None => self.0.push((reason, more)),
            }
        }
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
    /// Bans that each rule has begun, in the order of the policy's rules.
    pub bans_begun: Vec<u64>,
    /// Sources remembered of each family at most.
    pub sources_capacity: u64,
    /// What each CPU has admitted of new sources.
    pub admissions: Vec<Admission>,
    /// Packets that were refused and not cached, as their set of the drop cache was full. The windows judge their sources.
    pub not_cached: u64,
    /// Events that were sent and lost, see [`Datapath::events`].
    pub events: EventCounts,
}

/// One source that is banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ban {
    /// The prefix that is one client.
    pub client: IpNet,
    /// Index of the rule that banned it, in the policy that is in force.
    pub rule: usize,
    /// Until when, by the datapath's clock.
    pub until: Nanos,
    /// Its number among bans in a row, from 1.
    pub step: u32,
}

/// One source's newest ban by a rule, also after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanReading {
    /// The source, the rule and the end.
    pub ban: Ban,
    /// Packets that it has dropped; together with those of the bans before it, which the kernel does not tell apart.
    pub dropped: u64,
}

/// Where a visit of the bans goes on, see [`Datapath::visit_bans`]. It begins at the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BansPosition {
    /// Which map.
    map: usize,
    /// Where in it; none at its beginning.
    bucket: Option<u64>,
}

/// Where the next part of a visit of the bans begins; none after the last.
pub type VisitedBans = Result<Option<BansPosition>, DatapathError>;

/// Where a visit of the windows goes on, see [`Datapath::visit_part_of_sources`]. It begins at the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourcesPosition {
    /// Which map.
    map: usize,
    /// Where in it; none at its beginning.
    bucket: Option<u64>,
}

/// Where the next part of a visit of the windows begins; none after the last.
pub type VisitedSources = Result<Option<SourcesPosition>, DatapathError>;

/// A policy that was put in force for a while, see [`Datapath::apply_until`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    /// There is none: what was applied last is in force.
    None,
    /// It is in force until then, by the datapath's clock.
    Running(Nanos),
    /// Its time is over, unconfirmed: packets are judged by what was in force before it.
    Over,
}

/// What was reset of one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Windows.
    pub windows: usize,
    /// Limits whose windows they were: each has several.
    pub limits: usize,
    /// Bans.
    pub bans: usize,
}

/// What the daemon asks of the kernel side. One task owns it.
pub trait Datapath: Send + 'static {
    /// Replaces what packets are judged by, all at once. Counters, windows and bans stay. On an error the old policy
    /// goes on. It is in force for good: a trial ends with it, and [`Datapath::trial`] is [`Trial::None`] afterwards.
    fn apply(&mut self, policy: &Policy) -> Result<(), DatapathError>;

    /// The same, until `until` by the datapath's clock: then packets roll back to the policy that was in force
    /// before, all at once, also where this process is gone. Only [`Datapath::confirm`] prevents it. Only the policy is
    /// rolled back: counters, windows and bans stay. Not called while a trial
    /// runs, nor before anything was applied. On an error the old policy goes on, without a trial.
    fn apply_until(&mut self, policy: &Policy, until: Nanos) -> Result<(), DatapathError>;

    /// Replaces the grants while a trial runs: in the policy on trial and in the one before it, which otherwise stay the
    /// same. Every packet meets all of them or none, and the trial goes on. On an error a part may hold; a further call
    /// completes it.
    fn apply_access(&mut self, tried: &Policy, before: &Policy) -> Result<(), DatapathError>;

    /// Keeps the policy of the trial that runs: true, and [`Datapath::trial`] is [`Trial::None`]. False where none
    /// runs or its time is over, which changes nothing. After true, no packet was or will be judged by the policy before.
    fn confirm(&mut self) -> Result<bool, DatapathError>;

    /// The state of the last trial. It is read where packets read it, so that a later run finds the trial of an earlier
    /// one. [`Trial::Over`] stays until something is applied.
    fn trial(&mut self) -> Result<Trial, DatapathError>;

    /// The bans in force, sorted. Those whose time is over are not among them.
    fn bans(&mut self) -> Result<Vec<Ban>, DatapathError>;

    /// Visits a part of the bans of the policy's rules, also of those that have ended and are still kept, in no
    /// order, and tells where the next part begins; none after the last. A part is at most some 16 000 bans, however
    /// many there are.
    fn visit_bans(&mut self, from: BansPosition, visit: &mut dyn FnMut(BanReading)) -> VisitedBans;

    /// Those of one client alone, which is as [`Policy::client`] makes it.
    fn bans_of(&mut self, client: IpNet) -> Result<Vec<Ban>, DatapathError>;

    /// Removes bans past their reset, so that there is room for new ones; and where it is scarce, those that have
    /// ended. Returns how many. To be called now and then.
    fn tidy_bans(&mut self) -> Result<usize, DatapathError>;

    /// Ends the bans of every client within `prefix` and resets their number in a row. Returns those that were in force,
    /// sorted. The windows stay: a source that is still over its limit may be banned again at once.
    fn lift_bans(&mut self, prefix: IpNet) -> Result<Vec<Ban>, DatapathError>;

    /// Has a rule's ban of a client, which is as [`Policy::client`] makes it, hold until then. False where it holds as
    /// long already, or the rule, by its index, bans nobody. No event tells of it, and it counts as no ban that began.
    fn ban(&mut self, client: IpNet, rule: usize, until: Nanos) -> Result<bool, DatapathError>;

    /// The clients within `prefix`, or around it, with a window, a guard's window or a drop-cache entry; sorted.
    fn clients(&mut self, prefix: IpNet) -> Result<Vec<IpNet>, DatapathError>;

    /// Forgets all windows, bans and drop-cache entries of these clients, which are as [`Policy::client`] makes them:
    /// the next packet of each is judged as one of a new source. Others of the same prefix length are not touched.
    /// Returns the sums.
    fn forget_all(&mut self, clients: &[IpNet]) -> Result<Removed, DatapathError>;

    /// The same of one.
    fn forget(&mut self, client: IpNet) -> Result<Removed, DatapathError> {
        self.forget_all(&[client])
    }

    /// Charges `amount` to each limit and shadow limit of a rule that packets charge, also above the limit, up to what can
    /// be counted. A limit that it exceeds bans as it does for a packet.
    fn charge(&mut self, client: IpNet, rule: usize, amount: u64) -> Result<(), DatapathError>;

    /// The same of those limits and shadow limits alone that count requests.
    fn charge_requests(&mut self, client: IpNet, rule: usize, amount: u64) -> Result<(), DatapathError>;

    /// Charges `amount` to the limit with this slot alone.
    fn charge_limit(&mut self, client: IpNet, rule: usize, slot: u32, amount: u64) -> Result<(), DatapathError>;

    /// Sets how many requests a rule charges for each turn of a client under TLS and QUIC, for
    /// [`MULTIPLICITY_LASTS_NS`]. Fails if there is no such rule, or the map cannot be written.
    fn set_multiplicity(&mut self, rule: usize, client: IpNet, requests: u16) -> Result<(), DatapathError>;

    /// Tells packets for as long that a rule's log is read in time. Of QUIC they then count connections alone.
    fn tell_log_is_read(&mut self, rule: usize) -> Result<(), DatapathError>;

    /// The interfaces that an earlier run left limited, by the policy that it applied, and that this run has not taken
    /// over; sorted.
    fn kept(&self) -> Vec<String>;

    /// How long the filter of an earlier run has been without a daemon, where that is known.
    fn alone_for(&self) -> Option<Duration> {
        None
    }

    /// Whether this run has made its state of what an earlier layout's program holds, which still judges every packet:
    /// what is applied is read by none until [`Datapath::take_over_earlier`] or [`Datapath::attach`].
    fn is_unread(&self) -> bool {
        false
    }

    /// Puts the program into every attachment that a program of an earlier layout has, without a gap, and removes what
    /// else is left of that. To be called once a policy is applied, and after the interfaces that are new.
    fn take_over_earlier(&mut self) -> Result<(), DatapathError> {
        Ok(())
    }

    /// Moves the datapath's clock ahead by the time for which the machine was suspended, and tells it; none where it was
    /// not since the last call. Packets follow with what is applied next. Not while a trial runs.
    fn catch_up(&mut self) -> Result<Option<Duration>, DatapathError> {
        Ok(None)
    }

    /// Has enforcement lapse then, by the datapath's clock, or up to a third of a second later: what would be dropped
    /// passes from then on as [`Reason::DryRun`], and nobody is banned, also where this process is gone. None is never. It
    /// stays as policies come and go.
    fn lapse_at(&mut self, at: Option<Nanos>) -> Result<(), DatapathError>;

    /// When enforcement lapses, or has lapsed; none is never.
    fn lapse(&mut self) -> Result<Option<Nanos>, DatapathError>;

    /// Attaches to an interface, or takes over the pinned attachment of an earlier run without a gap. An interface that
    /// went away and is back is attached again: the rest of its old attachment is replaced.
    fn attach(&mut self, interface: &str) -> Result<Attachment, DatapathError>;

    /// Detaches from an interface and forgets it; its counters stay readable until it is gone from [`Datapath::read`].
    fn detach(&mut self, interface: &str) -> Result<(), DatapathError>;

    /// Prepares for interfaces that come later, as privileges are given up after the start. To be called once the others
    /// are attached. Calls `meanwhile` again and again until it is done, and once afterwards.
    fn prepare_for_later(&mut self, _interfaces: &[String], _meanwhile: &mut dyn FnMut(&mut Self))
    where
        Self: Sized,
    {
    }

    /// Returns every interface that there is, with the interfaces that it is joined to.
    fn links(&mut self) -> Result<Vec<path::Link>, DatapathError>;

    /// What only this state has: random, made when it begins, kept with it.
    fn secret(&self) -> [u64; 2];

    /// The clock that packets are judged by.
    fn now(&mut self) -> Result<Nanos, DatapathError>;

    /// Reads attachments, counters and faults.
    fn read(&mut self) -> Result<Reading, DatapathError>;

    /// Visits the events since the last call, by the policy that was applied last: which sources began to be refused or
    /// banned. Each comes once, in order, at most [`EVENTS_PART`] of them; true where more may wait. Call it a few times
    /// a second: nothing wakes the caller, and the ring holds [`EVENTS_MAX`](ratelimit_common::layout::EVENTS_MAX).
    /// Events of a time without a daemon wait in the ring.
    fn events(&mut self, visit: &mut dyn FnMut(KernelEvent)) -> Result<bool, DatapathError>;

    /// Visits the steps that packets have made since the last call, of the limits that hosts share, in order, at most
    /// [`STEPS_PART`] of them: true where more may wait.
    fn steps(&mut self, visit: &mut dyn FnMut(KernelStep)) -> Result<bool, DatapathError>;

    /// The cells of these clients' windows on one side of a limit; none of a client without a window.
    fn admitted(&mut self, at: LimitAt, clients: &[IpNet]) -> Result<Vec<Vec<Cell>>, DatapathError>;

    /// Writes what other hosts admitted, each into its client's window on this side of a limit. How many were written:
    /// the others have no window, or not that bucket any more.
    fn tell_others(&mut self, at: LimitAt, told: &[Told]) -> Result<usize, DatapathError>;

    /// Ends those of the host's own TCP connections that are `wanted`, so many of them at most.
    fn end_connections(
        &mut self,
        wanted: &mut dyn FnMut(&Connection) -> bool,
        most: usize,
    ) -> Result<Ended, DatapathError>;

    /// Visits every window of every source, in no order; a source that comes or goes meanwhile may be missed.
    fn visit_sources(&mut self, visit: &mut dyn FnMut(SourceReading)) -> Result<(), DatapathError>;

    /// Visits a part of the windows, in no order, and tells where the next part begins; none after the last. A part is at
    /// most some 16 000 windows, however many there are.
    fn visit_part_of_sources(&mut self, from: SourcesPosition, visit: &mut dyn FnMut(SourceReading)) -> VisitedSources;

    /// The windows of the sources that these addresses belong to under the applied policy, one by one, those of guards
    /// too (see [`ratelimit_policy::desired::Limit::guard`]); also one that was evicted, while the drop cache drops.
    fn sources(&mut self, addresses: &[IpAddr]) -> Result<Vec<Vec<SourceReading>>, DatapathError>;

    /// The same of one.
    fn source(&mut self, address: IpAddr) -> Result<Vec<SourceReading>, DatapathError> {
        Ok(self.sources(&[address])?.pop().unwrap_or_default())
    }

    /// Ends a run that could not start; called once and last. Detaches what it has attached itself. What it took over from
    /// an earlier run goes on, under that run's policy if this one has applied none.
    fn abandon(&mut self) -> Result<(), DatapathError>;

    /// Ends the run, called once and last: [`OnExit::Detach`] takes off and unpins everything, pins of earlier runs
    /// too; [`OnExit::Keep`] leaves link and maps pinned.
    fn shutdown(&mut self, on_exit: OnExit) -> Result<(), DatapathError>;
}
