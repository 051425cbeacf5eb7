//! Rows of counters: the row of each rule, and the counts in rows that no rule has any more.

use std::collections::BTreeSet;

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::{PerCpuArray, PerCpuValues};
use ratelimit_common::layout::{
    COUNTERS_PER_INTERFACE, Config as ConfigWords, Counters, Fault, INTERFACE_UNKNOWN, ROWS_MAX, counters_index, map,
};
use ratelimit_common::verdict::Verdict;

use super::counts::{of_cpus, tallies_in};
use super::plain::Plain;
use super::{map_mut, map_ref, rules_len};
use crate::{DatapathError, Tallies};

/// Assignment of rows to rules.
#[derive(Debug)]
pub(super) struct Rows {
    /// Row of each of the policy's rules.
    of_rules: Vec<u8>,
    /// Counted rows without a rule of the policy. Packets may still count there while a trial rolls back.
    orphans: BTreeSet<u8>,
    /// Counts from orphans that other rules have taken since, by interface position.
    cleared: Vec<Tallies>,
}

impl Default for Rows {
    fn default() -> Self {
        Self {
            of_rules: Vec::new(),
            orphans: BTreeSet::new(),
            cleared: vec![Tallies::default(); INTERFACE_UNKNOWN + 1],
        }
    }
}

impl Rows {
    /// Restores the rows of a configuration's rules, and finds rows with counts of rules that no longer exist.
    pub(super) fn take(&mut self, ebpf: &Ebpf, known: &ConfigWords) -> Result<(), DatapathError> {
        self.of_rules = rows_of(known).collect();
        let rows = (0..ROWS_MAX).filter_map(|row| u8::try_from(row).ok()).filter(|row| !self.of_rules.contains(row));
        for row in rows.collect::<Vec<_>>() {
            let mut is_counted = false;
            for position in 0..=INTERFACE_UNKNOWN {
                is_counted |= tallies(ebpf, position, row)?.0.iter().any(|(_, tally)| tally.packets != 0);
            }
            if is_counted {
                self.orphans.insert(row);
            }
        }
        Ok(())
    }

    /// Assigns these rows to the policy's rules. `known` holds the rows of the configuration applied before. If that
    /// was a trial that rolled back, its rows have counts too.
    pub(super) fn hand_over(&mut self, rows: Vec<u8>, known: impl IntoIterator<Item = u8>) {
        self.orphans.extend(std::mem::replace(&mut self.of_rules, rows));
        self.orphans.extend(known);
        self.orphans.retain(|row| !self.of_rules.contains(row));
    }

    /// Sets the counters of one interface to 0.
    pub(super) fn clear_interface(&mut self, ebpf: &mut Ebpf, position: usize) -> Result<(), DatapathError> {
        self.cleared[position] = Tallies::default();
        let rows = (0..COUNTERS_PER_INTERFACE).map(|row| u8::try_from(row).unwrap_or(Verdict::NO_RULE));
        zero(ebpf, rows.map(|row| counters_index(position, row)))
    }

    /// Sets the counters of one rule to 0 on every interface, and adds their values to `cleared`.
    pub(super) fn clear(&mut self, ebpf: &mut Ebpf, row: u8) -> Result<(), DatapathError> {
        let positions = 0..=INTERFACE_UNKNOWN;
        let were = positions.clone().map(|position| tallies(ebpf, position, row)).collect::<Result<Vec<_>, _>>()?;
        zero(ebpf, positions.map(|position| counters_index(position, row)))?;
        clear_bans_begun(ebpf, row)?;
        self.orphans.remove(&row);
        for (cleared, were) in self.cleared.iter_mut().zip(&were) {
            cleared.add(were);
        }
        Ok(())
    }

    /// Returns the counters of packets that belong to no rule of the policy. Counters of rules that no longer exist are
    /// included.
    pub(super) fn unruled(&self, ebpf: &Ebpf, position: usize) -> Result<Tallies, DatapathError> {
        let mut sum = tallies(ebpf, position, Verdict::NO_RULE)?;
        for &row in &self.orphans {
            sum.add(&tallies(ebpf, position, row)?);
        }
        sum.add(&self.cleared[position]);
        Ok(sum)
    }

    /// Returns the counters of each of the policy's rules on an interface.
    pub(super) fn ruled(&self, ebpf: &Ebpf, position: usize) -> Result<Vec<Tallies>, DatapathError> {
        self.of_rules.iter().map(|&row| tallies(ebpf, position, row)).collect()
    }

    /// Returns the counters of packets on interfaces without a row.
    pub(super) fn unlisted(&self, ebpf: &Ebpf) -> Result<Tallies, DatapathError> {
        let mut sum = self.unruled(ebpf, INTERFACE_UNKNOWN)?;
        for of in self.ruled(ebpf, INTERFACE_UNKNOWN)? {
            sum.add(&of);
        }
        Ok(sum)
    }

    /// Returns the number of bans begun by each of the policy's rules.
    pub(super) fn bans_begun(&self, ebpf: &Ebpf) -> Result<Vec<u64>, DatapathError> {
        let name = map::BANS_BEGUN;
        let counts: PerCpuArray<_, u64> =
            PerCpuArray::try_from(map_ref(ebpf, name)?).with_context(|| format!("open {name}"))?;
        self.of_rules.iter().map(|&row| of_cpus(&counts, row.into())).collect()
    }
}

/// Returns the rows of a configuration's rules.
pub(super) fn rows_of(words: &ConfigWords) -> impl Iterator<Item = u8> {
    words.rules[..rules_len(words)].iter().map(|rule| rule.row)
}

/// Sets the count of begun bans of a row to 0 before another rule takes the row.
fn clear_bans_begun(ebpf: &mut Ebpf, row: u8) -> Result<(), DatapathError> {
    let name = map::BANS_BEGUN;
    let mut counts: PerCpuArray<_, u64> =
        PerCpuArray::try_from(map_mut(ebpf, name)?).with_context(|| format!("open {name}"))?;
    let cpus = aya::util::nr_cpus().map_err(|(_, error)| error).context("count CPUs")?;
    let zeros = PerCpuValues::try_from(vec![0; cpus]).context("a value for each CPU")?;
    Ok(counts.set(row.into(), zeros, 0).with_context(|| format!("clear {name}"))?)
}

fn zero(ebpf: &mut Ebpf, indexes: impl Iterator<Item = u32>) -> Result<(), DatapathError> {
    let mut counters: PerCpuArray<_, Plain<Counters>> =
        PerCpuArray::try_from(map_mut(ebpf, map::COUNTERS)?).context("open COUNTERS")?;
    let zeros =
        vec![Plain(Counters::default()); aya::util::nr_cpus().map_err(|(_, error)| error).context("count CPUs")?];
    for index in indexes {
        let values = PerCpuValues::try_from(zeros.clone()).context("a value for each CPU")?;
        counters.set(index, values, 0).context("clear COUNTERS")?;
    }
    Ok(())
}

fn tallies(ebpf: &Ebpf, position: usize, rule: u8) -> Result<Tallies, DatapathError> {
    let counters = PerCpuArray::try_from(map_ref(ebpf, map::COUNTERS)?).context("open COUNTERS")?;
    tallies_in(&counters, position, rule)
}

/// Returns the counts of failed map operations.
pub(super) fn faults(ebpf: &Ebpf) -> Result<Vec<(Fault, u64)>, DatapathError> {
    Fault::ALL.iter().map(|&fault| Ok((fault, fault_cell(ebpf, fault as u32)?))).collect()
}

/// Returns the sum over all CPUs of a cell of [`map::FAULTS`].
pub(super) fn fault_cell(ebpf: &Ebpf, cell: u32) -> Result<u64, DatapathError> {
    let faults: PerCpuArray<_, u64> = PerCpuArray::try_from(map_ref(ebpf, map::FAULTS)?).context("open FAULTS")?;
    of_cpus(&faults, cell)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_no_rule_has_any_more_is_an_orphan_until_a_rule_takes_it() {
        let mut rows = Rows::default();
        rows.hand_over(vec![0, 1], []);
        assert!(rows.orphans.is_empty());
        rows.hand_over(vec![1, 2], [0, 1]);
        assert_eq!((rows.of_rules.as_slice(), Vec::from_iter(&rows.orphans)), ([1, 2].as_slice(), vec![&0]));
        rows.hand_over(vec![0], [1, 2]);
        assert_eq!(Vec::from_iter(&rows.orphans), [&1, &2]);
    }

    #[test]
    fn counters_of_a_rolled_back_trial_are_orphans_too() {
        let mut rows = Rows::default();
        rows.hand_over(vec![0], []);
        rows.hand_over(vec![0], [0, 5]);
        assert_eq!(Vec::from_iter(&rows.orphans), [&5]);
    }
}
