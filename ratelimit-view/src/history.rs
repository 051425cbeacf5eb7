//! Output of `ratelimitd history`: the story of an address, or the worst sources of a period. On a terminal it fits one
//! screen, of 80 columns and 24 lines or more. A pipe or file gets all rows of the answer, and no line is cut.

use jiff::Timestamp;
use ratelimit_report::history::{Act, Episode, HistoryReport, Loss, WorstReport, WorstSource};

use super::{Page, counted, cut, duration, number, short, wait};

/// Minimum width in columns, even if a terminal reports less.
const WIDTH_LEAST: usize = 80;
/// Number of lines of the smallest terminal, without the line of the prompt.
const LINES: usize = 23;
/// Maximum number of episodes shown in [`LINES`]. With the acts, they fill 24 lines.
const EPISODES: usize = 8;
/// Maximum number of acts shown in [`LINES`].
const ACTS: usize = 5;
/// Maximum number of sources shown in [`LINES`].
const SOURCES: usize = 20;
/// Maximum number of losses shown on a terminal of any height.
const LOSSES: usize = 2;
/// Maximum number of lines about losses: a blank one, the explanation, the head, the losses, and the number of others.
const LINES_OF_LOSSES: usize = LOSSES + 4;
/// Maximum number of episodes and of acts shown if there are losses.
const WITH_LOSSES: (usize, usize) = (4, 3);
const _: () = assert!(WITH_LOSSES.0 + WITH_LOSSES.1 + LINES_OF_LOSSES <= EPISODES + ACTS);
/// Hint that names the ways to see everything.
const ALL: &str = "--json and --csv have them all";

/// Space for the output.
#[derive(Clone, Copy)]
struct Room {
    /// Maximum width of a line in columns.
    width: usize,
    /// Number of lines beyond [`LINES`]. None if the number of lines is not bounded.
    extra: Option<usize>,
}

impl Room {
    fn of(page: Page) -> Self {
        Self { width: page.width.max(WIDTH_LEAST), extra: page.rows.map(|rows| rows.saturating_sub(LINES)) }
    }

    /// Returns the number of rows that may be shown, which is `least` on the smallest terminal.
    fn rows(self, least: usize) -> usize {
        self.extra.map_or(usize::MAX, |extra| least.saturating_add(extra))
    }

    /// Returns the number of losses that may be shown.
    const fn losses(self) -> usize {
        if self.extra.is_some() { LOSSES } else { usize::MAX }
    }
}

/// Formats all records of an address or prefix, newest first.
pub fn history(report: &HistoryReport, now: Timestamp, page: Page) -> String {
    let room = Room::of(page);
    let mut out = headline(report, room.width);
    let (episodes, acts) = if report.losses.is_empty() { (EPISODES, ACTS) } else { WITH_LOSSES };
    // Additional lines of the terminal are used for episodes.
    let (episodes, acts) = (room.rows(episodes), if room.extra.is_some() { acts } else { usize::MAX });
    if !report.episodes.is_empty() {
        let row = |of: &Episode| {
            [
                instant(of.began),
                of.ended.map_or_else(|| "ongoing".to_owned(), |ended| lasted(of.began, ended)),
                short(of.packets),
                short(of.peak),
                reason(of),
                source_of(of, &report.source) + &join(" ", [&of.rule, &of.limit]),
            ]
        };
        let rows: Vec<_> = report.episodes.iter().take(episodes).map(row).collect();
        out += "\n";
        out += &table(
            ["BEGAN (UTC)", "LASTED", "PACKETS", "PEAK", "REASON", "RULE AND LIMIT"],
            &[2, 3],
            &rows,
            room.width,
        );
        out += &more(report.episodes.len(), episodes, "episode", report.more_episodes);
    }
    if !report.acts.is_empty() {
        let row = |of: &Act| [instant(of.time), of.what.clone(), act(of)];
        let rows: Vec<_> = report.acts.iter().take(acts).map(row).collect();
        out += "\n";
        out += &table(["DONE (UTC)", "WHAT", "OF, BY, WHY"], &[], &rows, room.width);
        out += &more(report.acts.len(), acts, "act", report.more_acts);
    }
    out += &lost(&report.losses, room);
    if let Some(open) = report.episodes.iter().find(|of| of.ended.is_none() && !of.would) {
        let since = wait(now.duration_since(open.began).as_secs_f64().max(0.0));
        out += &format!("\nIt has been refused for {since}; `ratelimitd check` shows by what.\n");
    } else if !report.losses.is_empty() {
        out += &format!("\n`ratelimitd check {}` shows whether it is refused now.\n", report.source);
    }
    out
}

/// Formats the sources that were refused most in a period.
pub fn worst(report: &WorstReport, page: Page) -> String {
    let room = Room::of(page);
    let period = format!("from {} to {} UTC", instant(report.since), instant(report.until));
    if report.sources.is_empty() {
        if report.losses.is_empty() {
            return format!("Nothing was refused {period}.\n");
        }
        return format!("No refusal is remembered {period}.\n") + &lost(&report.losses, room);
    }
    let is_dry = report.sources.iter().all(|of| of.would);
    let refused = if is_dry { "Would have been refused" } else { "Refused" };
    let mut out = format!("{refused} {period}, most packets first:\n");
    if !is_dry && report.sources.iter().any(|of| of.would) {
        out += "Rows with the reason dry_run would have been refused: nothing was dropped.\n";
    }
    let row = |of: &WorstSource| {
        [
            of.source.clone(),
            short(of.packets),
            number(of.episodes),
            of.ended.map_or_else(|| "ongoing".to_owned(), instant),
            format!("{} ({})", of.reasons.join(", "), of.rules.join(", ")),
        ]
    };
    let shown = room.rows(if report.losses.is_empty() { SOURCES } else { SOURCES - LINES_OF_LOSSES });
    let rows: Vec<_> = report.sources.iter().take(shown).map(row).collect();
    out += &table(["SOURCE", "PACKETS", "EPISODES", "LAST (UTC)", "REASONS (RULES)"], &[1, 2], &rows, room.width);
    let left = report.omitted + report.sources.len().saturating_sub(shown) as u64;
    if left > 0 {
        out += &format!("{} more; {ALL}\n", counted(left, "source"));
    }
    out + &lost(&report.losses, room)
}

/// Says when events were lost, and how many. Empty if none were.
fn lost(losses: &[Loss], room: Room) -> String {
    if losses.is_empty() {
        return String::new();
    }
    let events = short(Loss::sum(losses));
    let row = |of: &Loss| [instant(of.began), instant(of.ended), short(of.events)];
    let rows: Vec<_> = losses.iter().take(room.losses()).map(row).collect();
    format!("\nNOT COMPLETE: events lost: {events}. What was refused then may be missing.\n")
        + &table(["LOST FROM (UTC)", "TO (UTC)", "EVENTS"], &[], &rows, room.width)
        + &more(losses.len(), room.losses(), "time", false)
}

/// Returns the first lines: `198.51.100.7: 1,234 packets refused in 3 episodes since 2026-01-01 10:00:00 UTC.`
fn headline(report: &HistoryReport, width: usize) -> String {
    let source = &report.source;
    let (would, real): (Vec<&Episode>, Vec<&Episode>) = report.episodes.iter().partition(|of| of.would);
    let at_least = if report.more_episodes { "at least " } else { "" };
    let packets = |of: &[&Episode]| short(of.iter().fold(0, |sum: u64, of| sum.saturating_add(of.packets)));
    let episodes = |of: &[&Episode]| counted(of.len() as u64, "episode");
    let refused =
        real.iter().map(|of| instant(of.began)).min().map(|since| {
            format!("{at_least}{} packets refused in {} since {since} UTC.", packets(&real), episodes(&real))
        });
    let dry = (!would.is_empty()).then(|| {
        format!("{at_least}{} packets would have been refused in {} of dry run.", packets(&would), episodes(&would))
    });
    let said: Vec<String> = [refused, dry].into_iter().flatten().collect();
    match said.as_slice() {
        [] if !report.losses.is_empty() => {
            format!("{source}: no refusal is remembered; the history is NOT COMPLETE.\n")
        }
        [] if report.acts.is_empty() => format!("{source}: nothing is remembered.\n"),
        [] => format!("{source}: never refused.\n"),
        lines => {
            let is_wide = lines.iter().any(|line| source.chars().count() + 2 + line.chars().count() > width);
            let start = if is_wide || lines.len() > 1 { "\n" } else { " " };
            format!("{source}:{start}{}\n", lines.join("\n"))
        }
    }
}

/// Returns the reason. Adds why the episode ended if neither its ban expired nor the refusals stopped.
fn reason(of: &Episode) -> String {
    match of.cause.as_deref() {
        None | Some("quiet" | "expired") => of.reason.clone(),
        Some(cause) => format!("{}; {cause}", of.reason),
    }
}

/// Returns the source of an episode, if it differs from the requested one.
fn source_of(of: &Episode, asked: &str) -> String {
    if of.source == asked { String::new() } else { format!("{}: ", of.source) }
}

/// Describes an act: `192.0.2.0/24 by root (alice): a customer`.
fn act(of: &Act) -> String {
    let by = of.by.as_ref().map(|by| format!("by {by}")).unwrap_or_default();
    let why = of.reason.as_deref().unwrap_or(&of.detail);
    let said = join(" ", [of.source.as_deref().unwrap_or_default(), &by]);
    join(": ", [said.as_str(), why])
}

/// Joins the parts that are not empty.
fn join<const N: usize>(between: &str, parts: [&str; N]) -> String {
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(between)
}

fn more(len: usize, shown: usize, one: &str, is_more: bool) -> String {
    let left = len.saturating_sub(shown) as u64;
    match (left, is_more) {
        (0, false) => String::new(),
        (_, true) => format!("At least {} more; --since, --until and --json show them\n", counted(left, one)),
        (_, false) => format!("{} more; {ALL}\n", counted(left, one)),
    }
}

/// Formats a table. Columns are as wide as their text and two spaces apart. Lines are cut at `width` columns.
fn table<const N: usize>(head: [&str; N], right: &[usize], rows: &[[String; N]], width: usize) -> String {
    let wide = |at: usize| rows.iter().map(|row| row[at].chars().count()).chain([head[at].len()]).max().unwrap_or(0);
    let line = |cells: [&str; N]| {
        let mut out = String::new();
        for (at, cell) in cells.into_iter().enumerate() {
            let wide = if at + 1 == N { 0 } else { wide(at) };
            out += &if right.contains(&at) { format!("{cell:>wide$}  ") } else { format!("{cell:<wide$}  ") };
        }
        cut(out.trim_end(), width) + "\n"
    };
    line(head) + &rows.iter().map(|row| line(row.each_ref().map(String::as_str))).collect::<String>()
}

fn lasted(began: Timestamp, ended: Timestamp) -> String {
    duration(ended.duration_since(began).as_secs_f64().max(0.0))
}

fn instant(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

#[cfg(test)]
mod tests;
