//! Entries of list files that are not enforced: prefixes that are too wide, and prefixes with an address that this
//! host needs. Others write these lists, so a line must not do what `deny` requires `--force` for. Entries in the
//! configuration itself are the administrator's decision and are enforced. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Around, STORE, is_too_wide, width};
use crate::access::Entry;
use crate::config::Config;
use crate::config::listing::Names;
use crate::desired::{Access, Grant, covering};

/// Maximum number of entries that are named one by one.
const NAMED_MAX: usize = 16;

/// An entry of a list file that is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// Prefix of the entry.
    pub prefix: IpNet,
    /// Address in the prefix that this host needs, with a description. None if the prefix is too wide.
    holds: Option<(IpAddr, &'static str)>,
}

impl PassedOver {
    /// Describes the entry's place, why it is ignored and what to do, without a full stop.
    pub fn words(&self, config: &Config) -> String {
        let Self { prefix, holds: held } = *self;
        let why = match held {
            Some((address, what)) => holds(prefix, address, what),
            None => width::objection(prefix, "a list").unwrap_or_default(),
        };
        format!("{}: {why}: it is ignored; to deny it, write it into `deny`", holder(config, prefix))
    }

    /// Describes several entries. Only the first few are listed one by one.
    pub fn words_of(all: &[Self], config: &Config) -> Vec<String> {
        let more = all.len().saturating_sub(NAMED_MAX);
        let mut lines: Vec<String> = all.iter().take(NAMED_MAX).map(|of| of.words(config)).collect();
        if more > 0 {
            lines.push(format!("{more} more entries of list files are ignored"));
        }
        lines
    }
}

impl Around {
    /// Returns the addresses that this host needs, each with a description. List entries that contain one of them are
    /// ignored. Loopback addresses are left out: nothing arrives from them, and published lists contain them.
    fn needed(&self) -> impl Iterator<Item = (IpAddr, &'static str)> {
        let own = self.own.iter().filter(|of| !of.is_loopback() && !of.is_unspecified());
        let peer = self.ssh.map(|session| (session.peer, "the peer of the SSH session that started this"));
        let all = |of: &'_ [IpAddr], what: &'static str| of.iter().map(|of| (*of, what)).collect::<Vec<_>>();
        peer.into_iter()
            .chain(own.map(|of| (*of, "an address of this host")))
            .chain(all(&self.gateways, "the default gateway"))
            .chain(all(&self.resolvers, "a name server that this host asks"))
            .chain(all(&self.stores, STORE))
    }

    /// Returns denied prefixes that only list files name and that contain an address which this host needs.
    pub(super) fn held(&self, config: &Config) -> BTreeMap<IpNet, (IpAddr, &'static str)> {
        let mut held = BTreeMap::new();
        for (address, what) in self.needed() {
            let around = covering(&config.policy.access, address.into()).filter(|of| of.grant == Grant::Denied);
            // Too wide prefixes are denied only by `deny_everyone`, which is intended.
            let around = around.filter(|of| !is_too_wide(of.prefix));
            for access in around.filter(|of| is_of_lists_alone(config, of.prefix)) {
                held.entry(access.prefix).or_insert((address, what));
            }
        }
        held
    }

    /// Returns the access list of a configuration on this host, without list entries that contain an address which it
    /// needs.
    pub fn access(&self, config: &Config) -> Vec<Access> {
        let held = self.held(config);
        let is_in_force = |of: &&Access| of.grant == Grant::Exempt || !held.contains_key(&of.prefix);
        config.policy.access.iter().filter(is_in_force).copied().collect()
    }

    /// Returns the access list of a configuration on this host, as entries.
    pub fn entries(&self, config: &Config) -> Vec<Entry> {
        self.access(config).iter().map(Entry::configured).collect()
    }

    /// Returns the entries of list files that are ignored on this host.
    pub fn passed_over(&self, config: &Config) -> Vec<PassedOver> {
        let wide = config.too_wide.iter().map(|prefix| PassedOver { prefix: *prefix, holds: None });
        let held = self.held(config).into_iter();
        wide.chain(held.map(|(prefix, holds)| PassedOver { prefix, holds: Some(holds) })).collect()
    }

    /// Describes the ignored entries of list files, without full stops. Only the first few are listed one by one.
    pub fn passed_over_words(&self, config: &Config) -> Vec<String> {
        PassedOver::words_of(&self.passed_over(config), config)
    }

    /// Returns why a list file's prefix would be ignored on this host if a configuration denied it. None if it would
    /// be enforced.
    pub fn objection_to_listing(&self, prefix: IpNet) -> Option<String> {
        let held = || self.needed().find(|(address, _)| prefix.contains(address));
        width::objection(prefix, "a list").or_else(|| held().map(|(address, what)| holds(prefix, address, what)))
    }
}

fn holds(prefix: IpNet, address: IpAddr, what: &str) -> String {
    let is_one = prefix.prefix_len() == prefix.max_prefix_len();
    if is_one { format!("{address} is {what}") } else { format!("{prefix} holds {address}, {what}") }
}

/// Returns true if list files name the prefix, and the configuration itself does not.
fn is_of_lists_alone(config: &Config, prefix: IpNet) -> bool {
    let is_written = config.listings.iter().any(|of| match &of.names {
        Names::Prefix(other, _) => of.grant == Grant::Denied && *other == prefix,
        Names::File(_) => false,
    });
    !is_written && config.list_files.iter().any(|file| file.prefixes.binary_search(&prefix).is_ok())
}

/// Returns the place where a configuration denies a prefix: the list's name and file, or the key.
pub(super) fn holder(config: &Config, prefix: IpNet) -> String {
    let denies = |by: &str| by == "deny" || by.starts_with("list ");
    let mut files = config.list_files.iter().filter(|file| denies(&file.named_by));
    match files.find(|file| file.prefixes.binary_search(&prefix).is_ok()) {
        Some(file) => format!("{} ({})", file.named_by, file.path.display()),
        None => "deny".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::file;
    use crate::safety::ssh_session;

    const LIST: &str = "0.0.0.0/1\n10.0.0.0/8\n127.0.0.0/8\n192.0.2.0/24\n198.51.100.7\n203.0.113.0/24\n224.0.0.0/3\n2001:db8::/32\n::/1\n";

    fn around() -> Around {
        let address = |text: &str| text.parse().unwrap();
        Around {
            ssh: ssh_session("198.51.100.7 51000 192.0.2.5 22"),
            gateways: vec![address("10.0.0.1"), address("fe80::1")],
            resolvers: vec![address("10.0.0.53")],
            own: vec![address("127.0.0.1"), address("0.0.0.0"), address("192.0.2.5"), address("2001:db8::5")],
            stores: vec![address("203.0.113.6")],
            logins: Vec::new(),
        }
    }

    fn config(top: &str) -> Config {
        let text = format!("interfaces = [\"eth0\"]\n{top}\n[rule]\nlimits = [\"1/s\"]\n");
        file::parse(Path::new("r.toml"), &text, |_| Ok(LIST.to_owned())).expect(&text)
    }

    fn denied(config: &Config) -> Vec<String> {
        let entries = around().entries(config);
        entries.iter().filter(|of| of.grant == Grant::Denied).map(|of| of.prefix.to_string()).collect()
    }

    #[test]
    fn list_lines_that_are_too_wide_or_lock_someone_out_are_skipped() {
        for top in ["deny = [\"file:drop.txt\"]", "deny = [\"@bad\"]\n[lists]\nbad = \"file:drop.txt\""] {
            let config = config(top);
            assert_eq!(denied(&config), ["127.0.0.0/8", "224.0.0.0/3"], "{top}");
            let words = around().passed_over_words(&config);
            for (prefix, why) in [
                ("0.0.0.0/1", "is more of IPv4 than a list should hold: /8 at the most"),
                ("::/1", "is more of IPv6 than a list should hold: /16 at the most"),
                ("10.0.0.0/8", "holds 10.0.0.1, the default gateway"),
                ("192.0.2.0/24", "holds 192.0.2.5, an address of this host"),
                ("198.51.100.7", "is the peer of the SSH session that started this"),
                ("203.0.113.0/24", "holds 203.0.113.6, the fleet's store"),
                ("2001:db8::/32", "holds 2001:db8::5, an address of this host"),
            ] {
                let line = format!("(drop.txt): {prefix} {why}: it is ignored; to deny it, write it into `deny`");
                assert_eq!(words.iter().filter(|of| of.contains(&line)).count(), 1, "{line}: {words:?}");
            }
            assert_eq!(words.len(), 7, "{words:?}");
        }
    }

    #[test]
    fn denials_written_or_confirmed_by_the_administrator_hold() {
        let written = config(
            "deny = [\"file:drop.txt\", \"0.0.0.0/1\", \"@own\"]\n[lists]\nown = [\"10.0.0.0/8\", \"192.0.2.0/24\"]",
        );
        assert_eq!(denied(&written), ["0.0.0.0/1", "10.0.0.0/8", "127.0.0.0/8", "192.0.2.0/24", "224.0.0.0/3"]);
        let meant = config("deny_everyone = true\ndeny = [\"file:drop.txt\"]");
        assert_eq!(denied(&meant), ["0.0.0.0/1", "127.0.0.0/8", "224.0.0.0/3", "::/1"]);
        assert!(config("").too_wide.is_empty());
    }

    #[test]
    fn a_list_that_rules_are_for_may_be_as_wide_as_it_likes() {
        let text = "interfaces = [\"eth0\"]\n[lists]\nall = \"file:drop.txt\"\n[rule]\nfrom = [\"@all\"]\nlimits = [\"9/s\"]\n";
        let of = file::parse(Path::new("r.toml"), text, |_| Ok(LIST.to_owned())).expect(text);
        assert!(of.too_wide.is_empty() && around().passed_over(&of).is_empty());
        assert!(of.policy.rules[0].from.iter().any(|prefix| prefix.prefix_len() == 1));
    }

    #[test]
    fn the_first_skipped_lines_are_named_and_the_others_counted() {
        let many: String = (0..100).map(|at| format!("{}.0.0.0/7\n", at * 2)).collect();
        let text = "interfaces = [\"eth0\"]\ndeny = [\"file:drop.txt\"]\n[rule]\nlimits = [\"1/s\"]\n";
        let config = file::parse(Path::new("r.toml"), text, |_| Ok(many.clone() + "192.0.2.7\n")).unwrap();
        assert_eq!(config.policy.access.len(), 1, "{:?}", config.policy.access);
        let words = Around::default().passed_over_words(&config);
        assert_eq!(
            (words.len(), words[NAMED_MAX].as_str()),
            (NAMED_MAX + 1, "84 more entries of list files are ignored")
        );
    }
}
