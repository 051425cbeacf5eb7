//! Counters of a layout with fewer reasons: copied, then increased by what was counted after the copy.

use std::collections::BTreeSet;

use anyhow::Context as _;
use aya::maps::{PerCpuArray, PerCpuValues};
use ratelimit_common::layout::{Counters, INTERFACE_UNKNOWN, Tally, counters_index, map};
use ratelimit_common::verdict::Verdict;

use super::super::map_mut;
use super::super::plain::Plain;
use super::{Kernel, Move};
use crate::DatapathError;

impl Kernel {
    /// Copies the given rows that changed since the last copy.
    pub(super) fn copy_counters(&mut self, moving: &mut Move, rows: &[u32]) -> Result<(), DatapathError> {
        let Some(read) = moving.layout.counters else { return Ok(()) };
        for (row, cpus) in read(self.earlier()?, rows)? {
            let is_empty = cpus.iter().all(|cpu| *cpu == Counters::default());
            if !is_empty && moving.counters.get(&row) != Some(&cpus) {
                self.write_counters(row, &cpus)?;
                moving.counters.insert(row, cpus);
            }
        }
        Ok(())
    }

    /// Adds what the earlier program counted after the last copy. A packet is lost if its CPU counts it in the same row
    /// in the microsecond between reading the row and writing the sum. A resumed move adds nothing, because the copied
    /// values are no longer known.
    pub(super) fn add_counters(&mut self, moving: &Move, rows: &[u32], is_resumed: bool) -> Result<(), DatapathError> {
        let Some(read) = moving.layout.counters.filter(|_| !is_resumed) else { return Ok(()) };
        for (row, after) in read(self.earlier()?, rows)? {
            let none = vec![Counters::default(); after.len()];
            let before = moving.counters.get(&row).unwrap_or(&none);
            if *before == after {
                continue;
            }
            let mut cpus = self.read_counters(row)?;
            for (cpu, (after, before)) in cpus.iter_mut().zip(after.iter().zip(before)) {
                add(cpu, after, before);
            }
            self.write_counters(row, &cpus)?;
        }
        Ok(())
    }

    /// Returns the rows that the earlier program counts in. Empty if a resumed move has removed the earlier
    /// configuration.
    pub(super) fn rows_in_use(&self, moving: &Move) -> Result<Vec<u32>, DatapathError> {
        if !self.earlier()?.map(map::CONFIG).exists() {
            return Ok(Vec::new());
        }
        let generations = (moving.layout.config)(self.earlier()?)?;
        let rules = generations.iter().flat_map(|of| &of.rules).map(|rule| rule.row).chain([Verdict::NO_RULE]);
        let rules: BTreeSet<u8> = rules.collect();
        let of = |position| rules.iter().map(move |row| counters_index(position, *row));
        Ok((0..=INTERFACE_UNKNOWN).flat_map(of).collect())
    }

    fn read_counters(&mut self, row: u32) -> Result<Vec<Counters>, DatapathError> {
        let cpus = self.counters()?.get(&row, 0).context("read COUNTERS")?;
        Ok(cpus.iter().map(|cpu| cpu.0).collect())
    }

    fn write_counters(&mut self, row: u32, cpus: &[Counters]) -> Result<(), DatapathError> {
        let cpus = PerCpuValues::try_from(cpus.iter().map(|cpu| Plain(*cpu)).collect::<Vec<_>>());
        Ok(self.counters()?.set(row, cpus.context("a value for each CPU")?, 0).context("write COUNTERS")?)
    }

    fn counters(&mut self) -> Result<PerCpuArray<&mut aya::maps::MapData, Plain<Counters>>, DatapathError> {
        Ok(PerCpuArray::try_from(map_mut(&mut self.ebpf, map::COUNTERS)?).context("open COUNTERS")?)
    }
}

/// Adds the difference of `after` and `before` to `sum`.
fn add(sum: &mut Counters, after: &Counters, before: &Counters) {
    for (sum, (after, before)) in sum.by_reason.iter_mut().zip(after.by_reason.iter().zip(&before.by_reason)) {
        let more = |after: u64, before: u64| after.wrapping_sub(before);
        *sum = Tally {
            packets: sum.packets.wrapping_add(more(after.packets, before.packets)),
            bytes: sum.bytes.wrapping_add(more(after.bytes, before.bytes)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counts_since_the_copy_are_added() {
        let of = |packets| {
            let mut counters = Counters::default();
            counters.by_reason[9] = Tally { packets, bytes: packets * 60 };
            counters
        };
        let mut sum = of(12);
        add(&mut sum, &of(10), &of(7));
        assert_eq!(sum, of(15));
    }
}
