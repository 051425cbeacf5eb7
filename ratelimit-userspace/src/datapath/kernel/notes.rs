//! What packets note beside the windows: who is refused until when, and how many were dropped by that alone.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::AsFd as _;

use anyhow::Context as _;
use aya::maps::PerCpuArray;
use ratelimit_common::admission::Admission;
use ratelimit_common::layout::{Active, GENERATIONS, SourceKeyV4, map};
use ratelimit_common::refused::{Line, Note, Term, WAYS};
use ratelimit_common::time::Nanos;

use super::clients::Client;
use super::plain::Plain;
use super::{Kernel, map_ref, state};
use crate::datapath::{DatapathError, batch};

/// What is noted, by client and slot.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// Packets that were dropped by a note and are counted nowhere else yet.
    dropped: HashMap<(Client, u32), u64>,
    /// Until when packets believe the last of its notes.
    until: HashMap<(Client, u32), Nanos>,
}

impl Noted {
    /// Whether nothing is noted of anybody.
    pub(super) fn is_empty(&self) -> bool {
        self.dropped.is_empty() && self.until.is_empty()
    }

    /// Packets of one window.
    pub(super) fn of(&self, client: Client, slot: u32) -> u64 {
        self.dropped.get(&(client, slot)).copied().unwrap_or(0)
    }

    /// Until when it is noted that one window refuses, if it still does.
    pub(super) fn until(&self, client: Client, slot: u32) -> Option<Nanos> {
        self.until.get(&(client, slot)).copied()
    }

    fn add(&mut self, note: &Note, epoch: u32, now: Nanos) {
        let (term, key) = (Term::of(note.until), (client(note), note.slot()));
        if term.is_ban() {
            return;
        }
        if note.dropped() != 0 {
            let dropped = self.dropped.entry(key).or_default();
            *dropped = dropped.saturating_add(note.dropped());
        }
        if term.holds(now) && note.what >> 32 == u64::from(epoch) {
            let until = self.until.entry(key).or_insert(Nanos(0));
            *until = end(term).max(*until);
        }
    }
}

/// When a term ends: it tells 2^20 ns, above 16 bits.
fn end(term: Term) -> Nanos {
    Nanos(term.word() >> 16 << 20)
}

/// What each CPU may have of so many insertions: twice its share, as packets are not spread evenly.
pub(super) fn insertions_free(all: u32) -> u32 {
    let cpus = u32::try_from(aya::util::nr_cpus().unwrap_or(1)).unwrap_or(1).max(1);
    all.div_ceil(cpus).saturating_mul(2)
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

    /// What was dropped by notes alone, and what notes refuse now.
    pub(super) fn noted(&mut self) -> Result<Noted, DatapathError> {
        let (now, words, epoch) = (self.read_clock()?, self.config_words()?, self.active()?.epoch());
        let is_trial_over = words.until_ns != 0 && words.until_ns <= now.0;
        let epoch = if is_trial_over { Active::epoch_after_trial(epoch) } else { epoch };
        let mut noted = Noted::default();
        self.visit_lines(|_, line| line.0.iter().for_each(|note| noted.add(note, epoch, now)))?;
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
    ///
    /// # Errors
    /// Where the map cannot be read.
    pub fn admissions(&self) -> Result<Vec<Admission>, DatapathError> {
        let map: PerCpuArray<_, Plain<Admission>> =
            PerCpuArray::try_from(map_ref(&self.ebpf, map::ADMISSION)?).context("open ADMISSION")?;
        let cpus = map.get(&0, 0).with_context(|| format!("read {}", map::ADMISSION))?;
        Ok(cpus.iter().map(|Plain(cpu)| *cpu).collect())
    }

    fn visit_lines(&self, mut visit: impl FnMut(u32, Line)) -> Result<(), DatapathError> {
        let name = map::REFUSED;
        let (data, lines) = (state::data(map_ref(&self.ebpf, name)?)?, self.map(name)?.max_entries());
        batch::visit(data.fd().as_fd(), size_of::<u32>(), size_of::<Line>(), lines, |key, value| {
            // Most have never been written.
            if value.iter().any(|byte| *byte != 0)
                && let (Ok(key), Some(line)) = (key.try_into(), line(value))
            {
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
    use ratelimit_common::refused::{BUSY, ONE_DROPPED};
    use ratelimit_common::verdict::{Reason, Verdict};

    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let note = |of: u64| Note { until: of, source: of + 1, what: of + 2, counted: (3 * ONE_DROPPED) | of };
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

    const NOW: Nanos = Nanos(1_767_261_600_000_000_000);
    const EPOCH: u32 = 7;

    /// Of 192.0.2.1 and slot 9.
    fn note(after_ns: u64, reason: Reason, epoch: u32, dropped: u64) -> Note {
        let until = Term::new(Nanos(NOW.0 + after_ns), Verdict { reason, rule: 3 }).word();
        let source = u64::from(u32::from_ne_bytes([192, 0, 2, 1]));
        Note { until, source, what: u64::from(epoch) << 32 | 443, counted: (dropped * ONE_DROPPED) | 9 }
    }

    #[test]
    fn a_note_tells_until_when_it_refuses_to_the_millisecond() {
        let mut noted = Noted::default();
        noted.add(&note(30_000_000_000, Reason::OverLimit, EPOCH, 2), EPOCH, NOW);
        noted.add(&note(20_000_000_000, Reason::OverLimit, EPOCH, 3), EPOCH, NOW);
        let client = Client::V4([192, 0, 2, 1]);
        let left_ns = noted.until(client, 9).unwrap().0 - NOW.0;
        assert!((29_998_000_000..=30_000_000_000).contains(&left_ns), "{left_ns}");
        assert_eq!((noted.of(client, 9), noted.of(client, 8)), (5, 0));
        assert_eq!((noted.until(client, 8), noted.until(Client::V4([192, 0, 2, 2]), 9)), (None, None));
    }

    #[test]
    fn a_note_that_has_ended_or_of_another_epoch_or_that_is_being_written_refuses_nothing_and_is_counted() {
        let client = Client::V4([192, 0, 2, 1]);
        let busy = Note { until: BUSY, ..note(0, Reason::OverLimit, EPOCH, 1) };
        let ended = note(0, Reason::OverLimit, EPOCH, 1);
        for of in [busy, ended, note(30_000_000_000, Reason::OverLimit, EPOCH - 1, 1)] {
            let mut noted = Noted::default();
            noted.add(&of, EPOCH, NOW);
            assert_eq!((noted.until(client, 9), noted.of(client, 9)), (None, 1), "{of:?}");
        }
        let mut noted = Noted::default();
        noted.add(&note(30_000_000_000, Reason::Banned, EPOCH, 1), EPOCH, NOW);
        assert_eq!((noted.until(client, 9), noted.of(client, 9)), (None, 0));
    }
}
