//! What was remembered, as `history --json`, its CSV and the page have it: episodes, acts, the worst of a period, series for charts.
//!
//! Field names are those of schema 1: fields are added, never renamed. Knows no database and no clock.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// `history IP --json`: all that is remembered of an address or a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryReport {
    /// [`crate::snapshot::SCHEMA`].
    pub schema: u32,
    /// The address or prefix that was asked for.
    pub source: String,
    /// Newest first.
    pub episodes: Vec<Episode>,
    /// Newest first.
    pub acts: Vec<Act>,
    /// Whether there are older episodes or acts than these.
    pub more: bool,
    /// Whether there are older episodes.
    #[serde(default)]
    pub more_episodes: bool,
    /// Whether there are older acts.
    #[serde(default)]
    pub more_acts: bool,
    /// Times in which events were lost, newest first: what happened then may be missing.
    #[serde(default)]
    pub losses: Vec<Loss>,
}

/// A time in which events were lost before they came to the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The last time before it at which nothing was lost.
    pub began: Timestamp,
    /// When the loss was seen last.
    pub ended: Timestamp,
    /// How many events were lost.
    pub events: u64,
}

/// A time in which one limit of a rule refused or banned a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Episode {
    /// The address, or the prefix where one is one client or whole addresses are not kept.
    pub source: String,
    /// The rule's name.
    pub rule: String,
    /// The limit, as in `1000/5m requests`.
    pub limit: String,
    /// The label of the reason; `dry_run` where nothing was dropped.
    pub reason: String,
    /// The first refusal.
    pub began: Timestamp,
    /// The last one, or the end of the ban; none while it goes on.
    pub ended: Option<Timestamp>,
    /// Packets refused.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The most that was used of the limit, in its unit.
    pub peak: u64,
    /// Whether nothing was dropped: a rule in dry run, or a shadow limit.
    pub would: bool,
    /// The label of why it ended: `expired`, `lifted`, `detached`. None while it goes on, or where an earlier program wrote it.
    #[serde(default)]
    pub cause: Option<String>,
}

/// What a command, an application or the daemon did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    /// When.
    pub time: Timestamp,
    /// The label of the event's kind: `deny`.
    pub what: String,
    /// The prefix that it is about.
    pub source: Option<String>,
    /// Who did it, as in `root (alice)`.
    pub by: Option<String>,
    /// Why, as it was given.
    pub reason: Option<String>,
    /// It in words.
    pub detail: String,
}

/// `history --json`: who was refused most in a period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorstReport {
    /// [`crate::snapshot::SCHEMA`].
    pub schema: u32,
    /// Where the period begins.
    pub since: Timestamp,
    /// Where it ends.
    pub until: Timestamp,
    /// Those refused before those that would have been; in each the most packets first.
    pub sources: Vec<WorstSource>,
    /// How many further sources there are.
    pub omitted: u64,
    /// Times of the period in which events were lost, newest first: sources that were refused then may be missing.
    #[serde(default)]
    pub losses: Vec<Loss>,
}

/// A source in [`WorstReport`]. Packets are those of its episodes that touch the period, whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorstSource {
    /// The address or prefix.
    pub source: String,
    /// How many episodes.
    pub episodes: u64,
    /// Rules that refused it, by name.
    pub rules: Vec<String>,
    /// Labels of the reasons.
    pub reasons: Vec<String>,
    /// The first began then.
    pub began: Timestamp,
    /// The last ended then; none while one goes on.
    pub ended: Option<Timestamp>,
    /// Packets refused.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether nothing was dropped.
    pub would: bool,
}

/// Traffic over a period, for charts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesReport {
    /// [`crate::snapshot::SCHEMA`].
    pub schema: u32,
    /// The start of the first step.
    pub since: Timestamp,
    /// The end of the last step.
    pub until: Timestamp,
    /// How long a step is.
    pub step_seconds: u64,
    /// By rule, reason and outcome.
    pub lines: Vec<Line>,
}

/// One line of a chart. A step is none where nothing at all was recorded, as while no daemon ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The rule's name.
    pub rule: String,
    /// The label of the reason.
    pub reason: String,
    /// What became of the packets.
    pub outcome: Outcome,
    /// Packets in each step.
    pub packets: Vec<Option<u64>>,
    /// Bytes in each step.
    pub bytes: Vec<Option<u64>>,
}

/// What became of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// They passed.
    Admitted,
    /// They were dropped.
    Dropped,
    /// They passed, and would have been dropped were the rule enforced.
    Would,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 3] = [Self::Admitted, Self::Dropped, Self::Would];

    /// Its name in JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Dropped => "dropped",
            Self::Would => "would",
        }
    }
}

/// Whether history is kept, for `stats --json`, `/healthz` and the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Whether it is written.
    pub state: HealthState,
    /// What is wrong, or was lately, and what to do, in words.
    pub detail: Option<String>,
    /// Records lost since the start: the queue was full.
    pub lost: u64,
    /// Records that wait to be written.
    pub waiting: u64,
    /// Bytes of the database.
    pub bytes: u64,
}

/// Whether history is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    /// Every second.
    Ok,
    /// Not now; it is tried again.
    Failing,
    /// Not by this daemon: it is turned off, or the database is a newer program's.
    Off,
}

impl HistoryReport {
    /// A line an episode, then a line an act, then a line a loss; the first line names the columns.
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
    /// What a loss means, in words.
    const WORDS: &str = "NOT COMPLETE: events were lost";

    /// The number of events in all of these.
    pub fn sum(losses: &[Self]) -> u64 {
        losses.iter().fold(0, |sum: u64, of| sum.saturating_add(of.events))
    }

    fn texts(&self) -> (String, String, String) {
        (self.began.to_string(), self.ended.to_string(), self.events.to_string())
    }
}

impl WorstReport {
    /// A line a source, then a line a loss, which has no source; the first line names the columns.
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

/// RFC 4180, with the line ends of Unix. A text that a spreadsheet would take for a formula gets a `'` before it.
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
