//! Statistics of a filter that continues without a daemon, read from its pins.

use std::path::Path;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::OutputFormat;
use super::run::{print_json, print_words};
use crate::error;
use ratelimit_control::orphan::{since, still_enforcing};
use ratelimit_datapath::{Lapse, Left};
use ratelimit_kernel::read_left;
use ratelimit_policy::config::rule::RULE_NAME_DEFAULT;
use ratelimit_policy::config::{FILE_DEFAULT, file};
use ratelimit_report::snapshot::{Mode, Snapshot};
use ratelimit_view::Page;

/// Fields of a snapshot and of its rules that pins do not contain.
const UNKNOWN: [&str; 8] = ["version", "uptime_seconds", "counting", "sources", "events", "config", "fleet", "top"];
const UNKNOWN_OF_RULES: [&str; 3] = ["limits", "banned", "sources_over_limit"];

/// Prints the statistics, or a warning if they cannot be read.
pub(super) fn stats(left: &Left, format: OutputFormat, page: Page) -> anyhow::Result<()> {
    let (policy, reading) = match read_left(left, &names()) {
        Ok(read) => read,
        Err(error) => {
            error::warn(&format!("its statistics cannot be read: {:#}", anyhow::Error::from(error)));
            return Ok(());
        }
    };
    let (snapshot, now) = (Snapshot::of_pins(&policy, &reading), Timestamp::now());
    match format {
        OutputFormat::Human => {
            let lead = still_enforcing(left, now);
            let dry_run = if matches!(left.lapse, Some(Lapse::Since(_))) { "" } else { dry_run(&snapshot) };
            print_words(&format!("{lead}{dry_run}\n\n{}", ratelimit_view::left(&snapshot, page)))?;
        }
        OutputFormat::Json => drop(print_json(&as_json(&snapshot, left, now)?)?),
    }
    Ok(())
}

/// Returns a note that nothing is dropped, if all rules are in dry run.
const fn dry_run(snapshot: &Snapshot) -> &'static str {
    match snapshot.mode {
        Mode::Enforce => "",
        Mode::DryRun => ": its rules are in dry run, and drop nothing",
    }
}

/// Returns the JSON of `stats --json` without the unknown fields, and with `without_daemon`.
fn as_json(snapshot: &Snapshot, left: &Left, now: Timestamp) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(snapshot)?;
    let without = |value: &mut Value, unknown: &[&str]| {
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|field, _| !unknown.contains(&field.as_str()));
        }
    };
    without(&mut value, &UNKNOWN);
    for rule in value.get_mut("rules").and_then(Value::as_array_mut).into_iter().flatten() {
        without(rule, &UNKNOWN_OF_RULES);
    }
    let pins: Vec<_> = left.links.iter().map(|(_, path)| path.display().to_string()).collect();
    let interfaces: Vec<_> = left.links.iter().map(|(name, _)| name).collect();
    let alone = left.alone.map(|alone| alone.as_secs_f64());
    if let Some(fields) = value.as_object_mut() {
        let (at, is_over) = match left.lapse {
            None => (None, false),
            Some(Lapse::In(after)) => (now.checked_add(after).ok(), false),
            Some(Lapse::Since(ago)) => (now.checked_sub(ago).ok(), true),
        };
        let without_daemon = json!({ "interfaces": interfaces, "since": since(left, now), "seconds": alone, "pins": pins,
            "dry_run_at": at, "dry_run": is_over });
        fields.insert("without_daemon".to_owned(), without_daemon);
    }
    Ok(value)
}

/// Returns the likely names of rules, because pins hold only a hash of each name.
fn names() -> Vec<String> {
    let configured = file::load(Path::new(FILE_DEFAULT)).map(|config| config.policy.rules).unwrap_or_default();
    [RULE_NAME_DEFAULT.to_owned()].into_iter().chain(configured.into_iter().map(|rule| rule.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelimit_datapath::PinnedLayout;

    #[test]
    fn a_filter_of_a_dry_run_is_said_to_drop_nothing() {
        let mut snapshot = ratelimit_report::fixture::snapshot();
        assert_eq!(dry_run(&snapshot), "");
        snapshot.mode = Mode::DryRun;
        assert_eq!(dry_run(&snapshot), ": its rules are in dry run, and drop nothing");
    }

    #[test]
    fn json_has_what_pins_tell_and_nothing_that_is_only_guessed() {
        let snapshot = ratelimit_report::fixture::snapshot();
        let left = Left {
            root: "/sys/fs/bpf/ratelimitd".into(),
            dir: "/sys/fs/bpf/ratelimitd/v1".into(),
            layout: PinnedLayout::Own,
            links: vec![("eth0".into(), "/sys/fs/bpf/ratelimitd/v1/link-eth0".into())],
            alone: Some(std::time::Duration::from_secs(180)),
            lapse: Some(Lapse::In(std::time::Duration::from_secs(60))),
        };
        let value = as_json(&snapshot, &left, "2026-01-01T10:03:00Z".parse().unwrap()).unwrap();
        let expected = json!({ "interfaces": ["eth0"], "since": "2026-01-01T10:00:00Z", "seconds": 180.0,
            "pins": ["/sys/fs/bpf/ratelimitd/v1/link-eth0"], "dry_run_at": "2026-01-01T10:04:00Z", "dry_run": false });
        assert_eq!(value["without_daemon"], expected);
        assert_eq!((&value["schema"], &value["interfaces"][0]["packets"]["dropped"]), (&json!(1), &json!(40)));
        assert_eq!(value["rules"][0]["dropped"], 40);
        let of_rule = ["/rules/0/limits", "/rules/0/banned", "/rules/0/sources_over_limit"];
        for unknown in ["/sources", "/events", "/config", "/uptime_seconds"].iter().chain(&of_rule) {
            assert_eq!(value.pointer(unknown), None, "{unknown}");
        }
    }
}
