//! Output of integration-test's `cost` and `flood`, and format of docs/performance.json.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// All measurements.
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

/// Costs of the program alone.
#[derive(Serialize, Deserialize)]
pub(super) struct ProgramCost {
    pub(super) kernel: String,
    pub(super) processor: String,
    pub(super) rounds: u32,
    pub(super) repeat: u32,
    pub(super) verified_instructions: u32,
    pub(super) translated_bytes: u32,
    pub(super) jited_bytes: u32,
    /// Bytes of machine code per function. Empty in older measurements.
    #[serde(default)]
    pub(super) functions: BTreeMap<String, u32>,
    /// Sizes of the program at TCX. Zero in older measurements.
    #[serde(default)]
    pub(super) at_tcx: Size,
    pub(super) bare_ns: Spread,
    pub(super) rows: Vec<Row>,
}

/// Size of a program.
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
    /// Number of limits in the rule.
    pub(super) limits: usize,
    pub(super) ns: Spread,
    pub(super) above_bare_ns: Spread,
    #[serde(flatten)]
    pub(super) steadiness: Steadiness,
}

/// Variation of a row's floor between rounds as a share of its median, and the number of repeated measurements.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Steadiness {
    pub(super) floor_varied: f64,
    pub(super) measured_again: u32,
}

/// Median, minimum and maximum.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

/// Costs of floods at several receivers.
#[derive(Serialize, Deserialize)]
pub(super) struct Floods {
    pub(super) kernel: String,
    pub(super) processor: String,
    /// Clock that the measurement used.
    pub(super) clock: String,
    pub(super) rounds: u32,
    /// Names and versions that the other programs report.
    pub(super) programs: Vec<String>,
    pub(super) rows: Vec<Flood>,
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Flood {
    pub(super) id: String,
    pub(super) name: String,
    /// Floor that costs are measured from.
    #[serde(default)]
    pub(super) floor: Floor,
    /// Share of its packets that the limiter passed, for any reason.
    pub(super) limiter_passed: f64,
    pub(super) receivers: Vec<Receiver>,
    #[serde(flatten)]
    pub(super) steadiness: Steadiness,
}

/// Floor that the costs of a row are measured from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Floor {
    /// The bare program, for all receivers.
    #[default]
    Bare,
    /// The program that drops right behind each receiver, measured alone.
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
        /// Cost above the receiver's floor. None in measurements older than floors.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        above_floor_ns: Option<Spread>,
        /// Share of its packets that the receiver passed. None in older measurements.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        passed: Option<f64>,
    },
    /// Reason why there is no measurement, and its remedy.
    Missing { missing: String },
}

impl Flood {
    /// Returns a packet's cost at a receiver, in total and above the empty program.
    pub(super) fn of(&self, id: &str) -> Option<(Spread, Spread)> {
        match self.receivers.iter().find(|receiver| receiver.id == id)?.outcome {
            Outcome::Measured { ns, above_bare_ns, .. } => Some((ns, above_bare_ns)),
            Outcome::Missing { .. } => None,
        }
    }

    /// Returns a packet's cost at a receiver above the receiver's floor.
    pub(super) fn above_floor(&self, id: &str) -> Option<Spread> {
        match self.receivers.iter().find(|receiver| receiver.id == id)?.outcome {
            Outcome::Measured { above_bare_ns, above_floor_ns, .. } => match self.floor {
                Floor::Bare => Some(above_bare_ns),
                Floor::Own => above_floor_ns,
            },
            Outcome::Missing { .. } => None,
        }
    }

    /// Returns the share of its packets that a receiver passed.
    pub(super) fn passed(&self, id: &str) -> Option<f64> {
        match self.receivers.iter().find(|receiver| receiver.id == id)?.outcome {
            Outcome::Measured { passed, .. } => passed,
            Outcome::Missing { .. } => None,
        }
    }

    /// Returns the reason why a receiver was not measured. None if it was measured or no reason is known.
    pub(super) fn missing(&self, id: &str) -> Option<&str> {
        match &self.receivers.iter().find(|receiver| receiver.id == id)?.outcome {
            Outcome::Measured { .. } => None,
            Outcome::Missing { missing } => Some(missing),
        }
    }
}

/// Results of whole servers behind different receivers.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Servers {
    Measured {
        rounds: u32,
        /// Number of the client's open connections, and duration of a run in seconds.
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

/// Result of a server behind one receiver.
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
        /// Answered requests per second.
        answered: Spread,
        /// Answered requests in percent of those behind a bare `XDP_PASS` in the same round.
        percent_of_pass: Spread,
    },
    Missing {
        missing: String,
    },
}

impl Server {
    /// Returns the requests per second behind a receiver, and their percentage of those behind a bare `XDP_PASS`.
    pub(super) fn of(&self, id: &str) -> Option<(Spread, Spread)> {
        match self.receivers.iter().find(|receiver| receiver.id == id)?.outcome {
            AnswersOutcome::Measured { answered, percent_of_pass } => Some((answered, percent_of_pass)),
            AnswersOutcome::Missing { .. } => None,
        }
    }
}

/// Growth of the limiter's cost.
#[derive(Serialize, Deserialize)]
pub(super) struct Growth {
    pub(super) rounds: u32,
    pub(super) points: Vec<Point>,
    pub(super) cpus: Cpus,
    pub(super) reading: Readings,
}

/// Costs of packets while all windows are read.
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
    /// Extra cost per packet in percent in a round's second run, next to the reader.
    pub(super) more_percent: Spread,
    /// Time to read all windows once, in milliseconds.
    pub(super) took_ms: Spread,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Point {
    /// Name of the quantity that `count` counts.
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
