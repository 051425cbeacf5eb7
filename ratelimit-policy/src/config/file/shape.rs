//! The shape of the file: which tables and keys there are, and of what type; from there to [`Settings`], every value with its place.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::super::keys::{OVERRIDE, RULE, SAFETY, TOP, names};
use super::super::lists::ListSettings;
use super::super::rule::{OverrideSettings, RuleSettings};
use super::super::settings::{SafetySettings, Settings};
use super::super::written::{OfRule, Origin, Source, Written};

type Text = Spanned<String>;

/// The keys of a table.
pub type Keys = &'static [&'static str];

/// Keys of the top level.
pub const TOP_KEYS: Keys = &names::<{ TOP.len() }>(TOP);
/// Keys of `[rule]`.
pub const RULE_KEYS: Keys = &names::<{ RULE.len() }>(RULE);
/// Keys of `[[rule.override]]`.
pub const OVERRIDE_KEYS: Keys = &names::<{ OVERRIDE.len() }>(OVERRIDE);
/// Keys of `[safety]`.
pub const SAFETY_KEYS: Keys = &names::<{ SAFETY.len() }>(SAFETY);
/// Tables beside the keys of the top level.
pub(super) const TABLES: Keys = &["rule", "lists", "safety"];

/// The file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Top {
    #[serde(default)]
    interfaces: Vec<Text>,
    xdp_mode: Option<Text>,
    on_exit: Option<Text>,
    max_sources: Option<Spanned<i64>>,
    socket: Option<Text>,
    listen: Option<Text>,
    ipv4_prefix: Option<Spanned<i64>>,
    ipv6_prefix: Option<Spanned<i64>>,
    #[serde(default)]
    allow: Vec<Text>,
    #[serde(default)]
    deny: Vec<Text>,
    deny_everyone: Option<Spanned<bool>>,
    #[serde(default)]
    lists: BTreeMap<Spanned<String>, Spanned<OneOrMany>>,
    #[serde(default)]
    safety: Table<SafetyTable>,
    #[serde(default)]
    rule: Rules,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SafetyTable {
    exempt_ssh_peer: Option<Spanned<bool>>,
    exempt_gateway: Option<Spanned<bool>>,
    exempt_resolvers: Option<Spanned<bool>>,
    breaker: Option<Text>,
    breaker_after: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleTable {
    name: Option<Text>,
    from: Option<Vec<Text>>,
    to: Option<Vec<Text>>,
    ports: Option<Text>,
    #[serde(default)]
    limits: Vec<Text>,
    count: Option<Text>,
    algorithm: Option<Text>,
    window: Option<Text>,
    burst: Option<Spanned<Plain>>,
    mode: Option<Text>,
    refuse: Option<Text>,
    guard: Option<Text>,
    block_for: Option<Spanned<OneOrMany>>,
    forget_after: Option<Text>,
    #[serde(default)]
    shadow_limits: Vec<Text>,
    #[serde(default)]
    candidates: Vec<Text>,
    ban_unproven: Option<Spanned<bool>>,
    under_attack_ok: Option<Spanned<bool>>,
    new_sources: Option<Text>,
    quic_ports: Option<Spanned<Plain>>,
    unparsable: Option<Text>,
    #[serde(default, rename = "override")]
    overrides: Vec<Table<OverrideTable>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OverrideTable {
    name: Option<Text>,
    #[serde(default)]
    from: Vec<Text>,
    #[serde(default)]
    limits: Vec<Text>,
    algorithm: Option<Text>,
    window: Option<Text>,
    burst: Option<Spanned<Plain>>,
    until: Option<Spanned<Plain>>,
    note: Option<Text>,
}

/// A table and nothing else: serde by itself also takes an array, as values by position.
#[derive(Default)]
struct Table<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Table<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfMap<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OfMap<T> {
            type Value = Table<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Table<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Table)
            }
        }

        deserializer.deserialize_map(OfMap(PhantomData))
    }
}

/// `[rule]`, or `[[rule]]` any number of times.
enum Rules {
    One(Box<RuleTable>),
    Many(Vec<RuleTable>),
}

impl Default for Rules {
    fn default() -> Self {
        Self::One(Box::default())
    }
}

impl<'de> Deserialize<'de> for Rules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfEither;

        impl<'de> Visitor<'de> for OfEither {
            type Value = Rules;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Rules, A::Error> {
                RuleTable::deserialize(MapAccessDeserializer::new(map)).map(|rule| Rules::One(Box::new(rule)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut tables: A) -> Result<Rules, A::Error> {
                let mut rules = Vec::new();
                while let Some(Table(rule)) = tables.next_element_seed(PhantomData::<Table<RuleTable>>)? {
                    rules.push(rule);
                }
                Ok(Rules::Many(rules))
            }
        }

        deserializer.deserialize_any(OfEither)
    }
}

/// A text, or a list of texts.
enum OneOrMany {
    One(String),
    Many(Vec<Text>),
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfEither;

        impl<'de> Visitor<'de> for OfEither {
            type Value = OneOrMany;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a sequence")
            }

            fn visit_str<E>(self, text: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany::One(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<OneOrMany, A::Error> {
                let mut many = Vec::new();
                while let Some(text) = texts.next_element()? {
                    many.push(text);
                }
                Ok(OneOrMany::Many(many))
            }
        }

        deserializer.deserialize_any(OfEither)
    }
}

/// A text, or a number or date without quotes, as it would be written in them.
struct Plain(String);

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfAny;

        impl<'de> Visitor<'de> for OfAny {
            type Value = Plain;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, text: &str) -> Result<Plain, E> {
                Ok(Plain(text.to_owned()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Plain, E> {
                Ok(Plain(number.to_string()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Plain, A::Error> {
                let date = toml::value::Datetime::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Plain(date.to_string()))
            }
        }

        deserializer.deserialize_any(OfAny)
    }
}

impl Top {
    pub(super) fn settings(self, path: &Path, contents: &str) -> Settings {
        let at = At(None);
        let lists = self.lists.into_iter().map(|(name, entries)| ListSettings {
            name: at.written("lists", name),
            entries: at.one_or_many("lists", Some(entries)),
        });
        let SafetyTable { exempt_ssh_peer, exempt_gateway, exempt_resolvers, breaker, breaker_after } = self.safety.0;
        Settings {
            source: Source::File { path: path.to_owned(), contents: contents.to_owned() },
            interfaces: at.texts("interfaces", self.interfaces),
            xdp_mode: at.value("xdp_mode", self.xdp_mode),
            on_exit: at.value("on_exit", self.on_exit),
            max_sources: at.value("max_sources", self.max_sources),
            socket: at.value("socket", self.socket),
            listen: at.value("listen", self.listen),
            ipv4_prefix: at.value("ipv4_prefix", self.ipv4_prefix),
            ipv6_prefix: at.value("ipv6_prefix", self.ipv6_prefix),
            allow: at.texts("allow", self.allow),
            deny: at.texts("deny", self.deny),
            deny_everyone: at.value("deny_everyone", self.deny_everyone),
            lists: lists.collect(),
            safety: SafetySettings {
                exempt_ssh_peer: at.value("safety.exempt_ssh_peer", exempt_ssh_peer),
                exempt_gateway: at.value("safety.exempt_gateway", exempt_gateway),
                exempt_resolvers: at.value("safety.exempt_resolvers", exempt_resolvers),
                breaker: at.value("safety.breaker", breaker),
                breaker_after: at.value("safety.breaker_after", breaker_after),
            },
            rules: match self.rule {
                Rules::One(rule) => vec![rule.settings(None)],
                Rules::Many(rules) if rules.len() == 1 => rules.into_iter().map(|rule| rule.settings(None)).collect(),
                Rules::Many(rules) => {
                    let numbered = rules.into_iter().enumerate();
                    numbered.map(|(index, rule)| rule.settings(Some(index))).collect()
                }
            },
            list_files: BTreeMap::new(),
        }
    }
}

impl RuleTable {
    fn settings(self, index: Option<usize>) -> RuleSettings {
        let name = self.name.as_ref().map(|name| name.get_ref().clone());
        let at = At(index.map(|index| OfRule { index, name }));
        RuleSettings {
            name: at.value("rule.name", self.name),
            from: self.from.map(|from| at.texts("rule.from", from)),
            to: self.to.map(|to| at.texts("rule.to", to)),
            ports: at.value("rule.ports", self.ports),
            limits: at.texts("rule.limits", self.limits),
            count: at.value("rule.count", self.count),
            algorithm: at.value("rule.algorithm", self.algorithm),
            window: at.value("rule.window", self.window),
            burst: at.value("rule.burst", self.burst),
            mode: at.value("rule.mode", self.mode),
            refuse: at.value("rule.refuse", self.refuse),
            guard: at.value("rule.guard", self.guard),
            block_for: at.one_or_many("rule.block_for", self.block_for),
            forget_after: at.value("rule.forget_after", self.forget_after),
            shadow_limits: at.texts("rule.shadow_limits", self.shadow_limits),
            candidates: at.texts("rule.candidates", self.candidates),
            ban_unproven: at.value("rule.ban_unproven", self.ban_unproven),
            under_attack_ok: at.value("rule.under_attack_ok", self.under_attack_ok),
            new_sources: at.value("rule.new_sources", self.new_sources),
            quic_ports: at.value("rule.quic_ports", self.quic_ports),
            unparsable: at.value("rule.unparsable", self.unparsable),
            overrides: self.overrides.into_iter().map(|Table(table)| table.settings(&at)).collect(),
            of: at.0,
        }
    }
}

impl OverrideTable {
    fn settings(self, at: &At) -> OverrideSettings {
        OverrideSettings {
            name: at.value("rule.override.name", self.name),
            from: at.texts("rule.override.from", self.from),
            limits: at.texts("rule.override.limits", self.limits),
            algorithm: at.value("rule.override.algorithm", self.algorithm),
            window: at.value("rule.override.window", self.window),
            burst: at.value("rule.override.burst", self.burst),
            until: at.value("rule.override.until", self.until),
            note: at.value("rule.override.note", self.note),
        }
    }
}

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which of several rules the values are of.
struct At(Option<OfRule>);

impl At {
    fn written<T: fmt::Display>(&self, key: &'static str, value: Spanned<T>) -> Written {
        let span = value.span();
        Written { text: value.into_inner().to_string(), origin: Origin::Key { key, of: self.0.clone(), span } }
    }

    fn value<T: fmt::Display>(&self, key: &'static str, value: Option<Spanned<T>>) -> Option<Written> {
        value.map(|value| self.written(key, value))
    }

    fn texts(&self, key: &'static str, values: Vec<Text>) -> Vec<Written> {
        values.into_iter().map(|value| self.written(key, value)).collect()
    }

    fn one_or_many(&self, key: &'static str, value: Option<Spanned<OneOrMany>>) -> Vec<Written> {
        let Some(value) = value else { return Vec::new() };
        let span = value.span();
        match value.into_inner() {
            OneOrMany::One(text) => vec![self.written(key, Spanned::new(span, text))],
            OneOrMany::Many(texts) => self.texts(key, texts),
        }
    }
}
