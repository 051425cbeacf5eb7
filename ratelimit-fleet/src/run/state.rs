//! How the fleet does, for `stats`, `ratelimitd fleet` and the metrics.

use std::collections::BTreeMap;

use ratelimit_common::time::Nanos;
use tracing::{info, warn};

use crate::core::Counters;
use crate::hosts::Host;
use crate::store::trouble::Trouble;
use crate::tracked::LimitId;

/// The upper ends of the histogram of rounds, in seconds.
pub const ROUND_SECONDS: [f64; 7] = [0.001, 0.002, 0.005, 0.02, 0.1, 0.25, 0.5];

/// One word for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// All exchanges succeed.
    Connected,
    /// Some do not, or some limit is not summed.
    Degraded,
    /// None does: each host holds its limits by itself.
    #[default]
    Away,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// One word.
    pub state: State,
    /// What is wrong, if something is.
    pub trouble: Option<Trouble>,
    /// Files or addresses that do not fit, in words.
    pub error: Option<String>,
    /// The hosts heard of in the last hour, this one among them.
    pub hosts: Vec<Host>,
    /// Those of the last minute.
    pub hosts_heard: usize,
    /// Hosts of the last minute whose records this host's secret does not open.
    pub unread: usize,
    /// Another machine has a copy of this host's state.
    pub is_doubled: bool,
    /// When the store answered last.
    pub last_exchange: Option<Nanos>,
    /// Calls that were answered.
    pub rounds: u64,
    /// Those that were not, by what was wrong.
    pub failed: BTreeMap<&'static str, u64>,
    /// How many took up to so long: by [`ROUND_SECONDS`], and longer.
    pub round_seconds: [u64; ROUND_SECONDS.len() + 1],
    /// Their sum in nanoseconds.
    pub round_ns: u64,
    /// Connections that were made.
    pub connections: u64,
    /// This host's clock minus the store's.
    pub ahead_ns: Option<i64>,
    /// Limits that are not summed, as clocks differ too much.
    pub not_summed: Vec<LimitId>,
    /// What the core counted.
    pub counters: Counters,
    /// Acts and messages that were lost for want of room.
    pub lost: u64,
    /// Sources that are reported.
    pub tracked: usize,
    /// The number of the last act that the task took.
    pub acts_taken: u64,
    /// Of those, what users of this host said that the store has not taken.
    pub acts_unsaid: Vec<u64>,
}

impl Status {
    /// All that failed.
    pub fn rounds_failed(&self) -> u64 {
        self.failed.values().sum()
    }

    /// The same, with what was counted before: of counters that only grow.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        self.rounds += before.rounds;
        before.failed.iter().for_each(|(what, count)| *self.failed.entry(what).or_default() += count);
        self.round_seconds.iter_mut().zip(before.round_seconds).for_each(|(here, before)| *here += before);
        self.round_ns = self.round_ns.saturating_add(before.round_ns);
        self.connections += before.connections;
        self.counters = self.counters.since(before.counters);
        self.lost += before.lost;
        self
    }

    pub(super) fn answered(&mut self, took_ns: u64, now: Nanos) {
        self.rounds += 1;
        self.last_exchange = Some(now);
        self.round_ns = self.round_ns.saturating_add(took_ns);
        #[expect(clippy::cast_precision_loss, reason = "a time in seconds")]
        let seconds = took_ns as f64 / 1e9;
        let place = ROUND_SECONDS.iter().position(|end| seconds <= *end).unwrap_or(ROUND_SECONDS.len());
        self.round_seconds[place] += 1;
    }

    pub(super) fn failed(&mut self, trouble: Trouble) {
        *self.failed.entry(trouble.label()).or_default() += 1;
    }

    /// Says what changed, in a line.
    pub(super) fn log(&self) {
        let alone = match self.state {
            State::Connected => return info!("fleet: connected"),
            State::Degraded => "",
            State::Away => "; each host holds its limits by itself",
        };
        match (self.trouble, &self.error) {
            (_, Some(error)) => warn!("fleet: {error}{alone}"),
            (Some(trouble), None) => warn!("fleet: {trouble}{alone}"),
            (None, None) if self.state == State::Degraded => {
                warn!("fleet: this host's clock differs from the store's: some limits are not summed");
            }
            // The first connection is on its way.
            (None, None) => {}
        }
    }
}
