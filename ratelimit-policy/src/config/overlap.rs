//! Packets that two rules have in common. Pure.

use ipnet::IpNet;

use crate::desired::Rule;

/// Extent of the packets that two rules have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shared {
    /// No packet matches both rules.
    Nothing,
    /// All packets of the earlier rule, which is an exception from the later one.
    AllOfEarlier,
    /// Some packets of the earlier rule.
    Some,
}

/// Returns the extent to which packets of `earlier` also match `later`.
pub(super) fn shared(earlier: &Rule, later: &Rule) -> Shared {
    if earlier.ports.common(&later.ports).is_empty()
        || !meet(&earlier.from, &later.from)
        || !meet(&earlier.to, &later.to)
    {
        return Shared::Nothing;
    }
    let is_all = earlier.ports.without(&later.ports).is_empty()
        && within(&earlier.from, &later.from)
        && within(&earlier.to, &later.to);
    if is_all { Shared::AllOfEarlier } else { Shared::Some }
}

/// Returns the earlier rules that together take all packets of the rule at `index`. None if some packets remain.
pub(super) fn covered_by(rules: &[Rule], index: usize) -> Option<Vec<&Rule>> {
    let later = rules.get(index)?;
    let mut left = later.ports.clone();
    let mut by = Vec::new();
    for earlier in &rules[..index] {
        let is_wider = earlier.until.is_none() && within(&later.from, &earlier.from) && within(&later.to, &earlier.to);
        if is_wider && !left.common(&earlier.ports).is_empty() {
            left = left.without(&earlier.ports);
            by.push(earlier);
        }
    }
    left.is_empty().then_some(by)
}

/// Returns the prefixes of `inner` that lie in none of `outer`. Both must be sorted. An empty `outer` contains every
/// address.
pub(super) fn outside<'a>(inner: &'a [IpNet], outer: &'a [IpNet]) -> impl Iterator<Item = IpNet> + 'a {
    let mut rest = outer.iter().copied().peekable();
    let mut widest: Option<IpNet> = None;
    inner.iter().copied().filter(move |prefix| {
        // Prefixes are nested or disjoint. Sorting puts the shorter of nested ones first.
        while let Some(next) = rest.next_if(|next| next <= prefix) {
            if !widest.is_some_and(|widest| widest.contains(&next)) {
                widest = Some(next);
            }
        }
        !outer.is_empty() && !widest.is_some_and(|widest| widest.contains(prefix))
    })
}

fn within(inner: &[IpNet], outer: &[IpNet]) -> bool {
    // This check runs for each pair of rules, and many may use one large list. The usual case is therefore tested
    // first.
    outer.is_empty() || inner == outer || !inner.is_empty() && outside(inner, outer).next().is_none()
}

fn meet(a: &[IpNet], b: &[IpNet]) -> bool {
    let some_within = |a: &[IpNet], b: &[IpNet]| outside(a, b).count() < a.len();
    a.is_empty() || b.is_empty() || a[0] == b[0] || some_within(a, b) || some_within(b, a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefixes() -> impl Strategy<Value = Vec<IpNet>> {
        let one = (0_u32..64, 26_u8..=32).prop_map(|(last, length)| {
            IpNet::from(ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::from_bits(0xc000_0200 + last), length).trunc())
        });
        prop::collection::btree_set(one, 0..6).prop_map(|prefixes| prefixes.into_iter().collect())
    }

    proptest! {
        #[test]
        fn prefixes_outside_match_a_comparison_of_every_pair(inner in prefixes(), outer in prefixes()) {
            let is_outside = |prefix: &&IpNet| !outer.is_empty() && !outer.iter().any(|of| of.contains(*prefix));
            let expected: Vec<IpNet> = inner.iter().filter(is_outside).copied().collect();
            prop_assert_eq!(outside(&inner, &outer).collect::<Vec<_>>(), expected);
        }

        #[test]
        fn prefixes_meet_where_some_address_is_in_both(a in prefixes(), b in prefixes()) {
            let holds = |of: &[IpNet], address: &std::net::IpAddr| of.is_empty() || of.iter().any(|of| of.contains(address));
            let mut addresses = (0..64_u32).map(|last| std::net::IpAddr::from(std::net::Ipv4Addr::from_bits(0xc000_0200 + last)));
            prop_assert_eq!(meet(&a, &b), addresses.any(|address| holds(&a, &address) && holds(&b, &address)));
        }
    }
}
