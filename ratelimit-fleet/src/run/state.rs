//! Status of the fleet, for `stats`, `ratelimitd fleet` and the metrics.

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

/// Upper bounds of the histogram of exchange times, in seconds.
pub const ROUND_SECONDS: [f64; 7] = [0.001, 0.002, 0.005, 0.02, 0.1, 0.25, 0.5];

/// Overall state of the fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// All exchanges succeed.
    Connected,
    /// Some exchanges fail, some limit is not summed, or the store is slow.
    Degraded,
    /// No exchange succeeds, or all are too late: each host enforces its limits alone.
    #[default]
    Away,
}

/// Values that are logged when they change: state, trouble label, distance of the store, and access error.
pub(super) type Kind = (State, Option<&'static str>, Distance, Option<String>);

/// Full status of the fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Overall state of the fleet.
    pub state: State,
    /// Current fault, if any.
    pub trouble: Option<Trouble>,
    /// Description of invalid access files or addresses.
    pub error: Option<String>,
    /// Error text of the store for the fault.
    pub said: Option<Said>,
    /// Distance of the store, by its response times.
    pub reach: Reach,
    /// Maximum time that a report takes, on this host or another current one. None before the first answer.
    pub delay: Option<Duration>,
    /// Hosts with a record in the last hour, including this one.
    pub hosts: Vec<Host>,
    /// Number of hosts with a record in the last minute.
    pub hosts_heard: usize,
    /// Number of hosts with a record in the last minute that this host's secret does not decrypt.
    pub unread: usize,
    /// True if another machine has a copy of this host's state.
    pub is_doubled: bool,
    /// Time of the store's last answer.
    pub last_exchange: Option<Nanos>,
    /// Number of answered calls.
    pub rounds: u64,
    /// Number of failed calls, by label of the fault.
    pub failed: BTreeMap<&'static str, u64>,
    /// Answered calls by duration: one slot per bound of [`ROUND_SECONDS`], then the longer ones.
    pub round_seconds: [u64; ROUND_SECONDS.len() + 1],
    /// Total duration of the answered calls in nanoseconds.
    pub round_ns: u64,
    /// Number of connections that were opened.
    pub connections: u64,
    /// This host's clock minus the store's, in nanoseconds.
    pub ahead_ns: Option<i64>,
    /// Limits that are not summed because the clocks differ too much.
    pub not_summed: Vec<LimitId>,
    /// Counters of the core.
    pub counters: Counters,
    /// Acts and messages lost because a table or queue was full.
    pub lost: u64,
    /// Number of reported sources.
    pub tracked: usize,
    /// Number of the last act that the task took.
    pub acts_taken: u64,
    /// Numbers of the taken acts of users that the store has not accepted.
    pub acts_unsaid: Vec<u64>,
}

impl Status {
    /// Returns the number of failed calls of all kinds.
    pub fn rounds_failed(&self) -> u64 {
        self.failed.values().sum()
    }

    /// Adds the counters of an earlier status. Other fields stay.
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

    /// Describes a slow store: its response times raise the bound or end the summing, although exchanges succeed.
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

    /// Returns the values that are logged when they change. The store's error text is not among them.
    pub(super) fn kind(&self) -> Kind {
        (self.state, self.trouble.map(Trouble::label), self.reach.distance, self.error.clone())
    }

    /// Logs the current status.
    pub(super) fn log(&self, line: Line) {
        let words = self.words();
        match (line, words) {
            (Line::State, Some(words)) if self.state == State::Connected => info!("fleet: {words}"),
            (Line::State, Some(words)) => warn!("fleet: {words}"),
            // The first connection is still being opened.
            (Line::State, None) => {}
            (Line::Summary { changes, within }, words) => {
                let words = words.unwrap_or_else(|| "no connection yet".to_owned());
                let seconds = within.as_secs();
                warn!(
                    "fleet: the connection to the store is unstable: {changes} changes within {seconds} s; now: {words}"
                );
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
