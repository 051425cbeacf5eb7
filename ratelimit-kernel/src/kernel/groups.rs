//! Windows of groups: the prefix or list that a limit counts by instead of the source.

use std::net::IpAddr;

use ipnet::IpNet;
use ratelimit_common::layout::{Group, Rule};
use ratelimit_common::source::IPV6_NARROW_PREFIX_MAX;

use super::clients::Lengths;
use crate::memory::LIST;

/// Holder of a limit's windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The source itself.
    Source,
    /// The prefix of this length that contains the source.
    Prefix(Lengths),
    /// All sources of the rule together.
    List,
}

impl Holder {
    /// Returns the holder for the rule's limit at this position.
    pub(super) fn of(rule: &Rule, position: usize) -> Self {
        match rule.groups.get(position) {
            Some(group) if position >= rule.own_len.into() && position < rule.limits_len.into() => {
                Self::of_group(*group)
            }
            Some(_) | None => Self::Source,
        }
    }

    fn of_group(group: Group) -> Self {
        let length = |ones: u32| u8::try_from(ones).unwrap_or(u8::MAX);
        match group.is_list {
            0 => {
                let ipv6 = length(group.ipv6_mask.count_ones()).min(IPV6_NARROW_PREFIX_MAX);
                Self::Prefix(Lengths { ipv4: length(group.ipv4_mask.count_ones()), ipv6 })
            }
            _ => Self::List,
        }
    }

    /// Returns the prefix that holds the windows for a source. `own` are the prefix lengths of sources.
    pub(super) fn net(self, source: IpAddr, own: Lengths) -> Option<IpNet> {
        match self {
            Self::Source => own.net(source),
            Self::Prefix(lengths) => lengths.net(source),
            Self::List => Some(LIST),
        }
    }

    /// Returns the prefix lengths of the keys of such windows. `own` are the prefix lengths of sources.
    pub(super) const fn lengths(self, own: Lengths) -> Lengths {
        match self {
            Self::Source => own,
            Self::Prefix(lengths) => lengths,
            Self::List => Lengths { ipv4: 0, ipv6: 0 },
        }
    }

    /// Returns whether a prefix can hold such windows.
    pub(super) fn is(self, net: IpNet, own: Lengths) -> bool {
        match self {
            Self::List => net == LIST,
            Self::Source | Self::Prefix(_) => {
                let lengths = self.lengths(own);
                net.prefix_len() == if net.addr().is_ipv4() { lengths.ipv4 } else { lengths.ipv6 }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ratelimit_common::source::{ipv4_mask, ipv6_mask};

    use super::*;

    const OWN: Lengths = Lengths { ipv4: 32, ipv6: 64 };

    fn rule() -> Rule {
        let mut rule = Rule { limits_len: 3, own_len: 1, ..Rule::default() };
        rule.groups[1] = Group { ipv4_mask: ipv4_mask(24), is_list: 0, ipv6_mask: ipv6_mask(56)[0] };
        rule.groups[2] = Group { is_list: 1, ..Group::default() };
        rule
    }

    #[test]
    fn a_window_is_of_the_source_or_of_what_contains_it() {
        let holders = [0, 1, 2, 3, 4].map(|position| Holder::of(&rule(), position));
        let prefix = Holder::Prefix(Lengths { ipv4: 24, ipv6: 56 });
        assert_eq!(holders, [Holder::Source, prefix, Holder::List, Holder::Source, Holder::Source]);
        let net = |holder: Holder, source: &str| holder.net(source.parse().unwrap(), OWN).unwrap().to_string();
        for (source, of) in [
            ("203.0.113.77", ["203.0.113.77/32", "203.0.113.0/24", "0.0.0.0/0"]),
            ("2001:db8:1:2ff::1", ["2001:db8:1:2ff::/64", "2001:db8:1:200::/56", "0.0.0.0/0"]),
        ] {
            assert_eq!([0, 1, 2].map(|at| net(holders[at], source)), of);
        }
    }

    #[test]
    fn the_prefix_length_tells_windows_of_equal_addresses_apart() {
        let rule = rule();
        let is = |net: &str| [0, 1, 2].map(|at| Holder::of(&rule, at).is(net.parse().unwrap(), OWN));
        assert_eq!(is("203.0.113.0/32"), [true, false, false]);
        assert_eq!(is("203.0.113.0/24"), [false, true, false]);
        assert_eq!(is("2001:db8::/56"), [false, true, false]);
        assert_eq!(is("0.0.0.0/0"), [false, false, true]);
        assert_eq!(is("::/0"), [false, false, false]);
    }
}
