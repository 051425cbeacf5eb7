//! What packets note beside the windows: who is refused until when, and how many were dropped by that alone.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::AsFd as _;

use anyhow::Context as _;
use aya::maps::PerCpuArray;
use ratelimit_common::admission::Admission;
use ratelimit_common::layout::{Active, GENERATIONS, SourceKeyV4, map};
use ratelimit_common::refused::{Line, Note, Term, WAYS};

use super::clients::Client;
use super::plain::Plain;
use super::{Kernel, map_ref, state};
use crate::datapath::{DatapathError, batch};

/// Packets that were dropped by a note and are counted nowhere else yet, by client and slot.
#[derive(Debug, Default)]
pub(super) struct Noted(HashMap<(Client, u32), u64>);

impl Noted {
    /// Those of one window.
    pub(super) fn of(&self, client: Client, slot: u32) -> u64 {
        self.0.get(&(client, slot)).copied().unwrap_or(0)
    }
}

/// A number that nobody foresees: the hash of nothing, by keys that the system has drawn.
pub(super) fn seed() -> u64 {
    RandomState::new().hash_one(())
}

impl Kernel {
    /// Which generation packets read, and the epoch.
    pub(super) fn active(&mut self) -> Result<Active, DatapathError> {
        Ok(self.array::<Plain<Active>>(map::ACTIVE)?.get(&0, 0).with_context(|| format!("read {}", map::ACTIVE))?.0)
    }

    /// Has every packet read this generation, and believe nothing that was noted before.
    pub(super) fn activate(&mut self, generation: u32) -> Result<(), DatapathError> {
        let epoch = self.active()?.epoch().wrapping_add(1);
        let active = Plain(Active::new(generation % GENERATIONS, epoch));
        Ok(self.array(map::ACTIVE)?.set(0, active, 0).with_context(|| format!("write {}", map::ACTIVE))?)
    }

    /// Has no packet believe what was noted before.
    pub(super) fn begin_epoch(&mut self) -> Result<(), DatapathError> {
        let generation = self.active()?.generation();
        self.activate(generation)
    }

    /// What was dropped by notes alone.
    pub(super) fn noted(&self) -> Result<Noted, DatapathError> {
        let mut noted = Noted::default();
        self.visit_lines(|_, line| {
            for note in line.0.iter().filter(|note| note.dropped() != 0 && !Term::of(note.until).is_ban()) {
                let dropped = noted.0.entry((client(note), note.slot())).or_default();
                *dropped = dropped.saturating_add(note.dropped());
            }
        })?;
        Ok(noted)
    }

    /// Takes out the notes of these clients, and what is counted in them.
    pub(super) fn forget_notes(&mut self, is_meant: impl Fn(Client) -> bool) -> Result<(), DatapathError> {
        let mut changed = Vec::new();
        self.visit_lines(|at, mut line| {
            let meant = line.0.iter_mut().filter(|note| note.what != 0 && is_meant(client(note)));
            if meant.map(|note| *note = Note::default()).count() != 0 {
                changed.push((at, line));
            }
        })?;
        for (at, line) in changed {
            self.array(map::REFUSED)?.set(at, Plain(line), 0).with_context(|| format!("write {}", map::REFUSED))?;
        }
        Ok(())
    }

    /// What each CPU has admitted of new sources.
    pub(super) fn admissions(&self) -> Result<Vec<Admission>, DatapathError> {
        let map: PerCpuArray<_, Plain<Admission>> =
            PerCpuArray::try_from(map_ref(&self.ebpf, map::ADMISSION)?).context("open ADMISSION")?;
        let cpus = map.get(&0, 0).with_context(|| format!("read {}", map::ADMISSION))?;
        Ok(cpus.iter().map(|Plain(cpu)| *cpu).collect())
    }

    fn visit_lines(&self, mut visit: impl FnMut(u32, Line)) -> Result<(), DatapathError> {
        let name = map::REFUSED;
        let (data, lines) = (state::data(map_ref(&self.ebpf, name)?)?, self.map(name)?.max_entries());
        batch::visit(data.fd().as_fd(), size_of::<u32>(), size_of::<Line>(), lines, |key, value| {
            if let (Ok(key), Some(line)) = (key.try_into(), line(value)) {
                visit(u32::from_ne_bytes(key), line);
            }
        })
        .with_context(|| format!("read {name}"))?;
        Ok(())
    }
}

/// Whose note it is.
fn client(note: &Note) -> Client {
    let octets = note.source.to_ne_bytes();
    if note.is_ipv6() {
        return Client::V6(octets);
    }
    #[expect(clippy::cast_possible_truncation, reason = "an address of 32 bits")]
    let address = note.source as u32;
    let SourceKeyV4 { prefix, .. } = SourceKeyV4 { prefix: address.to_ne_bytes(), slot: 0 };
    Client::V4(prefix)
}

fn line(value: &[u8]) -> Option<Line> {
    let words: &[[u8; 8]; 4 * WAYS] = value.as_chunks().0.try_into().ok()?;
    let mut notes = words.map(u64::from_ne_bytes).into_iter();
    let mut line = Line::default();
    for note in &mut line.0 {
        *note = Note { until: notes.next()?, source: notes.next()?, what: notes.next()?, counted: notes.next()? };
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use ratelimit_common::refused::ONE_DROPPED;

    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let note = |of: u64| Note { until: of, source: of + 1, what: of + 2, counted: 3 * ONE_DROPPED | of };
        let written = Line([note(7), note(70)]);
        let bytes: Vec<u8> = written
            .0
            .iter()
            .flat_map(|note| [note.until, note.source, note.what, note.counted])
            .flat_map(u64::to_ne_bytes)
            .collect();
        assert_eq!(line(&bytes), Some(written));
        assert_eq!(line(&bytes[1..]), None);
    }
}
