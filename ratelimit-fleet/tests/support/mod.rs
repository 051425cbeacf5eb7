//! Shared test support: seeded random numbers, and a model of the store.

pub(crate) mod trouble;

use std::collections::HashMap;

use ratelimit_fleet::names::{Field, HostId};
use ratelimit_fleet::wire::{Call, Said};

/// Random number generator with a seed: splitmix64.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number that is at least `from` and less than `to`.
    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from)
    }

    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.next() % choices.len() as u64).unwrap()]
    }
}

/// Method by which the store applies a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reports {
    /// One register per host, which a higher sequence replaces.
    Registers,
    /// Increments, which are wrong on purpose: the store adds the growth since the last report.
    Increments,
}

/// Sequence and count of each host.
type Registers = HashMap<HostId, (u64, u64)>;

/// Model of the store's script, written independently of the script.
pub(crate) struct Store {
    reports: Reports,
    hashes: HashMap<String, HashMap<Field, Registers>>,
}

impl Store {
    pub(crate) fn new(reports: Reports) -> Self {
        Self { reports, hashes: HashMap::new() }
    }

    pub(crate) fn flush(&mut self) {
        self.hashes.clear();
    }

    pub(crate) fn take(&mut self, call: &Call) -> Vec<Said> {
        let mut answer = Vec::new();
        for group in &call.groups {
            for entry in &group.entries {
                let hash = self.hashes.entry(group.key.clone()).or_default();
                let registers = hash.entry(entry.field).or_default();
                let mine = registers.get(&call.host).copied();
                let others =
                    registers.iter().filter(|(host, _)| **host != call.host).map(|(_, (_, count))| count).sum();
                answer.push(Said { had_mine: mine.is_some(), others });
                let Some(count) = entry.count else { continue };
                match self.reports {
                    Reports::Registers => {
                        if mine.is_none_or(|(sequence, _)| sequence < call.sequence.0) {
                            registers.insert(call.host, (call.sequence.0, count));
                        }
                    }
                    Reports::Increments => {
                        // The client sends the difference to the count that it believes stored, and the store adds it.
                        let register = registers.entry(call.host).or_default();
                        register.1 += count.saturating_sub(register.0);
                        register.0 = if call.sequence.0.is_multiple_of(3) { register.0 } else { count };
                    }
                }
            }
        }
        answer
    }
}
