//! Sink of all events. Each event goes to the log as a line, to the recent events, and to the history. A budget
//! limits the log lines of what rules do by themselves, so a flood of bans cannot fill a disk. Actions of users are
//! always logged.
//!
//! Knows no datapath and no clock.

mod event;

use std::collections::BTreeMap;
use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;

use super::moment::Moment;
use super::past::Past;
pub(super) use event::{Banned, Done, Event, Refused, Usage};
use ratelimit_control::feed::Feed;
use ratelimit_report::event::{Event as Told, EventKind};

/// Maximum number of log lines in a burst.
const BURST: u64 = 50;
/// Log lines per second after the burst.
const LINES_PER_SECOND: u64 = 10;
/// Interval at which the number of suppressed lines is logged.
const UNLOGGED_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of rule events that one pass over the maps reports individually. Further ones are only counted.
pub(super) const EVENTS_EACH: usize = 4096;
/// Maximum number of occurrences queued for the next step. // more than one step of the daemon makes
const WAITING_MAX: usize = 64;

/// Collector of all events.
#[derive(Debug)]
pub(super) struct Journal {
    /// Budget of log lines for what rules do by themselves.
    budget: Budget,
    unlogged: Unlogged,
    /// Lost events that the log has not reported yet.
    lost: Lost,
    /// Uptime of the first suppressed or lost event that the log has not reported.
    unlogged_since: Option<Duration>,
    /// Occurrences that are already logged and become events at the next step.
    waiting: Vec<Occurrence>,
    /// Occurrences by kind that did not fit into `waiting`.
    untold: BTreeMap<EventKind, u64>,
    feed: Feed,
    pub(super) past: Past,
}

/// Occurrence that is logged where it happens, and becomes an event later.
#[derive(Clone, Debug)]
pub(super) struct Occurrence {
    pub(super) kind: EventKind,
    pub(super) rule: Option<String>,
    pub(super) by: Option<String>,
    pub(super) detail: String,
}

impl Occurrence {
    /// Creates an occurrence caused by the daemon itself.
    pub(super) fn new(kind: EventKind, detail: impl Into<String>) -> Self {
        Self { kind, rule: None, by: None, detail: detail.into() }
    }

    /// Returns the occurrence with the user who caused it.
    pub(super) fn by(self, by: &impl ToString) -> Self {
        Self { by: Some(by.to_string()), ..self }
    }

    /// Returns the occurrence with the rule that it concerns.
    pub(super) fn of(self, rule: &str) -> Self {
        Self { rule: Some(rule.to_owned()), ..self }
    }
}

impl Journal {
    /// Creates an empty journal with a full budget.
    pub(super) fn new(now: Duration) -> Self {
        let (budget, unlogged) = (Budget::full(now), Unlogged::default());
        let (waiting, untold) = (Vec::new(), BTreeMap::new());
        let (feed, past) = (Feed::default(), Past::off());
        let lost = Lost::default();
        Self { budget, unlogged, lost, unlogged_since: None, waiting, untold, feed, past }
    }

    /// Returns the recent events.
    pub(super) const fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Erases a source from the recent events. Returns the number of erased events.
    pub(super) fn forget(&self, prefix: IpNet) -> u64 {
        self.feed.forget(prefix)
    }

    /// Queues an occurrence that is already logged. It gets the time of the next step.
    pub(super) fn add(&mut self, occurrence: Occurrence) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push(occurrence);
        } else {
            *self.untold.entry(occurrence.kind).or_default() += 1;
        }
    }

    /// Records one event that happened at `moment`.
    pub(super) fn tell(&mut self, event: Event, moment: Moment) {
        self.tell_all([event], Unlogged::default(), moment);
    }

    /// Records events in order. Rule events are logged within the budget. Suppressed ones and those in `unlogged` are
    /// only counted in the log.
    pub(super) fn tell_all(&mut self, events: impl IntoIterator<Item = Event>, unlogged: Unlogged, moment: Moment) {
        self.pass(moment);
        self.unlogged.add_all(unlogged);
        // The history learns of bans in dry run only here. It detects the end of a ban by itself.
        self.past.lost(moment.wall, moment.wall, unlogged.would);
        for event in events {
            self.take(&event, moment.wall, moment);
        }
        self.pass(moment);
    }

    /// Records an event that happened at a given time.
    pub(super) fn take(&mut self, event: &Event, at: Timestamp, moment: Moment) {
        let told = event.told(at);
        if !event.is_of_a_rule() {
            event::log(&told);
        } else if self.budget.room(moment.uptime) > 0 {
            self.budget.spend();
            event::log(&told);
        } else {
            self.unlogged.add(event);
        }
        self.remember(told);
    }

    /// Records an event that another log line already covers.
    pub(super) fn tell_unlogged(&mut self, event: &Event, at: Timestamp) {
        self.remember(event.told(at));
    }

    /// Records an event in the history only. Another event already summarizes it.
    pub(super) fn keep_alone(&mut self, event: &Event, at: Timestamp) {
        self.past.record(event.told(at));
    }

    /// Tells the history that a continuing state, such as a refusal, still lasts.
    pub(super) fn goes_on(&mut self, event: &Event, at: Timestamp) {
        self.past.record(event.told(at));
    }

    /// Records that events were lost before they reached the journal.
    pub(super) fn lose(&mut self, lost: Lost, moment: Moment) {
        if lost.sum() > 0 {
            self.past.lost(lost.since, moment.wall, lost.sum());
            self.lost.add(lost);
        }
        self.pass(moment);
    }

    /// Records beginnings in the history only, which may already know them.
    pub(super) fn take_up(&self, events: &[Event], at: Timestamp) {
        let _is_kept = self.past.take_up(events.iter().map(|event| event.told(at)).collect());
    }

    /// Turns queued occurrences into events, and logs the number of suppressed lines when due.
    pub(super) fn pass(&mut self, moment: Moment) {
        let untold = std::mem::take(&mut self.untold).into_iter().map(|(kind, count)| {
            Occurrence::new(kind, format!("{count} more of this kind at that time; only the log lists each of them"))
        });
        for Occurrence { kind, rule, by, detail } in std::mem::take(&mut self.waiting).into_iter().chain(untold) {
            let detail = detail.replace('\n', "; ");
            self.remember(Told { rule, by, ..Told::new(moment.wall, kind, detail) });
        }
        if self.unlogged == Unlogged::default() && self.lost.sum() == 0 {
            return;
        }
        let since = *self.unlogged_since.get_or_insert(moment.uptime);
        if moment.uptime.saturating_sub(since) >= UNLOGGED_EVERY {
            self.say_unlogged();
        }
    }

    /// Logs the number of suppressed lines and of lost events.
    pub(super) fn say_unlogged(&mut self) {
        let unlogged = std::mem::take(&mut self.unlogged);
        self.unlogged_since = None;
        let is_kept = self.past.health().is_some();
        if let Some(line) = std::mem::take(&mut self.lost).line(is_kept) {
            tracing::warn!("{line}");
        }
        if let Some(line) = unlogged.line(is_kept) {
            tracing::info!(
                refused = unlogged.refused,
                bans = unlogged.bans,
                ends = unlogged.ends,
                would_ban = unlogged.would,
                "{line}"
            );
        }
    }

    fn remember(&mut self, told: Told) {
        self.past.record(told.clone());
        self.feed.tell(told);
    }
}

/// Numbers of events that are not logged individually, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unlogged {
    pub(super) refused: u64,
    pub(super) would_refuse: u64,
    pub(super) bans: u64,
    pub(super) ends: u64,
    pub(super) would: u64,
    pub(super) charges: u64,
}

impl Unlogged {
    const fn add(&mut self, event: &Event) {
        let count = match event.kind() {
            EventKind::Refused => &mut self.refused,
            EventKind::WouldRefuse => &mut self.would_refuse,
            EventKind::Ban => &mut self.bans,
            EventKind::BanEnd => &mut self.ends,
            EventKind::WouldBan => &mut self.would,
            EventKind::Charge => &mut self.charges,
            EventKind::Allow
            | EventKind::Deny
            | EventKind::Unblock
            | EventKind::Unallow
            | EventKind::Reset
            | EventKind::Overload
            | EventKind::Breaker
            | EventKind::Trial
            | EventKind::Reload
            | EventKind::Attach
            | EventKind::Detach
            | EventKind::Fleet => return,
        };
        *count += 1;
    }

    const fn add_all(&mut self, more: Self) {
        self.refused += more.refused;
        self.would_refuse += more.would_refuse;
        self.bans += more.bans;
        self.ends += more.ends;
        self.would += more.would;
        self.charges += more.charges;
    }

    /// Returns the numbers in words, or none if all are 0. `is_kept` is true if there is a history.
    fn line(self, is_kept: bool) -> Option<String> {
        let parts = [
            (self.bans, "bans"),
            (self.refused, "sources refused"),
            (self.ends, "expired bans"),
            (self.would, "bans that dry run prevented"),
            (self.would_refuse, "sources that dry run passed"),
            (self.charges, "charges"),
        ];
        let counts = counts(&parts, " more")?;
        let shown = if is_kept { "`ratelimitd history` shows them" } else { "`ratelimitd events` shows the last" };
        Some(format!(
            "and {counts} in the last minute, not logged one by one (at most {LINES_PER_SECOND} lines a second); {shown}"
        ))
    }
}

/// Events that were lost for lack of room in the kernel's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lost {
    /// Last time at which none of these events was lost yet.
    pub(super) since: Timestamp,
    pub(super) refused: u64,
    pub(super) would_refuse: u64,
    pub(super) bans: u64,
}

impl Lost {
    /// Returns the total number of lost events.
    pub(super) const fn sum(&self) -> u64 {
        self.refused.saturating_add(self.would_refuse).saturating_add(self.bans)
    }

    const fn add(&mut self, more: Self) {
        self.refused += more.refused;
        self.would_refuse += more.would_refuse;
        self.bans += more.bans;
    }

    /// Returns the numbers in words with a hint where to look. None if all are 0.
    fn line(self, is_kept: bool) -> Option<String> {
        let parts = [
            (self.bans, "bans"),
            (self.refused, "sources refused"),
            (self.would_refuse, "sources that dry run passed"),
        ];
        let counts = counts(&parts, "")?;
        let shown = if is_kept { "`ratelimitd history` names the time; " } else { "" };
        Some(format!(
            "EVENTS LOST in the last minute: {counts} are missing from all lists of events; {shown}`ratelimitd check \
             ADDRESS` says \
             whether an address is refused now"
        ))
    }
}

/// Joins the numbers other than 0 with what each counts, separated by `between`. None if all are 0.
fn counts(parts: &[(u64, &str)], between: &str) -> Option<String> {
    let parts: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count}{between} {what}")).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Token bucket of log lines.
#[derive(Debug)]
struct Budget {
    /// Remaining budget in thousandths of a line.
    left: u64,
    filled_at: Duration,
}

impl Budget {
    /// Creates a full budget.
    const fn full(now: Duration) -> Self {
        Self { left: BURST * 1_000, filled_at: now }
    }

    /// Refills the budget, and returns the number of lines that may be written now.
    fn room(&mut self, now: Duration) -> usize {
        let more = now.saturating_sub(self.filled_at).as_millis().saturating_mul(u128::from(LINES_PER_SECOND));
        self.left = self.left.saturating_add(u64::try_from(more).unwrap_or(u64::MAX)).min(BURST * 1_000);
        self.filled_at = self.filled_at.max(now);
        usize::try_from(self.left / 1_000).unwrap_or(usize::MAX)
    }

    const fn spend(&mut self) {
        self.left = self.left.saturating_sub(1_000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelimit_control::proto::EventsOf;
    use ratelimit_policy::desired::Grant;
    use tokio::time::Instant;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn ten_lines_a_second_after_a_burst_of_fifty_and_the_rest_is_a_number() {
        let mut budget = Budget::full(at(0));
        let mut lines = 0;
        for second in 0..60 {
            let room = budget.room(at(second));
            lines += room;
            budget.left -= room as u64 * 1_000;
        }
        assert_eq!(lines, 50 + 59 * 10);
        assert_eq!(budget.room(at(3_600)), 50, "what was not used is not saved up beyond the burst");
        let unlogged = Unlogged { bans: 7, would: 2, ..Unlogged::default() };
        let line = unlogged.line(true).unwrap();
        let said = "and 7 more bans, 2 more bans that dry run prevented in the last minute, not logged one by one";
        assert!(line.starts_with(said), "{line}");
        assert_eq!((Unlogged::default().line(true), Lost::default().line(true)), (None, None));
    }

    #[test]
    fn occurrences_beyond_the_waiting_maximum_are_reported_as_a_number() {
        let mut journal = Journal::new(at(0));
        for number in 0..WAITING_MAX + 3 {
            journal.add(Occurrence::new(EventKind::Attach, format!("eth{number} is protected")));
        }
        journal.add(Occurrence::new(EventKind::Reload, "reloaded"));
        let moment = Moment { at: Instant::now(), uptime: at(0), wall: jiff::Timestamp::UNIX_EPOCH };
        let mut told = || {
            journal.pass(moment);
            let all = journal.feed().report(&EventsOf::default()).unwrap().events;
            all.into_iter().map(|of| (of.kind, of.detail)).skip(WAITING_MAX).collect::<Vec<_>>()
        };
        let more = |count| format!("{count} more of this kind at that time; only the log lists each of them");
        assert_eq!(told(), [(EventKind::Reload, more(1)), (EventKind::Attach, more(3))]);
        assert_eq!(told().len(), 2, "it is told once");
    }

    #[test]
    fn user_commands_neither_wait_for_nor_use_the_log_budget() {
        let moment = Moment { at: Instant::now(), uptime: at(0), wall: jiff::Timestamp::UNIX_EPOCH };
        let mut journal = Journal::new(at(0));
        let prefix = "192.0.2.7/32".parse().unwrap();
        let act = || Event::GrantEnd { grant: Grant::Denied, prefix, by: "root".into() };
        let ban_end = || Event::BanEnd { source: "192.0.2.7".into(), rule: "ssh".into(), dropped: 1, lifted_by: None };
        journal.tell_all(std::iter::repeat_with(act).take(100), Unlogged::default(), moment);
        assert_eq!(journal.budget.room(at(0)), 50);
        journal.tell_all(std::iter::repeat_with(ban_end).take(49), Unlogged::default(), moment);
        assert_eq!(journal.budget.room(at(0)), 1);
        journal.tell(ban_end(), moment);
        journal.tell(ban_end(), moment);
        assert_eq!((journal.budget.room(at(0)), journal.budget.room(at(1))), (0, 10));
    }
}
