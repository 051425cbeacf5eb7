//! Demand of whole prefixes, IPv4 /24 and IPv6 /48, summed over their sources. Each source of a distributed crawler
//! stays within its limit, and only the prefix stands out. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;
use ratelimit_common::time::BucketIndex;
use ratelimit_common::window::{self, CELLS, amount_max};
use ratelimit_policy::desired::{Limit, Per};
use serde::{Deserialize, Serialize};

use crate::observe::{self, Reason, SOURCES_MIN};

/// Groups with summed demand, for which a limit is proposed.
pub const GROUPS: Per = Per::Prefix { v4: 24, v6: 48 };

/// Maximum number of prefixes of a limit that are kept from round to round. // 16 384 x ~140 B = 2.3 MB
const KEPT_MAX: usize = 1 << 14;
/// Maximum number of prefixes during a round. Further prefixes are not counted.
const COUNTED_MAX: usize = 4 * KEPT_MAX;
/// Maximum number of prefixes in a report.
const NAMED_MAX: usize = 20;

/// Demand of the prefixes under one limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefixes {
    /// Number of full buckets before the current one that a window includes.
    full_buckets: u8,
    demand: HashMap<IpNet, Demand>,
}

/// Demand of one prefix.
#[derive(Clone, Copy, Debug)]
struct Demand {
    /// Demand of the last [`CELLS`] buckets up to `newest`.
    ring: [u64; CELLS],
    newest: BucketIndex,
    /// Largest demand within any one window.
    peak: u64,
    /// Demand since the beginning.
    total: u64,
}

/// Prefix with several sources, and its demand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyPrefix {
    /// Prefix in CIDR notation.
    pub prefix: String,
    /// Number of sources with any demand.
    pub sources: u64,
    /// Demand of all sources together in the busiest window, in the limit's unit.
    pub busiest_window: u64,
    /// Demand of all sources together since the beginning, in the limit's unit.
    pub wanted: u64,
}

/// Proposed limit for each prefix of [`GROUPS`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupProposal {
    /// Amount, in the limit's unit.
    pub amount: u64,
    /// Limit in configuration syntax, such as `500/1m requests per /24,/48`.
    pub limit: String,
    /// Number of prefixes with any demand.
    pub prefixes: u64,
    /// Number of prefixes with a demand above the proposal in some window.
    pub prefixes_over: u64,
    /// Basis of the proposal.
    pub reason: GroupReason,
}

/// Basis of a proposed group limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupReason {
    /// Some prefixes stand apart from the ordinary ones.
    Gap,
    /// No prefix stands apart: twice the demand that 99.9 % of the prefixes never exceed.
    TwiceP999,
    /// No prefix stands apart, and few were seen: twice the demand of the busiest.
    TwiceMax,
    /// The limit of a single source, because a lower one would make the limit of a source useless.
    Source,
}

/// Busiest prefixes under one limit, and the limit proposed for them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Busy {
    /// Prefixes with several sources, busiest first.
    pub(crate) prefixes: Vec<BusyPrefix>,
    pub(crate) proposal: Option<GroupProposal>,
}

impl Prefixes {
    /// Creates an empty table for a limit.
    pub(crate) fn new(limit: &Limit) -> Self {
        Self { full_buckets: limit.full_buckets(), demand: HashMap::new() }
    }

    /// Adds demand of a source in a bucket. Buckets may come in any order within [`CELLS`] buckets.
    pub(crate) fn add(&mut self, source: &IpNet, bucket: BucketIndex, amount: u64) {
        let Some(prefix) = group_of(source) else { return };
        let is_full = self.demand.len() >= COUNTED_MAX;
        if is_full && !self.demand.contains_key(&prefix) {
            return;
        }
        self.demand.entry(prefix).or_default().add(bucket, amount, self.full_buckets);
    }

    /// Bounds the table: keeps the busier half once there are more than [`KEPT_MAX`] prefixes.
    pub(crate) fn end_round(&mut self) {
        if self.demand.len() <= KEPT_MAX {
            return;
        }
        let mut peaks: Vec<u64> = self.demand.values().map(|of| of.peak).collect();
        let (_, least, _) = peaks.select_nth_unstable_by_key(KEPT_MAX / 2, |peak| Reverse(*peak));
        let least = *least;
        self.demand.retain(|_, of| of.peak > least);
        self.demand.shrink_to(KEPT_MAX);
    }

    /// Returns the busiest prefixes of these sources, and a proposal. `limit` is the limit of a single source, in force
    /// or proposed. A group limit is never below its amount.
    pub(crate) fn busy<'a>(&self, limit: &Limit, sources: impl IntoIterator<Item = &'a IpNet>) -> Busy {
        let mut counts: BTreeMap<IpNet, u64> = BTreeMap::new();
        for prefix in sources.into_iter().filter_map(group_of) {
            *counts.entry(prefix).or_default() += 1;
        }
        let several = counts.into_iter().filter(|(_, sources)| *sources > 1);
        let mut busiest: Vec<(IpNet, u64, &Demand)> =
            several.filter_map(|(prefix, sources)| Some((prefix, sources, self.demand.get(&prefix)?))).collect();
        // The sort is stable, so equal demands stay in prefix order.
        busiest.sort_by_key(|(_, _, of)| Reverse((of.peak, of.total)));
        busiest.truncate(NAMED_MAX);
        let named = |(prefix, sources, of): (IpNet, u64, &Demand)| BusyPrefix {
            prefix: prefix.to_string(),
            sources,
            busiest_window: of.peak,
            wanted: of.total,
        };
        Busy { prefixes: busiest.into_iter().map(named).collect(), proposal: self.proposal(limit) }
    }

    /// Proposes a group limit. Returns none for fewer than [`SOURCES_MIN`] prefixes.
    fn proposal(&self, limit: &Limit) -> Option<GroupProposal> {
        let mut peaks: Vec<u64> = self.demand.values().map(|of| of.peak).collect();
        peaks.sort_unstable();
        let found = observe::propose(&peaks, limit.unit, amount_max(limit.bucket_ns))?;
        let reason = match found.reason {
            _ if found.amount < limit.amount => GroupReason::Source,
            Reason::Gap(_) => GroupReason::Gap,
            Reason::TwiceMost => GroupReason::TwiceP999,
            Reason::TwiceAll => GroupReason::TwiceMax,
        };
        let amount = found.amount.max(limit.amount);
        Some(GroupProposal {
            amount,
            limit: Limit { amount, per: GROUPS, burst: None, ..*limit }.to_string(),
            prefixes: peaks.len() as u64,
            prefixes_over: (peaks.len() - peaks.partition_point(|peak| *peak <= amount)) as u64,
            reason,
        })
    }

    /// Returns the memory of the table in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.demand.capacity() * 8 / 7 * (size_of::<(IpNet, Demand)>() + 1)
    }

    /// Returns the note about too few prefixes for a proposal. Returns none if no prefix has several sources.
    pub(crate) fn note(&self, busy: &Busy) -> Option<String> {
        let is_few = busy.proposal.is_none() && !busy.prefixes.is_empty();
        is_few.then(|| format!("fewer than {SOURCES_MIN} prefixes are too few to propose a limit for prefixes"))
    }
}

impl Default for Demand {
    fn default() -> Self {
        Self { ring: [0; CELLS], newest: BucketIndex(0), peak: 0, total: 0 }
    }
}

impl Demand {
    fn add(&mut self, bucket: BucketIndex, amount: u64, full_buckets: u8) {
        self.total = self.total.saturating_add(amount);
        if bucket > self.newest {
            let gap = (bucket.0 - self.newest.0).min(CELLS as u64);
            (0..gap).for_each(|back| self.ring[window::index(BucketIndex(bucket.0 - back))] = 0);
            self.newest = bucket;
        } else if self.newest.0 - bucket.0 >= CELLS as u64 {
            self.peak = self.peak.max(amount);
            return;
        }
        let cell = &mut self.ring[window::index(bucket)];
        *cell = cell.saturating_add(amount);
        // Every window that contains the bucket has grown.
        let last = self.newest.0.min(bucket.0.saturating_add(full_buckets.into()));
        for end in bucket.0..=last {
            let first = end.saturating_sub(full_buckets.into()).max(self.newest.0.saturating_sub(CELLS as u64 - 1));
            let cells = (first..=end).map(|at| self.ring[window::index(BucketIndex(at))]);
            self.peak = self.peak.max(cells.fold(0, u64::saturating_add));
        }
    }
}

/// Returns the prefix that contains a source. Returns none for a source that is wider.
fn group_of(source: &IpNet) -> Option<IpNet> {
    GROUPS.prefix_of(source.addr()).filter(|prefix| prefix.contains(source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::limit;
    use proptest::prelude::*;
    use ratelimit_common::layout::Unit;

    fn source(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    /// Returns a table with 40 prefixes of one visitor each, who wants up to 39 in a window. A /24 and a /48 have 254
    /// sources that want 5 each.
    fn crawled(limit: &Limit) -> (Prefixes, Vec<IpNet>) {
        let mut prefixes = Prefixes::new(limit);
        let visitors = (0..40).map(|at| (source(&format!("10.0.{at}.7/32")), at));
        let crawlers = (0..254).flat_map(|at| {
            [format!("203.0.113.{at}/32"), format!("2001:db8:5:{at:x}::/64")].map(|text| (source(&text), 5))
        });
        let all: Vec<(IpNet, u64)> = visitors.chain(crawlers).collect();
        for (at, (source, amount)) in all.iter().enumerate() {
            prefixes.add(source, BucketIndex(1_000 + at as u64 % 5), *amount);
        }
        (prefixes, all.into_iter().map(|(source, _)| source).collect())
    }

    #[test]
    fn a_crawler_of_254_addresses_gets_a_limit_that_only_it_exceeds() {
        let limit = limit(100, Unit::Requests);
        let (prefixes, sources) = crawled(&limit);
        let busy = prefixes.busy(&limit, &sources);
        let named: Vec<_> =
            busy.prefixes.iter().map(|of| (of.prefix.as_str(), of.sources, of.busiest_window, of.wanted)).collect();
        assert_eq!(named, [("203.0.113.0/24", 254, 1_270, 1_270), ("2001:db8:5::/48", 254, 1_270, 1_270)]);
        let proposal = busy.proposal.unwrap();
        assert_eq!(proposal.limit, format!("{}/5m requests per /24,/48", proposal.amount));
        assert!((100..1_270).contains(&proposal.amount), "{proposal:?}");
        assert_eq!((proposal.prefixes, proposal.prefixes_over, proposal.reason), (42, 2, GroupReason::Gap));
    }

    #[test]
    fn a_group_limit_is_at_least_that_of_a_source_and_needs_20_prefixes() {
        let limit = limit(900, Unit::Requests);
        let (prefixes, sources) = crawled(&limit);
        let proposal = prefixes.busy(&limit, &sources).proposal.unwrap();
        assert_eq!((proposal.amount, proposal.prefixes_over, proposal.reason), (900, 2, GroupReason::Source));
        let mut few = Prefixes::new(&limit);
        let sources = [source("192.0.2.1/32"), source("192.0.2.2/32")];
        sources.iter().for_each(|source| few.add(source, BucketIndex(9), 4));
        let busy = few.busy(&limit, &sources);
        assert_eq!((busy.prefixes[0].busiest_window, &busy.proposal), (8, &None));
        assert!(few.note(&busy).unwrap().starts_with("fewer than 20 prefixes"));
        assert_eq!(few.busy(&limit, &sources[..1]).prefixes, [], "one source is no group");
        let wide = [source("10.0.0.0/8")];
        assert_eq!(few.busy(&limit, &wide).prefixes, [], "a source wider than a group belongs to none");
    }

    #[test]
    fn a_flood_of_prefixes_does_not_displace_the_busiest_and_takes_bounded_memory() {
        let limit = limit(100, Unit::Requests);
        let (mut prefixes, sources) = crawled(&limit);
        for round in 0..3_u32 {
            for at in 0..100_000_u32 {
                let address = std::net::Ipv4Addr::from(0x1000_0000 + (round * 100_000 + at) * 256);
                prefixes.add(&IpNet::from(std::net::IpAddr::from(address)), BucketIndex(1_010), 1);
            }
            assert!(prefixes.demand.len() <= COUNTED_MAX);
            prefixes.end_round();
            assert!(prefixes.demand.len() <= KEPT_MAX && prefixes.bytes() < 8 << 20, "{}", prefixes.bytes());
        }
        assert_eq!(prefixes.busy(&limit, &sources).prefixes.len(), 2);
    }

    proptest! {
        #[test]
        fn the_busiest_window_is_the_largest_sum_of_consecutive_buckets(
            mut charges in proptest::collection::vec((0_u64..40, 1_u64..9), 1..60),
            full_buckets in 0_u8..=7,
        ) {
            charges.sort_unstable();
            let mut of = Demand::default();
            charges.iter().for_each(|(bucket, amount)| of.add(BucketIndex(*bucket), *amount, full_buckets));
            let within = |end: u64| {
                let is_in = |(at, _): &&(u64, u64)| *at <= end && at + u64::from(full_buckets) >= end;
                charges.iter().filter(is_in).map(|(_, amount)| *amount).sum::<u64>()
            };
            prop_assert_eq!(of.peak, (0..40).map(within).max().unwrap_or(0));
            prop_assert_eq!(of.total, charges.iter().map(|(_, amount)| *amount).sum::<u64>());
        }

        #[test]
        fn buckets_out_of_order_give_the_same_window(
            amounts in proptest::collection::vec(1_u64..9, 8),
            order in Just((0..8_usize).collect::<Vec<_>>()).prop_shuffle(),
            full_buckets in 0_u8..=7,
        ) {
            let (mut sorted, mut shuffled) = (Demand::default(), Demand::default());
            let add = |of: &mut Demand, at: usize| of.add(BucketIndex(100 + at as u64), amounts[at], full_buckets);
            (0..8).for_each(|at| add(&mut sorted, at));
            order.into_iter().for_each(|at| add(&mut shuffled, at));
            prop_assert_eq!(sorted.peak, shuffled.peak);
        }
    }
}
