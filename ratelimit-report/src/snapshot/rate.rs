//! Packet rates, computed from two readings. Pure: times are durations since the daemon's start.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Traffic, Volume};
use ratelimit_datapath::Reading;

/// Number of readings kept. With one every 2 s, a rate covers the last 2 to 4 s.
const SAMPLES_MAX: usize = 2;

/// Minimum time span of a rate.
const SPAN_MIN: Duration = Duration::from_millis(500);

/// Packet rates of an interface, in packets per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Rate of all received packets.
    pub received: f64,
    /// Rate of packets that passed.
    pub passed: f64,
    /// Rate of dropped packets.
    pub dropped: f64,
    /// Rate of packets that passed only because of dry-run.
    pub would_drop: f64,
}

/// Packet counters of all interfaces at one time.
#[derive(Clone, Debug)]
pub struct Sample {
    at: Duration,
    packets: BTreeMap<String, Volume>,
}

/// Last few samples, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Samples(VecDeque<Sample>);

impl Sample {
    /// Takes a sample of a reading at `at` since the daemon's start.
    pub fn of(reading: &Reading, at: Duration) -> Self {
        let packets = reading.interfaces.iter().map(|read| (read.name.clone(), Traffic::on(read).packets));
        Self { at, packets: packets.collect() }
    }
}

impl Samples {
    /// Adds a sample and removes the oldest beyond two. Skips a sample that comes less than 0.5 s after the last.
    pub fn push(&mut self, sample: Sample) {
        if self.0.back().is_some_and(|last| sample.at.saturating_sub(last.at) < SPAN_MIN) {
            return;
        }
        if self.0.len() == SAMPLES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// Returns an interface's rates since the oldest sample. Returns none if the time span is too short.
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
