//! Goals for the costs, and checks whether they are met.

use super::measured::{Flood, Floods, Growth, Reading, Readings, Report, Row, Server, Servers};

/// Maximum cost in ns above the empty program for a packet of a source over its limit. Applies to rows of the program
/// alone with one limit and without a goal of their own.
pub(super) const OVER_LIMIT_NS_MAX: f64 = 100.0;
/// Maximum costs in ns above the empty program, for rows of the program alone.
const PROGRAM_GOALS: [(&str, f64); 14] = [
    ("not IP", 15.0),
    ("not a protected port", 25.0),
    ("exempt, 1 prefix", 70.0),
    ("not counted: ACK, where requests are", 35.0),
    ("not counted: data, where requests are", 80.0),
    ("not counted: data within TLS records, where requests are", 80.0),
    ("admitted: a request, in the clear", 250.0),
    ("admitted: a request, under TLS", 250.0),
    ("admitted: a request, under TLS, as many as a log says", 255.0),
    ("over the limit: requests, in the clear", 120.0),
    ("over the limit: requests, under TLS", 120.0),
    ("over the limit: packets", 35.0),
    ("over the limit: IPv6 /128", 60.0),
    ("admitted", 150.0),
];
/// Minimum requests that a server answers behind the limiter, in percent of those behind a bare `XDP_PASS`.
pub(super) const ANSWERED_PERCENT_MIN: f64 = 97.0;
/// Maximum extra cost per packet in percent while all windows are read.
pub(super) const READING_MORE_PERCENT_MAX: f64 = 5.0;
/// Maximum time to read a million windows, in milliseconds.
pub(super) const READING_MS_MAX: f64 = 500.0;
/// Receivers that goals with a ratio refer to.
const PEERS: [&str; 2] = ["nft_meter", "hashlimit"];

/// Goal of one row.
enum Goal {
    /// Maximum cost in ns above the bare program.
    AtMost { above_ns: f64 },
    /// Maximum cost in ns above the bare program, and minimum ratio of each peer's cost to it.
    Beside { above_ns: f64, ratio: f64 },
    /// Maximum cost in ns above the floor, and maximum share of each peer's cost above its own floor.
    Within { above_ns: f64, share: f64 },
    /// Maximum factor of another row's cost above the bare program.
    Factor { of: &'static str, factor: f64 },
    /// Maximum cost in ns above another row's.
    More { of: &'static str, ns: f64 },
}

const GOALS: [(&str, Goal); 11] = [
    ("one_source", Goal::Beside { above_ns: 35.0, ratio: 15.0 }),
    ("sources_65536", Goal::Beside { above_ns: 80.0, ratio: 12.0 }),
    ("forged", Goal::Beside { above_ns: 90.0, ratio: 8.0 }),
    ("v6_forged", Goal::AtMost { above_ns: 90.0 }),
    ("forged_udp", Goal::AtMost { above_ns: 90.0 }),
    ("forged_denied", Goal::More { of: "forged_unlisted", ns: 15.0 }),
    ("rules_64", Goal::Factor { of: "one_source", factor: 1.1 }),
    ("within", Goal::Within { above_ns: 90.0, share: 0.5 }),
    ("within_65536", Goal::Within { above_ns: 250.0, share: 1.0 }),
    ("new_sources", Goal::AtMost { above_ns: 90.0 }),
    ("exempt_100000", Goal::More { of: "within", ns: 10.0 }),
];

/// Goal in words, and whether it is met.
#[derive(Debug, PartialEq)]
pub(super) struct Outcome {
    pub(super) asked: String,
    pub(super) is_met: bool,
}

/// Returns the outcomes of all goals of a row. A goal that refers to an unmeasured peer is not met. A goal that refers
/// to an unmeasured row is left out, because the user chooses the rows.
pub(super) fn of(row: &Flood, floods: &Floods) -> Vec<Outcome> {
    let above = |row: &Flood| row.of("limiter").map(|(_, above)| above.median);
    let (Some(ours), Some((_, goal))) = (above(row), GOALS.iter().find(|(id, _)| *id == row.id)) else {
        return Vec::new();
    };
    let other = |id: &str| floods.rows.iter().find(|row| row.id == id).and_then(above);
    let at_most = |above_ns: f64, of: &str| Outcome {
        asked: format!("at most {above_ns} ns above {of}"),
        is_met: ours <= above_ns,
    };
    match *goal {
        Goal::AtMost { above_ns } => vec![at_most(above_ns, "bare")],
        Goal::Beside { above_ns, ratio } => {
            let ratios = PEERS.iter().map(|&peer| {
                let theirs = row.of(peer).map(|(_, theirs)| theirs.median);
                beside(row, peer, format!("{ratio}x cheaper than {peer}"), theirs.map(|theirs| theirs >= ratio * ours))
            });
            std::iter::once(at_most(above_ns, "bare")).chain(ratios).collect()
        }
        Goal::Within { above_ns, share } => {
            let shares = PEERS.iter().map(|&peer| {
                let than = if share < 1.0 { format!("{:.0} % of {peer}", share * 100.0) } else { peer.to_owned() };
                let theirs = row.above_floor(peer).map(|theirs| theirs.median);
                beside(row, peer, format!("less than {than}"), theirs.map(|theirs| ours < share * theirs))
            });
            std::iter::once(at_most(above_ns, "the floor")).chain(shares).collect()
        }
        Goal::Factor { of, factor } => {
            let asked = format!("at most {:.0} % more than {of}", (factor - 1.0) * 100.0);
            other(of).map(|other| Outcome { asked, is_met: ours <= other * factor }).into_iter().collect()
        }
        Goal::More { of, ns } => {
            let asked = format!("at most {ns} ns more than {of}");
            other(of).map(|other| Outcome { asked, is_met: ours <= other + ns }).into_iter().collect()
        }
    }
}

/// Returns the outcome of a comparison with a peer. Without a measurement of the peer the goal is not met, and the text
/// says why.
fn beside(row: &Flood, peer: &str, asked: String, is_met: Option<bool>) -> Outcome {
    match is_met {
        Some(is_met) => Outcome { asked, is_met },
        None => {
            let why = row.missing(peer).unwrap_or("it was not measured");
            Outcome { asked: format!("{asked} ({why})"), is_met: false }
        }
    }
}

/// Returns the goal of a row of the program alone, and whether it is met. None without a goal.
pub(super) fn of_program(row: &Row) -> Option<(f64, bool)> {
    let own = PROGRAM_GOALS.iter().find(|(name, _)| *name == row.name).map(|(_, ns)| *ns);
    let of_refusals = (row.limits == 1 && row.verdict == "over_limit").then_some(OVER_LIMIT_NS_MAX);
    own.or(of_refusals).map(|most| (most, row.above_bare_ns.median <= most))
}

/// Returns true if a server answers nearly as many requests behind the limiter as behind a bare `XDP_PASS`.
pub(super) fn is_nearly_as_fast(row: &Server) -> bool {
    row.of("limiter").is_some_and(|(_, percent)| percent.median >= ANSWERED_PERCENT_MIN)
}

/// Returns true if reading all windows barely slows packets down.
pub(super) fn is_undisturbed(case: &Reading) -> bool {
    case.more_percent.median <= READING_MORE_PERCENT_MAX
}

/// Returns true if all windows are read fast enough.
pub(super) fn is_read_in_time(case: &Reading) -> bool {
    case.took_ms.median <= READING_MS_MAX
}

/// Returns the missed goals in words.
pub(super) fn missed(report: &Report) -> Vec<String> {
    let mut missed = Vec::new();
    for row in report.program.iter().flat_map(|program| &program.rows) {
        if let Some((most, false)) = of_program(row) {
            missed.push(format!("{}: {} ns above the empty program, not {most}", row.name, row.above_bare_ns.median));
        }
    }
    if let Some(Growth { reading: Readings::Measured { cases, .. }, .. }) = &report.growth {
        for case in cases {
            let name = format!("{}, while all windows are read", case.name);
            if !is_undisturbed(case) {
                missed.push(format!("{name}: {:.1} % more", case.more_percent.median));
            }
            if !is_read_in_time(case) {
                missed.push(format!("{name}: they take {:.0} ms", case.took_ms.median));
            }
        }
    }
    match &report.servers {
        Some(Servers::Measured { rows, .. }) => {
            for row in rows.iter().filter(|row| !is_nearly_as_fast(row)) {
                let percent = row.of("limiter").map_or(0.0, |(_, percent)| percent.median);
                missed.push(format!("{}: {percent:.1} % of a bare XDP_PASS, not {ANSWERED_PERCENT_MIN} %", row.name));
            }
        }
        Some(Servers::Missing { missing: why }) => missed.push(format!("whole servers: {why}")),
        None => {}
    }
    if let Some(floods) = &report.floods {
        for row in &floods.rows {
            let outcomes = of(row, floods).into_iter().filter(|outcome| !outcome.is_met);
            missed.extend(outcomes.map(|outcome| format!("{}: {}", row.name, outcome.asked)));
        }
    }
    missed
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::measured::{self, Cpus, Floor, ProgramCost, Receiver, Row, Spread, Steadiness, flood};
    use super::*;

    fn floods(rows: Vec<Flood>) -> Floods {
        Floods {
            kernel: String::new(),
            processor: String::new(),
            clock: String::new(),
            rounds: 9,
            programs: Vec::new(),
            rows,
        }
    }

    fn missed_of(rows: Vec<Flood>) -> Vec<String> {
        missed(&Report { floods: Some(floods(rows)), ..Report::default() })
    }

    #[test]
    fn a_goal_is_met_up_to_its_edge_and_no_further() {
        let row = |ours, meter| flood("one_source", &[("limiter", ours), ("nft_meter", meter), ("hashlimit", 999.0)]);
        assert_eq!(missed_of(vec![row(35.0, 525.0)]), [""; 0]);
        assert_eq!(missed_of(vec![row(35.1, 600.0)]), ["one_source: at most 35 ns above bare"]);
        assert_eq!(missed_of(vec![row(35.0, 524.9)]), ["one_source: 15x cheaper than nft_meter"]);
    }

    #[test]
    fn rows_are_held_against_the_rows_that_they_differ_from() {
        let rows = |rules, exempt| {
            let row = |id, above| flood(id, &[("limiter", above), ("nft_meter", 999.0), ("hashlimit", 999.0)]);
            vec![row("one_source", 30.0), row("rules_64", rules), row("within", 50.0), row("exempt_100000", exempt)]
        };
        assert_eq!(missed_of(rows(33.0, 60.0)), [""; 0]);
        assert_eq!(missed_of(rows(33.1, 60.0)), ["rules_64: at most 10 % more than one_source"]);
        assert_eq!(missed_of(rows(33.0, 60.1)), ["exempt_100000: at most 10 ns more than within"]);
    }

    #[test]
    fn reading_is_to_hold_up_no_packet_and_to_be_done_in_time() {
        let spread = |median| Spread { median, min: median, max: median };
        let missed_with = |more_percent, took_ms| {
            let case = Reading {
                name: "one".into(),
                alone_ns: spread(200.0),
                beside_ns: spread(210.0),
                more_percent: spread(more_percent),
                took_ms: spread(took_ms),
            };
            let reading = Readings::Measured { sources: 1 << 20, cases: vec![case] };
            let cpus = Cpus::Missing { missing: String::new() };
            let growth = Growth { rounds: 9, points: Vec::new(), cpus, reading };
            missed(&Report { growth: Some(growth), ..Report::default() })
        };
        assert_eq!(missed_with(5.0, 500.0), [""; 0]);
        assert_eq!(missed_with(5.1, 500.0), ["one, while all windows are read: 5.1 % more"]);
        assert_eq!(missed_with(5.0, 500.6), ["one, while all windows are read: they take 501 ms"]);
    }

    #[test]
    fn a_row_is_held_against_nothing_that_was_not_measured() {
        assert_eq!(missed_of(vec![flood("rules_64", &[("limiter", 500.0)])]), [""; 0]);
    }

    #[test]
    fn a_peer_that_is_missing_is_a_goal_that_is_not_met() {
        let mut row = flood("one_source", &[("limiter", 30.0), ("nft_meter", 999.0)]);
        assert_eq!(missed_of(vec![row.clone()]), ["one_source: 15x cheaper than hashlimit (it was not measured)"]);
        let missing = measured::Outcome::Missing { missing: "there is no iptables".into() };
        row.receivers.push(Receiver { id: "hashlimit".into(), outcome: missing });
        assert_eq!(missed_of(vec![row]), ["one_source: 15x cheaper than hashlimit (there is no iptables)"]);
        let alone = missed_of(vec![flood("within_65536", &[("limiter", 30.0)])]);
        assert_eq!(alone.len(), 2, "{alone:?}");
    }

    #[test]
    fn within_limit_rows_are_compared_above_each_peers_own_floor() {
        let missed_with = |id, ours, meter, hashlimit| {
            let mut row = flood(id, &[("limiter", ours), ("nft_meter", 999.0), ("hashlimit", 999.0)]);
            row.floor = Floor::Own;
            for (peer, above) in [("nft_meter", meter), ("hashlimit", hashlimit)] {
                let receiver = row.receivers.iter_mut().find(|receiver| receiver.id == peer).unwrap();
                if let measured::Outcome::Measured { above_floor_ns, .. } = &mut receiver.outcome {
                    *above_floor_ns = Some(Spread { median: above, min: above, max: above });
                }
            }
            missed_of(vec![row])
        };
        assert_eq!(missed_with("within", 90.0, 180.1, 200.0), [""; 0]);
        assert_eq!(missed_with("within", 90.0, 180.0, 200.0), ["within: less than 50 % of nft_meter"]);
        assert_eq!(missed_with("within", 90.1, 300.0, 300.0), ["within: at most 90 ns above the floor"]);
        assert_eq!(missed_with("within_65536", 250.0, 250.1, 251.0), [""; 0]);
        assert_eq!(missed_with("within_65536", 250.0, 300.0, 250.0), ["within_65536: less than hashlimit"]);
        assert_eq!(missed_with("new_sources", 90.0, 0.0, 0.0), [""; 0]);
        assert_eq!(missed_with("new_sources", 90.1, 0.0, 0.0), ["new_sources: at most 90 ns above bare"]);
    }

    #[test]
    fn a_server_is_to_answer_97_percent_of_what_it_answers_behind_a_bare_pass() {
        let spread = |median| Spread { median, min: median, max: median };
        let missed_with = |percent| {
            let outcome =
                measured::AnswersOutcome::Measured { answered: spread(9.0), percent_of_pass: spread(percent) };
            let receivers = vec![measured::Answering { id: "limiter".into(), outcome }];
            let name = "wrk".to_owned();
            let row = Server { id: name.clone(), name, receivers, steadiness: Steadiness::default() };
            let (connections, seconds) = ("16".to_owned(), "2".to_owned());
            let servers = Servers::Measured { rounds: 9, connections, seconds, rows: vec![row] };
            missed(&Report { servers: Some(servers), ..Report::default() })
        };
        assert_eq!(missed_with(97.0), [""; 0]);
        assert_eq!(missed_with(96.94), ["wrk: 96.9 % of a bare XDP_PASS, not 97 %"]);
        let none = Servers::Missing { missing: "there is no wrk".into() };
        assert_eq!(missed(&Report { servers: Some(none), ..Report::default() }), ["whole servers: there is no wrk"]);
    }

    #[test]
    fn every_goal_is_of_a_row_that_is_measured() {
        let rows = include_str!("../../../integration-test/src/flood/rows.rs");
        let alone = include_str!("../../../integration-test/src/cost/rows.rs");
        for (name, _) in PROGRAM_GOALS {
            assert!(alone.contains(&format!("\"{name}\"")), "no row {name}");
        }
        for (id, _) in &GOALS {
            assert!(rows.contains(&format!("\"{id}\"")), "no row {id}");
        }
    }

    #[test]
    fn alone_a_row_is_asked_its_own_goal_and_refusing_by_one_limit_the_common_one() {
        let missed_of = |name: &str, verdict: &str, limits, median| {
            let spread = Spread { median, min: median, max: median };
            let row = Row {
                name: name.into(),
                verdict: verdict.into(),
                limits,
                ns: spread,
                above_bare_ns: spread,
                steadiness: Steadiness::default(),
            };
            let program = ProgramCost {
                kernel: String::new(),
                processor: String::new(),
                rounds: 1,
                repeat: 1,
                verified_instructions: 1,
                translated_bytes: 8,
                jited_bytes: 8,
                functions: BTreeMap::new(),
                at_tcx: measured::Size::default(),
                bare_ns: spread,
                rows: vec![row],
            };
            missed(&Report { program: Some(program), ..Report::default() }).len()
        };
        let missed_with = |verdict: &str, limits, median| missed_of("a row", verdict, limits, median);
        for (name, most) in PROGRAM_GOALS {
            assert_eq!((missed_of(name, "over_limit", 1, most), missed_of(name, "over_limit", 1, most + 1.0)), (0, 1));
        }
        assert_eq!(missed_with("over_limit", 1, OVER_LIMIT_NS_MAX), 0);
        assert_eq!(missed_with("over_limit", 1, OVER_LIMIT_NS_MAX + 1.0), 1);
        assert_eq!(missed_with("within_limit", 1, OVER_LIMIT_NS_MAX + 1.0), 0);
        assert_eq!(missed_with("over_limit", 2, OVER_LIMIT_NS_MAX + 1.0), 0);
    }
}
