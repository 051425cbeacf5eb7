//! Tables of the measurements, for the terminal and for docs/PERFORMANCE.md with its plots.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};

use super::goals::{self, OVER_LIMIT_NS_MAX};
use super::measured::{
    AnswersOutcome, Cpus, Flood, Floods, Floor, Growth, ProgramCost, Readings, Report, Row, Server, Servers, Spread,
    Steadiness,
};
use super::plot::{self, Group};
use super::receivers;
use crate::{markdown, workspace};

const DOCUMENT: &str = "docs/PERFORMANCE.md";
const JSON: &str = "docs/performance.json";
const RECEIVERS: [(&str, &str); 4] =
    [("limiter", "this limiter"), ("nft_drop", "nft drop"), ("nft_meter", "nft meter"), ("hashlimit", "hashlimit")];
/// Quantities that grow, with the titles of their plots.
const SERIES: [(&str, &str); 3] = [
    ("sources", "ns above bare by sources over their limit"),
    ("rules", "ns above bare by rules, over the limit of the last"),
    ("exempt", "ns above bare by exempt prefixes, within the limit"),
];

/// Returns all tables in Markdown, which is readable enough in a terminal.
pub(super) fn tables(report: &Report) -> String {
    let mut text = String::new();
    if let Some(floods) = &report.floods {
        for part in [floods_table(floods), passing_table(floods), others_table(floods), goals_table(floods)] {
            if !part.is_empty() {
                writeln!(text, "{part}").ok();
            }
        }
    }
    if let Some(servers) = &report.servers {
        writeln!(text, "{}", servers_table(servers)).ok();
    }
    if let Some(growth) = &report.growth {
        writeln!(text, "{}", growth_tables(growth)).ok();
    }
    if let Some(program) = &report.program {
        text.push_str(&program_table(program));
    }
    text.push_str(&unsteady(report));
    text
}

/// Lists the rows that were measured again, and the floor variation that remains. Empty if there are none.
fn unsteady(report: &Report) -> String {
    let floods = report.floods.iter().flat_map(|floods| &floods.rows).map(|row| (&row.name, row.steadiness));
    let alone = report.program.iter().flat_map(|program| &program.rows).map(|row| (&row.name, row.steadiness));
    let servers = report.servers.iter().flat_map(|servers| match servers {
        Servers::Measured { rows, .. } => rows.as_slice(),
        Servers::Missing { .. } => &[],
    });
    let servers = servers.map(|row| (&row.name, row.steadiness));
    let again = floods.chain(alone).chain(servers).filter(|(_, steadiness)| steadiness.measured_again > 0);
    let lines: Vec<String> = again
        .map(|(name, Steadiness { floor_varied, measured_again })| {
            let times = if measured_again == 1 { "once" } else { "twice" };
            format!("- {name}: {times}; in what is shown the floor varied by {:.0} %\n", floor_varied * 100.0)
        })
        .collect();
    if lines.is_empty() {
        return String::new();
    }
    format!("\nMeasured again, as the floor varied by more than a fifth between rounds:\n\n{}", lines.concat())
}

/// Reads the report that was last written.
pub(super) fn read() -> Result<Report> {
    let text = fs::read_to_string(workspace::root().join(JSON)).with_context(|| format!("read {JSON}"))?;
    serde_json::from_str(&text).with_context(|| format!("read {JSON}"))
}

/// Writes the document, its plots and the numbers.
pub(super) fn write(report: &Report) -> Result<()> {
    let root = workspace::root();
    let mut files = vec![(DOCUMENT.to_owned(), document(report)), (JSON.to_owned(), report.to_json()? + "\n")];
    if let Some(floods) = &report.floods {
        files.push(("docs/performance-floods.svg".to_owned(), floods_plot(floods)));
    }
    for (series, title) in report.growth.iter().flat_map(|_| SERIES) {
        files.push((format!("docs/performance-{series}.svg"), plot::line(title, &points(report, series))));
    }
    fs::create_dir_all(root.join("docs")).context("make docs")?;
    files.iter().try_for_each(|(file, text)| fs::write(root.join(file), text).with_context(|| format!("write {file}")))
}

fn document(report: &Report) -> String {
    let mut text = include_str!("report/head.md").to_owned();
    if let Some(floods) = &report.floods {
        write!(
            text,
            "\n## Floods, beside others\n\n![Cost above bare XDP_DROP](performance-floods.svg)\n\n{}\n### Rows counted from each one's own \
             floor\n\n{}\n### What is asked\n\n{}\n{}",
            floods_table(floods),
            passing_table(floods),
            goals_table(floods),
            include_str!("report/floods.md"),
        )
        .ok();
        write!(
            text,
            "\nMeasured by {} on {}, Linux {}; {} rounds; {}.\n",
            floods.clock,
            floods.processor,
            floods.kernel,
            floods.rounds,
            if floods.programs.is_empty() { "no other limiter".to_owned() } else { floods.programs.join(", ") },
        )
        .ok();
    }
    if let Some(servers) = &report.servers {
        let explained = include_str!("report/servers.md");
        write!(text, "\n## Whole servers\n\n{}\n{explained}", servers_table(servers)).ok();
    }
    if let Some(growth) = &report.growth {
        text.push_str("\n## Growth\n\n");
        for (series, title) in SERIES {
            writeln!(text, "![{title}](performance-{series}.svg)\n").ok();
        }
        text.push_str(&growth_tables(growth));
    }
    if let Some(program) = &report.program {
        write!(
            text,
            "\n## The program alone\n\n```text\n{}```\n\n{}",
            program_table(program),
            include_str!("report/program.md").replace("OVER_LIMIT_NS_MAX", &OVER_LIMIT_NS_MAX.to_string())
        )
        .ok();
    }
    text.push_str(&unsteady(report));
    text + include_str!("report/repeat.md") + include_str!("report/tried.md")
}

/// Returns a table of the floods that are measured from the bare program, with one column per receiver. Cells hold ns
/// per packet, the part above bare, and its ratio to the limiter's.
fn floods_table(floods: &Floods) -> String {
    let head = [
        "flood",
        "bare",
        "this limiter",
        "above bare",
        "passed",
        "the same by TCX",
        "nft drop",
        "nft meter",
        "hashlimit",
    ];
    let cells = |row: &Flood| {
        let ns = |id: &str| row.of(id).map_or_else(String::new, |(ns, _)| shown(ns));
        let above = row.of("limiter").map_or_else(String::new, |(_, above)| shown(above));
        let beside = |id: &str| match (row.of(id), row.of("limiter")) {
            (Some((_, theirs)), Some((_, ours))) => format!("+{:.0} {}", theirs.median, ratio(theirs, ours)),
            (None, _) | (_, None) => missing(row, id),
        };
        let peers = ["limiter_tcx", "nft_drop", "nft_meter", "hashlimit"].map(beside);
        [vec![row.name.clone(), ns("bare"), ns("limiter"), above, passed(row)], peers.to_vec()].concat()
    };
    table_of(&head, rows_from(floods, Floor::Bare).map(cells).collect())
}

/// Returns a table of the rows in which passed packets are dropped right behind the receiver. Each cost is above that
/// drop alone.
fn passing_table(floods: &Floods) -> String {
    let head = [
        "traffic",
        "bare",
        "this limiter",
        "above bare",
        "passed",
        "nft meter above nft drop",
        "hashlimit above iptables drop",
    ];
    let cells = |row: &Flood| {
        let ns = |id: &str| row.of(id).map_or_else(String::new, |(ns, _)| shown(ns));
        let above = |id: &str| row.above_floor(id).map_or_else(|| missing(row, id), shown);
        vec![
            row.name.clone(),
            ns("bare"),
            ns("limiter"),
            above("limiter"),
            passed(row),
            above("nft_meter"),
            above("hashlimit"),
        ]
    };
    table_of(&head, rows_from(floods, Floor::Own).map(cells).collect())
}

/// Returns a table of other programs' costs above each row's floor, and of the packets that they passed. Empty if there
/// are none.
fn others_table(floods: &Floods) -> String {
    let mut others: Vec<&str> = Vec::new();
    for receiver in floods.rows.iter().flat_map(|row| &row.receivers) {
        if receivers::is_other(&receiver.id) && !others.contains(&receiver.id.as_str()) {
            others.push(&receiver.id);
        }
    }
    if others.is_empty() {
        return String::new();
    }
    let head = others.iter().flat_map(|id| [format!("{id}, ns above the floor"), format!("passed by {id}")]);
    let head: Vec<String> = ["traffic".to_owned(), "this limiter".to_owned()].into_iter().chain(head).collect();
    let cells = |row: &Flood| {
        let cell = |id: &str| row.above_floor(id).map_or_else(|| missing(row, id), shown);
        let passed = |id: &str| row.passed(id).map_or_else(String::new, |passed| format!("{:.0} %", passed * 100.0));
        let others = others.iter().flat_map(|id| [cell(id), passed(id)]);
        [row.name.clone(), cell("limiter")].into_iter().chain(others).collect::<Vec<_>>()
    };
    markdown::table(
        &head.iter().map(String::as_str).collect::<Vec<_>>(),
        &floods.rows.iter().map(cells).collect::<Vec<_>>(),
    )
}

/// Returns a table of requests per second, also in percent of a bare `XDP_PASS`.
fn servers_table(servers: &Servers) -> String {
    let (rounds, connections, seconds, rows) = match servers {
        Servers::Measured { rounds, connections, seconds, rows } => (rounds, connections, seconds, rows),
        Servers::Missing { missing } => return format!("Whole servers: {missing}.\n"),
    };
    let cells = |row: &Server| {
        let of = |id: &str| match row.receivers.iter().find(|receiver| receiver.id == id).map(|one| &one.outcome) {
            Some(AnswersOutcome::Measured { answered, percent_of_pass: Spread { median, min, max } }) => {
                format!("{:.0} ({median:.1} %, {min:.1}..{max:.1})", answered.median)
            }
            Some(AnswersOutcome::Missing { missing }) => missing.clone(),
            None => String::new(),
        };
        let asked = format!("{} %: {}", goals::ANSWERED_PERCENT_MIN, met(goals::is_nearly_as_fast(row)));
        let all = ["pass", "nothing", "limiter", "nft_meter"].map(of);
        [vec![row.name.clone()], all.to_vec(), vec![asked]].concat()
    };
    let head = ["requests a second", "bare XDP_PASS", "nothing", "this limiter", "nft meter", "asked of the limiter"];
    let table = table_of(&head, rows.iter().map(cells).collect());
    format!("{table}\n{rounds} rounds of {seconds} s each, {connections} connections.\n")
}

/// Returns a table, or an empty string without rows.
fn table_of(head: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() { String::new() } else { markdown::table(head, &rows) }
}

fn rows_from(floods: &Floods, floor: Floor) -> impl Iterator<Item = &Flood> {
    floods.rows.iter().filter(move |row| row.floor == floor)
}

fn passed(row: &Flood) -> String {
    format!("{:.0} %", row.limiter_passed * 100.0)
}

fn ratio(theirs: Spread, ours: Spread) -> String {
    if ours.median < 1.0 { String::new() } else { format!("({:.1}x)", theirs.median / ours.median) }
}

/// Returns the reason why a receiver has no number.
fn missing(row: &Flood, id: &str) -> String {
    row.missing(id).unwrap_or_default().to_owned()
}

fn goals_table(floods: &Floods) -> String {
    let rows = floods.rows.iter().flat_map(|row| {
        let measured = row.of("limiter").map_or_else(String::new, |(_, above)| format!("+{:.0}", above.median));
        goals::of(row, floods)
            .into_iter()
            .map(move |outcome| vec![row.name.clone(), outcome.asked, measured.clone(), met(outcome.is_met).to_owned()])
    });
    table_of(&["flood", "asked", "ns above bare", ""], rows.collect())
}

/// Returns the text for a goal's outcome.
fn met(is_met: bool) -> &'static str {
    if is_met { "met" } else { "**not met**" }
}

fn growth_tables(growth: &Growth) -> String {
    let rows = growth
        .points
        .iter()
        .map(|point| vec![point.series.clone(), point.count.to_string(), shown(point.ns), shown(point.above_bare_ns)]);
    let points = markdown::table(&["what grows", "count", "ns a packet", "above bare"], &rows.collect::<Vec<_>>());
    let cpus = match &growth.cpus {
        Cpus::Measured { cases } => {
            let rows = cases
                .iter()
                .map(|case| vec![case.name.clone(), shown(case.bare_ns), shown(case.ns), shown(case.above_bare_ns)]);
            let head = ["over the limit, from", "bare, ns of a CPU", "this limiter", "above bare"];
            markdown::table(&head, &rows.collect::<Vec<_>>())
        }
        Cpus::Missing { missing } => format!("Two CPUs: {missing}.\n"),
    };
    format!("{points}\n{cpus}\n{}", readings_table(&growth.reading))
}

/// Returns a table of packet costs without and with a reader, and of the reading times.
fn readings_table(reading: &Readings) -> String {
    let (sources, cases) = match reading {
        Readings::Measured { sources, cases } => (sources, cases),
        Readings::Missing { missing } => return format!("Beside a reader: {missing}.\n"),
    };
    let rows = cases.iter().map(|case| {
        let more = format!("{} ({})", shown(case.more_percent), met(goals::is_undisturbed(case)));
        let took = format!("{} ({})", shown(case.took_ms), met(goals::is_read_in_time(case)));
        vec![case.name.clone(), shown(case.alone_ns), shown(case.beside_ns), more, took]
    });
    let more = format!("% more, asked: at most {:.0}", goals::READING_MORE_PERCENT_MAX);
    let took = format!("ms to read {sources} windows, asked: at most {:.0}", goals::READING_MS_MAX);
    let head = ["while all windows are read", "ns a packet without", "ns with", &more, &took];
    markdown::table(&head, &rows.collect::<Vec<_>>())
}

fn points(report: &Report, series: &str) -> Vec<(u64, Spread)> {
    let all = report.growth.iter().flat_map(|growth| &growth.points);
    all.filter(|point| point.series == series).map(|point| (point.count, point.above_bare_ns)).collect()
}

fn floods_plot(floods: &Floods) -> String {
    let groups = rows_from(floods, Floor::Bare).map(|row| {
        let bar = |(at, (id, _)): (usize, &(&str, &str))| Some((at, row.of(id)?.1.median));
        Group { name: row.name.clone(), bars: RECEIVERS.iter().enumerate().filter_map(bar).collect() }
    });
    let names: Vec<&str> = RECEIVERS.iter().map(|(_, name)| *name).collect();
    plot::bars("ns a packet above bare XDP_DROP", &names, &groups.collect::<Vec<_>>())
}

/// Formats the median and extremes.
fn shown(spread: Spread) -> String {
    format!("{:.0} ({:.0}..{:.0})", spread.median, spread.min, spread.max)
}

fn program_table(program: &ProgramCost) -> String {
    let mut text = format!(
        "{:<58} {:<13} {:>5} {:>11} {:>11} {:>13}\n",
        "packet", "verdict", "ns", "above bare", "min..max", "asked"
    );
    let bare = &program.bare_ns;
    let spread = format!("{}..{}", bare.min, bare.max);
    writeln!(text, "{:<58} {:<13} {:>5} {:>11} {spread:>11}", "the empty program", "", bare.median, "").ok();
    for row in &program.rows {
        let Row { name, verdict, ns, above_bare_ns: above, .. } = row;
        let spread = format!("{}..{}", above.min, above.max);
        let asked = match goals::of_program(row) {
            Some((most, true)) => format!("{most} (met)"),
            Some((most, false)) => format!("{most} (NOT MET)"),
            None => String::new(),
        };
        let line = format!("{name:<58} {verdict:<13} {:>5} {:>11} {spread:>11} {asked:>13}", ns.median, above.median);
        writeln!(text, "{}", line.trim_end()).ok();
    }
    writeln!(
        text,
        "\n{} rounds of {} packets; {} instructions verified, {} bytes translated, {} bytes of machine code\n{}, Linux {}",
        program.rounds,
        program.repeat,
        program.verified_instructions,
        program.translated_bytes,
        program.jited_bytes,
        program.processor,
        program.kernel
    )
    .ok();
    text
}

#[cfg(test)]
mod tests {
    use super::super::measured::{Outcome, Receiver, flood};
    use super::*;

    fn floods(rows: Vec<Flood>) -> Floods {
        let text = |text: &str| text.to_owned();
        let (kernel, processor, clock) = (text("6.18"), text("2 x some"), text("CPU time"));
        Floods { kernel, processor, clock, rounds: 9, programs: vec![text("nft v1")], rows }
    }

    #[test]
    fn a_flood_shows_the_ratio_to_its_peers_or_why_there_is_none() {
        let mut row = flood("one_source", &[("bare", 0.0), ("limiter", 50.0), ("nft_meter", 600.0)]);
        let missing = Outcome::Missing { missing: "there is no iptables: install iptables".into() };
        row.receivers.push(Receiver { id: "hashlimit".into(), outcome: missing });
        let table = floods_table(&floods(vec![row]));
        assert!(table.contains("| +600 (12.0x) |"), "{table}");
        assert!(table.contains("install iptables"), "{table}");
    }

    #[test]
    fn rows_that_were_measured_again_are_named_with_what_their_floor_still_varied_by() {
        let mut rows = vec![flood("steady", &[("limiter", 1.0)]), flood("shaken", &[("limiter", 1.0)])];
        let report = |rows| Report { floods: Some(floods(rows)), ..Report::default() };
        assert_eq!(unsteady(&report(rows.clone())), "");
        rows[1].steadiness = Steadiness { floor_varied: 0.284, measured_again: 2 };
        let text = unsteady(&report(rows));
        assert!(text.contains("- shaken: twice; in what is shown the floor varied by 28 %"), "{text}");
        assert!(!text.contains("- steady"), "{text}");
    }

    #[test]
    fn another_receiver_has_a_table_with_what_it_passed() {
        let row = flood("one_source", &[("bare", 0.0), ("limiter", 50.0), ("theirs", 80.0)]);
        let table = others_table(&floods(vec![row]));
        assert!(
            table.contains("passed by theirs") && table.contains("| 80 (79..81)") && table.contains("| 0 %"),
            "{table}"
        );
        assert_eq!(others_table(&floods(vec![flood("one_source", &[("limiter", 50.0)])])), "");
    }

    #[test]
    fn a_row_of_what_passes_is_in_the_table_of_each_ones_own_floor_and_in_no_other() {
        let mut row = flood("within", &[("bare", 0.0), ("limiter", 50.0), ("nft_meter", 600.0)]);
        (row.floor, row.limiter_passed) = (Floor::Own, 0.999);
        if let Some(Outcome::Measured { above_floor_ns: Some(above), .. }) =
            row.receivers.iter_mut().find(|receiver| receiver.id == "nft_meter").map(|receiver| &mut receiver.outcome)
        {
            above.median = 123.0;
        }
        let floods = floods(vec![row]);
        assert!(!floods_table(&floods).contains("within"), "{}", floods_table(&floods));
        let table = passing_table(&floods);
        assert!(table.contains("| 123 (") && table.contains("| 100 % "), "{table}");
    }

    #[test]
    fn the_document_says_which_goals_are_missed_and_on_what_it_was_measured() {
        let row = flood("one_source", &[("bare", 0.0), ("limiter", 50.0), ("nft_meter", 800.0), ("hashlimit", 100.0)]);
        let report = Report { floods: Some(floods(vec![row])), ..Report::default() };
        let document = document(&report);
        assert!(document.contains("| at most 35 ns above bare"), "{document}");
        assert_eq!(document.matches("**not met**").count(), 2, "{document}");
        assert!(document.contains("2 x some, Linux 6.18; 9 rounds; nft v1."), "{document}");
    }

    #[test]
    fn a_report_printed_as_json_is_read_back() {
        let report = Report { floods: Some(floods(vec![flood("forged", &[("limiter", 1.5)])])), ..Report::default() };
        let read: Report = serde_json::from_str(&report.to_json().unwrap()).unwrap();
        assert_eq!(read.floods.unwrap().rows[0].of("limiter").unwrap().1.median.to_bits(), 1.5_f64.to_bits());
    }
}
