//! Servers with a log of one line per request: five web servers, hypercorn for HTTP/2 and 3, Node's own servers, one gRPC
//! server, and servers that answer requests without a version.
//!
//! A web server listens on one port per protocol, so that a row's port determines the negotiated protocol.

mod apache;
mod caddy;
mod files;
mod haproxy;
pub(super) mod lenient;
mod lighttpd;
mod nginx;
mod node;
mod python;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use netlab::{Child, Namespace};

use super::lab::Family;
use super::programs::Tools;
use super::rows::{Over, Server};

pub(super) use files::write_files;

const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(20);
/// Backend that the other servers forward to, within their own namespace.
const SINK: &str = "127.0.0.1:9000";

impl Server {
    /// Returns the name of the server's log in the laboratory's directory.
    pub(super) fn log(self) -> &'static str {
        match self {
            Self::Nginx => "access.log",
            Self::Apache => "apache.log",
            Self::Caddy => "caddy.log",
            Self::Lighttpd => "lighttpd.log",
            Self::Haproxy => "haproxy.log",
            Self::Hypercorn => "hypercorn.log",
            Self::Node => "node.log",
            Self::Grpc => "grpc.log",
            Self::Lenient(lenient) => lenient.log(),
        }
    }

    pub(super) fn port(self, over: Over) -> u16 {
        match (self, over) {
            (Self::Nginx, Over::Clear) => 80,
            (Self::Nginx, Over::Http2Clear) => 81,
            (Self::Nginx, Over::Tls13 | Over::Http3) | (Self::Hypercorn, Over::Http3) => 443,
            (Self::Nginx, Over::Tls12) => 444,
            (Self::Nginx, Over::Http2) => 445,
            (Self::Nginx, Over::Http2Tls12) => 446,
            (Self::Nginx, Over::Mutual) => 448,
            (Self::Nginx, Over::Http2Mutual) => 449,
            (Self::Nginx, Over::EarlyData) => 450,
            (Self::Hypercorn, _) => 8443,
            (Self::Grpc, _) => 447,
            (Self::Apache, over) => 8100 + offset(over),
            (Self::Caddy, over) => 8200 + offset(over),
            (Self::Lighttpd, over) => 8300 + offset(over),
            (Self::Haproxy, over) => 8400 + offset(over),
            (Self::Node, over) => 8500 + offset(over),
            (Self::Lenient(lenient), _) => lenient.port(),
        }
    }

    /// Returns the name of the server's log in a format that the limiter reads.
    pub(super) fn access_log(self) -> &'static str {
        if self == Self::Nginx { "combined.log" } else { self.log() }
    }

    /// Returns true if the log has a JSON object for each request, in Caddy's format.
    pub(super) const fn logs_json(self) -> bool {
        matches!(self, Self::Caddy | Self::Lenient(_))
    }

    /// Returns the protocols that a web server listens for. Only some servers accept early data, and only Caddy speaks
    /// HTTP/3.
    fn listens(self) -> impl Iterator<Item = Over> {
        let takes_early_data = matches!(self, Self::Nginx | Self::Haproxy);
        let listens = move |over: &Over| {
            if self == Self::Node { node::LISTENS.contains(over) } else { *over != Over::EarlyData || takes_early_data }
        };
        let of_quic = (self == Self::Caddy).then_some(Over::Http3);
        Over::ALL.into_iter().filter(listens).chain(of_quic)
    }
}

fn offset(over: Over) -> u16 {
    match over {
        Over::Clear => 0,
        Over::Tls13 => 1,
        Over::Tls12 => 2,
        Over::Http2 => 3,
        Over::Http2Tls12 => 4,
        Over::Mutual => 5,
        Over::Http2Mutual => 6,
        Over::Http2Clear => 7,
        Over::EarlyData => 8,
        Over::Http3 => 9,
    }
}

/// Starts nginx, which other servers forward to, and the requested servers.
pub(super) fn start(namespace: &Namespace, directory: &Path, tools: &Tools, asked: &[Server]) -> Result<Vec<Child>> {
    let mut running = vec![nginx::start(namespace, directory)?];
    // Backend that nginx itself forwards some traffic to.
    if asked.contains(&Server::Nginx) {
        running.push(python::backend(namespace, directory, tools)?);
    }
    for &server in asked {
        match server {
            Server::Nginx => {}
            Server::Apache => running.push(apache::start(namespace, directory)?),
            Server::Caddy => running.push(caddy::start(namespace, directory)?),
            Server::Lighttpd => running.extend(lighttpd::start(namespace, directory)?),
            Server::Haproxy => running.push(haproxy::start(namespace, directory)?),
            Server::Hypercorn => running.push(python::hypercorn(namespace, directory, tools)?),
            Server::Node => running.push(node::start(namespace, directory)?),
            Server::Grpc => running.push(python::grpc(namespace, directory, tools)?),
            Server::Lenient(lenient) => running.push(lenient::start(namespace, directory, tools, lenient)?),
        }
    }
    Ok(running)
}

fn write_config(directory: &Path, name: &str, text: &str) -> Result<std::path::PathBuf> {
    let path = directory.join(name);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

/// Waits until the server answers on all of its ports.
fn answers_for_all(namespace: &Namespace, child: &Child, server: Server) -> Result<()> {
    for over in server.listens() {
        answers(namespace, child, server.port(over))?;
    }
    Ok(())
}

fn answers(namespace: &Namespace, child: &Child, port: u16) -> Result<()> {
    answers_on(namespace, child, SocketAddr::new(Family::V4.server(), port))
}

fn answers_on(namespace: &Namespace, child: &Child, address: SocketAddr) -> Result<()> {
    for _ in 0..ANSWERS_WITHIN.as_millis() / TICK.as_millis() {
        if namespace.inside(|| Ok(TcpStream::connect(address).is_ok()))? {
            return Ok(());
        }
        thread::sleep(TICK);
    }
    bail!("nothing answers on {address}: {}", child.stderr())
}
