//! Parser of list lines that are JSON objects: the prefix, and other fields that change its meaning. Pure.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::entry::{EXCEPTING, LETTING_PASS, is_among, names_more, whole};

/// Keys that hold the prefix in a JSON line: those of Spamhaus, AbuseIPDB, CrowdSec and others.
const PREFIX_KEYS: [&str; 9] =
    ["cidr", "ip", "ipAddress", "ip_address", "prefix", "network", "range", "value", "address"];
/// Suffixes of keys that extend one address to several.
const EXTENT_KEYS: [&str; 9] = ["mask", "netmask", "length", "len", "bits", "end", "last", "to", "size"];
/// Suffixes of keys with a number of addresses. Next to a single address it is a number of reports.
pub(super) const COUNT_KEYS: [&str; 3] = ["count", "hosts", "addresses"];
/// Maximum length of a JSON line in bytes. Parsing takes about twenty times as much memory.
const JSON_BYTES_MAX: usize = 64 << 10;
/// Value of `type` in JSON lines that describe the list itself.
const METADATA: &str = "metadata";

/// Returns the text of an entry's prefix. In a JSON line it is the value of a prefix key. None if the line describes
/// the list itself.
///
/// # Errors
/// Returns the problem in words.
pub fn prefix_text(entry: &str) -> Result<Option<Cow<'_, str>>, &'static str> {
    if !entry.starts_with('{') {
        return Ok(Some(Cow::Borrowed(entry)));
    }
    if entry.len() > JSON_BYTES_MAX {
        return Err("this line of JSON is longer than 65536 bytes");
    }
    let Fields(object) = serde_json::from_str(entry).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => "this JSON object has a field twice, or is none",
        serde_json::error::Category::Io | serde_json::error::Category::Syntax | serde_json::error::Category::Eof => {
            "this is no JSON object"
        }
    })?;
    if object.get("type").and_then(Value::as_str) == Some(METADATA) {
        return Ok(None);
    }
    let (key, prefix) = PREFIX_KEYS
        .iter()
        .find_map(|key| Some((*key, object.get(*key)?.as_str()?.trim())))
        .ok_or("this JSON object has no prefix")?;
    let read = whole(prefix).unwrap_or_default();
    for (other, value) in object.iter().filter(|(other, _)| *other != key) {
        check_field(other, value, prefix, &read)?;
    }
    Ok(Some(Cow::Owned(prefix.to_owned())))
}

/// Fails for a field, at any depth, that changes the meaning of the object's prefix. The JSON parser bounds the
/// depth.
fn check_field(name: &str, value: &Value, prefix: &str, read: &[IpNet]) -> Result<(), &'static str> {
    let name = name.to_ascii_lowercase();
    match value {
        Value::Object(fields) => {
            return fields.iter().try_for_each(|(name, value)| check_field(name, value, prefix, read));
        }
        Value::Array(of) if !of.is_empty() && EXCEPTING.iter().any(|word| name.contains(word)) => {
            return Err("this JSON object excepts some of its addresses");
        }
        Value::Array(of) => return of.iter().try_for_each(|value| check_field(&name, value, prefix, read)),
        Value::Null | Value::Bool(_) => return Ok(()),
        Value::Number(_) | Value::String(_) => {}
    }
    let is_one = !prefix.contains(['/', '-']);
    let extends = EXTENT_KEYS.iter().any(|end| name.ends_with(end)) || name == "prefix" || name == "cidr";
    let counts = COUNT_KEYS.iter().any(|end| name.ends_with(end))
        && value.as_u64().is_some_and(|count| read.first().is_some_and(|of| is_aligned(of.addr(), count)));
    if is_one && (extends && (value.is_u64() || is_length_text(value)) || counts) {
        return Err("this JSON object has its prefix in several fields");
    }
    let Some(text) = value.as_str().map(str::trim) else { return Ok(()) };
    if matches!(&*name, "action" | "policy" | "verdict" | "decision") && is_among(&LETTING_PASS, text) {
        return Err("this JSON object lets its addresses pass");
    }
    if names_more(text, read) || text.starts_with('!') {
        return Err("this JSON object has another address too");
    }
    Ok(())
}

/// Returns true if an address is the first of a prefix with `count` addresses, and `count` is at least 4.
fn is_aligned(address: IpAddr, count: u64) -> bool {
    let bits = match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    count >= 4 && count.is_power_of_two() && bits % u128::from(count) == 0
}

/// Fields of a JSON object. Duplicate fields are an error.
struct Fields(Map<String, Value>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ReadFields)
    }
}

struct ReadFields;

impl<'de> Visitor<'de> for ReadFields {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Map::new();
        while let Some((name, value)) = map.next_entry()? {
            if fields.insert(name, value).is_some() {
                return Err(A::Error::custom("a field twice"));
            }
        }
        Ok(Fields(fields))
    }
}

fn is_length_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.trim_start_matches('/').parse::<u8>().is_ok())
}
