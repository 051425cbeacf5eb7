//! A whole server. wrk requests small answers from nginx over a veth pair, all on one CPU, with one program or another
//! before the server. The rate of answers shows how much of the CPU is left.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use netlab::{Bpffs, Child, End, Namespace, nginx_with_tls, veth};
use ratelimit_common::admission::BUDGET;
use ratelimit_common::layout::Unit;
use ratelimit_common::source::Family;
use ratelimit_common::time::SECOND_NS;
use ratelimit_datapath::{Datapath as _, XdpMode};
use ratelimit_kernel::{Clock, Events, Kernel, Options, Passed};
use ratelimit_policy::config::{HookChoice, XdpModeChoice};
use ratelimit_policy::desired::WindowForm;
use serde_json::{Value, json};

use super::measure::spread;
use super::peers::{feed, obstacle};
use super::receiver::Kind;
use super::rows::MAX_SOURCES;
use super::wire::on_the_last_cpu;
use crate::lab::is_there;
use crate::program::{limit_over, policy};
use crate::steady::{Steadied, steadied, varied};

const SERVER: &str = "192.0.2.1";
const INTERFACE: &str = "s0";
const CONNECTIONS: &str = "16";
const SECONDS: &str = "2";
/// Limit above every number of requests and packets that are sent.
const HIGH: u64 = 1 << 31;

/// Program before the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Before {
    Nothing,
    /// A program that passes every packet at once, which is the floor.
    Pass,
    Limiter,
    NftMeter,
}

impl Before {
    const ALL: [Self; 4] = [Self::Nothing, Self::Pass, Self::Limiter, Self::NftMeter];

    const fn id(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Pass => "pass",
            Self::Limiter => "limiter",
            Self::NftMeter => "nft_meter",
        }
    }

    fn obstacle(self) -> Option<String> {
        match self {
            Self::Nothing | Self::Pass | Self::Limiter => None,
            Self::NftMeter => obstacle(Kind::NftMeter),
        }
    }
}

/// Requests per second, by the program before the server and by round.
type Answered = BTreeMap<Before, Vec<f64>>;

const ROWS: [(&str, &str, &str); 2] =
    [("wrk_clear", "wrk against nginx, in the clear", "http"), ("wrk_tls", "wrk against nginx, under TLS", "https")];

/// Measures both rows in `rounds` rounds, and repeats them if the floor was not steady.
pub fn measure(rounds: u32, again_max: u32) -> Result<Value> {
    if let Some(missing) = ["wrk", "nginx", "openssl", "ip"].into_iter().find(|program| !is_there(program)) {
        return Ok(json!({ "missing": format!("there is no {missing}") }));
    }
    let site = Site::new()?;
    let positions: Vec<usize> = (0..ROWS.len()).collect();
    let first = site.in_rounds(&positions, rounds)?;
    let all = steadied(
        first,
        again_max,
        |row| row.get(&Before::Pass).map_or(0.0, |pass| varied(pass)),
        |rows, again| {
            eprintln!("servers: the floor was not steady, measured again ({again} of {again_max})");
            site.in_rounds(rows, rounds)
        },
    )?;
    let rows = ROWS.iter().zip(&all).map(|((id, name, _), row)| to_json(id, name, row)).collect::<Result<Vec<_>>>()?;
    Ok(json!({ "rounds": rounds, "connections": CONNECTIONS, "seconds": SECONDS, "rows": rows }))
}

fn to_json(id: &str, name: &str, row: &Steadied<Answered>) -> Result<Value> {
    let pass = row.of.get(&Before::Pass).context("the floor is measured")?;
    let of = |before: Before| match row.of.get(&before) {
        Some(answered) => {
            let percent: Vec<f64> = answered.iter().zip(pass).map(|(answered, pass)| answered / pass * 100.0).collect();
            json!({ "id": before.id(), "answered": spread(answered), "percent_of_pass": spread(&percent) })
        }
        None => json!({ "id": before.id(), "missing": before.obstacle() }),
    };
    Ok(json!({
        "id": id,
        "name": name,
        "receivers": Before::ALL.map(of),
        "floor_varied": row.floor_varied,
        "measured_again": row.measured_again,
    }))
}

/// nginx in one namespace, and another namespace for wrk.
struct Site {
    _nginx: Child,
    client: Namespace,
    server: Namespace,
    bpffs: Bpffs,
    _directory: tempfile::TempDir,
}

impl Site {
    fn new() -> Result<Self> {
        // Everything started from here on stays on that CPU, so that sending, receiving and answering share its time.
        on_the_last_cpu()?;
        let (client, server) = (Namespace::named("wrk")?, Namespace::named("nginx")?);
        let (ours, theirs) = (["192.0.2.2/24"], ["192.0.2.1/24"]);
        veth(
            End { namespace: &client, interface: "c0", addresses: &ours },
            End { namespace: &server, interface: INTERFACE, addresses: &theirs },
        )?;
        let directory = tempfile::tempdir().context("make a directory")?;
        // nginx logs each request, and the log must not cost disk time.
        std::os::unix::fs::symlink("/dev/null", directory.path().join("access.log")).context("link the log")?;
        let at = |port: u16| -> Result<_> { Ok(std::net::SocketAddr::new(SERVER.parse()?, port)) };
        let nginx = nginx_with_tls(&server, directory.path(), &[at(80)?], &[at(443)?])?;
        Ok(Self { _nginx: nginx, client, server, bpffs: Bpffs::mount()?, _directory: directory })
    }

    fn in_rounds(&self, positions: &[usize], rounds: u32) -> Result<Vec<Answered>> {
        let mut all: Vec<Answered> = positions.iter().map(|_| Answered::new()).collect();
        for round in 1..=rounds {
            for (answered, &at) in all.iter_mut().zip(positions) {
                let (_, name, scheme) = ROWS[at];
                eprintln!("servers: round {round} of {rounds}: {name}");
                for before in Before::ALL.into_iter().filter(|before| before.obstacle().is_none()) {
                    let of = self.run(before, scheme).with_context(|| format!("{name}, {}", before.id()))?;
                    answered.entry(before).or_default().push(of);
                }
            }
        }
        Ok(all)
    }

    /// Returns the requests per second with this program before the server.
    fn run(&self, before: Before, scheme: &str) -> Result<f64> {
        match before {
            Before::Nothing => self.ask(scheme),
            Before::Pass => {
                let pinned = self.bpffs.path().join("pass");
                if !pinned.exists() {
                    self.bpffs.pin_passing_program_with_fragments("pass")?;
                }
                let pinned = pinned.to_string_lossy().into_owned();
                self.server.ip(&["link", "set", "dev", INTERFACE, "xdpdrv", "pinned", &pinned])?;
                let answered = self.ask(scheme);
                self.server.ip(&["link", "set", "dev", INTERFACE, "xdpdrv", "off"])?;
                answered
            }
            Before::Limiter => {
                let mut kernel = self.limiter()?;
                let answered = self.ask(scheme)?;
                self.check(&mut kernel, answered)?;
                Ok(answered)
            }
            Before::NftMeter => {
                feed(self.server.command("nft").args(["-f", "-"]), &meter())?;
                let answered = self.ask(scheme);
                self.server.run(&["nft", "flush", "ruleset"])?;
                answered
            }
        }
    }

    /// Returns the requests per second that wrk reports. Fails unless every request was answered.
    fn ask(&self, scheme: &str) -> Result<f64> {
        let url = format!("{scheme}://{SERVER}/");
        let duration = format!("-d{SECONDS}s");
        let output = self.client.run(&["wrk", "-t1", "-c", CONNECTIONS, &duration, &url])?;
        ensure!(output.status.success(), "wrk: {}", output.stderr.trim());
        answered(&output.stdout)
    }

    fn limiter(&self) -> Result<Kernel> {
        let limit = limit_over(HIGH, Unit::Requests, WindowForm::Strict, 6, 600 * SECOND_NS);
        let policy = policy(&[limit]);
        self.server.inside(|| {
            let mut kernel = Kernel::load(&Options {
                pins: None,
                hook: HookChoice::Xdp,
                xdp_mode: XdpModeChoice::Native,
                max_sources: MAX_SOURCES,
                windows_per_source: 1,
                ipv6_family: Family::of_ipv6_prefix(policy.ipv6_prefix),
                clock: Clock::Kernel,
                passed: Passed::On,
                events: Events::On,
                insertions_free: 0,
                insertions_max: BUDGET,
            })?;
            kernel.apply(&policy)?;
            let mode = kernel.attach(INTERFACE)?;
            ensure!(mode == XdpMode::Native.into(), "attached as {mode:?}");
            Ok(kernel)
        })
    }

    /// Fails if the limiter has dropped a packet, or has counted fewer requests than wrk reports as answered.
    fn check(&self, kernel: &mut Kernel, answered: f64) -> Result<()> {
        use ratelimit_common::verdict::{Action, Reason};
        let reading = self.server.inside(|| Ok(kernel.read()?))?;
        let tallies = reading.interfaces.iter().flat_map(|interface| &interface.rules).flat_map(|rule| &rule.0);
        let (mut dropped, mut within) = (0, 0);
        for (reason, tally) in tallies {
            match (reason.action(), reason) {
                (Action::Drop, _) => dropped += tally.packets,
                (Action::Pass, Reason::WithinLimit) => within += tally.packets,
                (Action::Pass, _) => {}
            }
        }
        let seconds: f64 = SECONDS.parse().context("read the seconds")?;
        ensure!(dropped == 0, "the limiter dropped {dropped} packets of clients within their limit");
        ensure!(within as f64 >= answered * seconds * 0.99, "of {} requests {within} were counted", answered * seconds);
        Ok(())
    }
}

/// Returns nftables rules with a limit for each source that is never reached.
fn meter() -> String {
    let mut script = String::from(
        "table netdev flood {\nset sources { type ipv4_addr; size 65536; flags dynamic, timeout; timeout 1h; }\n",
    );
    // Writing to a String cannot fail.
    let _infallible = write!(
        script,
        "chain ingress {{ type filter hook ingress device \"{INTERFACE}\" priority 0; policy accept;\n\
         tcp dport {{ 80, 443 }} update @sources {{ ip saddr limit rate over {HIGH}/hour burst 1000000 packets }} drop\n}}\n}}\n"
    );
    script
}

/// Returns the requests per second of wrk's report.
fn answered(report: &str) -> Result<f64> {
    for trouble in ["Socket errors", "Non-2xx"] {
        ensure!(!report.contains(trouble), "not every request was answered:\n{report}");
    }
    let line = report.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"));
    let number = line.and_then(|number| number.trim().parse().ok()).filter(|&number: &f64| number > 0.0);
    number.with_context(|| format!("wrk does not say how many requests were answered:\n{report}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "Running 2s test @ http://192.0.2.1/\n  1 threads and 16 connections\n  81234 requests in 2.00s, 12.47MB read\n\
                          Requests/sec:  40617.12\nTransfer/sec:      6.23MB\n";

    #[test]
    fn a_report_says_how_many_requests_were_answered() {
        assert!((answered(REPORT).unwrap() - 40_617.12).abs() < 1e-9);
    }

    #[test]
    fn a_report_with_errors_or_without_a_number_is_none() {
        assert!(answered(&format!("{REPORT}  Socket errors: connect 0, read 0, write 0, timeout 3\n")).is_err());
        assert!(answered(&format!("{REPORT}  Non-2xx or 3xx responses: 5\n")).is_err());
        assert!(answered("Requests/sec:      0.00\n").is_err());
        assert!(answered("").is_err());
    }
}
