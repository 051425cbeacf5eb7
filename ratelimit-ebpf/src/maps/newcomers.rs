//! What is kept for sources that nobody knows yet: stamps of those who are known, the budgets of those who are not, and who is in
//! no list.

use core::intrinsics::{AtomicOrdering, atomic_cxchg};

use ratelimit_common::admission::{Admission, STAMPS_IN_WORD, Stamps};
use ratelimit_common::gcra::{self, Rate};
use ratelimit_common::layout::{Config, Fault, KNOWN_WORDS_PER_LINE, Rule, Unlisted};
use ratelimit_common::time::Nanos;
use ratelimit_common::window::{Cells, Charge};

use super::{ADMISSION, KNOWN, NEW_SOURCES, UNLISTED, fault, forget};

/// How much this CPU is pressed by new sources.
#[inline(always)]
pub(crate) fn admission() -> Option<&'static mut Admission> {
    let Some(admission) = ADMISSION.get_ptr_mut(0) else {
        fault(Fault::AdmissionLookup);
        return None;
    };
    // SAFETY: this CPU's element, which lives as long as the map; each who borrows it is done before the next one does.
    Some(unsafe { &mut *admission })
}

/// The word with a source's stamps.
#[inline(always)]
fn word(config: &Config, stamps: Stamps) -> Option<*mut u16> {
    let mask = config.lines_mask * KNOWN_WORDS_PER_LINE + (KNOWN_WORDS_PER_LINE - 1);
    #[expect(clippy::cast_possible_truncation, reason = "any of its bits will do")]
    let word = KNOWN.get_ptr_mut(stamps.place as u32 & mask);
    if word.is_none() {
        fault(Fault::KnownLookup);
    }
    word.map(|word| word.cast())
}

/// Whether the source was stamped lately; true also for some that were not.
#[inline(always)]
pub(crate) fn is_known(config: &Config, stamps: Stamps) -> bool {
    let Some(word) = word(config, stamps) else { return true };
    let [first, second] = stamps.at.map(|at| {
        // SAFETY: one of the four that the word has; it is valid for the run of the program. Volatile: other CPUs write it.
        unsafe { word.add(forget(at as u32) as usize & (STAMPS_IN_WORD - 1)).read_volatile() }
    });
    let life = config.known_life as u16;
    stamps.is_fresh(first, life) && stamps.is_fresh(second, life)
}

/// Stamps the source. What two CPUs write here at once is the same, or another source's of now. // written once a tick
#[inline(always)]
pub(crate) fn make_known(config: &Config, stamps: Stamps) {
    let Some(word) = word(config, stamps) else { return };
    for at in stamps.at {
        // SAFETY: as in `is_known`.
        let stamp = unsafe { word.add(forget(at as u32) as usize & (STAMPS_IN_WORD - 1)) };
        // SAFETY: as in `is_known`.
        if unsafe { stamp.read_volatile() } != stamps.now {
            // SAFETY: as in `is_known`.
            unsafe { stamp.write_volatile(stamps.now) };
        }
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
    let place = unlisted.place as u32 & config.lines_mask;
    UNLISTED.get_ptr_mut(place)
}
