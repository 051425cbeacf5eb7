//! Allowed, denied and banned prefixes, with author and reason: `ratelimitd list --json`. Pure.

use std::collections::{BTreeMap, HashSet};

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use ratelimit_common::time::Nanos;
use serde::{Deserialize, Serialize};

use super::SCHEMA;
use super::sources::{State, source_text};
use ratelimit_datapath::Ban;
use ratelimit_policy::access::{By, Entry, deciding};
use ratelimit_policy::config::listing::{Places, WrittenAt};
use ratelimit_policy::desired::{Grant, Policy};

/// All entries and bans, sorted by prefix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListReport {
    /// Version of the JSON schema, [`SCHEMA`].
    pub schema: u32,
    /// Time of the reading.
    pub time: Timestamp,
    /// Entries sorted by prefix. For one prefix, deciding entries come first, then the order of states.
    pub entries: Vec<Listed>,
    /// Counts of entries left out, for each origin with more entries than were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub omitted: Vec<Omitted>,
    /// Bans that rules in dry run would have begun and that would still be in force. They decide nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_ban: Vec<Listed>,
}

/// Number of entries left out of one origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omitted {
    /// Origin of the entries: `list bad`, `bans of rule login`, `commands`.
    pub of: String,
    /// Number of entries beyond those listed.
    pub count: u64,
}

/// Filter for entries. An entry must meet every condition that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListFilter {
    /// Restricts bans to those of the rule with this name. Other entries do not match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Text that the reason, list or comment contains, ignoring case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Prefix that contains the entry's prefix or lies within it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<IpNet>,
    /// Maximum number of entries per list, per rule's bans, and per other author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u64>,
}

/// Inputs of [`ListReport::build`].
#[derive(Debug)]
pub struct ListParts<'a> {
    /// Policy in force.
    pub policy: &'a Policy,
    /// Entries of commands, of safety and of the configuration.
    pub entries: Vec<&'a Entry>,
    /// Bans in force.
    pub bans: &'a [Ban],
    /// File and line of the configuration's entries.
    pub places: Places,
    /// Datapath and wall clock.
    pub clocks: Clocks,
}

/// One prefix and its entry or ban.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    /// Prefix, or single address.
    pub prefix: String,
    /// State of the prefix: `exempt`, `denied` or `banned`.
    pub state: State,
    /// Expiry; none if permanent.
    pub until: Option<Timestamp>,
    /// Kind of author of the entry.
    pub by: Author,
    /// Name of the user who added the entry by a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Program that owns the denial, as in `fail2ban/sshd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Name of the rule that banned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Position of the ban among consecutive bans, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// Reason in words.
    pub reason: Option<String>,
    /// Start, if it is known.
    pub since: Option<Timestamp>,
    /// True if the entry decides for its addresses, except those in a longer prefix of the list. A ban decides only for
    /// its rule. Otherwise `overridden_by` decides.
    pub decides: bool,
    /// Entry that overrides this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overridden_by: Option<Overriding>,
    /// Name of the list that contains the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<String>,
    /// List file or configuration file that contains the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Line number in that file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Comment on the entry in the list file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// Entry that overrides another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overriding {
    /// Prefix, or single address.
    pub prefix: String,
    /// State of the prefix: `exempt` or `denied`.
    pub state: State,
    /// Expiry; none if permanent.
    pub until: Option<Timestamp>,
}

/// Kind of author of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Author {
    /// The configuration.
    #[default]
    Configuration,
    /// A command of a user.
    Command,
    /// Safety entries for hosts and users who must not be locked out.
    Safety,
    /// A rule, after a source exceeded its limit.
    Ban,
}

/// Datapath and wall clock at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// Datapath time, by which packets are counted.
    pub now: Nanos,
    /// Wall time, which is shown to users.
    pub wall: Timestamp,
}

impl Clocks {
    /// Converts an instant of the datapath's clock to wall time, bounded by the calendar's end.
    pub fn wall_of(self, at: Nanos) -> Timestamp {
        let ahead = i128::from(at.0) - i128::from(self.now.0);
        Timestamp::from_nanosecond(self.wall.as_nanosecond().saturating_add(ahead)).unwrap_or(Timestamp::MAX)
    }

    /// Converts wall time to the datapath's clock, bounded below by 0.
    pub fn datapath_of(self, at: Timestamp) -> Nanos {
        let ahead = at.as_nanosecond().saturating_sub(self.wall.as_nanosecond());
        let at = i128::from(self.now.0).saturating_add(ahead);
        Nanos(u64::try_from(at.max(0)).unwrap_or(u64::MAX))
    }

    /// Returns the datapath time `duration_ns` from now.
    pub const fn after(self, duration_ns: u64) -> Nanos {
        Nanos(self.now.0.saturating_add(duration_ns))
    }
}

impl ListReport {
    /// Builds the report on all entries in force and all bans that match the filter.
    pub fn build(parts: &ListParts<'_>, filter: &ListFilter) -> Self {
        let ListParts { policy, entries, bans, places, clocks } = parts;
        let holding: Vec<&Entry> = entries.iter().copied().filter(|entry| entry.holds(clocks.now)).collect();
        let deciding = deciding(holding.iter().copied(), clocks.now);
        let by_prefix: BTreeMap<IpNet, &Entry> = deciding.iter().map(|entry| (entry.prefix, *entry)).collect();
        let deciding: HashSet<*const Entry> = deciding.into_iter().map(std::ptr::from_ref).collect();
        let of_entry = |entry: &&Entry| {
            let before = by_prefix.get(&entry.prefix).filter(|_| !deciding.contains(&std::ptr::from_ref(*entry)));
            let listed = Listed::of(entry, before.is_none(), *clocks);
            let at = places.get(&(entry.prefix, entry.grant)).filter(|_| entry.by == By::Configuration);
            let listed = Listed { overridden_by: before.map(|of| Overriding::of(of, *clocks)), ..listed };
            (entry.prefix, listed.written(at))
        };
        // The datapath looks up grants before bans.
        let of_ban = |ban: &Ban| {
            let before = policy.grant_around(ban.client, clocks.now).and_then(|access| by_prefix.get(&access.prefix));
            let listed = Listed::of_ban(policy, ban, *clocks);
            let overridden_by = before.map(|of| Overriding::of(of, *clocks));
            (ban.client, Listed { decides: before.is_none(), overridden_by, ..listed })
        };
        let all = holding.iter().map(of_entry).chain(bans.iter().map(of_ban));
        let mut listed: Vec<(IpNet, Listed)> = all.filter(|(prefix, of)| filter.takes(*prefix, of)).collect();
        listed.sort_by_key(|(prefix, of)| (*prefix, of.rank()));
        let mut entries: Vec<Listed> = listed.into_iter().map(|(_, of)| of).collect();
        let omitted = filter.most.map_or_else(Vec::new, |most| bounded(&mut entries, most));
        Self { schema: SCHEMA, time: clocks.wall, entries, omitted, would_ban: Vec::new() }
    }

    /// Adds the bans that rules in dry run would have begun.
    #[must_use]
    pub fn with_would_be(mut self, parts: &ListParts<'_>, bans: &[Ban], filter: &ListFilter) -> Self {
        let of = |ban: &Ban| Listed { decides: false, ..Listed::of_ban(parts.policy, ban, parts.clocks) };
        let taken = bans.iter().map(|ban| (ban.client, of(ban))).filter(|(client, of)| filter.takes(*client, of));
        self.would_ban = taken.map(|(_, of)| of).collect();
        self
    }
}

/// Keeps at most `most` entries of each origin, and returns the counts of those left out.
fn bounded(entries: &mut Vec<Listed>, most: u64) -> Vec<Omitted> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    entries.retain(|of| {
        let count = counts.entry(of.origin()).or_default();
        *count += 1;
        *count <= most
    });
    let omitted = counts.into_iter().filter(|(_, count)| *count > most);
    omitted.map(|(of, count)| Omitted { of, count: count - most }).collect()
}

impl ListFilter {
    /// Returns true if the entry meets every condition.
    pub(crate) fn takes(&self, prefix: IpNet, of: &Listed) -> bool {
        let text = |field: &Option<String>, wanted: &str| {
            field.as_ref().is_some_and(|text| text.to_lowercase().contains(wanted))
        };
        let has = |wanted: &String| {
            let wanted = wanted.to_lowercase();
            [&of.reason, &of.comment, &of.list].into_iter().any(|field| text(field, &wanted))
        };
        self.rule.as_ref().is_none_or(|rule| of.rule.as_ref() == Some(rule))
            && self.reason.as_ref().is_none_or(has)
            && self.prefix.is_none_or(|asked| asked.contains(&prefix) || prefix.contains(&asked))
    }
}

impl Overriding {
    fn of(entry: &Entry, clocks: Clocks) -> Self {
        let Listed { prefix, state, until, .. } = Listed::of(entry, true, clocks);
        Self { prefix, state, until }
    }
}

impl Listed {
    /// Builds the row of one entry.
    pub fn of(entry: &Entry, decides: bool, clocks: Clocks) -> Self {
        let (by, user) = match &entry.by {
            By::Configuration => (Author::Configuration, None),
            By::Command { user, .. } => (Author::Command, Some(user.clone())),
            By::Safety => (Author::Safety, None),
        };
        let state = match entry.grant {
            Grant::Exempt => State::Exempt,
            Grant::Denied => State::Denied,
        };
        Self {
            until: entry.until.map(|until| whole_seconds(clocks.wall_of(until))),
            user,
            owner: entry.owner.clone(),
            reason: entry.reason.clone(),
            since: entry.since.map(whole_seconds),
            decides,
            ..Self::new(entry.prefix, state, by)
        }
    }

    fn new(prefix: IpNet, state: State, by: Author) -> Self {
        Self { prefix: source_text(prefix), state, by, decides: true, ..Self::default() }
    }

    /// Adds the file, line and comment of the entry, if they are known.
    #[must_use]
    pub fn written(self, at: Option<&WrittenAt>) -> Self {
        let Some(WrittenAt { list, file, line, comment, .. }) = at.cloned() else { return self };
        Self { list, file: file.map(|file| file.display().to_string()), line, comment, ..self }
    }

    /// Returns the origin of the entry in words, which groups entries for [`ListFilter::most`].
    pub fn origin(&self) -> String {
        match (self.by, &self.list, &self.file, &self.rule) {
            (Author::Configuration, Some(list), ..) => format!("list {list}"),
            (Author::Configuration, None, Some(file), _) => file.clone(),
            (Author::Configuration, None, None, _) => "the configuration".to_owned(),
            (Author::Command, ..) => "commands".to_owned(),
            (Author::Safety, ..) => "safety".to_owned(),
            (Author::Ban, .., Some(rule)) => format!("bans of rule {rule}"),
            (Author::Ban, .., None) => "bans".to_owned(),
        }
    }

    /// Builds the row of one ban, which decides.
    pub fn of_ban(policy: &Policy, ban: &Ban, clocks: Clocks) -> Self {
        let rule = policy.rules.get(ban.rule);
        let length = rule.and_then(|rule| rule.bans.as_ref()).and_then(|bans| bans.length_ns(ban.step));
        let until = clocks.wall_of(ban.until);
        let since = length.and_then(|length| i64::try_from(length).ok()).map(SignedDuration::from_nanos);
        Self {
            until: Some(whole_seconds(until)),
            rule: rule.map(|rule| rule.name.clone()),
            step: Some(ban.step),
            reason: rule.map(|rule| format!("it exceeded a limit of rule {}", rule.name)),
            since: since.and_then(|length| until.checked_sub(length).ok()).map(whole_seconds),
            ..Self::new(ban.client, State::Banned, Author::Ban)
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

/// Drops the fraction of a second, by rounding to the nearest second.
pub(super) fn whole_seconds(at: Timestamp) -> Timestamp {
    at.round(jiff::Unit::Second).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{limit, policy};
    use ratelimit_common::time::SECOND_NS;
    use ratelimit_policy::desired::Bans;

    fn clocks() -> Clocks {
        Clocks { now: Nanos(1_000 * SECOND_NS), wall: "2026-01-01T10:00:00Z".parse().unwrap() }
    }

    fn entry(prefix: &str, grant: Grant, by: By, until: Option<Nanos>) -> Entry {
        Entry {
            prefix: prefix.parse().unwrap(),
            grant,
            by,
            owner: None,
            reason: Some("why".into()),
            since: None,
            until,
        }
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
        let (entries, places) = (entries.iter().collect(), Places::new());
        let parts = ListParts { policy: &policy, entries, bans: &bans, places, clocks: clocks() };
        let report = ListReport::build(&parts, &ListFilter::default());
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
