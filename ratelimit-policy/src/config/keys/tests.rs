//! Tests of the table of keys against the parser, in both directions.

mod schema;

use std::path::Path;

use super::*;
use crate::config::{Config, file};
use crate::diagnostic::Diagnostics;

fn parse(text: &str) -> Result<Config, Diagnostics> {
    file::parse(Path::new("r.toml"), text, |_| Err("no list file belongs here".to_owned()))
}

/// Returns a valid file with `line` in the table of this prefix.
fn file_with(prefix: &str, line: &str) -> String {
    // A required key must not be written twice.
    let needed = |of: &str, name: &str, value: &str| {
        if of == prefix && line.starts_with(&format!("{name} =")) { String::new() } else { format!("{name} = {value}") }
    };
    let (top, lists, rule, of, safety, history, fleet) = match prefix {
        "" => (line, "", "", "", "", "", ""),
        "lists." => ("", line, "", "", "", "", ""),
        "rule." => ("", "", line, "", "", "", ""),
        "rule.override." => ("", "", "", line, "", "", ""),
        "safety." => ("", "", "", "", line, "", ""),
        "history." => ("", "", "", "", "", line, ""),
        "fleet." => ("", "", "", "", "", "", line),
        other => panic!("no table {other}"),
    };
    let interfaces = needed("", "interfaces", "[\"eth0\"]");
    let limits = needed("rule.", "limits", "[\"1000/5m\"]");
    let override_limits = needed("rule.override.", "limits", "[\"9/5m\"]");
    let from = needed("rule.override.", "from", "[\"192.0.2.1\"]");
    // A leaky bucket cannot be shared.
    let fleet = if line.contains("gcra") {
        String::new()
    } else {
        format!("[fleet]\n{}\n{fleet}\n", needed("fleet.", "url", "\"unix:///run/redis.sock\""))
    };
    format!(
        "{interfaces}\n{top}\n[lists]\n{lists}\n[safety]\n{safety}\n[history]\n{history}\n{fleet}[rule]\n{limits}\n{rule}\n[[rule.override]]\n\
         {override_limits}\n{from}\n{of}\n"
    )
}

fn every_key() -> impl Iterator<Item = (&'static Table, &'static Key)> {
    TABLES.iter().flat_map(|table| table.keys.iter().map(move |key| (table, key)))
}

#[test]
fn each_choice_is_taken_and_another_word_is_refused_with_all_of_them() {
    for (table, key) in every_key().filter(|(_, key)| !key.choices().is_empty()) {
        for word in key.choices() {
            let text = file_with(table.prefix, &format!("{} = \"{word}\"", key.name));
            assert!(parse(&text).is_ok(), "{text}: {:?}", parse(&text));
        }
        let text = file_with(table.prefix, &format!("{} = \"nosuchword\"", key.name));
        let help = parse(&text).expect_err(&text).first().help.join(" ");
        assert!(key.choices().iter().all(|word| help.contains(word)), "{text}: {help}");
    }
}

/// Returns the ban setting that a key requires. Keys about bans are errors without one.
fn with_bans(key: &str) -> &'static str {
    if ["forget_after", "block_prefix_after", "ban_unverified", "block_kill"].contains(&key) {
        "block_for = \"1m\"\n"
    } else {
        ""
    }
}

#[test]
fn the_ends_of_a_number_are_taken_and_one_beyond_is_refused() {
    for (table, key) in every_key() {
        let Value::Integer(least, most) = key.value else { continue };
        let bans = with_bans(key.name);
        let is_taken = |number: u64| parse(&file_with(table.prefix, &format!("{bans}{} = {number}", key.name))).is_ok();
        assert!(is_taken(least) && is_taken(most) && !is_taken(most + 1), "{}", key.name);
        assert!(least == 0 || !is_taken(least - 1), "{}", key.name);
    }
}

#[test]
fn a_key_with_its_default_is_a_file_without_it() {
    let mut held = 0;
    for (table, key) in every_key() {
        if format!("x = {}", key.default).parse::<toml::Table>().is_err() {
            continue;
        }
        let bans = with_bans(key.name);
        let text = file_with(table.prefix, &format!("{bans}{} = {}", key.name, key.default));
        assert_eq!(parse(&text), parse(&file_with(table.prefix, bans)), "{text}");
        assert!(parse(&text).is_ok(), "{text}");
        held += 1;
    }
    assert!(held >= 20, "{held}");
}

#[test]
fn keys_that_need_a_restart_are_those_a_reload_refuses() {
    let needs: Vec<_> = TOP.iter().filter(|key| key.reload == Reload::NeedsRestart).map(|key| key.name).collect();
    let old = parse(&file_with("", "")).expect("a configuration");
    let new = "hook = \"xdp\"\nxdp_mode = \"native\"\non_exit = \"keep\"\nmax_sources = 1024\nsocket = \"s\"\nlisten = \"[::1]:1\"\n\
               tls_cert_file = \"tls.pem\"\ntls_key_file = \"tls.key\"\ninsecure_web = true";
    let new = parse(&file_with("", new)).expect("a configuration");
    assert_eq!(old.restart_needed(&new), needs);
}
