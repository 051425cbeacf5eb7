//! The datapath that is the Linux kernel's: loads the program, writes and reads its maps, attaches it. Nothing else
//! names aya.

mod advance;
mod attach;
mod charge;
mod clients;
mod drop_cache;
mod events;
mod forget;
mod generation;
mod generator;
mod held;
mod options;
mod plain;
mod random;
mod shared;
mod size;
mod sockets;
mod state;
mod testing;
#[cfg(feature = "trace")]
mod trace;
mod trial;
mod windows;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::AsFd as _;

use anyhow::Context as _;
use aya::maps::{Array, Map, MapData, PerCpuArray};
use aya::programs::Xdp;
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use ipnet::IpNet;
use ratelimit_common::admission::CELLS_PER_SUMMARY;
use ratelimit_common::hash::HashKey;
use ratelimit_common::layout::{
    self, COUNTERS_PER_INTERFACE, Config as ConfigWords, Counters, Fault, GENERATIONS, INTERFACE_UNKNOWN,
    INTERFACES_MAX, LIMITS_MAX, NOT_CACHED, PREFIX_MISSES_PER_SET, ROWS_MAX, SETS_PER_CONN_CELL, SETS_PER_WORD, Source,
    SourceKeyV4, SourceKeyV6, SourceKeyV6Wide, Tally, counters_index, map,
};
use ratelimit_common::source::Family;
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::{Reason, Verdict};

pub use self::advance::{Advance, Steps};
use self::attach::Slot;
use self::clients::{Client, Lengths};
use self::generation::Tries;
pub use self::generator::{Flood, Generator, OpenConnection, OpenConnections, Order, Sources};
use self::held::Held;
pub use self::options::{Clock, Events, Options, Passed, pins_root};
use self::plain::Plain;
pub use self::size::ProgramSize;
pub use self::testing::{Bare, TestRun, object};
use self::windows::Windows;
use super::pins::Pins;
use super::{
    Ban, BanReading, BansPosition, Datapath, DatapathError, Forgotten, InterfaceReading, KernelEvent, Reading,
    SourceReading, Tallies, Trial, VisitedBans, XdpMode, alone, batch, interface,
};
use ratelimit_policy::config::{Config, OnExit, XdpModeChoice};
use ratelimit_policy::desired::{Policy, drop_cache_sets};

/// The program in the kernel, with its maps and links. Dropped, it detaches what is not pinned.
pub struct Kernel {
    ebpf: Ebpf,
    events: events::Ring,
    pins: Option<Pins>,
    xdp_mode: XdpModeChoice,
    clock: Clock,
    slots: [Option<Slot>; INTERFACES_MAX],
    /// What earlier runs left pinned and this one has not taken over.
    held: Vec<Held>,
    policy: Option<Policy>,
    /// The row of counters of each of the policy's rules.
    rows: Vec<u8>,
    /// Rows that none of them has, and that something was counted in, or still is while a trial goes back.
    orphans: BTreeSet<u8>,
    /// What was in orphans that other rules have taken since, by position.
    cleared: Vec<Tallies>,
    tries: Tries,
    wall_offset_ns: u64,
    /// Of the program's hashes.
    seed: HashKey,
    insertions_max: u32,
    /// Of each CPU.
    insertions_free: u32,
    ipv6_family: Family,
    /// Windows remembered of each family at most.
    windows_capacity: u32,
    /// Windows of each source.
    windows_per_source: u32,
}

/// The LRU frees entries in runs of up to 128 on each CPU, so a map holds fewer than its capacity by as much
/// (`LOCAL_FREE_TARGET`, kernel/bpf/bpf_lru_list.c, Linux 6.18); this is added to what is asked for.
const LRU_SLACK_PER_CPU: u32 = 2 * 128;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

/// A map that is not used must have some room all the same.
const ENTRIES_MIN: u32 = 1;

impl Kernel {
    /// What a daemon of this configuration drives: [`Kernel::load`], once it is certain that its interfaces can be
    /// had, so that a daemon that cannot start changes nothing.
    ///
    /// # Errors
    /// As [`Kernel::load`]; and where an interface is not there, or has another XDP program.
    pub fn open(config: &Config) -> Result<Self, DatapathError> {
        let options = Options::from(config);
        attach::look_at(&config.interfaces, options.pins.as_deref())?;
        #[cfg_attr(not(feature = "trace"), expect(unused_mut, reason = "the log is taken out of it"))]
        let mut kernel = Self::load(&options)?;
        kernel.look_at_modes(&config.interfaces)?;
        #[cfg(feature = "trace")]
        trace::forward(&mut kernel.ebpf)?;
        Ok(kernel)
    }

    /// Loads the program and makes its maps, or takes over pinned ones. Nothing is attached, and what pinned links
    /// enforce goes on, until [`Datapath::attach`].
    ///
    /// # Errors
    /// Where the kernel cannot, privileges are missing, or pinned maps are not of this layout.
    pub fn load(options: &Options) -> Result<Self, DatapathError> {
        let pins = options.pins.as_deref().map(Pins::open).transpose()?;
        let mut ebpf = match Self::load_object(options, pins.as_ref()) {
            Ok(ebpf) => ebpf,
            Err(error) => {
                // Maps without a link enforce nothing, and whoever finds them would think otherwise.
                if let Some(pins) = pins.filter(|pins| pins.interfaces().is_empty())
                    && let Err(second) = pins.remove_all()
                {
                    tracing::warn!("after a failed start: {second}");
                }
                return Err(error);
            }
        };
        let mut kernel = Self {
            events: events::Ring::take(&mut ebpf)?,
            ebpf,
            pins,
            xdp_mode: options.xdp_mode,
            clock: options.clock,
            slots: Default::default(),
            held: Vec::new(),
            policy: None,
            rows: Vec::new(),
            orphans: BTreeSet::new(),
            cleared: vec![Tallies::default(); INTERFACE_UNKNOWN + 1],
            tries: Tries::default(),
            wall_offset_ns: 0,
            seed: HashKey::default(),
            insertions_max: options.insertions_max,
            insertions_free: 0,
            ipv6_family: options.ipv6_family,
            windows_capacity: 0,
            windows_per_source: options.windows_per_source.max(1),
        };
        kernel.take_over(options, lru_slack())?;
        kernel.seed_sampling()?;
        Ok(kernel)
    }

    fn load_object(options: &Options, pins: Option<&Pins>) -> Result<Ebpf, DatapathError> {
        let windows = options.max_sources.saturating_mul(options.windows_per_source.max(1));
        let entries = windows.saturating_add(lru_slack());
        let (v6, v6_wide) = match options.ipv6_family {
            Family::V4 | Family::V6 => (entries, ENTRIES_MIN),
            Family::V6Wide => (ENTRIES_MIN, entries),
        };
        let lines = drop_cache_sets(windows);
        let clock_is_injected = u8::from(options.clock == Clock::Injected);
        let passed_action = options.passed.action();
        let sends_events = u8::from(options.events == Events::On);
        let socket_fields = Plain(sockets::fields());
        // Each try with a log that has to be longer than the last one's verifies the program anew: with all of its log
        // that takes minutes on a slow machine, before the refusal is heard of.
        let wanted =
            if tracing::enabled!(tracing::Level::DEBUG) { VerifierLogLevel::DEBUG } else { VerifierLogLevel::DISABLE };
        let mut loader = EbpfLoader::new();
        loader
            .verifier_log_level(wanted | VerifierLogLevel::STATS)
            .map_max_entries(map::SOURCES_V4, entries)
            .map_max_entries(map::SOURCES_V6, v6)
            .map_max_entries(map::SOURCES_V6_WIDE, v6_wide)
            .map_max_entries(map::DROP_CACHE, lines)
            .map_max_entries(map::DROP_CAUSES, lines)
            .map_max_entries(map::DROP_SUMMARY, lines / SETS_PER_WORD)
            .map_max_entries(map::KNOWN_FILTER, lines)
            .map_max_entries(map::KNOWN_SUMMARY, lines / CELLS_PER_SUMMARY)
            .map_max_entries(map::CONN_FILTER, lines / SETS_PER_CONN_CELL)
            .map_max_entries(map::PREFIX_MISSES, lines * PREFIX_MISSES_PER_SET)
            .override_global(layout::CLOCK_IS_INJECTED, &clock_is_injected, true)
            .override_global(layout::PASSED_ACTION, &passed_action, true)
            .override_global(layout::SENDS_EVENTS, &sends_events, true)
            .override_global(layout::SOCKET_FIELDS, &socket_fields, true);
        if let Some(pins) = pins {
            for expected in state::EXPECTED {
                state::check_pin(pins, expected)?;
                loader.map_pin_path(expected.name, pins.map(expected.name));
            }
        }
        let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/ratelimit-ebpf"));
        let mut ebpf = loader.load(object).map_err(|error| state::load_error("make the maps", error.into()))?;
        let program: &mut Xdp = program(&mut ebpf)?;
        program.load().map_err(|error| state::load_error("load the program", error.into()))?;
        if let Err(error) = charge::load(&mut ebpf) {
            tracing::warn!("no application can charge a source: {:#}", anyhow::Error::from(error));
        }
        Ok(ebpf)
    }

    /// Reads what earlier runs left: the time base, which interface has which row, how many sources there may be.
    fn take_over(&mut self, options: &Options, slack: u32) -> Result<(), DatapathError> {
        let known = self.config_words()?;
        self.wall_offset_ns = match (self.clock, known.wall_offset_ns) {
            (Clock::Injected, _) => 0,
            (Clock::Kernel, 0) => state::wall_offset_ns()?,
            (Clock::Kernel, pinned) => pinned,
        };
        let is_new = known.seed == HashKey::default();
        self.seed = if is_new { HashKey(random::words()?) } else { known.seed };
        self.insertions_free = if is_new { drop_cache::insertions_free(options.insertions_free) } else { 0 };
        self.take_rows(&known)?;
        self.take_counters(&known)?;
        self.windows_capacity = self.map(map::SOURCES_V4)?.max_entries().saturating_sub(slack);
        let wide = self.map(map::SOURCES_V6_WIDE)?.max_entries() > ENTRIES_MIN;
        if wide != (self.ipv6_family == Family::V6Wide) {
            return Err(DatapathError::Pins {
                path: self.pins.as_ref().map_or_else(String::new, |pins| pins.dir().display().to_string()),
                why: "its IPv6 sources are kept by prefixes of another length; `ratelimitd detach`, then start again"
                    .into(),
            });
        }
        if self.sources_capacity() != u64::from(options.max_sources) {
            tracing::warn!(
                "the pinned state remembers {} sources of each family, not {}: `ratelimitd detach` forgets it, then start again",
                self.sources_capacity(),
                options.max_sources
            );
        }
        Ok(())
    }

    /// Sources remembered of each family at most.
    fn sources_capacity(&self) -> u64 {
        u64::from(self.windows_capacity / self.windows_per_source)
    }

    /// Lists the interfaces that have a row, in what packets read, now or after a trial. Every other word is written
    /// as it was. While the index of an interface is written, its packets may count as unlisted: none where it is
    /// listed before it is attached.
    fn write_interfaces(&mut self) -> Result<(), DatapathError> {
        let (active, interfaces) = (self.active_generation()?, self.listed());
        let words = self.config_words()?;
        self.write_config(active, ConfigWords { interfaces, ..words })?;
        if words.until_ns == 0 {
            return Ok(());
        }
        // Packets may go back to the other one.
        let before = (active + 1) % GENERATIONS;
        let words = self.config_words_of(before)?;
        self.write_config(before, ConfigWords { interfaces, ..words })
    }

    /// Which rows rules have, and which have counts of rules that are no more.
    fn take_counters(&mut self, known: &ConfigWords) -> Result<(), DatapathError> {
        self.rows = known.rules[..rules_len(known)].iter().map(|rule| rule.row).collect();
        let rows = (0..ROWS_MAX).filter_map(|row| u8::try_from(row).ok()).filter(|row| !self.rows.contains(row));
        for row in rows.collect::<Vec<_>>() {
            let mut is_counted = false;
            for position in 0..=INTERFACE_UNKNOWN {
                is_counted |= self.tallies(position, row)?.0.iter().any(|(_, tally)| tally.packets != 0);
            }
            if is_counted {
                self.orphans.insert(row);
            }
        }
        Ok(())
    }

    /// The index of the interface that has each row, 0 where none has it.
    fn listed(&self) -> [u32; INTERFACES_MAX] {
        self.slots.each_ref().map(|slot| slot.as_ref().map_or(0, Slot::index))
    }

    fn active_generation(&mut self) -> Result<u32, DatapathError> {
        Ok(self.active()?.generation())
    }

    /// What was applied last, be it on trial or its trial over.
    fn config_words(&mut self) -> Result<ConfigWords, DatapathError> {
        let generation = self.active_generation()?;
        self.config_words_of(generation)
    }

    fn config_words_of(&mut self, generation: u32) -> Result<ConfigWords, DatapathError> {
        let words = self.array::<Plain<ConfigWords>>(map::CONFIG)?.get(&generation, 0);
        Ok(words.with_context(|| format!("read {}", map::CONFIG))?.0)
    }

    /// Sets the counters of one interface to 0.
    fn clear_counters(&mut self, position: usize) -> Result<(), DatapathError> {
        self.cleared[position] = Tallies::default();
        let rows = (0..COUNTERS_PER_INTERFACE).map(|row| u8::try_from(row).unwrap_or(Verdict::NO_RULE));
        self.zero(rows.map(|row| counters_index(position, row)))
    }

    /// Sets the counters of one rule to 0, on every interface, and keeps in mind what they were.
    fn clear_row(&mut self, row: u8) -> Result<(), DatapathError> {
        let were =
            (0..=INTERFACE_UNKNOWN).map(|position| self.tallies(position, row)).collect::<Result<Vec<_>, _>>()?;
        self.zero((0..=INTERFACE_UNKNOWN).map(|position| counters_index(position, row)))?;
        self.clear_bans_begun(row)?;
        self.orphans.remove(&row);
        for (cleared, were) in self.cleared.iter_mut().zip(&were) {
            cleared.add(were);
        }
        Ok(())
    }

    /// Counters of packets that no rule of the policy has: what no rule judged, and what rules have judged that are no
    /// more.
    fn unruled(&self, position: usize) -> Result<Tallies, DatapathError> {
        let mut sum = self.tallies(position, Verdict::NO_RULE)?;
        for &row in &self.orphans {
            sum.add(&self.tallies(position, row)?);
        }
        sum.add(&self.cleared[position]);
        Ok(sum)
    }

    fn zero(&mut self, indexes: impl Iterator<Item = u32>) -> Result<(), DatapathError> {
        let mut counters: PerCpuArray<_, Plain<Counters>> =
            PerCpuArray::try_from(map_mut(&mut self.ebpf, map::COUNTERS)?).context("open COUNTERS")?;
        let zeros =
            vec![Plain(Counters::default()); aya::util::nr_cpus().map_err(|(_, error)| error).context("count CPUs")?];
        for index in indexes {
            let values = aya::maps::PerCpuValues::try_from(zeros.clone()).context("a value for each CPU")?;
            counters.set(index, values, 0).context("clear COUNTERS")?;
        }
        Ok(())
    }

    fn tallies(&self, position: usize, rule: u8) -> Result<Tallies, DatapathError> {
        let counters: PerCpuArray<_, Plain<Counters>> =
            PerCpuArray::try_from(map_ref(&self.ebpf, map::COUNTERS)?).context("open COUNTERS")?;
        let row = counters.get(&counters_index(position, rule), 0).context("read COUNTERS")?;
        let sum = |reason: Reason| {
            row.iter().fold(Tally::default(), |sum, Plain(cpu)| {
                let tally = cpu.by_reason[reason as usize];
                Tally { packets: sum.packets.wrapping_add(tally.packets), bytes: sum.bytes.wrapping_add(tally.bytes) }
            })
        };
        Ok(Tallies(Reason::ALL.iter().map(|&reason| (reason, sum(reason))).collect()))
    }

    fn faults(&self) -> Result<Vec<(Fault, u64)>, DatapathError> {
        Fault::ALL.iter().map(|&fault| Ok((fault, self.fault_cell(fault as u32)?))).collect()
    }

    /// A cell of [`map::FAULTS`], of all CPUs.
    fn fault_cell(&self, cell: u32) -> Result<u64, DatapathError> {
        let faults: PerCpuArray<_, u64> =
            PerCpuArray::try_from(map_ref(&self.ebpf, map::FAULTS)?).context("open FAULTS")?;
        let cpus = faults.get(&cell, 0).context("read FAULTS")?;
        Ok(cpus.iter().fold(0, |sum: u64, cpu| sum.wrapping_add(*cpu)))
    }

    fn read_clock(&mut self) -> Result<Nanos, DatapathError> {
        match self.clock {
            Clock::Kernel => Ok(Nanos(state::monotonic_ns()?.wrapping_add(self.wall_offset_ns))),
            Clock::Injected => {
                Ok(Nanos(self.array::<u64>(map::INJECTED_NOW)?.get(&0, 0).context("read INJECTED_NOW")?))
            }
        }
    }

    fn array<V: aya::Pod>(&mut self, name: &'static str) -> Result<Array<&mut MapData, V>, DatapathError> {
        Ok(Array::try_from(map_mut(&mut self.ebpf, name)?).with_context(|| format!("open {name}"))?)
    }

    fn map(&self, name: &'static str) -> Result<aya::maps::MapInfo, DatapathError> {
        Ok(state::data(map_ref(&self.ebpf, name)?)?.info().with_context(|| format!("look at {name}"))?)
    }
}

impl Datapath for Kernel {
    fn apply(&mut self, policy: &Policy) -> Result<(), DatapathError> {
        self.write_generation(policy, None)?;
        self.windows_per_source = policy.windows_per_source();
        self.policy = Some(policy.clone());
        Ok(())
    }

    fn apply_until(&mut self, policy: &Policy, until: Nanos) -> Result<(), DatapathError> {
        self.try_out(policy, until)?;
        self.windows_per_source = policy.windows_per_source();
        self.policy = Some(policy.clone());
        Ok(())
    }

    fn apply_access(&mut self, tried: &Policy, before: &Policy) -> Result<(), DatapathError> {
        self.write_access(tried, before)?;
        self.policy = Some(tried.clone());
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

    fn clients(&mut self, prefix: IpNet) -> Result<Vec<IpNet>, DatapathError> {
        self.clients_within(prefix)
    }

    fn forget_all(&mut self, clients: &[IpNet]) -> Result<Forgotten, DatapathError> {
        self.forget_clients(clients)
    }

    fn charge(&mut self, client: IpNet, rule: usize, amount: u64) -> Result<(), DatapathError> {
        self.charge_client(client, rule, amount)
    }

    fn kept(&self) -> Vec<String> {
        self.kept_interfaces()
    }

    fn alone_for(&self) -> Option<std::time::Duration> {
        let pins = self.pins.as_ref()?;
        alone::since(&pins.map(map::ACTIVE), &pins.map(map::CONFIG))
    }

    fn attach(&mut self, interface: &str) -> Result<XdpMode, DatapathError> {
        self.attach_interface(interface)
    }

    fn detach(&mut self, interface: &str) -> Result<(), DatapathError> {
        self.detach_interface(interface)
    }

    fn now(&mut self) -> Result<Nanos, DatapathError> {
        self.read_clock()
    }

    fn read(&mut self) -> Result<Reading, DatapathError> {
        let present = interface::all().context("list the network interfaces")?;
        let ours = self.program_id()?;
        let mut interfaces = Vec::new();
        for (position, slot) in self.slots.iter().enumerate() {
            let Some(slot) = slot else { continue };
            interfaces.push(InterfaceReading {
                name: slot.name().to_owned(),
                attached: slot.attached(&present, ours),
                unruled: self.unruled(position)?,
                rules: self.rows.iter().map(|&row| self.tallies(position, row)).collect::<Result<_, _>>()?,
            });
        }
        interfaces.sort_by(|a, b| a.name.cmp(&b.name));
        let mut unlisted = self.unruled(INTERFACE_UNKNOWN)?;
        for &row in &self.rows {
            unlisted.add(&self.tallies(INTERFACE_UNKNOWN, row)?);
        }
        Ok(Reading {
            now: self.read_clock()?,
            interfaces,
            unlisted,
            faults: self.faults()?,
            bans_begun: self.rows.iter().map(|&row| self.bans_begun(row)).collect::<Result<_, _>>()?,
            sources_capacity: self.sources_capacity(),
            admissions: self.admissions()?,
            not_cached: self.fault_cell(NOT_CACHED)?,
            events: self.event_counts()?,
        })
    }

    fn events(&mut self, visit: &mut dyn FnMut(KernelEvent)) -> Result<bool, DatapathError> {
        self.visit_events(visit)
    }

    fn visit_sources(&mut self, visit: &mut dyn FnMut(SourceReading)) -> Result<(), DatapathError> {
        let words = self.config_words()?;
        if rules_len(&words) == 0 {
            return Ok(());
        }
        let Lengths { ipv4, ipv6 } = Lengths::of(&words);
        let (cached_drops, family, windows) = (self.cached_drops()?, self.ipv6_family, Windows::of(&words));
        let is_cache_empty = cached_drops.is_empty();
        let (v6_name, v6_len) = match self.ipv6_family {
            Family::V4 | Family::V6 => (map::SOURCES_V6, size_of::<SourceKeyV6>()),
            Family::V6Wide => (map::SOURCES_V6_WIDE, size_of::<SourceKeyV6Wide>()),
        };
        for (name, key_len) in [(map::SOURCES_V4, size_of::<SourceKeyV4>()), (v6_name, v6_len)] {
            let data = state::data(map_ref(&self.ebpf, name)?)?;
            let entries = self.map(name)?.max_entries();
            batch::visit(data.fd().as_fd(), key_len, size_of::<Source>(), entries, |key, value| {
                if let Some(mut reading) = state::source_reading(key, value, ipv4, ipv6) {
                    if !is_cache_empty {
                        let cached_drops = cached_drops.of(Client::of(reading.prefix, family), reading.slot);
                        reading.window.refused = reading.window.refused.and(cached_drops.dropped);
                        reading.refused_until = cached_drops.until;
                    }
                    if let Some((slot, is_verified)) = windows.limit(reading.slot) {
                        visit(SourceReading { slot, is_verified, ..reading });
                    }
                }
            })
            .with_context(|| format!("read {name}"))?;
        }
        Ok(())
    }

    fn sources(&mut self, addresses: &[IpAddr]) -> Result<Vec<Vec<SourceReading>>, DatapathError> {
        self.windows_of(addresses)
    }

    fn shutdown(&mut self, on_exit: OnExit) -> Result<(), DatapathError> {
        match on_exit {
            OnExit::Detach => {
                self.slots = Default::default();
                self.pins.as_ref().map_or(Ok(()), Pins::remove_all)?;
            }
            OnExit::Keep => {}
        }
        Ok(())
    }

    fn abandon(&mut self) -> Result<(), DatapathError> {
        for name in self.attached_anew() {
            self.detach_interface(&name)?;
        }
        match &self.pins {
            Some(pins) if pins.interfaces().is_empty() => Ok(pins.remove_all()?),
            Some(_) => self.write_interfaces(),
            None => Ok(()),
        }
    }
}

/// A rule's limits and shadow limits.
fn limits_of(rule: &layout::Rule) -> impl Iterator<Item = &layout::Limit> {
    let (held, beside) = rule.limits.split_at(LIMITS_MAX);
    held.iter().take(rule.limits_len.into()).chain(beside.iter().take(rule.shadows_len.into()))
}

/// How many rules a configuration has.
fn rules_len(words: &ConfigWords) -> usize {
    words.rules.iter().take_while(|rule| rule.limits_len != 0).count()
}

fn lru_slack() -> u32 {
    LRU_SLACK_PER_CPU * u32::try_from(aya::util::nr_cpus().unwrap_or(1)).unwrap_or(1)
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
