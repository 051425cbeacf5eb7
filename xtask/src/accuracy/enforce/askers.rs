//! Clients that send as fast as they can, and the worst one that is known for each protocol.

use std::fmt;
use std::process::{Child as Process, Stdio};

use anyhow::{Context, Result};

use crate::accuracy::lab::{Family, Lab};
use crate::accuracy::programs::Tools;
use crate::accuracy::rows::{Over, Server};
use crate::accuracy::servers::lenient::Lenient;

/// Limit, and the time for which clients send against it.
#[derive(Clone, Copy)]
pub(super) struct Trial {
    pub(super) limit: u64,
    pub(super) window_s: u64,
    pub(super) text: &'static str,
    pub(super) seconds: u32,
}

/// 40 s are three windows plus the buckets that they add.
pub(super) const FROM_PACKETS: Trial = Trial { limit: 100, window_s: 10, text: "100/10s", seconds: 40 };
pub(super) const WITH_LOGS: Trial = Trial { limit: 100, window_s: 60, text: "100/1m", seconds: 180 };

const ADVERSARY: Trial = Trial { limit: ADVERSARY_LIMIT, window_s: 20, text: "10/20s", seconds: 60 };
/// Shorter trial for clients of many servers.
const LENIENT: Trial = Trial { limit: ADVERSARY_LIMIT, window_s: 10, text: "10/10s", seconds: 30 };
/// Limit of the worst clients, as which their served requests are counted.
pub(super) const ADVERSARY_LIMIT: u64 = 10;

/// Client that sends as fast as it can.
#[derive(Clone, Copy)]
pub(super) struct Asker {
    pub(super) client: &'static str,
    pub(super) server: Server,
    pub(super) over: Over,
    pub(super) family: Family,
    /// Shell command with placeholders that [`Asker::start`] fills in.
    command: &'static str,
    /// Maximum number of its requests in flight, and of those that it sends before its first log lines are charged.
    pub(super) in_flight: u64,
    /// Maximum number of requests in one of its turns.
    pub(super) in_turn: u64,
    /// True if packets do not show its requests. With a log, each window then admits the requests in flight too.
    pub(super) is_hidden: bool,
}

pub(super) const WRK: Asker = Asker {
    client: "wrk",
    server: Server::Nginx,
    over: Over::Clear,
    family: Family::V4,
    command: "wrk -t1 -c64 -d{seconds}s http://{address}/ok",
    in_flight: 0,
    in_turn: 1,
    is_hidden: false,
};

pub(super) const WRK_OVER_TLS: Asker =
    Asker { over: Over::Tls13, family: Family::V6, command: "wrk -t1 -c64 -d{seconds}s https://{address}/ok", ..WRK };

pub(super) const H2LOAD: Asker = Asker {
    client: "h2load -c 20 -m 100",
    server: Server::Nginx,
    over: Over::Http2,
    family: Family::V4,
    command: "for round in $(seq $(({seconds} / 3))); do timeout 3 \
        h2load -n 10000 -c 20 -m 100 https://{address}/ok; done",
    in_flight: 20 * 100,
    in_turn: 100,
    is_hidden: false,
};

pub(super) const AIOQUIC: Asker = Asker {
    client: "aioquic, one by one",
    server: Server::Caddy,
    over: Over::Http3,
    family: Family::V6,
    command: "for round in $(seq $(({seconds} / 5))); do timeout 5 env PYTHONPATH={python} python3 -W ignore \
        {programs}/h3_client.py one-by-one {host} {port} 100000; done",
    // One request, plus those sent before its first log line is read.
    in_flight: 50,
    in_turn: 1,
    is_hidden: true,
};

const PIPELINE: Asker = Asker {
    client: "20 requests in one record",
    server: Server::Nginx,
    over: Over::Tls13,
    family: Family::V4,
    command: "for round in $(seq $(({seconds} / 4))); do timeout 4 env PYTHONPATH={python} python3 -W ignore \
        {programs}/client.py pipeline https://{address} 10000; done",
    in_flight: 20,
    in_turn: 20,
    is_hidden: false,
};

const SHORT_HEADERS: Asker = Asker {
    client: "one by one, HEADERS of 14 bytes, answers of 17 KB",
    server: Server::Nginx,
    over: Over::Http2,
    family: Family::V6,
    command: "env PYTHONPATH={python} timeout {seconds} sh -c \
        'while :; do python3 -W ignore {programs}/h2_small.py {host} {port} /page/18.png; sleep 0.1; done'",
    in_flight: 100,
    in_turn: 1,
    is_hidden: true,
};

/// Number of requests in one segment of a client that sends them without a version.
const WITHOUT_VERSION: u64 = 30;

/// Returns a client of a server that answers requests with this first line.
macro_rules! lenient {
    ($server:ident, $line:literal, $family:ident) => {
        Asker {
            client: concat!("30 times `", $line, "` in one segment"),
            server: Server::Lenient(Lenient::$server),
            over: Over::Clear,
            family: Family::$family,
            command: concat!("timeout {seconds} python3 {programs}/lenient_client.py '", $line, "' {host} {port} 30"),
            in_flight: WITHOUT_VERSION,
            in_turn: WITHOUT_VERSION,
            is_hidden: true,
        }
    };
}

/// Worst known clients. Two run at a time, since there are two sources.
pub(super) const ADVERSARIES: [(Trial, &[Asker]); 6] = [
    (
        ADVERSARY,
        &[
            WRK,
            Asker {
                client: "h2load -c 1 -m 100",
                family: Family::V6,
                command: "for round in $(seq $(({seconds} / 3))); do timeout 3 \
                    h2load -n 10000 -c 1 -m 100 https://{address}/ok; done",
                in_flight: 100,
                ..H2LOAD
            },
        ],
    ),
    (ADVERSARY, &[PIPELINE, SHORT_HEADERS]),
    (ADVERSARY, &[Asker { family: Family::V4, ..AIOQUIC }, Asker { family: Family::V6, ..H2LOAD }]),
    (LENIENT, &[lenient!(Waitress, "GET /", V4), lenient!(Aiohttp, "GET /", V6)]),
    (LENIENT, &[lenient!(Uvicorn, "GET /", V4), lenient!(Cheroot, "GET / HTTP/+1.1", V6)]),
    (LENIENT, &[lenient!(Jdk, "GET / FOO", V4)]),
];

impl Asker {
    pub(super) fn start(&self, lab: &Lab, tools: &Tools, trial: Trial) -> Result<Process> {
        let port = self.server.port(self.over);
        let line = self
            .command
            .replace("{seconds}", &trial.seconds.to_string())
            .replace("{address}", &self.family.server_with(port))
            .replace("{host}", &self.family.server().to_string())
            .replace("{port}", &port.to_string())
            .replace("{python}", &tools.python().to_string_lossy())
            .replace("{programs}", &Tools::programs().to_string_lossy());
        let mut command = lab.client.command("sh");
        command.args(["-c", &line]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().with_context(|| format!("start {}", self.client))
    }
}

impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, server, over, .. } = self;
        write!(f, "{client}; {over}, {server}")
    }
}
