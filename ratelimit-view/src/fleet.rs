//! Output of `ratelimitd fleet`, and statements about the fleet in other commands. Pure: a function of the daemon's
//! report.

use std::fmt::Write as _;

use super::stats::wrap;
use super::{counted, limit, list, number, table, wait};
use ratelimit_report::fleet::{Fleet, FleetHost, FleetLimit, FleetReport, FleetState, Summed};

/// Maximum width of a sentence in columns.
const WIDTH: usize = 100;

/// Instructions to turn the fleet on.
const OFF: &str = "\
No fleet: this host holds its limits by itself.
To hold them together with other hosts, give all of them one Redis or Valkey and one secret:
  [fleet]
  url = \"rediss://192.0.2.1:6379\"
  secret_file = \"/etc/ratelimitd/fleet.secret\"
Then `ratelimitd check-config` says what follows, and `ratelimitd reload` turns it on.
";

/// Formats the whole report: this host's state, the hosts, the limits, the counters.
pub fn fleet(report: &FleetReport) -> String {
    let of = &report.fleet;
    if of.state == FleetState::Off {
        return OFF.to_owned();
    }
    let mut out = format!("{}\n", summary(of));
    for sentence in attention(of) {
        out += &wrapped(&sentence);
    }
    if !report.hosts.is_empty() {
        let head = ["HOST", "LAST HEARD", "CLOCK", "VERSION", "ADMITTED, 1m", "ID"];
        out += "\n";
        out += &table(head, &[1, 2, 4], report.hosts.iter().map(host));
    }
    if !of.limits.is_empty() {
        out += "\n";
        out += &of.limits.iter().map(|limit| shared_limit(limit, of.hosts)).collect::<String>();
    }
    out + "\n" + &counters(of)
}

/// Returns one line on the state: `Fleet web: connected, 4 hosts, last exchange 0.4 s ago`.
pub(super) fn summary(of: &Fleet) -> String {
    let name = if of.name.is_empty() { String::new() } else { format!(" {}", of.name) };
    let state = match of.state {
        FleetState::Connected => "connected",
        FleetState::Degraded => "DEGRADED",
        FleetState::Away => "AWAY",
        FleetState::Off => "off",
    };
    let last = of
        .last_exchange_seconds
        .map_or_else(|| "no exchange yet".to_owned(), |ago| format!("last exchange {}", self::ago(ago)));
    format!("Fleet{name}: {state}, {}, {last}", counted(of.hosts, "host"))
}

/// Returns the problems that need attention, one sentence each.
pub(super) fn attention(of: &Fleet) -> Vec<String> {
    let means = match of.state {
        FleetState::Connected | FleetState::Off => None,
        FleetState::Degraded => Some(("degraded", degraded(of))),
        FleetState::Away => Some(("away", "each host holds its limits by itself".to_owned())),
    };
    let sentence = |(state, means): (&str, String)| {
        let since = of.since.map_or_else(String::new, |since| format!(" since {}", list::instant(since)));
        let says = of.store_says.as_ref().map(|says| format!("it says: {says}"));
        let why: Vec<&str> = [&of.trouble, &of.error, &says].into_iter().filter_map(|of| of.as_deref()).collect();
        let why = if why.is_empty() { String::new() } else { format!("; {}", why.join("; ")) };
        format!("FLEET: {state}{since}: {means}{why}")
    };
    let doubled = of.doubled.then(|| {
        "FLEET: another machine has a copy of this host's state, and both count as one: `ratelimitd detach` there, then \
         start it again"
            .to_owned()
    });
    let misfit = of.trouble.as_deref().filter(|_| of.state == FleetState::Connected);
    let misfit = misfit.map(|trouble| format!("FLEET: {trouble}"));
    means.map(sentence).into_iter().chain(misfit).chain(doubled).collect()
}

/// Describes the functions that a degraded fleet lacks.
fn degraded(of: &Fleet) -> String {
    let alone: Vec<&str> = of.limits.iter().filter(|of| !of.summed).map(|of| of.text.as_str()).collect();
    match alone.as_slice() {
        [] if of.slow => "reports take longer, and the bound is higher".to_owned(),
        [] => "some exchanges with the store fail, and their counts are missing from the sums".to_owned(),
        alone => format!("each host holds {} by itself", alone.join(" and ")),
    }
}

fn host(of: &FleetHost) -> [String; 6] {
    let this = if of.this { " (this one)" } else { "" };
    [
        format!("{}{this}", of.name),
        ago(of.heard_seconds_ago),
        of.clock_ahead_seconds.map_or_else(|| "-".to_owned(), |ahead| format!("{ahead:+.3} s")),
        of.version.clone(),
        number(of.admitted_last_minute),
        of.id.clone(),
    ]
}

/// Describes a shared limit: the summed traffic, the hosts that share it if not all do, and the current bound.
fn shared_limit(of: &FleetLimit, hosts: u64) -> String {
    let sum = match of.sum {
        Summed::Verified => "established connections",
        Summed::All => "all traffic",
    };
    let (held, bound) = if of.summed {
        (format!("summed over {sum}"), of.bound_words.clone())
    } else {
        ("NOT SUMMED, each host by itself".to_owned(), format!("at most {}", number(of.bound)))
    };
    let bound = wrapped(&format!("  the fleet admits per source {bound}"));
    let with = match of.shared_with {
        Some(0) => "; NO OTHER HOST HAS IT".to_owned(),
        Some(some) if some + 1 < hosts => format!("; ONLY {some} OF {} OTHER HOSTS HAVE IT", hosts - 1),
        Some(_) | None => String::new(),
    };
    format!("Rule {}: {}, {held}{with}\n{bound}", of.rule, limit(&of.limit))
}

/// Wraps a sentence at [`WIDTH`] columns.
fn wrapped(sentence: &str) -> String {
    wrap(sentence, WIDTH).iter().map(|line| format!("{line}\n")).collect()
}

fn counters(of: &Fleet) -> String {
    let failures: Vec<String> = of.failures.iter().map(|(why, count)| format!("{} {why}", number(*count))).collect();
    let failures = if failures.is_empty() { String::new() } else { format!(" ({})", failures.join(", ")) };
    let round_trip = of.round_trip_seconds.zip(of.delay_seconds).map_or_else(String::new, |(trip, delay)| {
        format!("Store: answered within {:.1} ms in the last 30 s; a report takes up to {delay:.2} s\n", trip * 1000.0)
    });
    let mut out = round_trip;
    out += &format!("Exchanges: {} answered, {} failed{failures}\n", number(of.rounds), number(of.rounds_failed));
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "Reports: {}; {} lost for lack of room, so sums are too small; {} reported now",
        number(of.reports),
        number(of.reports_lost),
        counted(of.sources, "source"),
    );
    let odd = [
        (of.garbage, "impossible sum", "ignored: who else can write to the store?"),
        (of.late, "late answer", "passed over"),
        (of.store_lost, "time", "the store had lost its counts and received them again"),
        (of.messages_lost, "message", "between hosts lost for lack of room"),
    ];
    for (count, one, what) in odd.into_iter().filter(|(count, ..)| *count > 0) {
        let _ = writeln!(out, "  {} {what}", counted(count, one));
    }
    out
}

/// Formats an age: `0.4 s ago`, `2 min 13 s ago`.
pub(super) fn ago(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.1} s ago") } else { format!("{} ago", wait(seconds)) }
}

#[cfg(test)]
mod tests;
