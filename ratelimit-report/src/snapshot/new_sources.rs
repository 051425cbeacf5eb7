//! Number of new sources, and state of their sampling. Pure.

use ratelimit_common::admission::{Admission, SHIFT_MAX};
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;
use serde::{Deserialize, Serialize};

use super::{Sources, Tracked, seconds};
use ratelimit_datapath::Reading;
use ratelimit_policy::desired;

/// Binary logarithm of the period in nanoseconds for which a CPU counts insertions: 134 ms, see
/// `ratelimit_common::admission`.
const PERIOD_SHIFT: u32 = 27;

/// Number of periods without a packet after which a CPU's state is ignored.
const STALE_PERIODS: u64 = 2;

/// Overload by new sources: more arrive than can be tracked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overload {
    /// No overload: every source is counted from its first packet on.
    #[default]
    None,
    /// Overload on at least one CPU: packets of new sources are sampled.
    Sampling,
}

/// Rate of new sources that a rule admits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewSources {
    /// Maximum number of new sources in a window.
    pub amount: u64,
    /// Length of the window.
    pub window_seconds: f64,
}

impl From<desired::NewSources> for NewSources {
    fn from(of: desired::NewSources) -> Self {
        Self { amount: of.amount, window_seconds: seconds(of.window_ns) }
    }
}

/// Returns N, if a CPU now samples 1 in N packets of new sources; 1 without overload.
fn one_in(cpu: &Admission, now: Nanos) -> u64 {
    let is_stale = (now.0 >> PERIOD_SHIFT).saturating_sub(cpu.period) > STALE_PERIODS;
    // Bounded, because torn or hostile map contents must not stop the reader.
    if is_stale { 1 } else { 1 << cpu.shift.min(SHIFT_MAX) }
}

/// Returns the overload state in this reading.
pub fn overload(reading: &Reading) -> Overload {
    let sampled_one_in = reading.admissions.iter().map(|cpu| one_in(cpu, reading.now)).max().unwrap_or(1);
    if sampled_one_in == 1 { Overload::None } else { Overload::Sampling }
}

/// Returns the numbers of tracked and of not admitted sources.
pub(super) fn sources(reading: &Reading, tracked: &Tracked, packets_of: impl Fn(Reason) -> u64) -> Sources {
    let not_admitted = [Reason::NotAdmitted, Reason::NewSourceBudget, Reason::StateFull].map(packets_of);
    let sampled_one_in = reading.admissions.iter().map(|cpu| one_in(cpu, reading.now)).max().unwrap_or(1);
    let sum = |of: fn(&Admission) -> u64| reading.admissions.iter().map(of).fold(0, u64::saturating_add);
    Sources {
        tracked: tracked.sources,
        tracked_by_family: tracked.by_family,
        capacity: reading.sources_capacity,
        in_use: tracked.in_use,
        banned: 0,
        not_admitted: not_admitted.into_iter().fold(0, u64::saturating_add),
        insertions: sum(|cpu| cpu.insertions),
        overload: overload(reading),
        sampled_one_in,
        overloaded_periods: sum(|cpu| cpu.overload_periods),
        not_cached: reading.not_cached,
    }
}

/// Default sampling rate, for a daemon that does not report it.
pub(super) const fn every_one() -> u64 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_NS: u64 = 1 << PERIOD_SHIFT;

    #[test]
    fn a_cpu_that_has_seen_nothing_for_three_periods_is_not_overloaded() {
        let cpu = Admission { period: 100, shift: 8, ..Admission::default() };
        for (period, one_in_so_many) in [(99, 256), (100, 256), (102, 256), (103, 1), (10_000, 1)] {
            assert_eq!(one_in(&cpu, Nanos(period * PERIOD_NS)), one_in_so_many, "in period {period}");
            assert_eq!(one_in(&cpu, Nanos((period + 1) * PERIOD_NS - 1)), one_in_so_many, "in period {period}");
        }
    }

    #[test]
    fn any_words_are_read_without_a_panic() {
        let cpu = Admission { period: u64::MAX, shift: u32::MAX, ..Admission::default() };
        assert_eq!(one_in(&cpu, Nanos(0)), 1 << SHIFT_MAX);
    }

    #[test]
    fn the_cpu_that_draws_from_most_is_told_and_the_counts_of_all_are_summed() {
        let cpu =
            |shift, insertions| Admission { period: 5, shift, insertions, overload_periods: 2, ..Admission::default() };
        let reading = Reading {
            now: Nanos(5 * PERIOD_NS),
            interfaces: Vec::new(),
            unlisted: ratelimit_datapath::Tallies::default(),
            faults: Vec::new(),
            bans_begun: Vec::new(),
            sources_capacity: 256,
            admissions: vec![cpu(0, 7), cpu(4, 20), cpu(2, 3)],
            not_cached: 8,
            events: ratelimit_datapath::EventCounts::default(),
        };
        let of_reasons = [(Reason::NotAdmitted, 1), (Reason::NewSourceBudget, 20), (Reason::StateFull, 300)];
        let packets =
            |reason: Reason| of_reasons.iter().find(|(of, _)| *of == reason).map_or(4000, |(_, packets)| *packets);
        let tracked = Tracked { sources: 9, ..Tracked::default() };
        let of = sources(&reading, &tracked, packets);
        assert_eq!((of.overload, of.sampled_one_in), (Overload::Sampling, 16));
        assert_eq!((of.insertions, of.overloaded_periods, of.not_admitted, of.not_cached), (30, 6, 321, 8));
        let calm = Reading { admissions: vec![cpu(0, 7)], ..reading };
        let of = sources(&calm, &tracked, packets);
        assert_eq!((of.overload, of.sampled_one_in), (Overload::None, 1));
    }
}
