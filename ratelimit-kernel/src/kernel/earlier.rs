//! Takes over the counts of an earlier layout's filter, and replaces its program by this version's.
//!
//! A map whose keys and values mean the same today gets a second pin. Both programs charge the same words, so nothing
//! is copied and nothing is missed. Any other map is copied word by word, as its layout says. The copy is made first,
//! and updated just before the links are swapped. Amounts that the earlier program charges after the update are added
//! once that program is quiet.
//!
//! After a crash at any step, enforcement continues, and the next start resumes:
//!
//! | state found | next start |
//! |---|---|
//! | no link has this version's program | removes this version's incomplete pins and begins again |
//! | some links have that program | keeps the new maps, swaps the other links, adds what the earlier maps gained |
//! | the earlier maps are removed | moves the files of the links and removes the earlier directory |

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use aya::Pod;
use aya::maps::{Array, Map, MapData, PerCpuArray};
use aya::programs::ProgramInfo;
use ratelimit_common::hash::HashKey;
use ratelimit_common::layout::{Active, COUNTERS_LEN, Counters, GENERATIONS, map};
use ratelimit_common::time::Nanos;
use ratelimit_common::verification::Side;
use ratelimit_crash::{Point, reach};

use self::facts::Facts;
use self::windows::Window;
use super::plain::Plain;
use super::{Kernel, held, program, random, state};
use crate::pins::{self, Earlier, PROGRAM_PREFIX, Pins};
use crate::{Attachment, DatapathError, Hook, link_info};

mod counts;
mod facts;
mod v10;
mod v11;
pub(super) mod v12;
pub(super) mod v7;
pub(super) mod v8;
pub(super) mod v9;
mod windows;

/// An earlier layout, as far as it is carried over.
pub(super) struct Layout {
    version: u32,
    /// Names of maps that are taken over unchanged.
    same: &'static [&'static [&'static str]],
    /// Differences in the keys of windows, if any. The values have always been the same.
    windows: Option<&'static [SideThen]>,
    /// Reader of the counters, if they had another form.
    counters: Option<ReadCounters>,
    /// Reader of both generations of the configuration.
    config: fn(&Earlier) -> Result<[Facts; GENERATIONS as usize], DatapathError>,
}

impl Layout {
    /// Returns whether a map of this layout is taken over unchanged.
    fn has(&self, map: &str) -> bool {
        self.same.iter().copied().flatten().any(|name| *name == map)
    }
}

/// Reads the counters of each CPU in these rows.
type ReadCounters = fn(&Earlier, rows: &[u32]) -> Result<Vec<(u32, Vec<Counters>)>, DatapathError>;

/// Bits in which the slot of one of a limit's windows differed from the limit's slot, and the side of that window.
pub(super) struct SideThen {
    flipped: u32,
    side: Side,
}

/// All layouts that are taken over.
static LAYOUTS: [&Layout; 6] = [&v7::LAYOUT, &v8::LAYOUT, &v9::LAYOUT, &v10::LAYOUT, &v11::LAYOUT, &v12::LAYOUT];

/// Maps with the same meaning since layout 7.
const SINCE_7: &[&str] =
    &[map::BANS_V4, map::BANS_V6, map::BANS_V6_WIDE, map::FLOWS_V4, map::FLOWS_V6, map::FAULTS, map::BANS_BEGUN];

/// Maps with the same meaning since layout 8.
const SINCE_8: &[&str] = &[map::SOURCES_V4, map::SOURCES_V6, map::SOURCES_V6_WIDE, map::COUNTERS];

/// Maps with the same meaning since layout 11.
const SINCE_11: &[&str] = &[map::EVENTS, map::EVENT_TALLIES];

/// Maps with the same meaning since layout 12.
const SINCE_12: &[&str] = &[map::STEPS];

/// Maps that are copied. Without these pins, nothing more is carried over.
const COPIED: [&str; 4] = [map::SOURCES_V4, map::SOURCES_V6, map::SOURCES_V6_WIDE, map::COUNTERS];

/// An unfinished move from an earlier layout.
pub(super) struct Move {
    layout: &'static Layout,
    /// Copied value of each window, by its key of today.
    windows: HashMap<Window, [u8; windows::VALUE]>,
    counters: HashMap<u32, Vec<Counters>>,
    /// Time of the last copy of windows.
    copied_at: Nanos,
    /// Time at which the last comparison of windows and counters began. None if an earlier run copied them.
    looked_at: Option<Instant>,
    stage: Stage,
}

/// Progress of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No packet reads the new maps.
    Unread,
    /// An interface was newly attached, and its packets read the new maps.
    Read,
    /// This run or an earlier one has replaced the program of a link.
    Swapping,
}

impl Move {
    /// Looks for an earlier layout to move from, and prepares this version's directory for the maps.
    pub(super) fn begin(pins: &Pins) -> Result<Option<Self>, DatapathError> {
        let Some(earlier) = pins.earlier() else { return Ok(None) };
        let layout = LAYOUTS.iter().find(|layout| layout.version == earlier.version);
        let layout = layout.with_context(|| format!("no migration from layout {}", earlier.version))?;
        let mut stage = Stage::Swapping;
        if pins.interfaces().is_empty() && !is_swapped(pins, earlier)? {
            stage = Stage::Unread;
            pins.clear_own()?;
            reach(Point::MoveCleared);
            for expected in state::EXPECTED.iter().filter(|expected| layout.has(expected.name)) {
                state::check_pin(&earlier.dir, expected)?;
                share(earlier, pins, expected.name)?;
            }
            reach(Point::MoveShared);
        }
        let (windows, counters) = (HashMap::new(), HashMap::new());
        Ok(Some(Self { layout, windows, counters, copied_at: Nanos(0), looked_at: None, stage }))
    }

    /// Returns whether no packet reads this version's maps.
    pub(super) fn is_unread(&self) -> bool {
        self.stage == Stage::Unread
    }
}

/// Returns whether a link of the earlier layout has a program of this version. A move pins the programs that it puts
/// into links, because finding a program by id takes a capability that the daemon lacks.
fn is_swapped(pins: &Pins, earlier: &Earlier) -> Result<bool, DatapathError> {
    let mut ours = Vec::new();
    for path in pins.starting_with(PROGRAM_PREFIX)? {
        ours.push(ProgramInfo::from_pin(&path).with_context(|| format!("inspect {}", path.display()))?.id());
    }
    let mut links = earlier.links().into_iter().filter_map(|(_, path)| link_info::pinned(&path).ok());
    Ok(links.any(|link| ours.contains(&link.program)))
}

/// Pins a map a second time, in this version's directory.
fn share(earlier: &Earlier, pins: &Pins, name: &'static str) -> Result<(), DatapathError> {
    let path = earlier.map(name);
    if !path.exists() {
        return Ok(());
    }
    Ok(open(&path)?.pin(pins.map(name)).with_context(|| format!("take over {}", path.display()))?)
}

fn open(path: &std::path::Path) -> Result<MapData, DatapathError> {
    Ok(MapData::from_pin(path).with_context(|| format!("open {}", path.display()))?)
}

/// Reads both generations of a configuration of type `C`.
fn read<C>(earlier: &Earlier) -> Result<[Facts; GENERATIONS as usize], DatapathError>
where
    C: Copy,
    Plain<C>: Pod,
    Facts: From<C>,
{
    let path = earlier.map(map::CONFIG);
    let what = || format!("read {}", path.display());
    let config: Array<_, Plain<C>> = Array::try_from(Map::Array(open(&path)?)).with_context(what)?;
    let of = |generation| Ok::<_, DatapathError>(Facts::from(config.get(&generation, 0).with_context(what)?.0));
    Ok([of(0)?, of(1)?])
}

/// Reads counters of type `R`.
fn read_counters<R>(earlier: &Earlier, rows: &[u32]) -> Result<Vec<(u32, Vec<Counters>)>, DatapathError>
where
    R: Copy,
    Plain<R>: Pod,
    Counters: From<R>,
{
    let path = earlier.map(map::COUNTERS);
    let what = || format!("read {}", path.display());
    let counters: PerCpuArray<_, Plain<R>> =
        PerCpuArray::try_from(Map::PerCpuArray(open(&path)?)).with_context(what)?;
    let of = |row: &u32| {
        let cpus = counters.get(row, 0).with_context(what)?;
        Ok((*row, cpus.iter().map(|cpu| Counters::from(cpu.0)).collect()))
    };
    rows.iter().map(of).collect()
}

/// Result of a move, for the log.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Number of windows copied in the last comparison.
    recopied: usize,
    /// Number of windows charged after the last comparison.
    charged: usize,
    /// Time from the begin of the last comparison until every link had the new program. No packet admitted before the
    /// comparison is missing. None if an earlier run made the comparison.
    gap: Option<Duration>,
}

impl Tally {
    /// Returns the part of the log line about windows.
    fn words(&self, moving: &Move) -> String {
        match (moving.layout.windows, self.gap) {
            (None, _) => ", and kept its windows".to_owned(),
            (Some(_), None) => {
                format!(": finished an interrupted move, and charged {} windows", self.charged)
            }
            (Some(_), Some(gap)) => format!(
                ": copied {} windows; the last comparison began {:.1} ms before the program was replaced; {} windows \
                 were charged with the packets in between",
                moving.windows.len(),
                gap.as_secs_f64() * 1e3,
                self.charged
            ),
        }
    }

    /// Describes the packets that the earlier program may have admitted after the copy.
    fn uncopied(&self) -> String {
        self.gap.map_or_else(
            || "traffic that the earlier program admitted after an interrupted run had copied its windows".to_owned(),
            |gap| format!("traffic of the last {:.1} ms of the earlier program", gap.as_secs_f64() * 1e3),
        )
    }
}

impl Kernel {
    /// Writes the contents of the earlier maps into the new maps.
    pub(super) fn carry_over(&mut self) -> Result<(), DatapathError> {
        let Some(mut moving) = self.moving.take_if(|moving| moving.stage == Stage::Unread) else { return Ok(()) };
        let carried = self.carry(&mut moving);
        self.moving = Some(moving);
        carried
    }

    fn carry(&mut self, moving: &mut Move) -> Result<(), DatapathError> {
        let earlier = self.earlier()?;
        let active: Array<_, Plain<Active>> =
            Array::try_from(Map::Array(open(&earlier.map(map::ACTIVE))?)).context("open the earlier ACTIVE")?;
        let active = active.get(&0, 0).context("read the earlier ACTIVE")?;
        let generations = (moving.layout.config)(earlier)?;
        let seed = HashKey(random::words()?);
        for (generation, facts) in (0..GENERATIONS).zip(&generations).filter(|(_, facts)| facts.wall_offset_ns != 0) {
            let mut words = self.config_words_of(generation)?;
            facts.write(&mut words, seed);
            self.write_config(generation, words)?;
        }
        self.array(map::ACTIVE)?.set(0, active, 0).context("write ACTIVE")?;
        reach(Point::MoveConverted);
        let all: Vec<u32> = (0..u32::try_from(COUNTERS_LEN).unwrap_or(0)).collect();
        self.copy(moving, &all)?;
        reach(Point::MoveCopied);
        Ok(())
    }

    /// Copies the given rows of counters and all windows that changed since the last copy. Returns the number of
    /// windows.
    fn copy(&mut self, moving: &mut Move, rows: &[u32]) -> Result<usize, DatapathError> {
        moving.looked_at = Some(Instant::now());
        self.copy_counters(moving, rows)?;
        self.copy_windows(moving)
    }

    /// Copies all later changes, before packets read the new maps.
    pub(super) fn before_packets(&mut self) -> Result<(), DatapathError> {
        let Some(mut moving) = self.moving.take_if(|moving| moving.stage == Stage::Unread) else { return Ok(()) };
        let rows = self.rows_in_use(&moving);
        let copied = rows.and_then(|rows| self.copy(&mut moving, &rows));
        moving.stage = Stage::Read;
        self.moving = Some(moving);
        copied?;
        reach(Point::MoveRead);
        Ok(())
    }

    /// Removes this version's pins if this run cannot start, so that the earlier version can start.
    pub(super) fn undo_move<T>(&self, refused: DatapathError) -> Result<T, DatapathError> {
        if let Some(pins) = self.pins.as_ref().filter(|_| self.is_earlier_in_force())
            && let Err(second) = pins.remove_own()
        {
            tracing::warn!("after a failed start: {second}");
        }
        Err(refused)
    }

    /// Returns whether only the earlier layout enforces, also if replacing its programs failed.
    pub(super) fn is_earlier_in_force(&self) -> bool {
        let is_untouched = |pins: &Pins| {
            let is_swapped = pins.earlier().map(|earlier| is_swapped(pins, earlier));
            pins.interfaces().is_empty() && matches!(is_swapped, Some(Ok(false)))
        };
        let is_so = |moving: &Move| moving.stage != Stage::Swapping || self.pins.as_ref().is_some_and(is_untouched);
        self.moving.as_ref().is_some_and(is_so)
    }

    /// See [`crate::Datapath::take_over_earlier`].
    pub(super) fn finish_move(&mut self) -> Result<(), DatapathError> {
        let Some(mut moving) = self.moving.take() else { return Ok(()) };
        let finished = self.finish(&mut moving);
        if finished.is_err() {
            self.moving = Some(moving);
        }
        finished
    }

    fn finish(&mut self, moving: &mut Move) -> Result<(), DatapathError> {
        let (mut tally, rows) = (Tally::default(), self.rows_in_use(moving)?);
        // A link with this program makes the next start resume the move. Without one, the next start begins again.
        self.mark_program()?;
        if moving.stage == Stage::Unread {
            tally.recopied = self.copy(moving, &rows)?;
            reach(Point::MoveRecopied);
        }
        let is_resumed = moving.stage == Stage::Swapping;
        moving.stage = Stage::Swapping;
        self.swap_earlier()?;
        tally.gap = moving.looked_at.map(|looked_at| looked_at.elapsed());
        // Nothing charges the earlier maps from here on.
        state::wait_for_packets();
        reach(Point::MoveSwapped);
        match self.add(moving, &rows, is_resumed) {
            Ok(charged) => tally.charged = charged,
            Err(error) => tracing::warn!("{} is not counted: {:#}", tally.uncopied(), anyhow::Error::from(error)),
        }
        reach(Point::MoveAdded);
        self.move_pins()?;
        tracing::info!(
            layout = moving.layout.version,
            windows = moving.windows.len(),
            recopied = tally.recopied,
            charged = tally.charged,
            gap_us = tally.gap.map(|gap| gap.as_micros()),
            "took over the state of layout {}{}",
            moving.layout.version,
            tally.words(moving)
        );
        Ok(())
    }

    /// Adds what the earlier program counted and admitted after the last copy. Returns the number of windows changed.
    fn add(&mut self, moving: &Move, rows: &[u32], is_resumed: bool) -> Result<usize, DatapathError> {
        self.add_counters(moving, rows, is_resumed)?;
        reach(Point::MoveCounted);
        self.add_windows(moving, is_resumed)
    }

    /// Pins this run's program, so that a later start recognizes it in a link.
    fn mark_program(&mut self) -> Result<(), DatapathError> {
        let id = self.program_id()?;
        let path = self.pins.as_ref().map(|pins| pins.map(&format!("{PROGRAM_PREFIX}{id}")));
        let Some(path) = path.filter(|path| !path.exists()) else { return Ok(()) };
        program(&mut self.ebpf)?.pin(&path).with_context(|| format!("pin {}", path.display()))?;
        self.mark_classifiers()?;
        reach(Point::MoveMarked);
        Ok(())
    }

    /// Pins this run's programs for TCX, so that a later start recognizes them in links.
    fn mark_classifiers(&mut self) -> Result<(), DatapathError> {
        let is_tcx = |held: &&held::Held| held.attached == Some(Attachment::Tcx) && held.earlier.is_some();
        let headers: Vec<_> = self.links.held.iter().filter(is_tcx).map(|held| held.header).collect();
        for header in headers {
            let program = self.classifier(header)?;
            let id = program.info().context("inspect the program for TCX")?.id();
            let path = self.pins.as_ref().map(|pins| pins.map(&format!("{PROGRAM_PREFIX}{id}")));
            let Some(path) = path.filter(|path| !path.exists()) else { continue };
            self.classifier(header)?.pin(&path).with_context(|| format!("pin {}", path.display()))?;
        }
        Ok(())
    }

    /// Replaces the program in every link of the earlier layout, each between two packets.
    fn swap_earlier(&mut self) -> Result<(), DatapathError> {
        let held = std::mem::take(&mut self.links.held);
        let mut swapped = Ok(());
        for mut held in held {
            if swapped.is_ok() && held.earlier.is_some() {
                let hook = held.attached.map_or(Hook::Xdp, Attachment::hook);
                match self.replace_program(held.link, hook, held.header) {
                    Ok(link) => held.link = link,
                    Err(error) => {
                        swapped = Err(error);
                        continue;
                    }
                }
            }
            self.links.held.push(held);
        }
        swapped
    }

    /// Moves the files of the links to this version's directory, and removes the earlier layout's files.
    fn move_pins(&mut self) -> Result<(), DatapathError> {
        let Some(pins) = self.pins.as_mut() else { return Ok(()) };
        pins.remove_earlier_maps(&COPIED)?;
        let held = std::mem::take(&mut self.links.held).into_iter();
        let moved = held.map(|held| if held.earlier.is_some() { held.moved(pins) } else { Ok(held) });
        self.links.held = moved.collect::<Result<_, _>>()?;
        pins.starting_with(PROGRAM_PREFIX)?.iter().try_for_each(|path| pins::remove(path))?;
        reach(Point::MoveUnmarked);
        pins.remove_earlier()?;
        reach(Point::MoveDone);
        Ok(())
    }

    fn earlier(&self) -> Result<&Earlier, DatapathError> {
        Ok(self.pins.as_ref().and_then(Pins::earlier).context("the pins of an earlier layout are gone")?)
    }
}

#[cfg(test)]
mod tests {
    use ratelimit_common::layout;

    use super::*;

    #[test]
    fn every_layout_since_the_earliest_is_taken_over() {
        let versions: Vec<u32> = LAYOUTS.iter().map(|layout| layout.version).collect();
        assert_eq!(versions, (pins::EARLIEST..layout::VERSION).collect::<Vec<_>>());
        for name in LAYOUTS.iter().flat_map(|layout| layout.same).copied().flatten() {
            assert!(state::EXPECTED.iter().any(|expected| expected.name == *name), "{name} is not pinned");
        }
    }

    #[test]
    fn maps_that_are_not_taken_over_are_copied() {
        for layout in LAYOUTS {
            let is_same = |name: &str| layout.has(name);
            assert_eq!(is_same(map::SOURCES_V4), layout.windows.is_none(), "windows of {}", layout.version);
            assert_eq!(is_same(map::COUNTERS), layout.counters.is_none(), "counters of {}", layout.version);
        }
    }
}
