//! Allowed and denied prefixes with their author: the configuration, a command or safety. Merges them into the access
//! list of the policy. Pure: times are arguments.

use std::collections::BTreeMap;

use ipnet::IpNet;
use jiff::Timestamp;
use ratelimit_common::time::Nanos;

use crate::desired::{Access, Grant};

/// Maximum number of entries that commands can make. // 16384 x 200 B = 3 MB of JSON at most
pub const ENTRIES_MAX: usize = 16_384;
/// Number of exemptions possible beyond [`ENTRIES_MAX`]. A source that is denied by mistake can always be allowed.
pub const KEPT_FOR_ALLOW: usize = 256;
/// Number of the [`ENTRIES_MAX`] entries that programs cannot use.
const KEPT_FOR_USERS: usize = 1024;
/// Maximum length of a reason in bytes.
pub const REASON_BYTES_MAX: usize = 200;
/// Maximum length of an owner's name in bytes. // fail2ban/JAIL/ADDRESS
pub const OWNER_BYTES_MAX: usize = 128;

/// An exemption or denial of one prefix, with its author and reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Prefix that the entry concerns.
    pub prefix: IpNet,
    /// Grant of the prefix: exempt or denied.
    pub grant: Grant,
    /// Author of the entry.
    pub by: By,
    /// Program that alone can remove the entry, for example `fail2ban/sshd`. None if the administrator owns it.
    pub owner: Option<String>,
    /// Reason of the entry, in words.
    pub reason: Option<String>,
    /// Time at which the entry was made. None if it was not recorded.
    pub since: Option<Timestamp>,
    /// Expiry of the entry, by the datapath's clock. None is permanent.
    pub until: Option<Nanos>,
}

/// Author of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// The configuration file or the flags.
    Configuration,
    /// A command of a user or a program.
    Command {
        /// User who ran the command.
        user: String,
        /// Set by `--force`: the entry overrides safety.
        is_forced: bool,
    },
    /// Safety: exemptions of hosts and users who must not be locked out.
    Safety,
}

impl Entry {
    /// Returns the entry for a prefix of the configuration.
    pub const fn configured(access: &Access) -> Self {
        let Access { prefix, grant, until } = *access;
        Self { prefix, grant, by: By::Configuration, owner: None, reason: None, since: None, until }
    }

    /// Returns true if the entry has not expired.
    pub fn holds(&self, now: Nanos) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Returns the entry merged with an unexpired one of the same prefix and grant. If nothing changes, that is
    /// exactly `before`.
    fn after(&self, before: &Self, further: Further) -> Self {
        let until = match further {
            Further::Extend => self.until.zip(before.until).map(|(one, other)| one.max(other)),
            Further::Replace => self.until,
        };
        let by = match (&self.by, further) {
            (By::Command { user, is_forced }, Further::Extend) => {
                By::Command { user: user.clone(), is_forced: *is_forced || before.is_forced_denial() }
            }
            (by, _) => by.clone(),
        };
        let reason = self.reason.clone().or_else(|| before.reason.clone());
        let after = Self { by, reason, since: before.since, until, ..self.clone() };
        let is_same = (until, &after.reason, after.is_forced_denial())
            == (before.until, &before.reason, before.is_forced_denial());
        if is_same { before.clone() } else { after }
    }

    fn key(&self) -> Key {
        (self.prefix, self.grant, self.owner.clone())
    }

    /// Returns true if the entry's owner is `owner`, or begins with `owner` and a `/`.
    pub fn is_of(&self, owner: &str) -> bool {
        let rest = self.owner.as_deref().and_then(|of| of.strip_prefix(owner));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    fn is_safety(&self) -> bool {
        match self.by {
            By::Safety => true,
            By::Configuration | By::Command { .. } => false,
        }
    }

    /// Returns true for a denial that an administrator forced.
    fn is_forced_denial(&self) -> bool {
        match (self.grant, &self.by) {
            (Grant::Denied, By::Command { is_forced, .. }) => *is_forced,
            (Grant::Denied, By::Configuration | By::Safety) | (Grant::Exempt, _) => false,
        }
    }
}

/// Effect of a new entry on an existing one with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Further {
    /// The later expiry holds.
    Extend,
    /// The new expiry holds.
    Replace,
}

/// Result of entering an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Entry that holds now.
    pub entry: Entry,
    /// Entry with the same key that held before.
    pub before: Option<Entry>,
    /// Exemption that the new denial ended.
    pub ended: Option<Entry>,
}

/// Key of an entry: prefix, grant and owner. Each key has at most one entry.
type Key = (IpNet, Grant, Option<String>);

/// Entries made by commands. Each prefix and owner has at most one exemption and one denial.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger(BTreeMap<Key, Entry>);

impl Ledger {
    /// Enters an entry, and merges it with an existing one of the same key. [`Further`] decides which expiry holds.
    /// The old reason is kept if the new entry gives none.
    ///
    /// A denial also ends the administrator's exemption of the same prefix, which would override it. A program's
    /// denial does not end it. An exemption only suspends a denial. Returns None if the ledger is full.
    #[must_use]
    pub fn enter(&mut self, entry: Entry, further: Further, now: Nanos) -> Option<Entered> {
        let key = entry.key();
        let exemption = (entry.prefix, Grant::Exempt, None);
        let ends_it = entry.grant == Grant::Denied && entry.owner.is_none();
        let has_either = ends_it && self.0.contains_key(&exemption);
        // Clients can trigger entries of programs, so some room is reserved for the administrator.
        let most = match entry.grant {
            Grant::Denied if entry.owner.is_some() => ENTRIES_MAX - KEPT_FOR_USERS,
            Grant::Denied => ENTRIES_MAX,
            Grant::Exempt => ENTRIES_MAX + KEPT_FOR_ALLOW,
        };
        if self.0.len() >= most && !self.0.contains_key(&key) && !has_either {
            return None;
        }
        let ended = if ends_it { self.0.remove(&exemption).filter(|of| of.holds(now)) } else { None };
        let before = self.0.remove(&key).filter(|of| of.holds(now));
        let entry = before.as_ref().map_or_else(|| entry.clone(), |before| entry.after(before, further));
        self.0.insert(key, entry.clone());
        Some(Entered { entry, before, ended })
    }

    /// Returns the existing entry with the same prefix, grant and owner.
    pub fn held(&self, entry: &Entry) -> Option<&Entry> {
        self.0.get(&entry.key())
    }

    /// Enters an entry of an earlier run. A denial stays next to the exemption that suspends it. Returns false if the
    /// ledger is full.
    #[must_use]
    pub fn restore(&mut self, entry: Entry) -> bool {
        let has_room = self.0.len() < ENTRIES_MAX + KEPT_FOR_ALLOW;
        if has_room {
            self.0.insert(entry.key(), entry);
        }
        has_room
    }

    /// Removes and returns the entries of this grant for which `is_meant` is true.
    pub fn take_off(&mut self, grant: Grant, is_meant: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        self.0.extract_if(.., |(_, of, _), entry| *of == grant && is_meant(entry)).map(|(_, entry)| entry).collect()
    }

    /// Removes and returns the expired entries, in order.
    pub fn expire(&mut self, now: Nanos) -> Vec<Entry> {
        self.0.extract_if(.., |_, entry| !entry.holds(now)).map(|(_, entry)| entry).collect()
    }

    /// Returns all entries, ordered by prefix.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.0.values()
    }
}

/// Returns the entries that decide: one for each prefix, sorted by prefix. Expired entries are ignored. Exemptions
/// override denials of the same prefix, but a forced denial overrides safety. Among equal grants the later expiry
/// wins, then a command's entry.
pub fn deciding<'a>(entries: impl IntoIterator<Item = &'a Entry>, now: Nanos) -> Vec<&'a Entry> {
    // One sort of a vector, because there may be a million entries.
    let mut held: Vec<&Entry> = entries.into_iter().filter(|entry| entry.holds(now)).collect();
    held.sort_by_key(|entry| entry.prefix);
    held.chunk_by(|one, other| one.prefix == other.prefix).filter_map(first).collect()
}

fn first<'a>(entries: &[&'a Entry]) -> Option<&'a Entry> {
    let is_forced = entries.iter().any(|entry| entry.is_forced_denial());
    let counts = |entry: &&&Entry| !(is_forced && entry.is_safety());
    let rank = |entry: &&&Entry| {
        let by = match entry.by {
            By::Command { .. } => 2,
            By::Configuration => 1,
            By::Safety => 0,
        };
        (entry.grant == Grant::Exempt, entry.until.is_none(), entry.until, by)
    };
    entries.iter().filter(counts).max_by_key(rank).copied()
}

/// Returns the deciding entries as the policy's access list.
pub fn merged<'a>(entries: impl IntoIterator<Item = &'a Entry>, now: Nanos) -> Vec<Access> {
    let access = |entry: &Entry| Access { prefix: entry.prefix, grant: entry.grant, until: entry.until };
    deciding(entries, now).into_iter().map(access).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Nanos = Nanos(1_000);

    fn entry(prefix: &str, grant: Grant, by: By, until: Option<u64>) -> Entry {
        let prefix = prefix.parse().unwrap();
        Entry { prefix, grant, by, owner: None, reason: None, since: None, until: until.map(Nanos) }
    }

    fn command(is_forced: bool) -> By {
        By::Command { user: "root".into(), is_forced }
    }

    #[test]
    fn an_exemption_overrides_a_denial_of_the_same_prefix() {
        let exempt = entry("192.0.2.1/32", Grant::Exempt, By::Configuration, Some(2_000));
        let denied = entry("192.0.2.1/32", Grant::Denied, command(true), None);
        assert_eq!(deciding([&denied, &exempt], NOW), [&exempt]);
        assert_eq!(deciding([&denied, &exempt], Nanos(2_000)), [&denied], "an exemption that is over suspends nothing");
    }

    #[test]
    fn a_forced_denial_goes_before_safety_and_another_does_not() {
        let safety = entry("192.0.2.1/32", Grant::Exempt, By::Safety, None);
        let forced = entry("192.0.2.1/32", Grant::Denied, command(true), Some(2_000));
        let plain = entry("192.0.2.1/32", Grant::Denied, command(false), Some(2_000));
        assert_eq!(deciding([&safety, &forced], NOW), [&forced]);
        assert_eq!(deciding([&safety, &forced], Nanos(2_000)), [&safety]);
        assert_eq!(deciding([&safety, &plain], NOW), [&safety]);
    }

    #[test]
    fn the_later_end_holds_for_equal_grants_and_then_the_command() {
        let file = entry("192.0.2.0/24", Grant::Denied, By::Configuration, Some(3_000));
        let sooner = entry("192.0.2.0/24", Grant::Denied, command(false), Some(2_000));
        let same = entry("192.0.2.0/24", Grant::Denied, command(false), Some(3_000));
        let ever = entry("192.0.2.0/24", Grant::Denied, command(false), None);
        assert_eq!(deciding([&file, &sooner], NOW), [&file]);
        assert_eq!(deciding([&same, &file], NOW), [&same]);
        assert_eq!(deciding([&ever, &file], NOW), [&ever]);
    }

    #[test]
    fn programs_leave_room_for_the_administrator() {
        let mut ledger = Ledger::default();
        let mut has_room = |entry| ledger.enter(entry, Further::Extend, NOW).is_some();
        let of = |number: usize, owner: Option<&str>| Entry {
            owner: owner.map(str::to_owned),
            ..entry(&format!("10.{}.{}.1/32", number / 256, number % 256), Grant::Denied, command(false), None)
        };
        let most = ENTRIES_MAX - KEPT_FOR_USERS;
        assert!((0..most).all(|number| has_room(of(number, Some("a")))));
        assert!(!has_room(of(most, Some("a"))), "a program has no more");
        assert!((most..ENTRIES_MAX).all(|number| has_room(of(number, None))));
        assert!(!has_room(of(ENTRIES_MAX, None)), "nobody has more than there are");
        let exempt = |number| Entry { grant: Grant::Exempt, ..of(number, None) };
        assert!((0..KEPT_FOR_ALLOW).all(|number| has_room(exempt(number))), "who is denied by mistake can be allowed");
        assert!(!has_room(exempt(KEPT_FOR_ALLOW)), "and no more than that");
        let mut again = Ledger::default();
        assert!(ledger.entries().all(|entry| again.restore(entry.clone())), "a restart finds all of them");
    }

    #[test]
    fn each_owner_has_an_entry_of_its_own_and_takes_off_no_other() {
        let of = |owner: Option<&str>, until| Entry {
            owner: owner.map(str::to_owned),
            ..entry("192.0.2.1/32", Grant::Denied, command(false), Some(until))
        };
        let mut ledger = Ledger::default();
        let all = [
            of(None, 2_000),
            of(Some("fail2ban/sshd"), 4_000),
            of(Some("fail2ban/sshd2"), 3_000),
            of(Some("b/c"), 5_000),
        ];
        all.iter().for_each(|entry| drop(enter(&mut ledger, entry)));
        assert_eq!(deciding(ledger.entries(), NOW), [&all[3]], "the latest end holds");
        assert_eq!(
            ledger.take_off(Grant::Denied, |of| of.is_of("b")),
            [all[3].clone()],
            "a name takes what is below it"
        );
        assert_eq!(ledger.take_off(Grant::Denied, |of| of.is_of("fail2ban/sshd")), [all[1].clone()]);
        assert_eq!(deciding(ledger.entries(), NOW), [&all[2]]);
        assert_eq!(ledger.entries().count(), 2);
    }

    #[test]
    fn an_owned_denial_waits_below_the_administrators_exemption() {
        let mut ledger = Ledger::default();
        let exempt = entry("192.0.2.1/32", Grant::Exempt, command(false), Some(2_000));
        let owned =
            Entry { owner: Some("fail2ban/sshd".into()), ..entry("192.0.2.1/32", Grant::Denied, command(false), None) };
        enter(&mut ledger, &exempt);
        assert_eq!(enter(&mut ledger, &owned).ended, None);
        assert_eq!(deciding(ledger.entries(), NOW), [&exempt]);
        assert_eq!(deciding(ledger.entries(), Nanos(2_000)), [&owned]);
    }

    fn enter(ledger: &mut Ledger, entry: &Entry) -> Entered {
        ledger.enter(entry.clone(), Further::Extend, NOW).unwrap()
    }

    #[test]
    fn a_denial_ends_the_exemption_and_an_exemption_suspends_the_denial() {
        let mut ledger = Ledger::default();
        let (exempt, denied) = (
            entry("192.0.2.1/32", Grant::Exempt, command(false), Some(2_000)),
            entry("192.0.2.1/32", Grant::Denied, command(false), None),
        );
        enter(&mut ledger, &denied);
        assert_eq!(enter(&mut ledger, &exempt).ended, None);
        assert_eq!(deciding(ledger.entries(), NOW), [&exempt]);
        assert_eq!(ledger.expire(Nanos(2_000)), std::slice::from_ref(&exempt));
        assert_eq!(deciding(ledger.entries(), Nanos(2_000)), [&denied]);
        enter(&mut ledger, &exempt);
        assert_eq!(enter(&mut ledger, &denied).ended, Some(exempt));
        assert_eq!(ledger.entries().collect::<Vec<_>>(), [&denied]);
        assert_eq!(ledger.take_off(Grant::Denied, |of| of.prefix == denied.prefix), [denied]);
    }

    #[test]
    fn two_entries_of_a_prefix_keep_the_longer_end_and_the_last_given_reason() {
        let of = |until: Option<u64>, reason: Option<&str>| {
            let entry = entry("192.0.2.1/32", Grant::Denied, command(false), until);
            Entry { reason: reason.map(str::to_owned), ..entry }
        };
        for (first, second, extended, replaced) in [
            ((Some(2_000), Some("a")), (Some(3_000), None), (Some(3_000), Some("a")), (Some(3_000), Some("a"))),
            ((Some(3_000), Some("a")), (Some(2_000), None), (Some(3_000), Some("a")), (Some(2_000), Some("a"))),
            ((Some(3_000), Some("a")), (Some(2_000), Some("b")), (Some(3_000), Some("b")), (Some(2_000), Some("b"))),
            ((None, None), (Some(2_000), Some("b")), (None, Some("b")), (Some(2_000), Some("b"))),
            ((Some(2_000), None), (None, None), (None, None), (None, None)),
            ((Some(900), Some("a")), (Some(2_000), None), (Some(2_000), None), (Some(2_000), None)),
        ] {
            for (further, (until, reason)) in [(Further::Extend, extended), (Further::Replace, replaced)] {
                let mut ledger = Ledger::default();
                enter(&mut ledger, &of(first.0, first.1));
                let entered = ledger.enter(of(second.0, second.1), further, NOW).unwrap();
                assert_eq!(entered.entry, of(until, reason), "{first:?} {second:?} {further:?}");
                assert_eq!(entered.before.is_some(), first.0 != Some(900), "one that is over is none");
            }
        }
        let mut ledger = Ledger::default();
        let by = |user: &str| By::Command { user: user.into(), is_forced: false };
        enter(&mut ledger, &Entry { by: by("alice"), ..of(Some(3_000), Some("a")) });
        assert_eq!(enter(&mut ledger, &Entry { by: by("bob"), ..of(Some(2_000), None) }).entry.by, by("alice"));
        assert_eq!(enter(&mut ledger, &Entry { by: by("bob"), ..of(Some(4_000), None) }).entry.by, by("bob"));
    }

    fn entries() -> impl Strategy<Value = Vec<Entry>> {
        let prefix = prop::sample::select(vec!["192.0.2.0/24", "192.0.2.1/32", "10.0.0.0/8", "2001:db8::/32"]);
        let grant = prop::sample::select(vec![Grant::Exempt, Grant::Denied]);
        let by = prop::sample::select(vec![By::Configuration, By::Safety, command(true), command(false)]);
        let until = prop::option::of(900_u64..1_100);
        let entry = (prefix, grant, by, until).prop_map(|(prefix, grant, by, until)| entry(prefix, grant, by, until));
        prop::collection::vec(entry, 0..12)
    }

    proptest! {
        #[test]
        fn each_prefix_with_an_entry_that_holds_is_there_once_and_in_order(entries in entries()) {
            let merged = merged(&entries, NOW);
            prop_assert!(merged.is_sorted_by(|a, b| a.prefix < b.prefix));
            for entry in &entries {
                prop_assert!(!entry.holds(NOW) || merged.iter().any(|of| of.prefix == entry.prefix));
            }
            prop_assert!(merged.iter().all(|of| of.until.is_none_or(|until| NOW < until)));
        }

        #[test]
        fn the_order_of_entries_does_not_matter(entries in entries()) {
            let back: Vec<_> = entries.iter().rev().cloned().collect();
            prop_assert_eq!(merged(&entries, NOW), merged(&back, NOW));
        }

        #[test]
        fn nothing_is_denied_that_something_but_safety_exempts(entries in entries()) {
            for of in merged(&entries, NOW).iter().filter(|of| of.grant == Grant::Denied) {
                let exempts = |entry: &&Entry| entry.prefix == of.prefix && entry.grant == Grant::Exempt && entry.holds(NOW);
                prop_assert!(entries.iter().filter(exempts).all(Entry::is_safety));
            }
        }
    }
}
