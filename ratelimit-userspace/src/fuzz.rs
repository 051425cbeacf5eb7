//! Fuzz targets: configuration and list files of arbitrary bytes. The target for the socket is in
//! `daemon::tests::fuzz`.
//!
//! Each runs on a bounded number of inputs; CONTRIBUTING.md says how to run more, and how to repeat a failure.

use std::path::Path;

use ipnet::IpNet;
use proptest::prelude::*;
use ratelimit_common::layout::{
    BAN_STEPS_MAX, INTERFACES_MAX, LIMITS_MAX, PREFIXES_MAX, RULES_MAX, SHADOWS_MAX, TARGETS_MAX,
};
use ratelimit_common::time::Nanos;
use ratelimit_policy::fixture::{CHOICES_MAX, Choices, config_text, for_any_bytes, list_text};

use crate::error::{Diagnostics, Place};
use ratelimit_policy::config::lists::LIST_ENTRIES_MAX;
use ratelimit_policy::config::syntax::turns_text;
use ratelimit_policy::config::{Config, MAX_SOURCES_MAX, MAX_SOURCES_MIN, file, lint, lists};
use ratelimit_policy::desired::DesiredState;
use ratelimit_policy::plan::{apply, changes, diff};
use ratelimit_view::describe::{self, ConfigJson};

/// Maximum bytes of text about a file. // several times what 64 rules and 16 named overlaps come to
const WORDS_MAX: usize = 256 << 10;

fn parsed(contents: &str, list: &str) -> Result<Config, Diagnostics> {
    file::parse(Path::new("ratelimitd.toml"), contents, |_| Ok(list.to_owned()))
}

/// Checks the bounds of a `Config`.
fn assert_bounded(config: &Config) {
    let policy = &config.policy;
    assert!((1..=INTERFACES_MAX).contains(&config.interfaces.len()));
    assert!((MAX_SOURCES_MIN..=MAX_SOURCES_MAX).contains(&config.max_sources));
    assert!((1..=RULES_MAX).contains(&policy.rules.len()));
    assert!(policy.ipv4_prefix <= 32 && policy.ipv6_prefix <= 128);
    let mut sources: Vec<IpNet> = policy.access.iter().map(|access| access.prefix).collect();
    let mut targets = Vec::new();
    for rule in &policy.rules {
        assert!((1..=LIMITS_MAX).contains(&rule.limits.len()), "{rule:?}");
        assert!(rule.shadow_limits.len() <= SHADOWS_MAX, "{rule:?}");
        assert!(rule.bans.as_ref().is_none_or(|bans| (1..=BAN_STEPS_MAX).contains(&bans.steps_ns.len())), "{rule:?}");
        for limit in rule.limits.iter().chain(&rule.shadow_limits) {
            assert!(limit.bucket_ns > 0 && limit.buckets > 0 && limit.window_ns > 0, "{limit:?}");
        }
        sources.extend(&rule.from);
        targets.extend(&rule.to);
    }
    for prefixes in [&mut sources, &mut targets] {
        assert!(prefixes.iter().all(|prefix| *prefix == prefix.trunc()));
        prefixes.sort_unstable();
        prefixes.dedup();
    }
    assert!(targets.len() <= TARGETS_MAX as usize);
    let v4 = sources.iter().filter(|prefix| prefix.addr().is_ipv4()).count();
    assert!(v4.max(sources.len() - v4) <= PREFIXES_MAX as usize);
}

/// Checks that everything that `check-config` says about a file is neither empty nor too long.
fn assert_said(config: &Config) {
    let warnings = lint::warnings(config, Nanos(0));
    let words = describe::config_words(config);
    let json = serde_json::to_string(&ConfigJson::new(config, warnings.clone())).unwrap();
    assert!(!words.is_empty() && words.len() + warnings.concat().len() + json.len() <= WORDS_MAX);
}

/// Checks errors: each names file, line and column, marks the place, and says what to do. None appears twice.
fn assert_told(errors: Diagnostics, contents: &str, list: &str) {
    for (at, error) in errors.iter().enumerate() {
        let Place::File { path, excerpt } = &error.place else { panic!("not in the file: {error:?}") };
        let of = if path == Path::new("ratelimitd.toml") { contents } else { list };
        match excerpt {
            Some(excerpt) => {
                let lines = of.split('\n').count();
                assert!((1..=lines).contains(&excerpt.line) && excerpt.column >= 1, "{error:?}\n{of}");
            }
            None => assert!(error.problem.contains("is missing"), "no line is named: {error:?}\n{of}"),
        }
        assert!(!error.help.is_empty(), "no help: {error:?}\n{of}");
        assert!(errors.iter().skip(at + 1).all(|other| other != error), "twice: {error:?}\n{of}");
    }
    assert_plain(errors);
}

fn assert_plain(error: Diagnostics) {
    let text = crate::error::render(&error.into());
    let is_plain = |c: char| c == '\n' || !c.is_control() && !turns_text(c);
    let plain = anstream::adapter::strip_str(&text).to_string();
    assert!(text.len() <= WORDS_MAX && plain.chars().all(is_plain), "{plain:?}");
}

/// Parses arbitrary bytes as the configuration file, which may name one list file of arbitrary bytes. Checks that the
/// result is bounded and can be described.
fn exercise(contents: &[u8], list: &[u8]) {
    let (contents, list) = (String::from_utf8_lossy(contents), String::from_utf8_lossy(list));
    match parsed(&contents, &list) {
        Ok(config) => {
            assert_bounded(&config);
            assert_said(&config);
        }
        Err(error) => assert_plain(error),
    }
}

/// Parses arbitrary bytes as a list file, and checks the result.
fn exercise_list(list: &[u8]) {
    match lists::parse(Path::new("list"), &String::from_utf8_lossy(list)) {
        Ok(prefixes) => assert!(prefixes.len() <= LIST_ENTRIES_MAX),
        Err(error) => assert_plain(error),
    }
}

fn desired(config: &Config) -> DesiredState {
    DesiredState::from(config)
}

#[test]
fn any_configuration_is_understood_within_bounds_or_refused_in_words() {
    for_any_bytes(|bytes| {
        let mut choices = Choices::new(bytes);
        let list = list_text(&mut choices);
        let texts = [config_text(&mut choices), config_text(&mut choices)];
        let mut configs = Vec::new();
        for text in &texts {
            match parsed(text, &list) {
                Ok(config) => {
                    assert_bounded(&config);
                    assert_said(&config);
                    configs.push(config);
                }
                Err(error) => assert_told(error, text, &list),
            }
        }
        for config in &configs {
            let state = desired(config);
            assert!(diff(&state, &state).is_empty() && changes(&state, &state).is_empty());
        }
        if let [a, b] = &configs[..] {
            let (a, b) = (desired(a), desired(b));
            for (from, to) in [(&a, &b), (&b, &a)] {
                assert_eq!(&apply(from, &diff(from, to)), to);
                assert_eq!(changes(from, to).is_empty(), from == to, "a change is told, and only a change");
            }
        }
    });
}

#[test]
fn any_bytes_of_a_configuration_are_understood_or_refused_in_words() {
    for_any_bytes(|bytes| {
        exercise(bytes, bytes);
        exercise_list(bytes);
    });
}

#[test]
fn any_list_file_is_bounded_and_its_errors_have_a_line() {
    for_any_bytes(|bytes| {
        let mut choices = Choices::new(bytes);
        let mut text = list_text(&mut choices);
        if choices.is_rare() {
            text = text.repeat(1 << choices.below(14));
        }
        match lists::parse(Path::new("list.txt"), &text) {
            Ok(prefixes) => {
                assert!(prefixes.len() <= LIST_ENTRIES_MAX && prefixes.is_sorted());
                assert!(prefixes.iter().all(|prefix| *prefix == prefix.trunc()));
            }
            Err(error) => assert_told(error, "", &text),
        }
    });
}

#[test]
fn the_mutated_files_get_beyond_the_parser_often_enough_to_be_worth_it() {
    let mut state = 1_u64;
    let understood = (0..300).filter(|_| {
        let bytes: Vec<u8> = (0..CHOICES_MAX)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state.to_be_bytes()[0]
            })
            .collect();
        let mut choices = Choices::new(&bytes);
        let list = list_text(&mut choices);
        parsed(&config_text(&mut choices), &list).is_ok()
    });
    let understood = understood.count();
    assert!((30..=270).contains(&understood), "{understood} of 300 are valid");
}

/// Lines that are valid in some table, in any order.
const LINES: [&str; 26] = [
    "interfaces = [\"eth0\"]",
    "allow = [\"@a\", \"192.0.2.0/24\"]",
    "deny = [\"file:x\", \"::/0\"]",
    "deny_everyone = true",
    "[lists]",
    "a = [\"10.0.0.0/8\", \"file:x\"]",
    "b = \"file:x\"",
    "[safety]",
    "breaker = \"80%\"",
    "[history]",
    "keep = \"1d\"\nmax_size = \"1MB\"",
    "[rule]",
    "[[rule]]",
    "[[rule]]\nname = \"a\"\nlimits = [\"10/1m\"]",
    "[[rule]]\nname = \"b\"\nlimits = [\"10/1m\", \"1MB/s\"]",
    "from = [\"@a\"]",
    "to = [\"203.0.113.5\"]",
    "ports = \"all\"",
    "algorithm = \"gcra\"",
    "algorithm = \"fixed\"",
    "burst = 3",
    "block_for = [\"1m\", \"2m\"]",
    "shadow_limits = [\"5/1m\", \"6/1m\"]",
    "[[rule.override]]\nfrom = [\"@b\"]\nlimits = [\"9/1h\"]",
    "until = 2027-03-31",
    "window = \"lenient\"",
];

proptest! {
    #[test]
    fn no_mix_of_keys_and_lists_panics(
        lines in prop::collection::vec(prop::sample::select(LINES.to_vec()), 0..16),
        list in "([0-9a-f.:/]{0,12}[ ;#\r]?\n){0,4}|192.0.2.0/24\n",
    ) {
        let mut contents = lines;
        contents.insert(0, "interfaces = [\"eth0\"]");
        exercise(contents.join("\n").as_bytes(), list.as_bytes());
    }

    #[test]
    fn no_bytes_panic(contents in prop::collection::vec(any::<u8>(), 0..80), list in prop::collection::vec(any::<u8>(), 0..80)) {
        exercise(&contents, &list);
        exercise_list(&list);
    }
}
