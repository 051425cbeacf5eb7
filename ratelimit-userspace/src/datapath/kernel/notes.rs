//! What packets note beside the windows: who is refused until when, and how many were dropped by that alone.

use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use aya::maps::{PerCpuArray, PerCpuValues};
use ratelimit_common::admission::Admission;
use ratelimit_common::layout::{Active, GENERATIONS, map};
use ratelimit_common::refused::{BUSY, Cause, Line, Note, WAYS};
use ratelimit_common::time::Nanos;

use super::clients::Client;
use super::plain::Plain;
use super::shared::Shared;
use super::{Kernel, map_mut, map_ref, random, state};
use crate::datapath::DatapathError;

/// What is noted, by client and slot. // asked for each of a million windows, so it is hashed fast
#[derive(Debug, Default)]
pub(super) struct Noted(HashMap<(Client, u32), OfWindow, foldhash::fast::RandomState>);

/// What is noted of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OfWindow {
    /// Packets that were dropped by a note and are counted nowhere else yet.
    pub(super) dropped: u64,
    /// Until when packets believe the last of its notes, if they do.
    pub(super) until: Option<Nanos>,
}

impl Noted {
    /// Whether nothing is noted of anybody.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Of one window.
    pub(super) fn of(&self, client: Client, slot: u32) -> OfWindow {
        self.0.get(&(client, slot)).copied().unwrap_or_default()
    }

    /// Whoever anything is noted of.
    pub(super) fn clients(&self) -> impl Iterator<Item = Client> {
        self.0.keys().map(|(client, _)| *client)
    }

    fn add(&mut self, note: Note, cause: Cause, epoch: u32, now: Nanos) {
        let term = note.term();
        let holds = note.is_in_epoch(epoch) && term.left(now) != 0 && cause.until_ns > now.0;
        if note.is_busy() || term.is_ban() || !holds && note.dropped() == 0 {
            return;
        }
        let of = self.0.entry((client(note, cause), cause.slot)).or_default();
        of.dropped = of.dropped.saturating_add(note.dropped());
        of.until = of.until.max(holds.then_some(Nanos(cause.until_ns)));
    }
}

/// What each CPU may have of so many insertions: twice its share, as packets are not spread evenly.
pub(super) fn insertions_free(all: u32) -> u32 {
    let cpus = u32::try_from(aya::util::nr_cpus().unwrap_or(1)).unwrap_or(1).max(1);
    all.div_ceil(cpus).saturating_mul(2)
}

impl Kernel {
    /// Which generation packets read, and the epoch.
    pub(super) fn active(&mut self) -> Result<Active, DatapathError> {
        Ok(self.array::<Plain<Active>>(map::ACTIVE)?.get(&0, 0).with_context(|| format!("read {}", map::ACTIVE))?.0)
    }

    /// Has every packet read this generation, and believe nothing that was noted before.
    pub(super) fn activate(&mut self, generation: u32) -> Result<(), DatapathError> {
        let epoch = self.active()?.next_epoch();
        let active = Plain(Active::new(generation % GENERATIONS, epoch));
        self.array(map::ACTIVE)?.set(0, active, 0).with_context(|| format!("write {}", map::ACTIVE))?;
        // Packets obey already. What is not retired may be believed again when the number of its epoch comes again, many changes later.
        if let Err(error) = self.retire_notes(epoch) {
            tracing::warn!("notes of before this change are not retired: {:#}", anyhow::Error::from(error));
        }
        Ok(())
    }

    /// Takes its epoch from every note of another, before that one's number comes again.
    fn retire_notes(&self, epoch: u32) -> Result<(), DatapathError> {
        for words in self.notes()?.words().as_chunks::<NOTE_WORDS>().0 {
            retire(&words[0], note(words), |note| note.word != 0 && !note.is_in_epoch(epoch));
        }
        Ok(())
    }

    /// Has no packet believe what was noted before.
    pub(super) fn begin_epoch(&mut self) -> Result<(), DatapathError> {
        let generation = self.active()?.generation();
        self.activate(generation)
    }

    /// What was dropped by notes alone, and what notes refuse now. What has ended is retired, before its ticks come again.
    pub(super) fn noted(&mut self) -> Result<Noted, DatapathError> {
        let (now, words, epoch) = (self.read_clock()?, self.config_words()?, self.active()?.epoch());
        let is_trial_over = words.until_ns != 0 && words.until_ns <= now.0;
        let epoch = if is_trial_over { Active::epoch_after_trial(epoch) } else { epoch };
        let mut noted = Noted::default();
        let (notes, causes) = (self.notes()?, self.shared(map::CAUSES, size_of::<[Cause; WAYS]>())?);
        for (words, of) in notes.words().as_chunks().0.iter().zip(causes.words().as_chunks().0) {
            // Most have never been written.
            if words[0].load(Ordering::Relaxed) != 0 {
                let (note, cause) = note_and_cause(words, of);
                noted.add(note, cause, epoch, now);
                if cause.until_ns <= now.0 {
                    retire(&words[0], note, |is| is.term() == note.term());
                }
            }
        }
        Ok(noted)
    }

    /// Takes out the notes of these clients, and what is counted in them. What is being written at that time stays.
    pub(super) fn forget_notes(&mut self, is_meant: impl Fn(Client) -> bool) -> Result<(), DatapathError> {
        let (notes, causes) = (self.notes()?, self.shared(map::CAUSES, size_of::<[Cause; WAYS]>())?);
        for (words, of) in notes.words().as_chunks().0.iter().zip(causes.words().as_chunks().0) {
            if words[0].load(Ordering::Relaxed) == 0 {
                continue;
            }
            let (mut note, mut cause) = note_and_cause(words, of);
            // Packets count in it meanwhile, or write another.
            while note.word != 0
                && !note.is_busy()
                && is_meant(client(note, cause))
                && words[0].compare_exchange(note.word, 0, Ordering::SeqCst, Ordering::SeqCst).is_err()
            {
                (note, cause) = note_and_cause(words, of);
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

    /// Begins the draws of each CPU where the kernel's randomness says: of every CPU that there may ever be, also of one that is plugged in
    /// later. To be called before anything is attached; the map is this load's alone.
    pub(super) fn seed_draws(&mut self) -> Result<(), DatapathError> {
        let mut map: PerCpuArray<_, Plain<Admission>> =
            PerCpuArray::try_from(map_mut(&mut self.ebpf, map::ADMISSION)?).context("open ADMISSION")?;
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| error).context("count CPUs")?;
        let begin = |_| Ok(Plain(Admission { random: random::words::<1>()?[0], ..Admission::default() }));
        let begun = (0..cpus).map(begin).collect::<Result<Vec<_>, DatapathError>>()?;
        let begun = PerCpuValues::try_from(begun).context("a value for each CPU")?;
        map.set(0, begun, 0).with_context(|| format!("write {}", map::ADMISSION))?;
        Ok(())
    }

    fn notes(&self) -> Result<Shared<'_>, DatapathError> {
        self.shared(map::REFUSED, size_of::<Line>())
    }

    /// A map of elements of so many bytes as memory.
    fn shared(&self, name: &'static str, bytes: usize) -> Result<Shared<'_>, DatapathError> {
        let bytes = self.map(name)?.max_entries() as usize * bytes;
        let data = state::data(map_ref(&self.ebpf, name)?)?;
        Ok(Shared::of(data.fd().as_fd(), bytes).with_context(|| format!("map {name}"))?)
    }
}

/// Whose note it is.
fn client(note: Note, cause: Cause) -> Client {
    let [high, low] = cause.source;
    if cause.is_wide != 0 {
        return Client::V6Wide([high, low].map(u64::to_ne_bytes));
    }
    if note.is_ipv6() {
        return Client::V6(high.to_ne_bytes());
    }
    #[expect(clippy::cast_possible_truncation, reason = "an address of 32 bits")]
    let address = high as u32;
    Client::V4(address.to_ne_bytes())
}

/// Has a note refuse nothing any more, as long as it `is_over`.
fn retire(word: &AtomicU64, mut note: Note, is_over: impl Fn(Note) -> bool) {
    while !note.is_busy() && is_over(note) && note != note.retired() {
        match word.compare_exchange(note.word, note.retired().word, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return,
            // Packets count in it meanwhile.
            Err(is) => note.word = is,
        }
    }
}

/// Words of a note.
const NOTE_WORDS: usize = size_of::<Note>() / size_of::<u64>();
/// Words of a cause.
const CAUSE_WORDS: usize = size_of::<Cause>() / size_of::<u64>();

/// A note as it is now. One that is being written meanwhile may be read in parts.
fn note([word, source]: &[AtomicU64; NOTE_WORDS]) -> Note {
    Note { word: word.load(Ordering::Acquire), source: source.load(Ordering::Acquire) }
}

/// A note and its cause; read again where another has taken its place meanwhile.
fn note_and_cause(words: &[AtomicU64; NOTE_WORDS], cause: &[AtomicU64; CAUSE_WORDS]) -> (Note, Cause) {
    let [until, slot, source @ ..] = cause;
    loop {
        let (note, until_ns) = (note(words), until.load(Ordering::Acquire));
        let [a, b, c, d, wide @ ..] = slot.load(Ordering::Acquire).to_ne_bytes();
        let [high, low] = source;
        let source = [high.load(Ordering::Acquire), low.load(Ordering::Acquire)];
        if (words[0].load(Ordering::Acquire) ^ note.word) & BUSY == 0 {
            let (slot, is_wide) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes(wide));
            return (note, Cause { until_ns, slot, is_wide, source });
        }
    }
}

#[cfg(test)]
mod tests {
    use ratelimit_common::hash::HashKey;
    use ratelimit_common::packet::{Head, To};
    use ratelimit_common::refused::{Key, ONE_DROPPED, Term};
    use ratelimit_common::source::Address;
    use ratelimit_common::verdict::{Reason, Verdict};

    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let written = Note { word: 7, source: 8 };
        let words = [written.word, written.source].map(AtomicU64::new);
        let cause = Cause { until_ns: 5, slot: 9, is_wide: 1, source: [6, 7] };
        let slot = [9_u32.to_ne_bytes(), 1_u32.to_ne_bytes()].concat().try_into().map(u64::from_ne_bytes).unwrap();
        assert_eq!(note_and_cause(&words, &[5, slot, 6, 7].map(AtomicU64::new)), (written, cause));
    }

    const NOW: Nanos = Nanos(1_767_261_600_000_000_000);
    const EPOCH: u32 = 7;

    /// Of 192.0.2.1 and slot 9.
    fn note(after_ns: u64, reason: Reason, epoch: u32, dropped: u64) -> (Note, Cause) {
        let head = Head {
            source: Address::v4([192, 0, 2, 1]),
            ip_bytes: 40,
            to: To::Tcp { port: 443, opening: true, has_payload: false },
        };
        let key = Key::of(&head, epoch, u32::MAX, [u64::MAX, 0], HashKey([1, 2])).unwrap();
        let (term, until) = Term::new(NOW, Nanos(NOW.0 + after_ns), Verdict { reason, rule: 3 });
        let note = Note { word: key.noted(term) | (dropped * ONE_DROPPED), source: key.source };
        (note, Cause { until_ns: until.0, slot: 9, is_wide: 0, source: [key.source, 0] })
    }

    fn noted(notes: impl IntoIterator<Item = (Note, Cause)>) -> Noted {
        let mut noted = Noted::default();
        notes.into_iter().for_each(|(note, cause)| noted.add(note, cause, EPOCH, NOW));
        noted
    }

    #[test]
    fn a_note_tells_until_when_it_refuses() {
        let noted = noted(
            [(30_000_000_001, 2), (20_000_000_000, 3)]
                .map(|(after_ns, dropped)| note(after_ns, Reason::OverLimit, EPOCH, dropped)),
        );
        let client = Client::V4([192, 0, 2, 1]);
        assert_eq!(noted.of(client, 9), OfWindow { dropped: 5, until: Some(Nanos(NOW.0 + 30_000_000_001)) });
        let nothing = OfWindow::default();
        assert_eq!((noted.of(client, 8), noted.of(Client::V4([192, 0, 2, 2]), 9)), (nothing, nothing));
    }

    #[test]
    fn what_is_over_is_retired_with_what_was_counted_meanwhile_and_nothing_else_is() {
        let (note, _) = note(30_000_000_000, Reason::OverLimit, EPOCH, 1);
        let counted = Note { word: note.word + ONE_DROPPED, ..note };
        let word = AtomicU64::new(counted.word);
        retire(&word, note, |is| is.term() == note.term() && is.dropped() < 2);
        assert_eq!(word.load(Ordering::SeqCst), counted.word);
        retire(&word, note, |is| is.term() == note.term());
        assert_eq!(word.load(Ordering::SeqCst), counted.retired().word);
        let busy = AtomicU64::new(BUSY);
        retire(&busy, note, |_| true);
        assert_eq!(busy.load(Ordering::SeqCst), BUSY);
    }

    #[test]
    fn a_note_that_has_ended_or_of_another_epoch_refuses_nothing_and_is_counted() {
        let client = Client::V4([192, 0, 2, 1]);
        let (holds, cause) = note(30_000_000_000, Reason::OverLimit, EPOCH, 1);
        let ended = note(0, Reason::OverLimit, EPOCH, 1);
        for of in [ended, (holds.retired(), cause), note(30_000_000_000, Reason::OverLimit, EPOCH - 1, 1)] {
            let noted = noted([of]);
            assert_eq!(noted.of(client, 9), OfWindow { dropped: 1, until: None }, "{of:?}");
        }
        let busy = Note { word: BUSY | ONE_DROPPED, ..holds };
        for of in [(busy, cause), note(30_000_000_000, Reason::Banned, EPOCH, 1)] {
            let noted = noted([of]);
            assert!(noted.is_empty(), "{of:?}");
        }
    }
}
