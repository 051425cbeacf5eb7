//! Sums of per-CPU counters. Knows maps, but not how they were opened.

use std::borrow::Borrow;

use anyhow::Context as _;
use aya::maps::{MapData, PerCpuArray};
use ratelimit_common::layout::{Counters, Tally, counters_index};
use ratelimit_common::verdict::Reason;

use super::plain::Plain;
use crate::{DatapathError, Tallies};

/// Returns the sums over all CPUs of a row of counters.
pub(super) fn tallies_in(
    counters: &PerCpuArray<impl Borrow<MapData>, Plain<Counters>>,
    position: usize,
    rule: u8,
) -> Result<Tallies, DatapathError> {
    let row = counters.get(&counters_index(position, rule), 0).context("read COUNTERS")?;
    let sum = |reason: Reason| {
        row.iter().fold(Tally::default(), |sum, Plain(cpu)| {
            let tally = cpu.by_reason[reason as usize];
            Tally { packets: sum.packets.wrapping_add(tally.packets), bytes: sum.bytes.wrapping_add(tally.bytes) }
        })
    };
    Ok(Tallies(Reason::ALL.iter().map(|&reason| (reason, sum(reason))).collect()))
}

/// Returns the sum over all CPUs of a number.
pub(super) fn of_cpus(numbers: &PerCpuArray<impl Borrow<MapData>, u64>, index: u32) -> Result<u64, DatapathError> {
    let cpus = numbers.get(&index, 0).context("read a number of each CPU")?;
    Ok(cpus.iter().fold(0, |sum, cpu| sum.wrapping_add(*cpu)))
}
