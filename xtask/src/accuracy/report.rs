//! Tables of the measurements, for the terminal and for docs/ACCURACY.md.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::enforce::{Adversary, Enforced};
use super::measure::Measured;
use crate::{markdown, workspace};

const REPORT: &str = "docs/ACCURACY.md";
/// Heading of the part about access logs, which ends at the next heading of this level.
const LOGS: &str = "## With the server's access log\n";
const NEXT: &str = "\n## ";

#[derive(Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) programs: Vec<String>,
    pub(super) kernel: String,
    pub(super) rows: Vec<Measured>,
    /// Rows that could not be measured, with reasons.
    pub(super) failed: Vec<String>,
    pub(super) enforced: Vec<Enforced>,
    pub(super) adversaries: Vec<Adversary>,
}

pub(super) fn to_json(report: &Report) -> Result<String> {
    serde_json::to_string(report).context("write what was measured as JSON")
}

pub(super) fn from_json(json: &[u8]) -> Result<Report> {
    serde_json::from_slice(json).context("read what was measured")
}

impl Report {
    /// Returns the broken promises and the rows that could not be measured.
    pub(super) fn broken(&self) -> Vec<String> {
        let rows = self.rows.iter().filter(|row| !row.holds()).map(ToString::to_string);
        let enforced = self.enforced.iter().filter(|one| !one.holds()).map(ToString::to_string);
        let adversaries = self.adversaries.iter().filter(|one| !one.holds()).map(|one| one.with_log.to_string());
        rows.chain(self.failed.iter().cloned()).chain(enforced).chain(adversaries).collect()
    }

    /// Returns all tables in Markdown, which is readable enough in a terminal.
    pub(super) fn table(&self) -> String {
        format!("{}{}{}", self.tables(false), self.tables(true), self.table_of_adversaries())
    }

    /// Returns one table per protocol and link, and one of enforcement, either with or without access logs.
    fn tables(&self, has_log: bool) -> String {
        let mut text = String::new();
        let mut titles: Vec<String> = Vec::new();
        let of_part = || self.rows.iter().filter(move |row| row.has_log == has_log);
        for row in of_part() {
            let title = title(row);
            if !titles.contains(&title) {
                titles.push(title);
            }
        }
        for wanted in &titles {
            let rows: Vec<&Measured> = of_part().filter(|row| title(row) == *wanted).collect();
            write!(text, "### {wanted}\n\n{}\n", table_of(&rows)).ok();
        }
        let enforced: Vec<&Enforced> = self.enforced.iter().filter(|one| one.has_log == has_log).collect();
        if !enforced.is_empty() {
            write!(text, "### The limit, in the server's log\n\n{}\n", table_of_enforcement(&enforced)).ok();
        }
        text
    }

    fn part_of_logs(&self) -> String {
        let (tables, adversaries) = (self.tables(true), self.table_of_adversaries());
        format!("{LOGS}\n{}\n{tables}{adversaries}", include_str!("report/logs.md"))
    }

    fn table_of_adversaries(&self) -> String {
        if self.adversaries.is_empty() {
            return String::new();
        }
        let head = ["client", "protocol", "without a log", "with a log, first window", "promised", "later", "promised"];
        let rows = self.adversaries.iter().map(|Adversary { from_packets, with_log }| {
            let worst = from_packets.in_first.max(from_packets.in_later_max);
            let served = [worst, with_log.in_first, with_log.first_max, with_log.in_later_max, with_log.later_max];
            let texts = [with_log.client.clone(), format!("{}, {}", with_log.over, with_log.server)];
            texts.into_iter().chain(served.map(Adversary::factor)).collect()
        });
        let table = markdown::table(&head, &rows.collect::<Vec<_>>());
        format!("### The worst clients, in multiples of their limit\n\n{table}\n")
    }

    /// Replaces the part about access logs in the existing document.
    pub(super) fn write_logs(&self) -> Result<()> {
        let file = workspace::root().join(REPORT);
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let (before, rest) = text.split_once(LOGS).with_context(|| format!("{REPORT} has no {}", LOGS.trim()))?;
        let (_, after) = rest.split_once(NEXT).with_context(|| format!("nothing follows in {REPORT}"))?;
        let text = format!("{before}{}{NEXT}{after}", self.part_of_logs().trim_end_matches('\n').to_owned() + "\n");
        fs::write(&file, text).with_context(|| format!("write {}", file.display()))
    }

    pub(super) fn write(&self) -> Result<()> {
        let file = workspace::root().join(REPORT);
        fs::create_dir_all(workspace::root().join("docs")).context("make docs")?;
        fs::write(&file, self.document()).with_context(|| format!("write {}", file.display()))
    }

    fn document(&self) -> String {
        let held = self.rows.iter().filter(|row| row.holds()).count();
        let exact = self.rows.iter().filter(|row| row.logged == row.counted).count();
        format!(
            "{}\n{held} of {} rows hold what they promise; {exact} have no error at all.\n\n{}{}{}\n## What ran\n\n\
             Linux {}; {}.\n",
            include_str!("report/head.md"),
            self.rows.len(),
            self.tables(false),
            self.part_of_logs(),
            include_str!("report/tail.md"),
            self.kernel,
            self.programs.join(", "),
        )
    }
}

fn table_of_enforcement(enforced: &[&Enforced]) -> String {
    let head = [
        "client",
        "protocol",
        "limit",
        "seconds",
        "in the log",
        "in the first window",
        "promised",
        "most later",
        "promised",
    ];
    let rows = enforced.iter().map(|one| {
        let numbers = [one.seconds.into(), one.logged, one.in_first, one.first_max, one.in_later_max, one.later_max];
        let texts = [one.client.clone(), format!("{}, {}", one.over, one.family), one.limit.clone()];
        texts.into_iter().chain(numbers.map(|number: u64| number.to_string())).collect()
    });
    markdown::table(&head, &rows.collect::<Vec<_>>())
}

fn title(row: &Measured) -> String {
    if row.link == "no loss" { row.over.clone() } else { format!("{}; {}", row.over, row.link) }
}

fn table_of(rows: &[&Measured]) -> String {
    let head = ["traffic", "client", "server", "IP", "in the log", "counted", "error", "promised"];
    let cells = |row: &&Measured| {
        let [logged, counted] = [row.logged, row.counted].map(|count| count.to_string());
        let error = if row.holds() { row.error() } else { format!("**{}**", row.error()) };
        let family = row.family.clone();
        vec![
            row.traffic.clone(),
            row.client.clone(),
            row.server.clone(),
            family,
            logged,
            counted,
            error,
            row.bound.to_string(),
        ]
    };
    markdown::table(&head, &rows.iter().map(cells).collect::<Vec<_>>())
}
