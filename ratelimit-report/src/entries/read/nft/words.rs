//! Meaning of the words in nft's objects and elements. Pure.

use ipnet::IpNet;

use super::super::super::times::seconds;
use super::super::addresses;

/// Families of nft tables.
pub(super) const FAMILIES: [&str; 6] = ["ip", "ip6", "inet", "arp", "bridge", "netdev"];

/// Objects of nft's commands.
const OBJECTS: [&str; 14] = [
    "table",
    "set",
    "map",
    "element",
    "chain",
    "rule",
    "counter",
    "quota",
    "limit",
    "flowtable",
    "ruleset",
    "secmark",
    "synproxy",
    "ct",
];

/// Returns true if a line begins a statement of nft rather than one of ipset.
pub(in super::super) fn is_statement(line: &str) -> bool {
    let mut words = line.split(|c: char| c.is_whitespace() || c == '{').filter(|word| !word.is_empty());
    let (first, second, third) = (words.next(), words.next(), words.next());
    let is_object = second.is_some_and(|word| OBJECTS.contains(&word));
    match first.unwrap_or_default() {
        "table" | "define" | "include" | "element" | "set" | "map" | "chain" => second.is_some(),
        // An ipset set may have any name.
        "add" => is_object && third.is_some_and(|word| addresses(word).is_none()),
        "create" => is_object && third.is_some_and(|word| !word.contains(':')),
        "flush" => is_object && (second == Some("ruleset") || third.is_some()),
        "delete" | "destroy" | "insert" | "replace" | "reset" | "rename" => is_object,
        _ => false,
    }
}

/// Words by which a rule accepts packets, or leaves the decision to other rules.
const PASSING: [&str; 3] = ["accept", "return", "continue"];

/// Meaning of a rule for sources.
#[derive(Debug, Default)]
pub(super) struct Meaning<'a> {
    /// Sets that the rule uses without dropping their addresses, each with a description of the rule's action.
    pub(super) passing: Vec<(&'a str, &'static str)>,
    /// True if the rule drops sources that it names itself.
    pub(super) denies_by_itself: bool,
}

/// Determines the meaning of a rule from its words.
pub(super) fn meaning<'a>(words: &[&'a str]) -> Meaning<'a> {
    let passes = words.iter().any(|word| PASSING.contains(word));
    let drops = words.iter().any(|word| matches!(*word, "drop" | "reject"));
    let mut of = Meaning::default();
    for (at, word) in words.iter().enumerate() {
        let before = |back: usize| at.checked_sub(back).and_then(|at| words.get(at)).copied().unwrap_or_default();
        let Some(set) = word.strip_prefix('@') else {
            let operand = words.iter().skip(at + 1).find(|word| !matches!(**word, "!" | "=" | "=="));
            let is_named = *word == "saddr" && !operand.is_some_and(|operand| operand.starts_with('@'));
            of.denies_by_itself |= drops && is_named;
            continue;
        };
        // A statement that fills a set does not tell how the set is used.
        if matches!(before(1), "add" | "update" | "delete") {
            continue;
        }
        let is_negated = before(1) == "=" && before(2) == "!";
        let field = if is_negated { before(3) } else { before(1) };
        let what = if is_negated {
            "matches what is not in it (`!=`)"
        } else if field == "daddr" {
            "matches destinations"
        } else if passes && !drops {
            "lets its addresses pass"
        } else {
            continue;
        };
        of.passing.push((set, what));
    }
    of
}

/// Returns the table of an object, with its family, and the object's name. In a block, `table` is known.
pub(super) fn place(words: &[&str], table: &str, is_table: bool) -> (String, String) {
    let (family, rest) = match words.split_first() {
        Some((first, rest)) if FAMILIES.contains(first) && !rest.is_empty() => (*first, rest),
        Some(_) | None => ("ip", words),
    };
    let name = rest.last().copied().unwrap_or_default().to_owned();
    match rest {
        _ if is_table => (String::new(), format!("{family} {}", rest.first().copied().unwrap_or_default())),
        [of, _, ..] if table.is_empty() => (format!("{family} {of}"), name),
        _ => (table.to_owned(), words.first().copied().unwrap_or_default().to_owned()),
    }
}

/// Returns the reason why a set of this type has no sources, or none if it has.
pub(super) fn objection_to_type(key: &str, value: &str) -> Option<String> {
    if value.split(' ').any(|word| word == ".") {
        return Some(format!("a concatenation (`{value}`) contains more than addresses"));
    }
    match (key, value) {
        ("type", "ipv4_addr" | "ipv6_addr") | ("typeof", "ip saddr" | "ip6 saddr") => None,
        ("typeof", "ip daddr" | "ip6 daddr") => Some(format!("`typeof {value}` means destinations")),
        _ => Some(format!("`{key} {value}` is no address")),
    }
}

/// Parses an element and returns its addresses and the seconds until it expires.
pub(super) fn element(words: &[&str]) -> Result<(Vec<IpNet>, Option<i64>), String> {
    let mut words = words.iter().copied().peekable();
    let first = words.next().unwrap_or_default();
    let mut value = first.to_owned();
    if words.next_if_eq(&"-").is_some() {
        value += &format!("-{}", words.next().unwrap_or_default());
    }
    match words.peek() {
        Some(&".") => return Err("a concatenation is not just an address".to_owned()),
        Some(&":") => return Err("an element of a map assigns a verdict or value to its address".to_owned()),
        Some(_) | None => {}
    }
    let prefixes = addresses(&value).ok_or_else(|| match value.as_str() {
        "*" => "it means all addresses that are not in the set".to_owned(),
        value if value.starts_with('!') => "a negated element is not read".to_owned(),
        _ => "this is no address, and no prefix".to_owned(),
    })?;
    let (mut timeout, mut expires) = (None, None);
    while let Some(word) = words.next() {
        match word {
            "timeout" | "expires" => {
                let text = words.next().unwrap_or_default();
                let left = if matches!(text, "never" | "0s") { Some(0) } else { seconds(text) };
                let left = left.ok_or_else(|| format!("its `{word}` is no time"))?;
                *(if word == "timeout" { &mut timeout } else { &mut expires }) = Some(left);
            }
            "packets" | "bytes" | "comment" => {
                words.next();
            }
            "counter" => {}
            // nft prints `last used never` or `last used 5s ago`.
            "last" | "used" | "never" | "ago" => {}
            "limit" | "quota" | "ct" => return Err(format!("it matches up to a `{word}` only")),
            other => {
                if seconds(other).is_none() {
                    return Err(format!("its option `{other}` is not known"));
                }
            }
        }
    }
    Ok((prefixes, expires.or(timeout)))
}
