//! Laboratory of the demo: three namespaces, two links and a web server.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use netlab::{Child, End, HttpServer, Namespace, veth};

use super::{Server, interrupt};

/// Link of a client. The addresses are documentation addresses (RFC 5737), which no real host uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    /// Interface at the server's end.
    pub(super) interface: &'static str,
    pub(super) server: Ipv4Addr,
    pub(super) client: Ipv4Addr,
}

pub(super) const GOOD: Wire =
    Wire { interface: "good0", server: Ipv4Addr::new(192, 0, 2, 1), client: Ipv4Addr::new(192, 0, 2, 7) };
pub(super) const BAD: Wire =
    Wire { interface: "bad0", server: Ipv4Addr::new(198, 51, 100, 1), client: Ipv4Addr::new(198, 51, 100, 7) };

/// Addresses of the crawler, behind the bad client: benchmarking addresses (RFC 2544).
pub(super) const CRAWLER: &str = "198.18.0.0/21";
pub(super) const CRAWLER_FIRST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Text prefix of all crawler addresses, and of no other client's.
const CRAWLER_START: &str = "198.18.";

impl Wire {
    pub(super) fn target(self) -> SocketAddr {
        SocketAddr::from((self.server, 80))
    }
}

/// Namespaces and web server of the demo. Fields are dropped in this order, so that the server ends before its
/// namespace.
pub(super) struct Lab {
    web: Web,
    pub(super) good: Namespace,
    pub(super) bad: Namespace,
    pub(super) server: Namespace,
    pub(super) files: Files,
}

enum Web {
    Nginx(Child),
    Own([HttpServer; 2]),
}

/// Directory of this run, removed on drop.
pub(super) struct Files(PathBuf);

/// Names to look for after everything was removed.
pub(super) struct Traces {
    pub(super) namespaces: Vec<String>,
    pub(super) processes: Vec<u32>,
    pub(super) directory: PathBuf,
}

impl Lab {
    pub(super) fn build(server: Server) -> Result<Self> {
        let files = Files::make()?;
        let [behind, good, bad] = ["demo-server", "demo-good", "demo-bad"].map(Namespace::named);
        let (behind, good, bad) = (behind?, good?, bad?);
        for (wire, client) in [(GOOD, &good), (BAD, &bad)] {
            let [near, far] = [wire.client, wire.server].map(|address| format!("{address}/24"));
            veth(
                End { namespace: client, interface: "eth0", addresses: &[&near] },
                End { namespace: &behind, interface: wire.interface, addresses: &[&far] },
            )?;
            interrupt::check()?;
        }
        // All crawler addresses are local to the bad client.
        bad.ip(&["route", "add", "local", CRAWLER, "dev", "lo"])?;
        behind.ip(&["route", "add", CRAWLER, "via", &BAD.client.to_string(), "dev", BAD.interface])?;
        let addresses = [GOOD, BAD].map(Wire::target);
        let web = match server {
            Server::Nginx => Web::Nginx(netlab::nginx(&behind, files.path(), &addresses)?),
            Server::Own => {
                let [one, other] = addresses.map(|address| HttpServer::start(&behind, address));
                Web::Own([one?, other?])
            }
        };
        Ok(Self { web, good, bad, server: behind, files })
    }

    pub(super) fn server_name(&self) -> &'static str {
        match self.web {
            Web::Nginx(_) => "nginx",
            Web::Own(_) => "the demo's own",
        }
    }

    /// Returns the CPU time of the web server so far. None for a server without its own process.
    pub(super) fn web_cpu_time(&self) -> Result<Option<Duration>> {
        match &self.web {
            Web::Nginx(child) => child.cpu_time().map(Some),
            Web::Own(_) => Ok(None),
        }
    }

    /// Returns the number of requests that the web server has counted for a client.
    pub(super) fn seen_by_web(&self, client: Ipv4Addr) -> Result<u64> {
        self.seen_by_web_of(&format!("{client} "), |of| of == client)
    }

    /// Returns the number of requests that the web server has counted for all crawler addresses.
    pub(super) fn crawler_seen_by_web(&self) -> Result<u64> {
        self.seen_by_web_of(CRAWLER_START, |of| of.to_string().starts_with(CRAWLER_START))
    }

    fn seen_by_web_of(&self, start: &str, is_it: impl Fn(Ipv4Addr) -> bool) -> Result<u64> {
        match &self.web {
            Web::Nginx(_) => {
                let path = self.files.path().join("access.log");
                let log = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
                Ok(log.lines().filter(|line| line.starts_with(start)).count() as u64)
            }
            Web::Own(servers) => {
                let is_it = |of: &IpAddr| if let IpAddr::V4(of) = of { is_it(*of) } else { false };
                let of = |counts: BTreeMap<IpAddr, u64>| -> u64 {
                    counts.iter().filter(|(of, _)| is_it(of)).map(|(_, count)| count).sum()
                };
                Ok(servers.iter().map(|server| of(server.requests())).sum())
            }
        }
    }

    pub(super) fn traces(&self) -> Traces {
        let names = [&self.server, &self.good, &self.bad].map(|namespace| namespace.name().to_owned());
        let processes = match &self.web {
            Web::Nginx(child) => vec![child.id()],
            Web::Own(_) => Vec::new(),
        };
        Traces { namespaces: names.into(), processes, directory: self.files.path().to_owned() }
    }
}

impl Files {
    fn make() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("ratelimitd-demo-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // The final check for leftovers reports a directory that could not be removed.
        let _left = fs::remove_dir_all(&self.0);
    }
}
