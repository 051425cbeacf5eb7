//! Laboratory: a client, a server, and a link between them that may lose frames.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use netlab::{Child, End, Forwarded, Namespace, Relay, Trouble, acquaint, veth, without_offloads};

use super::programs::Tools;
use super::rows::{Link, Server};
use super::servers;

/// Server's end of the link, with the limiter attached.
pub(super) const INTERFACE: &str = "s0";
const CLIENT: &str = "c0";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

/// Documentation addresses (RFC 5737, RFC 3849), which no real host uses.
impl Family {
    pub(super) const ALL: [Self; 2] = [Self::V4, Self::V6];

    pub(super) fn server(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
            Self::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        }
    }

    pub(super) fn client(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::new(192, 0, 2, 7).into(),
            Self::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7).into(),
        }
    }

    pub(super) fn server_with(self, port: u16) -> String {
        SocketAddr::new(self.server(), port).to_string()
    }

    fn with_prefix(self, address: IpAddr) -> String {
        match self {
            Self::V4 => format!("{address}/24"),
            Self::V6 => format!("{address}/64"),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

impl Link {
    fn trouble(self) -> Option<Trouble> {
        let lost = match self {
            Self::Clean => return None,
            Self::Lossy1 => 10,
            Self::Lossy5 => 50,
        };
        Some(Trouble { lost, held: 50, hold: Duration::from_millis(3), seed: 4 })
    }
}

/// Namespaces and processes of one laboratory. Fields are dropped in this order, so that processes end before their
/// namespace.
pub(super) struct Lab {
    _servers: Vec<Child>,
    relay: Option<Relay>,
    pub(super) client: Namespace,
    _wire: Option<Namespace>,
    pub(super) server: Namespace,
    files: Files,
    certificate_hash: String,
}

/// Directory of this run, removed on drop.
struct Files(PathBuf);

impl Lab {
    pub(super) fn build(link: Link, tools: &Tools, asked: &[Server]) -> Result<Self> {
        let files = Files::make()?;
        let certificate_hash = servers::write_files(&files.0)?;
        let [client, server] = ["accuracy-client", "accuracy-server"].map(Namespace::named);
        let (client, server) = (client?, server?);
        let (wire, relay) = match link.trouble() {
            None => {
                join(&client, &server)?;
                (None, None)
            }
            Some(trouble) => {
                let wire = Namespace::named("accuracy-wire")?;
                let relay = join_over(&wire, &client, &server, trouble)?;
                (Some(wire), Some(relay))
            }
        };
        let running = servers::start(&server, &files.0, tools, asked)?;
        Ok(Self { _servers: running, relay, client, _wire: wire, server, files, certificate_hash })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.files.0
    }

    /// Returns the hash of the server's public key, in the form that browsers take.
    pub(super) fn certificate_hash(&self) -> &str {
        &self.certificate_hash
    }

    /// Returns the statistics of the lossy link, if the link loses frames.
    pub(super) fn forwarded(&self) -> Option<Forwarded> {
        self.relay.as_ref().map(Relay::forwarded)
    }
}

/// Joins client and server by one link without offloads, so that segments look as on any real link.
fn join(client: &Namespace, server: &Namespace) -> Result<()> {
    with_ends(client, server, veth)?;
    without_offloads(client, CLIENT)?;
    without_offloads(server, INTERFACE)
}

/// Joins client and server by two links with a lossy relay between them.
fn join_over(wire: &Namespace, client: &Namespace, server: &Namespace, trouble: Trouble) -> Result<Relay> {
    const ENDS: [&str; 2] = ["w0", "w1"];
    with_ends(client, server, |near, far| {
        for (end, interface) in [near, far].into_iter().zip(ENDS) {
            veth(end, End { namespace: wire, interface, addresses: &[] })?;
            without_offloads(wire, interface)?;
            without_offloads(end.namespace, end.interface)?;
        }
        acquaint(near, far)
    })?;
    Relay::start(wire, ENDS, trouble)
}

fn with_ends<T>(client: &Namespace, server: &Namespace, work: impl FnOnce(End<'_>, End<'_>) -> Result<T>) -> Result<T> {
    let near = Family::ALL.map(|family| family.with_prefix(family.client()));
    let far = Family::ALL.map(|family| family.with_prefix(family.server()));
    let (near, far) = (near.each_ref().map(String::as_str), far.each_ref().map(String::as_str));
    work(
        End { namespace: client, interface: CLIENT, addresses: &near },
        End { namespace: server, interface: INTERFACE, addresses: &far },
    )
}

impl Files {
    fn make() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("ratelimitd-accuracy-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("accuracy: {} is left behind: {error}", self.0.display());
        }
    }
}
