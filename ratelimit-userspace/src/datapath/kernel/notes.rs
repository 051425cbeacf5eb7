//! What packets note beside the windows: who is refused until when, and how many were dropped by that alone.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use aya::maps::PerCpuArray;
use ratelimit_common::admission::Admission;
use ratelimit_common::layout::{Active, GENERATIONS, map};
use ratelimit_common::refused::{BUSY, Line, Note, Term};
use ratelimit_common::time::Nanos;

use super::clients::Client;
use super::plain::Plain;
use super::shared::Shared;
use super::{Kernel, map_ref, state};
use crate::datapath::DatapathError;

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
            *until = term.until().max(*until);
        }
    }
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
        for words in self.refused()?.words().as_chunks().0 {
            // Most have never been written.
            if words[0].load(Ordering::Relaxed) != 0 {
                noted.add(&note(words), epoch, now);
            }
        }
        Ok(noted)
    }

    /// Takes out the notes of these clients, and what is counted in them. Each as a packet would: what is being written at that time
    /// stays.
    pub(super) fn forget_notes(&mut self, is_meant: impl Fn(Client) -> bool) -> Result<(), DatapathError> {
        for words in self.refused()?.words().as_chunks::<NOTE_WORDS>().0 {
            let note = note(words);
            if note.what == 0 || note.until == BUSY || !is_meant(client(&note)) {
                continue;
            }
            let [until, source, what, counted] = words;
            if until.compare_exchange(note.until, BUSY, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                [source, what, counted].into_iter().for_each(|word| word.store(0, Ordering::SeqCst));
                until.store(0, Ordering::SeqCst);
            }
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

    fn refused(&self) -> Result<Shared<'_>, DatapathError> {
        let (name, info) = (map::REFUSED, self.map(map::REFUSED)?);
        let bytes = info.max_entries() as usize * size_of::<Line>();
        let data = state::data(map_ref(&self.ebpf, name)?)?;
        Ok(Shared::of(data.fd().as_fd(), bytes).with_context(|| format!("map {name}"))?)
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
    Client::V4(address.to_ne_bytes())
}

/// Words of a note.
const NOTE_WORDS: usize = size_of::<Note>() / size_of::<u64>();

/// A note as it is now. One that is being written meanwhile may be read in parts: then it refuses nothing, or has refused what the one
/// before it had.
fn note([until, source, what, counted]: &[AtomicU64; NOTE_WORDS]) -> Note {
    let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
    Note { until: word(until), source: word(source), what: word(what), counted: word(counted) }
}

#[cfg(test)]
mod tests {
    use ratelimit_common::refused::ONE_DROPPED;
    use ratelimit_common::verdict::{Reason, Verdict};

    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let written = Note { until: 7, source: 8, what: 9, counted: (3 * ONE_DROPPED) | 7 };
        let words = [written.until, written.source, written.what, written.counted].map(AtomicU64::new);
        assert_eq!(super::note(&words), written);
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
