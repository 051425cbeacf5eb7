//! Proposal of a limit that separates the few heavy sources from the many, from the busiest windows of all sources.
//! Pure.

use ratelimit_common::layout::Unit;
use serde::{Deserialize, Serialize};

/// Minimum number of sources for a proposal.
pub const SOURCES_MIN: usize = 20;
/// Number of sources from which the busiest 0.1 % may be blocked if no gap separates the few from the many.
const SOURCES_MANY: usize = 1000;
/// Minimum ratio of a gap. Smaller ratios occur by chance in the tail of any mixed load.
const GAP_RATIO_MIN: f64 = 3.0;
/// Maximum ratio of a limit, before rounding, to the demand of the busiest ordinary source, however wide the gap.
const HEADROOM_MAX: u64 = 10;
/// Ratio of a limit, before rounding, to the observed demand if there is no gap.
const HEADROOM: u64 = 2;

/// Distribution of the sources' busiest windows, as nearest-rank percentiles in the limit's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    /// Demand that half of the sources never exceeded in any window.
    pub median: u64,
    /// Demand that 90 % of the sources never exceeded.
    pub p90: u64,
    /// Demand that 99 % of the sources never exceeded.
    pub p99: u64,
    /// Demand that 99.9 % of the sources never exceeded.
    pub p999: u64,
    /// Demand of the busiest source.
    pub max: u64,
}

/// Range of demand that contains no source's busiest window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Busiest window of the busiest source below the gap.
    pub below: u64,
    /// Busiest window of the least busy source above the gap.
    pub above: u64,
    /// Number of sources above the gap.
    pub sources_above: u64,
}

/// Proposed limit and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Proposed amount, in the limit's unit.
    pub amount: u64,
    /// Number of sources that the limit would have blocked at least once.
    pub sources_blocked: u64,
    /// Reason for the amount.
    pub reason: Reason,
}

/// Reason for a proposed amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The amount lies in this gap.
    Gap(Gap),
    /// Without a gap, the amount is twice the demand that 99.9 % of the sources never exceed, rounded up.
    TwiceMost,
    /// Without a gap and with few sources, the amount is twice the demand of the busiest, rounded up.
    TwiceAll,
}

impl Distribution {
    /// Computes the distribution of `busiest`, which is ascending. Returns none if there is no source.
    pub fn of(busiest: &[u64]) -> Option<Self> {
        let rank = |permille: usize| {
            let rank = busiest.len().saturating_mul(permille).div_ceil(1000);
            busiest.get(rank.saturating_sub(1)).copied()
        };
        let [median, p90, p99, p999, max] = [500, 900, 990, 999, 1000].map(rank);
        Some(Self { median: median?, p90: p90?, p99: p99?, p999: p999?, max: max? })
    }
}

impl Gap {
    /// Returns the ratio of the demand of the least busy source above the gap to that of the busiest source below it.
    #[expect(clippy::cast_precision_loss, reason = "a factor is compared and shown to two digits")]
    pub fn ratio(&self) -> f64 {
        self.above as f64 / self.below.max(1) as f64
    }
}

/// Returns the significant gaps, lowest first. They are at least threefold, wide enough for the unit, and have at most
/// half of the sources above.
pub fn gaps(busiest: &[u64], unit: Unit) -> Vec<Gap> {
    let pairs = busiest.windows(2).enumerate().map(|(at, pair)| Gap {
        below: pair[0],
        above: pair[1],
        sources_above: (busiest.len() - 1 - at) as u64,
    });
    let means_something = |gap: &Gap| {
        gap.above - gap.below >= few(unit)
            && gap.ratio() >= GAP_RATIO_MIN
            && gap.sources_above.saturating_mul(2) <= busiest.len() as u64
    };
    pairs.filter(means_something).collect()
}

/// Returns the gap with the largest ratio.
pub fn widest(gaps: &[Gap]) -> Option<Gap> {
    gaps.iter().copied().max_by(|one, other| one.ratio().total_cmp(&other.ratio()))
}

/// Proposes a limit from `busiest`, which is ascending. Returns none for fewer than [`SOURCES_MIN`] sources.
pub fn propose(busiest: &[u64], unit: Unit, amount_max: u64) -> Option<Proposal> {
    let of = Distribution::of(busiest).filter(|_| busiest.len() >= SOURCES_MIN)?;
    let (amount, reason) = match parting(&gaps(busiest, unit)) {
        Some(gap) => (within(gap, few(unit)), Reason::Gap(gap)),
        None if busiest.len() >= SOURCES_MANY => (above(of.p999, few(unit)), Reason::TwiceMost),
        None => (above(of.max, few(unit)), Reason::TwiceAll),
    };
    let amount = amount.min(amount_max);
    let sources_blocked = busiest.len() - busiest.partition_point(|busiest| *busiest <= amount);
    Some(Proposal { amount, sources_blocked: sources_blocked as u64, reason })
}

/// Returns the gap between ordinary and heavy sources. Heavy sources have gaps among themselves, so the widest gap may
/// be too high. The result is the lowest gap whose ratio is at least the square root of the widest one's.
fn parting(gaps: &[Gap]) -> Option<Gap> {
    let widest = widest(gaps)?;
    gaps.iter().copied().find(|gap| gap.ratio().powi(2) >= widest.ratio())
}

/// Returns the smallest amount proposed: loading one web page takes as much.
const fn few(unit: Unit) -> u64 {
    match unit {
        Unit::Requests | Unit::Connections | Unit::Packets => 10,
        Unit::Bytes => 64_000,
    }
}

/// Returns a round amount, [`HEADROOM`] times `busiest` or more.
fn above(busiest: u64, few: u64) -> u64 {
    round_up(busiest.saturating_mul(HEADROOM).max(few))
}

/// Returns a round amount near the geometric middle of a gap, at most [`HEADROOM_MAX`] times its lower end before
/// rounding.
fn within(gap: Gap, few: u64) -> u64 {
    let middle = (u128::from(gap.below) * u128::from(gap.above)).isqrt();
    let middle = u64::try_from(middle).unwrap_or(u64::MAX).min(gap.below.saturating_mul(HEADROOM_MAX));
    let amount = round_up(middle.max(few));
    if amount < gap.above { amount } else { round_down(gap.above - 1).max(gap.below) }
}

/// Rounds up to the next of 1, 2, 5, 10, 20, 50 and so on.
fn round_up(amount: u64) -> u64 {
    steps().find(|step| *step >= amount).unwrap_or(u64::MAX)
}

fn round_down(amount: u64) -> u64 {
    steps().take_while(|step| *step <= amount).last().unwrap_or(1)
}

fn steps() -> impl Iterator<Item = u64> {
    (0..19).flat_map(|power| [1, 2, 5].map(|step| step * 10_u64.pow(power)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: u64 = 1 << 40;

    fn connections(busiest: &[u64]) -> Option<Proposal> {
        propose(busiest, Unit::Connections, MAX)
    }

    /// Returns the busiest windows of ordinary sources, 1 to `ordinary`, followed by `others`.
    fn with(ordinary: u64, others: &[u64]) -> Vec<u64> {
        (1..=ordinary).chain(others.iter().copied()).collect()
    }

    #[test]
    fn a_distribution_is_by_the_nearest_rank() {
        assert_eq!(Distribution::of(&[]), None);
        let all = |value| Distribution { median: value, p90: value, p99: value, p999: value, max: value };
        assert_eq!(Distribution::of(&[7]), Some(all(7)));
        let of = |count: u64| Distribution::of(&(1..=count).collect::<Vec<_>>()).expect("there are some");
        assert_eq!(of(2), Distribution { median: 1, p90: 2, p99: 2, p999: 2, max: 2 });
        assert_eq!(of(10), Distribution { median: 5, p90: 9, p99: 10, p999: 10, max: 10 });
        assert_eq!(of(1000), Distribution { median: 500, p90: 900, p99: 990, p999: 999, max: 1000 });
        assert_eq!(of(1001), Distribution { median: 501, p90: 901, p99: 991, p999: 1000, max: 1001 });
    }

    #[test]
    fn the_proposal_lies_in_the_gap_below_those_who_want_far_more() {
        for (busiest, amount, blocked) in [
            // The geometric middle of 40 and 4000 is 400.
            (with(40, &[4000, 5000]), 500, 2),
            // The geometric middle of 40 and 130 is 72.
            (with(40, &[130, 140, 150]), 100, 3),
            // The amount is not 200, which would refuse none of the three sources.
            (with(100, &[300, 310, 320]), 200, 3),
            // The amount stays near ten times the lower end, however wide the gap is.
            (with(40, &[10_000_000]), 500, 1),
            // A single far busier source does not hide the lower gap.
            (with(40, &[300, 500, 2000, 100_000]), 200, 4),
            // A somewhat busier office still counts as an ordinary source.
            (with(30, &[95, 2000, 3000]), 500, 2),
        ] {
            let proposal = connections(&busiest).expect("there are enough");
            assert_eq!((proposal.amount, proposal.sources_blocked), (amount, blocked), "{:?}", proposal.reason);
            assert!(matches!(proposal.reason, Reason::Gap(_)));
        }
    }

    #[test]
    fn a_proposal_without_a_gap_is_twice_the_demand_of_all_or_of_most() {
        let even = with(60, &[]);
        let proposal = connections(&even).expect("there are enough");
        assert_eq!((proposal.amount, proposal.sources_blocked, proposal.reason), (200, 0, Reason::TwiceAll));
        let many: Vec<u64> = std::iter::repeat_n(10, 5000).chain(std::iter::repeat_n(29, 4)).collect();
        let proposal = connections(&many).expect("there are enough");
        assert_eq!((proposal.amount, proposal.sources_blocked, proposal.reason), (20, 4, Reason::TwiceMost));
    }

    #[test]
    fn no_proposal_is_a_handful() {
        assert_eq!(connections(&[1; 30]).map(|of| of.amount), Some(10));
        assert_eq!(connections(&[vec![1; 30], vec![11]].concat()).map(|of| of.amount), Some(10));
        assert_eq!(propose(&[1500; 30], Unit::Bytes, MAX).map(|of| of.amount), Some(100_000));
        let bytes = propose(&[vec![1500; 30], vec![66_000]].concat(), Unit::Bytes, MAX);
        assert_eq!(bytes.map(|of| (of.amount, of.sources_blocked)), Some((50_000, 1)));
    }

    #[test]
    fn gaps_leave_at_most_half_of_the_sources_above_and_ignore_small_values() {
        assert_eq!(gaps(&with(20, &[30; 20]), Unit::Connections), []);
        let half: Vec<u64> = std::iter::repeat_n(5, 10).chain(std::iter::repeat_n(500, 10)).collect();
        assert_eq!(gaps(&half, Unit::Connections), [Gap { below: 5, above: 500, sources_above: 10 }]);
        let most: Vec<u64> = std::iter::repeat_n(5, 9).chain(std::iter::repeat_n(500, 11)).collect();
        assert_eq!(gaps(&most, Unit::Connections), []);
        assert_eq!(gaps(&[1, 1, 1, 10], Unit::Connections), [], "1 and 10 are both few");
        assert_eq!(gaps(&[1, 1, 1, 11], Unit::Connections).len(), 1);
        assert_eq!(gaps(&[100, 100, 100, 299], Unit::Connections), []);
        assert_eq!(gaps(&[100, 100, 100, 300], Unit::Connections).len(), 1);
        assert_eq!(gaps(&[1500, 1500, 60_000], Unit::Bytes), []);
        assert_eq!(gaps(&[1500, 1500, 66_000], Unit::Bytes).len(), 1);
    }

    #[test]
    fn too_few_sources_allow_no_conclusion() {
        let few = vec![1; SOURCES_MIN - 1];
        assert_eq!(connections(&few), None);
        assert!(connections(&[few, vec![1]].concat()).is_some());
    }

    #[test]
    fn no_proposal_is_more_than_can_be_counted() {
        assert_eq!(propose(&vec![600; 30], Unit::Packets, 1000).map(|of| of.amount), Some(1000));
    }

    proptest! {
        #[test]
        fn a_proposal_in_a_gap_refuses_what_is_above_it_and_no_other(
            mut busiest in prop::collection::vec(1_u64..1 << 40, SOURCES_MIN..60),
            shifts in prop::collection::vec(0_u32..40, 60),
        ) {
            busiest.iter_mut().zip(shifts).for_each(|(busiest, shift)| *busiest = (*busiest >> shift).max(1));
            busiest.sort_unstable();
            let proposal = propose(&busiest, Unit::Connections, u64::MAX).expect("there are enough");
            if let Reason::Gap(gap) = proposal.reason {
                prop_assert!((gap.below..gap.above).contains(&proposal.amount), "{proposal:?}");
                prop_assert_eq!(proposal.sources_blocked, gap.sources_above);
            }
        }
    }
}
