//! Prefixes and list files that contain sources over a limit. Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use ratelimit_policy::config::lists::ListFile;
use ratelimit_policy::desired::{DENIED_IPV4_PREFIX, DENIED_IPV6_PREFIX, Per};

/// Maximum number of prefixes returned.
const PREFIXES_MAX: usize = 20;

/// Prefix lengths for the sources of a per-source limit.
const STEP: Per = Per::Prefix { v4: DENIED_IPV4_PREFIX, v6: DENIED_IPV6_PREFIX };

/// Number and total amount of some sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Number of sources.
    pub sources: u64,
    /// Sum of the sources' amounts, in the limit's unit.
    pub amount: u64,
}

impl Sum {
    const fn add(&mut self, amount: u64) {
        self.sources += 1;
        self.amount = self.amount.saturating_add(amount);
    }
}

/// Returns the prefixes that contain several of these sources, largest amount first. They are the groups of a prefix
/// limit, else each IPv4 /24 and IPv6 /56.
pub fn prefixes(per: Per, of: &[(IpNet, u64)]) -> Vec<(IpNet, Sum)> {
    let per = match per {
        Per::Prefix { .. } => per,
        Per::Source | Per::List => STEP,
    };
    let mut sums: BTreeMap<IpNet, Sum> = BTreeMap::new();
    for (source, amount) in of {
        if let Some(prefix) = per.prefix_of(source.addr()).filter(|prefix| prefix.contains(source)) {
            sums.entry(prefix).or_default().add(*amount);
        }
    }
    let mut sums: Vec<_> = sums.into_iter().filter(|(_, sum)| sum.sources > 1).collect();
    // The sort is stable, so equal amounts stay in prefix order.
    sums.sort_by_key(|(_, sum)| Reverse(sum.amount));
    sums.truncate(PREFIXES_MAX);
    sums
}

/// Returns the list files that contain any of these sources, largest amount first. A source may be in several.
pub fn lists<'a>(lists: &'a [ListFile], of: &[(IpNet, u64)]) -> Vec<(&'a ListFile, Sum)> {
    let sum = |list: &'a ListFile| {
        let ranges = Ranges::of(&list.prefixes);
        let mut sum = Sum::default();
        of.iter().filter(|(source, _)| ranges.contain(source)).for_each(|(_, amount)| sum.add(*amount));
        (list, sum)
    };
    let mut sums: Vec<_> = lists.iter().map(sum).filter(|(_, sum)| sum.sources > 0).collect();
    sums.sort_by_key(|(_, sum)| Reverse(sum.amount));
    sums
}

/// First and last addresses of prefixes, ascending. No range is within another.
struct Ranges(Vec<(IpAddr, IpAddr)>);

impl Ranges {
    /// Creates the ranges of sorted prefixes, in which a prefix comes before those that it contains.
    fn of(prefixes: &[IpNet]) -> Self {
        let mut ranges: Vec<(IpAddr, IpAddr)> = Vec::new();
        for prefix in prefixes {
            if ranges.last().is_none_or(|(_, last)| *last < prefix.network()) {
                ranges.push((prefix.network(), prefix.broadcast()));
            }
        }
        Self(ranges)
    }

    fn contain(&self, source: &IpNet) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= source.network());
        let before = after.checked_sub(1).and_then(|at| self.0.get(at));
        before.is_some_and(|(_, last)| source.broadcast() <= *last)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use proptest::prelude::*;

    fn list(prefixes: &[IpNet]) -> ListFile {
        let mut prefixes = prefixes.to_vec();
        prefixes.sort_unstable();
        prefixes.dedup();
        ListFile { path: PathBuf::from("l"), named_by: "list l".to_owned(), prefixes: prefixes.into() }
    }

    fn any_prefix() -> impl Strategy<Value = IpNet> {
        let v4 = (any::<u8>(), 24..=32_u8).prop_map(|(low, len)| IpNet::new([192, 0, 2, low].into(), len).unwrap());
        let v6 = (any::<u8>(), 120..=128_u8)
            .prop_map(|(low, len)| IpNet::new([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(low)].into(), len).unwrap());
        prop_oneof![v4, v6].prop_map(|net| net.trunc())
    }

    proptest! {
        #[test]
        fn a_source_is_in_a_list_where_one_of_its_prefixes_holds_it(
            prefixes in proptest::collection::vec(any_prefix(), 0..12),
            sources in proptest::collection::vec(any_prefix(), 0..30),
        ) {
            let of: Vec<(IpNet, u64)> = sources.iter().map(|source| (*source, 2)).collect();
            let expected = sources.iter().filter(|source| prefixes.iter().any(|prefix| prefix.contains(*source))).count() as u64;
            let files = [list(&prefixes)];
            let sums: Vec<Sum> = lists(&files, &of).into_iter().map(|(_, sum)| sum).collect();
            let expected = (expected > 0).then_some(Sum { sources: expected, amount: 2 * expected });
            prop_assert_eq!(sums, Vec::from_iter(expected));
        }
    }

    #[test]
    fn prefixes_are_told_of_several_sources_worst_first_and_of_the_limits_own_length() {
        let of = |text: &str, amount| (text.parse::<IpNet>().unwrap(), amount);
        let sources = [
            of("192.0.2.1/32", 1),
            of("192.0.2.2/32", 2),
            of("198.51.100.1/32", 9),
            of("203.0.113.1/32", 4),
            of("203.0.113.2/32", 4),
            of("2001:db8:0:1::/64", 5),
            of("2001:db8:0:2::/64", 5),
        ];
        let told = |per| {
            let told = prefixes(per, &sources);
            told.into_iter().map(|(prefix, sum)| (prefix.to_string(), sum.sources, sum.amount)).collect::<Vec<_>>()
        };
        let [v6, worst, least] = [("2001:db8::/56", 2, 10), ("203.0.113.0/24", 2, 8), ("192.0.2.0/24", 2, 3)]
            .map(|(a, b, c)| (a.to_owned(), b, c));
        assert_eq!(told(Per::Source), [v6.clone(), worst, least]);
        assert_eq!(
            told(Per::Prefix { v4: 4, v6: 48 }),
            [("192.0.0.0/4".to_owned(), 5, 20), ("2001:db8::/48".to_owned(), 2, 10)]
        );
    }
}
