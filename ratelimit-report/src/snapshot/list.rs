//! What is allowed, denied and banned, by whom and why: `ratelimitd list --json`. Pure.

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

/// All of it, by prefix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When this was read.
    pub time: Timestamp,
    /// By prefix, and for one prefix in the order of their states.
    pub entries: Vec<Listed>,
    /// Entries that were left out, where one origin has more than were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub omitted: Vec<Omitted>,
    /// The bans that rules in dry run would have begun and that would still hold. None of them decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_ban: Vec<Listed>,
}

/// Entries that were left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omitted {
    /// Where they come from: `list bad`, `bans of rule login`, `commands`.
    pub of: String,
    /// How many there are besides those that are listed.
    pub count: u64,
}

/// Which entries are asked for: those that meet all of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListFilter {
    /// Bans of the rule with this name alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Whose reason, list or comment holds this text, in whatever case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// That lie within this prefix, or hold all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<IpNet>,
    /// At most so many of each list, of each rule's bans, and of each other author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u64>,
}

/// What is listed.
#[derive(Debug)]
pub struct ListParts<'a> {
    /// What packets are judged by.
    pub policy: &'a Policy,
    /// What commands and safety have entered, and what the configuration says.
    pub entries: Vec<&'a Entry>,
    /// The bans.
    pub bans: &'a [Ban],
    /// Where the configuration's entries are written.
    pub places: Places,
    /// Both clocks.
    pub clocks: Clocks,
}

/// One prefix, and what holds for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    /// The prefix, or the address.
    pub prefix: String,
    /// `exempt`, `denied` or `banned`.
    pub state: State,
    /// Until when; none is permanent.
    pub until: Option<Timestamp>,
    /// Who entered it.
    pub by: Author,
    /// The name of the user whose command it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The program whose denial it is, as in `fail2ban/sshd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The rule that banned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Its number among bans in a row, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// Why, in words.
    pub reason: Option<String>,
    /// Since when, where it is known.
    pub since: Option<Timestamp>,
    /// Whether it decides for its addresses that have no longer prefix here; a ban decides for its rule alone. Otherwise
    /// `overridden_by` decides.
    pub decides: bool,
    /// The entry that overrides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overridden_by: Option<Overriding>,
    /// The named list that it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<String>,
    /// The list file, or the configuration file, that it is written in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// What the list file says beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// An entry that overrides another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overriding {
    /// Its prefix, or the address.
    pub prefix: String,
    /// `exempt` or `denied`.
    pub state: State,
    /// Until when; none is permanent.
    pub until: Option<Timestamp>,
}

/// Who entered it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Author {
    /// The configuration.
    #[default]
    Configuration,
    /// A command.
    Command,
    /// Safety: hosts and users who must not be locked out.
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
    /// The report on all entries that hold, and on the bans, of those that are asked for.
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
        // Grants are looked up before bans.
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

    /// The same with the bans that rules in dry run would have begun.
    #[must_use]
    pub fn with_would_be(mut self, parts: &ListParts<'_>, bans: &[Ban], filter: &ListFilter) -> Self {
        let of = |ban: &Ban| Listed { decides: false, ..Listed::of_ban(parts.policy, ban, parts.clocks) };
        let taken = bans.iter().map(|ban| (ban.client, of(ban))).filter(|(client, of)| filter.takes(*client, of));
        self.would_ban = taken.map(|(_, of)| of).collect();
        self
    }
}

/// Keeps so many entries of each origin, and returns what it left out.
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
    /// Whether an entry meets all of these.
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
    /// One entry.
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

    /// The same with where it is written, if that is known.
    #[must_use]
    pub fn written(self, at: Option<&WrittenAt>) -> Self {
        let Some(WrittenAt { list, file, line, comment, .. }) = at.cloned() else { return self };
        Self { list, file: file.map(|file| file.display().to_string()), line, comment, ..self }
    }

    /// What it comes from, in words.
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

    /// One ban, which decides.
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

/// Without nanoseconds, which have no use here.
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
