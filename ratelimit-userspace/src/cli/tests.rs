//! Tests of the command line against its definition: which flags exist, and that each of them has an effect.

use std::collections::BTreeSet;
use std::path::Path;

use clap::{Args as _, Parser as _};

use super::*;
use ratelimit_policy::config::keys::TABLES;
use ratelimit_policy::config::{Config, file};

mod named;

/// A flag, its arguments, and the same setting in the file: above `[rule]`, and below it.
type Row = (&'static str, &'static [&'static str], &'static str, &'static str);

const SAME: &[Row] = &[
    ("iface", &["--iface", "eth1", "--iface", "eth0"], "interfaces = [\"eth1\", \"eth0\"]", ""),
    ("hook", &["--hook", "tcx"], "hook = \"tcx\"", ""),
    ("xdp-mode", &["--xdp-mode", "native"], "xdp_mode = \"native\"", ""),
    ("on-exit", &["--on-exit", "keep"], "on_exit = \"keep\"", ""),
    ("max-sources", &["--max-sources", "1024"], "max_sources = 1024", ""),
    ("socket", &["--socket", "my.sock"], "socket = \"my.sock\"", ""),
    ("listen", &["--listen", "[::1]:9464"], "listen = \"[::1]:9464\"", ""),
    ("tls-cert-file", &["--tls-cert-file", "tls.pem"], "tls_cert_file = \"tls.pem\"", ""),
    ("tls-key-file", &["--tls-key-file", "tls.key"], "tls_key_file = \"tls.key\"", ""),
    ("insecure-web", &["--insecure-web"], "insecure_web = true", ""),
    ("ipv4-prefix", &["--ipv4-prefix", "24"], "ipv4_prefix = 24", ""),
    ("ipv6-prefix", &["--ipv6-prefix", "56"], "ipv6_prefix = 56", ""),
    ("allow", &["--allow", "192.0.2.0/24", "--allow", "::1"], "allow = [\"::1\", \"192.0.2.0/24\"]", ""),
    ("fleet", &["--fleet", "redis://127.0.0.1"], "fleet.url = \"redis://127.0.0.1\"", ""),
    ("fleet-secret-file", &["--fleet-secret-file", "f"], "fleet.secret_file = \"f\"", ""),
    ("name", &["--name", "web"], "", "name = \"web\""),
    ("limit", &["--limit", "10/1m requests,60/1h"], "", "limits = [\"10/1m requests\", \"60/1h\"]"),
    ("count", &["--count", "packets"], "", "count = \"packets\""),
    ("port", &["--port", "22/tcp,8000-8100"], "", "ports = \"8000-8100, 22/tcp\""),
    ("dry-run", &["--dry-run"], "", "mode = \"dry-run\""),
    ("window", &["--window", "lenient"], "", "window = \"lenient\""),
    ("refuse", &["--refuse", "all"], "", "refuse = \"all\""),
    ("block-for", &["--block-for", "1m,10m"], "", "block_for = [\"1m\", \"10m\"]"),
    ("new-sources", &["--new-sources", "20000/s"], "", "new_sources = \"20000/s\""),
    ("quic-ports", &["--quic-ports", "none"], "", "quic_ports = \"none\""),
    ("access-log", &["--access-log", "/var/log/nginx/access.log"], "", "access_log = [\"/var/log/nginx/access.log\"]"),
    ("unparsable", &["--unparsable", "count"], "", "unparsable = \"count\""),
];

fn key(line: &str) -> Option<&str> {
    line.split_once(" =").map(|(key, _)| key)
}

/// Returns a key without the name of its table.
fn last(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

fn from_flags(arguments: &[&str]) -> Config {
    let cli = Cli::try_parse_from(["ratelimitd"].iter().chain(arguments)).expect("flags");
    placeless(cli.limiter.settings().config().expect("a configuration"))
}

/// Returns the configuration without the places of its prefixes.
fn placeless(config: Config) -> Config {
    Config { listings: Vec::new(), ..config }
}

fn from_file(top: &str, rule: &str) -> Config {
    let config = file::parse(Path::new("r.toml"), &format!("{top}\n[rule]\n{rule}\n"), no_lists);
    placeless(config.expect("a configuration"))
}

fn no_lists(_: &Path) -> Result<String, String> {
    Err("no list file belongs here".to_owned())
}

#[test]
fn the_definition_is_sound() {
    definition().debug_assert();
}

#[test]
fn every_flag_has_a_key_and_each_key_with_a_flag_is_tried() {
    let limiter = Limiter::augment_args(clap::Command::new(""));
    let flags: BTreeSet<_> = limiter.get_arguments().filter_map(|argument| argument.get_long()).collect();
    let rows = TABLES.iter().flat_map(|table| table.keys.iter().map(move |key| (table, key)));
    let of_keys =
        rows.filter_map(|(table, key)| Some((key.flag?.name.trim_start_matches("--"), table.prefix, key.name)));
    let of_keys: BTreeSet<_> = of_keys.collect();
    assert_eq!(flags, of_keys.iter().map(|row| row.0).collect());
    let tried = |row: &Row| match (key(row.2), key(row.3)) {
        (Some(key), _) => Some((row.0, if key.starts_with("fleet.") { "fleet." } else { "" }, last(key))),
        (None, key) => Some((row.0, "rule.", key?)),
    };
    assert_eq!(of_keys, SAME.iter().filter_map(tried).collect());
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
        if *flag == "fleet-secret-file" {
            all.extend(["--fleet", "redis://127.0.0.1"]);
            top.push_str("\nfleet.url = \"redis://127.0.0.1\"");
        }
        if *flag == "tls-key-file" {
            all.extend(["--tls-cert-file", "tls.pem"]);
            top.push_str("\ntls_cert_file = \"tls.pem\"");
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
fn the_installed_file_names_every_key_with_a_flag_and_is_valid() {
    let shipped = include_str!("../../../dist/ratelimitd.toml");
    let is_off = |line: &&str| {
        let is_key = |rest: &str| key(rest).is_some_and(|key| !key.contains(' ')) || rest == "[fleet]";
        line.strip_prefix("# ").is_some_and(is_key)
    };
    let whole: String = shipped
        .lines()
        .map(|line| if is_off(&line) { &line[2..] } else { line })
        .map(|line| format!("{line}\n"))
        .collect();
    let named: BTreeSet<_> = whole.lines().filter_map(key).collect();
    // The name of a rule is only for users with a reason to choose one.
    let with_flag = SAME.iter().filter_map(|row| key(row.2).or(key(row.3))).map(last).filter(|key| *key != "name");
    assert!(with_flag.collect::<BTreeSet<_>>().is_subset(&named));
    let config = file::parse(Path::new("ratelimitd.toml"), &whole, no_lists).expect("a configuration");
    let limiter = Limiter::augment_args(clap::Command::new(""));
    let listen = limiter.get_arguments().find(|argument| argument.get_long() == Some("listen"));
    let help = listen.and_then(|argument| argument.get_help()).map(ToString::to_string).unwrap_or_default();
    assert!(help.contains(&config.listen.expect("an address").to_string()), "{help}");
}

#[test]
fn other_names_of_a_command_are_that_command() {
    for (other, name, rest) in [
        ("ban", "deny", "192.0.2.7"),
        ("block", "deny", "192.0.2.7"),
        ("unban", "unblock", "192.0.2.7"),
        ("status", "stats", "--watch"),
    ] {
        let matches = definition().try_get_matches_from(["ratelimitd", other, rest]).unwrap();
        assert_eq!(matches.subcommand_name(), Some(name), "{other}");
    }
    assert!(definition().try_get_matches_from(["ratelimitd", "mode"]).is_ok());
}
