//! Starts a web server with HTTP/2, and the daemon, which reads the server's access log.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use netlab::{Child, nginx_with_http2, without_offloads};
use serde_json::Value;

use crate::lab::{CLIENTS, Daemon, Lab, SERVER, once};

/// Address of the client that the tests count.
pub const CLIENT: &str = CLIENTS[0];

/// nginx in a laboratory, on ports 80 and 443.
pub struct Site {
    /// Laboratory of the server.
    pub lab: Lab,
    /// Process of the server.
    pub web: Child,
}

impl Default for Site {
    fn default() -> Self {
        Self::new()
    }
}

impl Site {
    /// Starts the server in a new laboratory.
    pub fn new() -> Self {
        let lab = Lab::new();
        without_offloads(&lab.client, "c0").unwrap();
        without_offloads(&lab.server, "s0").unwrap();
        let at = |port: u16| SocketAddr::new(SERVER[0].parse().unwrap(), port);
        let web = nginx_with_http2(&lab.server, lab.directory(), &[at(80)], &[at(443)]).unwrap();
        Self { lab, web }
    }

    /// Returns the path of the server's access log.
    pub fn log(&self) -> PathBuf {
        self.lab.directory().join("access.log")
    }

    /// Starts the daemon with one limit and the access log.
    pub fn limit(&self, limit: &str) -> Daemon {
        self.limit_by(&format!("limits = [\"{limit}\"]\naccess_log = [\"{}\"]", self.log().display()))
    }

    /// Starts the daemon with the text of a `[rule]` table.
    pub fn limit_by(&self, rule: &str) -> Daemon {
        start_by(&self.lab, &format!("[rule]\n{rule}\n"))
    }

    /// Sends requests by h2load, for 20 s at most, over `connections` connections with `streams` streams each.
    pub fn load(&self, requests: u32, connections: u32, streams: u32) {
        load(&self.lab, requests, connections, streams);
    }

    /// Sends requests as [`Self::load`] does, for `seconds` seconds at most.
    pub fn load_for(&self, seconds: &str, requests: u32, connections: u32, streams: u32) {
        load_for(&self.lab, seconds, requests, connections, streams);
    }

    /// Returns the number of the client's log lines.
    pub fn logged(&self) -> u64 {
        logged_in(self.lab.directory())
    }

    /// Returns how much the client has used of its limit.
    pub fn used(&self) -> u64 {
        used(&self.lab, CLIENT)
    }

    /// Returns the part of `stats` about the first log.
    pub fn report(&self) -> Value {
        self.lab.stats()["access_logs"][0].clone()
    }
}

/// Starts the daemon on the server's interface with these configuration tables.
pub fn start_by(lab: &Lab, tables: &str) -> Daemon {
    let socket = lab.socket();
    let top = format!("interfaces = [\"s0\"]\nsocket = \"{}\"\non_exit = \"keep\"", socket.display());
    let file = lab.directory().join("ratelimitd.toml");
    fs::write(&file, format!("{top}\n{tables}\n")).unwrap();
    lab.start(&["run", "--config", file.to_str().unwrap()])
}

/// Sends requests by h2load to port 443, for 20 s at most, over `connections` connections with `streams` streams each.
pub fn load(lab: &Lab, requests: u32, connections: u32, streams: u32) {
    load_for(lab, "20", requests, connections, streams);
}

fn load_for(lab: &Lab, seconds: &str, requests: u32, connections: u32, streams: u32) {
    let (requests, connections, streams) = (requests.to_string(), connections.to_string(), streams.to_string());
    let url = format!("https://{}/", SERVER[0]);
    let args = ["timeout", seconds, "h2load", "-n", &requests, "-c", &connections, "-m", &streams, &url];
    lab.client.run(&args).unwrap();
}

/// Sends a POST by curl, over HTTP/2 if the server supports it. Returns its status, or `refused`.
pub fn post(lab: &Lab, client: &str, url: &str) -> String {
    let args =
        ["curl", "-sk", "-m", "2", "--interface", client, "-d", "", "-o", "/dev/null", "-w", "%{http_code}", url];
    lab.client.run(&args).map_or_else(|_| "refused".to_owned(), |said| said.stdout)
}

/// Returns the number of the client's lines in the log of this directory and in rotated ones.
pub fn logged_in(directory: &Path) -> u64 {
    let files = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let logs = files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("access.log"));
    let of = |path: PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        text.lines().filter(|line| line.starts_with(&format!("{CLIENT} "))).count() as u64
    };
    logs.map(of).sum()
}

/// Returns how much a client has used of its limit.
pub fn used(lab: &Lab, client: &str) -> u64 {
    let check: Value = serde_json::from_str(&lab.ratelimitd(&["check", client, "--json"]).stdout).unwrap();
    check["limits"].as_array().unwrap().iter().filter_map(|limit| limit["used"].as_u64()).max().unwrap_or(0)
}

/// Waits until the window agrees with the log. Returns the numbers of logged and of charged requests.
pub fn settled(site: &Site) -> (u64, u64) {
    let both = || (site.logged(), site.used());
    once(|| Some(both()).filter(|(logged, used)| logged == used)).unwrap_or_else(both)
}
