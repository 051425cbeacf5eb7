//! Faults in a run of the simulation.

use ratelimit_common::time::SECOND_NS;

use super::Chance;

/// Bucket length of the simulated limit.
pub(crate) const BUCKET_NS: u64 = 10 * SECOND_NS;
const MS: u64 = 1_000_000;

/// Faults in one run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trouble {
    pub(crate) loss_percent: u64,
    pub(crate) duplicate_percent: u64,
    pub(crate) offset_ms_max: u64,
    pub(crate) restarts: bool,
    pub(crate) evictions: bool,
    pub(crate) store_losses: bool,
    pub(crate) cuts: bool,
    /// Shortest and longest round trip of a slow store, in ms. Hosts then send like the task: one call per shard at a
    /// time, and a new round only when all calls of the last one are sent.
    pub(crate) slow_ms: Option<(u64, u64)>,
}

impl Trouble {
    /// Returns true if the printed bound is promised, because all exchanges succeed.
    pub(crate) fn keeps_bound(self) -> bool {
        let all_summed = self.offset_ms_max * MS / 2 <= BUCKET_NS / 4;
        self.loss_percent == 0 && all_summed && !self.restarts && !self.evictions && !self.store_losses && !self.cuts
    }
}

pub(crate) fn well(chance: &mut Chance) -> Trouble {
    Trouble { duplicate_percent: chance.of(&[0, 20]), offset_ms_max: chance.of(&[0, 0, 500]), ..Trouble::default() }
}

pub(crate) fn ill(chance: &mut Chance) -> Trouble {
    Trouble {
        loss_percent: chance.of(&[0, 10, 50]),
        duplicate_percent: chance.of(&[0, 30]),
        offset_ms_max: chance.of(&[0, 1000, 5000, 12_000]),
        restarts: chance.percent(50),
        evictions: chance.percent(50),
        store_losses: chance.percent(50),
        cuts: chance.percent(50),
        slow_ms: None,
    }
}

pub(crate) fn slow(chance: &mut Chance, slow_ms: (u64, u64)) -> Trouble {
    Trouble { slow_ms: Some(slow_ms), offset_ms_max: chance.of(&[0, 0, 500]), ..Trouble::default() }
}
