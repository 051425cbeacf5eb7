//! Rates of the last two minutes, from readings of counters that only grow. Pure: a reading says its own time.

use std::collections::{HashMap, VecDeque};

use ratelimit_report::snapshot::{Rule, Snapshot, TopSource};

/// Seconds that a rule's rates are kept for.
pub(crate) const KEPT: usize = 120;

/// Readings that the rate of one source is taken over.
const SOURCE_READINGS: usize = 5;

/// A shorter time than this says nothing about a rate.
const SPAN_MIN_SECONDS: f64 = 0.5;

/// Packets per second of one rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    pub(crate) admitted: f64,
    /// Dropped; in a dry run, what would have been.
    pub(crate) refused: f64,
}

/// What readings have come to, and how fast.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    /// The time and, by rule, counters of the last reading.
    last: Option<(f64, HashMap<String, [u64; 2]>)>,
    /// By rule, one value a second, newest last; none where the counters were reset.
    rules: HashMap<String, VecDeque<Option<Rate>>>,
    /// What each source was refused, by reading, newest last.
    sources: VecDeque<(f64, HashMap<String, u64>)>,
}

/// What was refused of a source, or would have been.
pub(crate) const fn refused(of: &TopSource) -> u64 {
    of.dropped.saturating_add(of.would_drop)
}

impl Rates {
    /// Takes in a reading. One that is hardly later than the last changes nothing.
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

    /// A rule's rate by the last two readings.
    pub(crate) fn now(&self, rule: &str) -> Option<Rate> {
        self.rules.get(rule).and_then(|ring| ring.back().copied().flatten())
    }

    /// A rule's last two minutes in so many columns, newest last; each has the greatest rate of its seconds.
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

    /// Packets that a source is refused per second, over the last few readings that had it.
    pub(crate) fn of_source(&self, source: &str) -> Option<f64> {
        let (now, newest) = self.sources.back()?;
        let (then, oldest) = self.sources.iter().find(|(_, sources)| sources.contains_key(source))?;
        let (after, before) = (newest.get(source)?, oldest.get(source)?);
        (now - then >= SPAN_MIN_SECONDS).then(|| per_second(*before, *after, now - then)).flatten()
    }
}

/// Adds one value for each second of the span: a longer one is filled with its mean.
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

/// None where the counter was reset, or the clock was set back.
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

/// A rate as a whole number.
pub(crate) fn whole(rate: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and no rate is below 0")]
    let whole = rate.round() as u64;
    whole
}
