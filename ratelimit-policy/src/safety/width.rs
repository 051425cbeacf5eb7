//! Maximum width of one entry. This one rule applies to commands, configuration, list files, CrowdSec's decisions and
//! imports. Pure.

use std::net::Ipv6Addr;

use ipnet::{IpNet, Ipv6Net};

/// Shortest prefix lengths that anyone means to deny or to exempt.
const SHORTEST_V4: u8 = 8;
const SHORTEST_V6: u8 = 16;
/// First octet of multicast and reserved addresses, 224.0.0.0/3. Lists of bogons contain all of them.
const BEYOND_V4: u8 = 224;
/// Prefixes with hosts: global unicast (RFC 4291, 2.4), translated IPv4 addresses (RFC 6052, RFC 8215), and
/// link-local. Lists of bogons contain most of the other addresses.
const REAL_V6: [(Ipv6Addr, u8); 3] = [
    (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3),
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
];

/// Returns true if a prefix is wider than anyone means to deny or to exempt.
#[must_use]
pub fn is_too_wide(prefix: IpNet) -> bool {
    if prefix.prefix_len() >= limits_of(prefix).0 {
        return false;
    }
    match prefix {
        IpNet::V4(of) => of.network().octets()[0] < BEYOND_V4,
        IpNet::V6(of) => REAL_V6.into_iter().any(|(address, length)| {
            Ipv6Net::new(address, length).is_ok_and(|real| real.contains(&of) || of.contains(&real))
        }),
    }
}

/// Returns why a prefix is too wide for `what`. None if it is not.
pub(super) fn objection(prefix: IpNet, what: &str) -> Option<String> {
    let (shortest, family) = limits_of(prefix);
    is_too_wide(prefix)
        .then(|| format!("{prefix} is more of {family} than {what} should hold: /{shortest} at the most"))
}

/// Returns the shortest intended prefix length, and the name of the family.
pub(super) const fn limits_of(prefix: IpNet) -> (u8, &'static str) {
    match prefix {
        IpNet::V4(_) => (SHORTEST_V4, "IPv4"),
        IpNet::V6(_) => (SHORTEST_V6, "IPv6"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_short_prefix_is_too_wide_unless_no_host_is_in_it() {
        for (prefix, is_wide) in [
            ("0.0.0.0/0", true),
            ("0.0.0.0/1", true),
            ("128.0.0.0/1", true),
            ("192.0.0.0/2", true),
            ("64.0.0.0/7", true),
            ("222.0.0.0/7", true),
            ("10.0.0.0/8", false),
            ("224.0.0.0/3", false),
            ("240.0.0.0/4", false),
            ("::/0", true),
            ("::/1", true),
            ("::/8", true),
            ("2000::/3", true),
            ("2000::/15", true),
            ("8000::/1", true),
            ("fe80::/10", true),
            ("fe00::/8", true),
            ("2001::/16", false),
            ("4000::/2", false),
            ("c000::/3", false),
            ("fc00::/7", false),
            ("ff00::/8", false),
        ] {
            assert_eq!(is_too_wide(prefix.parse().unwrap()), is_wide, "{prefix}");
        }
    }

    proptest! {
        #[test]
        fn a_prefix_around_a_too_wide_one_is_too_wide(bits in any::<u128>(), length in 1..=128_u8) {
            let v6 = IpNet::new(Ipv6Addr::from(bits).into(), length).unwrap();
            let v4 = IpNet::new(std::net::Ipv4Addr::from((bits >> 96) as u32).into(), length % 33).unwrap();
            for of in [v4, v6] {
                let around = of.supernet().unwrap_or(of);
                prop_assert!(!is_too_wide(of) || is_too_wide(around), "{} {}", of, around);
            }
        }

        #[test]
        fn bits_beyond_the_length_change_nothing(bits in any::<u32>(), length in 0..=32_u8) {
            let of = IpNet::new(std::net::Ipv4Addr::from(bits).into(), length).unwrap();
            prop_assert_eq!(is_too_wide(of), is_too_wide(of.trunc()));
        }
    }
}
