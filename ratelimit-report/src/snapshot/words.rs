//! API names and descriptions that differ from those of the policy and the datapath.

use std::fmt;

use ratelimit_policy::config::limit::parse_condition;
use serde::{Deserialize, Serialize};

use super::seconds;
use ratelimit_policy::desired::{self, WindowForm};
use ratelimit_policy::labels;

/// Limit of a rule, as the API shows it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Amount that a window admits.
    pub amount: u64,
    /// Length of the window.
    pub window_seconds: f64,
    /// Unit that the limit counts.
    pub unit: Unit,
    /// Length of a bucket.
    pub bucket_seconds: f64,
    /// Form of the window.
    pub window: WindowForm,
    /// Groups of sources that the limit counts as one, `/24,/56` or `list`; none for a limit per source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<PerGroup>,
    /// Condition of the logged requests that the limit counts, in configuration syntax: `status=401 path=/login`. None
    /// if it counts packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<ConditionWords>,
}

/// Condition of a limit, serialized as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ConditionWords(desired::Condition);

impl From<desired::Condition> for ConditionWords {
    fn from(condition: desired::Condition) -> Self {
        Self(condition)
    }
}

impl From<ConditionWords> for String {
    fn from(words: ConditionWords) -> Self {
        words.0.to_string()
    }
}

impl TryFrom<String> for ConditionWords {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        parse_condition(&text).map(Self).map_err(|error| error.problem)
    }
}

impl fmt::Display for ConditionWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Groups of sources that a limit counts as one, serialized as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PerGroup(desired::Per);

impl From<PerGroup> for String {
    fn from(PerGroup(per): PerGroup) -> Self {
        per.label()
    }
}

impl TryFrom<String> for PerGroup {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let length = |text: &str| text.strip_prefix('/').and_then(|length| length.parse().ok());
        let prefix = || {
            let (v4, v6) = text.split_once(',')?;
            Some(desired::Per::Prefix { v4: length(v4)?, v6: length(v6)? })
        };
        let per = if text == desired::Per::List.label() { Some(desired::Per::List) } else { prefix() };
        per.map(Self).ok_or_else(|| format!("`{text}` is no group of sources"))
    }
}

impl std::fmt::Display for PerGroup {
    /// Formats the groups as a suffix of a limit: ` per /24,/56`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Unit of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Starts of a new turn in a client's conversation.
    Requests,
    /// Connections that a client opens.
    Connections,
    /// IP packets, including fragments.
    Packets,
    /// Bytes of IP packets, including headers.
    Bytes,
}

/// Meaning and accuracy of one unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counting {
    /// Unit that is described.
    pub unit: Unit,
    /// Description of one counted item.
    pub counted: String,
    /// Accuracy of the count.
    pub accuracy: String,
}

labels!(pub Unit { Requests => "requests", Connections => "connections", Packets => "packets", Bytes => "bytes" });

impl Counting {
    /// Describes the units of these limits, each once, in their order.
    pub fn of<'a>(limits: impl IntoIterator<Item = &'a desired::Limit>) -> Vec<Self> {
        let mut units: Vec<Unit> = Vec::new();
        for limit in limits {
            let unit = limit.unit.into();
            if !units.contains(&unit) {
                units.push(unit);
            }
        }
        units.into_iter().map(Self::of_unit).collect()
    }

    /// Describes the requests in a web server's log.
    pub fn of_log() -> Self {
        let accuracy = "one a line, at its logged time; refused, cut off and open ones are not in the log";
        Self { unit: Unit::Requests, counted: "lines of the log".to_owned(), accuracy: accuracy.to_owned() }
    }

    fn of_unit(unit: Unit) -> Self {
        let (counted, accuracy) = match unit {
            Unit::Requests => (
                "what begins a new turn of a client's conversation",
                "exact under HTTP/1.x, and under HTTP/2 in the clear or with one request at a time; a lower bound under HTTP/2 \
                 over TLS with several at once; an estimate under HTTP/3; an access_log corrects both; see \
                 share/doc/ratelimitd/docs/ACCURACY.md",
            ),
            Unit::Connections => (
                "TCP SYNs, QUIC Initials, and what opens any other UDP flow",
                "exact; a repeated SYN counts again, up to 8 Initials of one flow count once",
            ),
            Unit::Packets => ("IP packets, fragments included", "exact"),
            Unit::Bytes => ("bytes of IP packets, headers included", "exact"),
        };
        Self { unit, counted: counted.to_owned(), accuracy: accuracy.to_owned() }
    }
}

impl From<ratelimit_common::layout::Unit> for Unit {
    fn from(unit: ratelimit_common::layout::Unit) -> Self {
        match unit {
            ratelimit_common::layout::Unit::Requests => Self::Requests,
            ratelimit_common::layout::Unit::Connections => Self::Connections,
            ratelimit_common::layout::Unit::Packets => Self::Packets,
            ratelimit_common::layout::Unit::Bytes => Self::Bytes,
        }
    }
}

impl From<&desired::Limit> for Limit {
    fn from(limit: &desired::Limit) -> Self {
        Self {
            amount: limit.amount,
            window_seconds: seconds(limit.window_ns),
            unit: limit.unit.into(),
            bucket_seconds: seconds(limit.bucket_ns),
            window: limit.form,
            per: Some(PerGroup(limit.per)).filter(|_| limit.per != desired::Per::Source),
            condition: limit.condition.map(Into::into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::limit;
    use ratelimit_common::layout::Unit as Counted;

    #[test]
    fn a_limit_of_groups_is_read_again_as_it_is_told() {
        let of = |per| Limit::from(&desired::Limit { per, ..limit(5, Counted::Requests) });
        for (per, text) in [
            (desired::Per::Source, None),
            (desired::Per::Prefix { v4: 24, v6: 56 }, Some("/24,/56")),
            (desired::Per::List, Some("list")),
        ] {
            let json = serde_json::to_value(of(per)).expect("JSON");
            assert_eq!(json.get("per").and_then(|per| per.as_str()), text);
            assert_eq!(serde_json::from_value::<Limit>(json).expect("a limit"), of(per));
        }
        assert!(PerGroup::try_from("/24".to_owned()).is_err());
    }
}
