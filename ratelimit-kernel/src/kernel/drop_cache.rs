//! The drop cache that packets keep beside the windows: refused sources with their expiry, and the packets that the
//! cache alone has dropped.

use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use anyhow::Context as _;
use aya::maps::{PerCpuArray, PerCpuValues};
use ratelimit_common::admission::Admission;
use ratelimit_common::drop_cache::{BUSY, CacheSet, DropCause, DropEntry, WAYS, cause_is};
use ratelimit_common::layout::{Active, GENERATIONS, map};
use ratelimit_common::time::Nanos;

use super::clients::Client;
use super::groups::Holder;
use super::plain::Plain;
use super::shared::Shared;
use super::windows::Windows;
use super::{Kernel, map_mut, map_ref, random, state};
use crate::DatapathError;

/// Drops of the cache by client and slot. Looked up for each of a million windows, so the hash is a fast one.
#[derive(Debug, Default)]
pub(super) struct CachedDrops(HashMap<(Client, u32), OfWindow, foldhash::fast::RandomState>);

/// Drops of the cache for one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OfWindow {
    /// Number of packets dropped by an entry and not yet counted elsewhere.
    pub(super) dropped: u64,
    /// Number of those packets that were sent again after a refused request.
    pub(super) repeated: u64,
    /// Latest expiry of its entries in force, or none.
    pub(super) until: Option<Nanos>,
}

impl CachedDrops {
    /// Returns whether the cache has no drops for any window.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the drops for one window.
    pub(super) fn of(&self, client: Client, slot: u32) -> OfWindow {
        self.0.get(&(client, slot)).copied().unwrap_or_default()
    }

    /// Returns the sources that entries refuse for the source's own window.
    pub(super) fn of_sources(&self, windows: &Windows) -> impl Iterator<Item = Client> {
        let own = self.0.keys().filter(|(_, slot)| windows.holder(*slot) == Holder::Source);
        own.map(|(client, _)| *client)
    }

    fn add(&mut self, entry: DropEntry, cause: DropCause, epoch: u32, now: Nanos) {
        let expiry = entry.expiry();
        let holds = entry.is_in_epoch(epoch) && expiry.left(now) != 0 && cause.until_ns > now.0;
        if entry.is_busy() || expiry.is_ban() || !holds && entry.dropped() == 0 {
            return;
        }
        let of = self.0.entry((client(entry, cause), cause.slot)).or_default();
        of.dropped = of.dropped.saturating_add(entry.dropped());
        if cause.is & cause_is::OF_CONNECTION != 0 {
            of.repeated = of.repeated.saturating_add(entry.dropped());
        }
        of.until = of.until.max(holds.then_some(Nanos(cause.until_ns)));
    }
}

/// Returns one CPU's part of a number of free insertions: twice its share, because packets are not spread evenly.
pub(super) fn insertions_free(all: u32) -> u32 {
    let cpus = u32::try_from(aya::util::nr_cpus().unwrap_or(1)).unwrap_or(1).max(1);
    all.div_ceil(cpus).saturating_mul(2)
}

impl Kernel {
    /// Returns the generation that packets read, and the epoch.
    pub(super) fn active(&mut self) -> Result<Active, DatapathError> {
        Ok(self.array::<Plain<Active>>(map::ACTIVE)?.get(&0, 0).with_context(|| format!("read {}", map::ACTIVE))?.0)
    }

    /// Makes every packet read this generation, and invalidates all earlier cache entries.
    pub(super) fn activate(&mut self, generation: u32) -> Result<(), DatapathError> {
        let active = self.active()?;
        let epoch = active.next_epoch();
        self.write_active(active.with(generation % GENERATIONS, epoch))?;
        // Packets obey already. An entry that is not retired may become valid again when its epoch number recurs, many
        // changes later.
        if let Err(error) = self.retire_entries(epoch).and_then(|()| self.clear_summary()) {
            tracing::warn!(
                "drop-cache entries from before this change are not removed: {:#}",
                anyhow::Error::from(error)
            );
        }
        Ok(())
    }

    /// Publishes the active word. Earlier writes are visible by then, even on machines with weak store ordering
    /// (aarch64). A packet computes the addresses of its other loads from this word, which orders those loads.
    pub(super) fn write_active(&mut self, active: Active) -> Result<(), DatapathError> {
        fence(Ordering::SeqCst);
        Ok(self.array(map::ACTIVE)?.set(0, Plain(active), 0).with_context(|| format!("write {}", map::ACTIVE))?)
    }

    /// Sets the time at which enforcement lapses. None means never.
    pub(super) fn set_lapse(&mut self, at: Option<Nanos>) -> Result<(), DatapathError> {
        let active = self.active()?;
        let wanted = active.with_lapse(at);
        if wanted == active { Ok(()) } else { self.write_active(wanted) }
    }

    /// Clears the summary, so that packets look up no entry. Older entries are invalid and would keep their sources
    /// suspect. An entry written at this moment is overlooked until a window refuses its source again.
    fn clear_summary(&mut self) -> Result<(), DatapathError> {
        let mut summary = self.array::<u64>(map::DROP_SUMMARY)?;
        for at in 0..summary.len() {
            let read = summary.get(&at, 0).with_context(|| format!("read {}", map::DROP_SUMMARY))?;
            if read != 0 {
                summary.set(at, 0, 0).with_context(|| format!("write {}", map::DROP_SUMMARY))?;
            }
        }
        Ok(())
    }

    /// Retires every entry of another epoch, before the number of that epoch recurs.
    fn retire_entries(&self, epoch: u32) -> Result<(), DatapathError> {
        for words in self.drop_cache()?.words().as_chunks::<ENTRY_WORDS>().0 {
            retire(&words[0], entry(words), |entry| entry.word != 0 && !entry.is_in_epoch(epoch));
        }
        Ok(())
    }

    /// Invalidates all earlier cache entries.
    pub(super) fn begin_epoch(&mut self) -> Result<(), DatapathError> {
        let generation = self.active()?.generation();
        self.activate(generation)
    }

    /// Returns the drops that only the cache has counted, and the entries in force. Retires expired entries before
    /// their ticks recur.
    pub(super) fn cached_drops(&mut self) -> Result<CachedDrops, DatapathError> {
        let (now, words, epoch) = (self.read_clock()?, self.config_words()?, self.active()?.epoch());
        let is_trial_over = words.until_ns != 0 && words.until_ns <= now.0;
        let epoch = if is_trial_over { Active::epoch_after_trial(epoch) } else { epoch };
        let mut cached_drops = CachedDrops::default();
        let (entries, causes) = (self.drop_cache()?, self.shared(map::DROP_CAUSES, size_of::<[DropCause; WAYS]>())?);
        for (words, of) in entries.words().as_chunks().0.iter().zip(causes.words().as_chunks().0) {
            // Most entries have never been written.
            if words[0].load(Ordering::Relaxed) != 0 {
                let (entry, cause) = entry_and_cause(words, of);
                cached_drops.add(entry, cause, epoch, now);
                if cause.until_ns <= now.0 {
                    retire(&words[0], entry, |is| is.expiry() == entry.expiry());
                }
            }
        }
        Ok(cached_drops)
    }

    /// Removes the entries and counts of the selected clients. An entry that is being written at that moment stays.
    pub(super) fn remove_entries(&mut self, is_meant: impl Fn(Client) -> bool) -> Result<(), DatapathError> {
        let (entries, causes) = (self.drop_cache()?, self.shared(map::DROP_CAUSES, size_of::<[DropCause; WAYS]>())?);
        for (words, of) in entries.words().as_chunks().0.iter().zip(causes.words().as_chunks().0) {
            if words[0].load(Ordering::Relaxed) == 0 {
                continue;
            }
            let (mut entry, mut cause) = entry_and_cause(words, of);
            // Packets may count in the entry meanwhile, or write another one.
            while entry.word != 0
                && !entry.is_busy()
                && is_meant(client(entry, cause))
                && words[0].compare_exchange(entry.word, 0, Ordering::SeqCst, Ordering::SeqCst).is_err()
            {
                (entry, cause) = entry_and_cause(words, of);
            }
        }
        Ok(())
    }

    /// Returns the new sources admitted by each CPU.
    ///
    /// # Errors
    /// Fails if the map cannot be read.
    pub fn admissions(&self) -> Result<Vec<Admission>, DatapathError> {
        let map: PerCpuArray<_, Plain<Admission>> =
            PerCpuArray::try_from(map_ref(&self.ebpf, map::ADMISSION)?).context("open ADMISSION")?;
        let cpus = map.get(&0, 0).with_context(|| format!("read {}", map::ADMISSION))?;
        Ok(cpus.iter().map(|Plain(cpu)| *cpu).collect())
    }

    /// Seeds the sampling of each possible CPU with a random number of the kernel, including CPUs plugged in later.
    /// Must be called before anything is attached. The map belongs to this load alone.
    pub(super) fn seed_sampling(&mut self) -> Result<(), DatapathError> {
        let mut map: PerCpuArray<_, Plain<Admission>> =
            PerCpuArray::try_from(map_mut(&mut self.ebpf, map::ADMISSION)?).context("open ADMISSION")?;
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| error).context("count CPUs")?;
        let begin = |_| Ok(Plain(Admission { random: random::words::<1>()?[0], ..Admission::default() }));
        let begun = (0..cpus).map(begin).collect::<Result<Vec<_>, DatapathError>>()?;
        let begun = PerCpuValues::try_from(begun).context("a value for each CPU")?;
        map.set(0, begun, 0).with_context(|| format!("write {}", map::ADMISSION))?;
        Ok(())
    }

    fn drop_cache(&self) -> Result<Shared<'_>, DatapathError> {
        self.shared(map::DROP_CACHE, size_of::<CacheSet>())
    }

    /// Maps an array into memory. Each element has `bytes` bytes.
    fn shared(&self, name: &'static str, bytes: usize) -> Result<Shared<'_>, DatapathError> {
        let bytes = self.map(name)?.max_entries() as usize * bytes;
        let data = state::data(map_ref(&self.ebpf, name)?)?;
        Ok(Shared::of(data.fd().as_fd(), bytes).with_context(|| format!("map {name}"))?)
    }
}

/// Returns the client of an entry.
fn client(entry: DropEntry, cause: DropCause) -> Client {
    let [high, low] = cause.source;
    if cause.is & cause_is::WIDE != 0 {
        return Client::V6Wide([high, low].map(u64::to_ne_bytes));
    }
    if entry.is_ipv6() {
        return Client::V6(high.to_ne_bytes());
    }
    #[expect(clippy::cast_possible_truncation, reason = "an address of 32 bits")]
    let address = high as u32;
    Client::V4(address.to_ne_bytes())
}

/// Stops an entry from dropping if `is_over` holds.
fn retire(word: &AtomicU64, mut entry: DropEntry, is_over: impl Fn(DropEntry) -> bool) {
    while !entry.is_busy() && is_over(entry) && entry != entry.retired() {
        match word.compare_exchange(entry.word, entry.retired().word, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return,
            // A packet has counted in the entry meanwhile.
            Err(is) => entry.word = is,
        }
    }
}

/// Number of words in an entry.
const ENTRY_WORDS: usize = size_of::<DropEntry>() / size_of::<u64>();
/// Number of words in a cause.
const CAUSE_WORDS: usize = size_of::<DropCause>() / size_of::<u64>();

/// Reads an entry. If a packet writes the entry meanwhile, the words may not match.
fn entry([word, source]: &[AtomicU64; ENTRY_WORDS]) -> DropEntry {
    DropEntry { word: word.load(Ordering::Acquire), source: source.load(Ordering::Acquire) }
}

/// Reads an entry and its cause. Reads again if another entry has replaced the first one meanwhile.
fn entry_and_cause(words: &[AtomicU64; ENTRY_WORDS], cause: &[AtomicU64; CAUSE_WORDS]) -> (DropEntry, DropCause) {
    let [until, slot, source @ ..] = cause;
    loop {
        let (entry, until_ns) = (entry(words), until.load(Ordering::Acquire));
        let [a, b, c, d, is @ ..] = slot.load(Ordering::Acquire).to_ne_bytes();
        let [high, low] = source;
        let source = [high.load(Ordering::Acquire), low.load(Ordering::Acquire)];
        if (words[0].load(Ordering::Acquire) ^ entry.word) & BUSY == 0 {
            let (slot, is) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes(is));
            return (entry, DropCause { until_ns, slot, is, source });
        }
    }
}

#[cfg(test)]
mod tests {
    use ratelimit_common::drop_cache::{Expiry, Key, ONE_DROPPED};
    use ratelimit_common::hash::HashKey;
    use ratelimit_common::packet::{Destination, Head};
    use ratelimit_common::source::Address;
    use ratelimit_common::verdict::{Reason, Verdict};

    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let written = DropEntry { word: 7, source: 8 };
        let words = [written.word, written.source].map(AtomicU64::new);
        let cause = DropCause { until_ns: 5, slot: 9, is: cause_is::WIDE, source: [6, 7] };
        let slot = [9_u32.to_ne_bytes(), 1_u32.to_ne_bytes()].concat().try_into().map(u64::from_ne_bytes).unwrap();
        assert_eq!(entry_and_cause(&words, &[5, slot, 6, 7].map(AtomicU64::new)), (written, cause));
    }

    const NOW: Nanos = Nanos(1_767_261_600_000_000_000);
    const EPOCH: u32 = 7;

    /// Returns an entry of 192.0.2.1 and slot 9.
    fn entry(after_ns: u64, reason: Reason, epoch: u32, dropped: u64) -> (DropEntry, DropCause) {
        let head = Head {
            source: Address::v4([192, 0, 2, 1]),
            ip_bytes: 40,
            to: Destination::Tcp { port: 443, opening: true, has_payload: false },
        };
        let key = Key::of(&head, epoch, u32::MAX, [u64::MAX, 0], HashKey([1, 2])).unwrap();
        let (expiry, until) = Expiry::new(NOW, Nanos(NOW.0 + after_ns), Verdict { reason, rule: 3 });
        let entry = DropEntry { word: key.entry_word(expiry) | (dropped * ONE_DROPPED), source: key.source };
        (entry, DropCause { until_ns: until.0, slot: 9, is: 0, source: [key.source, 0] })
    }

    fn cached_drops(entries: impl IntoIterator<Item = (DropEntry, DropCause)>) -> CachedDrops {
        let mut cached_drops = CachedDrops::default();
        entries.into_iter().for_each(|(entry, cause)| cached_drops.add(entry, cause, EPOCH, NOW));
        cached_drops
    }

    #[test]
    fn an_entry_tells_until_when_it_drops() {
        let cached_drops = cached_drops(
            [(30_000_000_001, 2), (20_000_000_000, 3)]
                .map(|(after_ns, dropped)| entry(after_ns, Reason::OverLimit, EPOCH, dropped)),
        );
        let client = Client::V4([192, 0, 2, 1]);
        assert_eq!(
            cached_drops.of(client, 9),
            OfWindow { dropped: 5, repeated: 0, until: Some(Nanos(NOW.0 + 30_000_000_001)) }
        );
        let nothing = OfWindow::default();
        assert_eq!((cached_drops.of(client, 8), cached_drops.of(Client::V4([192, 0, 2, 2]), 9)), (nothing, nothing));
    }

    #[test]
    fn an_expired_entry_is_retired_with_its_latest_count_and_no_other_is() {
        let (entry, _) = entry(30_000_000_000, Reason::OverLimit, EPOCH, 1);
        let counted = DropEntry { word: entry.word + ONE_DROPPED, ..entry };
        let word = AtomicU64::new(counted.word);
        retire(&word, entry, |is| is.expiry() == entry.expiry() && is.dropped() < 2);
        assert_eq!(word.load(Ordering::SeqCst), counted.word);
        retire(&word, entry, |is| is.expiry() == entry.expiry());
        assert_eq!(word.load(Ordering::SeqCst), counted.retired().word);
        let busy = AtomicU64::new(BUSY);
        retire(&busy, entry, |_| true);
        assert_eq!(busy.load(Ordering::SeqCst), BUSY);
    }

    #[test]
    fn an_entry_that_expired_or_is_of_another_epoch_drops_nothing_and_is_counted() {
        let client = Client::V4([192, 0, 2, 1]);
        let (holds, cause) = entry(30_000_000_000, Reason::OverLimit, EPOCH, 1);
        let ended = entry(0, Reason::OverLimit, EPOCH, 1);
        for of in [ended, (holds.retired(), cause), entry(30_000_000_000, Reason::OverLimit, EPOCH - 1, 1)] {
            let cached_drops = cached_drops([of]);
            assert_eq!(cached_drops.of(client, 9), OfWindow { dropped: 1, repeated: 0, until: None }, "{of:?}");
        }
        let busy = DropEntry { word: BUSY | ONE_DROPPED, ..holds };
        for of in [(busy, cause), entry(30_000_000_000, Reason::Banned, EPOCH, 1)] {
            let cached_drops = cached_drops([of]);
            assert!(cached_drops.is_empty(), "{of:?}");
        }
    }
}
