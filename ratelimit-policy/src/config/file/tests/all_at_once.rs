//! Tests that all errors in a file are reported together, without errors that only follow from others.

use std::fmt::Write as _;
use std::path::Path;

use proptest::prelude::*;

use crate::config::file::parse;
use crate::config::keys::{Key, OVERRIDE, RULE, SAFETY, TOP};
use crate::diagnostic::Place;

/// Returns line, column and problem of each error.
fn found(contents: &str) -> Vec<String> {
    let list = |path: &Path| match path.to_str() {
        Some("bad.txt") => Ok("192.0.2.1\n192.0.2.999\n\nx\n".to_owned()),
        _ => Err("no such file".to_owned()),
    };
    let Err(errors) = parse(Path::new("r.toml"), contents, list) else { return Vec::new() };
    let said = errors.iter().map(|error| match &error.place {
        Place::File { path, excerpt: Some(of) } => {
            format!("{}:{}:{}: {}", path.display(), of.line, of.column, error.problem)
        }
        Place::CommandLine | Place::Flag { .. } | Place::File { excerpt: None, .. } => error.problem.clone(),
    });
    said.collect()
}

#[test]
fn every_key_and_every_value_that_is_wrong_is_said_in_the_files_order() {
    let contents = r#"interfaces = ["eth0", "eth 1"]
xdp_mode = "natve"
max_source = 5
max_sources = 5
listen = 9464
ipv4_prefix = 33
allow = ["192.0.2.300", "@partner", "file:bad.txt"]
deny = ["192.0.2.1/24", "file:none.txt"]
[lists]
partners = ["x"]
[safety]
breaker = "80"
exempt_gateway = "yes"
[rule]
name = "a b"
ports = [80, "htps", 70000]
limits = ["10/1x", "5/1m", "10k/1m"]
mode = "dryrun"
block_for = ["10m", "5m", "x"]
new_sources = "20000/1h"
guard = 1
color = "red"
[[rule.override]]
limits = ["1/1y"]
until = "tomorrow"
"#;
    let expected = [
        "bad.txt:2:1: bad line in a list file: this is no address, and no prefix",
        "bad.txt:4:1: bad line in a list file: this is no address, and no prefix",
        "r.toml:1:27: bad value for `interfaces`: an interface's name cannot hold ' '",
        "r.toml:2:13: bad value for `xdp_mode`: `natve` is not one of them",
        "r.toml:3:1: unknown key `max_source`",
        "r.toml:4:15: bad value for `max_sources`: the number is too small",
        "r.toml:5:10: bad value for `listen`: `9464` is not ADDR:PORT",
        "r.toml:6:15: bad value for `ipv4_prefix`: the number is too large",
        "r.toml:7:11: bad value for `allow`: `192.0.2.300` is not an IP address",
        "r.toml:7:27: bad value for `allow`: there is no list `partner`",
        "r.toml:8:10: bad value for `deny`: 192.0.2.1 has bits set beyond /24",
        "r.toml:8:31: bad value for `deny`: cannot read none.txt: no such file",
        "r.toml:10:14: bad value for `lists`: `x` is not an IP address",
        "r.toml:12:12: bad value for `safety.breaker`: `80` is not a share",
        "r.toml:13:19: bad value for `safety.exempt_gateway`: `yes` is not one of them",
        "r.toml:15:10: bad value for `rule.name`: a name cannot hold ' '",
        "r.toml:16:15: bad value for `rule.ports`: `htps` is not a port",
        "r.toml:16:22: bad value for `rule.ports`: 70000 is not a port",
        "r.toml:17:16: bad value for `rule.limits`: `x` is not a unit of time",
        "r.toml:17:31: bad value for `rule.limits`: `k` is not a size",
        "r.toml:18:9: bad value for `rule.mode`: `dryrun` is not one of them",
        "r.toml:19:22: bad value for `rule.block_for`: it is not longer than the ban before it",
        "r.toml:19:28: bad value for `rule.block_for`: `x` is not a unit of time",
        "r.toml:20:22: bad value for `rule.new_sources`: the time is too long",
        "r.toml:21:9: bad value for `rule.guard`: `1` is not one of them",
        "r.toml:22:1: unknown key `color`",
        "r.toml:24:15: bad value for `rule.override.limits`: `y` is not a unit of time",
        "r.toml:25:10: bad value for `rule.override.until`: `tomorrow` is not a date",
        "`rule.override.from` is missing, or empty",
    ];
    assert_eq!(found(contents), expected);
}

#[test]
fn consequential_errors_are_not_reported() {
    for (contents, expected) in [
        (
            "interface = [\"lo\"]\n[rule]\nlimts = [\"1/s\"]\n",
            vec!["r.toml:1:1: unknown key `interface`", "r.toml:3:1: unknown key `limts`"],
        ),
        (
            "interfaces = {}\nlimits = [\"1/s\"]\n",
            vec![
                "r.toml:1:14: bad value for `interfaces`: a table cannot stand here",
                "r.toml:2:1: unknown key `limits`",
            ],
        ),
        ("interfaces = [\"lo\"]\n[rules]\nlimits = [\"1/s\"]\n", vec!["r.toml:2:2: unknown key `rules`"]),
        (
            "interfaces = [\"lo\"]\n[[rule]]\nname = \"a\"\nlimits = [\"1/s\"]\n[[rule]]\nname = \"a\"\n\
             limits = [\"1/s\"]\n",
            vec!["r.toml:6:9: bad value for `rule.name` of rule a: there is a rule a already"],
        ),
        (
            "interfaces = [\"lo\"]\n[rule]\nlimits = [\"1/x\"]\ncandidates = [\"2/1m\"]\nburst = 3\n\
             ports = \"x\"\nquic_ports = 443\n",
            vec![
                "r.toml:3:14: bad value for `rule.limits`: `x` is not a unit of time",
                "r.toml:6:10: bad value for `rule.ports`: `x` is not a port",
            ],
        ),
        (
            "interfaces = [\"lo\"]\n[lists]\na = [\"x\"]\n[rule]\nfrom = [\"@a\"]\nlimits = [\"1/s\"]\n",
            vec!["r.toml:3:7: bad value for `lists`: `x` is not an IP address"],
        ),
    ] {
        assert_eq!(found(contents), expected, "{contents}");
    }
}

#[test]
fn a_value_without_quotes_hides_nothing_and_what_is_not_closed_only_what_follows() {
    for (contents, expected) in [
        (
            "interfaces = [\"lo\"]\ncolor = 1\n[rule]\nlimits = 10/s\nmode = enforce\nports = ssh\nlimits = []\n\
             guard = \"on\"\n",
            vec![
                "r.toml:2:1: unknown key `color`",
                "r.toml:4:10: a text needs quotes",
                "r.toml:5:8: a text needs quotes",
                "r.toml:6:9: a text needs quotes",
                "r.toml:7:1: duplicate key",
                "r.toml:8:10: bad value for `rule.guard`: `on` is not one of them",
            ],
        ),
        (
            "color = 1\ninterfaces = [\"lo\"\n[rule]\nlimits = [\"1/x\"]\n",
            vec!["r.toml:1:1: unknown key `color`", "r.toml:3:1: missing comma between array elements, expected `,`"],
        ),
        (
            "color = 1\n[rule\nlimits = [\"1/x\"]\n",
            vec!["r.toml:1:1: unknown key `color`", "r.toml:2:6: unclosed table, expected `]`"],
        ),
        (
            "interfaces = [\"lo\"]\n[rule]\nlimits = [\"1/s\"]\n[rule]\nlimits = [\"2/s\"]\n",
            vec!["r.toml:4:2: there is a [rule] already"],
        ),
        (
            "listen = \n",
            vec![
                "r.toml:1:10: the value is missing",
                "`interfaces` is missing, or empty",
                "`rule.limits` is missing, or empty",
            ],
        ),
    ] {
        assert_eq!(found(contents), expected, "{contents}");
    }
}

#[test]
fn too_deep_nesting_is_reported_alone() {
    for contents in [format!("{}1 = 1\n", "a.".repeat(200)), format!("a = {}\n", "[".repeat(200))] {
        let all = found(&contents);
        assert!(all.len() == 1 && all[0].contains("recur") && all[0].starts_with("r.toml:1:"), "{all:?}");
    }
}

#[test]
fn a_list_may_be_one_value_and_a_number_needs_no_quotes() {
    let contents = "interfaces = \"eth0\"\nallow = \"192.0.2.1\"\n[rule]\nlimits = \"10/1m\"\nports = PORTS\n\
     quic_ports = [443]\nburst = \"1_0\"\n";
    for (ports, printed) in [
        ("[80, 443]", "80,443"),
        ("443", "443"),
        ("[\"https\", \"ssh\"]", "22,443"),
        ("[\"http\", \"https\", \"8000-8100\", \"53/udp\"]", "53/udp,80,443,8000-8100"),
        ("[\"80,443\", 444]", "80,443-444"),
        ("[443, \"all\"]", "all"),
    ] {
        let contents = contents.replace("PORTS", ports).replace("1_0", "10");
        let config = parse(Path::new("r.toml"), &contents, |_| Err(String::new())).map_err(|error| error.to_string());
        assert_eq!(config.map(|config| config.policy.rules[0].ports.to_string()), Ok(printed.to_owned()), "{ports}");
    }
    assert_eq!(
        found("interfaces = \"eth0\"\n[rule]\nlimits = \"10/1m\"\nports = []\n"),
        ["`rule.ports` is missing, or empty"]
    );
}

#[test]
fn every_key_that_is_listed_is_read() {
    let tables = [("", TOP), ("[rule]\n", RULE), ("[[rule.override]]\n", OVERRIDE), ("[safety]\n", SAFETY)];
    for (table, keys) in tables {
        for Key { name: key, .. } in keys {
            let all = found(&format!("{table}{key} = {{}}\n"));
            assert!(all.iter().any(|error| error.contains("a table cannot stand here")), "{key}: {all:?}");
        }
    }
}

#[test]
fn the_first_of_very_many_errors_are_listed_and_the_others_counted() {
    let mut contents = String::new();
    (0..1_000).for_each(|at| writeln!(contents, "key{at} = 1").unwrap());
    let errors = parse(Path::new("r.toml"), &contents, |_| Err(String::new())).unwrap_err();
    assert_eq!((errors.iter().count(), errors.more()), (64, 938));
    assert!(errors.to_string().ends_with("\nand 938 more"));
}

/// Pairs of a valid line of a table and an invalid one.
const LINES: [(&str, &str); 8] = [
    ("mode = \"enforce\"", "mode = \"x\""),
    ("refuse = \"all\"", "refuse = 1"),
    ("block_for = \"1m\"", "block_for = \"1x\""),
    ("ports = 80", "ports = \"htps\""),
    ("to = [\"192.0.2.1\"]", "to = [\"192.0.2.1/33\"]"),
    ("from = \"192.0.2.0/24\"", "from = \"192.0.2.0/24x\""),
    ("new_sources = \"5/s\"", "new_sources = \"5/x\""),
    ("under_attack_ok = true", "under_atack_ok = true"),
];

proptest! {
    #[test]
    fn every_wrong_line_is_reported_and_no_other(wrong in prop::collection::vec(any::<bool>(), LINES.len())) {
        let mut contents = "interfaces = [\"lo\"]\n[rule]\nlimits = [\"1/s\"]\n".to_owned();
        for (is_wrong, (right, other)) in wrong.iter().zip(LINES) {
            writeln!(contents, "{}", if *is_wrong { other } else { right }).unwrap();
        }
        let lines: Vec<String> = found(&contents).iter().map(|error| error.split(':').nth(1).unwrap().to_owned()).collect();
        let expected: Vec<String> =
            wrong.iter().enumerate().filter(|(_, is_wrong)| **is_wrong).map(|(at, _)| (at + 4).to_string()).collect();
        prop_assert_eq!(lines, expected, "{}", contents);
    }
}
