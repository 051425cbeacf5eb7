//! Rates: packets per second from two readings. Pure: knows times as durations since the daemon's start.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Traffic, Volume};
use ratelimit_datapath::Reading;

/// Readings that are kept: with one every 2 s, a rate is over the last 2 to 4 s.
const SAMPLES_MAX: usize = 2;

/// A shorter time than this says nothing about a rate.
const SPAN_MIN: Duration = Duration::from_millis(500);

/// Packets per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// All.
    pub received: f64,
    /// Passed.
    pub passed: f64,
    /// Dropped.
    pub dropped: f64,
    /// Passed only because of dry-run.
    pub would_drop: f64,
}

/// The counters of the interfaces at one time.
#[derive(Clone, Debug)]
pub struct Sample {
    at: Duration,
    packets: BTreeMap<String, Volume>,
}

/// The last few samples.
#[derive(Clone, Debug, Default)]
pub struct Samples(VecDeque<Sample>);

impl Sample {
    /// The sample of a reading at `at` since the daemon's start.
    pub fn of(reading: &Reading, at: Duration) -> Self {
        let packets = reading.interfaces.iter().map(|read| (read.name.clone(), Traffic::on(read).packets));
        Self { at, packets: packets.collect() }
    }
}

impl Samples {
    /// Replaces the oldest sample by this one; skips one that comes too soon after the last.
    pub fn push(&mut self, sample: Sample) {
        if self.0.back().is_some_and(|last| sample.at.saturating_sub(last.at) < SPAN_MIN) {
            return;
        }
        if self.0.len() == SAMPLES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// An interface's rate since the oldest sample.
    pub fn rates(&self, interface: &str, now: Volume, at: Duration) -> Option<Rates> {
        let oldest = self.0.front()?;
        let then = oldest.packets.get(interface)?;
        let span = at.checked_sub(oldest.at).filter(|span| *span >= SPAN_MIN)?;
        #[expect(clippy::cast_precision_loss, reason = "a rate for people and graphs")]
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / span.as_secs_f64();
        Some(Rates {
            received: rate(now.received, then.received),
            passed: rate(now.passed, then.passed),
            dropped: rate(now.dropped, then.dropped),
            would_drop: rate(now.would_drop, then.would_drop),
        })
    }
}
