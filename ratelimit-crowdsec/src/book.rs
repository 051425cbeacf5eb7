//! Active decisions. Pure: times are arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};

use crate::decision::{Decision, Delta, Value};

/// Largest difference between two reports of one decision's expiry at which both count as equal.
const SAME_END: SignedDuration = SignedDuration::from_secs(2);

/// Active decisions by value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book(BTreeMap<Value, Held>);

/// Active decision about one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Expiry of the decision.
    pub until: Timestamp,
    /// Scenario and origin, from [`Decision::label`].
    pub label: Arc<str>,
    /// Origin on this host, from [`Decision::is_local`].
    pub is_local: bool,
}

/// Kind of an answer of the decision stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pull {
    /// Complete list of active decisions. A value that is missing is no longer denied.
    All,
    /// Changes since the last answer.
    Changes,
}

/// Prefixes to deny, and the number of those left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denied {
    /// Decision for each prefix. No prefix lies within another one that lasts as long.
    pub prefixes: BTreeMap<IpNet, Held>,
    /// Number of prefixes left out for lack of room.
    pub left_out: usize,
}

impl Book {
    /// Applies an answer: deletions first, then additions. Applying the same answer twice changes nothing.
    pub fn take(&mut self, delta: Delta, pull: Pull, now: Timestamp) {
        let Delta { new, deleted, ignored: _ } = delta;
        match pull {
            Pull::All => {
                let all: BTreeSet<Value> = new.iter().filter(|of| of.lasts_ns > 0).map(|of| of.value).collect();
                self.0.retain(|value, _| all.contains(value));
            }
            Pull::Changes => deleted.iter().for_each(|value| drop(self.0.remove(value))),
        }
        let mut fresh = BTreeSet::new();
        for Decision { value, lasts_ns, label, is_local } in new {
            let until = now.saturating_add(SignedDuration::from_nanos(lasts_ns)).unwrap_or(Timestamp::MAX);
            if lasts_ns <= 0 {
                // The decision expired in transit. The known one for this value is older, so a change removes it. A
                // complete answer already removed the values that it lacks.
                if pull == Pull::Changes {
                    self.0.remove(&value);
                }
                continue;
            }
            let held = Held { until, label, is_local };
            match self.0.get_mut(&value) {
                // Each report gives the remaining time in whole seconds, so the expiry jitters. Keeping the old one
                // leaves the file unchanged.
                Some(of) if of.label == held.label && held.until.duration_since(of.until).abs() <= SAME_END => {}
                // If a complete answer has several decisions for one value, the longest wins.
                Some(of) if pull == Pull::All && fresh.contains(&value) && of.until >= held.until => {}
                Some(of) => *of = held,
                None => drop(self.0.insert(value, held)),
            }
            fresh.insert(value);
        }
    }

    /// Restores decisions that an earlier run wrote down. They hold until the first answer.
    pub fn recall(&mut self, kept: impl IntoIterator<Item = (IpNet, Held)>) {
        self.0.extend(kept.into_iter().map(|(prefix, held)| (Value { prefix, is_address: false }, held)));
    }

    /// Removes expired decisions. Returns true if there were any.
    pub fn expire(&mut self, now: Timestamp) -> bool {
        let before = self.0.len();
        self.0.retain(|_, held| now < held.until);
        self.0.len() != before
    }

    /// Returns true if one decision covers the whole prefix.
    pub fn covers(&self, prefix: &IpNet, ipv6_prefix: u8) -> bool {
        self.0.keys().any(|value| source_of(*value, ipv6_prefix).contains(prefix))
    }

    /// Returns the number of decisions.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there is no decision.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns at most `most` prefixes to deny. An IPv6 address becomes its source prefix. A prefix is omitted if a
    /// wider one lasts as long. If there is no room for all, this host's own decisions come first, then those that
    /// last longest.
    pub fn denied(&self, ipv6_prefix: u8, most: usize) -> Denied {
        let mut sources: BTreeMap<IpNet, &Held> = BTreeMap::new();
        for (value, held) in &self.0 {
            let of = sources.entry(source_of(*value, ipv6_prefix)).or_insert(held);
            if of.until < held.until {
                *of = held;
            }
        }
        // The map is sorted by address, then by length, so an enclosing prefix precedes those within it.
        let mut around: Vec<(IpNet, Timestamp)> = Vec::new();
        let mut kept: Vec<(IpNet, &Held)> = Vec::new();
        for (prefix, held) in sources {
            around.retain(|(of, _)| of.contains(&prefix));
            if around.iter().all(|(_, until)| *until < held.until) {
                around.push((prefix, held.until));
                kept.push((prefix, held));
            }
        }
        let left_out = kept.len().saturating_sub(most);
        if left_out > 0 {
            kept.sort_by_key(|(_, held)| std::cmp::Reverse((held.is_local, held.until)));
            kept.truncate(most);
        }
        Denied { prefixes: kept.into_iter().map(|(prefix, held)| (prefix, held.clone())).collect(), left_out }
    }
}

/// Returns the prefix that is denied for a value.
fn source_of(value: Value, ipv6_prefix: u8) -> IpNet {
    match value.prefix {
        IpNet::V6(_) if value.is_address => {
            IpNet::new(value.prefix.addr(), ipv6_prefix).map_or(value.prefix, |source| source.trunc())
        }
        prefix @ (IpNet::V4(_) | IpNet::V6(_)) => prefix,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: i64 = 1_000_000_000;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn value(text: &str) -> Value {
        Value { prefix: text.parse().unwrap(), is_address: !text.contains('/') || text.ends_with("/128") }
    }

    fn ban(text: &str, seconds: i64, is_local: bool) -> Decision {
        Decision { value: value(text), lasts_ns: seconds * SECOND, label: "s (o)".into(), is_local }
    }

    fn delta(new: &[Decision], deleted: &[Value]) -> Delta {
        Delta { new: new.to_vec(), deleted: deleted.to_vec(), ..Delta::default() }
    }

    fn shown(book: &Book) -> Vec<String> {
        book.denied(64, 100).prefixes.iter().map(|(of, held)| format!("{of} {}", held.until.as_second())).collect()
    }

    #[test]
    fn deletions_apply_before_new_decisions_of_the_same_answer() {
        let mut book = Book::default();
        let one = ban("198.51.100.7/32", 60, true);
        book.take(delta(std::slice::from_ref(&one), &[]), Pull::All, at(0));
        book.take(delta(&[ban("198.51.100.7/32", 90, true)], &[one.value]), Pull::Changes, at(10));
        assert_eq!(shown(&book), ["198.51.100.7/32 100"]);
        book.take(delta(&[], &[one.value]), Pull::Changes, at(11));
        assert_eq!(shown(&book), [""; 0]);
        book.take(delta(&[], &[one.value]), Pull::Changes, at(12));
    }

    #[test]
    fn a_full_answer_replaces_everything_and_its_longest_decision_holds() {
        let mut book = Book::default();
        book.take(delta(&[ban("198.51.100.7/32", 60, true)], &[]), Pull::All, at(0));
        let full = [ban("198.51.100.8/32", 90, true), ban("198.51.100.8/32", 30, true)];
        book.take(delta(&full, &[]), Pull::All, at(0));
        assert_eq!(shown(&book), ["198.51.100.8/32 90"]);
    }

    #[test]
    fn decisions_expire_by_themselves_to_the_second() {
        let mut book = Book::default();
        book.take(delta(&[ban("198.51.100.7/32", 60, true), ban("198.51.100.8/32", -5, true)], &[]), Pull::All, at(0));
        assert!(!book.expire(at(59)) && book.len() == 1);
        assert!(book.expire(at(60)) && book.is_empty());
    }

    #[test]
    fn an_end_told_again_stays_where_it_is_told_and_does_not_drift() {
        let mut book = Book::default();
        book.take(delta(&[ban("198.51.100.7/32", 60, true)], &[]), Pull::All, at(0));
        // Each answer differs by a second from the one before, and the third by three seconds from the first.
        for (second, lasts, shows) in [(1, 58, 60), (2, 56, 60), (3, 54, 57)] {
            book.take(delta(&[ban("198.51.100.7/32", lasts, true)], &[]), Pull::Changes, at(second));
            assert_eq!(shown(&book), [format!("198.51.100.7/32 {shows}")]);
        }
    }

    #[test]
    fn an_ipv6_address_is_its_source_and_another_address_of_it_keeps_it() {
        let mut book = Book::default();
        let both = [ban("2001:db8::7/128", 60, true), ban("2001:db8::9/128", 90, true)];
        book.take(delta(&both, &[]), Pull::All, at(0));
        assert_eq!(shown(&book), ["2001:db8::/64 90"]);
        book.take(delta(&[], &[value("2001:db8::9/128")]), Pull::Changes, at(1));
        assert_eq!(shown(&book), ["2001:db8::/64 60"]);
        assert!(book.covers(&"2001:db8::/64".parse().unwrap(), 64));
        assert!(!book.covers(&"2001:db8::/64".parse().unwrap(), 128));
    }

    #[test]
    fn local_and_longest_decisions_stay_when_there_is_no_room() {
        let mut book = Book::default();
        let all =
            [ban("198.51.100.1/32", 500, false), ban("198.51.100.2/32", 900, false), ban("198.51.100.3/32", 5, true)];
        book.take(delta(&all, &[]), Pull::All, at(0));
        let denied = book.denied(64, 2);
        let prefixes: Vec<String> = denied.prefixes.keys().map(ToString::to_string).collect();
        assert_eq!((prefixes, denied.left_out), (vec!["198.51.100.2/32".to_owned(), "198.51.100.3/32".to_owned()], 1));
    }

    fn any_ban() -> impl Strategy<Value = Decision> {
        (any::<u8>(), 24..=32_u8, -5..50_i64).prop_map(|(last, length, seconds)| {
            let prefix = IpNet::new(std::net::Ipv4Addr::new(198, 51, 100, last).into(), length).unwrap().trunc();
            let value = Value { prefix, is_address: length == 32 };
            Decision { value, lasts_ns: seconds * SECOND, label: "s (o)".into(), is_local: false }
        })
    }

    proptest! {
        #[test]
        fn every_address_is_denied_while_a_decision_holds_for_it_to_what_ends_may_differ_by(
            answers in proptest::collection::vec((proptest::collection::vec(any_ban(), 0..6), any::<bool>()), 1..5),
            address in any::<u8>(),
            later in 0..60_i64,
        ) {
            let mut book = Book::default();
            let mut naive: Vec<(Value, i64)> = Vec::new();
            for (before, (new, is_all)) in answers.iter().enumerate() {
                let second = i64::try_from(before).unwrap();
                // The deleted values come from earlier answers.
                let deleted: Vec<Value> = answers[..before].iter().flat_map(|(new, _)| new.first()).map(|of| of.value).collect();
                let mut seen = std::collections::BTreeSet::new();
                let new: Vec<Decision> = new.iter().filter(|of| seen.insert(of.value)).cloned().collect();
                if *is_all { naive.clear(); }
                if !*is_all { naive.retain(|(value, _)| !deleted.contains(value)); }
                for of in &new {
                    naive.retain(|(value, _)| *value != of.value);
                    if of.lasts_ns > 0 { naive.push((of.value, second + of.lasts_ns / SECOND)); }
                }
                let pull = if *is_all { Pull::All } else { Pull::Changes };
                book.take(delta(&new, &deleted), pull, at(second));
                let again = book.clone();
                book.take(delta(&new, &deleted), pull, at(second));
                prop_assert_eq!(&book, &again);
            }
            book.expire(at(later));
            let host: IpNet = std::net::IpAddr::from([198, 51, 100, address]).into();
            let ends = naive.iter().filter(|(value, _)| value.prefix.contains(&host)).map(|(_, until)| *until).max();
            let denied = book.denied(64, usize::MAX).prefixes.keys().any(|of| of.contains(&host));
            // A repeated expiry may be kept as first reported.
            let slack = SAME_END.as_secs();
            prop_assert!(ends.is_some_and(|until| later < until + slack) || !denied, "{:?} at {}", ends, later);
            prop_assert!(denied || ends.is_none_or(|until| until - slack <= later), "{:?} at {}", ends, later);
        }
    }
}
