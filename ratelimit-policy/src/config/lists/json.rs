//! A line of a list file that is a JSON object: its prefix, and fields by which it means more or less. Pure.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::entry::{EXCEPTING, LETTING_PASS, is_among, names_more, whole};

/// Keys that hold the prefix in a line of JSON: those of Spamhaus, AbuseIPDB, CrowdSec and others.
const PREFIX_KEYS: [&str; 9] =
    ["cidr", "ip", "ipAddress", "ip_address", "prefix", "network", "range", "value", "address"];
/// Ends of keys in a line of JSON that say how much more than one address is meant.
const EXTENT_KEYS: [&str; 9] = ["mask", "netmask", "length", "len", "bits", "end", "last", "to", "size"];
/// Likewise, of a number of addresses. Of one address it is a number of reports.
pub(super) const COUNT_KEYS: [&str; 3] = ["count", "hosts", "addresses"];
/// A line of JSON takes some twenty times as much memory while it is read.
const JSON_BYTES_MAX: usize = 64 << 10;
/// Lines of JSON with this type tell of the list.
const METADATA: &str = "metadata";

/// Returns the text of an entry's prefix, which a line of JSON has within; none where that tells of the list.
///
/// # Errors
/// What is wrong with it, in words.
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

/// Refuses a field by which an object means more or less than its prefix, in whatever depth. The depth of JSON is bounded by
/// its reader.
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

/// Whether an address is the first of a prefix of so many addresses, of 4 or more.
fn is_aligned(address: IpAddr, count: u64) -> bool {
    let bits = match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    count >= 4 && count.is_power_of_two() && bits % u128::from(count) == 0
}

/// The fields of a JSON object, none of them twice.
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
