//! Limiter under measurement: the release binary, controlled as a user would control it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use netlab::{Child, Namespace};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::lab::{INTERFACE, Lab};
use super::programs::Tools;
use super::rows::{Over, Server};

const READY: Duration = Duration::from_secs(15);
const STOPPED: Duration = Duration::from_secs(10);

pub(super) struct Limiter<'a> {
    process: Child,
    tools: &'a Tools,
    namespace: &'a Namespace,
    socket: PathBuf,
    reads_logs: bool,
}

impl<'a> Limiter<'a> {
    /// Starts the limiter on the server's interface, with the access logs of these servers.
    pub(super) fn start(lab: &'a Lab, tools: &'a Tools, limit: &str, logs: &[Server]) -> Result<Self> {
        let socket = lab.directory().join("control.sock");
        let mut command = lab.server.command(&tools.limiter);
        command
            .args(["--iface", INTERFACE, "--limit", limit, "--port", "all", "--count", "requests", "--socket"])
            .arg(&socket);
        let quic_ports = [Server::Hypercorn, Server::Caddy].map(|server| server.port(Over::Http3).to_string());
        command.arg("--quic-ports").arg(quic_ports.join(","));
        for server in logs {
            command.arg("--access-log").arg(lab.directory().join(server.access_log()));
        }
        command.env("RATELIMITD_STATE_DIR", lab.directory().join("state"));
        let process = Child::start(command)?;
        process.wait_for_line("ratelimitd: ready", READY)?;
        Ok(Self { process, tools, namespace: &lab.server, socket, reads_logs: !logs.is_empty() })
    }

    /// Returns the requests counted for a source in the last window, from its established connections and from
    /// unverified traffic. Log lines are charged to both, and counted once here.
    pub(super) fn counted(&self, source: IpAddr) -> Result<u64> {
        let check = self.json(&["check", &source.to_string()])?;
        let limits = check["limits"].as_array().filter(|limits| !limits.is_empty());
        let used = limits.and_then(|limits| limits.iter().map(|limit| limit["used"].as_u64()).sum::<Option<u64>>());
        let used = used.with_context(|| format!("`ratelimitd check {source}` tells no count: {check}"))?;
        if !self.reads_logs {
            return Ok(used);
        }
        let added = self.json(&["stats"])?["access_logs"][0]["requests_added"]["default"].as_u64();
        Ok(used.saturating_sub(added.unwrap_or(0)))
    }

    fn json(&self, arguments: &[&str]) -> Result<Value> {
        let (program, socket) = (self.tools.limiter.to_string_lossy(), self.socket.to_string_lossy());
        let output = self.namespace.run(&[&[&*program], arguments, &["--json", "--socket", &socket]].concat())?;
        let json = serde_json::from_str(&output.stdout);
        json.with_context(|| format!("`ratelimitd {}` failed: {}", arguments.join(" "), output.stderr.trim()))
    }

    /// Stops the daemon in an orderly way, which detaches the filter.
    pub(super) fn stop(mut self) -> Result<()> {
        self.process.signal(Signal::SIGTERM)?;
        let status = self.process.wait(STOPPED)?;
        ensure!(status.success(), "ratelimitd ended with {status}:\n{}", self.process.stderr());
        Ok(())
    }
}
