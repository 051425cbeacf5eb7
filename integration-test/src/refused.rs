//! What tests of refusals share: a site, and what is left of a client there.

use std::fs;
use std::net::SocketAddr;

use netlab::{Child, Namespace, nginx_with_tls, without_offloads};

use crate::lab::{Daemon, Lab, SERVER};

fn addresses(port: u16) -> [SocketAddr; 2] {
    SERVER.map(|address| SocketAddr::new(address.parse().expect("it works"), port))
}

/// With segments as they are on a wire, and a server of both families, in the clear on port 80 and by TLS on 443.
pub fn site(lab: &Lab) -> Child {
    without_offloads(&lab.client, "c0").expect("it works");
    without_offloads(&lab.server, "s0").expect("it works");
    nginx_with_tls(&lab.server, lab.directory(), &addresses(80), &addresses(443)).expect("it works")
}

/// What frames carry between a client and the site.
#[derive(Clone, Copy, Debug)]
pub enum Link {
    /// Packets alone
    Plain,
    /// A VLAN tag
    Tagged,
}

impl Link {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Plain, Self::Tagged];

    /// A laboratory whose frames are such.
    pub fn lab(self) -> Lab {
        let lab = Lab::new();
        if matches!(self, Self::Tagged) {
            lab.behind_a_tag();
        }
        lab
    }
}

/// The daemon, on the server's interface, with a rule that refuses so.
pub fn start(lab: &Lab, top: &str, refuse_with: &str, rule: &str) -> Daemon {
    start_on(lab, "s0", top, refuse_with, rule)
}

/// The same on this interface.
pub fn start_on(lab: &Lab, interface: &str, top: &str, refuse_with: &str, rule: &str) -> Daemon {
    let file = lab.directory().join("ratelimitd.toml");
    let top = format!("interfaces = [\"{interface}\"]\nsocket = \"{}\"\n{top}", lab.socket().display());
    fs::write(&file, format!("{top}\n[rule]\nrefuse_with = \"{refuse_with}\"\n{rule}\n")).expect("it works");
    lab.start(&["run", "--config", file.to_str().expect("it works")])
}

/// Sockets of the server, other than those that listen or wait for late segments, whose peer is at this port.
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

/// Has the server's kernel track connections, and forget those that were reset within a second.
pub fn track(lab: &Lab) {
    let table = "table inet track { chain in { type filter hook input priority 0; ct state established accept; }; }";
    let output = lab.server.run(&["nft", table]).expect("it works");
    assert_eq!(output.code(), 0, "{}", output.stderr);
    lab.server
        .inside(|| Ok(fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close", "1")?))
        .expect("it works");
}

/// Whether a connection from this port is tracked.
pub fn is_tracked(server: &Namespace, client_port: u16) -> bool {
    let text = server.inside(|| Ok(fs::read_to_string("/proc/thread-self/net/nf_conntrack")?)).expect("it works");
    text.contains(&format!("sport={client_port} "))
}

/// Has what the server's driver sends back reach the client: a veth wants an XDP program at its other end for that.
pub fn take_what_is_sent_back(lab: &Lab) {
    lab.attach_foreign_of(&lab.client, "c0");
}
