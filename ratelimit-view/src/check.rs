//! Output of `ratelimitd check` for an address or a prefix.

use super::{Detail, condition_words, counted, counting, duration, fleet, list, number, stats, wait};
use ratelimit_report::snapshot::{
    Bucket, Budget, CheckGuard, CheckLimit, CheckReport, Extent, GUARDED_CONNECTIONS, GUARDED_DATAGRAMS,
    GUARDED_SEGMENTS, Guarded, Mode, Outcome, PrefixReport, RuleVerdict,
};

/// Formats the report on one address: the fate of its packets, then each rule's verdict with the reason, then the state
/// of its limits. Verbose detail adds the buckets, and the accuracy of each unit's count.
pub fn check(report: &CheckReport, detail: Detail) -> String {
    let mut out = format!("{}\n", headline(report));
    if !report.remembered && matches!(report.reason.as_str(), "within_limit" | "dry_run") {
        out += "No recent traffic from this address.\n";
    }
    for of in &report.verdicts {
        out += "\n";
        out += &verdict(of);
    }
    if !report.limits.is_empty() && detail == Detail::Normal {
        out += "\n";
    }
    for limit in &report.limits {
        match detail {
            Detail::Normal => out += &self::limit(limit),
            Detail::Verbose => out += &format!("\n{}{}", self::limit(limit), buckets(limit)),
        }
    }
    if !report.guard.is_empty() {
        out += "\n";
        out += &report.guard.iter().map(guard).collect::<String>();
    }
    if !report.shadow_limits.is_empty() {
        out += "\n";
        out += &shadows(&report.shadow_limits);
    }
    if !report.counting.is_empty() && detail == Detail::Verbose {
        out += "\n";
        out += &counting(&report.counting);
    }
    out
}

/// Formats the report on a prefix: the blocked part, then the causes.
pub fn check_prefix(report: &PrefixReport) -> String {
    let prefix = &report.prefix;
    let mut out = match report.blocked {
        Extent::None => format!("{prefix} passes: no rule drops packets of an address in it.\n"),
        Extent::Some => format!("{prefix} is partly blocked.\n"),
        Extent::All => format!("{prefix} is blocked completely.\n"),
    };
    if let Some(author) = &report.decided_by {
        out += &format!("The whole network is decided by {author}.\n");
    }
    let of = &report.sources;
    out += &format!(
        "Sources: {} tracked, {} over a limit, {} banned; {} blocked by a ban or a limit\n",
        number(of.tracked),
        number(of.over_limit),
        number(of.banned),
        number(of.blocked),
    );
    if !report.entries.is_empty() {
        out += "\n";
        out += &list::entries(&report.entries, &report.omitted, usize::MAX);
    }
    if !report.top.is_empty() {
        out += "\n";
        out += &stats::top(&report.top);
    }
    if !report.groups.is_empty() {
        out += "\n";
        out += &stats::groups(&report.groups);
    }
    out
}

/// Formats shadow limits, one line each.
pub(super) fn shadows(limits: &[CheckLimit]) -> String {
    let line = |of: &CheckLimit| {
        // Packets do not show what a condition needs, and log lines show requests.
        let what = if of.condition.is_some() { "request" } else { "packet" };
        format!(
            "Shadow limit of rule {}, NEVER ENFORCED: {} of {} {}{} used in {}; {} would have been dropped\n",
            of.rule,
            number(of.used),
            number(of.limit),
            of.unit.label(),
            condition_words(of.condition),
            duration(of.window_seconds),
            counted(of.refused, what),
        )
    };
    limits.iter().map(line).collect()
}

/// Returns the first line: `198.51.100.7 is blocked on ports 22/tcp and passes on ports 80,443.`
fn headline(report: &CheckReport) -> String {
    let whom = match report.address.as_str() {
        "" => report.source.clone(),
        address if address == report.source => address.to_owned(),
        address => format!("{address} (source {})", report.source),
    };
    let on = |wanted: &dyn Fn(&&RuleVerdict) -> bool| {
        let ports: Vec<&str> = report.verdicts.iter().filter(wanted).map(|of| of.ports.as_str()).collect();
        (!ports.is_empty()).then(|| format!("on {}", ports_in_words(&ports.join(","))))
    };
    let is_dropped = |of: &&RuleVerdict| of.verdict == Outcome::Drop;
    let parts = [
        on(&|of| is_dropped(of) && !is_guarded(of)).map(|ports| format!("is blocked {ports}")),
        on(&|of| is_dropped(of) && is_guarded(of)).map(|ports| format!("is partly blocked {ports}")),
        on(&|of| !is_dropped(of)).map(|ports| format!("passes {ports}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let why = match (report.verdict, report.reason.as_str()) {
        (Outcome::Pass, "within_limit") => ": it is within every limit",
        (Outcome::Pass, "exempt") => ": it is allowed",
        (Outcome::Pass, "dry_run") => ", but only because nothing is dropped now",
        (Outcome::Pass, "not_protected") => return format!("{whom} passes: no rule judges its packets."),
        (Outcome::Pass | Outcome::Drop, _) => "",
    };
    format!("{whom} {}{why}.", parts.join(" and "))
}

/// Formats ports: `port 22/tcp`, `ports 80,443`, `all ports`.
fn ports_in_words(ports: &str) -> String {
    match ports {
        "all" => "all ports".to_owned(),
        ports if ports.contains([',', '-']) => format!("ports {ports}"),
        port => format!("port {port}"),
    }
}

/// Returns whether only the guard drops packets of this rule, so that requests pass.
fn is_guarded(of: &RuleVerdict) -> bool {
    [Some(of.reason.as_str()), of.would.as_deref()].contains(&Some("guard"))
}

/// Describes the verdict of one rule: the action, the deciding entry with its expiry, and the command that undoes it.
fn verdict(of: &RuleVerdict) -> String {
    let refuses = of.refuses.as_deref().unwrap_or("packets");
    let does = match (of.verdict, of.reason.as_str()) {
        (Outcome::Drop, _) if is_guarded(of) => format!("drops {refuses}; its requests pass"),
        (Outcome::Drop, _) => format!("drops {refuses}"),
        (Outcome::Pass, "dry_run") => format!("passes all packets, would drop {refuses}"),
        (Outcome::Pass, "exempt") => "passes all packets, uncounted".to_owned(),
        (Outcome::Pass, _) => "passes, within every limit".to_owned(),
    };
    let to = if of.to.is_empty() { String::new() } else { format!(" of {}", of.to.join(", ")) };
    let mut out = format!("Rule {} on {}{to}: {does}\n", of.rule, ports_in_words(&of.ports));
    let mut line = |name: &str, text: &str| out += &format!("  {name:<12}{text}\n");
    if of.reason == "within_limit" {
        return out;
    }
    line("decided by", &of.decided_by);
    if let Some(other) = &of.would_be_decided_by {
        line("otherwise", other);
    }
    let again =
        (!of.never && of.reason != "exempt").then(|| format!("Passes again in {}", wait(of.retry_after_seconds)));
    let would = if of.reason == "dry_run" { "would end" } else { "until" };
    match (of.until, again) {
        (Some(until), Some(again)) => line(would, &format!("{}. {again}", list::instant(until))),
        (Some(until), None) => line(would, &list::instant(until)),
        (None, _) => line("until", "permanent"),
    }
    if let Some(undo) = &of.undo {
        line("undo", undo);
    }
    // The word that events, metrics and the history use.
    line("reason", of.would.as_deref().unwrap_or(&of.reason));
    out
}

fn guard(of: &CheckGuard) -> String {
    let mode = match of.mode {
        Mode::Enforce => "",
        Mode::DryRun => ", dry run",
    };
    let whose = of.per.as_ref().map_or_else(String::new, |group| format!(" {group}:"));
    let advice =
        if of.over { "  `guard = \"off\"` in the rule turns its guard off; a higher limit widens it.\n" } else { "" };
    let used = |guarded: Guarded, what: &str| format!("{} of {} {what}", number(guarded.used), number(guarded.limit));
    let beyond = format!("{GUARDED_CONNECTIONS} beyond the first {}", number(of.connections.limit));
    let datagrams = of.datagrams.map_or_else(String::new, |of| format!(", and {}", used(of, GUARDED_DATAGRAMS)));
    format!(
        "Guard of rule {}{mode}:{whose} in {} {}, and {}{datagrams}\n{advice}",
        of.rule,
        duration(of.window_seconds),
        used(of.connections, &beyond),
        used(of.segments, GUARDED_SEGMENTS),
    )
}

fn limit(limit: &CheckLimit) -> String {
    let (mode, refused) = match limit.mode {
        Mode::Enforce => ("", "refused"),
        Mode::DryRun => (", dry run", "would have been refused"),
    };
    let newest = if limit.over && limit.remaining > 0 { ", the newest in this bucket" } else { "" };
    let elsewhere = elsewhere(limit);
    let added = limit.added_from_log.filter(|added| *added > 0);
    let added = added.map_or_else(String::new, |added| format!(" ({} of them added from the log)", number(added)));
    let budget = match limit.budget {
        None => "",
        Some(Budget::Verified) => " of established connections",
        Some(Budget::Unverified) => " of unverified traffic",
    };
    let (whose, by) = match (&limit.per, limit.sources) {
        (None, _) => (String::new(), String::new()),
        (Some(group), sources) => {
            (format!(" {group}:"), sources.map_or_else(String::new, |of| format!(" by {}", counted(of, "source"))))
        }
    };
    let condition = condition_words(limit.condition);
    format!(
        "Rule {}{mode}:{whose} {} of {} {}{condition}{budget} used{by} in {}{elsewhere}{added}, {} left; {} {refused}{newest}\n",
        limit.rule,
        number(limit.used.saturating_add(limit.used_elsewhere.unwrap_or(0))),
        number(limit.limit),
        limit.unit.label(),
        duration(limit.window_seconds),
        number(limit.remaining),
        counted(limit.refused, "packet"),
    )
}

/// Formats the usage of a limit that a fleet shares: ` (412 here, 588 elsewhere, reported 0.4 s ago)`.
fn elsewhere(limit: &CheckLimit) -> String {
    let Some(others) = limit.used_elsewhere else { return String::new() };
    let told = limit.told_seconds_ago.map_or_else(String::new, |ago| format!(", reported {}", fleet::ago(ago)));
    format!(" ({} here, {} elsewhere{told})", number(limit.used), number(others))
}

fn buckets(limit: &CheckLimit) -> String {
    let width = limit.buckets.iter().map(|bucket| number(bucket.count).len()).max().unwrap_or(0);
    let line = |bucket: &Bucket| {
        format!("  {}  {:>width$}\n", bucket.start.strftime("%Y-%m-%d %H:%M:%S UTC"), number(bucket.count))
    };
    limit.buckets.iter().map(line).collect()
}
