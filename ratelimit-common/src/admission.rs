//! Which new sources are remembered while more of them come than the maps can take: sample and hold (Estan and Varghese, *New
//! Directions in Traffic Measurement and Accounting*, SIGCOMM 2002).
//!
//! Each CPU has a budget of insertions. As long as it lasts everybody is remembered with the first packet, and counting is exact. Past
//! it, a packet of a source that nobody knows is looked at by chance, one in 2^[`Admission::shift`], and passes otherwise: a flood of
//! forged sources then costs a draw and evicts few. A source that sends k times its limit N is looked at with each packet that is drawn:
//! of n packets one is with probability 1 - (1 - 2^-shift)^n. With the second of them it is known, and from then on it is counted exactly.
//!
//! The first count is not corrected for what was not drawn. That would be the better estimate, and would let who forges an address
//! spend 2^shift of its owner's limit with one packet.
//!
//! Who is known is told by [`stamps`](Stamps): a source that was charged a second time, within the longest window.

use crate::refused::mix;
use crate::time::Nanos;

/// How long the insertions of a CPU are counted for: 134 ms.
const PERIOD_SHIFT: u32 = 27;

/// The most that is drawn from: one in 4096.
pub const SHIFT_MAX: u32 = 12;

/// A budget that is never spent.
pub const BUDGET_ANY: u32 = u32::MAX;

/// Insertions of a CPU in one period unless the daemon says otherwise: 15 000 a second. // at less than 1 us each
pub const BUDGET: u32 = 2048;

/// What one CPU has admitted, and how much it is pressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Admission {
    /// Which period it is.
    pub period: u64,
    /// Insertions since the program was loaded.
    pub insertions: u64,
    /// Periods that began with [`Admission::shift`] above 0.
    pub pressed_periods: u64,
    /// The state of the draws.
    pub random: u64,
    /// Sources that wanted to be remembered in this period, drawn or not.
    pub wanted: u32,
    /// Insertions in this period, since the shift was changed last.
    pub inserted: u32,
    /// One packet of an unknown source in 2^this is looked at; 0 below pressure.
    pub shift: u32,
    /// Whether the packet at hand was drawn.
    pub is_drawn: u32,
}

const _: () = assert!(size_of::<Admission>() == 48);

impl Admission {
    /// Whether more sources come than the budget is for.
    #[inline(always)]
    pub const fn is_pressed(&self) -> bool {
        self.shift != 0
    }

    /// Goes on to the period of `now`, with the share that the last one would have needed. It falls by one step a period, so that a
    /// flood that pauses is not let in at once.
    #[inline(always)]
    pub const fn advance(&mut self, now: Nanos, budget: u32) {
        let period = now.0 >> PERIOD_SHIFT;
        if period == self.period {
            return;
        }
        let mut shift = needed(self.wanted, budget);
        // Where periods passed without a packet there was no pressure in them.
        let slowly = if period == self.period + 1 { self.shift.saturating_sub(1) } else { 0 };
        if shift < slowly {
            shift = slowly;
        }
        self.period = period;
        self.shift = shift;
        self.wanted = 0;
        self.inserted = 0;
        self.pressed_periods += (shift != 0) as u64;
    }

    /// A packet of a source that nobody knows: whether it is looked at.
    #[inline(always)]
    pub const fn draw(&mut self) -> bool {
        self.wanted = self.wanted.saturating_add(1);
        // Marsaglia's xorshift; 0 would stay 0.
        let mut x = self.random | 1;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random = x;
        mix(0, x, 0) >> 40 & ((1 << self.shift) - 1) == 0
    }

    /// A source is being inserted. Where the budget of the period is spent, the next are drawn from twice as many.
    #[inline(always)]
    pub const fn insert(&mut self, budget: u32) {
        self.insertions += 1;
        if self.shift == 0 {
            self.wanted = self.wanted.saturating_add(1);
        }
        self.inserted = self.inserted.saturating_add(1);
        if self.inserted >= budget && budget != BUDGET_ANY {
            self.inserted = 0;
            if self.shift < SHIFT_MAX {
                self.shift += 1;
            }
        }
    }
}

/// The least shift by which so many are no more than the budget.
#[inline(always)]
const fn needed(wanted: u32, budget: u32) -> u32 {
    let mut shift = 0;
    let mut left = wanted;
    while shift < SHIFT_MAX {
        if left <= budget {
            break;
        }
        left >>= 1;
        shift += 1;
    }
    shift
}

/// Where the two stamps of a source are, and what they say now. A stamp is 16 bits of a clock that ticks every 17 s: a Bloom filter
/// whose bits age by themselves. Four of them are a word; both of a source are in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// Which word, before it is cut to how many there are.
    pub place: u64,
    /// Which of the word's four.
    pub at: [usize; 2],
    /// What a stamp of now is, never 0.
    pub now: u16,
}

/// Stamps in a word.
pub const STAMPS_IN_WORD: usize = 4;

/// How often stamps tick: every 17 s. // 2^16 of them are 13 days; an older stamp may look new, and then costs a look-up
const TICK_SHIFT: u32 = 34;

/// The longest that a stamp is believed: a quarter of its range, 3 days.
pub const LIFE_MAX: u16 = 1 << 14;

impl Stamps {
    /// Those of the source with this prefix.
    #[inline(always)]
    pub const fn of(seed: u64, high: u64, low: u64, now: Nanos) -> Self {
        let place = mix(seed, high, low);
        let first = (place >> 40) as usize % STAMPS_IN_WORD;
        let second = (first + 1 + (place >> 42) as usize % (STAMPS_IN_WORD - 1)) % STAMPS_IN_WORD;
        #[expect(clippy::cast_possible_truncation, reason = "less than 2^16")]
        let now = (now.0 >> TICK_SHIFT) as u16;
        Self { place, at: [first, second], now: if now == 0 { 1 } else { now } }
    }

    /// Whether a stamp was made within `life` ticks.
    #[inline(always)]
    pub const fn is_fresh(self, stamp: u16, life: u16) -> bool {
        stamp != 0 && self.now.wrapping_sub(stamp) <= life
    }
}

/// How many ticks a stamp is believed where what it stands for lasts so long.
pub const fn life(lasting_ns: u64) -> u16 {
    let ticks = (lasting_ns >> TICK_SHIFT) + 2;
    #[expect(clippy::cast_possible_truncation, reason = "at most that")]
    let life = if ticks > LIFE_MAX as u64 { LIFE_MAX } else { ticks as u16 };
    life
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SECOND_NS;

    const START: Nanos = Nanos(1_767_261_600 * SECOND_NS);

    fn at(millis: u64) -> Nanos {
        Nanos(START.0 + millis * 1_000_000)
    }

    /// A flood of so many new sources a second for so long: insertions of each second, and what was looked at of the last.
    fn flood(admission: &mut Admission, from: u64, seconds: u64, per_millisecond: u32, budget: u32) -> Vec<u64> {
        let mut inserted = Vec::new();
        for second in 0..seconds {
            let before = admission.insertions;
            for millisecond in 0..1000 {
                admission.advance(at(from + second * 1000 + millisecond), budget);
                for _ in 0..per_millisecond {
                    if !admission.is_pressed() || admission.draw() {
                        admission.insert(budget);
                    }
                }
            }
            inserted.push(admission.insertions - before);
        }
        inserted
    }

    #[test]
    fn as_long_as_the_budget_lasts_everybody_is_admitted() {
        let mut admission = Admission::default();
        assert_eq!(flood(&mut admission, 0, 3, 10, BUDGET), [10_000; 3]);
        assert!(!admission.is_pressed());
        assert_eq!(admission.pressed_periods, 0);
    }

    #[test]
    fn a_flood_is_held_to_the_budget_within_its_first_second_and_after() {
        let mut admission = Admission::default();
        let budget_a_second = u64::from(BUDGET) * 1_000_000_000 >> PERIOD_SHIFT;
        for (second, inserted) in flood(&mut admission, 0, 5, 2000, BUDGET).into_iter().enumerate() {
            // The first period finds the share by doubling: a budget for each step.
            let slack = if second == 0 { 12 * u64::from(BUDGET) } else { budget_a_second / 10 };
            assert!(inserted <= budget_a_second + slack, "{inserted} in second {second}");
            assert!(inserted >= budget_a_second / 3, "{inserted} in second {second}");
        }
        assert!(admission.is_pressed());
    }

    #[test]
    fn when_the_flood_is_over_everybody_is_admitted_again() {
        let mut admission = Admission::default();
        flood(&mut admission, 0, 2, 2000, BUDGET);
        assert!(admission.is_pressed());
        flood(&mut admission, 2000, 3, 1, BUDGET);
        assert!(!admission.is_pressed());
        flood(&mut admission, 5000, 1, 2000, BUDGET);
        admission.advance(at(60_000), BUDGET);
        assert!(admission.shift <= needed(admission.wanted.max(2000 * 134), BUDGET));
        admission.advance(at(61_000), BUDGET);
        assert!(!admission.is_pressed());
    }

    #[test]
    fn a_budget_without_end_is_never_spent() {
        let mut admission = Admission::default();
        assert_eq!(flood(&mut admission, 0, 1, 5000, BUDGET_ANY), [5_000_000]);
        assert!(!admission.is_pressed());
    }

    #[test]
    fn draws_are_one_in_two_to_the_shift() {
        for shift in [1, 4, 8] {
            let mut admission = Admission { shift, ..Admission::default() };
            let drawn = (0..1 << 20).filter(|_| admission.draw()).count();
            let expected = (1_usize << 20) >> shift;
            assert!(drawn.abs_diff(expected) < expected / 10, "{drawn} of {expected}");
        }
    }

    #[test]
    fn a_source_over_its_limit_is_caught_within_the_stated_number_of_packets() {
        // At the most, 1 in 4096: 99 in 100 sources within 4.6 times as many packets.
        let mut late = 0;
        for source in 0..1000 {
            let mut admission = Admission { shift: SHIFT_MAX, random: mix(7, source, 0), ..Admission::default() };
            late += usize::from((0..18_884).all(|_| !admission.draw()));
        }
        assert!(late <= 25, "{late} of 1000");
    }

    #[test]
    fn a_stamp_is_fresh_for_its_life_and_not_after() {
        let life = life(300 * SECOND_NS);
        let made = Stamps::of(1, 2, 3, START);
        for (seconds, fresh) in [(0, true), (300, true), (400, false), (86_400, false)] {
            let now = Stamps::of(1, 2, 3, Nanos(START.0 + seconds * SECOND_NS));
            assert_eq!((now.place, now.at), (made.place, made.at));
            assert_eq!(now.is_fresh(made.now, life), fresh, "after {seconds} s");
        }
        assert!(!made.is_fresh(0, LIFE_MAX));
    }

    #[test]
    fn the_two_stamps_of_a_source_are_not_one() {
        assert!(
            (0..1000)
                .map(|source| Stamps::of(9, source, 0, START).at)
                .all(|[first, second]| first != second && second < 4)
        );
    }
}
