//! Where everything that happens to sources goes: the log, a line each. What rules do by themselves is logged within a
//! budget: a flood of bans fills no disk. What somebody does is logged whatever it costs.
//!
//! Knows no datapath and no clock.

mod event;

use std::time::Duration;

use super::moment::Moment;
pub(super) use event::{Banned, Done, Event, Usage};

/// Lines that may come at once.
const BURST: u64 = 50;
/// Lines that may come each second after that.
const LINES_PER_SECOND: u64 = 10;

/// Takes in every event.
#[derive(Debug)]
pub(super) struct Journal {
    /// Of the log lines that nobody has asked for.
    budget: Budget,
}

impl Journal {
    /// With room for a burst.
    pub(super) const fn new(now: Duration) -> Self {
        Self { budget: Budget::full(now) }
    }

    /// Events of rules that may be logged one by one now.
    pub(super) fn room(&mut self, now: Duration) -> usize {
        self.budget.room(now)
    }

    /// Takes in one event.
    pub(super) fn tell(&mut self, event: Event, moment: Moment) {
        self.tell_all([event], Unlogged::default(), moment);
    }

    /// Takes in events, in order. Those of rules are logged while there is room; of the others, and of `unlogged`, is
    /// said how many they are.
    pub(super) fn tell_all(&mut self, events: impl IntoIterator<Item = Event>, mut unlogged: Unlogged, moment: Moment) {
        let mut room = self.budget.room(moment.uptime);
        for event in events {
            if !event.is_of_a_rule() {
                event.log();
            } else if room > 0 {
                room -= 1;
                self.budget.spend();
                event.log();
            } else {
                unlogged.add(&event);
            }
        }
        if let Some(line) = unlogged.line() {
            tracing::info!(bans = unlogged.bans, ends = unlogged.ends, would_ban = unlogged.would, "{line}");
        }
    }
}

/// How many bans, ends of bans and bans that would have been are not logged one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unlogged {
    pub(super) bans: u64,
    pub(super) ends: u64,
    pub(super) would: u64,
}

impl Unlogged {
    const fn add(&mut self, event: &Event) {
        match event {
            Event::Ban(_) => self.bans += 1,
            Event::BanEnd { .. } => self.ends += 1,
            Event::WouldBan(_) => self.would += 1,
            Event::Grant { .. }
            | Event::GrantEnd { .. }
            | Event::Unblock { .. }
            | Event::Unallow { .. }
            | Event::Reset { .. }
            | Event::TakeOver { .. }
            | Event::Detach { .. } => {}
        }
    }

    /// It in words; none where there is nothing to say.
    fn line(self) -> Option<String> {
        let parts = [(self.bans, "bans"), (self.ends, "expired bans"), (self.would, "bans that dry run prevented")];
        let parts: Vec<String> =
            parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} more {what}")).collect();
        let text = format!(
            "{} not logged one by one (at most {LINES_PER_SECOND} lines a second); `ratelimitd list` shows the bans",
            parts.join(", ")
        );
        (!parts.is_empty()).then_some(text)
    }
}

/// So many lines may be written.
#[derive(Debug)]
struct Budget {
    /// In thousandths of a line.
    left: u64,
    filled_at: Duration,
}

impl Budget {
    /// Full.
    const fn full(now: Duration) -> Self {
        Self { left: BURST * 1_000, filled_at: now }
    }

    /// Lines that may be written now.
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
        let unlogged = Unlogged { bans: 7, ends: 0, would: 2 };
        let line = unlogged.line().unwrap();
        assert!(line.starts_with("7 more bans, 2 more bans that dry run prevented not logged one by one"), "{line}");
        assert_eq!(Unlogged::default().line(), None);
    }

    #[test]
    fn what_somebody_does_waits_for_no_room_and_takes_none() {
        let moment = Moment { at: Instant::now(), uptime: at(0), wall: jiff::Timestamp::UNIX_EPOCH };
        let mut journal = Journal::new(at(0));
        let prefix = "192.0.2.7/32".parse().unwrap();
        let act = || Event::GrantEnd { grant: Grant::Denied, prefix, by: "root".into() };
        let ban_end = || Event::BanEnd { source: "192.0.2.7".into(), rule: "ssh".into(), dropped: 1 };
        journal.tell_all(std::iter::repeat_with(act).take(100), Unlogged::default(), moment);
        assert_eq!(journal.room(at(0)), 50);
        journal.tell_all(std::iter::repeat_with(ban_end).take(49), Unlogged::default(), moment);
        assert_eq!(journal.room(at(0)), 1);
        journal.tell(ban_end(), moment);
        journal.tell(ban_end(), moment);
        assert_eq!((journal.room(at(0)), journal.room(at(1))), (0, 10));
    }
}
