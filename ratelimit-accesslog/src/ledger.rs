//! The requests of one source that were counted and logged, bucket by bucket.

use std::collections::VecDeque;

use crate::multiplicity::Multiplicity;
use crate::slack::Slack;

/// Number of turns that a source is overcharged for before its multiplicity is suspended.
const SLACK_TURNS: u64 = 2;

/// Totals of one bucket of a source's window.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    number: u64,
    /// Requests that the kernel counted itself.
    counted: u64,
    /// Requests that were charged from the log.
    corrected: u64,
    /// Counted requests that no line was matched with.
    open: u64,
    /// Lines, since the last settlement, that say that their requests began in the bucket.
    unsettled: u64,
    /// Lines that were settled in the bucket.
    logged: u64,
    /// Turns that the counted requests were charged for, in parts of 4096.
    turns: u64,
}

/// Counted and logged requests of one source.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Buckets of the window, the current one and the one after it at most. Ascending by number.
    buckets: VecDeque<Bucket>,
    /// Lines, since the last settlement, that do not say when their requests began.
    undated: u64,
    /// Multiplicity that was learned, and the time of that in nanoseconds.
    learned: (Multiplicity, u64),
    /// Multiplicity since lines took the source beyond its limit, and the last time of that in nanoseconds.
    beyond: Option<(Multiplicity, u64)>,
    /// Time in nanoseconds of the last lines that did not contradict the multiplicity.
    confirmed_at: u64,
    slack: Slack,
    /// Multiplicity by which the kernel charges a turn now.
    given: Multiplicity,
    /// Place among all sources in the order of use.
    pub(crate) order: u64,
    /// Time in nanoseconds of the last line, counted request or correction.
    pub(crate) used_at: u64,
}

impl Ledger {
    /// Returns the ledger of a new source, whose turns the kernel charges as one request each.
    pub(crate) fn new(order: u64, now: u64, full_buckets: u8) -> Self {
        let buckets = VecDeque::with_capacity(usize::from(full_buckets) + 2);
        let (given, slack) = (Multiplicity::ONE, Slack::default());
        let learned = (given, now);
        Self { buckets, undated: 0, learned, beyond: None, confirmed_at: now, slack, given, order, used_at: now }
    }

    /// Removes buckets before `oldest`. Returns the number of unsettled lines in them.
    pub(crate) fn expire(&mut self, oldest: u64) -> u64 {
        let mut lines = 0_u64;
        while let Some(bucket) = self.buckets.front()
            && bucket.number < oldest
        {
            lines = lines.saturating_add(bucket.unsettled);
            self.buckets.pop_front();
        }
        lines
    }

    /// Returns the bucket of that number, which is made if there is none.
    fn bucket(&mut self, number: u64) -> &mut Bucket {
        let index = self.buckets.partition_point(|bucket| bucket.number < number);
        if self.buckets.get(index).is_none_or(|bucket| bucket.number != number) {
            self.buckets.insert(index, Bucket { number, ..Bucket::default() });
        }
        &mut self.buckets[index]
    }

    /// Adds lines of requests that began in a bucket, if that is known.
    pub(crate) fn add_lines(&mut self, began: Option<u64>, lines: u64) {
        let unsettled = match began {
            Some(number) => &mut self.bucket(number).unsettled,
            None => &mut self.undated,
        };
        *unsettled = unsettled.saturating_add(lines);
    }

    /// Number of lines since the last settlement.
    pub(crate) fn unsettled(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.unsettled).fold(self.undated, u64::saturating_add)
    }

    /// Takes the kernel's count of a bucket, each correction included so many times. Returns whether it has grown.
    pub(crate) fn observe(&mut self, number: u64, total: u64, charged_in: u64) -> bool {
        if total == 0 {
            return false;
        }
        let given = self.given;
        let bucket = self.bucket(number);
        let added = total.saturating_sub(bucket.corrected.saturating_mul(charged_in)).saturating_sub(bucket.counted);
        bucket.counted += added;
        bucket.open += added;
        bucket.turns = bucket.turns.saturating_add(given.turns(added));
        added > 0
    }

    /// Matches lines with counted requests, oldest bucket first. Books lines without a match into bucket `current`.
    pub(crate) fn settle(&mut self, current: u64) -> Settled {
        let mut lines = std::mem::take(&mut self.undated);
        let mut too_old = 0_u64;
        let is_live = |bucket: &&Bucket| bucket.counted > 0 || bucket.corrected > 0;
        let live_from = self.buckets.iter().find(is_live).map_or(0, |bucket| bucket.number.min(current));
        for bucket in &mut self.buckets {
            let unsettled = std::mem::take(&mut bucket.unsettled);
            let sum = if bucket.number < live_from { &mut too_old } else { &mut lines };
            *sum = sum.saturating_add(unsettled);
        }
        let mut unmatched = lines;
        for bucket in &mut self.buckets {
            let matched = bucket.open.min(unmatched);
            bucket.open -= matched;
            unmatched -= matched;
        }
        if lines > 0 {
            let bucket = self.bucket(current);
            bucket.logged = bucket.logged.saturating_add(lines);
            bucket.corrected = bucket.corrected.saturating_add(unmatched);
        }
        Settled { lines, charged: unmatched, too_old }
    }

    /// Takes back up to `amount` of what was booked as charged into a bucket.
    pub(crate) fn unbook(&mut self, number: u64, amount: u64) {
        if let Some(bucket) = self.buckets.iter_mut().find(|bucket| bucket.number == number) {
            bucket.corrected = bucket.corrected.saturating_sub(amount);
        }
    }

    /// Learns the multiplicity from lines that were just settled. `is_excess` says whether they exceeded the counts.
    pub(crate) fn learn(&mut self, now: u64, pace: Pace, max: Multiplicity, is_excess: bool) {
        let sum = |part: fn(&Bucket) -> u64| self.buckets.iter().map(part).fold(0, u64::saturating_add);
        let quotient = Multiplicity::quotient(sum(|bucket| bucket.logged), sum(|bucket| bucket.turns)).min(max);
        let current = self.multiplicity(now, pace);
        self.slack.update(now, pace.lag_ns, self.open());
        if is_excess {
            self.learned = (quotient, now);
        } else {
            let (learned, at) = self.learned;
            let tried = learned.decayed(now.saturating_sub(at), pace.trial_ns);
            self.learned = (learned.lowered(quotient.min(current), tried), at);
            // Its turns are as large as when it went beyond its limit.
            if let Some((most, _)) = self.beyond.filter(|_| quotient.sixteenths() >= current.sixteenths() / 2) {
                self.beyond = Some((most, now));
            }
        }
        self.confirmed_at = now;
    }

    /// Number of requests that were counted or charged in the buckets that are remembered.
    pub(crate) fn used(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.counted.saturating_add(bucket.corrected)).fold(0, u64::saturating_add)
    }

    /// Number of requests that were charged in the buckets that are remembered.
    pub(crate) fn corrected(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.corrected).fold(0, u64::saturating_add)
    }

    /// Remembers that lines have taken the source beyond its limit, which makes this its multiplicity.
    pub(crate) fn go_beyond(&mut self, now: u64, multiplicity: Multiplicity) {
        self.beyond = Some((multiplicity, now));
    }

    /// Number of counted requests without a line.
    fn open(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.open).fold(0, u64::saturating_add)
    }

    /// Returns what the kernel should charge for a turn, in whole requests, and keeps it as given. A learned mean is one
    /// request as long as the source has [`SLACK_TURNS`] turns of slack, because the next lines are matched with that. A
    /// source beyond its limit is charged too much on purpose.
    pub(crate) fn give(&mut self, now: u64, pace: Pace) -> Multiplicity {
        self.slack.update(now, pace.lag_ns, self.open());
        let multiplicity = self.multiplicity(now, pace).rounded();
        let has_slack =
            pace.learns_mean && self.slack.unused() >= multiplicity.overcharge().saturating_mul(SLACK_TURNS);
        self.given = if has_slack { Multiplicity::ONE } else { multiplicity };
        self.given
    }

    /// Returns what is left of the multiplicity that was learned.
    pub(crate) fn multiplicity(&self, now: u64, pace: Pace) -> Multiplicity {
        let (learned, at) = self.learned;
        let silence_ns = |since: u64| now.saturating_sub(since).saturating_sub(pace.hold_ns);
        let mean = learned
            .decayed(now.saturating_sub(at), pace.trial_ns)
            .decayed(silence_ns(self.confirmed_at), pace.window_ns);
        let mean = if pace.learns_mean { mean } else { Multiplicity::ONE };
        let of_beyond = self.beyond.map(|(most, since)| most.decayed(silence_ns(since), pace.window_ns));
        of_beyond.map_or(mean, |of_beyond| mean.max(of_beyond))
    }
}

/// Times in nanoseconds that govern how a multiplicity decays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Time without lines after which a multiplicity decays. A source whose limit is used up has no lines for as long.
    pub(crate) hold_ns: u64,
    /// Time in which a multiplicity decays to 1 if no line contradicts or exceeds it. A turn that is charged a little
    /// less than its requests shows that the multiplicity still holds.
    pub(crate) trial_ns: u64,
    /// Time in which a multiplicity decays to 1 after `hold_ns`.
    pub(crate) window_ns: u64,
    /// Time after which a counted request is taken to have no line.
    pub(crate) lag_ns: u64,
    /// True if a source within its limit has a multiplicity too.
    pub(crate) learns_mean: bool,
}

/// Result of one settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Lines of requests within the source's live window.
    pub(crate) lines: u64,
    /// The part of `lines` that no counted request matches.
    pub(crate) charged: u64,
    /// Lines of requests that began before the source's live window.
    pub(crate) too_old: u64,
}
