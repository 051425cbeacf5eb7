//! The shape of the file: its tables and keys, and their conversion to [`Settings`] with the place of each value.
//! Everything of another shape is reported and skipped.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::super::fleet::FleetSettings;
use super::super::keys::{self, Key};
use super::super::lists::ListSettings;
use super::super::rule::RuleSettings;
use super::super::settings::Settings;
use super::super::syntax::{near_miss, shortened};
use super::super::values::Values;
use super::super::written::{OfRule, Origin, Source, Written};
use crate::diagnostic::{Diagnostic, Excerpt, Found, Place};

type Value<'a> = Spanned<DeValue<'a>>;

/// Description of a table: its name in words, the prefix of its keys, and the keys.
struct TableOf {
    words: &'static str,
    prefix: &'static str,
    keys: &'static [Key],
    /// Names of the nested tables.
    tables: &'static [&'static str],
}

const TOP: TableOf = TableOf {
    words: "at the top of the file, above the first [table]",
    prefix: "",
    keys: keys::TOP,
    tables: &["rule", "lists", "safety", "history", "fleet"],
};
const RULE: TableOf = TableOf { words: "under [rule]", prefix: "rule.", keys: keys::RULE, tables: &["override"] };
const OVERRIDE: TableOf =
    TableOf { words: "under [[rule.override]]", prefix: "rule.override.", keys: keys::OVERRIDE, tables: &[] };
const SAFETY: TableOf = TableOf { words: "under [safety]", prefix: "safety.", keys: keys::SAFETY, tables: &[] };
const HISTORY: TableOf = TableOf { words: "under [history]", prefix: "history.", keys: keys::HISTORY, tables: &[] };
const FLEET: TableOf = TableOf { words: "under [fleet]", prefix: "fleet.", keys: keys::FLEET, tables: &[] };

/// Returns the settings that the file holds, and reports all errors of shape to `found`.
pub(super) fn settings(path: &Path, contents: &str, top: Spanned<DeTable<'_>>, found: &mut Found) -> Settings {
    let mut reader = Reader { path, contents, found };
    let mut table = reader.table(&TOP, top.into_inner(), None);
    let lists = table.take("lists").map_or_else(Vec::new, |value| reader.lists(value));
    let top = reader.values(&mut table);
    let mut one = |name: &'static str, of| {
        let values = table.take(name).and_then(|value| reader.one_table(name, value, None));
        values.map(|values| reader.whole(of, values, None))
    };
    let (safety, history, fleet) = (one("safety", &SAFETY), one("history", &HISTORY), one("fleet", &FLEET));
    let rules = table.take("rule").map_or_else(|| vec![DeTable::new()], |value| reader.tables("rule", value, None));
    let is_one = rules.len() == 1;
    let rules = rules.into_iter().enumerate();
    let rules = rules.map(|(index, rule)| reader.rule(rule, (!is_one).then_some(index))).collect();
    reader.refuse_rest(table);
    Settings {
        source: Source::File { path: path.to_owned(), contents: contents.to_owned() },
        top,
        lists,
        safety: safety.unwrap_or_default(),
        history: history.unwrap_or_default(),
        fleet: fleet.map(FleetSettings),
        rules,
        list_files: BTreeMap::new(),
    }
}

/// A table of the file, from which entries are taken while it is read.
struct Table<'a> {
    of: &'static TableOf,
    rule: Option<OfRule>,
    entries: Vec<(Spanned<toml::de::DeString<'a>>, Value<'a>)>,
}

impl<'a> Table<'a> {
    /// Removes an entry and returns its value.
    fn take(&mut self, key: &str) -> Option<Value<'a>> {
        let at = self.entries.iter().position(|(name, _)| name.get_ref() == key)?;
        Some(self.entries.swap_remove(at).1)
    }
}

struct Reader<'r> {
    path: &'r Path,
    contents: &'r str,
    found: &'r mut Found,
}

impl Reader<'_> {
    fn table<'a>(&self, of: &'static TableOf, table: DeTable<'a>, rule: Option<OfRule>) -> Table<'a> {
        Table { of, rule, entries: table.into_iter().collect() }
    }

    fn rule(&mut self, rule: DeTable<'_>, index: Option<usize>) -> RuleSettings {
        let name = rule.get("name").and_then(|name| name.get_ref().as_str()).map(str::to_owned);
        let of = index.map(|index| OfRule { index, name });
        let mut table = self.table(&RULE, rule, of.clone());
        let overrides = table.take("override").map_or_else(Vec::new, |value| {
            self.tables("rule.override", value, of.as_ref())
                .into_iter()
                .map(|table| self.whole(&OVERRIDE, table, of.clone()))
                .collect()
        });
        let values = self.values(&mut table);
        self.refuse_rest(table);
        RuleSettings { of, values, overrides }
    }

    /// Returns the values of a table without nested tables. Unknown keys are reported.
    fn whole(&mut self, of: &'static TableOf, table: DeTable<'_>, rule: Option<OfRule>) -> Values {
        let mut table = self.table(of, table, rule);
        let values = self.values(&mut table);
        self.refuse_rest(table);
        values
    }

    /// Returns the values of all known keys of the table.
    fn values(&mut self, table: &mut Table<'_>) -> Values {
        let mut values = Values::default();
        for key in table.of.keys {
            let Some(value) = table.take(key.name) else { continue };
            let place = At { prefix: table.of.prefix, key: key.name, of: table.rule.as_ref() };
            let written = match key.value {
                keys::Value::Choice(_) | keys::Value::Integer(..) | keys::Value::Boolean | keys::Value::Other(_) => {
                    self.scalar(place, value, Kind::Any, Shape::One).map(|one| vec![one])
                }
                keys::Value::Text(_) => self.scalar(place, value, Kind::Text, Shape::One).map(|one| vec![one]),
                keys::Value::List(_) => self.each(place, value, Kind::Any),
                keys::Value::Texts(_) => self.each(place, value, Kind::Text),
            };
            if let Some(written) = written {
                values.add(key.name, written);
            }
        }
        values
    }

    fn lists(&mut self, value: Value<'_>) -> Vec<ListSettings> {
        let Some(table) = self.one_table("lists", value, None) else { return Vec::new() };
        let place = At { prefix: "", key: "lists", of: None };
        let list = |(name, entries): (Spanned<toml::de::DeString<'_>>, Value<'_>)| ListSettings {
            name: place.written(name.span(), name.into_inner().into_owned()),
            entries: self.each(place, entries, Kind::Any).unwrap_or_default(),
        };
        table.into_iter().map(list).collect()
    }

    /// Returns the values of a list. A single value counts as a list of one.
    fn each(&mut self, place: At<'_>, value: Value<'_>, kind: Kind) -> Option<Vec<Written>> {
        let span = value.span();
        let value = value.into_inner();
        if let DeValue::Array(values) = value {
            return Some(values.into_iter().filter_map(|of| self.scalar(place, of, kind, Shape::Many)).collect());
        }
        self.scalar(place, Spanned::new(span, value), kind, Shape::Many).map(|one| vec![one])
    }

    fn scalar(&mut self, place: At<'_>, value: Value<'_>, kind: Kind, shape: Shape) -> Option<Written> {
        let span = value.span();
        match (value.into_inner(), kind) {
            (DeValue::String(text), _) => Some(place.written(span, text.into_owned())),
            (DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_), Kind::Any) => {
                let text = self.contents.get(span.clone()).unwrap_or_default().to_owned();
                Some(place.written(span, text))
            }
            (other, _) => {
                let help = match (&other, shape) {
                    (DeValue::Array(_), Shape::One) => "write one value, without brackets",
                    (DeValue::Array(_), Shape::Many) => "one list is enough: [\"…\", \"…\"]",
                    (DeValue::Table(_), _) => "write `key = value` for it, and no table",
                    _ => "put it in quotes: \"…\"",
                };
                self.wrong_shape(&format!("{}{}", place.prefix, place.key), place.of, span, &other, help);
                None
            }
        }
    }

    fn one_table<'a>(&mut self, key: &'static str, value: Value<'a>, of: Option<&OfRule>) -> Option<DeTable<'a>> {
        let span = value.span();
        let value = value.into_inner();
        if let DeValue::Table(table) = value {
            return Some(table);
        }
        self.wrong_shape(key, of, span, &value, &format!("write it as a table: [{key}]"));
        None
    }

    /// Returns the tables of an array of tables. A single table counts as an array of one.
    fn tables<'a>(&mut self, key: &'static str, value: Value<'a>, of: Option<&OfRule>) -> Vec<DeTable<'a>> {
        let span = value.span();
        let help = format!("write it as a table: [{key}], or [[{key}]] for each of several");
        let mut tables = Vec::new();
        let value = value.into_inner();
        let each = if let DeValue::Array(values) = value {
            values.into_iter().collect()
        } else {
            vec![Spanned::new(span, value)]
        };
        for value in each {
            let (span, value) = (value.span(), value.into_inner());
            if let DeValue::Table(table) = value {
                tables.push(table);
            } else {
                self.wrong_shape(key, of, span, &value, &help);
            }
        }
        tables
    }

    fn wrong_shape(&mut self, key: &str, of: Option<&OfRule>, span: Range<usize>, value: &DeValue<'_>, help: &str) {
        let what = match value {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) | DeValue::Float(_) => "a number without quotes",
            DeValue::Boolean(_) => "true or false without quotes",
            DeValue::Datetime(_) => "a date without quotes",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        let of = of.map_or_else(String::new, |of| format!(" of {of}"));
        self.found.unread(key);
        self.push(span, format!("bad value for `{key}`{of}: {what} cannot stand here"), help.to_owned());
    }

    /// Reports every entry that was not taken from the table as an unknown key.
    fn refuse_rest(&mut self, table: Table<'_>) {
        for (name, _) in &table.entries {
            let (help, meant) = unknown_key_help(name.get_ref(), table.of);
            meant.into_iter().for_each(|meant| self.found.unread(meant));
            self.push(name.span(), format!("unknown key `{}`", name.get_ref()), help);
        }
    }

    fn push(&mut self, span: Range<usize>, problem: String, help: String) {
        let excerpt = Some(Box::new(Excerpt::of(self.contents, span)));
        let place = Place::File { path: self.path.to_owned(), excerpt };
        self.found.push(Diagnostic { problem: shortened(problem), place, help: vec![shortened(help)] });
    }
}

#[derive(Clone, Copy)]
enum Kind {
    /// Only texts are accepted. Any other value would pass for a text by accident.
    Text,
    Any,
}

#[derive(Clone, Copy)]
enum Shape {
    One,
    Many,
}

/// Key that is being read.
#[derive(Clone, Copy)]
struct At<'a> {
    prefix: &'static str,
    key: &'static str,
    of: Option<&'a OfRule>,
}

impl At<'_> {
    fn written(self, span: Range<usize>, text: String) -> Written {
        let Self { prefix, key, of } = self;
        Written { text, origin: Origin::Key { prefix, key, of: of.cloned(), span } }
    }
}

/// Former names of keys, each with the name of today.
const FORMER: [(&str, &str); 1] = [("ban_unproven", "ban_unverified")];

/// Returns the help for an unknown key, and the full name of the key that was probably meant.
fn unknown_key_help(key: &str, of: &TableOf) -> (String, Option<String>) {
    let key = key.replace('-', "_");
    let names = |of: &TableOf| of.keys.iter().map(|key| key.name);
    let here: Vec<&str> = names(of).chain(of.tables.iter().copied()).collect();
    if let Some((_, now)) = FORMER.iter().find(|(former, now)| *former == key && here.contains(now)) {
        return (format!("it is called `{now}` now"), Some(format!("{}{now}", of.prefix)));
    }
    if let Some(meant) = near_miss(&key, here.iter().copied()) {
        return (format!("did you mean `{meant}`?"), Some(format!("{}{meant}", of.prefix)));
    }
    let elsewhere = [TOP, RULE, OVERRIDE, SAFETY, HISTORY, FLEET].into_iter().filter(|other| other.prefix != of.prefix);
    let mut found = elsewhere.filter_map(|other| Some((near_miss(&key, names(&other))?, other)));
    match found.next() {
        Some((meant, other)) => {
            (format!("`{meant}` belongs {}", other.words), Some(format!("{}{meant}", other.prefix)))
        }
        None => (format!("the keys here are {}", here.join(", ")), None),
    }
}
