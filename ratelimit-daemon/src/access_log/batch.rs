//! Lines of a log that were read in one period, summed by address: what the reader sends to the daemon.

use std::net::IpAddr;
use std::sync::Arc;

use ratelimit_accesslog::{Event, Outcomes, Position, State};
use ratelimit_policy::desired::{AccessLog, Condition, Limit};

/// Maximum number of sources in one batch.
const SOURCES_MAX: usize = 4_096;
/// Tolerance for the time in a line, which most formats give in seconds.
const RESOLUTION_NS: u64 = 1_000_000_000;

/// Selection of lines that are counted together: at most as old as the window of a limit, and meeting its condition
/// if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) condition: Option<Condition>,
    pub(super) window_ns: u64,
}

impl Counted {
    /// Returns the selection of lines that charge a limit. None if no log charges the limit.
    pub(super) fn of(limit: &Limit) -> Option<Self> {
        limit.is_logged().then_some(Self { condition: limit.condition, window_ns: limit.window_ns })
    }

    /// Returns true if a line of this age in nanoseconds may charge the limit.
    pub(super) const fn has_age(&self, age_ns: u64) -> bool {
        age_ns <= self.window_ns.saturating_add(RESOLUTION_NS)
    }
}

/// Requests of one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Requests {
    pub(super) lines: u64,
    /// Number of lines in each of the log's counts.
    pub(super) counts: Vec<u64>,
}

impl Requests {
    /// Adds the requests of another address.
    pub(super) fn add(&mut self, other: &Self) {
        self.lines = self.lines.saturating_add(other.lines);
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count = count.saturating_add(*more));
    }

    /// Returns the number of lines that charge a limit. `counts` are those of the log.
    pub(super) fn of(&self, limit: &Limit, counts: &[Counted]) -> u64 {
        let at = Counted::of(limit).and_then(|of| counts.iter().position(|count| *count == of));
        at.and_then(|at| self.counts.get(at)).copied().unwrap_or(0)
    }
}

/// Lines of one log read in one period, summed by address.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) log: AccessLog,
    /// Selection of lines for each count in `requests`.
    pub(super) counts: Arc<[Counted]>,
    /// Requests by address.
    pub(super) requests: Vec<(IpAddr, Requests)>,
    /// Counts of lines that charge no address.
    pub(super) outcomes: Outcomes,
    /// Position after these lines, if known. If a batch is split, only the last part has it.
    pub(super) position: Option<Position>,
    pub(super) state: State,
    pub(super) events: Vec<Event>,
    /// Number of bytes written to the log but not read yet, if known.
    pub(super) behind_bytes: Option<u64>,
    /// True if the end of the log was reached.
    pub(super) is_at_end: bool,
}

/// Splits a batch into parts of at most [`SOURCES_MAX`] addresses. Only the last part has the position.
pub(super) fn parts(mut batch: Batch) -> Vec<Batch> {
    let mut parts = Vec::new();
    while batch.requests.len() > SOURCES_MAX {
        let rest = batch.requests.split_off(SOURCES_MAX);
        parts.push(Batch {
            log: batch.log.clone(),
            counts: batch.counts.clone(),
            requests: std::mem::replace(&mut batch.requests, rest),
            outcomes: std::mem::take(&mut batch.outcomes),
            position: None,
            state: batch.state.clone(),
            events: std::mem::take(&mut batch.events),
            behind_bytes: batch.behind_bytes,
            is_at_end: false,
        });
    }
    parts.push(batch);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_many_addresses_comes_in_parts_and_none_is_counted_twice() {
        let requests: Vec<_> = (0..10_000_u32)
            .map(|at| (IpAddr::from(at.to_be_bytes()), Requests { lines: at.into(), counts: vec![1] }))
            .collect();
        let batch = Batch {
            log: AccessLog::File("/log".into()),
            counts: Arc::new([]),
            requests: requests.clone(),
            outcomes: Outcomes { malformed: 7, ..Outcomes::default() },
            position: None,
            state: State::Following,
            events: Vec::new(),
            behind_bytes: Some(0),
            is_at_end: true,
        };
        let parts = parts(batch);
        assert_eq!(parts.iter().flat_map(|part| part.requests.clone()).collect::<Vec<_>>(), requests);
        assert!(parts.iter().all(|part| part.requests.len() <= SOURCES_MAX));
        assert_eq!(parts.iter().map(|part| part.outcomes.malformed).sum::<u64>(), 7);
        assert_eq!(parts.iter().map(|part| part.is_at_end).collect::<Vec<_>>(), [false, false, true]);
    }
}
