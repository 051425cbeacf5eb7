//! Shared code for tests of refusals: a site, and the remains of a client there.

use std::fs;
use std::net::SocketAddr;

use netlab::{Child, Namespace, nginx_with_tls, without_offloads};

use crate::lab::{Daemon, Lab, SERVER};

fn addresses(port: u16) -> [SocketAddr; 2] {
    SERVER.map(|address| SocketAddr::new(address.parse().expect("it works"), port))
}

/// Starts nginx for both families, in the clear on port 80 and with TLS on 443. Offloads are off, so that segments are
/// as on a wire.
pub fn site(lab: &Lab) -> Child {
    without_offloads(&lab.client, "c0").expect("it works");
    without_offloads(&lab.server, "s0").expect("it works");
    nginx_with_tls(&lab.server, lab.directory(), &addresses(80), &addresses(443)).expect("it works")
}

/// Framing between a client and the site.
#[derive(Clone, Copy, Debug)]
pub enum Link {
    /// Packets without a tag
    Plain,
    /// Packets behind a VLAN tag
    Tagged,
}

impl Link {
    /// Both kinds of framing.
    pub const ALL: [Self; 2] = [Self::Plain, Self::Tagged];

    /// Creates a laboratory with this framing.
    pub fn lab(self) -> Lab {
        let lab = Lab::new();
        if matches!(self, Self::Tagged) {
            lab.behind_a_tag();
        }
        lab
    }
}

/// Starts the daemon on the server's interface with a rule and this `refuse_with`.
pub fn start(lab: &Lab, top: &str, refuse_with: &str, rule: &str) -> Daemon {
    start_on(lab, "s0", top, refuse_with, rule)
}

/// Starts the daemon on this interface with a rule and this `refuse_with`.
pub fn start_on(lab: &Lab, interface: &str, top: &str, refuse_with: &str, rule: &str) -> Daemon {
    let file = lab.directory().join("ratelimitd.toml");
    let top = format!("interfaces = [\"{interface}\"]\nsocket = \"{}\"\n{top}", lab.socket().display());
    fs::write(&file, format!("{top}\n[rule]\nrefuse_with = \"{refuse_with}\"\n{rule}\n")).expect("it works");
    lab.start(&["run", "--config", file.to_str().expect("it works")])
}

/// Returns the number of the server's sockets with a peer at this port. Listening sockets and those that wait for late
/// segments do not count.
pub fn sockets_of(server: &Namespace, client_port: u16) -> usize {
    let tables = ["tcp", "tcp6"].map(|of| format!("/proc/thread-self/net/{of}"));
    let text = server.inside(|| Ok(tables.iter().filter_map(|path| fs::read_to_string(path).ok()).collect::<String>()));
    let port = format!(":{client_port:04X}");
    let is_open = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.len() > 3 && words[2].ends_with(&port) && !["06", "07", "0A"].contains(&words[3])
    };
    text.expect("it works").lines().filter(is_open).count()
}

/// Makes the server's kernel track connections, and forget reset ones within a second.
pub fn track(lab: &Lab) {
    let table = "table inet track { chain in { type filter hook input priority 0; ct state established accept; }; }";
    let output = lab.server.run(&["nft", table]).expect("it works");
    assert_eq!(output.code(), 0, "{}", output.stderr);
    lab.server
        .inside(|| Ok(fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close", "1")?))
        .expect("it works");
}

/// Returns whether a connection from this port is tracked.
pub fn is_tracked(server: &Namespace, client_port: u16) -> bool {
    let text = server.inside(|| Ok(fs::read_to_string("/proc/thread-self/net/nf_conntrack")?)).expect("it works");
    text.contains(&format!("sport={client_port} "))
}

/// Makes frames that the server's driver sends back reach the client. A veth needs an XDP program at its other end for
/// that.
pub fn take_what_is_sent_back(lab: &Lab) {
    lab.attach_foreign_of(&lab.client, "c0");
}
