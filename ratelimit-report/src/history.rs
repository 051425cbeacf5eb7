//! Recorded history in the form of `history --json`, its CSV and the web page: episodes, acts, worst sources, chart
//! series.
//!
//! Field names are those of schema 1: fields are added, never renamed. The module knows no database and no clock.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// History of one address or prefix: `history IP --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryReport {
    /// Version of the JSON schema, [`crate::snapshot::SCHEMA`].
    pub schema: u32,
    /// Address or prefix that was asked for.
    pub source: String,
    /// Episodes of the source, newest first.
    pub episodes: Vec<Episode>,
    /// Acts that concern the source, newest first.
    pub acts: Vec<Act>,
    /// True if older episodes or acts exist.
    pub more: bool,
    /// True if older episodes exist.
    #[serde(default)]
    pub more_episodes: bool,
    /// True if older acts exist.
    #[serde(default)]
    pub more_acts: bool,
    /// Periods in which events were lost, newest first. Records from then may be missing.
    #[serde(default)]
    pub losses: Vec<Loss>,
}

/// Period in which events were lost before they reached the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Last time before the loss at which no event was missing.
    pub began: Timestamp,
    /// Time at which the loss was last seen.
    pub ended: Timestamp,
    /// Number of lost events.
    pub events: u64,
}

/// Period in which one limit of a rule refused or banned a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Episode {
    /// Address, or the prefix if it counts as one client or whole addresses are not kept.
    pub source: String,
    /// Name of the rule.
    pub rule: String,
    /// Limit in words, as in `1000/5m requests`.
    pub limit: String,
    /// Label of the reason; `dry_run` if nothing was dropped.
    pub reason: String,
    /// Time of the first refusal.
    pub began: Timestamp,
    /// Time of the last refusal, or end of the ban; none while the episode goes on.
    pub ended: Option<Timestamp>,
    /// Number of refused packets.
    pub packets: u64,
    /// Number of refused bytes.
    pub bytes: u64,
    /// Largest use of the limit, in its unit.
    pub peak: u64,
    /// True if nothing was dropped, because the rule is in dry run or the limit is a shadow limit.
    pub would: bool,
    /// Label of the cause of the end: `expired`, `lifted`, `detached`. None while the episode goes on, or if an earlier
    /// version wrote it.
    #[serde(default)]
    pub cause: Option<String>,
}

/// Action of a command, an application or the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    /// Time of the act.
    pub time: Timestamp,
    /// Label of the event's kind, such as `deny`.
    pub what: String,
    /// Prefix that the act concerns.
    pub source: Option<String>,
    /// Author, as in `root (alice)`.
    pub by: Option<String>,
    /// Reason, as the author gave it.
    pub reason: Option<String>,
    /// Description of the act in words.
    pub detail: String,
}

/// Sources with the most refusals in a period: `history --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorstReport {
    /// Version of the JSON schema, [`crate::snapshot::SCHEMA`].
    pub schema: u32,
    /// Start of the period.
    pub since: Timestamp,
    /// End of the period.
    pub until: Timestamp,
    /// Refused sources, then sources that would have been refused. Each part is sorted by packets, most first.
    pub sources: Vec<WorstSource>,
    /// Number of further sources.
    pub omitted: u64,
    /// Losses of events within the period, newest first. Sources that were refused then may be missing.
    #[serde(default)]
    pub losses: Vec<Loss>,
}

/// Source in [`WorstReport`]. Its packets are the totals of all episodes that touch the period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorstSource {
    /// Address or prefix of the source.
    pub source: String,
    /// Number of episodes of the source.
    pub episodes: u64,
    /// Names of the rules that refused the source.
    pub rules: Vec<String>,
    /// Labels of the reasons.
    pub reasons: Vec<String>,
    /// Start of the first episode.
    pub began: Timestamp,
    /// End of the last episode; none while one goes on.
    pub ended: Option<Timestamp>,
    /// Number of refused packets.
    pub packets: u64,
    /// Number of refused bytes.
    pub bytes: u64,
    /// True if nothing was dropped.
    pub would: bool,
}

/// Traffic over a period, for charts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesReport {
    /// Version of the JSON schema, [`crate::snapshot::SCHEMA`].
    pub schema: u32,
    /// Start of the first step.
    pub since: Timestamp,
    /// End of the last step.
    pub until: Timestamp,
    /// Length of a step in seconds.
    pub step_seconds: u64,
    /// One line per rule, reason and outcome.
    pub lines: Vec<Line>,
}

/// Line of a chart. A step is none if nothing at all was recorded, for example while no daemon ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Name of the rule.
    pub rule: String,
    /// Label of the reason.
    pub reason: String,
    /// Outcome for the packets.
    pub outcome: Outcome,
    /// Number of packets in each step.
    pub packets: Vec<Option<u64>>,
    /// Number of bytes in each step.
    pub bytes: Vec<Option<u64>>,
}

/// Outcome for packets of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The packets passed.
    Admitted,
    /// The packets were dropped.
    Dropped,
    /// The packets passed because of dry run and would have been dropped by an enforced rule.
    Would,
}

impl Outcome {
    /// All outcomes, in ascending order.
    pub const ALL: [Self; 3] = [Self::Admitted, Self::Dropped, Self::Would];

    /// Returns the name in JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Dropped => "dropped",
            Self::Would => "would",
        }
    }
}

/// State of the history, for `stats --json`, `/healthz` and the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// State of writing to the database.
    pub state: HealthState,
    /// Present or recent problem and its remedy, in words.
    pub detail: Option<String>,
    /// Number of records lost since the start because the queue was full.
    pub lost: u64,
    /// Number of records waiting to be written.
    pub waiting: u64,
    /// Size of the database in bytes.
    pub bytes: u64,
}

/// Writing state of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    /// Records are written every second.
    Ok,
    /// Writing fails at present and is retried.
    Failing,
    /// This daemon writes no history: it is turned off, or a newer version created the database.
    Off,
}

impl HistoryReport {
    /// Returns the report as CSV: a header, then one line per episode, act and loss.
    pub fn csv(&self) -> String {
        let mut out = csv_line([
            "what",
            "source",
            "rule",
            "limit",
            "reason",
            "began",
            "ended",
            "packets",
            "bytes",
            "peak",
            "by",
            "detail",
            "cause",
            "events_lost",
        ]);
        for of in &self.episodes {
            let what = if of.would { "would_refuse" } else { "episode" };
            let ended = of.ended.map(|ended| ended.to_string()).unwrap_or_default();
            let (began, packets, bytes, peak) =
                (of.began.to_string(), of.packets.to_string(), of.bytes.to_string(), of.peak.to_string());
            out += &csv_line([
                what,
                &of.source,
                &of.rule,
                &of.limit,
                &of.reason,
                &began,
                &ended,
                &packets,
                &bytes,
                &peak,
                "",
                "",
                of.cause.as_deref().unwrap_or_default(),
                "",
            ]);
        }
        for of in &self.acts {
            let time = of.time.to_string();
            let or_none = |text: &'_ Option<String>| text.clone().unwrap_or_default();
            let (source, reason, by) = (or_none(&of.source), or_none(&of.reason), or_none(&of.by));
            out += &csv_line([&of.what, &source, "", "", &reason, &time, &time, "", "", "", &by, &of.detail, "", ""]);
        }
        for of in &self.losses {
            let (began, ended, events) = of.texts();
            out += &csv_line(["loss", "", "", "", "", &began, &ended, "", "", "", "", Loss::WORDS, "", &events]);
        }
        out
    }
}

impl Loss {
    /// Text that marks a loss in CSV.
    const WORDS: &str = "NOT COMPLETE: events were lost";

    /// Returns the total number of lost events.
    pub fn sum(losses: &[Self]) -> u64 {
        losses.iter().fold(0, |sum: u64, of| sum.saturating_add(of.events))
    }

    fn texts(&self) -> (String, String, String) {
        (self.began.to_string(), self.ended.to_string(), self.events.to_string())
    }
}

impl WorstReport {
    /// Returns the report as CSV: a header, then one line per source and per loss. A loss has no source.
    pub fn csv(&self) -> String {
        let mut out = csv_line([
            "source",
            "would",
            "episodes",
            "rules",
            "reasons",
            "began",
            "ended",
            "packets",
            "bytes",
            "events_lost",
        ]);
        for of in &self.sources {
            out += &csv_line([
                &of.source,
                &of.would.to_string(),
                &of.episodes.to_string(),
                &of.rules.join(" "),
                &of.reasons.join(" "),
                &of.began.to_string(),
                &of.ended.map(|ended| ended.to_string()).unwrap_or_default(),
                &of.packets.to_string(),
                &of.bytes.to_string(),
                "",
            ]);
        }
        for of in &self.losses {
            let (began, ended, events) = of.texts();
            out += &csv_line(["", "", "", "", Loss::WORDS, &began, &ended, "", "", &events]);
        }
        out
    }
}

/// Formats one CSV line by RFC 4180, with a Unix line end. Texts that a spreadsheet would take for a formula get a `'`
/// in front.
fn csv_line<const N: usize>(fields: [&str; N]) -> String {
    let field = |text: &str| {
        let text = if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text.to_owned() };
        if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
    };
    fields.map(field).join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_fields_that_scripts_rely_on() {
        let report = HistoryReport {
            schema: 1,
            source: "192.0.2.1".to_owned(),
            episodes: vec![episode()],
            acts: vec![act("noisy")],
            more: false,
            more_episodes: false,
            more_acts: false,
            losses: Vec::new(),
        };
        let json = serde_json::to_value(&report).unwrap();
        let has = |of: &serde_json::Value, names: &[&str]| names.iter().all(|name| of.get(name).is_some());
        assert!(
            has(&json, &["schema", "source", "episodes", "acts", "more", "more_episodes", "more_acts", "losses"]),
            "{json}"
        );
        let fields = ["rule", "limit", "reason", "began", "ended", "packets", "bytes", "peak"];
        assert!(has(&json["episodes"][0], &fields), "{json}");
        assert!(has(&json["acts"][0], &["time", "what", "by", "reason"]), "{json}");
        assert_eq!(json["episodes"][0]["ended"], serde_json::Value::Null);
        assert_eq!(json["episodes"][0]["began"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn csv_quotes_what_would_break_a_line_and_defuses_formulas() {
        let acts = vec![act("a \"b\", c\nd"), act("=1+1")];
        let report = HistoryReport {
            schema: 1,
            source: String::new(),
            episodes: vec![episode()],
            acts,
            more: false,
            more_episodes: false,
            more_acts: false,
            losses: vec![loss()],
        };
        assert_eq!(
            report.csv(),
            "what,source,rule,limit,reason,began,ended,packets,bytes,peak,by,detail,cause,events_lost\n\
             episode,192.0.2.1,web,9/1m packets,over_limit,1970-01-01T00:00:00Z,,3,180,9,,,,\n\
             deny,192.0.2.1,,,\"a \"\"b\"\", c\nd\",1970-01-01T00:00:00Z,1970-01-01T00:00:00Z,,,,root,,,\n\
             deny,192.0.2.1,,,'=1+1,1970-01-01T00:00:00Z,1970-01-01T00:00:00Z,,,,root,,,\n\
             loss,,,,,1970-01-01T00:00:00Z,1970-01-01T00:00:00Z,,,,,NOT COMPLETE: events were lost,,5\n"
        );
    }

    #[test]
    fn an_outcome_has_one_name() {
        for outcome in Outcome::ALL {
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.label());
        }
    }

    fn episode() -> Episode {
        Episode {
            source: "192.0.2.1".to_owned(),
            rule: "web".to_owned(),
            limit: "9/1m packets".to_owned(),
            reason: "over_limit".to_owned(),
            began: Timestamp::UNIX_EPOCH,
            ended: None,
            packets: 3,
            bytes: 180,
            peak: 9,
            would: false,
            cause: None,
        }
    }

    fn loss() -> Loss {
        Loss { began: Timestamp::UNIX_EPOCH, ended: Timestamp::UNIX_EPOCH, events: 5 }
    }

    #[test]
    fn the_csv_of_the_worst_has_a_line_for_each_loss_with_as_many_fields_as_any_other() {
        let (since, until) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        let report = WorstReport { schema: 1, since, until, sources: Vec::new(), omitted: 0, losses: vec![loss()] };
        assert_eq!(
            report.csv(),
            "source,would,episodes,rules,reasons,began,ended,packets,bytes,events_lost\n\
             ,,,,NOT COMPLETE: events were lost,1970-01-01T00:00:00Z,1970-01-01T00:00:00Z,,,5\n"
        );
        assert_eq!(Loss::sum(&[loss(), loss()]), 10);
    }

    fn act(reason: &str) -> Act {
        Act {
            time: Timestamp::UNIX_EPOCH,
            what: "deny".to_owned(),
            source: Some("192.0.2.1".to_owned()),
            by: Some("root".to_owned()),
            reason: Some(reason.to_owned()),
            detail: String::new(),
        }
    }
}
