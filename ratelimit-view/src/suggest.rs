//! Output of `ratelimitd suggest`.

use super::replay::{PREFIXES_NAMED_MAX, input};
use super::{counted, duration, folded, limit, number, table};
use ratelimit_policy::config::amount;
use ratelimit_report::busy::{BusyPrefix, GroupProposal, GroupReason};
use ratelimit_report::replay::Suggested;
use ratelimit_report::snapshot::{
    BusiestWindow, Candidate, Gap, Limit, LimitSuggestion, ListOver, Mode, Observation, PrefixOver, Proposal,
    ProposalReason, RuleSuggestion, SuggestReport, Unit,
};

/// Formats suggestions for every limit, for people. Sentences are wrapped at `width` columns.
pub fn suggest(report: &SuggestReport, width: usize) -> String {
    sentences(&report.rules.iter().map(rule).collect::<Vec<_>>().join("\n"), width)
}

/// Wraps the sentences of a text. Tables, and lines to be copied, stay as they are.
fn sentences(text: &str, width: usize) -> String {
    let is_sentence = |line: &str| ["Note: ", "Why: "].iter().any(|start| line.trim_start().starts_with(start));
    let line = |line| if is_sentence(line) { folded(line, width) } else { format!("{line}\n") };
    text.lines().map(line).collect()
}

/// Formats suggestions from past traffic. Its warnings are reported elsewhere. Sentences are wrapped at `width`
/// columns.
pub fn suggest_from(of: &Suggested, width: usize) -> String {
    let sources = of.report.rules.iter().flat_map(|rule| &rule.limits);
    let sources = sources.filter_map(|limit| Some(limit.observed.as_ref()?.sources)).max().unwrap_or(0);
    let rules: String = of.report.rules.iter().map(limits).collect();
    sentences(&(input(&of.input, "observed", "", sources) + &rules), width)
}

fn rule(rule: &RuleSuggestion) -> String {
    let mode = match rule.mode {
        Mode::Enforce => "enforced",
        Mode::DryRun => "dry run",
    };
    format!("Rule {} ({mode})\n", rule.name) + &limits(rule)
}

fn limits(rule: &RuleSuggestion) -> String {
    let mut out = String::new();
    for of in &rule.limits {
        out += "\n";
        out += &indented(&self::of_limit(of));
    }
    if let Some(paste) = &rule.paste {
        out += &format!("\n  In the file:          {}\n  On the command line:  {}\n", paste.file, paste.flags);
    }
    out
}

fn of_limit(of: &LimitSuggestion) -> String {
    let mut out = match of.is_assumed {
        true => format!("Window of {}, {}", window(of), of.limit.unit.label()),
        false => format!("Now {}", limit(&of.limit)),
    };
    let unit = of.limit.unit;
    if let Some(observed) = &of.observed {
        out += &format!("; {} observed in {}\n", counted(observed.sources, "source"), duration(observed.seconds));
        if let Some(busiest) = &observed.busiest_window {
            out += &format!("\nWhat each source wanted in its busiest {}, in {}, at most:\n", window(of), unit.label());
            out += &indented(&distribution(busiest, unit));
        }
        if observed.sources > 0 {
            out += &format!("\nWhat other limits would have blocked{}:\n", since(observed));
            out += &indented(&candidates(observed, unit, (!of.is_assumed).then_some(of.limit.amount)));
        }
        if let Some(gap) = &observed.widest_gap {
            out += &format!("\nWidest gap: {}\n", gap_words(gap, unit));
        }
    } else {
        out += "\n";
    }
    if let Some(proposal) = &of.proposal {
        out += &proposal_words(proposal, of);
    }
    out += &origins(of);
    out += &busiest(&of.busiest_prefixes, of.group_proposal.as_ref(), &of.limit, indented);
    let row = |of: &ListOver| [of.file.clone(), number(of.sources), number(of.wanted)];
    out += &lists_seen(of.busiest_lists.iter().map(row), indented);
    if !of.notes.is_empty() {
        out += "\n";
    }
    of.notes.iter().for_each(|note| out += &format!("Note: {note}\n"));
    out
}

/// Formats the prefixes and lists of the sources over the proposed limit.
fn origins(of: &LimitSuggestion) -> String {
    let mut out = String::new();
    if !of.prefixes.is_empty() {
        let row = |of: &PrefixOver| [of.prefix.clone(), number(of.sources), number(of.wanted)];
        let rows = of.prefixes.iter().take(PREFIXES_NAMED_MAX).map(row);
        out += "\nPrefixes with several sources over it:\n";
        out += &indented(&table(["PREFIX", "SOURCES", "WANTED"], &[1, 2], rows));
    }
    if !of.lists.is_empty() {
        let row = |of: &ListOver| [of.file.clone(), number(of.sources), number(of.wanted)];
        out += "\nLists with sources over it:\n";
        out += &indented(&table(["LIST", "SOURCES", "WANTED"], &[1, 2], of.lists.iter().map(row)));
    }
    out
}

/// Formats the prefixes with the largest demand, whether or not a source in them is over a limit. Adds the limit
/// proposed for them. `set` indents the table.
pub(super) fn busiest(
    prefixes: &[BusyPrefix],
    proposal: Option<&GroupProposal>,
    limit: &Limit,
    set: fn(&str) -> String,
) -> String {
    if prefixes.is_empty() {
        return String::new();
    }
    let (unit, window) = (limit.unit, duration(limit.window_seconds));
    let row = |of: &BusyPrefix| {
        [of.prefix.clone(), number(of.sources), quantity(of.busiest_window, unit), quantity(of.wanted, unit)]
    };
    let rows = prefixes.iter().take(PREFIXES_NAMED_MAX).map(row);
    let mut out = format!("\nBusiest prefixes, {} of all their sources together:\n", unit.label());
    let busiest = format!("BUSIEST {window}");
    out += &set(&table(["PREFIX", "SOURCES", &busiest, "TOTAL"], &[1, 2, 3], rows));
    if let Some(of) = proposal {
        let over = match of.prefixes_over {
            0 => format!("none of the {} prefixes wanted more", number(of.prefixes)),
            over => format!("{} of the {} prefixes wanted more", number(over), number(of.prefixes)),
        };
        let why = match of.reason {
            GroupReason::Gap => "it lies between the ordinary prefixes and those that stand apart",
            GroupReason::TwiceP999 => "no prefix stands apart, so it is twice what 99.9% of them stay within",
            GroupReason::TwiceMax => "no prefix stands apart, so it is twice what the busiest wanted",
            GroupReason::Source => "ordinary prefixes want less than one source may, so it is the limit of one source",
        };
        out += &format!("\nProposal for prefixes: {}; {over}\n  Why: {why}\n", of.limit);
    }
    out
}

/// Formats the lists that contain any source: file, number of sources, and demand. `set` indents the table.
pub(super) fn lists_seen(rows: impl ExactSizeIterator<Item = [String; 3]>, set: fn(&str) -> String) -> String {
    if rows.len() == 0 {
        return String::new();
    }
    format!("\nLists with sources that were seen:\n{}", set(&table(["LIST", "SOURCES", "WANTED"], &[1, 2], rows)))
}

/// Formats the window, as in "busiest 5m": `5m`.
fn window(of: &LimitSuggestion) -> String {
    duration(of.limit.window_seconds)
}

/// Formats the begin of the candidates, if it is later than that of other observations.
fn since(of: &Observation) -> String {
    if of.candidates_since == of.since {
        return String::new();
    }
    format!(" since {}", of.candidates_since.strftime("%Y-%m-%d %H:%M:%S UTC"))
}

fn distribution(of: &BusiestWindow, unit: Unit) -> String {
    let values = [of.median, of.p90, of.p99, of.p999, of.max].map(|value| quantity(value, unit));
    table(["HALF OF THEM", "90%", "99%", "99.9%", "ALL"], &[0, 1, 2, 3, 4], [values])
}

fn candidates(of: &Observation, unit: Unit, now: Option<u64>) -> String {
    let row = |candidate: &Candidate| {
        let mark = if now == Some(candidate.amount) { " (now)" } else { "" };
        [
            format!("{}{mark}", candidate.limit),
            number(candidate.sources_blocked),
            percent(candidate.sources_share),
            quantity(candidate.blocked, unit),
            percent(candidate.blocked_share),
        ]
    };
    let blocked = match unit {
        Unit::Requests => "REQUESTS",
        Unit::Connections => "CONNECTIONS",
        Unit::Packets => "PACKETS",
        Unit::Bytes => "BYTES",
    };
    table(["LIMIT", "SOURCES", "OF ALL", blocked, "OF ALL"], &[1, 2, 3, 4], of.candidates.iter().map(row))
}

fn gap_words(gap: &Gap, unit: Unit) -> String {
    let (below, above) = (quantity(gap.below, unit), quantity(gap.above, unit));
    format!("no source between {below} and {above}; {} above it", counted(gap.sources_above, "source"))
}

fn proposal_words(proposal: &Proposal, of: &LimitSuggestion) -> String {
    let sources = of.observed.as_ref().map_or(0, |observed| observed.sources);
    let blocked = match proposal.sources_blocked {
        0 => format!("none of the {} observed", counted(sources, "source")),
        some => format!("{} of the {} observed", number(some), counted(sources, "source")),
    };
    let word = if proposal.provisional { "Provisional proposal" } else { "Proposal" };
    let unit = of.limit.unit;
    let why = match (proposal.reason, &proposal.gap) {
        (ProposalReason::Gap, Some(gap)) => format!(
            "it lies between ordinary sources, which want up to {}, and {} that want{} {} and more",
            quantity(gap.below, unit),
            counted(gap.sources_above, "other"),
            if gap.sources_above == 1 { "s" } else { "" },
            quantity(gap.above, unit)
        ),
        (ProposalReason::Gap, None) => "it lies in a gap".to_owned(),
        (ProposalReason::TwiceP999, _) => {
            "no source stands apart from the others, so it is twice what 99.9% of them stay within".to_owned()
        }
        (ProposalReason::TwiceMax, _) => {
            "no source stands apart from the others, so it is twice what the busiest wanted".to_owned()
        }
    };
    format!("\n{word}: {}, which would have blocked {blocked}\n  Why: {why}\n", proposal.limit)
}

fn quantity(value: u64, unit: Unit) -> String {
    match unit {
        Unit::Requests | Unit::Connections | Unit::Packets => number(value),
        Unit::Bytes => amount::rounded(value),
    }
}

/// Formats a share. Only exact values are shown as 0 % and 100 %.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if share > 0.0 && percent < 0.1 {
        return "<0.1%".to_owned();
    }
    if share < 1.0 && percent > 99.9 {
        return ">99.9%".to_owned();
    }
    if percent == 0.0 || (10.0..99.0).contains(&percent) || share >= 1.0 {
        return format!("{percent:.0}%");
    }
    format!("{percent:.1}%")
}

fn indented(text: &str) -> String {
    text.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") }).collect()
}
