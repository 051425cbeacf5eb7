//! What integration-test's `cost` and `flood` print, and so docs/performance.json.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Everything that was measured.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) program: Option<ProgramCost>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) floods: Option<Floods>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) servers: Option<Servers>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) growth: Option<Growth>,
}

/// The program alone.
#[derive(Serialize, Deserialize)]
pub(super) struct ProgramCost {
    pub(super) kernel: String,
    pub(super) processor: String,
    pub(super) rounds: u32,
    pub(super) repeat: u32,
    pub(super) verified_instructions: u32,
    pub(super) translated_bytes: u32,
    pub(super) jited_bytes: u32,
    /// The same of each of its functions; of none where it was measured before they were.
    #[serde(default)]
    pub(super) functions: BTreeMap<String, u32>,
    /// Of the program at TCX; nothing where it was measured before there was one.
    #[serde(default)]
    pub(super) at_tcx: Size,
    pub(super) bare_ns: Spread,
    pub(super) rows: Vec<Row>,
}

/// How large a program is.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Size {
    pub(super) verified_instructions: u32,
    pub(super) translated_bytes: u32,
    pub(super) jited_bytes: u32,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) verdict: String,
    /// How many limits the rule has.
    pub(super) limits: usize,
    pub(super) ns: Spread,
    pub(super) above_bare_ns: Spread,
    #[serde(flatten)]
    pub(super) steadiness: Steadiness,
}

/// By how much a row's floor varied between rounds, as a share of its median, and how often it was measured again for that.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Steadiness {
    pub(super) floor_varied: f64,
    pub(super) measured_again: u32,
}

/// Median, least and most.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

/// Floods against receivers.
#[derive(Serialize, Deserialize)]
pub(super) struct Floods {
    pub(super) kernel: String,
    pub(super) processor: String,
    /// What was measured by.
    pub(super) clock: String,
    pub(super) rounds: u32,
    /// The others, as they call themselves.
    pub(super) programs: Vec<String>,
    pub(super) rows: Vec<Flood>,
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Flood {
    pub(super) id: String,
    pub(super) name: String,
    /// What costs are counted from.
    #[serde(default)]
    pub(super) floor: Floor,
    /// Share of its packets that the limiter passed, whatever it counted them as.
    pub(super) limiter_passed: f64,
    pub(super) receivers: Vec<Receiver>,
    #[serde(flatten)]
    pub(super) steadiness: Steadiness,
}

/// What the costs of a row are counted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Floor {
    /// The bare program, for all.
    #[default]
    Bare,
    /// What drops right behind each receiver, alone.
    Own,
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Receiver {
    pub(super) id: String,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Outcome {
    Measured {
        frames: u32,
        ns: Spread,
        above_bare_ns: Spread,
        /// The same above the receiver's floor; none where it was measured before there were any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        above_floor_ns: Option<Spread>,
        /// Share of its packets that the receiver passed; likewise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        passed: Option<f64>,
    },
    /// Why it was not, and what would help.
    Missing { missing: String },
}

impl Flood {
    /// What a packet costs one of the receivers, and how much of it is above the empty program.
    pub(super) fn of(&self, id: &str) -> Option<(Spread, Spread)> {
        match self.receivers.iter().find(|receiver| receiver.id == id)?.outcome {
            Outcome::Measured { ns, above_bare_ns, .. } => Some((ns, above_bare_ns)),
            Outcome::Missing { .. } => None,
        }
    }

    /// What a packet costs one of the receivers above its floor.
    pub(super) fn above_floor(&self, id: &str) -> Option<Spread> {
        match self.receivers.iter().find(|receiver| receiver.id == id)?.outcome {
            Outcome::Measured { above_bare_ns, above_floor_ns, .. } => match self.floor {
                Floor::Bare => Some(above_bare_ns),
                Floor::Own => above_floor_ns,
            },
            Outcome::Missing { .. } => None,
        }
    }

    /// Share of its packets that one of the receivers passed.
    pub(super) fn passed(&self, id: &str) -> Option<f64> {
        match self.receivers.iter().find(|receiver| receiver.id == id)?.outcome {
            Outcome::Measured { passed, .. } => passed,
            Outcome::Missing { .. } => None,
        }
    }

    /// Why a receiver was not measured; nothing where it was, and where nobody says.
    pub(super) fn missing(&self, id: &str) -> Option<&str> {
        match &self.receivers.iter().find(|receiver| receiver.id == id)?.outcome {
            Outcome::Measured { .. } => None,
            Outcome::Missing { missing } => Some(missing),
        }
    }
}

/// Whole servers, with one thing or another before them.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Servers {
    Measured {
        rounds: u32,
        /// Connections that the client has open, and seconds of a run.
        connections: String,
        seconds: String,
        rows: Vec<Server>,
    },
    Missing {
        missing: String,
    },
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Server {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) receivers: Vec<Answering>,
    #[serde(flatten)]
    pub(super) steadiness: Steadiness,
}

/// What is before a server.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Answering {
    pub(super) id: String,
    #[serde(flatten)]
    pub(super) outcome: AnswersOutcome,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum AnswersOutcome {
    Measured {
        /// Requests in a second.
        answered: Spread,
        /// The same, of what is answered behind a bare `XDP_PASS` in the same round.
        percent_of_pass: Spread,
    },
    Missing {
        missing: String,
    },
}

impl Server {
    /// Requests in a second with this before it, and which share of those behind a bare `XDP_PASS`, in percent.
    pub(super) fn of(&self, id: &str) -> Option<(Spread, Spread)> {
        match self.receivers.iter().find(|receiver| receiver.id == id)?.outcome {
            AnswersOutcome::Measured { answered, percent_of_pass } => Some((answered, percent_of_pass)),
            AnswersOutcome::Missing { .. } => None,
        }
    }
}

/// How the limiter's cost grows.
#[derive(Serialize, Deserialize)]
pub(super) struct Growth {
    pub(super) rounds: u32,
    pub(super) points: Vec<Point>,
    pub(super) cpus: Cpus,
    pub(super) reading: Readings,
}

/// Packets while all windows are read.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Readings {
    Measured { sources: u32, cases: Vec<Reading> },
    Missing { missing: String },
}

#[derive(Serialize, Deserialize)]
pub(super) struct Reading {
    pub(super) name: String,
    pub(super) alone_ns: Spread,
    pub(super) beside_ns: Spread,
    /// By how much a packet costs more in a round's second run, beside the reader.
    pub(super) more_percent: Spread,
    /// How long it takes to read all windows once.
    pub(super) took_ms: Spread,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Point {
    /// Of what there are so many.
    pub(super) series: String,
    pub(super) count: u64,
    pub(super) ns: Spread,
    pub(super) above_bare_ns: Spread,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Cpus {
    Measured { cases: Vec<Case> },
    Missing { missing: String },
}

#[derive(Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) ns: Spread,
    pub(super) bare_ns: Spread,
    pub(super) above_bare_ns: Spread,
}

impl Report {
    pub(super) fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).context("write what was measured as JSON")
    }
}

#[cfg(test)]
pub(super) fn flood(id: &str, above: &[(&str, f64)]) -> Flood {
    let spread = |median| Spread { median, min: median - 1.0, max: median + 1.0 };
    let receivers = above.iter().map(|&(id, above)| Receiver {
        id: id.to_owned(),
        outcome: Outcome::Measured {
            frames: 1,
            ns: spread(200.0 + above),
            above_bare_ns: spread(above),
            above_floor_ns: Some(spread(above)),
            passed: Some(0.0),
        },
    });
    let floor = Floor::Bare;
    let steadiness = Steadiness::default();
    let (id, name) = (id.to_owned(), id.to_owned());
    Flood { id, name, floor, limiter_passed: 0.0, receivers: receivers.collect(), steadiness }
}
