//! Enforcement in the server's terms: the log of a client that sends as fast as it can shows as many requests as the
//! limit allows, and not one more in any window.

use std::fmt;
use std::fs;
use std::process::{Child as Process, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::lab::{Family, Lab};
use super::limiter::Limiter;
use super::programs::Tools;
use super::rows::{Link, Over, Server};
use crate::interrupt;

/// Limit, and the time for which clients send against it.
#[derive(Clone, Copy)]
struct Trial {
    limit: u64,
    window_s: u64,
    text: &'static str,
    seconds: u32,
}

/// 40 s are three windows plus the buckets that they add.
const FROM_PACKETS: Trial = Trial { limit: 100, window_s: 10, text: "100/10s", seconds: 40 };
const WITH_LOGS: Trial = Trial { limit: 100, window_s: 60, text: "100/1m", seconds: 180 };

const ADVERSARY: Trial = Trial { limit: 10, window_s: 20, text: "10/20s", seconds: 60 };

/// Client that sends as fast as it can.
struct Asker {
    client: &'static str,
    server: Server,
    over: Over,
    family: Family,
    /// Shell command with placeholders that [`Asker::start`] fills in.
    command: &'static str,
    /// Maximum number of its requests in flight.
    in_flight: u64,
    /// Maximum number of requests in one of its turns.
    in_turn: u64,
}

const WRK: Asker = Asker {
    client: "wrk",
    server: Server::Nginx,
    over: Over::Clear,
    family: Family::V4,
    command: "wrk -t1 -c64 -d{seconds}s http://{address}/ok",
    in_flight: 0,
    in_turn: 1,
};

const WRK_OVER_TLS: Asker =
    Asker { over: Over::Tls13, family: Family::V6, command: "wrk -t1 -c64 -d{seconds}s https://{address}/ok", ..WRK };

const H2LOAD: Asker = Asker {
    client: "h2load -c 20 -m 100",
    server: Server::Nginx,
    over: Over::Http2,
    family: Family::V4,
    command: "for round in $(seq $(({seconds} / 3))); do timeout 3 \
        h2load -n 10000 -c 20 -m 100 https://{address}/ok; done",
    in_flight: 20 * 100,
    in_turn: 100,
};

const AIOQUIC: Asker = Asker {
    client: "aioquic, one by one",
    server: Server::Caddy,
    over: Over::Http3,
    family: Family::V6,
    command: "for round in $(seq $(({seconds} / 5))); do timeout 5 env PYTHONPATH={python} python3 -W ignore \
        {programs}/h3_client.py one-by-one {host} {port} 100000; done",
    // One request, plus those sent before its first log line is read.
    in_flight: 50,
    in_turn: 1,
};

/// Worst known clients. Two run at a time, since there are two sources.
const ADVERSARIES: [[Asker; 2]; 3] = [
    [
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
    [
        Asker {
            client: "20 requests in one record",
            server: Server::Nginx,
            over: Over::Tls13,
            family: Family::V4,
            command: "for round in $(seq $(({seconds} / 4))); do timeout 4 env PYTHONPATH={python} python3 -W ignore \
                {programs}/client.py pipeline https://{address} 10000; done",
            in_flight: 20,
            in_turn: 20,
        },
        Asker {
            client: "one by one, HEADERS of 14 bytes, answers of 17 KB",
            server: Server::Nginx,
            over: Over::Http2,
            family: Family::V6,
            command: "for round in $(seq $(({seconds} / 4))); do timeout 4 env PYTHONPATH={python} python3 -W ignore \
                {programs}/h2_small.py {host} {port} /page/18.png; done",
            in_flight: 100,
            in_turn: 1,
        },
    ],
    [Asker { family: Family::V4, ..AIOQUIC }, Asker { family: Family::V6, ..H2LOAD }],
];

/// Requests of one client, as its server logged them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Enforced {
    pub(super) client: String,
    pub(super) server: String,
    pub(super) over: String,
    pub(super) family: String,
    pub(super) has_log: bool,
    pub(super) limit: String,
    pub(super) seconds: u32,
    pub(super) logged: u64,
    /// Requests in the window that begins with the first one.
    pub(super) in_first: u64,
    /// Promised maximum of `in_first`.
    pub(super) first_max: u64,
    /// Maximum number of requests in any later window. With packets alone, in any window.
    pub(super) in_later_max: u64,
    /// Promised maximum of `in_later_max`.
    pub(super) later_max: u64,
    /// Minimum number of served requests. Fewer mean that the limit is stricter than configured.
    served_min: u64,
}

/// Measures clients with requests that packets can distinguish.
pub(super) fn from_packets(tools: &Tools) -> Result<Vec<Enforced>> {
    run(tools, FROM_PACKETS, &[WRK, WRK_OVER_TLS], false)
}

/// Measures clients that multiplex, with the servers' access logs.
pub(super) fn with_logs(tools: &Tools) -> Result<Vec<Enforced>> {
    run(tools, WITH_LOGS, &[H2LOAD, AIOQUIC], true)
}

/// Results of one client without and with an access log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Adversary {
    pub(super) from_packets: Enforced,
    pub(super) with_log: Enforced,
}

impl Adversary {
    /// Returns the number of served requests as a multiple of the limit.
    pub(super) fn factor(served: u64) -> String {
        #[expect(clippy::cast_precision_loss, reason = "it is shown with one decimal")]
        let factor = served as f64 / ADVERSARY.limit as f64;
        format!("{factor:.1}")
    }

    /// Returns true if the promise for access logs holds. Without a log nothing is promised.
    pub(super) fn holds(&self) -> bool {
        let is_within =
            self.with_log.in_first <= self.with_log.first_max && self.with_log.in_later_max <= self.with_log.later_max;
        is_within && [&self.from_packets, &self.with_log].iter().all(|one| one.logged >= ADVERSARY.limit)
    }
}

/// Measures the worst known clients of each protocol.
pub(super) fn adversaries(tools: &Tools) -> Result<Vec<Adversary>> {
    let mut adversaries = Vec::new();
    for askers in &ADVERSARIES {
        let [without, with] = [false, true].map(|has_log| run(tools, ADVERSARY, askers, has_log));
        let both = without?.into_iter().zip(with?);
        adversaries.extend(both.map(|(from_packets, with_log)| Adversary { from_packets, with_log }));
    }
    Ok(adversaries)
}

/// Runs clients simultaneously, each with its own source.
fn run(tools: &Tools, trial: Trial, askers: &[Asker], has_log: bool) -> Result<Vec<Enforced>> {
    interrupt::check()?;
    let asked: Vec<Server> = Server::ALL.into_iter().filter(|of| askers.iter().any(|one| one.server == *of)).collect();
    let lab = Lab::build(Link::Clean, tools, &asked)?;
    let limiter = Limiter::start(&lab, tools, trial.text, if has_log { &asked } else { &[] })?;
    let names: Vec<_> = askers.iter().map(|asker| format!("{} over {}", asker.client, asker.over)).collect();
    eprintln!("accuracy: enforcement: --limit {}, for {} s: {}", trial.text, trial.seconds, names.join("; "));
    let running = askers.iter().map(|asker| asker.start(&lab, tools, trial)).collect::<Result<Vec<_>>>()?;
    for mut client in running {
        // A refused client may fail; the log shows which of its requests were served.
        client.wait().context("wait for a client")?;
    }
    let mut enforced = Vec::new();
    for asker in askers {
        let path = lab.directory().join(asker.server.log());
        let log = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let one = judge(asker, trial, has_log, times(&log, asker.server, asker.family));
        eprintln!("accuracy: {one}");
        enforced.push(one);
    }
    limiter.stop()?;
    Ok(enforced)
}

impl Asker {
    fn start(&self, lab: &Lab, tools: &Tools, trial: Trial) -> Result<Process> {
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

/// Returns the times of a client's logged requests in milliseconds, sorted.
fn times(log: &str, server: Server, family: Family) -> Vec<u64> {
    let client = family.client().to_string();
    let of_line = |line: &str| -> Option<u64> {
        if server == Server::Caddy {
            let object: Value = serde_json::from_str(line).ok()?;
            let seconds = object["ts"].as_f64().filter(|_| object["request"]["remote_ip"] == *client)?;
            return u64::try_from(Duration::try_from_secs_f64(seconds).ok()?.as_millis()).ok();
        }
        let rest = line.strip_prefix(&client)?.strip_prefix(' ')?;
        rest.split_whitespace().next()?.replace('.', "").parse().ok()
    };
    let mut times: Vec<u64> = log.lines().filter_map(of_line).collect();
    times.sort_unstable();
    times
}

fn judge(asker: &Asker, trial: Trial, has_log: bool, times: Vec<u64>) -> Enforced {
    let Trial { limit, window_s, .. } = trial;
    let window_ms = window_s * 1000;
    let first = times.first().copied().unwrap_or(0);
    let from = |start: u64| times.iter().filter(|&&time| time >= start && time < start + window_ms).count() as u64;
    // End of the first window, plus the bucket in which it begins.
    let later_from = if has_log { first + window_ms + window_ms / 6 } else { first };
    Enforced {
        client: asker.client.to_owned(),
        server: asker.server.to_string(),
        over: asker.over.to_string(),
        family: asker.family.to_string(),
        has_log,
        limit: trial.text.to_owned(),
        seconds: trial.seconds,
        logged: times.len() as u64,
        in_first: from(first),
        first_max: limit + asker.in_flight,
        in_later_max: times.iter().filter(|&&time| time >= later_from).map(|&time| from(time)).max().unwrap_or(0),
        later_max: if !has_log {
            limit
        } else if asker.over == Over::Http3 {
            // HTTP/3 datagrams continue until the lines that exceed the limit are read.
            limit + asker.in_flight
        } else {
            (limit + limit / 10).max(asker.in_turn)
        },
        served_min: if has_log { limit } else { 2 * limit },
    }
}

impl Enforced {
    pub(super) fn holds(&self) -> bool {
        let is_full = self.has_log || self.in_first == self.first_max;
        is_full
            && self.logged >= self.served_min
            && self.in_first <= self.first_max
            && self.in_later_max <= self.later_max
    }
}

impl fmt::Display for Enforced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, over, family, limit, logged, in_first, in_later_max, .. } = self;
        write!(f, "enforcement of {limit}: {client}, {over}, {family}: {logged} in the log, {in_first} in the first ")?;
        write!(f, "window, at most {in_later_max} in a later one")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_in_any_window_breaks_it_and_times_are_read_from_the_log() {
        let burst = |at: u64, count: u64| (0..count).map(move |number| at + number % 50);
        let judged = |times: Vec<u64>| judge(&WRK, FROM_PACKETS, false, times);
        assert!(judged(burst(0, 100).chain(burst(12_000, 100)).collect()).holds());
        assert!(!judged(burst(0, 100).chain(burst(9_000, 1)).chain(burst(12_000, 100)).collect()).holds());
        assert!(!judged(burst(0, 100).collect()).holds(), "never again is too strict");
        assert!(!judged(burst(0, 99).chain(burst(12_000, 101)).collect()).holds());
        let log = "192.0.2.7 12.345 80 HTTP/1.1 200 \"GET / HTTP/1.1\"\n192.0.2.77 1.000 80\n";
        assert_eq!(times(log, Server::Nginx, Family::V4), [12_345]);
        let log = "{\"ts\":12.345678,\"request\":{\"remote_ip\":\"2001:db8::7\"}}\n{\"ts\":1.5,\"request\":{\"remote_ip\":\"::1\"}}\nx\n";
        assert_eq!(times(log, Server::Caddy, Family::V6), [12_345]);
    }

    #[test]
    fn with_a_log_the_first_window_has_what_is_in_flight_and_later_ones_have_not() {
        let burst = |at: u64, count: u64| (0..count).map(move |number| at + number % 50);
        let judged = |times: Vec<u64>| judge(&H2LOAD, WITH_LOGS, true, times);
        assert!(judged(burst(0, 2_100).chain(burst(71_000, 110)).collect()).holds());
        assert!(!judged(burst(0, 2_101).collect()).holds());
        assert!(!judged(burst(0, 2_100).chain(burst(71_000, 111)).collect()).holds());
    }
}
