//! JSON schema of the configuration file for editors: docs/ratelimitd.schema.json, generated from the table of keys.
//!
//! The schema describes names, kinds, choices and ranges of values. It does not check the syntax of limits, times and
//! prefixes, as `ratelimitd check-config` does.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json, json};

use super::{FLEET, HISTORY, Key, OVERRIDE, RULE, SAFETY, TOP, Value};

/// Text of the committed schema.
const WRITTEN: &str = include_str!("../../../../../docs/ratelimitd.schema.json");

/// Returns the schema of the whole file.
fn schema() -> Json {
    let mut top = table(TOP, "Configuration of ratelimitd, checked in full by `ratelimitd check-config`.");
    let prefixes = Value::List("list of prefixes");
    let lists = json!({
        "type": "object",
        "description": "Lists of prefixes, used elsewhere as `@NAME`.",
        "additionalProperties": kind(prefixes),
    });
    let tables = [
        ("rule", one_or_more("rule", "One rule, or several. The first rule that matches a packet judges it.")),
        ("lists", lists),
        ("safety", table(SAFETY, "Addresses that are always allowed, and protections against mistakes.")),
        ("history", table(HISTORY, "Stored history of refusals and bans.")),
        ("fleet", table(FLEET, "Limits shared with other hosts.")),
    ];
    for (name, of) in tables {
        top["properties"][name] = of;
    }
    if let Json::Array(required) = &mut top["required"] {
        required.push("rule".into());
    }
    let mut rule = table(RULE, "Limits for some ports of this host.");
    rule["properties"]["override"] = one_or_more("override", "Other limits for some sources of the rule.");
    top["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    top["title"] = "ratelimitd.toml".into();
    top["definitions"] = json!({ "rule": rule, "override": table(OVERRIDE, "Limits for some sources of a rule.") });
    top
}

/// Returns the schema of a table, or of an array of tables, with this definition.
fn one_or_more(definition: &str, description: &str) -> Json {
    let of = json!({ "$ref": format!("#/definitions/{definition}") });
    json!({ "description": description, "anyOf": [of, { "type": "array", "items": of }] })
}

/// Returns the schema of a table. Unknown keys are errors.
fn table(keys: &[Key], description: &str) -> Json {
    let properties: Map<String, Json> = keys.iter().map(|key| (key.name.to_owned(), of_key(key))).collect();
    let mut of = json!({
        "type": "object",
        "description": description,
        "properties": properties,
        "additionalProperties": false,
    });
    let required: Vec<&str> = keys.iter().filter(|key| key.default == "required").map(|key| key.name).collect();
    if !required.is_empty() {
        of["required"] = required.into();
    }
    of
}

fn of_key(key: &Key) -> Json {
    let mut of = kind(key.value);
    let more = if key.more.is_empty() { String::new() } else { format!(" {}", key.more) };
    of["description"] = format!("{}.{more}", key.help).into();
    // A default that is not a TOML value, such as "unset", goes into the description.
    if let Ok(default) = format!("x = {}", key.default).parse::<toml::Table>() {
        of["default"] = default.into_iter().next().map_or(Json::Null, |(_, default)| json(default));
    } else if key.default != "required" {
        of["description"] = format!("{}.{more} Default: {}.", key.help, key.default).into();
    }
    of
}

/// Returns the schema of a value.
fn kind(value: Value) -> Json {
    // The parser also takes a number for a text of digits: `burst = 10`.
    let scalar = json!({ "type": ["string", "integer"] });
    let text = json!({ "type": "string" });
    match value {
        Value::Choice(words) => {
            let numbers = words.iter().filter_map(|word| word.parse::<u64>().ok()).map(Json::from);
            json!({ "enum": words.iter().map(|word| Json::from(*word)).chain(numbers).collect::<Vec<_>>() })
        }
        Value::Integer(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Value::Boolean => json!({ "type": "boolean" }),
        Value::Other(_) => scalar,
        Value::Text(_) => text,
        Value::List(_) => json!({ "type": ["string", "integer", "array"], "items": scalar }),
        Value::Texts(_) => json!({ "type": ["string", "array"], "items": text }),
    }
}

/// Converts a TOML value to JSON. Dates become texts, as in editors.
fn json(value: toml::Value) -> Json {
    match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(is) => is.into(),
        toml::Value::Datetime(at) => at.to_string().into(),
        toml::Value::Array(values) => values.into_iter().map(json).collect(),
        toml::Value::Table(table) => Json::Object(table.into_iter().map(|(key, value)| (key, json(value))).collect()),
    }
}

/// Returns the places at which a value does not match a schema. Panics at keywords that [`schema`] does not use. A
/// complete validator would add some forty packages.
fn mismatches(root: &Json, schema: &Json, value: &Json, at: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let is_of = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        other => panic!("unknown type {other}"),
    };
    for (keyword, of) in schema.as_object().unwrap() {
        match keyword.as_str() {
            "$schema" | "title" | "description" | "default" | "definitions" | "additionalProperties" => {}
            "$ref" => {
                let pointer = of.as_str().unwrap().strip_prefix('#').unwrap();
                wrong.extend(mismatches(root, root.pointer(pointer).unwrap(), value, at));
            }
            "anyOf" => {
                let each = of.as_array().unwrap().iter().map(|of| mismatches(root, of, value, at));
                let each: Vec<Vec<String>> = each.collect();
                if each.iter().all(|wrong| !wrong.is_empty()) {
                    wrong.extend(each.into_iter().flatten());
                }
            }
            "type" => {
                let names: Vec<&str> = of.as_array().map_or_else(
                    || vec![of.as_str().unwrap()],
                    |names| names.iter().filter_map(Json::as_str).collect(),
                );
                if !names.iter().any(|name| is_of(name)) {
                    wrong.push(format!("{at}: no {}", names.join(" or ")));
                }
            }
            "enum" => {
                if !of.as_array().unwrap().contains(value) {
                    wrong.push(format!("{at}: none of {of}"));
                }
            }
            "minimum" | "maximum" => {
                let (number, bound) = (value.as_i64().unwrap_or(0), of.as_i64().unwrap());
                if if keyword == "minimum" { number < bound } else { number > bound } {
                    wrong.push(format!("{at}: {keyword} {bound}"));
                }
            }
            "required" => {
                let missing = of.as_array().unwrap().iter().filter_map(Json::as_str);
                wrong.extend(missing.filter(|key| value.get(key).is_none()).map(|key| format!("{at}: no key {key}")));
            }
            "items" => {
                let items = value.as_array().into_iter().flatten().enumerate();
                wrong.extend(items.flat_map(|(index, item)| mismatches(root, of, item, &format!("{at}[{index}]"))));
            }
            "properties" => {}
            other => panic!("unknown keyword {other}"),
        }
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{key}");
        match (schema.get("properties").and_then(|of| of.get(key)), schema.get("additionalProperties")) {
            (Some(of), _) => wrong.extend(mismatches(root, of, value, &at)),
            (None, Some(Json::Bool(false))) => wrong.push(format!("{at}: unknown key")),
            (None, Some(of)) => wrong.extend(mismatches(root, of, value, &at)),
            (None, None) => {}
        }
    }
    wrong
}

fn wrong(text: &str) -> Vec<String> {
    let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    let schema: Json = serde_json::from_str(WRITTEN).unwrap();
    mismatches(&schema, &schema, &json(toml::Value::Table(table)), "")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Checks that docs/ratelimitd.schema.json is up to date.
/// `UPDATE_DOCS=1 cargo test --package ratelimit-policy --lib schema` updates it.
#[test]
fn the_committed_schema_matches_the_key_table() {
    let made = schema();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let text = serde_json::to_string_pretty(&made).unwrap() + "\n";
        std::fs::write(root().join("docs/ratelimitd.schema.json"), text).unwrap();
        return;
    }
    let written: Json = serde_json::from_str(WRITTEN).unwrap_or_default();
    assert!(
        made == written,
        "docs/ratelimitd.schema.json is stale; UPDATE_DOCS=1 cargo test --package ratelimit-policy --lib schema updates it"
    );
}

#[test]
fn the_schema_accepts_all_examples_and_documents() {
    let files = |directory: &str, ending: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(root().join(directory)).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|of| of == ending)).collect()
    };
    let examples = [files("examples", "toml"), vec![root().join("dist/ratelimitd.toml")]].concat();
    assert!(examples.len() >= 3, "{examples:?}");
    for path in examples {
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(wrong(&text), Vec::<String>::new(), "{}", path.display());
    }
    let mut blocks = 0;
    for path in [files("docs", "md"), files("docs/recipes", "md"), vec![root().join("README.md")]].concat() {
        let text = std::fs::read_to_string(&path).unwrap();
        let toml = text.split("```toml\n").skip(1).filter_map(|after| Some(after.split_once("```")?.0));
        for block in toml.filter(|block| block.contains("interfaces =")) {
            assert_eq!(wrong(block), Vec::<String>::new(), "{}\n{block}", path.display());
            blocks += 1;
        }
    }
    assert!(blocks >= 10, "{blocks}");
}

#[test]
fn the_schema_rejects_unknown_keys_and_wrong_values() {
    let with = |top: &str, rule: &str, rest: &str| {
        format!("interfaces = [\"eth0\"]\n{top}\n[rule]\nlimits = [\"1000/5m\"]\n{rule}\n{rest}\n")
    };
    assert_eq!(wrong(&with("", "burst = 10\nrefuse_with = 429", "")), Vec::<String>::new());
    for (text, expected) in [
        (with("interface = \"eth0\"", "", ""), ".interface: unknown key"),
        (with("", "limts = []", ""), ".rule.limts: unknown key"),
        (with("", "", "[[rule.override]]\nfrom = []\nlimits = []\ncolor = 1"), ".rule.override[0].color: unknown key"),
        (with("", "", "[safety]\nbraker = \"off\""), ".safety.braker: unknown key"),
        (with("", "", "[history]\nkep = \"1d\""), ".history.kep: unknown key"),
        (with("", "", "[fleet]\nurl = \"unix:///r\"\nhost = 3"), ".fleet.host: unknown key"),
        (with("", "", "[rules]\n"), ".rules: unknown key"),
        (with("", "", "[fleet]\nhosts = 3"), ".fleet: no key url"),
        (with("ipv4_prefix = 33", "", ""), ".ipv4_prefix: maximum 32"),
        (with("max_sources = 255", "", ""), ".max_sources: minimum 256"),
        (with("max_sources = \"many\"", "", ""), ".max_sources: no integer"),
        (with("xdp_mode = \"natve\"", "", ""), ".xdp_mode: none of [\"auto\",\"native\",\"generic\"]"),
        (with("socket = 1", "", ""), ".socket: no string"),
        (with("", "block_kill = \"yes\"", ""), ".rule.block_kill: no boolean"),
        (with("", "mode = [\"enforce\"]", ""), ".rule.mode: none of [\"enforce\",\"dry-run\"]"),
        (with("", "", "[lists]\npartners = [[\"x\"]]"), ".lists.partners[0]: no string or integer"),
        ("interfaces = [\"eth0\"]\n[rule]\n".to_owned(), ".rule: no key limits"),
        ("[rule]\nlimits = [\"1/s\"]\n".to_owned(), ": no key interfaces"),
        ("interfaces = [\"eth0\"]\n".to_owned(), ": no key rule"),
    ] {
        let found = wrong(&text);
        assert!(found.iter().any(|of| of == expected), "{expected}\n{text}\n{found:?}");
    }
    let two = "interfaces = [\"eth0\"]\n[[rule]]\nlimits = [\"1/s\"]\n[[rule]]\nlimits = [\"1/s\"]\nx = 1\n";
    assert!(wrong(two).iter().any(|of| of == ".rule[1].x: unknown key"), "{:?}", wrong(two));
}
