//! Denied prefixes that contain addresses which this host needs, in sentences. Pure.

use std::net::IpAddr;

use ipnet::IpNet;
use ratelimit_common::time::Nanos;

use super::needed::holder;
use super::{Around, STORE};
use crate::config::Config;
use crate::desired::{Grant, covering};

impl Around {
    /// Describes each denied prefix that contains an address of this host, or one that `[safety]` exempts: the list
    /// with the prefix, and the affected address. Addresses that are not exempt are reported by [`Around::lockouts`],
    /// and ignored list entries by [`Around::passed_over`].
    pub fn listed(&self, config: &Config, now: Nanos) -> Vec<String> {
        let own = self.own.iter().filter(|address| !address.is_loopback() && !address.is_unspecified());
        let exempted = self.exemptions(config.safety);
        let is_exempted = |address: &&IpAddr| exempted.iter().any(|entry| entry.prefix == IpNet::from(**address));
        let peer = self.ssh.map(|session| session.peer);
        let needed = [
            (peer.as_slice(), "the peer of your SSH session"),
            (&self.gateways[..], "the default gateway"),
            (&self.resolvers[..], "a name server that this host asks"),
            (&self.stores[..], STORE),
        ];
        let needed = needed.iter().flat_map(|(all, what)| all.iter().filter(is_exempted).map(move |of| (of, *what)));
        let held = self.held(config);
        let mut told: Vec<IpNet> = Vec::new();
        let mut lines = Vec::new();
        for (address, what, remedy) in own
            .map(|address| (address, "an address of this host", "take it out, or `allow` it"))
            .chain(needed.map(|(address, what)| {
                (address, what, if what == STORE { "[fleet] allows it" } else { "[safety] allows it" })
            }))
        {
            let mut around = covering(&config.policy.access, IpNet::from(*address));
            let decides = around.find(|of| of.holds(now) && !held.contains_key(&of.prefix));
            let denied = decides.filter(|access| access.grant == Grant::Denied);
            let Some(prefix) = denied.map(|access| access.prefix).filter(|prefix| !told.contains(prefix)) else {
                continue;
            };
            told.push(prefix);
            lines.push(format!("{} has {prefix}, which holds {address}, {what}: {remedy}", holder(config, prefix)));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::file;
    use crate::safety::ssh_session;

    fn listed(top: &str) -> Vec<String> {
        let address = |text: &str| text.parse().unwrap();
        let around = Around {
            ssh: ssh_session("198.51.100.7 51000 192.0.2.5 22"),
            gateways: vec![address("10.0.0.1")],
            resolvers: vec![address("10.0.0.53")],
            own: vec![address("127.0.0.1"), address("192.0.2.5"), address("192.0.2.6"), address("2001:db8::5")],
            stores: vec![address("10.0.1.6")],
            logins: Vec::new(),
        };
        let text = format!("interfaces = [\"eth0\"]\n{top}\n[rule]\nlimits = [\"1/s\"]\n");
        let list = |_: &Path| Ok("127.0.0.0/8\n192.0.2.0/24\n".to_owned());
        let config = file::parse(Path::new("r.toml"), &text, list).expect(&text);
        around.listed(&config, Nanos(0))
    }

    #[test]
    fn an_address_that_this_host_needs_and_a_list_holds_is_named_with_the_list() {
        for (top, expected) in [
            ("", vec![]),
            ("deny = [\"203.0.113.0/24\", \"127.0.0.0/8\"]", vec![]),
            (
                "deny = [\"2001:db8::/32\"]",
                vec![
                    "deny has 2001:db8::/32, which holds 2001:db8::5, an address of this host: take it out, or `allow` it",
                ],
            ),
            ("deny = [\"file:drop.txt\"]", vec![]),
            (
                "deny = [\"file:drop.txt\", \"192.0.2.0/24\"]",
                vec![
                    "deny (drop.txt) has 192.0.2.0/24, which holds 192.0.2.5, an address of this host: take it out, or `allow` it",
                ],
            ),
            ("deny = [\"file:drop.txt\"]\nallow = [\"192.0.2.0/28\"]", vec![]),
            (
                "deny = [\"10.0.0.0/8\", \"198.51.100.7\"]",
                vec![
                    "deny has 198.51.100.7/32, which holds 198.51.100.7, the peer of your SSH session: [safety] allows it",
                    "deny has 10.0.0.0/8, which holds 10.0.0.1, the default gateway: [safety] allows it",
                ],
            ),
            ("deny = [\"10.0.0.1\"]\n[safety]\nexempt_gateway = false", vec![]),
            (
                "deny = [\"10.0.1.0/24\"]",
                vec!["deny has 10.0.1.0/24, which holds 10.0.1.6, the fleet's store: [fleet] allows it"],
            ),
        ] {
            assert_eq!(listed(top), expected, "{top}");
        }
    }
}
