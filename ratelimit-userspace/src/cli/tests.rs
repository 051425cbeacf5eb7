//! The command line against its own definition: what there is, and that all of it can be set.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clap::{Args as _, Parser as _};

use super::*;
use crate::config::file::shape::{OVERRIDE_KEYS, RULE_KEYS, SAFETY_KEYS, TOP_KEYS};
use crate::config::{Config, file};

mod named;

/// Flag, its arguments, and the same in the file: above `[rule]`, and under it.
type Row = (&'static str, &'static [&'static str], &'static str, &'static str);

const SAME: &[Row] = &[
    ("iface", &["--iface", "eth1", "--iface", "eth0"], "interfaces = [\"eth1\", \"eth0\"]", ""),
    ("xdp-mode", &["--xdp-mode", "native"], "xdp_mode = \"native\"", ""),
    ("on-exit", &["--on-exit", "keep"], "on_exit = \"keep\"", ""),
    ("max-sources", &["--max-sources", "1024"], "max_sources = 1024", ""),
    ("socket", &["--socket", "my.sock"], "socket = \"my.sock\"", ""),
    ("listen", &["--listen", "[::1]:9464"], "listen = \"[::1]:9464\"", ""),
    ("ipv4-prefix", &["--ipv4-prefix", "24"], "ipv4_prefix = 24", ""),
    ("ipv6-prefix", &["--ipv6-prefix", "56"], "ipv6_prefix = 56", ""),
    ("allow", &["--allow", "192.0.2.0/24", "--allow", "::1"], "allow = [\"::1\", \"192.0.2.0/24\"]", ""),
    ("name", &["--name", "web"], "", "name = \"web\""),
    ("limit", &["--limit", "10/1m,60/1h"], "", "limits = [\"10/1m\", \"60/1h\"]"),
    ("count", &["--count", "packets"], "", "count = \"packets\""),
    ("port", &["--port", "22/tcp,8000-8100"], "", "ports = \"8000-8100, 22/tcp\""),
    ("dry-run", &["--dry-run"], "", "mode = \"dry-run\""),
    ("window", &["--window", "lenient"], "", "window = \"lenient\""),
    ("refuse", &["--refuse", "all"], "", "refuse = \"all\""),
    ("block-for", &["--block-for", "1m,10m"], "", "block_for = [\"1m\", \"10m\"]"),
    ("new-sources", &["--new-sources", "20000/s"], "", "new_sources = \"20000/s\""),
    ("quic-ports", &["--quic-ports", "none"], "", "quic_ports = \"none\""),
    ("unparsable", &["--unparsable", "count"], "", "unparsable = \"count\""),
];

/// What only a file can say, beside the tables that are there only in a file.
const FILE_ONLY: &[&str] = &[
    "deny",
    "deny_everyone",
    "rule.from",
    "rule.to",
    "rule.algorithm",
    "rule.burst",
    "rule.forget_after",
    "rule.ban_unproven",
    "rule.shadow_limits",
    "rule.candidates",
    "rule.under_attack_ok",
    "rule.guard",
];

/// Every key with its table.
fn every_key() -> BTreeSet<String> {
    let of = |table: &str, keys: &[&str]| keys.iter().map(|key| format!("{table}{key}")).collect::<Vec<_>>();
    let tables = [("", TOP_KEYS), ("rule.", RULE_KEYS), ("rule.override.", OVERRIDE_KEYS), ("safety.", SAFETY_KEYS)];
    tables.into_iter().flat_map(|(table, keys)| of(table, keys)).collect()
}

fn key(line: &str) -> Option<&str> {
    line.split_once(" =").map(|(key, _)| key)
}

/// `rule.mode` for a line under `[rule]`.
fn keys() -> impl Iterator<Item = (String, &'static str)> {
    let top = SAME.iter().filter_map(|row| Some((key(row.2)?.to_owned(), row.0)));
    top.chain(SAME.iter().filter_map(|row| Some((format!("rule.{}", key(row.3)?), row.0))))
}

fn from_flags(arguments: &[&str]) -> Config {
    let cli = Cli::try_parse_from(["ratelimitd"].iter().chain(arguments)).expect("flags");
    cli.limiter.settings().config().expect("a configuration")
}

fn from_file(top: &str, rule: &str) -> Config {
    file::parse(Path::new("r.toml"), &format!("{top}\n[rule]\n{rule}\n"), no_lists).expect("a configuration")
}

fn no_lists(_: &Path) -> Result<String, String> {
    Err("no list file belongs here".to_owned())
}

#[test]
fn the_definition_is_sound() {
    definition().debug_assert();
}

#[test]
fn every_flag_has_a_key_and_every_key_a_flag_or_is_said_to_be_the_files_alone() {
    let limiter = Limiter::augment_args(clap::Command::new(""));
    let flags: BTreeSet<_> = limiter.get_arguments().filter_map(|argument| argument.get_long()).collect();
    assert_eq!(flags, SAME.iter().map(|row| row.0).collect());
    let with_flag: BTreeSet<_> = keys().map(|(key, _)| key).collect();
    let is_of_the_file = |key: &&String| key.starts_with("safety.") || key.starts_with("rule.override.");
    let (of_the_file, others): (BTreeSet<_>, BTreeSet<_>) =
        every_key().difference(&with_flag).cloned().partition(|key| is_of_the_file(&key));
    assert_eq!(of_the_file.len(), OVERRIDE_KEYS.len() + SAFETY_KEYS.len());
    assert_eq!(others, FILE_ONLY.iter().map(|key| (*key).to_owned()).collect());
    assert!(with_flag.is_subset(&every_key()));
}

#[test]
fn a_flag_and_its_key_mean_the_same() {
    for (flag, arguments, top, rule) in SAME {
        let mut all: Vec<&str> = arguments.to_vec();
        let (mut top, mut rule) = ((*top).to_owned(), (*rule).to_owned());
        if *flag != "iface" {
            all.extend(["--iface", "eth0"]);
            top.push_str("\ninterfaces = [\"eth0\"]");
        }
        if *flag != "limit" {
            all.extend(["--limit", "1000/5m"]);
            rule.push_str("\nlimits = [\"1000/5m\"]");
        }
        let config = from_flags(&all);
        assert_eq!(config, from_file(&top, &rule), "--{flag}");
        let plain = from_flags(&["--iface", "eth0", "--limit", "1000/5m"]);
        assert_ne!(config, plain, "--{flag} does nothing");
    }
}

#[test]
fn all_flags_together_and_all_keys_together_mean_the_same() {
    let arguments: Vec<&str> = SAME.iter().flat_map(|row| row.1.iter().copied()).collect();
    let lines = |of: fn(&Row) -> &'static str| SAME.iter().map(of).collect::<Vec<_>>().join("\n");
    assert_eq!(from_flags(&arguments), from_file(&lines(|row| row.2), &lines(|row| row.3)));
}

#[test]
fn the_documentation_has_a_row_for_every_key_and_no_other() {
    let table = include_str!("../../../docs/CONFIG.md");
    let cells =
        |line: &'static str| -> Vec<&str> { line.split('|').map(|cell| cell.trim().trim_matches('`')).collect() };
    let rows: BTreeSet<_> = table
        .lines()
        .filter(|line| line.starts_with("| `") && !line.starts_with("| `lists.NAME`"))
        .map(|line| (cells(line)[1].to_owned(), cells(line)[2].trim_start_matches("--")))
        .collect();
    let flags: BTreeMap<_, _> = keys().collect();
    let documented = |key: String| (key.clone(), flags.get(&key).copied().unwrap_or("–"));
    assert_eq!(rows, every_key().into_iter().map(documented).collect());
}

#[test]
fn the_file_that_is_installed_names_every_key_that_has_a_flag_and_is_right_with_all_of_them() {
    let shipped = include_str!("../../../dist/ratelimitd.toml");
    let is_off =
        |line: &&str| line.strip_prefix("# ").is_some_and(|rest| key(rest).is_some_and(|key| !key.contains(' ')));
    let whole: String = shipped
        .lines()
        .map(|line| if is_off(&line) { &line[2..] } else { line })
        .map(|line| format!("{line}\n"))
        .collect();
    let named: BTreeSet<_> = whole.lines().filter_map(key).collect();
    // The name is for those who have reason to choose one.
    let with_flag = SAME.iter().filter_map(|row| key(row.2).or(key(row.3))).filter(|key| *key != "name");
    assert!(with_flag.collect::<BTreeSet<_>>().is_subset(&named));
    let config = file::parse(Path::new("ratelimitd.toml"), &whole, no_lists).expect("a configuration");
    let limiter = Limiter::augment_args(clap::Command::new(""));
    let listen = limiter.get_arguments().find(|argument| argument.get_long() == Some("listen"));
    let help = listen.and_then(|argument| argument.get_help()).map(ToString::to_string).unwrap_or_default();
    assert!(help.contains(&config.listen.expect("an address").to_string()), "{help}");
}
