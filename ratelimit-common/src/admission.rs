//! Choice of the new sources that get windows while more of them come than the maps can hold: sample and hold (Estan
//! and Varghese, *New Directions in Traffic Measurement and Accounting*, SIGCOMM 2002).
//!
//! Each CPU has a budget of insertions, besides those that first fill the maps and evict no source. Within the budget,
//! every source gets a window with its first packet, and counting is exact. Beyond it, the CPU is overloaded: it
//! samples packets of unknown sources, one in 2^[`Admission::shift`], and passes the others. A flood of forged sources
//! then costs one hash per packet, and evicts few sources. If a source sends k times its limit N, each sampled packet
//! is counted. With q = 2^-shift, at least two of n packets are sampled with probability 1 - (1-q)^n - nq(1-q)^(n-1).
//! The second one makes the source known, and from then on it is counted exactly.
//!
//! The first count is not corrected for the packets that were sampled out. The corrected estimate would be better, but
//! one forged packet could then spend 2^shift of the limit of the address that it names.
//!
//! A sample is the keyed hash of a running number. Each CPU's numbers start at a random value with each load. Without
//! the key, no sample can be predicted, whatever earlier samples were observed.
//!
//! Flows and connections use the same budget, even those of packets that no limit counts. Otherwise each forged flow
//! would cost an insertion and an eviction. A flow that is not remembered is judged as new again with its next packet.
//!
//! [`Fingerprint`]s in a Bloom filter identify the known sources: those that were charged a second time within the
//! longest window.

use crate::hash::HashKey;
use crate::time::Nanos;

/// Shift of the period in which a CPU's insertions are counted: 2^27 ns, 134 ms.
pub(crate) const PERIOD_SHIFT: u32 = 27;

/// Shift of the sparsest sampling: one in 4096.
pub const SHIFT_MAX: u32 = 12;

/// Bit that marks the hash of a sample, in the second word, above the upper bits of its number. No other hash of such a
/// short message has this bit.
const SAMPLING: u64 = 1 << 23;

/// Budget that is never spent.
pub const BUDGET_ANY: u32 = u32::MAX;

/// Default number of insertions of a CPU in one period: 15 000 a second.
pub const BUDGET: u32 = 2048;

/// Admissions by one CPU, and its overload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Admission {
    /// Number of the current period.
    pub period: u64,
    /// Number of insertions since the program was loaded.
    pub insertions: u64,
    /// Number of periods that began with [`Admission::shift`] above 0.
    pub overload_periods: u64,
    /// Number of the next sample. The loader sets a random start for each CPU.
    pub random: u64,
    /// Number of sources that asked for a window in this period, sampled in or out.
    pub wanted: u32,
    /// Number of insertions in this period, since the shift was last changed.
    pub inserted: u32,
    /// Sampling rate for packets of unknown sources: one in 2^shift. 0 without overload.
    pub shift: u32,
    /// Sample of the current packet: 1 if it was sampled in, [`Admission::SAMPLED_OUT`], or 0 before sampling.
    pub is_sampled: u32,
}

impl Admission {
    /// Value of [`Admission::is_sampled`] for a packet that was sampled out.
    pub const SAMPLED_OUT: u32 = 2;
}

const _: () = assert!(size_of::<Admission>() == 48);

impl Admission {
    /// Returns whether more sources come than the budget covers.
    #[inline(always)]
    pub const fn is_overloaded(&self) -> bool {
        self.shift != 0
    }

    /// Moves on to the period of `now`, with the shift that the last period would have needed. The shift falls by at
    /// most one per period, so the rest of a flood that pauses is not admitted at once.
    #[inline(always)]
    pub const fn advance(&mut self, now: Nanos, budget: u32) {
        let period = now.0 >> PERIOD_SHIFT;
        if period == self.period {
            return;
        }
        // Periods without a packet had no overload.
        let shift = if period == self.period + 1 {
            let (needed, slowly) = (needed(self.wanted, budget), self.shift.saturating_sub(1));
            if needed < slowly { slowly } else { needed }
        } else {
            0
        };
        self.period = period;
        self.shift = shift;
        self.wanted = 0;
        self.inserted = 0;
        self.overload_periods += (shift != 0) as u64;
    }

    /// Returns whether a packet of an unknown source is sampled in.
    #[inline(always)]
    pub const fn sample(&mut self, seed: HashKey) -> bool {
        self.wanted = self.wanted.saturating_add(1);
        self.random = self.random.wrapping_add(1);
        // 55 bits of the number fit a message of 7 bytes, the cheapest one.
        seed.hash(self.random & 0xffff_ffff, SAMPLING | self.random >> 32 & (SAMPLING - 1)) & ((1 << self.shift) - 1)
            == 0
    }

    /// Counts the insertion of a source: one of the `free` ones, or one on the budget. When the period's budget is
    /// spent, sampling becomes half as frequent.
    #[inline(always)]
    pub const fn insert(&mut self, budget: u32, free: u32) {
        self.insertions += 1;
        if self.insertions > free as u64 {
            self.spend(budget);
        }
    }

    /// Returns whether a new flow or connection is remembered, on the same budget. Under overload, it is sampled like a
    /// source, unless its own source is known or sampled in already (`is_admitted`). A flow that is not remembered asks
    /// again with its next packet.
    #[inline(always)]
    pub const fn remembers_flow(&mut self, seed: HashKey, budget: u32, is_admitted: bool) -> bool {
        if self.is_overloaded() && !is_admitted && !self.sample(seed) {
            return false;
        }
        self.spend(budget);
        true
    }

    /// Counts one insertion on the budget.
    #[inline(always)]
    const fn spend(&mut self, budget: u32) {
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

/// Returns the smallest shift by which `wanted` is within the budget.
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

/// Packets for which a rule first checks whether their source is known. The rule's first limit counts one for each of
/// them, and nothing comes before that limit. A packet of a forged flood then costs one sample, and no lookup of its
/// own.
pub mod known_first {
    use crate::layout::{Limit, Rule, Unit};

    /// TCP SYNs without ACK.
    pub const OPENINGS: u32 = 1;
    /// UDP datagrams.
    pub const DATAGRAMS: u32 = 2;

    /// Returns the packets for which this rule first checks the source.
    pub const fn of(rule: &Rule) -> u32 {
        // An unknown source may be banned, or refused everything. Packets that the gate drops count for shadow limits,
        // and those that it samples out count for groups.
        if rule.has_groups()
            || rule.own_len == 0
            || rule.bans.steps_len != 0
            || rule.refuse_all != 0
            || rule.shadows_len != 0
        {
            return 0;
        }
        let Limit { unit, amount, .. } = rule.limits[0];
        match Unit::from_code(unit) {
            // A limit of 0 opens no window.
            _ if amount == 0 => 0,
            Some(Unit::Packets) => OPENINGS | DATAGRAMS,
            // A datagram counts only if it opens a flow.
            Some(Unit::Connections) => OPENINGS,
            Some(Unit::Bytes | Unit::Requests) | None => 0,
        }
    }
}

/// Source in a Bloom filter of two generations, which expires by itself. A cell has two words: one for even
/// generations, one for odd ones. A word holds a generation's number and [`CELL_BITS`] bits, three of which are the
/// source's. A source is known if it is in the current or the previous generation. A word of an older generation counts
/// as empty.
///
/// ```text
///     63       48 47                 0
/// [ generation | bits              ]
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Number of the cell, modulo the number of cells.
    pub place: u64,
    /// Bits of the source within a cell's word.
    pub bits: u64,
    /// Number of the current generation, modulo 2^16.
    pub generation: u16,
}

/// Number of bits of a word that sources share.
pub const CELL_BITS: u32 = 48;

/// Number of cells whose sources share one summary cell, see [`Fingerprint::in_summary`].
pub const CELLS_PER_SUMMARY: u32 = 16;

const SUMMARY_BITS: u32 = CELL_BITS / CELLS_PER_SUMMARY;

impl Fingerprint {
    /// Returns the fingerprint of the source with this prefix. A generation lasts 2^`generation_shift` ns.
    #[inline(always)]
    pub const fn of(seed: HashKey, high: u64, low: u64, generation_shift: u32, now: Nanos) -> Self {
        let place = seed.hash(high, low);
        let choice = place >> 32;
        let bits = 1 << (choice & 15) | 1 << (16 + (choice >> 4 & 15)) | 1 << (32 + (choice >> 8 & 15));
        #[expect(clippy::cast_possible_truncation, reason = "its low bits")]
        let generation = (now.0 >> (generation_shift & 63)) as u16;
        Self { place: place ^ choice >> 12, bits, generation }
    }

    /// Returns the source's single bit in the summary cell of several cells. Packets of a flood of unknown sources read
    /// only the summary, which stays in a near cache, and few of the cells themselves.
    #[inline(always)]
    #[must_use]
    pub const fn in_summary(self) -> Self {
        let cell = self.place % CELLS_PER_SUMMARY as u64 * SUMMARY_BITS as u64;
        let choice = ((self.place >> 48 & 0xff) * SUMMARY_BITS as u64) >> 8;
        Self { place: self.place, bits: 1 << (cell + choice), generation: self.generation }
    }

    /// Returns the index of the cell's word for the current generation. The other word is for the previous one, or
    /// outdated.
    #[inline(always)]
    pub const fn current(self) -> usize {
        self.generation as usize & 1
    }

    /// Returns whether a cell with these words holds the source: the current generation's word and the other one. False
    /// positives are possible.
    #[inline(always)]
    pub const fn contains(self, current: u64, other: u64) -> bool {
        self.is_in(current, self.generation) || self.is_in(other, self.generation.wrapping_sub(1))
    }

    #[inline(always)]
    const fn is_in(self, word: u64, generation: u16) -> bool {
        word >> CELL_BITS == generation as u64 && word & self.bits == self.bits
    }

    /// Returns the word of the current generation with the source added; None if it has the source already.
    #[inline(always)]
    pub const fn with_added(self, current: u64) -> Option<u64> {
        if self.is_in(current, self.generation) {
            return None;
        }
        let empty = (self.generation as u64) << CELL_BITS;
        let kept = if current >> CELL_BITS == self.generation as u64 { current } else { empty };
        Some(kept | self.bits)
    }
}

/// Returns the smallest `generation_shift` of [`Fingerprint::of`] with a generation that lasts `lasting_ns`.
pub const fn generation_shift(lasting_ns: u64) -> u32 {
    let shift = 64 - lasting_ns.leading_zeros();
    if shift < PERIOD_SHIFT { PERIOD_SHIFT } else { shift }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{self, Unit};
    use crate::time::SECOND_NS;

    const KEY: HashKey = HashKey([0x0123_4567_89ab_cdef, 77]);
    const START: Nanos = Nanos(1_767_261_600 * SECOND_NS);

    fn at(millis: u64) -> Nanos {
        Nanos(START.0 + millis * 1_000_000)
    }

    /// Runs a flood of `per_millisecond` new sources for `seconds`. Returns the insertions of each second.
    fn flood(admission: &mut Admission, from: u64, seconds: u64, per_millisecond: u32, budget: u32) -> Vec<u64> {
        let mut inserted = Vec::new();
        for second in 0..seconds {
            let before = admission.insertions;
            for millisecond in 0..1000 {
                admission.advance(at(from + second * 1000 + millisecond), budget);
                for _ in 0..per_millisecond {
                    if !admission.is_overloaded() || admission.sample(KEY) {
                        admission.insert(budget, 0);
                    }
                }
            }
            inserted.push(admission.insertions - before);
        }
        inserted
    }

    #[test]
    fn a_rule_asks_first_where_nothing_else_comes_before() {
        let rule = |unit: Unit, amount| {
            let mut rule = layout::Rule { limits_len: 1, own_len: 1, ..layout::Rule::default() };
            rule.limits[0] = layout::Limit { unit: unit as u8, amount, ..layout::Limit::default() };
            rule
        };
        let (connections, packets) = (rule(Unit::Connections, 1), rule(Unit::Packets, 1));
        assert_eq!(known_first::of(&connections), known_first::OPENINGS);
        assert_eq!(known_first::of(&packets), known_first::OPENINGS | known_first::DATAGRAMS);
        let mut banning = packets;
        banning.bans.steps_len = 1;
        let refusing_all = layout::Rule { refuse_all: 1, ..packets };
        let with_shadows = layout::Rule { shadows_len: 1, ..packets };
        let with_groups = layout::Rule { limits_len: 2, ..packets };
        let others =
            [rule(Unit::Requests, 1), rule(Unit::Bytes, 9999), rule(Unit::Packets, 0), layout::Rule::default()];
        for rule in [banning, refusing_all, with_shadows, with_groups].iter().chain(&others) {
            assert_eq!(known_first::of(rule), 0, "{rule:?}");
        }
    }

    #[test]
    fn within_the_budget_every_source_is_admitted() {
        let mut admission = Admission::default();
        assert_eq!(flood(&mut admission, 0, 3, 10, BUDGET), [10_000; 3]);
        assert!(!admission.is_overloaded());
        assert_eq!(admission.overload_periods, 0);
    }

    #[test]
    fn a_flood_is_held_to_the_budget_within_its_first_second_and_after() {
        let mut admission = Admission::default();
        let budget_a_second = (u64::from(BUDGET) * 1_000_000_000) >> PERIOD_SHIFT;
        for (second, inserted) in flood(&mut admission, 0, 5, 2000, BUDGET).into_iter().enumerate() {
            // The first period finds the shift by doubling: one budget for each step.
            let slack = if second == 0 { 12 * u64::from(BUDGET) } else { budget_a_second / 10 };
            assert!(inserted <= budget_a_second + slack, "{inserted} in second {second}");
            assert!(inserted >= budget_a_second / 3, "{inserted} in second {second}");
        }
        assert!(admission.is_overloaded());
    }

    #[test]
    fn a_flood_of_flows_that_nothing_counts_is_held_to_the_budget_too() {
        let mut admission = Admission::default();
        let budget_a_second = (u64::from(BUDGET) * 1_000_000_000) >> PERIOD_SHIFT;
        for second in 0..5 {
            let mut remembered = 0;
            for millisecond in 0..1000 {
                admission.advance(at(second * 1000 + millisecond), BUDGET);
                remembered += (0..2000).filter(|_| admission.remembers_flow(KEY, BUDGET, false)).count() as u64;
            }
            let slack = if second == 0 { 12 * u64::from(BUDGET) } else { budget_a_second / 10 };
            assert!(remembered <= budget_a_second + slack, "{remembered} in second {second}");
            assert!(remembered >= budget_a_second / 3, "{remembered} in second {second}");
        }
        assert!(admission.is_overloaded());
        assert_eq!(admission.insertions, 0, "these are those of sources");
    }

    #[test]
    fn a_flow_of_an_admitted_source_is_remembered_and_others_are_sampled() {
        let remembered = |is_admitted| {
            let mut admission = Admission { shift: SHIFT_MAX, random: 7, ..Admission::default() };
            (0..1000).filter(|_| admission.remembers_flow(KEY, BUDGET_ANY, is_admitted)).count()
        };
        assert_eq!(remembered(true), 1000);
        assert!(remembered(false) < 10);
        let mut calm = Admission::default();
        assert!((0..1000).all(|_| calm.remembers_flow(KEY, BUDGET_ANY, false)));
    }

    #[test]
    fn after_the_flood_every_source_is_admitted_again() {
        let mut admission = Admission::default();
        flood(&mut admission, 0, 2, 2000, BUDGET);
        assert!(admission.is_overloaded());
        flood(&mut admission, 2000, 3, 1, BUDGET);
        assert!(!admission.is_overloaded());
        flood(&mut admission, 5000, 1, 2000, BUDGET);
        assert!(admission.is_overloaded());
        admission.advance(at(60_000), BUDGET);
        assert!(!admission.is_overloaded());
    }

    #[test]
    fn a_budget_without_end_is_never_spent() {
        let mut admission = Admission::default();
        assert_eq!(flood(&mut admission, 0, 1, 5000, BUDGET_ANY), [5_000_000]);
        assert!(!admission.is_overloaded());
    }

    #[test]
    fn while_the_maps_fill_every_source_is_admitted() {
        let mut admission = Admission::default();
        for _ in 0..100_000 {
            admission.insert(BUDGET, 100_000);
        }
        assert!(!admission.is_overloaded());
        for _ in 0..BUDGET {
            admission.insert(BUDGET, 100_000);
        }
        assert!(admission.is_overloaded());
    }

    #[test]
    fn samples_are_one_in_two_to_the_shift() {
        for shift in [1, 4, 8] {
            let mut admission = Admission { shift, ..Admission::default() };
            let sampled = (0..1 << 20).filter(|_| admission.sample(KEY)).count();
            let expected = (1_usize << 20) >> shift;
            assert!(sampled.abs_diff(expected) < expected / 10, "{sampled} of {expected}");
        }
    }

    #[test]
    fn samples_that_start_elsewhere_or_by_another_key_are_others() {
        let sampled = |random, key| {
            let mut admission = Admission { shift: 2, random, ..Admission::default() };
            (0..200).map(|_| admission.sample(key)).collect::<Vec<_>>()
        };
        let other = HashKey([KEY.0[0], KEY.0[1] ^ 1]);
        assert_eq!(sampled(7, KEY), sampled(7, KEY));
        for random in [0, 8, 7 + (1 << 32), 7 + (1 << 54)] {
            assert_ne!(sampled(random, KEY), sampled(7, KEY), "{random:x}");
        }
        assert_ne!(sampled(7, other), sampled(7, KEY));
    }

    #[test]
    fn a_source_over_its_limit_is_caught_within_the_stated_number_of_packets() {
        // At the sparsest sampling, 1 in 4096, 99 % of sources are sampled a second time within 6.64 times as many
        // packets.
        let mut late = 0;
        for source in 0..1000 {
            let mut admission = Admission { shift: SHIFT_MAX, random: KEY.hash(source, 0), ..Admission::default() };
            late += usize::from((0..27_188).filter(|_| admission.sample(KEY)).count() < 2);
        }
        assert!(late <= 25, "{late} of 1000");
    }

    /// Returns how many of `made` added sources and of `asked` other sources are known after `later_ns`.
    fn known(made: u64, asked: u64, later_ns: u64) -> (usize, usize) {
        let shift = generation_shift(300 * SECOND_NS);
        let mut cells = vec![[0_u64; 2]; 32_768];
        for source in 0..made {
            let fingerprint = Fingerprint::of(KEY, source, 4, shift, START);
            let word = &mut cells[(fingerprint.place & 32_767) as usize][fingerprint.current()];
            *word = fingerprint.with_added(*word).unwrap_or(*word);
            assert_eq!(fingerprint.with_added(*word), None);
        }
        let is_known = |source: &u64| {
            let fingerprint = Fingerprint::of(KEY, *source, 4, shift, Nanos(START.0 + later_ns));
            let cell = cells[(fingerprint.place & 32_767) as usize];
            fingerprint.contains(cell[fingerprint.current()], cell[1 - fingerprint.current()])
        };
        ((0..made).filter(is_known).count(), (made..made + asked).filter(is_known).count())
    }

    #[test]
    fn a_source_made_known_is_known_for_the_longest_window_and_then_expires() {
        for (seconds, all) in [(0, true), (60, true), (300, true), (2000, false), (86_400, false)] {
            assert_eq!(known(1000, 0, seconds * SECOND_NS).0 == 1000, all, "after {seconds} s");
        }
    }

    #[test]
    fn few_unknown_sources_are_taken_for_known_ones() {
        let (_, taken) = known(262_144, 100_000, 0);
        assert!(taken < 10_000, "{taken} of 100 000 where the table is full");
        let (_, taken) = known(32_768, 100_000, 0);
        assert!(taken < 200, "{taken} of 100 000 where an eighth of it is");
    }

    /// Returns how many of 100 000 unknown sources the summary cannot rule out, if `made` sources are known.
    fn looked_for(made: u64) -> usize {
        let shift = generation_shift(300 * SECOND_NS);
        let mut cells = vec![0_u64; 32_768 / CELLS_PER_SUMMARY as usize];
        let at = |fingerprint: Fingerprint| (fingerprint.place & 32_767) as usize / CELLS_PER_SUMMARY as usize;
        let fingerprint = |source: u64| Fingerprint::of(KEY, source, 4, shift, START).in_summary();
        for fingerprint in (0..made).map(fingerprint) {
            let word = &mut cells[at(fingerprint)];
            *word = fingerprint.with_added(*word).unwrap_or(*word);
        }
        let is_known = |fingerprint: &Fingerprint| fingerprint.contains(cells[at(*fingerprint)], 0);
        assert_eq!((0..made).map(fingerprint).filter(is_known).count() as u64, made);
        (made..made + 100_000).map(fingerprint).filter(is_known).count()
    }

    #[test]
    fn the_summary_rules_out_most_unknown_sources_unless_many_are_known() {
        assert_eq!(looked_for(0), 0);
        assert!((500..1_500).contains(&looked_for(1_000)), "{}", looked_for(1_000));
        assert!((8_000..11_000).contains(&looked_for(10_000)), "{}", looked_for(10_000));
    }

    #[test]
    fn a_cell_of_an_older_generation_is_empty() {
        let fingerprint = Fingerprint::of(KEY, 2, 3, 30, START);
        assert!(!fingerprint.contains(0, 0));
        let old = u64::from(fingerprint.generation.wrapping_sub(2)) << CELL_BITS | fingerprint.bits;
        assert!(!fingerprint.contains(old, 0) && !fingerprint.contains(0, old));
        assert_eq!(
            fingerprint.with_added(old),
            Some(u64::from(fingerprint.generation) << CELL_BITS | fingerprint.bits)
        );
    }
}
