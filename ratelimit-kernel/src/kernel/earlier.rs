//! Takes over the state of an earlier layout's filter, and replaces its program by this version's.
//!
//! A map whose keys and values mean the same today gets a second pin. Both programs charge the same words, so nothing
//! is copied and nothing is missed. The configuration is converted. Every other map starts empty.
//!
//! After a crash at any step, enforcement continues, and the next start resumes:
//!
//! | state found | next start |
//! |---|---|
//! | no link has this version's program | removes this version's incomplete pins and begins again |
//! | some links have that program | keeps the new maps, and swaps the other links |
//! | the earlier maps are removed | moves the files of the links and removes the earlier directory |

use anyhow::Context as _;
use aya::Pod;
use aya::maps::{Array, Map, MapData};
use aya::programs::ProgramInfo;
use ratelimit_common::layout::{Active, Config, GENERATIONS, map};
use ratelimit_crash::{Point, reach};

use super::plain::Plain;
use super::{Kernel, held, program, state};
use crate::pins::{self, Earlier, PROGRAM_PREFIX, Pins};
use crate::{Attachment, DatapathError, Hook, link_info};

pub(super) mod v12;

/// An earlier layout, as far as it is carried over.
pub(super) struct Layout {
    version: u32,
    /// Names of maps that are taken over unchanged.
    same: &'static [&'static str],
    /// Reads one generation of the earlier configuration, and writes into an empty one of today's layout what a daemon
    /// reads of its predecessor. Packets never read it, because a policy is applied before any packet arrives.
    carry_config: fn(&Earlier, u32, &mut Config) -> Result<(), DatapathError>,
}

/// All layouts that are taken over.
static LAYOUTS: [&Layout; 1] = [&v12::LAYOUT];

/// An unfinished move from an earlier layout.
pub(super) struct Move {
    layout: &'static Layout,
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
            for expected in state::EXPECTED.iter().filter(|expected| layout.same.contains(&expected.name)) {
                state::check_pin(&earlier.dir, expected)?;
                share(earlier, pins, expected.name)?;
            }
            reach(Point::MoveShared);
        }
        Ok(Some(Self { layout, stage }))
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

/// Reads an element, of type `T`, of an array of the earlier layout.
fn read<T>(earlier: &Earlier, name: &str, index: u32) -> Result<T, DatapathError>
where
    T: Copy,
    Plain<T>: Pod,
{
    let path = earlier.map(name);
    let what = || format!("read {}", path.display());
    let array: Array<_, Plain<T>> = Array::try_from(Map::Array(open(&path)?)).with_context(what)?;
    Ok(array.get(&index, 0).with_context(what)?.0)
}

impl Kernel {
    /// Writes the earlier configuration into the new maps.
    pub(super) fn carry_over(&mut self) -> Result<(), DatapathError> {
        let Some(layout) = self.moving.as_ref().filter(|moving| moving.is_unread()).map(|moving| moving.layout) else {
            return Ok(());
        };
        for generation in 0..GENERATIONS {
            let mut config = self.config_words_of(generation)?;
            (layout.carry_config)(self.earlier()?, generation, &mut config)?;
            self.write_config(generation, config)?;
        }
        let active: Active = read(self.earlier()?, map::ACTIVE, 0)?;
        self.array(map::ACTIVE)?.set(0, Plain(active), 0).context("write ACTIVE")?;
        reach(Point::MoveConverted);
        Ok(())
    }

    /// Records that packets read the new maps, before an interface is newly attached.
    pub(super) fn before_packets(&mut self) {
        if let Some(moving) = self.moving.as_mut().filter(|moving| moving.is_unread()) {
            moving.stage = Stage::Read;
        }
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
        if self.moving.is_none() {
            return Ok(());
        }
        // A link with this program makes the next start resume the move. Without one, the next start begins again.
        self.mark_program()?;
        if let Some(moving) = &mut self.moving {
            moving.stage = Stage::Swapping;
        }
        self.swap_earlier()?;
        // No packet is judged by the earlier policy from here on.
        state::wait_for_packets();
        reach(Point::MoveSwapped);
        self.move_pins()?;
        if let Some(Move { layout, .. }) = self.moving.take() {
            tracing::info!(layout = layout.version, "took over the state of layout {}", layout.version);
        }
        Ok(())
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
        pins.remove_earlier_maps()?;
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
        for name in LAYOUTS.iter().flat_map(|layout| layout.same) {
            assert!(state::EXPECTED.iter().any(|expected| expected.name == *name), "{name} is not pinned");
        }
    }
}
