//! Results of a run: figures for other documents, the table of the rows, and the transcript.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

pub(super) const TRANSCRIPT: &str = "docs/SYSTEMD-TRANSCRIPT.md";
/// Maximum number of lines shown of a command's output. The number of omitted lines is shown instead.
const LINES_MAX: usize = 24;
const COLUMNS_MAX: usize = 116;

/// Figures in seconds, bytes and packets.
#[derive(Default, Serialize)]
pub(super) struct Figures {
    pub(super) schema: u32,
    /// Version, such as `systemd 252 (252.39-1~deb12u2)`.
    pub(super) systemd: String,
    /// Time to make the root file system. None if it existed.
    pub(super) rootfs_seconds: Option<f64>,
    pub(super) rootfs_bytes: u64,
    pub(super) package_bytes: u64,
    pub(super) boot_seconds: f64,
    /// Time from `systemctl enable --now` to its return.
    pub(super) start_seconds: f64,
    /// Exposure score of `systemd-analyze security`.
    pub(super) exposure: f64,
    pub(super) watchdog_seconds: f64,
    pub(super) killed_seconds: f64,
    pub(super) upgrade: Upgrade,
    pub(super) rows: Vec<RowFigure>,
    pub(super) total_seconds: f64,
}

#[derive(Default, Serialize)]
pub(super) struct Upgrade {
    pub(super) seconds: f64,
    /// Packets of the flood, from before the upgrade until after it.
    pub(super) packets: u64,
    pub(super) unfiltered: u64,
}

#[derive(Serialize)]
pub(super) struct RowFigure {
    pub(super) row: String,
    pub(super) seconds: f64,
}

/// Chapter of the document. Each is written by its own tier.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Chapter {
    Rows,
    Reboot,
}

/// Heading of the second chapter.
const REBOOT: &str = "## A reboot";

/// Writes one chapter and leaves the other unchanged.
pub(super) fn write_chapter(path: &Path, chapter: Chapter, text: &str) -> Result<()> {
    let before = fs::read_to_string(path).unwrap_or_default();
    fs::write(path, with_chapter(&before, chapter, text)).with_context(|| format!("write {}", path.display()))
}

fn with_chapter(before: &str, chapter: Chapter, text: &str) -> String {
    let (rows, reboot) = before.split_once(REBOOT).unwrap_or((before, ""));
    let (rows, reboot) = match chapter {
        Chapter::Rows => (text, reboot.trim()),
        Chapter::Reboot => (rows, text),
    };
    let rows = rows.trim_end();
    if reboot.is_empty() { format!("{rows}\n") } else { format!("{rows}\n\n{REBOOT}\n\n{}\n", reboot.trim()) }
}

/// Row in the transcript.
pub(super) struct Told {
    pub(super) title: String,
    pub(super) seconds: f64,
    pub(super) shown: String,
}

impl Figures {
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join("figures.json");
        let text = serde_json::to_string_pretty(self).context("figures as JSON")?;
        fs::write(&path, text + "\n").with_context(|| format!("write {}", path.display()))
    }

    /// Returns the rows that passed, with their times, as a document.
    pub(super) fn table(&self, rows: &[Told]) -> String {
        let mut text = format!(
            "# A real systemd\n\n\
             Written by `cargo xtask test --tier systemd --write`: the rows of that tier, all of which passed. {} is\n\
             process 1 of a container that has Debian's packages and no Rust. Clients are in another network namespace.\n\
             The typed commands and their output are in transcript.md in target/systemd.\n\n\
             | row | seconds |\n|---|---|\n",
            self.systemd
        );
        for (number, row) in rows.iter().enumerate() {
            // Writing to a String cannot fail.
            writeln!(text, "| {}. {} | {:.1} |", number + 1, row.title, row.seconds).ok();
        }
        writeln!(
            text,
            "| all, the container's start of {:.1} s among it | {:.1} |",
            self.boot_seconds, self.total_seconds
        )
        .ok();
        text
    }

    /// Writes what each row typed, after `#`, what was printed, and what the row checked, after `->`.
    pub(super) fn write_transcript(dir: &Path, rows: &[Told]) -> Result<()> {
        let chapter = |(number, row): (usize, &Told)| {
            format!("## {}. {}\n\n{}", number + 1, capitalised(&row.title), indented(&row.shown))
        };
        let text: Vec<String> = rows.iter().enumerate().map(chapter).collect();
        let path = dir.join("transcript.md");
        fs::write(&path, text.join("\n")).with_context(|| format!("write {}", path.display()))
    }
}

fn capitalised(title: &str) -> String {
    let mut letters = title.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Formats the output as a code block. Long outputs are shortened in the middle.
fn indented(shown: &str) -> String {
    let mut text = String::new();
    let mut output: Vec<&str> = Vec::new();
    for line in shown.lines() {
        if line.starts_with("# ") || line.starts_with("-> ") {
            flush(&mut output, &mut text);
            push(line, &mut text);
        } else {
            output.push(line);
        }
    }
    flush(&mut output, &mut text);
    text
}

fn flush(output: &mut Vec<&str>, text: &mut String) {
    let cut = output.len().saturating_sub(LINES_MAX);
    let head = if cut > 0 { LINES_MAX / 2 } else { output.len() };
    for line in &output[..head] {
        push(line, text);
    }
    if cut > 0 {
        push(&format!("[{cut} more lines]"), text);
        for line in &output[head + cut..] {
            push(line, text);
        }
    }
    output.clear();
}

fn push(line: &str, text: &mut String) {
    if line.chars().count() > COLUMNS_MAX {
        text.extend(["    "].into_iter().map(str::to_owned));
        text.extend(line.chars().take(COLUMNS_MAX - 4));
        text.push_str(" ...\n");
    } else if line.is_empty() {
        text.push('\n');
    } else {
        writeln!(text, "    {line}").ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chapter_stays_when_the_other_is_written() {
        let first = with_chapter("", Chapter::Rows, "# Rows\n\nold\n");
        let both = with_chapter(&first, Chapter::Reboot, "booted\n");
        assert_eq!(both, "# Rows\n\nold\n\n## A reboot\n\nbooted\n");
        assert_eq!(with_chapter(&both, Chapter::Rows, "# Rows\n\nnew\n"), both.replace("old", "new"));
        assert_eq!(with_chapter(&both, Chapter::Reboot, "again"), both.replace("booted", "again"));
    }

    #[test]
    fn a_long_output_is_cut_in_the_middle_and_a_short_one_is_whole() {
        let long: String =
            std::iter::once("# seq".to_owned()).chain((0..40).map(|n| n.to_string())).map(|l| l + "\n").collect();
        let text = indented(&long);
        assert_eq!(text.lines().count(), LINES_MAX + 2);
        assert!(text.contains("    11\n    [16 more lines]\n    28\n"), "{text}");
        assert_eq!(indented("# a\nb\n-> c\n"), "    # a\n    b\n    -> c\n");
    }
}
