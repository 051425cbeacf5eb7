//! Loads the program, and creates its maps or takes over pinned maps of earlier runs.

use aya::programs::Xdp;
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use ratelimit_common::admission::CELLS_PER_SUMMARY;
use ratelimit_common::layout::{self, PREFIX_MISSES_PER_SET, SETS_PER_CONN_CELL, SETS_PER_WORD, map};
use ratelimit_common::source::Family;
use ratelimit_crash::{Point, reach};

use super::attach::{self, Links};
use super::classifier::Classifiers;
use super::counters::Rows;
use super::earlier::Move;
use super::generation::Generations;
use super::plain::Plain;
use super::ring::Ring;
use super::time::Time;
#[cfg(feature = "trace")]
use super::trace;
use super::{Clock, Events, Kernel, Options, SourceMaps, charge, program, sockets, state};
use crate::pins::Pins;
use crate::{Absent, DatapathError, object};
use ratelimit_policy::config::Config;
use ratelimit_policy::desired::drop_cache_sets;

/// Extra entries for each CPU. The LRU frees entries in runs of up to 128 on each CPU, so a map holds fewer entries
/// than its capacity (`LOCAL_FREE_TARGET`, kernel/bpf/bpf_lru_list.c, Linux 6.18).
const LRU_SLACK_PER_CPU: u32 = 2 * 128;

/// Minimum number of entries, also for an unused map.
const ENTRIES_MIN: u32 = 1;

impl Kernel {
    /// Calls [`Kernel::load`] after checking that the interfaces are free, so that a daemon that cannot start changes
    /// nothing.
    ///
    /// # Errors
    /// Fails like [`Kernel::load`]. Also fails if an interface is missing and not awaited, or has another XDP program.
    pub fn open(config: &Config, absent: Absent) -> Result<Self, DatapathError> {
        let options = Options::from(config);
        attach::look_at(&config.interfaces, config.hook, absent, options.pins.as_deref())?;
        let kernel = Self::load(&options)?;
        kernel.links.look_at_modes(&config.interfaces).or_else(|refused| kernel.undo_move(refused))?;
        #[cfg(feature = "trace")]
        let mut kernel = kernel;
        #[cfg(feature = "trace")]
        trace::forward(&mut kernel.ebpf)?;
        Ok(kernel)
    }

    /// Loads the program, and creates its maps or takes over pinned ones. Attaches nothing. Pinned links enforce
    /// unchanged until [`Datapath::attach`].
    ///
    /// # Errors
    /// Fails if the kernel lacks support, privileges are missing, or pinned maps are not of this layout.
    pub fn load(options: &Options) -> Result<Self, DatapathError> {
        let pins = options.pins.as_deref().map(Pins::open).transpose()?;
        let moving = match pins.as_ref().map_or(Ok(None), Move::begin) {
            Ok(moving) => moving,
            Err(error) => return Err(undone(pins, error)),
        };
        let is_unread = moving.as_ref().is_none_or(Move::is_unread);
        let mut ebpf = match Self::load_object(options, pins.as_ref()) {
            Ok(ebpf) => ebpf,
            Err(error) => return Err(undone(pins.filter(|_| is_unread), error)),
        };
        let mut kernel = Self {
            events: Ring::take(&mut ebpf, map::EVENTS)?,
            steps: Ring::take(&mut ebpf, map::STEPS)?,
            ebpf,
            classifiers: Classifiers::new(options.clone()),
            pins,
            moving,
            links: Links::new(options.hook, options.xdp_mode),
            time: Time::new(options.clock),
            rows: Rows::default(),
            generations: Generations::new(options.insertions_max),
            sources: SourceMaps {
                ipv6_family: options.ipv6_family,
                windows_max: 0,
                windows_per_source: options.windows_per_source.max(1),
            },
        };
        let taken = kernel
            .carry_over()
            .and_then(|()| kernel.take_over(options, lru_slack()))
            .and_then(|()| kernel.fill_filters());
        taken.or_else(|refused| kernel.undo_move(refused))?;
        kernel.seed_sampling()?;
        reach(Point::TakenOver);
        Ok(kernel)
    }

    fn load_object(options: &Options, pins: Option<&Pins>) -> Result<Ebpf, DatapathError> {
        // Each attempt with a longer log verifies the program again. With the whole log, that takes minutes on a slow
        // machine before the refusal is known.
        let wanted =
            if tracing::enabled!(tracing::Level::DEBUG) { VerifierLogLevel::DEBUG } else { VerifierLogLevel::DISABLE };
        let mut ebpf = Self::with_loader(options, wanted, |loader| {
            if let Some(pins) = pins {
                for expected in state::EXPECTED {
                    state::check_pin(pins.dir(), expected)?;
                    loader.map_pin_path(expected.name, pins.map(expected.name));
                }
            }
            loader.load(object::ELF).map_err(|error| state::load_error("make the maps", error.into()))
        })?;
        reach(Point::MapsMade);
        let program: &mut Xdp = program(&mut ebpf)?;
        program.load().map_err(|error| state::load_error("load the program", error.into()))?;
        reach(Point::ProgramLoaded);
        if let Err(error) = charge::load(&mut ebpf) {
            tracing::warn!("applications cannot charge sources: {:#}", anyhow::Error::from(error));
        }
        Ok(ebpf)
    }

    /// Calls `load` with a loader that is set up for these options.
    pub(super) fn with_loader<T>(
        options: &Options,
        log: VerifierLogLevel,
        load: impl FnOnce(&mut EbpfLoader<'_>) -> T,
    ) -> T {
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
        let mut loader = EbpfLoader::new();
        loader
            .verifier_log_level(log | VerifierLogLevel::STATS)
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
        load(&mut loader)
    }

    /// Reads what earlier runs left: the time base, the rows of interfaces, and the capacity for sources.
    fn take_over(&mut self, options: &Options, slack: u32) -> Result<(), DatapathError> {
        let known = self.config_words()?;
        self.time.take(known.wall_offset_ns, known.suspended)?;
        self.generations.take(&known, options)?;
        self.take_rows(&known)?;
        self.rows.take(&self.ebpf, &known)?;
        self.sources.windows_max = self.map(map::SOURCES_V4)?.max_entries().saturating_sub(slack);
        let wide = self.map(map::SOURCES_V6_WIDE)?.max_entries() > ENTRIES_MIN || known.ipv6_wide == 1;
        if wide != (self.sources.ipv6_family == Family::V6Wide) {
            return Err(DatapathError::Pins {
                path: self.pins.as_ref().map_or_else(String::new, |pins| pins.dir().display().to_string()),
                why: "its IPv6 sources are kept by prefixes of another length; `ratelimitd detach`, then start again"
                    .into(),
            });
        }
        if self.sources.capacity() != u64::from(options.max_sources) {
            tracing::warn!(
                "the pinned state has room for {} sources of each family, not {}: remove it with `ratelimitd detach`, \
                 then start again",
                self.sources.capacity(),
                options.max_sources
            );
        }
        Ok(())
    }
}

/// Removes the pins of a failed start, unless they include links. Maps without a link enforce nothing, and a later
/// start would mistake them for state in force.
fn undone(pins: Option<Pins>, error: DatapathError) -> DatapathError {
    if let Some(pins) = pins.filter(|pins| pins.interfaces().is_empty())
        && let Err(second) = pins.remove_own()
    {
        tracing::warn!("after a failed start: {second}");
    }
    error
}

fn lru_slack() -> u32 {
    LRU_SLACK_PER_CPU * u32::try_from(aya::util::nr_cpus().unwrap_or(1)).unwrap_or(1)
}
