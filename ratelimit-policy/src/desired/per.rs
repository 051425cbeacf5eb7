//! Group of sources that a limit counts as one: a single source, a prefix or a list. Pure.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Limit, Policy, Rule};

/// Group of sources that a limit counts as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Per {
    /// Each source by itself.
    #[default]
    Source,
    /// All sources of a prefix. Both lengths are shorter than those of a source, and at least 1.
    Prefix {
        /// Length of the IPv4 prefix.
        v4: u8,
        /// Length of the IPv6 prefix.
        v6: u8,
    },
    /// All sources that the rule is for.
    List,
}

/// A concrete group of sources that a limit counts as one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// All sources in this prefix.
    Prefix(IpNet),
    /// All sources in the list of this name.
    List(String),
}

impl Per {
    /// Returns true if each group of `other` lies within one group of `self`, in the same rule.
    pub const fn holds(self, other: Self) -> bool {
        match (self, other) {
            (Self::List, _) | (_, Self::Source) => true,
            (Self::Source, Self::Prefix { .. } | Self::List) | (Self::Prefix { .. }, Self::List) => false,
            (Self::Prefix { v4, v6 }, Self::Prefix { v4: other_v4, v6: other_v6 }) => v4 <= other_v4 && v6 <= other_v6,
        }
    }

    /// Returns the text after `per`: `/24,/56` or `list`. For single sources it is `source`.
    pub fn label(self) -> String {
        match self {
            Self::Source => "source".to_owned(),
            Self::Prefix { v4, v6 } => format!("/{v4},/{v6}"),
            Self::List => "list".to_owned(),
        }
    }

    /// Returns the prefix around `address` that is counted as one. None if the limit does not count prefixes.
    pub fn prefix_of(self, address: IpAddr) -> Option<IpNet> {
        let Self::Prefix { v4, v6 } = self else { return None };
        let length = if address.is_ipv4() { v4 } else { v6 };
        IpNet::new(address, length).ok().map(|net| net.trunc())
    }
}

impl fmt::Display for Per {
    /// Writes the group as it follows a limit: nothing, ` per /24,/56`, or ` per list`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source => Ok(()),
            Self::Prefix { .. } | Self::List => write!(f, " per {}", self.label()),
        }
    }
}

impl fmt::Display for Group {
    /// Writes the group's name: `203.0.113.0/24`, `list asn64496`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(prefix) => prefix.fmt(f),
            Self::List(name) => write!(f, "list {name}"),
        }
    }
}

impl Rule {
    /// Returns the group in which `limit`, one of this rule's, counts a source. None if it counts each source by
    /// itself.
    pub fn group_of(&self, limit: &Limit, source: IpAddr) -> Option<Group> {
        match limit.per {
            Per::Source => None,
            Per::Prefix { .. } => limit.per.prefix_of(source).map(Group::Prefix),
            Per::List => Some(Group::List(self.list.clone().unwrap_or_else(|| self.name.clone()))),
        }
    }
}

impl Policy {
    /// Returns true if any limit counts a group of sources.
    pub fn has_groups(&self) -> bool {
        self.rules.iter().flat_map(|rule| &rule.limits).any(|limit| limit.per != Per::Source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wider_group_holds_a_narrower_one_and_both_hold_a_source() {
        let (narrow, wide) = (Per::Prefix { v4: 24, v6: 56 }, Per::Prefix { v4: 20, v6: 48 });
        let across = Per::Prefix { v4: 16, v6: 60 };
        for (outer, inner, holds) in [
            (wide, narrow, true),
            (narrow, wide, false),
            (narrow, narrow, true),
            (across, narrow, false),
            (narrow, across, false),
            (narrow, Per::Source, true),
            (Per::Source, narrow, false),
            (Per::Source, Per::Source, true),
            (Per::List, wide, true),
            (wide, Per::List, false),
            (Per::Source, Per::List, false),
        ] {
            assert_eq!(outer.holds(inner), holds, "{outer:?} {inner:?}");
        }
    }

    #[test]
    fn each_family_has_its_own_length() {
        let step = Per::Prefix { v4: 24, v6: 56 };
        let of = |address: &str| step.prefix_of(address.parse().expect("an address")).map(|net| net.to_string());
        assert_eq!(of("203.0.113.77").as_deref(), Some("203.0.113.0/24"));
        assert_eq!(of("2001:db8:1:2ff::1").as_deref(), Some("2001:db8:1:200::/56"));
        assert_eq!(Per::Source.prefix_of("203.0.113.77".parse().expect("an address")), None);
    }
}
