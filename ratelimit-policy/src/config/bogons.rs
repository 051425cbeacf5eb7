//! Source addresses that `bogons` denies: those that the registries of special-purpose addresses exclude as sources
//! (RFC 6890 and its successors). On request also private addresses.

use std::collections::BTreeSet;

use ipnet::IpNet;

use crate::labels;

/// Treatment of packets from bogon sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Bogons {
    /// They are treated like any other source.
    #[default]
    Pass,
    /// They are denied, except private networks.
    Drop,
    /// They and private networks are denied.
    DropPrivate,
}

labels!(pub(super) Bogons { Pass => "pass", Drop => "drop", DropPrivate => "drop-private" });

/// Name of the list of bogons in `check` and `list`.
pub(super) const LIST: &str = "bogons";

/// Prefixes without hosts. None is longer than a default source, so that sources stay whole. Addresses that may be
/// real are left out: link-local (neighbours, DHCPv6, health checks of clouds), 6to4, Teredo, and 64:ff9b::/96
/// (NAT64).
const NOWHERE: [&str; 13] = [
    // This host, loopback, protocol assignments.
    "0.0.0.0/8",
    "127.0.0.0/8",
    "192.0.0.0/24",
    // Documentation.
    "192.0.2.0/24",
    "198.51.100.0/24",
    "203.0.113.0/24",
    // Multicast, reserved, broadcast.
    "224.0.0.0/4",
    "240.0.0.0/4",
    // ::, ::1, and IPv4-mapped and IPv4-compatible addresses, which do not occur on the wire.
    "::/16",
    // Discard-only, documentation, multicast.
    "100::/64",
    "2001:db8::/32",
    "3fff::/20",
    "ff00::/8",
];

/// Real addresses that do not come from the Internet: private, carrier-grade NAT, benchmarks.
const PRIVATE: [&str; 7] =
    ["10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15", "fc00::/7", "fec0::/10"];

impl Bogons {
    /// Returns the prefixes that are denied. Those within an allowed prefix are left out.
    pub(super) fn denied(self, allowed: &BTreeSet<IpNet>) -> Vec<IpNet> {
        let all = match self {
            Self::Pass => [&[][..], &[]],
            Self::Drop => [&NOWHERE[..], &[]],
            Self::DropPrivate => [&NOWHERE[..], &PRIVATE],
        };
        let all = all.concat().into_iter().filter_map(|text| text.parse::<IpNet>().ok());
        all.filter(|prefix| !allowed.iter().any(|of| of.contains(prefix))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, file, listing};
    use crate::desired::Grant;
    use ratelimit_common::time::Nanos;

    fn config(top: &str) -> Config {
        let text = format!("interfaces = [\"eth0\"]\n{top}\n[rule]\nlimits = [\"9/m\"]\n");
        file::parse(Path::new("/etc/r.toml"), &text, |_| Err("none".into())).unwrap()
    }

    fn grant(config: &Config, address: &str) -> Option<Grant> {
        config.policy.grant(address.parse().unwrap(), Nanos(0)).map(|access| access.grant)
    }

    #[test]
    fn each_is_a_prefix_without_host_bits_and_none_lies_in_another() {
        let all = Bogons::DropPrivate.denied(&BTreeSet::new());
        assert_eq!(all.len(), NOWHERE.len() + PRIVATE.len());
        for prefix in &all {
            assert_eq!(prefix.trunc(), *prefix);
            assert!(prefix.prefix_len() <= if prefix.addr().is_ipv4() { 24 } else { 64 }, "{prefix}");
            assert_eq!(all.iter().filter(|of| of.contains(prefix)).count(), 1, "{prefix}");
        }
        assert!(Bogons::Pass.denied(&BTreeSet::new()).is_empty());
    }

    #[test]
    fn sources_that_no_host_has_are_denied_where_it_is_asked_and_no_others() {
        let (passing, dropping, private) =
            (config(""), config("bogons = \"drop\""), config("bogons = \"drop-private\""));
        for nowhere in [
            "0.0.0.0",
            "0.255.1.1",
            "127.0.0.1",
            "192.0.0.8",
            "192.0.2.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:198.18.0.1",
            "::192.0.2.1",
            "100::1",
            "2001:db8::7",
            "3fff:fff::1",
            "ff02::1",
            "ff0e::1",
        ] {
            assert_eq!(grant(&passing, nowhere), None, "{nowhere}");
            assert_eq!(grant(&dropping, nowhere), Some(Grant::Denied), "{nowhere}");
            assert_eq!(grant(&private, nowhere), Some(Grant::Denied), "{nowhere}");
        }
        for here in
            ["10.1.2.3", "100.127.0.1", "172.16.0.1", "172.31.255.1", "192.168.1.1", "198.19.0.1", "fd00::1", "fec0::1"]
        {
            assert_eq!((grant(&dropping, here), grant(&private, here)), (None, Some(Grant::Denied)), "{here}");
        }
        for real in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.1",
            "100.63.0.1",
            "126.1.1.1",
            "128.0.0.1",
            "169.254.169.254",
            "172.32.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "223.255.255.255",
            "2001:4860::8888",
            "2001:0:1::1",
            "2002:c000::1",
            "2a00::1",
            "64:ff9b::1.2.3.4",
            "fe80::1",
        ] {
            assert_eq!((grant(&dropping, real), grant(&private, real)), (None, None), "{real}");
        }
    }

    #[test]
    fn allow_overrides_a_bogon_and_other_denials_stay() {
        let config = config(
            "bogons = \"drop-private\"\nallow = [\"192.168.0.0/15\", \"10.0.0.0/8\", \"203.0.113.7\"]\n\
             deny = [\"10.9.0.0/16\", \"127.0.0.0/8\"]",
        );
        for (address, expected) in [
            ("192.168.3.4", Grant::Exempt),
            ("10.1.1.1", Grant::Exempt),
            ("203.0.113.7", Grant::Exempt),
            ("203.0.113.8", Grant::Denied),
            ("10.9.1.1", Grant::Denied),
            ("127.0.0.1", Grant::Denied),
        ] {
            assert_eq!(grant(&config, address), Some(expected), "{address}");
        }
        assert!(config.overruled.is_empty(), "nothing was written twice: {:?}", config.overruled);
    }

    #[test]
    fn a_bogon_is_said_to_be_one_and_where_that_is_written() {
        let config = config("bogons = \"drop\"\ndeny = [\"127.0.0.0/8\"]");
        let places = |prefix: &str| {
            let of = (prefix.parse().unwrap(), Grant::Denied);
            let places = listing::places_of(&config.listings, &config.list_files, of, &|_| Err(String::new()));
            places.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(places("240.0.0.0/4"), ["list bogons (/etc/r.toml line 2)"]);
        assert_eq!(places("127.0.0.0/8"), ["/etc/r.toml line 3", "list bogons (/etc/r.toml line 2)"]);
    }
}
