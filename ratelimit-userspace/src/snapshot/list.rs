//! What is allowed, denied and banned, by whom and why: `ratelimitd list --json`. Pure.

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use ratelimit_common::time::Nanos;
use serde::{Deserialize, Serialize};

use super::SCHEMA;
use super::sources::{State, source_text};
use crate::access::{By, Entry, deciding};
use crate::datapath::Ban;
use crate::desired::{Grant, Policy};

/// All of it, by prefix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When this was read.
    pub time: Timestamp,
    /// By prefix, and for one prefix in the order of their states.
    pub entries: Vec<Listed>,
    /// The bans that rules in dry run would have begun and that would hold: none of them decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_ban: Vec<Listed>,
}

/// One prefix, and what holds for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    /// The prefix, or the address.
    pub prefix: String,
    /// `exempt`, `denied` or `banned`.
    pub state: State,
    /// Until when; none is for ever.
    pub until: Option<Timestamp>,
    /// Who said so.
    pub by: Author,
    /// The name of the user whose command it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The rule that banned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The how-manieth ban in a row it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// Why, in words.
    pub reason: Option<String>,
    /// Since when, where it is known.
    pub since: Option<Timestamp>,
    /// Whether it decides; else another entry of the same prefix does.
    pub decides: bool,
}

/// Who said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Author {
    /// The configuration.
    Configuration,
    /// A command.
    Command,
    /// Safety: whoever must not be locked out.
    Safety,
    /// A rule that was exceeded.
    Ban,
}

/// The two clocks at one moment: what the datapath counts by, and what people read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// The datapath's.
    pub now: Nanos,
    /// The wall's.
    pub wall: Timestamp,
}

impl Clocks {
    /// An instant of the datapath's clock, by the wall's; past the calendar's end it is that end.
    pub fn wall_of(self, at: Nanos) -> Timestamp {
        let ahead = i128::from(at.0) - i128::from(self.now.0);
        Timestamp::from_nanosecond(self.wall.as_nanosecond().saturating_add(ahead)).unwrap_or(Timestamp::MAX)
    }

    /// An instant of the wall clock, by the datapath's; what is before its beginning is that beginning.
    pub fn datapath_of(self, at: Timestamp) -> Nanos {
        let ahead = at.as_nanosecond().saturating_sub(self.wall.as_nanosecond());
        let at = i128::from(self.now.0).saturating_add(ahead);
        Nanos(u64::try_from(at.max(0)).unwrap_or(u64::MAX))
    }

    /// So long from now.
    pub const fn after(self, duration_ns: u64) -> Nanos {
        Nanos(self.now.0.saturating_add(duration_ns))
    }
}

impl ListReport {
    /// The report on all entries that hold, and on the bans.
    pub fn build<'a>(
        policy: &Policy,
        entries: impl IntoIterator<Item = &'a Entry>,
        bans: &[Ban],
        clocks: Clocks,
    ) -> Self {
        let holding: Vec<&Entry> = entries.into_iter().filter(|entry| entry.holds(clocks.now)).collect();
        let deciding = deciding(holding.iter().copied(), clocks.now);
        let is_deciding = |entry: &Entry| deciding.iter().any(|other| std::ptr::eq(*other, entry));
        let of_entries = holding.iter().map(|entry| (entry.prefix, Listed::of(entry, is_deciding(entry), clocks)));
        let of_bans = bans.iter().map(|ban| (ban.client, Listed::of_ban(policy, ban, clocks)));
        let mut listed: Vec<(IpNet, Listed)> = of_entries.chain(of_bans).collect();
        listed.sort_by_key(|(prefix, of)| (*prefix, of.rank()));
        Self {
            schema: SCHEMA,
            time: clocks.wall,
            entries: listed.into_iter().map(|(_, of)| of).collect(),
            would_ban: Vec::new(),
        }
    }

    /// The same with the bans that rules in dry run would have begun.
    #[must_use]
    pub fn with_would_be(mut self, policy: &Policy, bans: &[Ban], clocks: Clocks) -> Self {
        let of = |ban: &Ban| Listed { decides: false, ..Listed::of_ban(policy, ban, clocks) };
        self.would_ban = bans.iter().map(of).collect();
        self
    }
}

impl Listed {
    /// One entry.
    pub fn of(entry: &Entry, decides: bool, clocks: Clocks) -> Self {
        let (by, user) = match &entry.by {
            By::Configuration => (Author::Configuration, None),
            By::Command { user, .. } => (Author::Command, Some(user.clone())),
            By::Safety => (Author::Safety, None),
        };
        Self {
            prefix: source_text(entry.prefix),
            state: match entry.grant {
                Grant::Exempt => State::Exempt,
                Grant::Denied => State::Denied,
            },
            until: entry.until.map(|until| whole_seconds(clocks.wall_of(until))),
            by,
            user,
            rule: None,
            step: None,
            reason: entry.reason.clone(),
            since: entry.since.map(whole_seconds),
            decides,
        }
    }

    /// One ban.
    pub fn of_ban(policy: &Policy, ban: &Ban, clocks: Clocks) -> Self {
        let rule = policy.rules.get(ban.rule);
        let length = rule.and_then(|rule| rule.bans.as_ref()).and_then(|bans| bans.length_ns(ban.step));
        let until = clocks.wall_of(ban.until);
        let since = length.and_then(|length| i64::try_from(length).ok()).map(SignedDuration::from_nanos);
        Self {
            prefix: source_text(ban.client),
            state: State::Banned,
            until: Some(whole_seconds(until)),
            by: Author::Ban,
            user: None,
            rule: rule.map(|rule| rule.name.clone()),
            step: Some(ban.step),
            reason: rule.map(|rule| format!("it exceeded a limit of rule {}", rule.name)),
            since: since.and_then(|length| until.checked_sub(length).ok()).map(whole_seconds),
            decides: true,
        }
    }

    const fn rank(&self) -> (bool, u8) {
        let state = match self.state {
            State::Exempt => 0,
            State::Denied => 1,
            State::Banned => 2,
            State::OverLimit | State::Ok => 3,
        };
        (!self.decides, state)
    }
}

/// People and programs alike have no use for nanoseconds here.
fn whole_seconds(at: Timestamp) -> Timestamp {
    at.round(jiff::Unit::Second).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::Bans;
    use crate::fixture::{limit, policy};
    use ratelimit_common::time::SECOND_NS;

    fn clocks() -> Clocks {
        Clocks { now: Nanos(1_000 * SECOND_NS), wall: "2026-01-01T10:00:00Z".parse().unwrap() }
    }

    fn entry(prefix: &str, grant: Grant, by: By, until: Option<Nanos>) -> Entry {
        Entry { prefix: prefix.parse().unwrap(), grant, by, reason: Some("why".into()), since: None, until }
    }

    #[test]
    fn an_instant_goes_to_the_other_clock_and_back() {
        let clocks = clocks();
        let later = clocks.after(60 * SECOND_NS);
        assert_eq!(clocks.wall_of(later).to_string(), "2026-01-01T10:01:00Z");
        assert_eq!(clocks.datapath_of(clocks.wall_of(later)), later);
        assert_eq!(clocks.datapath_of(Timestamp::MIN), Nanos(0));
        assert!(clocks.wall_of(Nanos(u64::MAX)) > clocks.wall);
    }

    #[test]
    fn all_that_holds_is_listed_by_prefix_and_what_decides_comes_first() {
        let mut policy = policy(vec![limit(3, ratelimit_common::layout::Unit::Connections)]);
        policy.rules[0].bans =
            Some(Bans { steps_ns: vec![60 * SECOND_NS, 600 * SECOND_NS], forget_ns: 0, needs_proof: false });
        let user = || By::Command { user: "root".into(), is_forced: false };
        let entries = [
            entry("192.0.2.1/32", Grant::Denied, user(), None),
            entry("192.0.2.1/32", Grant::Exempt, By::Safety, None),
            entry("10.0.0.0/8", Grant::Denied, user(), Some(clocks().after(3_600 * SECOND_NS))),
            entry("10.0.0.0/9", Grant::Denied, user(), Some(clocks().now)),
        ];
        let bans = [Ban {
            client: "198.51.100.7/32".parse().unwrap(),
            rule: 0,
            until: clocks().after(300 * SECOND_NS),
            step: 2,
        }];
        let report = ListReport::build(&policy, &entries, &bans, clocks());
        let rows: Vec<_> = report.entries.iter().map(|of| (of.prefix.as_str(), of.state, of.by, of.decides)).collect();
        assert_eq!(
            rows,
            [
                ("10.0.0.0/8", State::Denied, Author::Command, true),
                ("192.0.2.1", State::Exempt, Author::Safety, true),
                ("192.0.2.1", State::Denied, Author::Command, false),
                ("198.51.100.7", State::Banned, Author::Ban, true),
            ]
        );
        assert_eq!(report.entries[0].until.map(|at| at.to_string()).as_deref(), Some("2026-01-01T11:00:00Z"));
        assert_eq!(report.entries[3].since.map(|at| at.to_string()).as_deref(), Some("2026-01-01T09:55:00Z"));
        assert_eq!(report.entries[3].rule.as_deref(), Some("default"));
    }
}
