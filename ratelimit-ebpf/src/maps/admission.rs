//! State for unknown sources: the Bloom filters of known sources and of connections, the budgets for new sources, and
//! the prefix-miss cache.

use core::intrinsics::{AtomicOrdering, atomic_cxchg};

use ratelimit_common::admission::{Admission, CELLS_PER_SUMMARY, Fingerprint};
use ratelimit_common::gcra::{self, Rate};
use ratelimit_common::layout::{Config, Fault, PREFIX_MISSES_PER_SET, PrefixMiss, Rule, SETS_PER_CONN_CELL};
use ratelimit_common::time::Nanos;
use ratelimit_common::window::{Cells, Charge};

use super::{ADMISSION, CONN_FILTER, KNOWN_FILTER, KNOWN_SUMMARY, NEW_SOURCES, PREFIX_MISSES, fault, forget, or_fault};
use crate::packet::one_register;

/// Returns this CPU's load of new sources.
#[inline(always)]
pub(crate) fn admission() -> Option<&'static mut Admission> {
    // SAFETY: this CPU's element, which lives as long as the map; each borrower is done before the next one borrows it.
    ADMISSION.get_ptr_mut(0).map(|admission| unsafe { &mut *admission })
}

/// Returns this CPU's load of new sources. Counts a fault if it is missing.
#[inline(always)]
pub(crate) fn to_admit() -> Option<&'static mut Admission> {
    or_fault(admission(), Fault::AdmissionLookup)
}

/// The Bloom filters, of sources and of connections.
#[derive(Clone, Copy)]
pub(crate) enum Filter {
    /// Known sources.
    Known,
    /// Summary of the known sources.
    KnownSummary,
    /// Connections that were found among the host's own sockets.
    Found,
    /// Connections that were looked up among the host's own sockets and not found.
    NotFound,
}

impl Filter {
    /// Returns the summary that is checked before this filter, if it has one.
    #[inline(always)]
    const fn summary(self) -> Option<Self> {
        match self {
            Self::Known => Some(Self::KnownSummary),
            Self::KnownSummary | Self::Found | Self::NotFound => None,
        }
    }
}

/// Returns pointers to the words of a fingerprint's cell: the current generation's, and the other one's.
#[inline(always)]
fn cell(of: Filter, config: &Config, fingerprint: Fingerprint) -> Option<[*mut u64; 2]> {
    let place = fingerprint.place as u32 & config.sets_mask;
    let (cell, missing, at) = match of {
        Filter::Known => (KNOWN_FILTER.get_ptr_mut(place).map(|cell| cell.cast::<u64>()), Fault::KnownFilterLookup, 0),
        Filter::KnownSummary => {
            let cell = KNOWN_SUMMARY.get_ptr_mut(place / CELLS_PER_SUMMARY);
            (cell.map(|cell| cell.cast::<u64>()), Fault::KnownSummaryLookup, 0)
        }
        Filter::Found => (connection(place), Fault::ConnFilterLookup, 0),
        Filter::NotFound => (connection(place), Fault::ConnFilterLookup, 2),
    };
    let Some(cell) = cell else {
        fault(missing);
        return None;
    };
    // The verifier does not track this value, so it must be bounded here.
    let current = forget(fingerprint.current() as u32) as usize & 1;
    // SAFETY: the lookup gave a pointer to two words, or four, valid for the run of the program.
    Some(unsafe { [cell.add(at + current), cell.add(at + (current ^ 1))] })
}

/// Returns the cell of connections at this place, which two cache sets share.
#[inline(always)]
fn connection(place: u32) -> Option<*mut u64> {
    CONN_FILTER.get_ptr_mut(place / SETS_PER_CONN_CELL).map(|cell| cell.cast::<u64>())
}

/// Returns true if the filter contains the fingerprint. False positives are possible.
#[inline(always)]
pub(crate) fn in_filter(of: Filter, config: &Config, fingerprint: Fingerprint) -> bool {
    if let Some(summary) = of.summary()
        && !is_in(summary, config, fingerprint.in_summary())
    {
        return false;
    }
    is_in(of, config, fingerprint)
}

#[inline(always)]
fn is_in(of: Filter, config: &Config, fingerprint: Fingerprint) -> bool {
    let Some(words) = cell(of, config, fingerprint) else { return true };
    // SAFETY: as in `cell`. Volatile: other CPUs write them.
    let [current, other] = words.map(|word| unsafe { word.read_volatile() });
    fingerprint.contains(current, other)
}

/// Inserts a fingerprint, first into the summary. The summary is updated even if the filter has the bits already,
/// because another fingerprint may have set them with a different summary bit. If another CPU writes the same word
/// meanwhile, the next packet inserts it.
#[inline(always)]
pub(crate) fn insert_into(of: Filter, config: &Config, fingerprint: Fingerprint) {
    if let Some(summary) = of.summary()
        && let Some(lack) = Lack::of(summary, config, fingerprint.in_summary())
        && !lack.mend()
    {
        return;
    }
    if let Some(lack) = Lack::of(of, config, fingerprint) {
        let _whatever = lack.mend();
    }
}

/// A filter word that lacks a fingerprint: its current value, and the value with the fingerprint.
struct Lack {
    word: *mut u64,
    has: u64,
    wanted: u64,
}

impl Lack {
    /// Returns `None` if the filter contains the fingerprint.
    #[inline(always)]
    fn of(of: Filter, config: &Config, fingerprint: Fingerprint) -> Option<Self> {
        let [word, _] = cell(of, config, fingerprint)?;
        // SAFETY: as in `cell`.
        let has = unsafe { word.read_volatile() };
        Some(Self { word, has, wanted: fingerprint.with_added(has)? })
    }

    /// Writes the word. Returns false if another CPU wrote it first.
    #[inline(always)]
    fn mend(self) -> bool {
        let Self { word, has, wanted } = self;
        // SAFETY: as in `cell`, and map values are aligned to 8 bytes.
        unsafe { atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(word, has, wanted) }.1
    }
}

/// Returns true if the rule's budget admits one more new source, and charges it.
#[inline(always)]
pub(crate) fn admits_new_source(rule: &Rule, now: Nanos) -> bool {
    let Some(word) = NEW_SOURCES.get_ptr_mut(rule.row.into()) else {
        fault(Fault::NewSourcesLookup);
        return true;
    };
    let rate = Rate { amount: rule.new_sources, window_ns: rule.new_sources_ns, burst_ns: rule.new_sources_ns };
    match gcra::charge(&NewSources(word), rate, now, 1) {
        Charge::Admitted(_) => true,
        Charge::Refused | Charge::Contended | Charge::Unsettled(_) => false,
    }
}

/// A rule's word in the map of budgets for new sources.
struct NewSources(*mut u64);

impl Cells for NewSources {
    const TRIES: usize = 4;

    #[inline(always)]
    fn unknown(value: usize) -> usize {
        one_register(value)
    }

    #[inline(always)]
    fn load(&self, _: usize) -> u64 {
        // SAFETY: the lookup gave a pointer to the word, valid for the run of the program. Volatile: other CPUs write
        // it.
        unsafe { self.0.read_volatile() }
    }

    #[inline(always)]
    fn compare_exchange(&self, _: usize, current: u64, new: u64) -> bool {
        // SAFETY: as above, and map values are aligned to 8 bytes.
        let (_, exchanged) = unsafe {
            atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(self.0, current, new)
        };
        exchanged
    }
}

/// Returns true if the cache has recorded that no prefix holds this source.
#[inline(always)]
pub(crate) fn is_prefix_miss(config: &Config, miss: PrefixMiss) -> bool {
    // SAFETY: the lookup gave a pointer to the word, valid for the run of the program. Volatile: other CPUs write it.
    place(config, miss).is_some_and(|word| unsafe { word.read_volatile() } == miss.word)
}

/// Records that no prefix holds this source. Writes one word, so a reader finds a whole entry.
#[inline(always)]
pub(crate) fn cache_prefix_miss(config: &Config, miss: PrefixMiss) {
    if let Some(word) = place(config, miss) {
        // SAFETY: as in `is_prefix_miss`.
        unsafe { word.write_volatile(miss.word) };
    }
}

#[inline(always)]
fn place(config: &Config, miss: PrefixMiss) -> Option<*mut u64> {
    #[expect(clippy::cast_possible_truncation, reason = "any of its bits will do")]
    let place = miss.place as u32 & ((config.sets_mask * PREFIX_MISSES_PER_SET) | (PREFIX_MISSES_PER_SET - 1));
    PREFIX_MISSES.get_ptr_mut(place)
}
