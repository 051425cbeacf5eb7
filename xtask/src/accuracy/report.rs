//! What was measured, as tables: for the terminal, and as docs/ACCURACY.md.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::enforce::Enforced;
use super::measure::Measured;
use crate::{markdown, workspace};

const REPORT: &str = "docs/ACCURACY.md";

#[derive(Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) programs: Vec<String>,
    pub(super) kernel: String,
    pub(super) rows: Vec<Measured>,
    /// Rows that could not be measured, and why.
    pub(super) failed: Vec<String>,
    pub(super) enforced: Vec<Enforced>,
}

pub(super) fn to_json(report: &Report) -> Result<String> {
    serde_json::to_string(report).context("write what was measured as JSON")
}

pub(super) fn from_json(json: &[u8]) -> Result<Report> {
    serde_json::from_slice(json).context("read what was measured")
}

impl Report {
    /// What was promised and does not hold, and what could not be measured.
    pub(super) fn broken(&self) -> Vec<String> {
        let rows = self.rows.iter().filter(|row| !row.holds()).map(ToString::to_string);
        let enforced = self.enforced.iter().filter(|one| !one.holds()).map(ToString::to_string);
        rows.chain(self.failed.iter().cloned()).chain(enforced).collect()
    }

    /// Tables in Markdown, which is read well enough in a terminal: one for each protocol and wire.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        let mut titles: Vec<String> = Vec::new();
        for row in &self.rows {
            let title = title(row);
            if !titles.contains(&title) {
                titles.push(title);
            }
        }
        for wanted in &titles {
            let rows: Vec<&Measured> = self.rows.iter().filter(|row| title(row) == *wanted).collect();
            write!(text, "### {wanted}\n\n{}\n", table_of(&rows)).ok();
        }
        if !self.enforced.is_empty() {
            write!(text, "### The limit, in the server's log\n\n{}\n", self.table_of_enforcement()).ok();
        }
        text
    }

    fn table_of_enforcement(&self) -> String {
        let head = ["protocol", "IP", "in the log", "in the first 10 s", "at most in any 10 s", "promised"];
        let rows = self.enforced.iter().map(|one| {
            let [logged, first, most] = [one.logged, one.in_first, one.in_any_max].map(|count| count.to_string());
            vec![one.over.clone(), one.family.clone(), logged, first, most, "100".to_owned()]
        });
        markdown::table(&head, &rows.collect::<Vec<_>>())
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
            "{}\n{held} of {} rows hold what they promise; {exact} have no error at all.\n\n{}{}\n## What ran\n\n\
             Linux {}; {}.\n",
            include_str!("report/head.md"),
            self.rows.len(),
            self.table(),
            include_str!("report/tail.md"),
            self.kernel,
            self.programs.join(", "),
        )
    }
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
