//! The limit in the server's terms: of a client that asks as fast as it can, the log shows as many requests as the limit
//! allows, and not one more in any window.

use std::fmt;
use std::fs;
use std::process::{Child as Process, Stdio};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::lab::{Family, Lab};
use super::limiter::Limiter;
use super::programs::Tools;
use super::rows::{Link, Over, Server};

const LIMIT: u64 = 100;
const WINDOW_MS: u64 = 10_000;
const LIMIT_TEXT: &str = "100/10s";
/// Three windows and what buckets add to them.
const SECONDS: u32 = 40;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Enforced {
    pub(super) over: String,
    pub(super) family: String,
    pub(super) logged: u64,
    /// In the window that begins with the first request.
    pub(super) in_first: u64,
    /// The most in any window of that length.
    pub(super) in_any_max: u64,
    /// How often the client got as many as the limit allows.
    pub(super) windows_filled: u64,
}

/// Both at once: a client each, of a source of its own.
pub(super) fn run(tools: &Tools) -> Result<Vec<Enforced>> {
    let lab = Lab::build(Link::Clean, tools, &[Server::Nginx])?;
    let limiter = Limiter::start(&lab, tools, LIMIT_TEXT)?;
    eprintln!("accuracy: enforcement: --limit {LIMIT_TEXT}, wrk with 64 connections for {SECONDS} s, clear and TLS");
    let runs = [(Over::Clear, Family::V4), (Over::Tls13, Family::V6)];
    let mut clients = Vec::new();
    for (over, family) in runs {
        clients.push(start(&lab, over, family)?);
    }
    for mut client in clients {
        let status = client.wait().context("wait for wrk")?;
        ensure!(status.success(), "wrk ended with {status}");
    }
    let path = lab.directory().join(Server::Nginx.log());
    let log = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let enforced: Vec<_> = runs.map(|(over, family)| judge(over, family, times(&log, family))).into();
    for one in &enforced {
        eprintln!("accuracy: {one}");
    }
    limiter.stop()?;
    Ok(enforced)
}

fn start(lab: &Lab, over: Over, family: Family) -> Result<Process> {
    let scheme = if over == Over::Clear { "http" } else { "https" };
    let url = format!("{scheme}://{}/ok", family.server_with(Server::Nginx.port(over)));
    let mut command = lab.client.command("wrk");
    command.args(["-t1", "-c64", &format!("-d{SECONDS}s"), &url]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("start wrk")
}

/// When a client's requests were logged, in milliseconds, in order.
fn times(log: &str, family: Family) -> Vec<u64> {
    let start = format!("{} ", family.client());
    let of_client = log.lines().filter_map(|line| line.strip_prefix(&start)?.split_whitespace().next());
    let mut times: Vec<u64> = of_client.filter_map(|time| time.replace('.', "").parse().ok()).collect();
    times.sort_unstable();
    times
}

fn judge(over: Over, family: Family, times: Vec<u64>) -> Enforced {
    let from = |start: u64| times.iter().filter(|&&time| time >= start && time < start + WINDOW_MS).count() as u64;
    let in_first = times.first().map_or(0, |&first| from(first));
    let in_any_max = times.iter().map(|&time| from(time)).max().unwrap_or(0);
    let logged = times.len() as u64;
    let (over, family) = (over.to_string(), family.to_string());
    Enforced { over, family, logged, in_first, in_any_max, windows_filled: logged / LIMIT }
}

impl Enforced {
    pub(super) fn holds(&self) -> bool {
        self.in_first == LIMIT && self.in_any_max == LIMIT && self.windows_filled >= 2
    }
}

impl fmt::Display for Enforced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { over, family, logged, in_first, in_any_max, .. } = self;
        write!(
            f,
            "enforcement of {LIMIT_TEXT}: {over}, {family}: {logged} in the log, {in_first} in the first 10 s, "
        )?;
        write!(f, "at most {in_any_max} in any 10 s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_in_any_window_breaks_it_and_times_are_read_from_the_log() {
        let burst = |at: u64, count: u64| (0..count).map(move |number| at + number % 50);
        let judged = |times: Vec<u64>| judge(Over::Clear, Family::V4, times);
        assert!(judged(burst(0, 100).chain(burst(12_000, 100)).collect()).holds());
        assert!(!judged(burst(0, 100).chain(burst(9_000, 1)).chain(burst(12_000, 100)).collect()).holds());
        assert!(!judged(burst(0, 100).collect()).holds(), "never again is too strict");
        let log = "192.0.2.7 12.345 80 HTTP/1.1 200 \"GET / HTTP/1.1\"\n192.0.2.77 1.000 80\n";
        assert_eq!(times(log, Family::V4), [12_345]);
    }
}
