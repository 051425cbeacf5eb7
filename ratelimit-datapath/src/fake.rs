//! Datapath without a kernel, for tests of the code that drives it. The kernel's own core judges the packets.
//!
//! The daemon owns the [`FakeDatapath`]. The test keeps its [`FakeKernel`] to send packets, advance time and inject
//! faults.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::anyhow;
use ipnet::IpNet;
use ratelimit_common::admission::Admission;
use ratelimit_common::layout::{Fault, SOURCES_CAPACITY, Source, Tally};
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_common::verdict::{Reason, Verdict};
use ratelimit_common::verification::Side;
use ratelimit_common::window::Cell;

use super::{
    Attachment, Ban, BanReading, BansPosition, Connection, Datapath, DatapathError, Ended, InterfaceReading,
    KernelEvent, KernelStep, LimitAt, Reading, Removed, SourceReading, SourcesPosition, Tallies, Told, Trial,
    VisitedBans, VisitedSources, XdpMode,
};
pub use crate::memory::Sender;
use crate::memory::{Judged, Packets, Rules};
use crate::path::Link;
use ratelimit_policy::config::OnExit;
use ratelimit_policy::desired::{Limit, Policy, Rule};

mod access;
mod charged;
mod connections;
mod events;
mod failures;
mod fleet;
mod reading;
mod tallied;
mod world;

use tallied::{add, charge_or_refuse, tallies};

/// Counter that gives each fake another secret.
static SECRETS: AtomicU64 = AtomicU64::new(0);

/// Time at which a fake begins: 2026-01-01T10:00:00Z.
pub const START: Nanos = Nanos(1_767_261_600_000_000_000);
/// Maximum number of bans in one part of a visit.
pub const BANS_PART: usize = 16;

/// A packet to a port that every rule protects. The first rule in force whose `from` contains the source judges it.
#[derive(Clone, Copy, Debug)]
pub struct FakePacket {
    /// Source address.
    pub source: IpAddr,
    /// True if the packet opens a connection.
    pub opens: bool,
    /// Number of requests that begin in the packet.
    pub requests: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Datapath for the daemon under test.
#[derive(Debug)]
pub struct FakeDatapath {
    kernel: FakeKernel,
}

/// The test's handle to the kernel of a [`FakeDatapath`].
#[derive(Clone, Debug)]
pub struct FakeKernel {
    world: Arc<Mutex<World>>,
}

#[derive(Debug)]
struct World {
    now: Nanos,
    secret: [u64; 2],
    present: BTreeMap<String, XdpMode>,
    known: BTreeMap<String, Row>,
    policy: Option<Policy>,
    /// Policy in force before the trial, and the time of the rollback.
    trial: Option<(Policy, Nanos)>,
    /// Keyed by rule name, like all counters of rules.
    bans_begun: BTreeMap<String, u64>,
    packets: Packets,
    /// Rules that judged the last packet.
    rules: Option<Rules>,
    /// Expiry of the cached drop of each window, by source and slot.
    cached_drops: BTreeMap<(IpNet, u32), Nanos>,
    admission: Admission,
    faults: BTreeMap<Fault, u64>,
    refusing_attach: BTreeSet<String>,
    refusing_apply: bool,
    refusing_read: bool,
    refusing_removal: bool,
    visits_of_bans: u32,
    /// Maximum number of windows, fixed by the first policy.
    windows_capacity: Option<u64>,
    /// Time at which enforcement lapses.
    lapse: Option<Nanos>,
    /// Nanoseconds of suspension that no `catch_up` has reported yet.
    suspended_ns: u64,
    calls: Vec<String>,
    /// TCP connections of the host.
    connections: Vec<Connection>,
    links: Vec<Link>,
}

#[derive(Debug, Default)]
struct Row {
    attached: bool,
    origin: Origin,
    unruled: BTreeMap<Reason, Tally>,
    /// Counters by rule name.
    ruled: BTreeMap<String, BTreeMap<Reason, Tally>>,
}

impl Row {
    /// Moves the counters of rules that no longer exist to the unruled counters.
    fn fold(&mut self, rules: &[Rule]) {
        let gone = |name: &String, _: &mut BTreeMap<_, _>| rules.iter().all(|rule| rule.name != *name);
        for (reason, tally) in self.ruled.extract_if(.., gone).flat_map(|(_, counts)| counts) {
            add(&mut self.unruled, reason, tally);
        }
    }
}

/// Run that attached the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Origin {
    #[default]
    Anew,
    /// An earlier run attached the program, and this run has not taken it over.
    Kept,
    TakenOver,
}

impl FakeDatapath {
    /// Returns the datapath and kernel of a machine with these interfaces, all with native XDP.
    pub fn new(interfaces: &[&str]) -> (Self, FakeKernel) {
        let world = World {
            now: START,
            secret: [std::process::id().into(), SECRETS.fetch_add(1, Ordering::Relaxed)],
            present: interfaces.iter().map(|name| ((*name).to_owned(), XdpMode::Native)).collect(),
            known: BTreeMap::new(),
            policy: None,
            trial: None,
            bans_begun: BTreeMap::new(),
            packets: Packets::default(),
            rules: None,
            cached_drops: BTreeMap::new(),
            admission: Admission::default(),
            faults: BTreeMap::new(),
            refusing_attach: BTreeSet::new(),
            refusing_apply: false,
            refusing_read: false,
            refusing_removal: false,
            visits_of_bans: 0,
            windows_capacity: None,
            lapse: None,
            suspended_ns: 0,
            calls: Vec::new(),
            connections: Vec::new(),
            links: Vec::new(),
        };
        let kernel = FakeKernel { world: Arc::new(Mutex::new(world)) };
        (Self { kernel: kernel.clone() }, kernel)
    }
}

impl World {
    fn sources_capacity(&self) -> u64 {
        let windows_per_source = self.policy.as_ref().map_or(1, Policy::windows_per_source);
        self.windows_capacity.unwrap_or(0) / u64::from(windows_per_source)
    }
}

impl FakeKernel {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers one packet on an interface. Returns none if nothing is attached there.
    pub fn packet(&self, interface: &str, packet: FakePacket) -> Option<Reason> {
        self.world().packet(interface, packet)
    }

    /// Delivers a frame whose sender the host's sockets know as `sender`. The verdict's row is the rule's number.
    /// Returns none if nothing is attached there.
    pub fn frame(&self, interface: &str, frame: &[u8], sender: Sender) -> Option<Verdict> {
        let bytes = frame.len() as u64;
        self.world().judge(interface, bytes, |packets, rules, now| packets.judge(rules, &frame, sender, now))
    }

    /// Adds to the counters of packets that no rule judges.
    pub fn unruled(&self, interface: &str, reason: Reason, tally: Tally) {
        if let Some(row) = self.world().known.get_mut(interface) {
            add(&mut row.unruled, reason, tally);
        }
    }

    /// Counts one failed map operation.
    pub fn fault(&self, fault: Fault) {
        *self.world().faults.entry(fault).or_default() += 1;
    }

    /// Sets the number of new sources that one CPU reports as admitted from now on.
    pub fn set_admission(&self, admission: Admission) {
        self.world().admission = admission;
    }

    /// Evicts every window, as a flood does. Adds a cached drop of this source and slot that expires at `until`.
    pub fn evict_windows(&self, source: IpNet, slot: u32, until: Nanos) {
        let mut world = self.world();
        world.packets.sources.windows.clear();
        world.cached_drops.insert((source, slot), until);
    }

    /// Charges units one by one to the window of a guard, see [`Limit::guard`]. Charges over the limit are refused.
    pub fn guard(&self, source: IpNet, guard: &Limit, amount: u64) {
        let mut world = self.world();
        let bucket = world.now.bucket(guard.bucket_ns);
        let window = world.packets.sources.window(source, guard.slot);
        for _ in 0..amount {
            charge_or_refuse(window, guard.arithmetic(), bucket, 1);
        }
    }

    /// Advances the clock.
    pub fn advance(&self, nanoseconds: u64) {
        let mut world = self.world();
        world.now = Nanos(world.now.0.saturating_add(nanoseconds));
    }

    /// Removes an interface, as `ip link delete` does.
    pub fn remove(&self, interface: &str) {
        let mut world = self.world();
        world.present.remove(interface);
        if let Some(row) = world.known.get_mut(interface) {
            row.attached = false;
        }
    }

    /// Adds an interface, or restores a removed one.
    pub fn add(&self, interface: &str, mode: XdpMode) {
        self.world().present.insert(interface.to_owned(), mode);
    }

    /// Sets the state left by an earlier run: these attached interfaces and the policy in force.
    pub fn keep(&self, interfaces: &[&str], policy: &Policy) {
        let mut world = self.world();
        world.policy = Some(policy.clone());
        for name in interfaces {
            let row = Row { attached: true, origin: Origin::Kept, ..Row::default() };
            world.known.insert((*name).to_owned(), row);
        }
    }

    /// Returns how many parts of the bans were visited.
    pub fn visits_of_bans(&self) -> u32 {
        self.world().visits_of_bans
    }

    /// Returns the policy in force.
    pub fn policy(&self) -> Option<Policy> {
        self.world().in_force().cloned()
    }

    /// Returns a second handle to the daemon's datapath, for inspection.
    pub fn peek(&self) -> FakeDatapath {
        FakeDatapath { kernel: self.clone() }
    }

    /// Returns the datapath of a later run over the same kernel. This run has not attached anything yet.
    pub fn reopen(&self) -> FakeDatapath {
        for row in self.world().known.values_mut() {
            row.origin = Origin::Kept;
        }
        FakeDatapath { kernel: self.clone() }
    }

    /// Returns the names of the interfaces that the program is attached to.
    pub fn attached(&self) -> Vec<String> {
        let world = self.world();
        world.known.iter().filter(|(_, row)| row.attached).map(|(name, _)| name.clone()).collect()
    }

    /// Returns the calls to the datapath so far, without reads.
    pub fn calls(&self) -> Vec<String> {
        self.world().calls.clone()
    }
}

impl Datapath for FakeDatapath {
    fn apply(&mut self, policy: &Policy) -> Result<(), DatapathError> {
        let mut world = self.kernel.world();
        world.calls.push("apply".to_owned());
        if world.refusing_apply {
            return Err(anyhow!("write map CONFIG: told to fail").into());
        }
        let windows = u64::from(SOURCES_CAPACITY) * u64::from(policy.windows_per_source());
        world.windows_capacity.get_or_insert(windows);
        world.policy = Some(policy.clone());
        for row in world.known.values_mut() {
            row.fold(&policy.rules);
        }
        world.cached_drops.clear();
        world.packets.begin_epoch();
        world.trial = None;
        Ok(())
    }

    fn apply_until(&mut self, policy: &Policy, until: Nanos) -> Result<(), DatapathError> {
        let mut world = self.kernel.world();
        world.calls.push("apply_until".to_owned());
        if world.refusing_apply || world.trial.is_some() {
            return Err(anyhow!("write map CONFIG: told to fail, or a trial runs").into());
        }
        let Some(before) = world.policy.replace(policy.clone()) else {
            return Err(anyhow!("nothing was applied that packets could go back to").into());
        };
        world.trial = Some((before, until));
        Ok(())
    }

    fn apply_access(&mut self, tried: &Policy, before: &Policy) -> Result<(), DatapathError> {
        let mut world = self.kernel.world();
        world.calls.push("apply_access".to_owned());
        if world.refusing_apply {
            return Err(anyhow!("write map PREFIXES_V4: told to fail").into());
        }
        if world.replace_access(tried, before) { Ok(()) } else { Err(anyhow!("no trial runs").into()) }
    }

    fn confirm(&mut self) -> Result<bool, DatapathError> {
        let mut world = self.kernel.world();
        world.calls.push("confirm".to_owned());
        let now = world.now;
        Ok(world.trial.take_if(|(_, until)| now < *until).is_some())
    }

    fn trial(&mut self) -> Result<Trial, DatapathError> {
        let world = self.kernel.world();
        Ok(match &world.trial {
            None => Trial::None,
            Some((_, until)) if world.now < *until => Trial::Running(*until),
            Some(_) => Trial::Over,
        })
    }

    fn bans(&mut self) -> Result<Vec<Ban>, DatapathError> {
        let world = self.kernel.world();
        Ok(world.bans().filter(|ban| world.now < ban.until).collect())
    }

    fn visit_bans(&mut self, from: BansPosition, visit: &mut dyn FnMut(BanReading)) -> VisitedBans {
        let mut world = self.kernel.world();
        world.visits_of_bans += 1;
        let bans = world.bans_read().skip(from.map * BANS_PART);
        let more = bans.take(BANS_PART).map(|(ban, dropped)| visit(BanReading { ban, dropped })).count();
        Ok((more == BANS_PART).then_some(BansPosition { map: from.map + 1, bucket: None }))
    }

    fn bans_of(&mut self, client: IpNet) -> Result<Vec<Ban>, DatapathError> {
        Ok(self.bans()?.into_iter().filter(|ban| ban.client == client).collect())
    }

    fn tidy_bans(&mut self) -> Result<usize, DatapathError> {
        self.kernel.world().calls.push("tidy_bans".to_owned());
        Ok(0)
    }

    fn lift_bans(&mut self, prefix: IpNet) -> Result<Vec<Ban>, DatapathError> {
        let mut world = self.kernel.world();
        let now = world.now;
        let lifted = world.bans().filter(|ban| prefix.contains(&ban.client) && now < ban.until).collect();
        world.packets.sources.bans.retain(|(client, _), _| !prefix.contains(client));
        world.packets.begin_epoch();
        Ok(lifted)
    }

    fn ban(&mut self, client: IpNet, rule: usize, until: Nanos) -> Result<bool, DatapathError> {
        self.kernel.world().ban(client, rule, until)
    }

    fn clients(&mut self, prefix: IpNet) -> Result<Vec<IpNet>, DatapathError> {
        Ok(self.kernel.world().clients(prefix))
    }

    fn forget_all(&mut self, clients: &[IpNet]) -> Result<Removed, DatapathError> {
        let mut world = self.kernel.world();
        if world.refusing_removal {
            return Err(anyhow!("remove from map SOURCES_V4: told to fail").into());
        }
        Ok(world.forget(clients))
    }

    fn charge(&mut self, client: IpNet, rule: usize, amount: u64) -> Result<(), DatapathError> {
        self.charge_limits(client, rule, amount, |limit| limit.condition.is_none())
    }

    fn charge_requests(&mut self, client: IpNet, rule: usize, amount: u64) -> Result<(), DatapathError> {
        self.charge_limits(client, rule, amount, Limit::is_guardable)
    }

    fn charge_limit(&mut self, client: IpNet, rule: usize, slot: u32, amount: u64) -> Result<(), DatapathError> {
        self.charge_limits(client, rule, amount, |limit| limit.slot == slot)
    }

    fn add_refused(
        &mut self,
        client: IpNet,
        slot: u32,
        bucket: BucketIndex,
        requests: u64,
    ) -> Result<bool, DatapathError> {
        let mut world = self.kernel.world();
        let Some(window) = world.packets.sources.windows.get_mut(&(client, slot)) else { return Ok(false) };
        let is_first = window.refused.is_first_in(bucket);
        window.refused = window.refused.and_more_in(bucket, requests);
        Ok(is_first)
    }

    fn set_multiplicity(&mut self, rule: usize, client: IpNet, requests: u16) -> Result<(), DatapathError> {
        self.kernel.world().calls.push(format!("charge turns of {client} by rule {rule} as {requests}"));
        Ok(())
    }

    fn tell_log_is_read(&mut self, rule: usize) -> Result<(), DatapathError> {
        self.kernel.world().calls.push(format!("the log of rule {rule} is read"));
        Ok(())
    }

    fn kept(&self) -> Vec<String> {
        let world = self.kernel.world();
        world.known.iter().filter(|(_, row)| row.origin == Origin::Kept).map(|(name, _)| name.clone()).collect()
    }

    fn catch_up(&mut self) -> Result<Option<std::time::Duration>, DatapathError> {
        Ok(self.kernel.world().catch_up())
    }

    fn lapse_at(&mut self, at: Option<Nanos>) -> Result<(), DatapathError> {
        self.kernel.world().lapse = at;
        Ok(())
    }

    fn lapse(&mut self) -> Result<Option<Nanos>, DatapathError> {
        Ok(self.kernel.world().lapse)
    }

    fn attach(&mut self, interface: &str) -> Result<Attachment, DatapathError> {
        let mut world = self.kernel.world();
        world.calls.push(format!("attach {interface}"));
        let Some(mode) = world.present.get(interface).copied() else {
            let present = world.present.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(DatapathError::NoSuchInterface { name: interface.to_owned(), present });
        };
        if world.refusing_attach.contains(interface) {
            let owner = "other (id 7)".to_owned();
            return Err(DatapathError::Occupied { interface: interface.to_owned(), owner });
        }
        let row = world.known.entry(interface.to_owned()).or_default();
        row.attached = true;
        row.origin = match row.origin {
            Origin::Anew => Origin::Anew,
            Origin::Kept | Origin::TakenOver => Origin::TakenOver,
        };
        Ok(mode.into())
    }

    fn detach(&mut self, interface: &str) -> Result<(), DatapathError> {
        let mut world = self.kernel.world();
        world.calls.push(format!("detach {interface}"));
        world.known.remove(interface);
        Ok(())
    }

    fn links(&mut self) -> Result<Vec<Link>, DatapathError> {
        Ok(self.kernel.world().links.clone())
    }

    fn secret(&self) -> [u64; 2] {
        self.kernel.world().secret
    }

    fn now(&mut self) -> Result<Nanos, DatapathError> {
        Ok(self.kernel.world().now)
    }

    fn read(&mut self) -> Result<Reading, DatapathError> {
        let world = self.kernel.world();
        if world.refusing_read {
            return Err(anyhow!("read map COUNTERS: told to fail").into());
        }
        let rules = || world.in_force().into_iter().flat_map(|policy| &policy.rules);
        let interfaces = world.known.iter().map(|(name, row)| InterfaceReading {
            name: name.clone(),
            attached: world.present.get(name).copied().filter(|_| row.attached).map(Attachment::Xdp),
            xdp_holder: None,
            unruled: tallies(&row.unruled),
            rules: rules().map(|rule| row.ruled.get(&rule.name).map(tallies).unwrap_or_default()).collect(),
        });
        Ok(Reading {
            now: world.now,
            interfaces: interfaces.collect(),
            unlisted: Tallies::default(),
            faults: Fault::ALL.iter().map(|fault| (*fault, world.faults.get(fault).copied().unwrap_or(0))).collect(),
            bans_begun: rules().map(|rule| world.bans_begun.get(&rule.name).copied().unwrap_or(0)).collect(),
            sources_capacity: world.sources_capacity(),
            admissions: vec![world.admission],
            not_cached: 0,
            events: world.packets.sources.events.counts(),
        })
    }

    fn events(&mut self, visit: &mut dyn FnMut(KernelEvent)) -> Result<bool, DatapathError> {
        let (part, more_wait) = self.kernel.world().events();
        part.into_iter().for_each(visit);
        Ok(more_wait)
    }

    fn steps(&mut self, visit: &mut dyn FnMut(KernelStep)) -> Result<bool, DatapathError> {
        let mut world = self.kernel.world();
        let steps = std::mem::take(&mut world.packets.sources.steps);
        let Some(policy) = world.in_force() else { return Ok(false) };
        steps.iter().filter_map(|step| KernelStep::of(step, policy)).for_each(visit);
        Ok(false)
    }

    fn admitted(&mut self, at: LimitAt, clients: &[IpNet]) -> Result<Vec<Vec<Cell>>, DatapathError> {
        self.kernel.world().admitted(at, clients)
    }

    fn tell_others(&mut self, at: LimitAt, told: &[Told]) -> Result<usize, DatapathError> {
        self.kernel.world().tell_others(at, told)
    }

    fn end_connections(
        &mut self,
        wanted: &mut dyn FnMut(&Connection) -> bool,
        most: usize,
    ) -> Result<Ended, DatapathError> {
        Ok(self.kernel.world().end_connections(wanted, most))
    }

    fn visit_sources(&mut self, visit: &mut dyn FnMut(SourceReading)) -> Result<(), DatapathError> {
        let world = self.kernel.world();
        for (&(prefix, slot), &window) in &world.packets.sources.windows {
            visit(world.reading(prefix, slot, window));
        }
        Ok(())
    }

    fn visit_part_of_sources(&mut self, from: SourcesPosition, visit: &mut dyn FnMut(SourceReading)) -> VisitedSources {
        Ok(self.kernel.world().visit_part(from, visit))
    }

    fn sources(&mut self, addresses: &[IpAddr]) -> Result<Vec<Vec<SourceReading>>, DatapathError> {
        let world = self.kernel.world();
        Ok(addresses.iter().map(|address| world.readings_of(*address)).collect())
    }

    fn abandon(&mut self) -> Result<(), DatapathError> {
        let mut world = self.kernel.world();
        world.known.retain(|_, row| row.origin != Origin::Anew);
        world.calls.push("abandon".to_owned());
        Ok(())
    }

    fn shutdown(&mut self, on_exit: OnExit) -> Result<(), DatapathError> {
        let mut world = self.kernel.world();
        let word = match on_exit {
            OnExit::Detach => {
                world.known.clear();
                "detach"
            }
            OnExit::Keep => "keep",
        };
        world.calls.push(format!("shutdown {word}"));
        Ok(())
    }
}
