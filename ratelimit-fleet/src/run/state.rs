//! How the fleet does, for `stats`, `ratelimitd fleet` and the metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use ratelimit_common::time::Nanos;
use tracing::{info, warn};

use super::voice::Line;
use crate::core::Counters;
use crate::hosts::Host;
use crate::store::said::Said;
use crate::store::trouble::Trouble;
use crate::tracked::LimitId;
use crate::trips::{Distance, Reach};
use ratelimit_policy::fleet::DELAY_MAX;

/// The upper ends of the histogram of rounds, in seconds.
pub const ROUND_SECONDS: [f64; 7] = [0.001, 0.002, 0.005, 0.02, 0.1, 0.25, 0.5];

/// One word for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// All exchanges succeed.
    Connected,
    /// Some do not, some limit is not summed, or the store is slow.
    Degraded,
    /// None does, or all come too late: each host holds its limits by itself.
    #[default]
    Away,
}

/// State, label of the trouble, how far the store is, and files or addresses that do not fit.
pub(super) type Kind = (State, Option<&'static str>, Distance, Option<String>);

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// One word.
    pub state: State,
    /// What is wrong, if something is.
    pub trouble: Option<Trouble>,
    /// Files or addresses that do not fit, in words.
    pub error: Option<String>,
    /// What the store said of the trouble, in its own words.
    pub said: Option<Said>,
    /// How far the store is, by what its answers took.
    pub reach: Reach,
    /// What a report takes at most, on this host or on another that is heard; none before the first answer.
    pub delay: Option<Duration>,
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

    /// Why limits are held to a higher bound, or by each host alone, though exchanges succeed.
    pub fn slow(&self) -> Option<String> {
        let (round_trip, delay) = (self.reach.round_trip?, self.reach.delay?);
        let (trip_ms, delay) = (round_trip.as_millis(), delay.as_secs_f64());
        let most = DELAY_MAX.as_secs_f64();
        match self.reach.distance {
            Distance::Near => None,
            Distance::Slow => Some(format!(
                "the store is slow: it answers within {trip_ms} ms, and the bound counts what is sent within {delay:.2} s"
            )),
            Distance::Far => Some(format!(
                "the store is too slow: it answers within {trip_ms} ms, and a report takes up to {delay:.2} s, more than \
                 {most} s"
            )),
        }
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

    /// What makes it another state: a change of its words alone does not.
    pub(super) fn kind(&self) -> Kind {
        (self.state, self.trouble.map(Trouble::label), self.reach.distance, self.error.clone())
    }

    /// Logs how it is now.
    pub(super) fn log(&self, line: Line) {
        let words = self.words();
        match (line, words) {
            (Line::State, Some(words)) if self.state == State::Connected => info!("fleet: {words}"),
            (Line::State, Some(words)) => warn!("fleet: {words}"),
            // The first connection is on its way.
            (Line::State, None) => {}
            (Line::Summary { changes, within }, words) => {
                let words = words.unwrap_or_else(|| "no connection yet".to_owned());
                let seconds = within.as_secs();
                warn!("fleet: the store comes and goes: {changes} changes within {seconds} s; now: {words}");
            }
        }
    }

    fn words(&self) -> Option<String> {
        let alone = match self.state {
            State::Connected => return Some("connected".to_owned()),
            State::Degraded => "",
            State::Away => "; each host holds its limits by itself",
        };
        let said = self.said.as_ref().map_or_else(String::new, |said| format!("; it says: {said}"));
        let clocks = || "this host's clock differs from the store's: some limits are not summed".to_owned();
        let why = match (&self.error, self.trouble) {
            (Some(error), _) => Some(error.clone()),
            (None, Some(trouble)) => Some(format!("{trouble}{said}")),
            (None, None) => self.slow().or_else(|| (self.state == State::Degraded).then(clocks)),
        };
        why.map(|why| format!("{why}{alone}"))
    }
}
