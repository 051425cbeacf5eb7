//! Detection of a source that sends most of a rule's counted traffic. Such a source is likely a proxy, a CDN or a load
//! balancer, and all its users count as one client. Pure: times are durations since the daemon's start.
//!
//! A rule's admissions are attributed to sources in proportion to their usage, and refusals by the growth of each
//! source's own refusals. Only the windows with the most refusals are kept between two looks. A source's growth may
//! therefore appear smaller than it is, never larger.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use ipnet::IpNet;
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;
use serde::{Deserialize, Serialize};

use super::sources::{WindowState, source_text};
use ratelimit_datapath::{Reading, SourceReading, Whose};
use ratelimit_policy::desired::{self, Grant, Policy};

/// Interval between looks, each of which visits every source.
const EVERY: Duration = Duration::from_secs(60);
/// Number of packets between two looks that must be exceeded for a result.
const PACKETS_MIN: u64 = 1_000;
/// Share in percent that a top talker exceeds.
pub const TALKER_PERCENT: u64 = 80;
/// Advice on a top talker.
pub const TALKER_ADVICE: &str = "if that is a proxy or a CDN, all its users are one source: `ratelimitd allow` it, or give it \
                                 a rule of its own";
/// Number of windows kept per limit.
const REMEMBERED_MAX: usize = 16;

/// Source that sends most of a rule's counted traffic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TopTalker {
    /// Rule name.
    pub rule: String,
    /// Source: an address, or the prefix that counts as one client.
    pub source: String,
    /// Share of the packets that the rule counted between the last two looks, in percent.
    pub percent: u8,
}

impl TopTalker {
    /// Returns a description with the advice.
    pub fn words(&self) -> String {
        format!("{} % of what it counts comes from {}; {TALKER_ADVICE}", self.percent, self.source)
    }
}

/// State kept between looks.
#[derive(Debug, Default)]
pub struct TalkerWatch {
    looked_at: Option<Duration>,
    /// Packet counts at the last look, by rule name.
    counts: BTreeMap<String, Counts>,
    /// Refusals of the windows with the most refusals, by slot.
    refused: HashMap<u32, Vec<(Whose, u64)>>,
}

/// Number of packets of one rule that its limits counted.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    admitted: u64,
    refused: u64,
}

/// One look in progress. Windows may be visited in any order.
#[derive(Debug)]
pub struct Visit {
    now: Nanos,
    /// Rules with enough packets: rule index, and packets since the last look.
    busy: Vec<(usize, Counts)>,
    slots: HashMap<u32, Slot>,
}

#[derive(Debug)]
struct Slot {
    rule: usize,
    limit: desired::Limit,
    used: u128,
    most_used: Option<(u64, IpNet)>,
    /// Windows with the most refusals: refusals, source, and amount used.
    most_refused: BinaryHeap<Reverse<(u64, Whose, u64)>>,
}

impl TalkerWatch {
    /// Starts a look if one is due, else returns none.
    pub fn look(&mut self, policy: &Policy, reading: &Reading, at: Duration) -> Option<Visit> {
        if self.looked_at.is_some_and(|looked_at| at.saturating_sub(looked_at) < EVERY) {
            return None;
        }
        let is_first = self.looked_at.replace(at).is_none();
        let mut look = Visit { now: reading.now, busy: Vec::new(), slots: HashMap::new() };
        let mut counts = BTreeMap::new();
        for (index, rule) in policy.rules.iter().enumerate() {
            let count = Counts::of(reading, index);
            let before = self.counts.get(&rule.name).copied().unwrap_or(count);
            let since = count.since(before);
            counts.insert(rule.name.clone(), count);
            if !is_first && since.admitted.saturating_add(since.refused) > PACKETS_MIN {
                look.busy.push((index, since));
                let slot = |limit: &desired::Limit| (limit.slot, Slot::new(index, *limit));
                look.slots.extend(of_sources(rule).map(slot));
            }
        }
        self.counts = counts;
        Some(look)
    }

    /// Finishes a look. Returns at most one source per rule, in rule order.
    pub fn conclude(&mut self, policy: &Policy, look: &Visit) -> Vec<TopTalker> {
        let found = look.busy.iter().filter_map(|(rule, since)| self.top_talker(policy, look, *rule, *since)).collect();
        let remembered = |of: &Slot| of.most_refused.iter().map(|Reverse((refused, of, _))| (*of, *refused)).collect();
        self.refused = look.slots.iter().map(|(slot, of)| (*slot, remembered(of))).collect();
        found
    }

    fn top_talker(&self, policy: &Policy, look: &Visit, index: usize, since: Counts) -> Option<TopTalker> {
        let rule = policy.rules.get(index)?;
        let longest = of_sources(rule).max_by_key(|limit| limit.window_ns)?;
        let slot = look.slots.get(&longest.slot)?;
        let is_limited =
            |prefix: &IpNet| policy.grant_around(*prefix, look.now).is_none_or(|access| access.grant != Grant::Exempt);
        let candidates = slot.candidates().filter(|(prefix, _)| is_limited(prefix));
        let all = u128::from(since.admitted) + u128::from(since.refused);
        let share = |(prefix, used): (IpNet, u64)| {
            let admitted = u128::from(since.admitted) * u128::from(used) / slot.used.max(1);
            let windows = of_sources(rule).flat_map(|limit| [(limit, false), (limit, true)]);
            let grown =
                |(limit, is_verified): (&desired::Limit, _)| self.grown(look, limit.slot, (prefix, is_verified));
            let refused: u64 = windows.filter_map(grown).sum();
            (((admitted + u128::from(refused.min(since.refused))) * 100 / all.max(1)), prefix)
        };
        let (percent, prefix) = candidates.map(share).max()?;
        let percent = u8::try_from(percent.min(100)).unwrap_or(100);
        (u64::from(percent) > TALKER_PERCENT).then(|| TopTalker {
            rule: rule.name.clone(),
            source: source_text(prefix),
            percent,
        })
    }

    /// Returns a lower bound on the growth of a window's refusals since the last look; none if unknown.
    fn grown(&self, look: &Visit, slot: u32, whose: Whose) -> Option<u64> {
        let now = look.slots.get(&slot)?.most_refused.iter().find(|Reverse((_, of, _))| *of == whose)?.0.0;
        let before = self.refused.get(&slot)?;
        let known = before.iter().find(|(of, _)| *of == whose).map(|(_, refused)| *refused);
        // A window that was not kept had refused no more than the least of those kept.
        let least = before.iter().map(|(_, refused)| *refused).min().filter(|_| before.len() >= REMEMBERED_MAX);
        Some(now.saturating_sub(known.or(least).unwrap_or(0)))
    }
}

/// Returns the per-source limits of a rule: a group is no talker.
fn of_sources(rule: &desired::Rule) -> impl Iterator<Item = &desired::Limit> {
    rule.limits.iter().filter(|limit| limit.per == desired::Per::Source)
}

impl Counts {
    fn of(reading: &Reading, rule: usize) -> Self {
        let mut count = Self::default();
        for tallies in reading.interfaces.iter().filter_map(|interface| interface.rules.get(rule)) {
            let packets = |reason| tallies.of(reason).packets;
            let refused = packets(Reason::OverLimit).saturating_add(packets(Reason::DryRun));
            count.admitted = count.admitted.saturating_add(packets(Reason::WithinLimit));
            count.refused = count.refused.saturating_add(refused);
        }
        count
    }

    const fn since(self, earlier: Self) -> Self {
        Self {
            admitted: self.admitted.saturating_sub(earlier.admitted),
            refused: self.refused.saturating_sub(earlier.refused),
        }
    }
}

impl Visit {
    /// Returns true if a rule is busy, so that the windows must be visited.
    pub fn is_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// Counts one window, if its rule is busy.
    pub fn visit(&mut self, policy: &Policy, reading: &SourceReading) {
        let Some(slot) = self.slots.get_mut(&reading.slot) else { return };
        let Some(rule) = policy.rules.get(slot.rule) else { return };
        let of = WindowState::of(rule, &slot.limit, &reading.window, self.now);
        slot.used += u128::from(of.used);
        slot.most_used = slot.most_used.max(Some((of.used, reading.prefix)));
        if of.refused == 0 {
            return;
        }
        slot.most_refused.push(Reverse((of.refused, reading.whose(), of.used)));
        if slot.most_refused.len() > REMEMBERED_MAX {
            slot.most_refused.pop();
        }
    }
}

impl Slot {
    const fn new(rule: usize, limit: desired::Limit) -> Self {
        Self { rule, limit, used: 0, most_used: None, most_refused: BinaryHeap::new() }
    }

    /// Returns the sources that may be the top talker, with the amount that each has used.
    fn candidates(&self) -> impl Iterator<Item = (IpNet, u64)> {
        let refused = self.most_refused.iter().map(|Reverse((_, (prefix, _), used))| (*prefix, *used));
        refused.chain(self.most_used.map(|(used, prefix)| (prefix, used)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{MINUTE_NS, limit, opening, policy};
    use ratelimit_common::layout::Unit;
    use ratelimit_datapath::Datapath as _;
    use ratelimit_datapath::fake::{FakeDatapath, FakeKernel};
    use ratelimit_policy::desired::Access;

    struct Site {
        policy: Policy,
        datapath: FakeDatapath,
        kernel: FakeKernel,
        talker_watch: TalkerWatch,
        minutes: u64,
    }

    impl Site {
        fn new(policy: Policy) -> Self {
            let (mut datapath, kernel) = FakeDatapath::new(&["eth0"]);
            datapath.apply(&policy).unwrap();
            datapath.attach("eth0").unwrap();
            let mut site = Self { policy, datapath, kernel, talker_watch: TalkerWatch::default(), minutes: 0 };
            assert!(site.minute(&[]).is_empty());
            site
        }

        /// Sends the given number of packets per source within a minute, and returns the result of the look at its end.
        fn minute(&mut self, sent: &[(&str, u64)]) -> Vec<(String, u8)> {
            for (source, packets) in sent {
                for _ in 0..*packets {
                    self.kernel.packet("eth0", opening(source));
                }
            }
            let reading = self.datapath.read().unwrap();
            self.minutes += 1;
            let at = Duration::from_secs(60 * self.minutes);
            let mut look = self.talker_watch.look(&self.policy, &reading, at).expect("a look is due");
            if look.is_busy() {
                self.datapath.visit_sources(&mut |window| look.visit(&self.policy, &window)).unwrap();
            }
            assert!(self.talker_watch.look(&self.policy, &reading, at + Duration::from_secs(59)).is_none());
            self.kernel.advance(MINUTE_NS);
            let found = self.talker_watch.conclude(&self.policy, &look);
            found.into_iter().map(|of| (of.source, of.percent)).collect()
        }
    }

    const PROXY: &str = "198.51.100.7";

    #[test]
    fn a_source_that_most_comes_from_is_found_and_one_of_several_is_not() {
        for (sent, found) in [
            (&[(PROXY, 900), ("192.0.2.1", 101)][..], vec![(PROXY.to_owned(), 89)]),
            (&[(PROXY, 900), ("192.0.2.1", 100)], vec![]),
            (&[(PROXY, 811), ("192.0.2.1", 190)], vec![(PROXY.to_owned(), 81)]),
            (&[(PROXY, 805), ("192.0.2.1", 200)], vec![]),
        ] {
            let mut site = Site::new(policy(vec![limit(1_000_000, Unit::Connections)]));
            assert_eq!(site.minute(sent), found, "{sent:?}");
        }
    }

    #[test]
    fn one_that_is_held_to_its_limit_is_found_by_what_is_refused() {
        let mut site = Site::new(policy(vec![limit(100, Unit::Connections)]));
        let busy = [(PROXY, 2_000), ("192.0.2.1", 50), ("192.0.2.2", 50)];
        // The growth of its refusals is not known yet.
        assert!(site.minute(&busy).is_empty());
        assert_eq!(site.minute(&busy).first().map(|of| of.0.as_str()), Some(PROXY));
        assert!(site.minute(&[(PROXY, 5)]).is_empty(), "a quiet minute says nothing");
    }

    #[test]
    fn refusals_of_long_ago_are_not_taken_for_new_ones() {
        let mut site = Site::new(policy(vec![limit(10, Unit::Connections)]));
        site.minute(&[(PROXY, 5_000)]);
        let names: Vec<String> = (0..20).map(|at| format!("192.0.2.{at}")).collect();
        let many: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 100)).collect();
        assert!(site.minute(&many).is_empty());
        assert!(site.minute(&many).is_empty());
    }

    #[test]
    fn an_allowed_source_is_not_found_any_more() {
        let mut site = Site::new(policy(vec![limit(1_000_000, Unit::Connections)]));
        assert_eq!(site.minute(&[(PROXY, 9_000)]).len(), 1);
        site.policy.access = vec![Access::exempt("198.51.100.7/32".parse().unwrap())];
        let policy = site.policy.clone();
        site.datapath.apply(&policy).unwrap();
        let names: Vec<String> = (0..20).map(|at| format!("192.0.2.{at}")).collect();
        let many: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 100)).collect();
        assert!(site.minute(&many).is_empty());
    }
}
