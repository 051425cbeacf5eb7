//! Tests of the conversion from settings to a configuration. Equal text means the same in flags and in a file.

use std::ops::Range;

use ratelimit_common::layout::Unit;

use super::*;
use crate::config::ports;
use crate::config::rule::PORTS_DEFAULT;
use crate::desired::{Mode, Refuse, WindowForm};
use crate::diagnostic::Place;

fn flags(limits: &[&str]) -> Settings {
    with(limits, &[])
}

/// Returns settings from these limits and further flags.
fn with(limits: &[&str], more: &[(&str, &str)]) -> Settings {
    let limits = limits.iter().map(|text| ("--limit", *text));
    Settings::of_flags([("--iface", "eth0")].into_iter().chain(limits).chain(more.iter().copied()))
}

fn problem(settings: &Settings) -> (String, Range<usize>) {
    let error = settings.config().expect_err("something is wrong");
    match error.first().place.clone() {
        Place::Flag { span, .. } => (error.first().problem.clone(), span),
        Place::CommandLine | Place::File { .. } => (error.first().problem.clone(), 0..0),
    }
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let config = flags(&["1000/5m"]).config().expect("well-formed");
    let rule = &config.policy.rules[0];
    assert_eq!(config.interfaces, ["eth0"]);
    assert_eq!((config.xdp_mode, config.on_exit), (XdpModeChoice::Auto, OnExit::Detach));
    assert_eq!((config.max_sources, config.listen), (262_144, None));
    assert_eq!(config.socket, PathBuf::from("/run/ratelimitd/control.sock"));
    assert_eq!((config.policy.ipv4_prefix, config.policy.ipv6_prefix), (32, 64));
    assert!(config.policy.access.is_empty());
    assert_eq!((rule.name.as_str(), rule.mode, rule.refuse), ("default", Mode::Enforce, Refuse::Excess));
    assert_eq!(Ok(&rule.ports), ports::parse(PORTS_DEFAULT).as_ref());
    let limit = rule.limits[0];
    assert_eq!((limit.amount, limit.unit, limit.form), (1_000, Unit::Requests, WindowForm::Strict));
    assert_eq!((limit.buckets, limit.bucket_ns, limit.window_ns), (5, 60_000_000_000, 300_000_000_000));
}

#[test]
fn only_prefixes_on_both_sides_of_64_and_keys_of_the_start_need_a_restart() {
    let of = |prefix: &str| with(&["5/s"], &[("--ipv6-prefix", prefix)]).config().expect("well-formed");
    let across = ["ipv6_prefix from up to /64 to a longer one or back"];
    assert!(of("64").restart_needed(&of("48")).is_empty());
    assert_eq!(of("64").restart_needed(&of("65")), across);
    assert_eq!(of("128").restart_needed(&of("64")), across);
    let other = with(&["1000/5m,5/s"], &[("--iface", "eth1")]).config().expect("well-formed");
    assert!(of("64").restart_needed(&other).is_empty());
}

#[test]
fn interfaces_are_sorted_and_each_there_once() {
    let config = with(&["1/1s"], &[("--iface", "eth1"), ("--iface", "eth0")]).config().expect("well-formed");
    assert_eq!(config.interfaces, ["eth0", "eth1"]);
}

#[test]
fn interfaces_up_to_the_kernels_maximum_are_accepted_and_no_more() {
    let names: Vec<String> = (1..=INTERFACES_MAX).map(|number| format!("eth{number}")).collect();
    let names: Vec<(&str, &str)> = names.iter().map(|name| ("--iface", name.as_str())).collect();
    assert!(with(&["1/1s"], &names[1..]).config().is_ok());
    let (problem, _) = problem(&with(&["1/1s"], &names));
    assert_eq!(problem, "bad value for --iface: there are more than 16 interfaces");
}

#[test]
fn four_limits_are_the_most() {
    let four = "1/1s,2/10s,3/1m,4/10m";
    assert_eq!(flags(&[four]).config().map(|config| config.policy.rules[0].limits.len()), Ok(4));
    let (problem, span) = problem(&flags(&[four, "5/1h"]));
    assert_eq!((problem.as_str(), span), ("bad value for --limit: a rule has at most 4 limits", 0..4));
}

#[test]
fn two_limits_never_share_their_counts() {
    for (limits, expected) in [
        ("10/5m,20/5m", "there is a limit of requests for this window already: 10/5m"),
        ("10/5m,20/6m", "it would count requests in the same buckets of 1 minute as 10/5m"),
    ] {
        let (problem, span) = problem(&flags(&[limits]));
        assert_eq!((problem, span), (format!("bad value for --limit: {expected}"), 6..11));
    }
    assert!(flags(&["10/5m,20/5m packets,1MB/5m"]).config().is_ok());
}

#[test]
fn a_slot_outlives_changes_of_amount_form_and_number_of_buckets() {
    let slot = |settings: Settings| settings.config().expect("well-formed").policy.rules[0].limits[0].slot;
    let before = slot(flags(&["10/5m"]));
    assert_eq!(before, slot(flags(&["20/6m"])));
    assert_eq!(before, slot(with(&["10/5m"], &[("--window", "lenient")])));
    assert_ne!(before, slot(with(&["10/5m"], &[("--name", "web")])));
}

#[test]
fn both_ends_of_each_number_are_in() {
    let of = |flag, text: &str| with(&["1/1s"], &[(flag, text)]).config();
    let sources = |text| of("--max-sources", text);
    assert!(sources("256").is_ok() && sources("16777216").is_ok());
    assert!(sources("255").is_err() && sources("16777217").is_err());
    let v4 = |text| of("--ipv4-prefix", text);
    assert!(v4("0").is_ok() && v4("32").is_ok() && v4("33").is_err());
    let v6 = |text| of("--ipv6-prefix", text);
    assert!(v6("0").is_ok() && v6("128").is_ok() && v6("129").is_err());
    let socket = |length| of("--socket", &"s".repeat(length));
    assert!(socket(1).is_ok() && socket(107).is_ok() && socket(108).is_err() && socket(0).is_err());
    let name = |length| of("--name", &"n".repeat(length));
    assert!(name(1).is_ok() && name(32).is_ok() && name(33).is_err() && name(0).is_err());
}

#[test]
fn a_misspelt_word_is_told_the_right_one() {
    let error = with(&["1/1s"], &[("--xdp-mode", "natve")]).config().expect_err("no such mode");
    assert_eq!(error.first().help, ["did you mean `native`? The choice is auto or native or generic"]);
}

#[test]
fn an_address_to_listen_on_needs_its_port() {
    for (text, help) in [
        ("9464", "did you mean 127.0.0.1:9464"),
        (":9464", "did you mean 127.0.0.1:9464"),
        ("localhost:9464", "did you mean 127.0.0.1:9464"),
        ("127.0.0.1", "write an address and a port"),
        ("", "write an address and a port"),
    ] {
        let error = with(&["1/1s"], &[("--listen", text)]).config().expect_err(text);
        assert!(error.first().help[0].starts_with(help), "{text}: {:?}", error.first().help);
    }
}

#[test]
fn a_certificate_may_hold_its_key_and_a_key_alone_is_refused() {
    let with = |cert: Option<&'static str>, key: Option<&'static str>| {
        let cert = cert.map(|text| ("--tls-cert-file", text));
        let said: Vec<_> = cert.into_iter().chain(key.map(|text| ("--tls-key-file", text))).collect();
        with(&["1/1s"], &said)
    };
    let paths = |settings: Settings| settings.config().expect("well-formed").tls.map(|tls| (tls.cert, tls.key));
    assert_eq!(paths(with(None, None)), None);
    assert_eq!(paths(with(Some("a.pem"), None)), Some(("a.pem".into(), "a.pem".into())));
    assert_eq!(paths(with(Some("a.pem"), Some("/k"))), Some(("a.pem".into(), "/k".into())));
    assert!(problem(&with(None, Some("k"))).0.contains("without a certificate"));
    assert!(problem(&with(Some(""), None)).0.contains("not a path"));
    let text =
        "interfaces = [\"eth0\"]\ntls_cert_file = \"tls/a.pem\"\ntls_key_file = \"/k\"\n[rule]\nlimits = [\"1/1s\"]";
    let file = crate::config::file::parse(Path::new("/etc/r/r.toml"), text, |_| Err(String::new()));
    let tls = file.expect("well-formed").tls.expect("TLS");
    assert_eq!((tls.cert, tls.key), ("/etc/r/tls/a.pem".into(), "/k".into()), "relative to the file");
}
