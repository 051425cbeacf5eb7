//! Protection against a lockout: the administrator over SSH, gateways, resolvers, the fleet's store and the host
//! itself.
//!
//! [`Around::look`] reads from the host. All else is pure.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::access::{By, Entry};
use crate::config::Safety;
use crate::config::fleet::Fleet;
use crate::desired::Grant;
use crate::files;

mod listed;
mod lockout;
mod needed;
mod width;

pub use self::needed::PassedOver;
pub use self::width::is_too_wide;

/// Maximum number of processes between a command and the shell that SSH started. `sudo` adds one or two.
const ANCESTORS_MAX: usize = 16;

/// Maximum length in bytes of a file that names resolvers.
const RESOLVERS_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of systemd-logind sessions that are read, and maximum length of a session file in bytes.
const SESSIONS_MAX: usize = 256;
const SESSION_BYTES_MAX: u64 = 1 << 16;

/// Reason shown for the exemption of a store.
pub const STORE: &str = "the fleet's store";

/// An SSH session to this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SshSession {
    /// Address of the client.
    pub peer: IpAddr,
    /// Address of this host that the client connected to.
    pub host: IpAddr,
    /// Port of this host that the client connected to.
    pub port: u16,
}

/// Addresses that a user's request came from, if known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CameFrom {
    /// Address of the SSH client.
    pub ssh: Option<IpAddr>,
    /// Address of the browser.
    pub web: Option<IpAddr>,
}

/// Addresses that the host and its administrator depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Around {
    /// SSH session of the user who started this process.
    pub ssh: Option<SshSession>,
    /// Addresses of the default gateways.
    pub gateways: Vec<IpAddr>,
    /// Addresses of the name servers, except those on this host.
    pub resolvers: Vec<IpAddr>,
    /// Addresses of the host itself.
    pub own: Vec<IpAddr>,
    /// Addresses of the fleet's stores.
    pub stores: Vec<IpAddr>,
    /// Addresses of the users who are logged in now, usually over SSH.
    pub logins: Vec<IpAddr>,
}

impl Around {
    /// Reads the addresses from the host, except the given default gateways. Unreadable ones are left out.
    pub fn look(gateways: Vec<IpAddr>) -> Self {
        let read = |path: &str| {
            let bytes = files::read_named(Path::new(path), RESOLVERS_BYTES_MAX).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let mut named = resolvers(&read("/etc/resolv.conf"));
        if named.iter().any(IpAddr::is_loopback) {
            // systemd-resolved answers on the host and forwards to these servers.
            named.extend(resolvers(&read("/run/systemd/resolve/resolv.conf")));
        }
        named.retain(|address| !address.is_loopback() && !address.is_unspecified());
        named.sort_unstable();
        named.dedup();
        Self {
            ssh: ssh_session_of_this_process(),
            gateways,
            resolvers: named,
            own: own_addresses(),
            stores: Vec::new(),
            logins: logins(Path::new("/run/systemd/sessions")),
        }
    }

    /// Returns true if both lead to the same exemptions and lists. Logins do not affect those.
    pub fn exempts_like(&self, other: &Self) -> bool {
        let without_logins = |of: &Self| Self { logins: Vec::new(), ..of.clone() };
        without_logins(self) == without_logins(other)
    }

    /// Adds the stores of the configured fleet.
    pub fn with(self, fleet: Option<&Fleet>) -> Self {
        Self { stores: fleet.map_or_else(Vec::new, Fleet::stores), ..self }
    }

    /// Returns the exemptions that protect these addresses.
    pub fn exemptions(&self, safety: Safety) -> Vec<Entry> {
        let exempt = |address: &IpAddr, what: &str| Entry {
            prefix: IpNet::from(*address),
            grant: Grant::Exempt,
            by: By::Safety,
            owner: None,
            reason: Some(what.to_owned()),
            since: None,
            until: None,
        };
        let peer = self.ssh.map(|session| session.peer);
        let all = [
            (safety.exempt_ssh_peer, peer.as_slice(), "the peer of the SSH session that started the daemon"),
            (safety.exempt_gateway, &self.gateways[..], "the default gateway"),
            (safety.exempt_resolvers, &self.resolvers[..], "a name server of this host"),
            // Without its store there is no fleet, so the store is always exempt. A store on a Unix socket needs no
            // exemption.
            (true, &self.stores[..], STORE),
        ];
        let mut entries: Vec<Entry> = Vec::new();
        for (_, addresses, what) in all.into_iter().filter(|(is_on, _, _)| *is_on) {
            for entry in addresses.iter().map(|address| exempt(address, what)) {
                if !entries.iter().any(|other| other.prefix == entry.prefix) {
                    entries.push(entry);
                }
            }
        }
        entries
    }

    /// Returns why exempting `prefix` would be a mistake. None if it would not.
    pub fn objection_to_exempting(prefix: IpNet) -> Option<String> {
        match prefix.prefix_len() {
            0 => Some(format!("{prefix} is all of {}: no source would be limited", width::limits_of(prefix).1)),
            _ => width::objection(prefix, "`allow`"),
        }
    }

    /// Returns why denying `prefix` would be a mistake for a user who came from `from`. None if it would not.
    pub fn objection(&self, prefix: IpNet, from: CameFrom) -> Option<String> {
        let inside = |addresses: &[IpAddr], what: &str| {
            let address = addresses.iter().find(|address| prefix.contains(*address))?;
            let is_one = prefix.prefix_len() == prefix.max_prefix_len();
            Some(if is_one { format!("{address} is {what}") } else { format!("{prefix} contains {what}, {address}") })
        };
        let peer = self.ssh.map(|session| session.peer);
        inside(from.ssh.as_slice(), "the peer of your SSH session")
            .or_else(|| inside(from.web.as_slice(), "the address that your browser comes from"))
            .or_else(|| inside(peer.as_slice(), "the peer of the SSH session that started the daemon"))
            .or_else(|| inside(&self.logins, "where someone is logged in from"))
            .or_else(|| inside(&self.own, "an address of this host"))
            .or_else(|| inside(&self.gateways, "the default gateway"))
            .or_else(|| inside(&self.resolvers, "a name server that this host asks"))
            .or_else(|| inside(&self.stores, STORE))
            .or_else(|| width::objection(prefix, "`deny`"))
    }
}

/// Parses the session in `$SSH_CONNECTION`: `198.51.100.7 51000 203.0.113.5 22`.
pub fn ssh_session(connection: &str) -> Option<SshSession> {
    let words: Vec<&str> = connection.split_whitespace().collect();
    let &[peer, _, host, port] = words.as_slice() else { return None };
    let address = |text: &str| without_zone(text).parse().ok();
    Some(SshSession { peer: address(peer)?, host: address(host)?, port: port.parse().ok()? })
}

/// Returns the SSH session of the user who started this process. `sudo` removes the variable from the environment, so
/// the parent processes are searched as well.
pub fn ssh_session_of_this_process() -> Option<SshSession> {
    if let Ok(connection) = std::env::var("SSH_CONNECTION") {
        return ssh_session(&connection);
    }
    let mut process = nix::unistd::getppid().as_raw();
    for _ in 0..ANCESTORS_MAX {
        if process <= 1 {
            return None;
        }
        let of = Path::new("/proc").join(process.to_string());
        let session = fs::read(of.join("environ")).ok().and_then(|environment| ssh_session_in(&environment));
        if session.is_some() {
            return session;
        }
        process = parent_in(&fs::read_to_string(of.join("stat")).ok()?)?;
    }
    None
}

/// Parses the session in an environment in the format of /proc/PID/environ.
fn ssh_session_in(environment: &[u8]) -> Option<SshSession> {
    let variable =
        environment.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(b"SSH_CONNECTION="))?;
    ssh_session(std::str::from_utf8(variable).ok()?)
}

/// Parses the parent's id in /proc/PID/stat. The program's name in front stands in parentheses and may hold anything.
fn parent_in(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Parses the name servers of a resolv.conf(5).
pub fn resolvers(contents: &str) -> Vec<IpAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver"))
            .then(|| words.next())
            .flatten()
            .and_then(|word| without_zone(word).parse().ok())
    };
    contents.lines().filter_map(server).collect()
}

/// Returns the addresses that systemd-logind's sessions come from. `directory` has one file of `NAME=VALUE` lines for
/// each.
fn logins(directory: &Path) -> Vec<IpAddr> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let login = |entry: std::io::Result<fs::DirEntry>| {
        let bytes = files::read_named(&entry.ok()?.path(), SESSION_BYTES_MAX).ok()?;
        login_in(&String::from_utf8_lossy(&bytes))
    };
    let mut logins: Vec<IpAddr> = entries.take(SESSIONS_MAX).filter_map(login).collect();
    logins.sort_unstable();
    logins.dedup();
    logins
}

/// Returns the address that a session comes from. None if the session is closing or local.
fn login_in(session: &str) -> Option<IpAddr> {
    let value = |name: &str| session.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    if value("STATE") == Some("closing") {
        return None;
    }
    without_zone(value("REMOTE_HOST")?).parse().ok()
}

fn own_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let address = |of: nix::ifaddrs::InterfaceAddress| {
        let address = of.address?;
        let v4 = address.as_sockaddr_in().map(|of| IpAddr::V4(of.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|of| IpAddr::V6(of.ip())))
    };
    let mut addresses: Vec<IpAddr> = interfaces.filter_map(address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Returns an address like `fe80::1%eth0` without the interface.
fn without_zone(address: &str) -> &str {
    address.split('%').next().unwrap_or(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn around() -> Around {
        Around {
            ssh: ssh_session("198.51.100.7 51000 192.0.2.5 22"),
            gateways: vec![address("192.0.2.1"), address("fe80::1")],
            resolvers: vec![address("192.0.2.53")],
            own: vec![address("127.0.0.1"), address("192.0.2.5"), address("2001:db8::5")],
            stores: vec![address("203.0.113.6")],
            logins: vec![address("198.51.100.99")],
        }
    }

    #[test]
    fn remote_logins_are_found_until_their_session_ends() {
        let directory = tempfile::tempdir().unwrap();
        for (name, contents) in [
            (
                "1",
                "# This is private data. Do not parse.\nUID=0\nSTATE=active\nREMOTE=1\nREMOTE_HOST=198.51.100.7\nTYPE=tty\n",
            ),
            ("2", "STATE=active\nREMOTE=0\nTTY=tty1\n"),
            ("3", "STATE=closing\nREMOTE=1\nREMOTE_HOST=203.0.113.9\n"),
            ("4", "STATE=online\nREMOTE_HOST=fe80::7%eth0\n"),
            ("5", "STATE=active\nREMOTE_HOST=office.example\n"),
            ("6", ""),
        ] {
            fs::write(directory.path().join(name), contents).unwrap();
        }
        fs::create_dir(directory.path().join("7")).unwrap();
        assert_eq!(logins(directory.path()), [address("198.51.100.7"), address("fe80::7")]);
        assert_eq!(logins(&directory.path().join("none")), [] as [IpAddr; 0]);
        let around = Around { logins: logins(directory.path()), ..Around::default() };
        assert!(around.exempts_like(&Around::default()) && around.exemptions(Safety::default()).is_empty());
        let said = around.objection("198.51.100.0/24".parse().unwrap(), CameFrom::default()).unwrap();
        assert_eq!(said, "198.51.100.0/24 contains where someone is logged in from, 198.51.100.7");
    }

    #[test]
    fn the_peer_of_an_ssh_session_is_its_first_word() {
        for (text, peer) in [
            ("198.51.100.7 51000 203.0.113.5 22", Some("198.51.100.7")),
            ("2001:db8::7 51000 2001:db8::5 22", Some("2001:db8::7")),
            ("fe80::7%eth0 51000 fe80::5%eth0 22", Some("fe80::7")),
            ("198.51.100.7", None),
            ("UNKNOWN 1 UNKNOWN 2", None),
            ("", None),
        ] {
            assert_eq!(ssh_session(text).map(|session| session.peer), peer.map(address), "{text}");
        }
        let environment = b"HOME=/\0SSH_CONNECTION=198.51.100.7 5 192.0.2.5 22\0X=\xff";
        let session = SshSession { peer: address("198.51.100.7"), host: address("192.0.2.5"), port: 22 };
        assert_eq!(ssh_session_in(environment), Some(session));
        assert_eq!(parent_in("12 (a) (b) c) S 34 12 12 0"), Some(34));
    }

    #[test]
    fn name_servers_are_read_as_the_resolver_reads_them() {
        let contents =
            "# nameserver 1.1.1.1\nsearch example.org\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\nnameserver x\n";
        assert_eq!(resolvers(contents), [address("192.0.2.53"), address("fe80::1")]);
    }

    #[test]
    fn everyone_needed_is_exempt_unless_switched_off() {
        let prefixes = |safety| around().exemptions(safety).iter().map(|of| of.prefix.to_string()).collect::<Vec<_>>();
        assert_eq!(
            prefixes(Safety::default()),
            ["198.51.100.7/32", "192.0.2.1/32", "fe80::1/128", "192.0.2.53/32", "203.0.113.6/32"]
        );
        let off = Safety { exempt_ssh_peer: false, exempt_gateway: false, ..Safety::default() };
        assert_eq!(prefixes(off), ["192.0.2.53/32", "203.0.113.6/32"]);
    }

    #[test]
    fn a_user_who_would_lock_himself_out_is_told_by_what() {
        for (prefix, caller, words) in [
            ("203.0.113.9/32", Some("203.0.113.9"), Some("203.0.113.9 is the peer of your SSH session")),
            ("203.0.113.80/32", None, Some("203.0.113.80 is the address that your browser comes from")),
            ("203.0.113.64/26", None, Some("contains the address that your browser comes from, 203.0.113.80")),
            ("198.51.100.0/24", None, Some("contains the peer of the SSH session")),
            ("192.0.2.5/32", None, Some("is an address of this host")),
            ("2001:db8::/64", None, Some("contains an address of this host")),
            ("192.0.2.1/32", None, Some("is the default gateway")),
            ("192.0.2.53/32", None, Some("is a name server")),
            ("203.0.113.6/32", None, Some("203.0.113.6 is the fleet's store")),
            ("8.0.0.0/7", None, Some("/8 at the most")),
            ("3000::/15", None, Some("/16 at the most")),
            ("0.0.0.0/0", None, Some("contains")),
            ("::/0", None, Some("contains")),
            ("203.0.113.9/32", Some("203.0.113.8"), None),
            ("8.0.0.0/8", None, None),
            ("3000::/16", None, None),
        ] {
            let from = CameFrom { ssh: caller.map(address), web: Some(address("203.0.113.80")) };
            let objection = around().objection(prefix.parse().unwrap(), from);
            match words {
                Some(words) => {
                    assert!(objection.as_ref().is_some_and(|of| of.contains(words)), "{prefix}: {objection:?}")
                }
                None => assert_eq!(objection, None, "{prefix}"),
            }
        }
    }

    #[test]
    fn exempting_everybody_is_objected_to() {
        for (prefix, words) in [
            ("0.0.0.0/0", Some("is all of IPv4")),
            ("::/0", Some("is all of IPv6")),
            ("128.0.0.0/1", Some("/8 at the most")),
            ("10.0.0.0/8", None),
            ("2000::/15", Some("/16 at the most")),
            ("2001::/16", None),
        ] {
            let objection = Around::objection_to_exempting(prefix.parse().unwrap());
            assert_eq!(objection.is_some(), words.is_some(), "{prefix}");
            assert!(objection.is_none_or(|of| words.is_some_and(|words| of.contains(words))), "{prefix}");
        }
    }

    #[test]
    fn this_host_can_be_asked() {
        assert!(Around::look(Vec::new()).resolvers.iter().all(|address| !address.is_loopback()));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[0-9A-Fa-f:. \t\n%a-z]{0,200}") {
            let _all = (ssh_session(&text), resolvers(&text), parent_in(&text));
        }
    }
}
