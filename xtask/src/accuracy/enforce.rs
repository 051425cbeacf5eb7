//! Enforcement in the server's terms: the log of a client that sends as fast as it can shows as many requests as the
//! limit allows, and not one more in any window.

mod askers;

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::lab::{Family, Lab};
use super::limiter::Limiter;
use super::programs::Tools;
use super::rows::{Link, Server};
use crate::interrupt;
use askers::{ADVERSARIES, ADVERSARY_LIMIT, AIOQUIC, Asker, FROM_PACKETS, H2LOAD, Trial, WITH_LOGS, WRK, WRK_OVER_TLS};

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
        let factor = served as f64 / ADVERSARY_LIMIT as f64;
        format!("{factor:.1}")
    }

    /// Returns true if the promise for access logs holds. Without a log nothing is promised.
    pub(super) fn holds(&self) -> bool {
        let is_within =
            self.with_log.in_first <= self.with_log.first_max && self.with_log.in_later_max <= self.with_log.later_max;
        is_within && [&self.from_packets, &self.with_log].iter().all(|one| one.logged >= ADVERSARY_LIMIT)
    }
}

/// Measures the worst known clients of each protocol that `is_chosen` by their descriptions.
pub(super) fn adversaries(tools: &Tools, is_chosen: impl Fn(&str) -> bool) -> Result<Vec<Adversary>> {
    let mut adversaries = Vec::new();
    for (trial, askers) in ADVERSARIES {
        let askers: Vec<Asker> = askers.iter().filter(|asker| is_chosen(&asker.to_string())).copied().collect();
        if askers.is_empty() {
            continue;
        }
        let [without, with] = [false, true].map(|has_log| run(tools, trial, &askers, has_log));
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

/// Returns the times of a client's logged requests in milliseconds, sorted.
fn times(log: &str, server: Server, family: Family) -> Vec<u64> {
    let client = family.client().to_string();
    let of_line = |line: &str| -> Option<u64> {
        if server.logs_json() {
            let object: Value = serde_json::from_str(line).ok()?;
            let address: Option<IpAddr> = object["request"]["remote_ip"].as_str()?.parse().ok();
            let seconds = object["ts"].as_f64().filter(|_| address == Some(family.client()))?;
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
        } else if asker.is_hidden {
            // Its requests continue until the lines that exceed the limit are charged.
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
