//! What is kept for sources that nobody knows yet: marks of those who are known, and of connections; the budgets of those who
//! are not, and who is in no list.

use core::intrinsics::{AtomicOrdering, atomic_cxchg};

use ratelimit_common::admission::{Admission, CELLS_PER_SUMMARY, Mark};
use ratelimit_common::gcra::{self, Rate};
use ratelimit_common::layout::{Config, Fault, LINES_PER_CONNECTIONS, Rule, UNLISTED_PER_LINE, Unlisted};
use ratelimit_common::time::Nanos;
use ratelimit_common::window::{Cells, Charge};

use super::{ADMISSION, CONNECTIONS, KNOWN, KNOWN_SUMMARY, NEW_SOURCES, UNLISTED, fault, forget, or_fault};
use crate::packet::one_register;

/// How much this CPU is pressed by new sources.
#[inline(always)]
pub(crate) fn admission() -> Option<&'static mut Admission> {
    // SAFETY: this CPU's element, which lives as long as the map; each who borrows it is done before the next one does.
    ADMISSION.get_ptr_mut(0).map(|admission| unsafe { &mut *admission })
}

/// The same, where it is needed most; what is missing is counted here.
#[inline(always)]
pub(crate) fn to_admit() -> Option<&'static mut Admission> {
    or_fault(admission(), Fault::AdmissionLookup)
}

/// What was marked lately: sources, or connections.
#[derive(Clone, Copy)]
pub(crate) enum Marked {
    /// Sources that are known.
    Known,
    /// What sums those up.
    KnownSummary,
    /// Connections that were found among the host's own.
    Found,
    /// Connections that were looked for there, and not found.
    NotFound,
}

impl Marked {
    /// What sums it up.
    #[inline(always)]
    const fn summary(self) -> Option<Self> {
        match self {
            Self::Known => Some(Self::KnownSummary),
            Self::KnownSummary | Self::Found | Self::NotFound => None,
        }
    }
}

/// The words of a mark's cell: that of this turn, and the other one.
#[inline(always)]
fn cell(of: Marked, config: &Config, mark: Mark) -> Option<[*mut u64; 2]> {
    let place = mark.place as u32 & config.lines_mask;
    let (cell, missing, at) = match of {
        Marked::Known => (KNOWN.get_ptr_mut(place).map(|cell| cell.cast::<u64>()), Fault::KnownLookup, 0),
        Marked::KnownSummary => {
            let cell = KNOWN_SUMMARY.get_ptr_mut(place / CELLS_PER_SUMMARY);
            (cell.map(|cell| cell.cast::<u64>()), Fault::KnownSummaryLookup, 0)
        }
        Marked::Found => (connection(place), Fault::ConnectionsLookup, 0),
        Marked::NotFound => (connection(place), Fault::ConnectionsLookup, 2),
    };
    let Some(cell) = cell else {
        fault(missing);
        return None;
    };
    // What the verifier does not follow must be in bounds for it all the same.
    let current = forget(mark.current() as u32) as usize & 1;
    // SAFETY: the lookup gave a pointer to two words, or four, valid for the run of the program.
    Some(unsafe { [cell.add(at + current), cell.add(at + (current ^ 1))] })
}

/// What is kept of connections at this place, of two lines together.
#[inline(always)]
fn connection(place: u32) -> Option<*mut u64> {
    CONNECTIONS.get_ptr_mut(place / LINES_PER_CONNECTIONS).map(|cell| cell.cast::<u64>())
}

/// Whether it was marked lately; true also for some that were not.
#[inline(always)]
pub(crate) fn is_marked(of: Marked, config: &Config, mark: Mark) -> bool {
    if let Some(summary) = of.summary()
        && !is_in(summary, config, mark.in_summary())
    {
        return false;
    }
    is_in(of, config, mark)
}

#[inline(always)]
fn is_in(of: Marked, config: &Config, mark: Mark) -> bool {
    let Some(words) = cell(of, config, mark) else { return true };
    // SAFETY: as in `cell`. Volatile: other CPUs write them.
    let [current, other] = words.map(|word| unsafe { word.read_volatile() });
    mark.is_known(current, other)
}

/// Marks it, first where it is summed up, also where others have its bits already: theirs are summed up by another bit. Where another
/// CPU writes the same word at that time it is left to the next packet.
#[inline(always)]
pub(crate) fn make_marked(of: Marked, config: &Config, mark: Mark) {
    if let Some(summary) = of.summary()
        && let Some(lack) = Lack::of(summary, config, mark.in_summary())
        && !lack.mend()
    {
        return;
    }
    if let Some(lack) = Lack::of(of, config, mark) {
        let _whatever = lack.mend();
    }
}

/// A word that lacks a mark: what it has, and what it is to have.
struct Lack {
    word: *mut u64,
    has: u64,
    wanted: u64,
}

impl Lack {
    /// None where the mark is there.
    #[inline(always)]
    fn of(of: Marked, config: &Config, mark: Mark) -> Option<Self> {
        let [word, _] = cell(of, config, mark)?;
        // SAFETY: as in `cell`.
        let has = unsafe { word.read_volatile() };
        Some(Self { word, has, wanted: mark.made_known(has)? })
    }

    /// Writes the word, unless another CPU does.
    #[inline(always)]
    fn mend(self) -> bool {
        let Self { word, has, wanted } = self;
        // SAFETY: as in `cell`, and map values are aligned to 8 bytes.
        unsafe { atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(word, has, wanted) }.1
    }
}

/// Whether the rule lets one more new source in.
#[inline(always)]
pub(crate) fn lets_in(rule: &Rule, now: Nanos) -> bool {
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

/// A rule's word of new sources.
struct NewSources(*mut u64);

impl Cells for NewSources {
    const TRIES: usize = 4;

    #[inline(always)]
    fn unknown(value: usize) -> usize {
        one_register(value)
    }

    #[inline(always)]
    fn load(&self, _: usize) -> u64 {
        // SAFETY: the lookup gave a pointer to the word, valid for the run of the program. Volatile: other CPUs write it.
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

/// Whether it is noted that no prefix holds this source.
#[inline(always)]
pub(crate) fn is_unlisted(config: &Config, unlisted: Unlisted) -> bool {
    // SAFETY: the lookup gave a pointer to the word, valid for the run of the program. Volatile: other CPUs write it.
    place(config, unlisted).is_some_and(|word| unsafe { word.read_volatile() } == unlisted.word)
}

/// Notes that no prefix holds it. One write of one word: whoever reads it finds this source or another, whole.
#[inline(always)]
pub(crate) fn note_unlisted(config: &Config, unlisted: Unlisted) {
    if let Some(word) = place(config, unlisted) {
        // SAFETY: as in `is_unlisted`.
        unsafe { word.write_volatile(unlisted.word) };
    }
}

#[inline(always)]
fn place(config: &Config, unlisted: Unlisted) -> Option<*mut u64> {
    #[expect(clippy::cast_possible_truncation, reason = "any of its bits will do")]
    let place = unlisted.place as u32 & ((config.lines_mask * UNLISTED_PER_LINE) | (UNLISTED_PER_LINE - 1));
    UNLISTED.get_ptr_mut(place)
}
