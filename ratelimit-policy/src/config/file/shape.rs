//! The shape of the file: which tables and keys there are; from there to [`Settings`], every value with its place. What is not
//! of that shape is found, all of it, and read as if it were not there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::super::fleet::FleetSettings;
use super::super::history::HistorySettings;
use super::super::keys::{self, names};
use super::super::lists::ListSettings;
use super::super::rule::{OverrideSettings, RuleSettings};
use super::super::settings::{SafetySettings, Settings};
use super::super::syntax::{near_miss, shortened};
use super::super::written::{OfRule, Origin, Source, Written};
use crate::diagnostic::{Diagnostic, Excerpt, Found, Place};

type Value<'a> = Spanned<DeValue<'a>>;

/// The keys of a table.
pub type Keys = &'static [&'static str];

/// Keys of the top level.
pub const TOP_KEYS: Keys = &names::<{ keys::TOP.len() }>(keys::TOP);
/// Keys of `[rule]`.
pub const RULE_KEYS: Keys = &names::<{ keys::RULE.len() }>(keys::RULE);
/// Keys of `[[rule.override]]`.
pub const OVERRIDE_KEYS: Keys = &names::<{ keys::OVERRIDE.len() }>(keys::OVERRIDE);
/// Keys of `[safety]`.
pub const SAFETY_KEYS: Keys = &names::<{ keys::SAFETY.len() }>(keys::SAFETY);
/// Keys of `[history]`.
pub const HISTORY_KEYS: Keys = &names::<{ keys::HISTORY.len() }>(keys::HISTORY);
/// Keys of `[fleet]`.
pub const FLEET_KEYS: Keys = &names::<{ keys::FLEET.len() }>(keys::FLEET);
/// Tables beside the keys of the top level.
pub(super) const TABLES: Keys = &["rule", "lists", "safety", "history", "fleet"];

/// A table in words, what its keys begin with, and the keys.
struct TableOf {
    words: &'static str,
    prefix: &'static str,
    keys: Keys,
    /// Tables in it.
    tables: Keys,
}

const TOP: TableOf =
    TableOf { words: "at the top of the file, above the first [table]", prefix: "", keys: TOP_KEYS, tables: TABLES };
const RULE: TableOf = TableOf { words: "under [rule]", prefix: "rule.", keys: RULE_KEYS, tables: &["override"] };
const OVERRIDE: TableOf =
    TableOf { words: "under [[rule.override]]", prefix: "rule.override.", keys: OVERRIDE_KEYS, tables: &[] };
const SAFETY: TableOf = TableOf { words: "under [safety]", prefix: "safety.", keys: SAFETY_KEYS, tables: &[] };
const HISTORY: TableOf = TableOf { words: "under [history]", prefix: "history.", keys: HISTORY_KEYS, tables: &[] };
const FLEET: TableOf = TableOf { words: "under [fleet]", prefix: "fleet.", keys: FLEET_KEYS, tables: &[] };

/// What the file says; what is wrong with its shape is found.
pub(super) fn settings(path: &Path, contents: &str, top: Spanned<DeTable<'_>>, found: &mut Found) -> Settings {
    let mut reader = Reader { path, contents, found };
    let mut table = reader.table(&TOP, top.into_inner(), None);
    let lists = table.take("lists").map_or_else(Vec::new, |value| reader.lists(value));
    let mut settings = Settings {
        source: Source::File { path: path.to_owned(), contents: contents.to_owned() },
        interfaces: reader.texts(&mut table, "interfaces").unwrap_or_default(),
        xdp_mode: reader.value(&mut table, "xdp_mode"),
        on_exit: reader.value(&mut table, "on_exit"),
        max_sources: reader.value(&mut table, "max_sources"),
        socket: reader.text(&mut table, "socket"),
        listen: reader.value(&mut table, "listen"),
        tls_cert_file: reader.text(&mut table, "tls_cert_file"),
        tls_key_file: reader.text(&mut table, "tls_key_file"),
        insecure_web: reader.value(&mut table, "insecure_web"),
        ipv4_prefix: reader.value(&mut table, "ipv4_prefix"),
        ipv6_prefix: reader.value(&mut table, "ipv6_prefix"),
        allow: reader.values(&mut table, "allow").unwrap_or_default(),
        deny: reader.values(&mut table, "deny").unwrap_or_default(),
        deny_everyone: reader.value(&mut table, "deny_everyone"),
        lists,
        safety: SafetySettings::default(),
        history: HistorySettings::default(),
        fleet: None,
        rules: Vec::new(),
        list_files: BTreeMap::new(),
    };
    if let Some(value) = table.take("safety") {
        settings.safety = reader.one_table("safety", value, None).map_or_else(SafetySettings::default, |safety| {
            let mut table = reader.table(&SAFETY, safety, None);
            let safety = SafetySettings {
                exempt_ssh_peer: reader.value(&mut table, "safety.exempt_ssh_peer"),
                exempt_gateway: reader.value(&mut table, "safety.exempt_gateway"),
                exempt_resolvers: reader.value(&mut table, "safety.exempt_resolvers"),
                breaker: reader.value(&mut table, "safety.breaker"),
                breaker_after: reader.value(&mut table, "safety.breaker_after"),
            };
            reader.refuse_rest(table);
            safety
        });
    }
    if let Some(value) = table.take("history") {
        settings.history = reader.history(value);
    }
    if let Some(value) = table.take("fleet") {
        settings.fleet = reader.fleet(value);
    }
    let rules = table.take("rule").map_or_else(|| vec![DeTable::new()], |value| reader.tables("rule", value, None));
    let is_one = rules.len() == 1;
    settings.rules =
        rules.into_iter().enumerate().map(|(index, rule)| reader.rule(rule, (!is_one).then_some(index))).collect();
    reader.refuse_rest(table);
    settings
}

/// A table of the file that is being read.
struct Table<'a> {
    of: &'static TableOf,
    rule: Option<OfRule>,
    entries: Vec<(Spanned<toml::de::DeString<'a>>, Value<'a>)>,
}

impl<'a> Table<'a> {
    /// The value of a key, which is named with its tables.
    fn take(&mut self, key: &str) -> Option<Value<'a>> {
        let (_, key) = key.rsplit_once('.').unwrap_or(("", key));
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
                .map(|table| self.override_of(table, of.clone()))
                .collect()
        });
        let settings = RuleSettings {
            name: self.value(&mut table, "rule.name"),
            from: self.values(&mut table, "rule.from"),
            to: self.values(&mut table, "rule.to"),
            ports: self.values(&mut table, "rule.ports"),
            limits: self.values(&mut table, "rule.limits").unwrap_or_default(),
            count: self.value(&mut table, "rule.count"),
            algorithm: self.value(&mut table, "rule.algorithm"),
            window: self.value(&mut table, "rule.window"),
            burst: self.value(&mut table, "rule.burst"),
            mode: self.value(&mut table, "rule.mode"),
            refuse: self.value(&mut table, "rule.refuse"),
            guard: self.value(&mut table, "rule.guard"),
            block_for: self.values(&mut table, "rule.block_for").unwrap_or_default(),
            forget_after: self.value(&mut table, "rule.forget_after"),
            shadow_limits: self.values(&mut table, "rule.shadow_limits").unwrap_or_default(),
            candidates: self.values(&mut table, "rule.candidates").unwrap_or_default(),
            ban_unproven: self.value(&mut table, "rule.ban_unproven"),
            under_attack_ok: self.value(&mut table, "rule.under_attack_ok"),
            new_sources: self.value(&mut table, "rule.new_sources"),
            quic_ports: self.values(&mut table, "rule.quic_ports"),
            unparsable: self.value(&mut table, "rule.unparsable"),
            fleet: self.value(&mut table, "rule.fleet"),
            fleet_sum: self.value(&mut table, "rule.fleet_sum"),
            overrides,
            of,
        };
        self.refuse_rest(table);
        settings
    }

    fn override_of(&mut self, table: DeTable<'_>, of: Option<OfRule>) -> OverrideSettings {
        let mut table = self.table(&OVERRIDE, table, of);
        let settings = OverrideSettings {
            name: self.value(&mut table, "rule.override.name"),
            from: self.values(&mut table, "rule.override.from").unwrap_or_default(),
            limits: self.values(&mut table, "rule.override.limits").unwrap_or_default(),
            algorithm: self.value(&mut table, "rule.override.algorithm"),
            window: self.value(&mut table, "rule.override.window"),
            burst: self.value(&mut table, "rule.override.burst"),
            until: self.value(&mut table, "rule.override.until"),
            note: self.value(&mut table, "rule.override.note"),
        };
        self.refuse_rest(table);
        settings
    }

    fn history(&mut self, value: Value<'_>) -> HistorySettings {
        let Some(table) = self.one_table("history", value, None) else { return HistorySettings::default() };
        let mut table = self.table(&HISTORY, table, None);
        let history = HistorySettings {
            enabled: self.value(&mut table, "history.enabled"),
            path: self.text(&mut table, "history.path"),
            keep: self.value(&mut table, "history.keep"),
            max_size: self.value(&mut table, "history.max_size"),
            mask_ipv4: self.value(&mut table, "history.mask_ipv4"),
            mask_ipv6: self.value(&mut table, "history.mask_ipv6"),
        };
        self.refuse_rest(table);
        history
    }

    fn fleet(&mut self, value: Value<'_>) -> Option<FleetSettings> {
        let table = self.one_table("fleet", value, None)?;
        let mut table = self.table(&FLEET, table, None);
        let fleet = FleetSettings {
            url: self.texts(&mut table, "fleet.url").unwrap_or_default(),
            name: self.value(&mut table, "fleet.name"),
            secret_file: self.text(&mut table, "fleet.secret_file"),
            username: self.text(&mut table, "fleet.username"),
            password_file: self.text(&mut table, "fleet.password_file"),
            ca_file: self.text(&mut table, "fleet.ca_file"),
            cert_file: self.text(&mut table, "fleet.cert_file"),
            key_file: self.text(&mut table, "fleet.key_file"),
            interval: self.value(&mut table, "fleet.interval"),
            hosts: self.value(&mut table, "fleet.hosts"),
            bans: self.value(&mut table, "fleet.bans"),
            floor: self.value(&mut table, "fleet.floor"),
        };
        self.refuse_rest(table);
        Some(fleet)
    }

    fn lists(&mut self, value: Value<'_>) -> Vec<ListSettings> {
        let Some(table) = self.one_table("lists", value, None) else { return Vec::new() };
        let list = |(name, entries): (Spanned<toml::de::DeString<'_>>, Value<'_>)| ListSettings {
            name: written("lists", None, name.span(), name.into_inner().into_owned()),
            entries: self.each("lists", None, entries, Kind::Any).unwrap_or_default(),
        };
        table.into_iter().map(list).collect()
    }

    /// A text, or a number, date or truth without quotes.
    fn value(&mut self, table: &mut Table<'_>, key: &'static str) -> Option<Written> {
        self.one(table, key, Kind::Any)
    }

    /// A text.
    fn text(&mut self, table: &mut Table<'_>, key: &'static str) -> Option<Written> {
        self.one(table, key, Kind::Text)
    }

    /// A list of values, or one.
    fn values(&mut self, table: &mut Table<'_>, key: &'static str) -> Option<Vec<Written>> {
        self.many(table, key, Kind::Any)
    }

    /// A list of texts, or one.
    fn texts(&mut self, table: &mut Table<'_>, key: &'static str) -> Option<Vec<Written>> {
        self.many(table, key, Kind::Text)
    }

    fn one(&mut self, table: &mut Table<'_>, key: &'static str, kind: Kind) -> Option<Written> {
        let value = table.take(key)?;
        self.scalar(key, table.rule.as_ref(), value, kind, Shape::One)
    }

    fn many(&mut self, table: &mut Table<'_>, key: &'static str, kind: Kind) -> Option<Vec<Written>> {
        let value = table.take(key)?;
        self.each(key, table.rule.as_ref(), value, kind)
    }

    fn each(
        &mut self,
        key: &'static str,
        of_rule: Option<&OfRule>,
        value: Value<'_>,
        kind: Kind,
    ) -> Option<Vec<Written>> {
        let span = value.span();
        let value = value.into_inner();
        if let DeValue::Array(values) = value {
            return Some(
                values.into_iter().filter_map(|of| self.scalar(key, of_rule, of, kind, Shape::Many)).collect(),
            );
        }
        self.scalar(key, of_rule, Spanned::new(span, value), kind, Shape::Many).map(|one| vec![one])
    }

    fn scalar(
        &mut self,
        key: &'static str,
        of: Option<&OfRule>,
        value: Value<'_>,
        kind: Kind,
        shape: Shape,
    ) -> Option<Written> {
        let span = value.span();
        match (value.into_inner(), kind) {
            (DeValue::String(text), _) => Some(written(key, of, span, text.into_owned())),
            (DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_), Kind::Any) => {
                let text = self.contents.get(span.clone()).unwrap_or_default().to_owned();
                Some(written(key, of, span, text))
            }
            (other, _) => {
                let help = match (&other, shape) {
                    (DeValue::Array(_), Shape::One) => "write one value, without brackets",
                    (DeValue::Array(_), Shape::Many) => "one list is enough: [\"…\", \"…\"]",
                    (DeValue::Table(_), _) => "write `key = value` for it, and no table",
                    _ => "put it in quotes: \"…\"",
                };
                self.wrong_shape(key, of, span, &other, help);
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

    /// A table, or an array of them.
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

    fn wrong_shape(
        &mut self,
        key: &'static str,
        of: Option<&OfRule>,
        span: Range<usize>,
        value: &DeValue<'_>,
        help: &str,
    ) {
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

    /// What was not taken out of a table is unknown.
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
    /// A text alone: what else there is would pass for one by accident.
    Text,
    Any,
}

#[derive(Clone, Copy)]
enum Shape {
    One,
    Many,
}

fn written(key: &'static str, of: Option<&OfRule>, span: Range<usize>, text: String) -> Written {
    Written { text, origin: Origin::Key { key, of: of.cloned(), span } }
}

/// What to do about an unknown key, and which one is meant.
fn unknown_key_help(key: &str, of: &TableOf) -> (String, Option<String>) {
    let key = key.replace('-', "_");
    let here: Vec<&str> = of.keys.iter().chain(of.tables).copied().collect();
    if let Some(meant) = near_miss(&key, here.iter().copied()) {
        return (format!("did you mean `{meant}`?"), Some(format!("{}{meant}", of.prefix)));
    }
    let elsewhere = [TOP, RULE, OVERRIDE, SAFETY, HISTORY].into_iter().filter(|other| other.prefix != of.prefix);
    let mut found = elsewhere.filter_map(|other| Some((near_miss(&key, other.keys.iter().copied())?, other)));
    match found.next() {
        Some((meant, other)) => {
            (format!("`{meant}` belongs {}", other.words), Some(format!("{}{meant}", other.prefix)))
        }
        None => (format!("the keys here are {}", here.join(", ")), None),
    }
}
