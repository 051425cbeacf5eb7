//! The datapath as the daemon sees it: the trait [`Datapath`], its values, and the encoding of a policy into the words
//! that packets are judged by.
//!
//! `ratelimit-kernel` implements the trait with the kernel, and `fake` without. `memory` judges packets without either.
//! This crate must name neither aya nor the kernel, so that everything above it builds without the BPF compiler.

#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use ratelimit_common::admission::Admission;
use ratelimit_common::layout::{Fault, Tally};
use ratelimit_common::time::{BucketIndex, Nanos, SECOND_NS};
use ratelimit_common::verdict::Reason;
use ratelimit_common::window::Cell;
use ratelimit_policy::config::OnExit;
use ratelimit_policy::desired::Policy;

mod connection;
pub mod encode;
mod error;
mod events;
#[cfg(any(test, feature = "fixture"))]
pub mod fake;
mod fleet;
mod hook;
pub mod memory;
mod orphan;
pub mod path;
mod source_reading;

pub use connection::{Connection, Ended, SocketName};
pub use error::DatapathError;
pub use events::{EVENTS_PART, EventCount, EventCounts, EventLimit, KernelEvent, KernelEventKind};
pub use fleet::{KernelStep, LimitAt, STEPS_PART, Told};
pub use hook::{Attachment, Hook, XdpMode};
pub use orphan::{Lapse, Left, Orphans, PinnedLayout};
pub use source_reading::{SourceReading, Whose};

/// Response of a start to a missing interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The start fails, so that the user who runs it reads the reason.
    Refused,
    /// The start goes on with the other interfaces. The missing one is attached when it appears.
    Awaited,
}

/// Time in nanoseconds for which the value set by [`Datapath::set_multiplicity`] applies.
pub const MULTIPLICITY_LASTS_NS: u64 = 12 * SECOND_NS;

/// One interface's attachment and counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceReading {
    /// Interface name.
    pub name: String,
    /// Mode of the attachment. None while the interface is absent or its attachment was taken from us.
    pub attached: Option<Attachment>,
    /// Holder of the interface's XDP hook, if the program is attached at another hook.
    pub xdp_holder: Option<String>,
    /// Counters, by reason, of packets that no rule judged and of rules that no longer exist.
    pub unruled: Tallies,
    /// Counters of each rule by reason, in the order of the policy's rules.
    pub rules: Vec<Tallies>,
}

/// Packets and bytes by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tallies(pub Vec<(Reason, Tally)>);

impl Tallies {
    /// Returns the packets and bytes of one reason.
    pub fn of(&self, reason: Reason) -> Tally {
        self.0.iter().find(|(other, _)| *other == reason).map_or(Tally::default(), |(_, tally)| *tally)
    }

    /// Adds other counters, reason by reason.
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

/// All readable state except the sources, read at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Time on the datapath's clock, which the packet path uses too.
    pub now: Nanos,
    /// All interfaces, sorted by name.
    pub interfaces: Vec<InterfaceReading>,
    /// Packets on interfaces that the configuration does not list, while it changes.
    pub unlisted: Tallies,
    /// Counts of failed map operations.
    pub faults: Vec<(Fault, u64)>,
    /// Number of bans begun by each rule, in the order of the policy's rules.
    pub bans_begun: Vec<u64>,
    /// Maximum number of tracked sources of each address family.
    pub sources_capacity: u64,
    /// New sources admitted by each CPU.
    pub admissions: Vec<Admission>,
    /// Refused packets that were not cached, because their set of the drop cache was full. The windows judge their
    /// sources.
    pub not_cached: u64,
    /// Events sent and events lost, see [`Datapath::events`].
    pub events: EventCounts,
}

/// A ban of one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ban {
    /// Address or prefix that is counted as one client.
    pub client: IpNet,
    /// Index of the banning rule in the policy in force.
    pub rule: usize,
    /// Expiry, on the datapath's clock.
    pub until: Nanos,
    /// Position in the client's sequence of consecutive bans, from 1.
    pub step: u32,
}

/// The newest ban of one source by one rule, possibly expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanReading {
    /// Source, rule and expiry.
    pub ban: Ban,
    /// Packets dropped by this ban and the bans before it, which the kernel counts together.
    pub dropped: u64,
}

/// Position in a visit of the bans, see [`Datapath::visit_bans`]. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BansPosition {
    /// Index of the map.
    pub map: usize,
    /// Bucket in that map. None at the map's beginning.
    pub bucket: Option<u64>,
}

/// Position of the next part in a visit of the bans. None after the last part.
pub type VisitedBans = Result<Option<BansPosition>, DatapathError>;

/// Position in a visit of the windows, see [`Datapath::visit_part_of_sources`]. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourcesPosition {
    /// Index of the map.
    pub map: usize,
    /// Bucket in that map. None at the map's beginning.
    pub bucket: Option<u64>,
}

/// Position of the next part in a visit of the windows. None after the last part.
pub type VisitedSources = Result<Option<SourcesPosition>, DatapathError>;

/// State of a policy that was applied for a limited time, see [`Datapath::apply_until`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    /// No trial: the policy applied last is in force.
    None,
    /// The trial runs until this time on the datapath's clock.
    Running(Nanos),
    /// The trial ended unconfirmed. Packets are judged by the policy before it.
    Over,
}

/// Counts of state that was reset for clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Number of windows.
    pub windows: usize,
    /// Number of limits that had those windows. One limit can have several windows.
    pub limits: usize,
    /// Number of bans.
    pub bans: usize,
}

/// Operations that the daemon needs from the kernel side. One task owns the datapath.
pub trait Datapath: Send + 'static {
    /// Replaces the policy in one step. Counters, windows and bans stay. On an error the old policy stays in force. The
    /// new policy is permanent: a running trial ends, and [`Datapath::trial`] is [`Trial::None`] afterwards.
    fn apply(&mut self, policy: &Policy) -> Result<(), DatapathError>;

    /// Replaces the policy in one step until `until` on the datapath's clock. Then packets roll back to the previous
    /// policy in one step, even if this process is gone. Only [`Datapath::confirm`] prevents that. The rollback
    /// concerns the policy alone: counters, windows and bans stay. Must not be called during a trial, nor before a
    /// policy was applied. On an error the old policy stays in force, without a trial.
    fn apply_until(&mut self, policy: &Policy, until: Nanos) -> Result<(), DatapathError>;

    /// Replaces the grants while a trial runs, both in the policy on trial and in the one before it. The policies stay
    /// the same otherwise, and the trial goes on. Each packet meets all new grants or none. On an error only a part may
    /// be in force; another call completes the change.
    fn apply_access(&mut self, tried: &Policy, before: &Policy) -> Result<(), DatapathError>;

    /// Confirms the running trial, so that its policy stays in force. Returns true, and [`Datapath::trial`] is
    /// [`Trial::None`] afterwards. Returns false and changes nothing if no trial runs or its time is over. After true,
    /// no packet was or will be judged by the policy before.
    fn confirm(&mut self) -> Result<bool, DatapathError>;

    /// Returns the state of the last trial. The state is stored where packets read it, so that a later run finds an
    /// earlier run's trial. [`Trial::Over`] stays until a policy is applied.
    fn trial(&mut self) -> Result<Trial, DatapathError>;

    /// Returns the bans in force, sorted. Expired bans are not included.
    fn bans(&mut self) -> Result<Vec<Ban>, DatapathError>;

    /// Visits a part of the bans of the policy's rules, in no order, including expired bans that are still kept.
    /// Returns where the next part begins, or none after the last. A part has at most about 16 000 bans, however many
    /// there are.
    fn visit_bans(&mut self, from: BansPosition, visit: &mut dyn FnMut(BanReading)) -> VisitedBans;

    /// Returns the bans in force of one client, whose prefix must be as [`Policy::client`] makes it.
    fn bans_of(&mut self, client: IpNet) -> Result<Vec<Ban>, DatapathError>;

    /// Removes bans past their reset, to make room for new ones. If room is scarce, also removes expired bans. Returns
    /// the number removed. The caller runs this from time to time.
    fn tidy_bans(&mut self) -> Result<usize, DatapathError>;

    /// Ends the bans of every client within `prefix` and resets their position in the sequence of bans. Returns the
    /// bans that were in force, sorted. Windows stay, so a source that is still over its limit may be banned again at
    /// once.
    fn lift_bans(&mut self, prefix: IpNet) -> Result<Vec<Ban>, DatapathError>;

    /// Makes a rule's ban of a client last until `until`. `client` must be as [`Policy::client`] makes it. Returns
    /// false if the ban already lasts that long or the rule bans nobody. Sends no event and does not count as a begun
    /// ban.
    fn ban(&mut self, client: IpNet, rule: usize, until: Nanos) -> Result<bool, DatapathError>;

    /// Returns the clients within or around `prefix` that have a window, a guard's window or a drop-cache entry,
    /// sorted.
    fn clients(&mut self, prefix: IpNet) -> Result<Vec<IpNet>, DatapathError>;

    /// Removes all windows, bans and drop-cache entries of these clients, which must be as [`Policy::client`] makes
    /// them. Each client's next packet is judged like one of a new source. Clients with another prefix length are not
    /// touched. Returns the sums.
    fn forget_all(&mut self, clients: &[IpNet]) -> Result<Removed, DatapathError>;

    /// Removes all windows, bans and drop-cache entries of one client. See [`Datapath::forget_all`].
    fn forget(&mut self, client: IpNet) -> Result<Removed, DatapathError> {
        self.forget_all(&[client])
    }

    /// Charges `amount` to each limit and shadow limit of a rule that packets charge. The charge may exceed the limit,
    /// up to the largest countable value. An exceeded limit bans as it does for a packet.
    fn charge(&mut self, client: IpNet, rule: usize, amount: u64) -> Result<(), DatapathError>;

    /// Charges `amount` to those limits and shadow limits of a rule that count requests.
    fn charge_requests(&mut self, client: IpNet, rule: usize, amount: u64) -> Result<(), DatapathError>;

    /// Charges `amount` only to the limit with this slot.
    fn charge_limit(&mut self, client: IpNet, rule: usize, slot: u32, amount: u64) -> Result<(), DatapathError>;

    /// Adds requests to the refusals of a client's window in this slot, in a bucket. No packet may charge that window,
    /// such as one of a shadow limit with conditions. Returns true if they are the first refusals in the bucket. Does
    /// nothing if there is no such window.
    fn add_refused(
        &mut self,
        client: IpNet,
        slot: u32,
        bucket: BucketIndex,
        requests: u64,
    ) -> Result<bool, DatapathError>;

    /// Sets how many requests a rule charges for each turn of a client over TLS or QUIC, for [`MULTIPLICITY_LASTS_NS`].
    /// Fails if there is no such rule or the map cannot be written.
    fn set_multiplicity(&mut self, rule: usize, client: IpNet, requests: u16) -> Result<(), DatapathError>;

    /// Marks a rule's access log as read in time, for [`MULTIPLICITY_LASTS_NS`]. Meanwhile, packets of QUIC count
    /// connections alone.
    fn tell_log_is_read(&mut self, rule: usize) -> Result<(), DatapathError>;

    /// Returns the interfaces that an earlier run left limited under its policy and that this run has not taken over,
    /// sorted.
    fn kept(&self) -> Vec<String>;

    /// Returns how long the filter of an earlier run was without a daemon, if known.
    fn alone_for(&self) -> Option<Duration> {
        None
    }

    /// Returns whether this run converted the state of a program with an earlier layout that still judges every packet.
    /// Policies applied meanwhile take effect only after [`Datapath::take_over_earlier`] or [`Datapath::attach`].
    fn is_unread(&self) -> bool {
        false
    }

    /// Replaces the program in every attachment of an earlier layout without a gap, then removes that layout's
    /// remaining state. Must be called after a policy was applied and the new interfaces were attached.
    fn take_over_earlier(&mut self) -> Result<(), DatapathError> {
        Ok(())
    }

    /// Advances the datapath's clock by the time for which the machine was suspended since the last call. Returns that
    /// time, or none if there was no suspension. Packets follow with the next applied policy. Must not be called during
    /// a trial.
    fn catch_up(&mut self) -> Result<Option<Duration>, DatapathError> {
        Ok(None)
    }

    /// Sets the time at which enforcement lapses, on the datapath's clock. The lapse may come up to a third of a second
    /// later. From then on, packets over a limit pass as [`Reason::DryRun`] and nobody is banned, even if this process
    /// is gone. None means never. The setting survives changes of the policy.
    fn lapse_at(&mut self, at: Option<Nanos>) -> Result<(), DatapathError>;

    /// Returns the time at which enforcement lapses or has lapsed. None means never.
    fn lapse(&mut self) -> Result<Option<Nanos>, DatapathError>;

    /// Attaches to an interface, or takes over an earlier run's pinned attachment without a gap. If the interface was
    /// removed and came back, the remains of its old attachment are replaced.
    fn attach(&mut self, interface: &str) -> Result<Attachment, DatapathError>;

    /// Detaches from an interface. Its counters stay readable until [`Datapath::read`] no longer lists the interface.
    fn detach(&mut self, interface: &str) -> Result<(), DatapathError>;

    /// Prepares for interfaces that appear later, because privileges are given up after the start. Must be called once
    /// the other interfaces are attached. Calls `meanwhile` repeatedly until done, and once afterwards.
    fn prepare_for_later(&mut self, _interfaces: &[String], _meanwhile: &mut dyn FnMut(&mut Self))
    where
        Self: Sized,
    {
    }

    /// Returns every interface, with the interfaces that it is joined to.
    fn links(&mut self) -> Result<Vec<path::Link>, DatapathError>;

    /// Returns the random secret of this state, made when the state was created and stored in it.
    fn secret(&self) -> [u64; 2];

    /// Returns the time on the clock that packets are judged by.
    fn now(&mut self) -> Result<Nanos, DatapathError>;

    /// Reads attachments, counters and faults.
    fn read(&mut self) -> Result<Reading, DatapathError>;

    /// Visits the events since the last call, under the policy applied last: sources that began to be refused or
    /// banned. Each event comes once, in order. Visits at most [`EVENTS_PART`] events and returns true if more may
    /// wait. Call this a few times a second: nothing wakes the caller, and the ring holds
    /// [`EVENTS_MAX`](ratelimit_common::layout::EVENTS_MAX) events. Events from a time without a daemon wait in the
    /// ring.
    fn events(&mut self, visit: &mut dyn FnMut(KernelEvent)) -> Result<bool, DatapathError>;

    /// Visits the steps that packets have made since the last call on limits that hosts share, in order. Visits at most
    /// [`STEPS_PART`] steps and returns true if more may wait.
    fn steps(&mut self, visit: &mut dyn FnMut(KernelStep)) -> Result<bool, DatapathError>;

    /// Returns the cells of these clients' windows on one side of a limit. A client without a window has no cells.
    fn admitted(&mut self, at: LimitAt, clients: &[IpNet]) -> Result<Vec<Vec<Cell>>, DatapathError>;

    /// Writes admissions of other hosts into the clients' windows on one side of a limit. Returns the number written.
    /// An entry is skipped if its client has no window or no longer has that bucket.
    fn tell_others(&mut self, at: LimitAt, told: &[Told]) -> Result<usize, DatapathError>;

    /// Ends the host's own TCP connections that `wanted` selects, at most `most` of them.
    fn end_connections(
        &mut self,
        wanted: &mut dyn FnMut(&Connection) -> bool,
        most: usize,
    ) -> Result<Ended, DatapathError>;

    /// Visits every window of every source, in no order. A source that appears or disappears meanwhile may be missed.
    fn visit_sources(&mut self, visit: &mut dyn FnMut(SourceReading)) -> Result<(), DatapathError>;

    /// Visits a part of the windows, in no order. Returns where the next part begins, or none after the last. A part
    /// has at most about 16 000 windows, however many there are.
    fn visit_part_of_sources(&mut self, from: SourcesPosition, visit: &mut dyn FnMut(SourceReading)) -> VisitedSources;

    /// Returns for each address the windows of its source under the applied policy, including windows of guards (see
    /// [`ratelimit_policy::desired::Limit::guard`]). An evicted window is included while the drop cache still drops its
    /// source.
    fn sources(&mut self, addresses: &[IpAddr]) -> Result<Vec<Vec<SourceReading>>, DatapathError>;

    /// Returns the windows of one address. See [`Datapath::sources`].
    fn source(&mut self, address: IpAddr) -> Result<Vec<SourceReading>, DatapathError> {
        Ok(self.sources(&[address])?.pop().unwrap_or_default())
    }

    /// Ends a run that could not start. Must be the last call, made once. Detaches what this run attached. Attachments
    /// taken over from an earlier run go on, under the earlier policy if this run applied none.
    fn abandon(&mut self) -> Result<(), DatapathError>;

    /// Ends the run. Must be the last call, made once. [`OnExit::Detach`] detaches and unpins everything, including
    /// pins of earlier runs. [`OnExit::Keep`] leaves links and maps pinned.
    fn shutdown(&mut self, on_exit: OnExit) -> Result<(), DatapathError>;
}
