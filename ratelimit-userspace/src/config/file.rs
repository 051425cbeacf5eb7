//! The configuration file: TOML that can hold exactly what the flags can, to [`Settings`] with places.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::Config;
use super::rule::RuleSettings;
use super::settings::Settings;
use super::syntax::near_miss;
use super::written::{Origin, Source, Written};
use crate::error::{Diagnostic, Excerpt, Place};

type Text = Spanned<String>;
type Number = Spanned<i64>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Top {
    #[serde(default)]
    interfaces: Vec<Text>,
    xdp_mode: Option<Text>,
    on_exit: Option<Text>,
    max_sources: Option<Number>,
    socket: Option<Text>,
    listen: Option<Text>,
    ipv4_prefix: Option<Number>,
    ipv6_prefix: Option<Number>,
    #[serde(default)]
    allow: Vec<Text>,
    #[serde(default, deserialize_with = "table")]
    rule: RuleTable,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleTable {
    name: Option<Text>,
    #[serde(default)]
    limits: Vec<Text>,
    count: Option<Text>,
    ports: Option<Text>,
    mode: Option<Text>,
    window: Option<Text>,
    refuse: Option<Text>,
}

/// A table and nothing else: serde by itself also takes an array, as values by position.
fn table<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RuleTable, D::Error> {
    struct Table;

    impl<'de> Visitor<'de> for Table {
        type Value = RuleTable;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RuleTable, A::Error> {
            RuleTable::deserialize(MapAccessDeserializer::new(map))
        }
    }

    deserializer.deserialize_map(Table)
}

/// Keys of the top level, and those of `[rule]`.
pub const KEYS: ([&str; 9], [&str; 7]) = (
    ["interfaces", "xdp_mode", "on_exit", "max_sources", "socket", "listen", "ipv4_prefix", "ipv6_prefix", "allow"],
    ["name", "limits", "count", "ports", "mode", "window", "refuse"],
);

/// Reads and parses the file at `path`.
pub fn load(path: &Path) -> Result<Config, Diagnostic> {
    let nowhere = |problem: String, help: &str| Diagnostic {
        problem,
        place: Place::File { path: path.to_owned(), excerpt: None },
        help: vec![help.to_owned()],
    };
    let bytes = std::fs::read(path).map_err(|error| {
        let help = if error.kind() == std::io::ErrorKind::NotFound {
            "name another file, or do without: ratelimitd --iface IF --limit N/DUR"
        } else {
            "check the path and who may read it"
        };
        nowhere(format!("cannot read the configuration file: {}", reason(&error)), help)
    })?;
    let contents = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        nowhere(format!("the configuration file is not UTF-8 text: byte {at} cannot be read"), "save it as UTF-8")
    })?;
    parse(path, &contents)
}

/// What an IO error says, without the number that nobody knows by heart.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

/// Parses the contents of the file at `path`, which is only named in errors.
pub fn parse(path: &Path, contents: &str) -> Result<Config, Diagnostic> {
    settings(path, contents)?.config()
}

fn settings(path: &Path, contents: &str) -> Result<Settings, Diagnostic> {
    let top: Top = toml::from_str(contents).map_err(|error| structure(path, contents, &error))?;
    let rule = top.rule;
    Ok(Settings {
        source: Source::File { path: path.to_owned(), contents: contents.to_owned() },
        interfaces: texts("interfaces", top.interfaces),
        xdp_mode: text("xdp_mode", top.xdp_mode),
        on_exit: text("on_exit", top.on_exit),
        max_sources: number("max_sources", top.max_sources),
        socket: text("socket", top.socket),
        listen: text("listen", top.listen),
        ipv4_prefix: number("ipv4_prefix", top.ipv4_prefix),
        ipv6_prefix: number("ipv6_prefix", top.ipv6_prefix),
        allow: texts("allow", top.allow),
        rules: vec![RuleSettings {
            of: None,
            name: text("rule.name", rule.name),
            limits: texts("rule.limits", rule.limits),
            count: text("rule.count", rule.count),
            ports: text("rule.ports", rule.ports),
            mode: text("rule.mode", rule.mode),
            window: text("rule.window", rule.window),
            refuse: text("rule.refuse", rule.refuse),
        }],
    })
}

fn texts(key: &'static str, values: Vec<Text>) -> Vec<Written> {
    values.into_iter().filter_map(|value| text(key, Some(value))).collect()
}

fn text(key: &'static str, value: Option<Text>) -> Option<Written> {
    value.map(|value| written(key, value.span(), value.into_inner()))
}

fn number(key: &'static str, value: Option<Number>) -> Option<Written> {
    value.map(|value| written(key, value.span(), value.into_inner().to_string()))
}

fn written(key: &'static str, span: Range<usize>, text: String) -> Written {
    Written { text, origin: Origin::Key { key, of: None, span } }
}

/// An error of TOML itself, or of keys and types.
fn structure(path: &Path, contents: &str, error: &toml::de::Error) -> Diagnostic {
    let message = error.message().trim();
    let excerpt = error.span().map(|span| Box::new(Excerpt::of(contents, span)));
    let (problem, help) = match unknown_key(message) {
        Some((key, in_rule)) => (format!("unknown key `{key}`"), unknown_key_help(key, in_rule)),
        None => (plain(message), vec![structure_help(message).to_owned()]),
    };
    Diagnostic { problem, place: Place::File { path: path.to_owned(), excerpt }, help }
}

/// The key of serde's "unknown field `key`, expected one of …", and whether it stands under `[rule]`.
fn unknown_key(message: &str) -> Option<(&str, bool)> {
    let (key, expected) = message.strip_prefix("unknown field `")?.split_once('`')?;
    Some((key, expected.contains("`limits`")))
}

fn unknown_key_help(key: &str, in_rule: bool) -> Vec<String> {
    let (top, rule) = KEYS;
    let dashes_mended = key.replace('-', "_");
    let key = dashes_mended.as_str();
    let at_top: Vec<&str> = top.into_iter().chain(["rule"]).collect();
    let (here, there, elsewhere) = if in_rule {
        (rule.to_vec(), at_top, "at the top of the file, above [rule]")
    } else {
        (at_top, rule.to_vec(), "under [rule]")
    };
    let help = if let Some(meant) = near_miss(key, here.iter().copied()) {
        format!("did you mean `{meant}`?")
    } else if let Some(meant) = near_miss(key, there) {
        format!("`{meant}` belongs {elsewhere}")
    } else {
        format!("the keys here are {}", here.join(", "))
    };
    vec![help]
}

/// TOML's and serde's words without those of Rust.
fn plain(message: &str) -> String {
    let message = message.lines().collect::<Vec<_>>().join(": ");
    message
        .replace("expected i64", "expected a whole number")
        .replace("expected a sequence", "expected a list")
        .replace("type: sequence", "type: list")
        .replace("type: map", "type: table")
}

fn structure_help(message: &str) -> &'static str {
    if message.contains("expected a table") {
        "there is one rule, written as a table: [rule]"
    } else if message.contains("expected a sequence") {
        "put it in brackets: [\"…\"]"
    } else if message.contains("expected a string") {
        "put it in quotes: \"…\""
    } else if message.contains("expected i64") {
        "write the number without quotes"
    } else if message.contains("duplicate key") {
        "keep one of the two"
    } else {
        "the file is TOML: key = value on a line, texts in quotes, lists in brackets"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wrong(contents: &str) -> (String, usize, usize, String) {
        let error = parse(Path::new("r.toml"), contents).expect_err(contents);
        let Place::File { excerpt, .. } = error.place else { panic!("not in the file") };
        let (line, column) = excerpt.map_or((0, 0), |excerpt| (excerpt.line, excerpt.column));
        (error.problem, line, column, error.help.join("; "))
    }

    #[test]
    fn an_error_names_line_and_column() {
        for (contents, problem, line, column, help) in [
            ("interfaces = [\"eth0\"]\n[rule]\nlimts = []\n", "unknown key `limts`", 3, 1, "`limits`"),
            ("limits = []\n", "unknown key `limits`", 1, 1, "under [rule]"),
            ("[rule]\non-exit = \"keep\"\n", "unknown key `on-exit`", 2, 1, "above [rule]"),
            ("[rule]\nfoo = 1\n", "unknown key `foo`", 2, 1, "the keys here are name, limits"),
            ("[[rule]]\n", "invalid type: list, expected a table", 1, 1, "[rule]"),
            ("interfaces = \"eth0\"\n", "invalid type: string \"eth0\", expected a list", 1, 14, "brackets"),
            (
                "max_sources = \"1000\"\n",
                "invalid type: string \"1000\", expected a whole number",
                1,
                15,
                "without quotes",
            ),
            ("socket = 1\n", "invalid type: integer `1`, expected a string", 1, 10, "quotes"),
            (
                "interfaces = [\"eth0\"]\n[rule]\nlimits = [\"10/1m\", \"60/1y\"]\n",
                "bad value for `rule.limits`: `y` is not a unit of time",
                3,
                25,
                "units of time",
            ),
            ("interfaces = [\"eth0\"]\n", "`rule.limits` is missing, or empty", 0, 0, "[rule]"),
            ("[rule]\nlimits = [\"1/1s\"]\n", "`interfaces` is missing, or empty", 0, 0, "eth0"),
            ("ipv4_prefix = -1\n", "bad value for `ipv4_prefix`: `-` is not a digit", 1, 15, "0 to 32"),
        ] {
            let found = wrong(contents);
            assert_eq!((found.0.as_str(), found.1, found.2), (problem, line, column), "{contents}");
            assert!(found.3.contains(help), "{contents}: {}", found.3);
        }
    }

    #[test]
    fn a_text_with_escapes_is_marked_whole() {
        let (problem, line, column, _) = wrong("interfaces = [\"a\\tb\"]\n[rule]\nlimits = [\"1/1s\"]\n");
        assert_eq!(
            (problem.as_str(), line, column),
            ("bad value for `interfaces`: an interface's name cannot hold '\\t'", 1, 15)
        );
    }

    proptest! {
        #[test]
        fn no_file_panics(contents in "\\PC{0,80}|([a-z_]{1,11} ?= ?[\\[\"]{0,2}[0-9a-z/]{0,6}[\\]\"]{0,2}\n){0,4}(\\[rule\\]\nlimits = \\[\".{0,9}\"\\])?") {
            let _either = parse(Path::new("r.toml"), &contents);
        }
    }
}
