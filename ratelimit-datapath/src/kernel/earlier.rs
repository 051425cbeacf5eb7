//! Takes over what a filter of an earlier layout has counted, and puts this version's program in its place.
//!
//! A map whose keys and values mean today what they meant then is taken over itself: it gets a second pin, and both
//! programs charge the same words, so nothing is copied and nothing missed. Any other is copied, word by word as its
//! layout says. The copy is made before the program, again just before the links are swapped, and what the earlier
//! program has charged after that is added then, when it is quiet.
//!
//! A crash at any step leaves what enforces, and what the next start goes on with:
//!
//! | left behind | the next start |
//! |---|---|
//! | no link has this version's program | removes this version's half-made pins, begins again |
//! | some links have it | keeps this version's maps, swaps the rest, adds what the earlier maps have more |
//! | the earlier maps are removed | moves the files of the links, removes the earlier directory |

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

/// What an earlier layout was, as far as it is carried over.
pub(super) struct Layout {
    version: u32,
    /// Maps that are taken over themselves.
    same: &'static [&'static [&'static str]],
    /// How the keys of windows differed, where they did; their values have always been the same.
    windows: Option<&'static [SideThen]>,
    /// How counters are read, where they had another form.
    counters: Option<ReadCounters>,
    /// Reads both generations of the configuration.
    config: fn(&Earlier) -> Result<[Facts; GENERATIONS as usize], DatapathError>,
}

impl Layout {
    /// Whether a map of it is taken over itself.
    fn has(&self, map: &str) -> bool {
        self.same.iter().copied().flatten().any(|name| *name == map)
    }
}

/// The counters of each CPU in these rows.
type ReadCounters = fn(&Earlier, rows: &[u32]) -> Result<Vec<(u32, Vec<Counters>)>, DatapathError>;

/// By what the slot of a limit's window differed from the limit's own, and which of its windows that was.
pub(super) struct SideThen {
    flipped: u32,
    side: Side,
}

/// Every layout that is taken over.
static LAYOUTS: [&Layout; 6] = [&v7::LAYOUT, &v8::LAYOUT, &v9::LAYOUT, &v10::LAYOUT, &v11::LAYOUT, &v12::LAYOUT];

/// Maps that mean the same since layout 7.
const SINCE_7: &[&str] =
    &[map::BANS_V4, map::BANS_V6, map::BANS_V6_WIDE, map::FLOWS_V4, map::FLOWS_V6, map::FAULTS, map::BANS_BEGUN];

/// Those that came to since layout 8.
const SINCE_8: &[&str] = &[map::SOURCES_V4, map::SOURCES_V6, map::SOURCES_V6_WIDE, map::COUNTERS];

/// And since layout 11.
const SINCE_11: &[&str] = &[map::EVENTS, map::EVENT_TALLIES];

/// And since layout 12.
const SINCE_12: &[&str] = &[map::STEPS];

/// What is copied: without these pins nothing more is carried over.
const COPIED: [&str; 4] = [map::SOURCES_V4, map::SOURCES_V6, map::SOURCES_V6_WIDE, map::COUNTERS];

/// The move from an earlier layout, while it is under way.
pub(super) struct Move {
    layout: &'static Layout,
    /// What of each window was copied, by its key of today.
    windows: HashMap<Window, [u8; windows::VALUE]>,
    counters: HashMap<u32, Vec<Counters>>,
    /// When windows were copied last.
    copied_at: Nanos,
    /// When the last look at windows and counters began; none where a run before this one has copied them.
    looked_at: Option<Instant>,
    stage: Stage,
}

/// How far a move has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No packet reads the new maps.
    Unread,
    /// An interface was attached anew, whose packets do.
    Read,
    /// This run or one before it has put the program into a link.
    Swapping,
}

impl Move {
    /// Looks whether there is something to move, and makes this version's directory ready for the maps.
    pub(super) fn begin(pins: &Pins) -> Result<Option<Self>, DatapathError> {
        let Some(earlier) = pins.earlier() else { return Ok(None) };
        let layout = LAYOUTS.iter().find(|layout| layout.version == earlier.version);
        let layout = layout.with_context(|| format!("no way from layout {}", earlier.version))?;
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

    /// Whether no packet reads this version's maps.
    pub(super) fn is_unread(&self) -> bool {
        self.stage == Stage::Unread
    }
}

/// Whether a link of the earlier layout has a program of this version: those that a move puts into links are pinned
/// meanwhile, since to find one by its id takes a capability that the daemon does not have.
fn is_swapped(pins: &Pins, earlier: &Earlier) -> Result<bool, DatapathError> {
    let mut ours = Vec::new();
    for path in pins.starting_with(PROGRAM_PREFIX)? {
        ours.push(ProgramInfo::from_pin(&path).with_context(|| format!("look at {}", path.display()))?.id());
    }
    let mut links = earlier.links().into_iter().filter_map(|(_, path)| link_info::pinned(&path).ok());
    Ok(links.any(|link| ours.contains(&link.program)))
}

/// Gives a map a second pin, among this version's.
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

/// Reads both generations of a configuration of this form.
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

/// Reads counters of this form.
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

/// What a move has come to, for the log.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Windows that were copied at the last look.
    recopied: usize,
    /// Windows that were charged after it.
    charged: usize,
    /// From the beginning of the last look at windows and counters until every link had the new program: no packet that
    /// was admitted before it was missed there. None where a run before this one has looked.
    gap: Option<Duration>,
}

impl Tally {
    /// What has become of windows.
    fn words(&self, moving: &Move) -> String {
        match (moving.layout.windows, self.gap) {
            (None, _) => ", whose windows go on as they are".to_owned(),
            (Some(_), None) => {
                format!(": went on with a move that was cut short, and charged {} windows", self.charged)
            }
            (Some(_), Some(gap)) => format!(
                ": copied {} windows, the last look at them began {:.1} ms before the program was replaced; {} were \
                 charged with what was admitted in between",
                moving.windows.len(),
                gap.as_secs_f64() * 1e3,
                self.charged
            ),
        }
    }

    /// What the earlier program may have admitted that is not in what was copied.
    fn uncopied(&self) -> String {
        self.gap.map_or_else(
            || "what the earlier program has admitted after a run before this one had copied its windows".to_owned(),
            |gap| format!("what was admitted in the last {:.1} ms of the earlier program", gap.as_secs_f64() * 1e3),
        )
    }
}

impl Kernel {
    /// Writes into the new maps what the earlier ones hold.
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

    /// Copies these rows of counters and all windows where they are other than at the last copy; how many windows.
    fn copy(&mut self, moving: &mut Move, rows: &[u32]) -> Result<usize, DatapathError> {
        moving.looked_at = Some(Instant::now());
        self.copy_counters(moving, rows)?;
        self.copy_windows(moving)
    }

    /// Copies once more what has changed, before packets read the new maps.
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

    /// Leaves an earlier layout's pins as they were where this run cannot start, so that its version can.
    pub(super) fn undo_move<T>(&self, refused: DatapathError) -> Result<T, DatapathError> {
        if let Some(pins) = self.pins.as_ref().filter(|_| self.is_earlier_in_force())
            && let Err(second) = pins.remove_own()
        {
            tracing::warn!("after a failed start: {second}");
        }
        Err(refused)
    }

    /// Whether pins of an earlier layout are all that enforces: also where no program could be replaced.
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
        // A link that has this program makes the next start go on; until then it begins again.
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

    /// Adds what the earlier program has counted and admitted after the last copy; to how many windows.
    fn add(&mut self, moving: &Move, rows: &[u32], is_resumed: bool) -> Result<usize, DatapathError> {
        self.add_counters(moving, rows, is_resumed)?;
        reach(Point::MoveCounted);
        self.add_windows(moving, is_resumed)
    }

    /// Has a later start know this run's program in a link.
    fn mark_program(&mut self) -> Result<(), DatapathError> {
        let id = self.program_id()?;
        let path = self.pins.as_ref().map(|pins| pins.map(&format!("{PROGRAM_PREFIX}{id}")));
        let Some(path) = path.filter(|path| !path.exists()) else { return Ok(()) };
        program(&mut self.ebpf)?.pin(&path).with_context(|| format!("pin {}", path.display()))?;
        self.mark_classifiers()?;
        reach(Point::MoveMarked);
        Ok(())
    }

    /// The same of the programs for TCX.
    fn mark_classifiers(&mut self) -> Result<(), DatapathError> {
        let is_tcx = |held: &&held::Held| held.attached == Some(Attachment::Tcx) && held.earlier.is_some();
        let headers: Vec<_> = self.links.held.iter().filter(is_tcx).map(|held| held.header).collect();
        for header in headers {
            let program = self.classifier(header)?;
            let id = program.info().context("look at the program for TCX")?.id();
            let path = self.pins.as_ref().map(|pins| pins.map(&format!("{PROGRAM_PREFIX}{id}")));
            let Some(path) = path.filter(|path| !path.exists()) else { continue };
            self.classifier(header)?.pin(&path).with_context(|| format!("pin {}", path.display()))?;
        }
        Ok(())
    }

    /// Puts this version's program into every link of the earlier one, each between two packets.
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

    /// Moves the files of the links to this version's, and removes the earlier ones.
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
    fn what_is_not_taken_over_itself_is_copied() {
        for layout in LAYOUTS {
            let is_same = |name: &str| layout.has(name);
            assert_eq!(is_same(map::SOURCES_V4), layout.windows.is_none(), "windows of {}", layout.version);
            assert_eq!(is_same(map::COUNTERS), layout.counters.is_none(), "counters of {}", layout.version);
        }
    }
}
