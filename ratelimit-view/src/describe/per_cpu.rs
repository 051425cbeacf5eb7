//! Kernel memory that grows with the number of possible processors.

use ratelimit_common::events::EventTally;
use ratelimit_common::layout::{COUNTERS_LEN, Counters, EVENT_TALLIES, FAULTS_MAX, ROWS_MAX};
use ratelimit_policy::config::amount;

/// Returns the bytes that one possible processor takes in per-CPU maps. The program's scratch space, some KB, is not
/// included.
pub const fn per_cpu_bytes() -> u64 {
    let words = (FAULTS_MAX as usize + ROWS_MAX) * size_of::<u64>();
    let tallies = EVENT_TALLIES as usize * size_of::<EventTally>();
    (COUNTERS_LEN * size_of::<Counters>() + words + tallies) as u64
}

/// Describes the memory of per-CPU counters: `counters of 128 possible processors (2 run) take 12 MB`.
pub fn per_cpu_words(possible: u32, online: u32) -> String {
    let bytes = amount::rounded(u64::from(possible).saturating_mul(per_cpu_bytes()));
    format!("counters of {possible} possible processors ({online} run) take {bytes}")
}

/// Describes the memory of per-CPU counters if more processors are possible than run, which users may not expect. None
/// otherwise.
pub fn idle_cpus(possible: u32, online: u32) -> Option<String> {
    (possible > online).then(|| per_cpu_words(possible, online))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_that_never_run_are_told_with_what_they_take_and_only_they() {
        assert_eq!(idle_cpus(2, 2), None);
        let said = idle_cpus(128, 2).unwrap_or_default();
        assert!(said.starts_with("counters of 128 possible processors (2 run) take "), "{said}");
        assert_eq!(said, per_cpu_words(128, 2));
        assert!(said.ends_with(&amount::rounded(128 * per_cpu_bytes())), "{said}");
    }
}
