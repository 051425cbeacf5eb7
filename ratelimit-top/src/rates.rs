//! Packet rates of the last two minutes, computed from monotonic counters. Pure: each snapshot carries its own time.

use std::collections::{HashMap, VecDeque};

use ratelimit_report::snapshot::{Rule, Snapshot, TopSource};

/// Number of seconds of rates kept per rule.
pub(crate) const KEPT: usize = 120;

/// Number of snapshots over which the rate of a source is computed.
const SOURCE_READINGS: usize = 5;

/// Shortest interval, in seconds, from which a rate is computed.
const SPAN_MIN_SECONDS: f64 = 0.5;

/// Packets per second of one rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    pub(crate) admitted: f64,
    /// Dropped packets per second. In a dry run, packets that would have been dropped.
    pub(crate) refused: f64,
}

/// Counters of recent snapshots and the rates computed from them.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    /// Time in seconds of the last snapshot, and its counters by rule name.
    last: Option<(f64, HashMap<String, [u64; 2]>)>,
    /// Rates by rule name, one value per second, newest last. None where the counters were reset.
    rules: HashMap<String, VecDeque<Option<Rate>>>,
    /// Refused packets by source for each recent snapshot, newest last.
    sources: VecDeque<(f64, HashMap<String, u64>)>,
}

/// Returns the number of packets of a source that were refused or would have been.
pub(crate) const fn refused(of: &TopSource) -> u64 {
    of.dropped.saturating_add(of.would_drop)
}

impl Rates {
    /// Adds a snapshot. Ignores a snapshot less than [`SPAN_MIN_SECONDS`] after the last one.
    pub(crate) fn push(&mut self, snapshot: &Snapshot) {
        let now = seconds_of(snapshot);
        let span = self.last.as_ref().map(|(then, _)| now - then);
        if span.is_some_and(|span| (0.0..SPAN_MIN_SECONDS).contains(&span)) {
            return;
        }
        let counters: HashMap<String, [u64; 2]> =
            snapshot.rules.iter().map(|rule| (rule.name.clone(), counters_of(rule))).collect();
        if let (Some((_, before)), Some(span)) = (&self.last, span) {
            self.rules.retain(|name, _| counters.contains_key(name));
            for (name, now) in &counters {
                let rate = before.get(name).and_then(|then| rate_of(*then, *now, span));
                push_for(self.rules.entry(name.clone()).or_default(), rate, span);
            }
        }
        self.last = Some((now, counters));
        let top = snapshot.top.iter().flatten();
        self.sources.push_back((now, top.map(|of| (of.source.clone(), refused(of))).collect()));
        if self.sources.len() > SOURCE_READINGS {
            self.sources.pop_front();
        }
    }

    /// Returns a rule's rate between the last two snapshots.
    pub(crate) fn now(&self, rule: &str) -> Option<Rate> {
        self.rules.get(rule).and_then(|ring| ring.back().copied().flatten())
    }

    /// Returns a rule's last two minutes in the given number of columns, newest last. Each column holds the highest
    /// rate of its seconds.
    pub(crate) fn columns(&self, rule: &str, columns: usize, of: fn(Rate) -> f64) -> Vec<Option<u64>> {
        let ring = self.rules.get(rule);
        let newest_first: Vec<Option<Rate>> = ring.into_iter().flatten().rev().copied().collect();
        let each = KEPT.div_ceil(columns.clamp(1, KEPT));
        let mut out: Vec<Option<u64>> = newest_first
            .chunks(each)
            .map(|seconds| seconds.iter().flatten().map(|rate| whole(of(*rate))).max())
            .take(columns)
            .collect();
        out.resize(columns, None);
        out.reverse();
        out
    }

    /// Returns the packets per second refused to a source, over the recent snapshots that list the source.
    pub(crate) fn of_source(&self, source: &str) -> Option<f64> {
        let (now, newest) = self.sources.back()?;
        let (then, oldest) = self.sources.iter().find(|(_, sources)| sources.contains_key(source))?;
        let (after, before) = (newest.get(source)?, oldest.get(source)?);
        (now - then >= SPAN_MIN_SECONDS).then(|| per_second(*before, *after, now - then)).flatten()
    }
}

/// Appends one value for each second of the span. A longer span is filled with its mean rate.
fn push_for(ring: &mut VecDeque<Option<Rate>>, rate: Option<Rate>, span: f64) {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 120")]
    #[expect(clippy::cast_precision_loss, reason = "120 is exact")]
    let times = span.round().clamp(1.0, KEPT as f64) as usize;
    ring.extend(std::iter::repeat_n(rate, times));
    ring.drain(..ring.len().saturating_sub(KEPT));
}

fn rate_of(before: [u64; 2], after: [u64; 2], span: f64) -> Option<Rate> {
    let [admitted, refused] = [0, 1].map(|at| per_second(before[at], after[at], span));
    Some(Rate { admitted: admitted?, refused: refused? })
}

/// Returns the counter's increase per second. None if the counter was reset or the clock was set back.
fn per_second(before: u64, after: u64, span: f64) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let packets = after.checked_sub(before)? as f64;
    (span > 0.0).then_some(packets / span)
}

const fn counters_of(rule: &Rule) -> [u64; 2] {
    [rule.admitted, rule.dropped.saturating_add(rule.would_drop)]
}

fn seconds_of(snapshot: &Snapshot) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "of microseconds since 1970 it keeps each for a century")]
    let micros = snapshot.time.as_microsecond() as f64;
    micros / 1e6
}

/// Rounds a rate to a whole number.
pub(crate) fn whole(rate: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and no rate is below 0")]
    let whole = rate.round() as u64;
    whole
}
