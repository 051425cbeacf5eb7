//! Streaming parser of an answer of the decision stream. Only a compact form is kept, whatever the size of the
//! answer. Pure.

use std::collections::HashSet;
use std::fmt;
use std::io::Read;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::go_time;
use ratelimit_policy::config::syntax::printable;

/// Maximum number of new, and of deleted, decisions taken from one answer. // 1048576 x 80 B = 84 MB
pub const DECISIONS_MAX: usize = 1 << 20;
/// Maximum number of characters of a label's scenario, and of its origin.
const LABEL_CHARS_MAX: usize = 100;
/// Decision type that becomes a denial. Types such as `captcha` need a bouncer that can challenge users.
const BAN: &str = "ban";

/// Decisions of one answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Decisions that hold from now on.
    pub new: Vec<Decision>,
    /// Values with a deleted decision.
    pub deleted: Vec<Value>,
    /// Numbers of decisions that were skipped.
    pub ignored: Ignored,
}

/// Ban of one address or range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Banned address or range.
    pub value: Value,
    /// Remaining duration in nanoseconds. Zero or negative if the decision is already over.
    pub lasts_ns: i64,
    /// Scenario and origin, such as `crowdsecurity/ssh-bf (crowdsec)`.
    pub label: Arc<str>,
    /// True if this host's own CrowdSec or its administrator decided, false if a subscribed list did.
    pub is_local: bool,
}

/// Subject of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value {
    /// Range, or the address as a full-length prefix.
    pub prefix: IpNet,
    /// True if the scope says a single address.
    pub is_address: bool,
}

/// Numbers of skipped decisions by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    /// Decisions with a scope that is neither an address nor a range.
    pub scopes: u64,
    /// Decisions of a type other than ban.
    pub types: u64,
    /// Decisions with a malformed value or duration, or with a range that is too wide.
    pub malformed: u64,
    /// Decisions in excess of [`DECISIONS_MAX`].
    pub beyond: u64,
}

impl Ignored {
    /// Returns the numbers in words, or none if nothing was skipped.
    pub fn words(&self) -> Option<String> {
        let all = [
            (self.scopes, "with another scope"),
            (self.types, "with another type than ban"),
            (self.malformed, "malformed"),
            (self.beyond, "beyond the maximum of one answer"),
        ];
        let said: Vec<String> = all.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        (!said.is_empty()).then(|| said.join(", "))
    }
}

/// Parses one answer. Fails if the answer is truncated. A failed answer has no effect.
pub fn read(from: impl Read) -> Result<Delta, serde_json::Error> {
    read_slowly(from, &|| 0)
}

/// Parses an answer that arrives slowly. `since` returns the nanoseconds since the answer began. A decision's
/// duration counts from its own arrival, not from the answer's end, which may be minutes later.
pub fn read_slowly(from: impl Read, since: &dyn Fn() -> i64) -> Result<Delta, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_reader(from);
    let mut labels = Labels { known: HashSet::new(), since };
    let mut delta = Answer(&mut labels).deserialize(&mut deserializer)?;
    deserializer.end()?;
    let end = since();
    for decision in &mut delta.new {
        decision.lasts_ns = decision.lasts_ns.saturating_sub(end);
    }
    Ok(delta)
}

/// Decision as the local API writes it. Fields may be missing or null.
#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    origin: Option<String>,
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    scope: Option<String>,
    #[serde(default)]
    value: Option<String>,
    #[serde(default)]
    duration: Option<String>,
    #[serde(default)]
    scenario: Option<String>,
}

/// Interned labels and the clock. A list of 100,000 decisions has only a few distinct labels.
struct Labels<'c> {
    known: HashSet<Arc<str>>,
    since: &'c dyn Fn() -> i64,
}

impl Labels<'_> {
    fn of(&mut self, wire: &Wire) -> Arc<str> {
        let short = |text: &Option<String>| {
            let text: String = text.as_deref().unwrap_or("?").chars().take(LABEL_CHARS_MAX).collect();
            printable(&text).replace(['\n', '\r'], " ")
        };
        let label = format!("{} ({})", short(&wire.scenario), short(&wire.origin));
        if let Some(label) = self.known.get(label.as_str()) {
            return Arc::clone(label);
        }
        let label: Arc<str> = label.into();
        // The bound keeps memory finite even if every scenario differs.
        if self.known.len() < 4_096 {
            self.known.insert(Arc::clone(&label));
        }
        label
    }
}

enum Judged {
    Taken(Value),
    Scope,
    Type,
    Malformed,
}

impl Wire {
    fn judged(&self) -> Judged {
        let is =
            |field: &Option<String>, wanted: &str| field.as_deref().is_some_and(|of| of.eq_ignore_ascii_case(wanted));
        let is_address = is(&self.scope, "ip");
        if !is_address && !is(&self.scope, "range") {
            return Judged::Scope;
        }
        if !is(&self.kind, BAN) {
            return Judged::Type;
        }
        let prefix = self.value.as_deref().and_then(|text| prefix(text.trim()));
        let prefix = prefix.filter(|prefix| !ratelimit_policy::safety::is_too_wide(*prefix));
        prefix.map_or(Judged::Malformed, |prefix| {
            Judged::Taken(Value { prefix, is_address: is_address && prefix.prefix_len() == prefix.max_prefix_len() })
        })
    }
}

/// Parses an address or a range. Clears the host bits, and maps an IPv4-mapped address to IPv4.
fn prefix(text: &str) -> Option<IpNet> {
    match text.parse::<IpAddr>() {
        Ok(address) => Some(IpNet::from(address.to_canonical())),
        Err(_) => ratelimit_policy::config::network::parse_cidr_of_any_bits(text).ok(),
    }
}

/// Deserializer of the whole answer, `{"new": [..], "deleted": [..]}`.
struct Answer<'a, 'c>(&'a mut Labels<'c>);

impl<'de> DeserializeSeed<'de> for Answer<'_, '_> {
    type Value = Delta;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Delta, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Answer<'_, '_> {
    type Value = Delta;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer of the decision stream")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Delta, A::Error> {
        let mut delta = Delta::default();
        let mut is_stream = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "new" => map.next_value_seed(Decisions { labels: self.0, delta: &mut delta, part: Field::New })?,
                "deleted" => {
                    map.next_value_seed(Decisions { labels: self.0, delta: &mut delta, part: Field::Deleted })?
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            }
            is_stream = true;
        }
        // Any other JSON object would otherwise be taken as an empty answer.
        if is_stream { Ok(delta) } else { Err(serde::de::Error::missing_field("new")) }
    }
}

#[derive(Clone, Copy)]
enum Field {
    New,
    Deleted,
}

/// Deserializer of a list of decisions, or null.
struct Decisions<'a, 'c> {
    labels: &'a mut Labels<'c>,
    delta: &'a mut Delta,
    part: Field,
}

impl<'de> DeserializeSeed<'de> for Decisions<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Decisions<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of decisions, or null")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self { labels, delta: Delta { new, deleted, ignored }, part } = self;
        while let Some(wire) = list.next_element::<Wire>()? {
            let value = match wire.judged() {
                Judged::Taken(value) => value,
                Judged::Scope => {
                    ignored.scopes += 1;
                    continue;
                }
                Judged::Type => {
                    ignored.types += 1;
                    continue;
                }
                Judged::Malformed => {
                    ignored.malformed += 1;
                    continue;
                }
            };
            match (part, wire.duration.as_deref().and_then(go_time::nanoseconds)) {
                (Field::Deleted, _) if deleted.len() < DECISIONS_MAX => deleted.push(value),
                (Field::New, Some(lasts_ns)) if new.len() < DECISIONS_MAX => {
                    let is_local = !matches!(wire.origin.as_deref(), Some("CAPI" | "lists"));
                    let lasts_ns = lasts_ns.saturating_add((labels.since)());
                    new.push(Decision { value, lasts_ns, label: labels.of(&wire), is_local });
                }
                (Field::New, None) => ignored.malformed += 1,
                (Field::New | Field::Deleted, _) => ignored.beyond += 1,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(text: &str, is_address: bool) -> Value {
        Value { prefix: text.parse().unwrap(), is_address }
    }

    #[test]
    fn bans_of_addresses_and_ranges_are_taken_and_all_else_is_counted() {
        let text = r#"{"new":[
            {"id":1,"uuid":"u","origin":"CAPI","type":"ban","scope":"Ip","value":"198.51.100.7","duration":"3h59m49s","scenario":"crowdsecurity/ssh-bf"},
            {"id":2,"origin":"cscli","type":"BAN","scope":"range","value":"203.0.113.9/24","duration":"1h","scenario":"manual"},
            {"origin":"crowdsec","type":"ban","scope":"Ip","value":"2001:db8::7","duration":"10s","scenario":"a\nb"},
            {"origin":"crowdsec","type":"captcha","scope":"Ip","value":"198.51.100.8","duration":"1h","scenario":"s"},
            {"origin":"crowdsec","type":"ban","scope":"Country","value":"XX","duration":"1h","scenario":"s"},
            {"origin":"crowdsec","type":"ban","scope":"Ip","value":"host","duration":"1h","scenario":"s"},
            {"origin":"crowdsec","type":"ban","scope":"Ip","value":"198.51.100.9","duration":"soon","scenario":"s"},
            {"origin":"crowdsec","type":"ban","scope":"Range","value":"0.0.0.0/0","duration":"1h","scenario":"s"},
            {"origin":"crowdsec","type":"ban","scope":"Range","value":"::/8","duration":"1h","scenario":"s"},
            {"origin":null,"type":null}
        ],"deleted":null,"more":{"a":[1]}}"#;
        let delta = read(text.as_bytes()).unwrap();
        let values: Vec<Value> = delta.new.iter().map(|of| of.value).collect();
        let expected = [value("198.51.100.7/32", true), value("203.0.113.0/24", false), value("2001:db8::7/128", true)];
        assert_eq!(values, expected);
        assert_eq!(&*delta.new[0].label, "crowdsecurity/ssh-bf (CAPI)");
        assert!(!delta.new[2].label.contains('\n'), "{}", delta.new[2].label);
        assert_eq!([0, 1, 2].map(|at| delta.new[at].is_local), [false, true, true]);
        assert_eq!(delta.ignored, Ignored { scopes: 2, types: 1, malformed: 4, beyond: 0 });
    }

    #[test]
    fn a_decision_lasts_from_when_it_came_however_long_the_rest_of_the_answer_takes() {
        let ban = |address: &str, duration: &str| {
            format!(r#"{{"type":"ban","scope":"Ip","value":"{address}","duration":"{duration}","scenario":"s"}}"#)
        };
        let all = [ban("198.51.100.1", "10s"), ban("198.51.100.2", "10s"), ban("198.51.100.3", "2s")];
        let text = format!("{{\"new\":[{}],\"deleted\":null}}", all.join(","));
        // The clock advances a second before each decision, and one before the end.
        let passed = std::cell::Cell::new(0);
        let since = || {
            passed.set(passed.get() + 1_000_000_000);
            passed.get()
        };
        let lasts: Vec<i64> = read_slowly(text.as_bytes(), &since).unwrap().new.iter().map(|of| of.lasts_ns).collect();
        assert_eq!(lasts, [7_000_000_000, 8_000_000_000, 1_000_000_000]);
    }

    #[test]
    fn an_incomplete_answer_is_an_error() {
        for text in
            ["", "{", "[]", "{}", r#"{"message":"no"}"#, r#"{"new":[{"scope":"Ip""#, r#"{"new":[]}x"#, r#"{"new":3}"#]
        {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
        assert_eq!(read(r#"{"new":null,"deleted":null}"#.as_bytes()).unwrap(), Delta::default());
        let deleted = r#"{"deleted":[{"type":"ban","scope":"Ip","value":"198.51.100.7","duration":"-2h0m1s"}]}"#;
        assert_eq!(read(deleted.as_bytes()).unwrap().deleted, [value("198.51.100.7/32", true)]);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), text in "\\PC{0,30}") {
            let _ = read(bytes.as_slice());
            let decision = serde_json::json!({"new":[{"type":"ban","scope":"ip","value":text,"duration":text,"scenario":text}]});
            prop_assert!(read(decision.to_string().as_bytes()).is_ok());
        }
    }
}
