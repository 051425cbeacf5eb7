//! Results of the demo as text.

use std::fmt::Write as _;
use std::time::Duration;

use super::client::Outcome;
use super::phase::Measured;

/// Returns two tables: the clients, and the server's side.
pub(super) fn of(phases: &[Measured]) -> String {
    let mut text = format!(
        "{:<12}{:<8}{:>9}{:>10}{:>8}{:>12}{:>12}\n",
        "phase", "client", "tried", "answered", "lost", "median", "p99"
    );
    for Measured { phase, good, bad, .. } in phases {
        row(&mut text, phase.name(), "good", good);
        row(&mut text, "", phase.other(), bad);
    }
    text.push('\n');
    // Writing to a String cannot fail.
    let _always = writeln!(
        text,
        "{:<12}{:>14}   limiter's count of both clients' packets\n{:<12}{:>14}{:>12}{:>12}{:>14}",
        "", "web server", "phase", "CPU time", "admitted", "dropped", "would drop"
    );
    for Measured { phase, web_cpu, stats, .. } in phases {
        let cpu = web_cpu.map_or_else(|| "-".to_owned(), |cpu| format!("{:.2} s", cpu.as_secs_f64()));
        let [admitted, dropped, would_drop] = match stats {
            Some(stats) => [stats.admitted, stats.dropped, stats.would_drop].map(|count| count.to_string()),
            None => ["-", "-", "-"].map(str::to_owned),
        };
        let _always = writeln!(text, "{:<12}{cpu:>14}{admitted:>12}{dropped:>12}{would_drop:>14}", phase.name());
    }
    text
}

/// Explains the column p99 of the good client, and the build of the demo.
pub(super) const NOTE: &str = "\
The good client sends few requests in a phase, so its p99 is one of its slowest answers. It varies between runs.
The BPF program judges each packet, and is optimised. The daemon, which judges none, is not optimised here.
docs/PERFORMANCE.md has what the program takes for a packet.
";

fn row(text: &mut String, phase: &str, client: &str, outcome: &Outcome) {
    let (tried, answered, lost) = (outcome.tried, outcome.answered(), outcome.lost());
    let [median, p99] = [50, 99].map(|percent| outcome.latency(percent).map_or_else(|| "-".to_owned(), milliseconds));
    let _always = writeln!(text, "{phase:<12}{client:<8}{tried:>9}{answered:>10}{lost:>8}{median:>12}{p99:>12}");
}

fn milliseconds(latency: Duration) -> String {
    format!("{:.2} ms", latency.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::phase::Phase;

    #[test]
    fn columns_stand_under_their_headings() {
        let measured = Measured {
            phase: Phase::NoLimiter,
            good: Outcome::of(50, 50),
            bad: Outcome::of(40_000, 39_999),
            bad_seen_by_web: 39_999,
            web_cpu: Some(Duration::from_millis(2_340)),
            stats: None,
            limiter: None,
        };
        let text = of(&[measured]);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1..3].iter().all(|line| line.len() == lines[0].len()), "{text}");
        assert!(text.contains("2.34 s") && text.contains("39999       1"), "{text}");
    }
}
