//! The datapath of the Linux kernel: loads and attaches the program, and reads and writes its maps. Apart from this
//! module, nothing names aya.

mod answers;
mod attach;
mod charge;
mod classifier;
mod clients;
mod counters;
mod counts;
mod drop_cache;
mod earlier;
mod events;
#[cfg(any(test, feature = "fixture"))]
mod fixture;
mod fleet;
mod forget;
mod generation;
mod groups;
mod held;
mod left;
mod load;
mod multiplicity;
mod options;
mod place;
mod plain;
mod probe;
mod random;
mod ring;
mod shared;
mod sockets;
mod state;
mod time;
#[cfg(feature = "trace")]
mod trace;
mod trial;
mod tries;
mod units;
mod visit;
mod windows;

use std::net::IpAddr;

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::{Array, Map, MapData};
use aya::programs::Xdp;
use ipnet::IpNet;
use ratelimit_common::layout::{
    self, Config as ConfigWords, Event, GENERATIONS, LIMITS_MAX, LOGGED_REQUESTS, NOT_CACHED, SourceKeyV6,
    SourceKeyV6Wide, Step, Unit, map,
};
use ratelimit_common::source::Family;
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_common::window::Cell;
use ratelimit_crash::{Point, reach};

use self::attach::{Links, Slot};
use self::classifier::Classifiers;
pub use self::classifier::is_there as has_tcx;
use self::counters::Rows;
#[cfg(any(test, feature = "fixture"))]
pub use self::fixture::{
    Advance, Bare, Beside, Contents, Entries, Flood, Generator, Link, Merged, OpenConnection, OpenConnections, Order,
    ProgramSize, Sources, Steps, TestRun, classifier_object, dump, held_maps, linked, object, read_hostile, restore,
};
use self::generation::Generations;
pub(crate) use self::left::lapse;
pub use self::left::read_left;
pub use self::options::{Clock, Events, Options, Passed, pins_root};
use self::plain::Plain;
pub use self::probe::{Refusal, Verified, load_alone};
use self::ring::Ring;
pub(crate) use self::state::errno as errno_of;
use self::time::Time;
use super::path;
use super::pins::Pins;
use super::{
    Attachment, Ban, BanReading, BansPosition, Connection, Datapath, DatapathError, Ended, InterfaceReading,
    KernelEvent, KernelStep, LimitAt, Reading, Removed, SourceReading, SourcesPosition, Told, Trial, VisitedBans,
    VisitedSources, alone, connections, interface,
};
use ratelimit_policy::config::OnExit;
use ratelimit_policy::desired::Policy;

/// The program in the kernel, with its maps and links. Dropping the value detaches everything that is not pinned.
pub struct Kernel {
    ebpf: Ebpf,
    classifiers: Classifiers,
    events: Ring<Event>,
    steps: Ring<Step>,
    pins: Option<Pins>,
    /// Unfinished move from an earlier layout.
    moving: Option<earlier::Move>,
    links: Links,
    time: Time,
    rows: Rows,
    generations: Generations,
    sources: SourceMaps,
}

/// Parameters of the source maps, as they were created.
#[derive(Debug)]
struct SourceMaps {
    ipv6_family: Family,
    /// Maximum number of windows of each address family.
    windows_max: u32,
    /// Number of windows that one source has.
    windows_per_source: u32,
}

impl SourceMaps {
    /// Returns the maximum number of tracked sources of each address family.
    fn capacity(&self) -> u64 {
        u64::from(self.windows_max / self.windows_per_source.max(1))
    }

    /// Returns the name and the key length in bytes of the map of IPv6 sources.
    const fn ipv6_map(&self) -> (&'static str, usize) {
        match self.ipv6_family {
            Family::V4 | Family::V6 => (map::SOURCES_V6, size_of::<SourceKeyV6>()),
            Family::V6Wide => (map::SOURCES_V6_WIDE, size_of::<SourceKeyV6Wide>()),
        }
    }
}

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

impl Kernel {
    /// Writes the interfaces that have a row, and whether SYNs are answered on them, to the configuration that packets
    /// read. During a trial, also writes them to the configuration of a rollback. All other words stay the same. While
    /// an index is being written, packets of that interface may count as unlisted. Listing an interface before it is
    /// attached avoids that.
    fn write_interfaces(&mut self) -> Result<(), DatapathError> {
        let (active, interfaces) = (self.active_generation()?, self.links.listed());
        let mut words = self.config_words()?;
        self.links.let_answer(&mut words.rules);
        self.write_config(active, ConfigWords { interfaces, ..words })?;
        if words.until_ns == 0 {
            return Ok(());
        }
        // The trial may roll back to the other generation.
        let before = (active + 1) % GENERATIONS;
        let mut words = self.config_words_of(before)?;
        self.links.let_answer(&mut words.rules);
        self.write_config(before, ConfigWords { interfaces, ..words })
    }

    fn active_generation(&mut self) -> Result<u32, DatapathError> {
        Ok(self.active()?.generation())
    }

    /// Returns the configuration applied last, even if it is on trial or its trial is over.
    fn config_words(&mut self) -> Result<ConfigWords, DatapathError> {
        let generation = self.active_generation()?;
        self.config_words_of(generation)
    }

    fn config_words_of(&mut self, generation: u32) -> Result<ConfigWords, DatapathError> {
        let words = self.array::<Plain<ConfigWords>>(map::CONFIG)?.get(&generation, 0);
        Ok(words.with_context(|| format!("read {}", map::CONFIG))?.0)
    }

    fn read_clock(&self) -> Result<Nanos, DatapathError> {
        self.time.now(&self.ebpf)
    }

    fn array<V: aya::Pod>(&mut self, name: &'static str) -> Result<Array<&mut MapData, V>, DatapathError> {
        Ok(Array::try_from(map_mut(&mut self.ebpf, name)?).with_context(|| format!("open {name}"))?)
    }

    fn map(&self, name: &'static str) -> Result<aya::maps::MapInfo, DatapathError> {
        Ok(state::data(map_ref(&self.ebpf, name)?)?.info().with_context(|| format!("inspect {name}"))?)
    }
}

impl Datapath for Kernel {
    fn apply(&mut self, policy: &Policy) -> Result<(), DatapathError> {
        self.write_generation(policy, None)?;
        self.sources.windows_per_source = policy.windows_per_source();
        self.generations.policy = Some(policy.clone());
        Ok(())
    }

    fn apply_until(&mut self, policy: &Policy, until: Nanos) -> Result<(), DatapathError> {
        self.try_out(policy, until)?;
        self.sources.windows_per_source = policy.windows_per_source();
        self.generations.policy = Some(policy.clone());
        Ok(())
    }

    fn apply_access(&mut self, tried: &Policy, before: &Policy) -> Result<(), DatapathError> {
        self.write_access(tried, before)?;
        self.generations.policy = Some(tried.clone());
        Ok(())
    }

    fn confirm(&mut self) -> Result<bool, DatapathError> {
        self.confirm_trial()
    }

    fn trial(&mut self) -> Result<Trial, DatapathError> {
        self.trial_state()
    }

    fn bans(&mut self) -> Result<Vec<Ban>, DatapathError> {
        self.bans_in_force()
    }

    fn visit_bans(&mut self, from: BansPosition, visit: &mut dyn FnMut(BanReading)) -> VisitedBans {
        self.visit_part_of_bans(from, visit)
    }

    fn bans_of(&mut self, client: IpNet) -> Result<Vec<Ban>, DatapathError> {
        self.bans_of_client(client)
    }

    fn tidy_bans(&mut self) -> Result<usize, DatapathError> {
        self.remove_stale_bans()
    }

    fn lift_bans(&mut self, prefix: IpNet) -> Result<Vec<Ban>, DatapathError> {
        self.lift(prefix)
    }

    fn ban(&mut self, client: IpNet, rule: usize, until: Nanos) -> Result<bool, DatapathError> {
        self.ban_until(client, rule, until)
    }

    fn clients(&mut self, prefix: IpNet) -> Result<Vec<IpNet>, DatapathError> {
        self.clients_within(prefix)
    }

    fn forget_all(&mut self, clients: &[IpNet]) -> Result<Removed, DatapathError> {
        self.forget_clients(clients)
    }

    fn charge(&mut self, client: IpNet, rule: usize, amount: u64) -> Result<(), DatapathError> {
        self.charge_client(client, rule, amount, |limit| limit.unit != LOGGED_REQUESTS)
    }

    fn charge_requests(&mut self, client: IpNet, rule: usize, amount: u64) -> Result<(), DatapathError> {
        self.charge_client(client, rule, amount, |limit| limit.unit == Unit::Requests as u8)
    }

    fn charge_limit(&mut self, client: IpNet, rule: usize, slot: u32, amount: u64) -> Result<(), DatapathError> {
        self.charge_client(client, rule, amount, |limit| limit.slot == slot)
    }

    fn add_refused(
        &mut self,
        client: IpNet,
        slot: u32,
        bucket: BucketIndex,
        requests: u64,
    ) -> Result<bool, DatapathError> {
        self.add_refused_to(clients::Client::of(client, self.sources.ipv6_family), slot, bucket, requests)
    }

    fn set_multiplicity(&mut self, rule: usize, client: IpNet, requests: u16) -> Result<(), DatapathError> {
        self.write_multiplicity(rule, Some((client, requests)))
    }

    fn tell_log_is_read(&mut self, rule: usize) -> Result<(), DatapathError> {
        self.write_multiplicity(rule, None)
    }

    fn kept(&self) -> Vec<String> {
        self.links.kept()
    }

    fn alone_for(&self) -> Option<std::time::Duration> {
        let pins = self.pins.as_ref()?;
        let of = |name| pins.earlier().map_or_else(|| pins.map(name), |earlier| earlier.map(name));
        alone::since(&of(map::ACTIVE), &of(map::CONFIG))
    }

    fn is_unread(&self) -> bool {
        self.moving.as_ref().is_some_and(earlier::Move::is_unread)
    }

    fn take_over_earlier(&mut self) -> Result<(), DatapathError> {
        self.finish_move()
    }

    fn catch_up(&mut self) -> Result<Option<std::time::Duration>, DatapathError> {
        if let Trial::Running(_) = self.trial_state()? { Ok(None) } else { self.time.catch_up() }
    }

    fn lapse_at(&mut self, at: Option<Nanos>) -> Result<(), DatapathError> {
        self.set_lapse(at)
    }

    fn lapse(&mut self) -> Result<Option<Nanos>, DatapathError> {
        let now = self.read_clock()?;
        Ok(self.active()?.lapse(now))
    }

    fn attach(&mut self, interface: &str) -> Result<Attachment, DatapathError> {
        self.attach_interface(interface)
    }

    fn detach(&mut self, interface: &str) -> Result<(), DatapathError> {
        self.detach_interface(interface)
    }

    fn prepare_for_later(&mut self, interfaces: &[String], meanwhile: &mut dyn FnMut(&mut Self)) {
        self.load_for_later(interfaces, meanwhile);
    }

    fn links(&mut self) -> Result<Vec<path::Link>, DatapathError> {
        Ok(interface::links().context("list the network interfaces")?)
    }

    fn secret(&self) -> [u64; 2] {
        self.generations.secret()
    }

    fn now(&mut self) -> Result<Nanos, DatapathError> {
        self.read_clock()
    }

    fn read(&mut self) -> Result<Reading, DatapathError> {
        if let Some(pins) = self.pins.as_ref().filter(|_| self.links.slots().iter().flatten().any(Slot::is_linked)) {
            alone::touch(&pins.map(map::ACTIVE));
        }
        let present = interface::all().context("list the network interfaces")?;
        if self.links.look_again(&present) {
            self.write_interfaces()?;
        }
        let mut interfaces = Vec::new();
        for (position, slot) in self.links.slots().iter().enumerate() {
            let Some(slot) = slot else { continue };
            let attached = slot.attached(&present);
            interfaces.push(InterfaceReading {
                name: slot.name().to_owned(),
                attached,
                xdp_holder: attached.and_then(|attached| place::holder_beside(attached, slot.index(), &present)),
                unruled: self.rows.unruled(&self.ebpf, position)?,
                rules: self.rows.ruled(&self.ebpf, position)?,
            });
        }
        interfaces.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Reading {
            now: self.read_clock()?,
            interfaces,
            unlisted: self.rows.unlisted(&self.ebpf)?,
            faults: counters::faults(&self.ebpf)?,
            bans_begun: self.rows.bans_begun(&self.ebpf)?,
            sources_capacity: self.sources.capacity(),
            admissions: self.admissions()?,
            not_cached: counters::fault_cell(&self.ebpf, NOT_CACHED)?,
            events: self.event_counts()?,
        })
    }

    fn events(&mut self, visit: &mut dyn FnMut(KernelEvent)) -> Result<bool, DatapathError> {
        self.visit_events(visit)
    }

    fn steps(&mut self, visit: &mut dyn FnMut(KernelStep)) -> Result<bool, DatapathError> {
        self.visit_steps(visit)
    }

    fn admitted(&mut self, at: LimitAt, clients: &[IpNet]) -> Result<Vec<Vec<Cell>>, DatapathError> {
        self.admitted_of(at, clients)
    }

    fn tell_others(&mut self, at: LimitAt, told: &[Told]) -> Result<usize, DatapathError> {
        self.write_others(at, told)
    }

    fn end_connections(
        &mut self,
        wanted: &mut dyn FnMut(&Connection) -> bool,
        most: usize,
    ) -> Result<Ended, DatapathError> {
        connections::end(wanted, most).map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => DatapathError::Unsupported {
                what: "end connections".into(),
                why: "this kernel was built without INET_DIAG_DESTROY; their packets are dropped anyway".into(),
            },
            Some(_) | None => anyhow::Error::new(error).context("end connections").into(),
        })
    }

    fn visit_sources(&mut self, visit: &mut dyn FnMut(SourceReading)) -> Result<(), DatapathError> {
        self.visit_windows(visit)
    }

    fn visit_part_of_sources(&mut self, from: SourcesPosition, visit: &mut dyn FnMut(SourceReading)) -> VisitedSources {
        self.visit_part_of_windows(from, visit)
    }

    fn sources(&mut self, addresses: &[IpAddr]) -> Result<Vec<Vec<SourceReading>>, DatapathError> {
        self.windows_of(addresses)
    }

    fn shutdown(&mut self, on_exit: OnExit) -> Result<(), DatapathError> {
        match on_exit {
            OnExit::Detach => {
                self.links.let_go();
                reach(Point::EndLetGo);
                self.pins.as_ref().map_or(Ok(()), Pins::remove_all)?;
            }
            OnExit::Keep => {}
        }
        Ok(())
    }

    fn abandon(&mut self) -> Result<(), DatapathError> {
        for name in self.links.attached_anew() {
            self.detach_interface(&name)?;
        }
        match &self.pins {
            Some(pins) if pins.interfaces().is_empty() && self.is_earlier_in_force() => Ok(pins.remove_own()?),
            Some(pins) if pins.interfaces().is_empty() && self.moving.is_none() => Ok(pins.remove_all()?),
            Some(_) => self.write_interfaces(),
            None => Ok(()),
        }
    }
}

/// Returns the limits and shadow limits of a rule.
fn limits_of(rule: &layout::Rule) -> impl Iterator<Item = &layout::Limit> {
    let (held, beside) = rule.limits.split_at(LIMITS_MAX);
    held.iter().take(rule.limits_len.into()).chain(beside.iter().take(rule.shadows_len.into()))
}

/// Returns the number of rules in a configuration.
fn rules_len(words: &ConfigWords) -> usize {
    words.rules.iter().take_while(|rule| rule.limits_len != 0).count()
}

fn program(ebpf: &mut Ebpf) -> Result<&mut Xdp, DatapathError> {
    let program = ebpf.program_mut(layout::PROGRAM).with_context(|| format!("find program {}", layout::PROGRAM))?;
    Ok(program.try_into().context("the program is no XDP program")?)
}

fn map_ref<'a>(ebpf: &'a Ebpf, name: &'static str) -> Result<&'a Map, DatapathError> {
    Ok(ebpf.map(name).with_context(|| format!("the object has no map {name}"))?)
}

fn map_mut<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut Map, DatapathError> {
    Ok(ebpf.map_mut(name).with_context(|| format!("the object has no map {name}"))?)
}
