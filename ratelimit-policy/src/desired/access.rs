//! Choice of the prefix that allows or denies an address. Pure.

use std::net::IpAddr;

use ipnet::IpNet;
use ratelimit_common::time::Nanos;

use super::{Access, Grant, Policy};

impl Policy {
    /// Returns the grant of the longest prefix that contains `address` and has not expired at `now`.
    pub fn grant(&self, address: IpAddr, now: Nanos) -> Option<Access> {
        self.grant_around(IpNet::from(address), now)
    }

    /// Returns the grant of the longest unexpired prefix that contains the whole of a prefix. Entries for parts are
    /// ignored.
    pub fn grant_around(&self, whom: IpNet, now: Nanos) -> Option<Access> {
        covering(&self.access, whom).find(|access| access.holds(now)).copied()
    }

    /// Returns the time at which a prefix's current grant ends. Entries with the same grant that follow each other
    /// count as one. None if one of them is permanent.
    pub fn grant_ends(&self, whom: IpNet, access: Access) -> Option<Nanos> {
        let mut end = access.until?;
        while let Some(next) = self.grant_around(whom, end).filter(|next| next.grant == access.grant) {
            end = next.until?;
        }
        Some(end)
    }

    /// Returns the entries with prefixes inside `whole`, in order.
    pub fn access_within(&self, whole: IpNet) -> impl Iterator<Item = &Access> {
        let first = self.access.partition_point(|of| of.prefix < whole);
        self.access.iter().skip(first).take_while(move |of| whole.contains(&of.prefix))
    }
}

impl Access {
    /// Returns true if the grant has not expired.
    pub fn holds(&self, now: Nanos) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// Returns the entries of `access` that contain the whole of a prefix, longest first, expired ones included. `access`
/// must be sorted by prefix.
pub fn covering(access: &[Access], whom: IpNet) -> impl Iterator<Item = &Access> {
    (0..=whom.prefix_len()).rev().filter_map(move |length| {
        let around = IpNet::new(whom.addr(), length).ok()?.trunc();
        access.get(access.binary_search_by(|of| of.prefix.cmp(&around)).ok()?)
    })
}

/// Formats a prefix for use in a command. A single IPv6 address keeps its /128, because without a length it would
/// mean its whole source.
pub fn typed(prefix: IpNet) -> String {
    match (prefix, prefix.prefix_len() == prefix.max_prefix_len()) {
        (IpNet::V4(net), true) => net.addr().to_string(),
        (IpNet::V4(_) | IpNet::V6(_), _) => prefix.to_string(),
    }
}

/// Returns true for a denial.
pub const fn denies(access: &Access) -> bool {
    match access.grant {
        Grant::Denied => true,
        Grant::Exempt => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn access() -> impl Strategy<Value = Vec<Access>> {
        let one = (0_u32..64, 26_u8..=32, any::<bool>(), prop::option::of(0_u64..4));
        prop::collection::vec(one, 0..24).prop_map(|all| {
            let mut all: Vec<Access> = all
                .into_iter()
                .map(|(address, length, denied, until)| Access {
                    prefix: IpNet::new(IpAddr::from((0x0a00_0000 | address).to_be_bytes()), length).unwrap().trunc(),
                    grant: if denied { Grant::Denied } else { Grant::Exempt },
                    until: until.map(Nanos),
                })
                .collect();
            all.sort_unstable_by_key(|of| of.prefix);
            all.dedup_by_key(|of| of.prefix);
            all
        })
    }

    proptest! {
        #[test]
        fn the_longest_valid_prefix_decides_until_its_grant_changes(
            access in access(), address in 0_u32..64, now in 0_u64..4,
        ) {
            let policy = Policy { ipv4_prefix: 32, ipv6_prefix: 64, access, rules: Vec::new() };
            let address = IpAddr::from((0x0a00_0000 | address).to_be_bytes());
            let at = |now: Nanos| {
                let holds = |of: &&Access| of.prefix.contains(&address) && of.holds(now);
                policy.access.iter().filter(holds).max_by_key(|of| of.prefix.prefix_len()).copied()
            };
            let found = policy.grant(address, Nanos(now));
            prop_assert_eq!(found, at(Nanos(now)));
            if let Some(found) = found {
                let end = policy.grant_ends(address.into(), found);
                let changes = (now..8).find(|later| at(Nanos(*later)).map(|of| of.grant) != Some(found.grant));
                prop_assert_eq!(end, changes.map(Nanos));
            }
        }

        #[test]
        fn entries_within_a_prefix_are_found_in_order(access in access(), address in 0_u32..64, length in 26_u8..=32) {
            let whole = IpNet::new(IpAddr::from((0x0a00_0000 | address).to_be_bytes()), length).unwrap().trunc();
            let policy = Policy { ipv4_prefix: 32, ipv6_prefix: 64, access, rules: Vec::new() };
            let all: Vec<_> = policy.access.iter().filter(|of| whole.contains(&of.prefix)).collect();
            prop_assert_eq!(policy.access_within(whole).collect::<Vec<_>>(), all);
        }
    }

    #[test]
    fn a_prefix_is_written_as_a_command_understands_it() {
        let typed = |text: &str| typed(text.parse().unwrap());
        assert_eq!(
            ["192.0.2.7/32", "192.0.2.0/24", "fd88::5/128", "fd88::/64"].map(typed),
            ["192.0.2.7", "192.0.2.0/24", "fd88::5/128", "fd88::/64"]
        );
    }
}
