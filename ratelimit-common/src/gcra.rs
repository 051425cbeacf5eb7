//! Generic cell rate algorithm: a leaky bucket that drains evenly, in one word.
//!
//! The word is the theoretical arrival time: the time at which the bucket is empty if nothing more arrives. A charge
//! costs the time that its amount takes to drain. It is admitted if the bucket is then at most as deep as the burst.
//! The word changes only by compare-and-exchange, and the decision is based on the word that was exchanged.
//!
//! Costs are rounded up to a nanosecond. So a rate is never exceeded, and each charge costs less than a nanosecond too
//! much.

use crate::time::Nanos;
use crate::window::{Admitted, CELLS, Cells, Charge};

/// Index of the word in a window.
const WORD: usize = 0;

/// Largest amount of one charge, longer than any packet. 2^17 times a day of 2^46.3 ns fits a word.
pub const AMOUNT_MAX: u64 = (1 << 17) - 1;

/// Arithmetic of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Amount that drains in `window_ns`; 0 admits nothing.
    pub amount: u64,
    /// Length of the window in nanoseconds, at most a day.
    pub window_ns: u64,
    /// Depth of the bucket, as the nanoseconds that it takes to drain.
    pub burst_ns: u64,
}

impl Rate {
    /// Returns the nanoseconds that `amount`, at most [`AMOUNT_MAX`], takes to drain, rounded up. Returns `u64::MAX` if
    /// nothing drains.
    #[inline(always)]
    pub const fn cost_ns(self, amount: u64) -> u64 {
        if self.amount == 0 {
            return u64::MAX;
        }
        let amount = if amount > AMOUNT_MAX { AMOUNT_MAX } else { amount };
        let product = amount.wrapping_mul(self.window_ns);
        let quotient = product / self.amount;
        if quotient * self.amount < product { quotient + 1 } else { quotient }
    }

    /// Returns the word after `amount` more at `now`; None if that is over the limit.
    #[inline(always)]
    pub const fn next(self, word: u64, now: Nanos, amount: u64) -> Option<u64> {
        let start = if word > now.0 { word } else { now.0 };
        let next = start.saturating_add(self.cost_ns(amount));
        if next - now.0 <= self.burst_ns { Some(next) } else { None }
    }

    /// Returns the time from which `amount` is within the limit, if nothing else is charged. Returns None if it never
    /// is.
    pub const fn free_from(self, word: u64, now: Nanos, amount: u64) -> Option<Nanos> {
        let cost_ns = self.cost_ns(amount);
        if cost_ns > self.burst_ns {
            return None;
        }
        let from = word.saturating_add(cost_ns).saturating_sub(self.burst_ns);
        Some(Nanos(if from > now.0 { from } else { now.0 }))
    }

    /// Returns the filled part of the bucket at `now`, in the limit's unit, rounded up.
    pub fn used(self, word: u64, now: Nanos) -> u64 {
        let left = u128::from(word.saturating_sub(now.0)) * u128::from(self.amount);
        let used = left.div_ceil(u128::from(self.window_ns.max(1)));
        u64::try_from(used).unwrap_or(u64::MAX)
    }
}

/// Returns whether `amount` would be admitted at `now`. `false` is certain; another CPU may overtake `true`.
#[inline(always)]
pub fn is_within_limit<C: Cells>(cells: &C, rate: Rate, now: Nanos, amount: u64) -> bool {
    rate.next(cells.load(WORD), now, amount).is_some()
}

/// Charges `amount` at `now`, exactly. The bucket in the result is a whole window, and is not used.
#[inline(always)]
pub fn charge<C: Cells>(cells: &C, rate: Rate, now: Nanos, amount: u64) -> Charge {
    for _ in 0..C::unknown(C::TRIES) {
        let word = cells.load(WORD);
        let Some(next) = rate.next(word, now, amount) else { return Charge::Refused };
        if cells.compare_exchange(WORD, word, next) {
            let bucket = now.bucket(rate.window_ns);
            return Charge::Admitted(Admitted { bucket, own: 0, is_step: false });
        }
    }
    Charge::Contended
}

/// Writes the word of a new bucket with `amount` charged. The other words are not read, and stay unchanged. Returns
/// false and writes nothing if `amount` is over the limit.
#[inline(always)]
pub fn open(words: &mut [u64; CELLS], rate: Rate, now: Nanos, amount: u64) -> bool {
    let Some(next) = rate.next(0, now, amount) else { return false };
    words[WORD] = next;
    true
}

/// Takes back a charge. If other CPUs are faster in [`Cells::TRIES`] tries, it stays charged, which can only refuse
/// more.
#[inline(always)]
pub fn refund<C: Cells>(cells: &C, rate: Rate, amount: u64) {
    for _ in 0..C::unknown(C::TRIES) {
        let word = cells.load(WORD);
        if cells.compare_exchange(WORD, word, word.saturating_sub(rate.cost_ns(amount))) {
            return;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::time::SECOND_NS;

    type Words = [Cell<u64>; CELLS];

    fn empty() -> Words {
        core::array::from_fn(|_| Cell::new(0))
    }

    const TEN_O_CLOCK: u64 = 1_767_261_600 * SECOND_NS;
    /// Limit of 6 in 30 seconds, all of which may come at once.
    const SIX: Rate = Rate { amount: 6, window_ns: 30 * SECOND_NS, burst_ns: 30 * SECOND_NS };

    fn admitted(words: &Words, rate: Rate, now: u64, tries: u64) -> u64 {
        (0..tries).map(|_| u64::from(charge(words, rate, Nanos(now), 1) != Charge::Refused)).sum()
    }

    #[test]
    fn six_in_thirty_seconds_are_six_at_once_and_then_one_every_five() {
        let words = empty();
        assert_eq!(admitted(&words, SIX, TEN_O_CLOCK, 10), 6);
        assert_eq!(admitted(&words, SIX, TEN_O_CLOCK + 5 * SECOND_NS - 1, 10), 0);
        assert_eq!(admitted(&words, SIX, TEN_O_CLOCK + 5 * SECOND_NS, 10), 1);
        assert_eq!(admitted(&words, SIX, TEN_O_CLOCK + 16 * SECOND_NS, 10), 2);
        assert_eq!(admitted(&words, SIX, TEN_O_CLOCK + 3600 * SECOND_NS, 10), 6);
    }

    #[test]
    fn a_small_burst_holds_whatever_the_rate_allows() {
        let words = empty();
        let rate = Rate { burst_ns: 10 * SECOND_NS, ..SIX };
        assert_eq!(admitted(&words, rate, TEN_O_CLOCK, 10), 2);
        assert_eq!(admitted(&words, rate, TEN_O_CLOCK + 4 * SECOND_NS, 10), 0);
        assert_eq!(admitted(&words, rate, TEN_O_CLOCK + 5 * SECOND_NS, 10), 1);
    }

    #[test]
    fn the_wait_is_told_to_the_nanosecond() {
        let words = empty();
        assert_eq!(admitted(&words, SIX, TEN_O_CLOCK, 6), 6);
        let from = SIX.free_from(words.load(WORD), Nanos(TEN_O_CLOCK), 1).expect("it frees");
        assert_eq!(from.0, TEN_O_CLOCK + 5 * SECOND_NS);
        assert_eq!(SIX.used(words.load(WORD), Nanos(TEN_O_CLOCK)), 6);
        assert_eq!(SIX.used(words.load(WORD), Nanos(TEN_O_CLOCK + 5 * SECOND_NS)), 5);
        assert_eq!(SIX.free_from(0, Nanos(TEN_O_CLOCK), 7), None);
    }

    #[test]
    fn nothing_drains_from_a_limit_of_zero_and_nothing_is_admitted() {
        let rate = Rate { amount: 0, ..SIX };
        assert!(!is_within_limit(&empty(), rate, Nanos(TEN_O_CLOCK), 1));
        assert_eq!(charge(&empty(), rate, Nanos(TEN_O_CLOCK), 1), Charge::Refused);
    }

    #[test]
    fn a_refunded_charge_is_within_the_limit_again() {
        let words = empty();
        assert_eq!(admitted(&words, SIX, TEN_O_CLOCK, 6), 6);
        refund(&words, SIX, 1);
        assert_eq!(admitted(&words, SIX, TEN_O_CLOCK, 6), 1);
    }
}
