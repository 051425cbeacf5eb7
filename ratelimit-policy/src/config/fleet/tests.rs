//! Tests of `[fleet]`: its keys, and the shared limits that it makes.

use std::path::Path;

use super::*;
use crate::config::{Config, file, keys, lint};
use crate::desired::{Limit, Shared};
use crate::diagnostic::Diagnostics;
use crate::fleet::{FleetLimit, Sum};
use ratelimit_common::time::Nanos;

fn parsed(fleet: &str, rule: &str) -> Result<Config, Diagnostics> {
    let text = format!("interfaces = [\"eth0\"]\n{fleet}\n[rule]\n{rule}\n");
    file::parse(Path::new("/etc/r.toml"), &text, |_| Err(String::new()))
}

fn fleet_of(lines: &str) -> Result<Fleet, String> {
    let config = parsed(&format!("[fleet]\n{lines}"), "limits = [\"1000/5m\"]");
    config.map(|config| config.fleet.unwrap()).map_err(|errors| words(&errors))
}

fn words(errors: &Diagnostics) -> String {
    let said = errors.iter().map(|error| format!("{error} {:?}", error.place));
    said.collect::<Vec<_>>().join("\n")
}

const LOCAL: &str = "[fleet]\nurl = \"unix:///run/redis.sock\"\nhosts = 4";

fn limits(rule: &str) -> Vec<Limit> {
    parsed(LOCAL, rule).unwrap().policy.rules[0].limits.clone()
}

#[test]
fn every_key_reads_as_documented() {
    let url = "url = \"unix:///run/redis.sock\"";
    let default = || Fleet::at("unix:///run/redis.sock");
    for (line, fleet) in [
        ("", default()),
        ("name = \"web\"", Fleet { name: "web".into(), ..default() }),
        ("secret_file = \"fleet.secret\"", Fleet { secret_file: Some("/etc/fleet.secret".into()), ..default() }),
        ("username = \"rl\"", Fleet { store: Access { username: Some("rl".into()), ..default().store }, ..default() }),
        (
            "password_file = \"/p\"",
            Fleet { store: Access { password_file: Some("/p".into()), ..default().store }, ..default() },
        ),
        ("interval = \"200ms\"", Fleet { interval: Duration::from_millis(200), ..default() }),
        ("interval = \"1m\"", Fleet { interval: Duration::from_secs(60), ..default() }),
        ("hosts = 2", Fleet { hosts: 2, ..default() }),
        ("bans = false", Fleet { bans: false, ..default() }),
        ("floor = \"10%\"", Fleet { floor_percent: 10, ..default() }),
    ] {
        assert_eq!(fleet_of(&format!("{url}\n{line}")), Ok(fleet), "{line}");
    }
    let tls = "url = [\"rediss://a:6380\", \"rediss://b\"]\nsecret_file = \"s\"\nca_file = \"ca\"\ncert_file = \"c\"\nkey_file = \"k\"";
    let store = Access {
        urls: vec!["rediss://a:6380".into(), "rediss://b".into()],
        ca_file: Some("/etc/ca".into()),
        cert_file: Some("/etc/c".into()),
        key_file: Some("/etc/k".into()),
        ..Access::default()
    };
    let fleet = Fleet { store, secret_file: Some("/etc/s".into()), ..default() };
    assert_eq!(fleet_of(tls), Ok(fleet));
}

#[test]
fn invalid_settings_are_refused_with_a_hint_at_valid_ones() {
    let at = |url: &str, more: &str| format!("url = \"{url}\"\nsecret_file = \"s\"\n{more}");
    let good = "redis://192.0.2.1";
    for (lines, words) in [
        (String::new(), "`fleet.url` is missing, or empty (name the store"),
        ("url = []".into(), "`fleet.url` is missing"),
        (at("192.0.2.1:6379", ""), "is not an address of a store (write redis://HOST:PORT"),
        (at("http://192.0.2.1", ""), "`http://` is not a store's (write redis://"),
        (at("redi://192.0.2.1", ""), "did you mean redis://?"),
        (at("redis://", ""), "`` is not a host"),
        (at("redis://a b", ""), "is not a host"),
        (at("redis://2001:db8::1", ""), "IPv6 address in brackets"),
        (at("redis://[2001:db8::g]:1", ""), "is not a host"),
        (at("redis://192.0.2.1:0", ""), "from 1 to 65535"),
        (at("redis://192.0.2.1:65536", ""), "from 1 to 65535"),
        (at("redis://192.0.2.1/3", ""), "an address ends with the port"),
        (at("redis://192.0.2.1?a=b", ""), "an address holds no user, no password and no parameters"),
        (at("unix://run/redis.sock", ""), "an absolute path of a socket"),
        ("url = [\"redis://a\", \"rediss://b\"]\nsecret_file = \"s\"".into(), "all redis://, or all rediss://"),
        ("url = [\"unix:///a\", \"unix:///b\"]".into(), "all redis://, or all rediss://"),
        ("url = \"redis://192.0.2.1\"".into(), "`fleet.secret_file` is missing, or empty (without a secret"),
        ("url = [\"redis://127.0.0.1\", \"redis://192.0.2.1\"]".into(), "`fleet.secret_file` is missing"),
        (at(good, "ca_file = \"ca\""), "write rediss:// in `url`"),
        (at("rediss://192.0.2.1", "cert_file = \"c\""), "add key_file"),
        (at("rediss://192.0.2.1", "key_file = \"k\""), "add cert_file"),
        (at(good, "name = \"a b\""), "a name cannot hold ' '"),
        (at(good, "username = \"\""), "the name of a user of the store is one word"),
        (at(good, "interval = \"199ms\""), "an interval is 200ms to 1m"),
        (at(good, "interval = \"61s\""), "an interval is 200ms to 1m"),
        (at(good, "hosts = 1"), "a whole number from 2 to 1024"),
        (at(good, "hosts = 1025"), "a whole number from 2 to 1024"),
        (at(good, "floor = \"100%\""), "a whole number from 0 to 99"),
        (at(good, "floor = 10"), "write a share of each limit, as in \"10%\""),
        (at(good, "secret_fil = \"s\""), "did you mean `secret_file`?"),
        (at(good, "urls = \"s\""), "did you mean `url`?"),
    ] {
        let error = fleet_of(&lines).unwrap_err();
        assert!(error.contains(words), "{lines}: {error}");
    }
}

#[test]
fn a_password_in_an_address_is_refused_and_not_repeated() {
    for url in [
        "redis://:hunter2@192.0.2.1",
        "redis://rl:hunter2@192.0.2.1:6379",
        "redis:// :hunter2@x y",
        "hunter2@x",
        "redis://192.0.2.1?password=hunter2",
        "redis://rl:hunter2",
        "redis://:hunter2%40192.0.2.1",
        "unix:///run/redis.sock?pass=hunter2",
    ] {
        for lines in [format!("url = \"{url}\""), format!("url = [\"redis:/\", \"{url}\"]")] {
            let error = fleet_of(&lines).unwrap_err();
            assert!(error.contains("an address holds no user, no password and no parameters"), "{error}");
            assert!(error.contains("/etc/r.toml:3:"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}

#[test]
fn no_line_that_may_hold_a_password_is_quoted_whatever_is_wrong_with_it() {
    for lines in [
        "url = \"redis://:hunter2@192.0.2.1",
        "url = redis://:hunter2@192.0.2.1",
        "url = [\"redis://:hunter2@192.0.2.1\"",
        "password = \"hunter2\"",
        "pass = hunter2",
        "url = \"redis://192.0.2.1\" hunter2",
        "hosts = \"redis://:hunter2@192.0.2.1\"",
        "url = 3\npassword_file = \"p\"\nmy.key = \"hunter2\"",
        "store = { password = \"hunter2\" }",
    ] {
        let contents = format!("interfaces = [\"eth0\"]\n[fleet]\n{lines}\n[rule]\nlimits = [\"1/1s\"]\n");
        let error = file::parse(Path::new("/etc/r.toml"), &contents, |_| Err(String::new())).unwrap_err();
        for one in error.iter() {
            assert!(!format!("{one} {one:?}").contains("hunter2"), "{lines}: {one:?}");
        }
    }
}

#[test]
fn each_form_of_an_address_is_taken_and_loopback_and_sockets_are_local() {
    for (url, is_local) in [
        ("redis://127.0.0.1", true),
        ("redis://127.8.8.8:1/", true),
        ("redis://[::1]:7000", true),
        ("rediss://localhost:65535", true),
        ("unix:///run/redis/redis.sock", true),
        ("redis://192.0.2.1:6379", false),
        ("redis://[2001:db8::1]", false),
        ("rediss://redis-1.db_2.example", false),
        ("redis://localhost.example", false),
    ] {
        assert!(fleet_of(&format!("url = \"{url}\"\nsecret_file = \"s\"")).is_ok(), "{url}");
        assert_eq!(Fleet::at(url).is_local(), is_local, "{url}");
    }
    assert!(fleet_of(&format!("url = [{}]\nsecret_file = \"s\"", "\"redis://a\",".repeat(NODES_MAX))).is_ok());
    let error = fleet_of(&format!("url = [{}]\nsecret_file = \"s\"", "\"redis://a\",".repeat(NODES_MAX + 1)));
    assert!(error.unwrap_err().contains("more than 64 addresses"));
}

#[test]
fn the_table_says_the_defaults() {
    let default = |name: &str| keys::FLEET.iter().find(|key| key.name == name).unwrap().default.trim_matches('"');
    let fleet = Fleet::at("unix:///run/redis.sock");
    assert_eq!(parse_interval(default("interval")), Ok(fleet.interval));
    assert_eq!((default("name"), default("hosts")), (NAME_DEFAULT, HOSTS_DEFAULT.to_string().as_str()));
    assert_eq!(parse_floor(default("floor")), Ok(fleet.floor_percent));
}

#[test]
fn limits_are_shared_where_there_is_a_fleet_unless_the_rule_says_otherwise() {
    let shared = |rule: &str| limits(rule)[0].shared;
    let verified = Shared { sum: Sum::Verified, step_bits: 4 };
    assert_eq!(shared("limits = [\"1000/5m\"]"), Some(verified));
    assert_eq!(shared("limits = [\"1000/5m\"]\nfleet = true"), Some(verified));
    assert_eq!(shared("limits = [\"1000/5m\"]\nfleet = false"), None);
    let all = Some(Shared { sum: Sum::All, ..verified });
    assert_eq!(shared("limits = [\"1000/5m\"]\nfleet_sum = \"all\""), all);
    let config = parsed("", "limits = [\"1000/5m\"]").unwrap();
    assert_eq!((config.fleet, config.policy.rules[0].limits[0].shared), (None, None));
    let rule = "limits = [\"1000/5m\"]\nshadow_limits = [\"9/5m\"]\n[[rule.override]]\nfrom = [\"192.0.2.1\"]\nlimits = [\"9/5m\"]";
    let config = parsed(LOCAL, rule).unwrap();
    let names: Vec<_> = config.policy.fleet_limits().map(|(rule, ..)| rule.name.as_str()).collect();
    assert_eq!(names, ["default:1", "default"], "overrides too");
    assert_eq!(config.policy.rules[1].shadow_limits[0].shared, None, "what is never enforced is not");
}

#[test]
fn a_limits_fleet_identity_contains_everything_but_the_amount() {
    let of = |rule: &str| parsed(LOCAL, rule).unwrap().policy.fleet_limits().next().unwrap().2;
    let expected = FleetLimit {
        identity: "default/requests/strict/5x60000000000/verified".into(),
        amount: 1000,
        bucket_ns: 60 * SECOND_NS,
        full_buckets: 5,
        sum: Sum::Verified,
    };
    assert_eq!(of("limits = [\"1000/5m\"]"), expected);
    assert_eq!(of("limits = [\"2000/5m\"]").identity, expected.identity);
    for other in [
        "limits = [\"1000/5m\"]\nname = \"web\"",
        "limits = [\"1000/5m\"]\ncount = \"packets\"",
        "limits = [\"1000/5m\"]\nwindow = \"lenient\"",
        "limits = [\"1000/5m\"]\nalgorithm = \"fixed\"",
        "limits = [\"1000/6m\"]",
        "limits = [\"1000/10m\"]",
        "limits = [\"1000/5m\"]\nfleet_sum = \"all\"",
    ] {
        assert_ne!(of(other).identity, expected.identity, "{other}");
    }
}

#[test]
fn shared_limits_get_a_window_of_their_own_and_local_ones_keep_theirs() {
    let slot = |fleet: &str, rule: &str| parsed(fleet, rule).unwrap().policy.rules[0].limits[0].slot;
    let alone = slot("", "limits = [\"1000/5m\"]");
    assert_eq!(slot(LOCAL, "limits = [\"1000/5m\"]\nfleet = false"), alone, "off is as it was");
    let shared = slot(LOCAL, "limits = [\"1000/5m\"]");
    assert_ne!(shared, alone);
    assert_eq!(slot(LOCAL, "limits = [\"1000/5m\"]\nfleet_sum = \"all\""), shared);
    assert_eq!(slot(LOCAL, "limits = [\"2000/5m\"]"), shared, "counts are found again");
}

#[test]
fn a_leaky_bucket_is_not_shared() {
    for (rule, line) in [
        ("limits = [\"6/30s\"]\nalgorithm = \"gcra\"", 7),
        ("limits = [\"6/30s\"]\nalgorithm = \"gcra\"\nfleet = true", 8),
    ] {
        let error = words(&parsed(LOCAL, rule).unwrap_err());
        assert!(error.contains("has no buckets that the fleet can sum (use algorithm = \"buckets\""), "{error}");
        assert!(error.contains(&format!("r.toml:{line}:")), "{error}");
    }
    assert_eq!(limits("limits = [\"6/30s\"]\nalgorithm = \"gcra\"\nfleet = false")[0].shared, None);
}

#[test]
fn an_amount_that_a_shared_cell_does_not_hold_is_refused_with_the_most() {
    let most = limits("limits = [\"1/1s\"]")[0].parts().amount_max();
    assert_eq!(limits(&format!("limits = [\"{most}/1s\"]"))[0].amount, most);
    let error = words(&parsed(LOCAL, &format!("limits = [\"{}/1s\"]", most + 1)).unwrap_err());
    assert!(error.contains(&format!("count at most {most} requests in 1 second (choose a smaller one")), "{error}");
    let error = words(&parsed(LOCAL, "limits = [\"100GB/5m\"]").unwrap_err());
    assert!(error.contains("count at most 268 MB in 5 minutes"), "{error}");
    assert!(parsed(LOCAL, "limits = [\"100GB/5m\"]\nfleet = false").is_ok());
}

#[test]
fn a_rule_cannot_be_shared_by_nobody() {
    for (fleet, rule, words) in [
        ("", "fleet = true", "there is no fleet to share its limits with (name the store: [fleet]"),
        ("", "fleet_sum = \"all\"", "no limit of this rule is shared (leave it out"),
        (LOCAL, "fleet = false\nfleet_sum = \"all\"", "no limit of this rule is shared"),
        (LOCAL, "fleet = 1", "`1` is not one of them"),
        (LOCAL, "fleet_sum = \"verifed\"", "did you mean `verified`?"),
    ] {
        let error = self::words(&parsed(fleet, &format!("limits = [\"1000/5m\"]\n{rule}")).unwrap_err());
        assert!(error.contains(words), "{rule}: {error}");
    }
    assert!(parsed("", "limits = [\"1000/5m\"]\nfleet = false").is_ok());
}

#[test]
fn a_fleet_that_helps_little_is_warned_of() {
    let warnings = |fleet: &str, rule: &str| lint::warnings(&parsed(fleet, rule).unwrap(), Nanos(0));
    let with_secret = format!("{LOCAL}\nsecret_file = \"s\"");
    assert_eq!(warnings(&with_secret, "limits = [\"1000/5m\"]"), [""; 0]);
    assert_eq!(
        warnings(LOCAL, "limits = [\"1000/5m\"]"),
        ["the fleet has no secret: everyone who reaches its store can read the addresses and forge bans; set \
            secret_file"]
    );
    let short = warnings(&with_secret, "limits = [\"10/10s\"]");
    assert!(
        short[0].starts_with("rule default: limit 10/10s requests: its window of 10 s is shorter than 30"),
        "{short:?}"
    );
    let none = warnings(&with_secret, "limits = [\"1000/5m\"]\nfleet = false");
    assert_eq!(none, ["no rule shares its limits: the fleet shares only bans"]);
}

#[test]
fn the_stores_are_the_addresses_that_are_no_loopback_and_no_name() {
    let of = |urls: &[&str]| {
        let fleet = Fleet {
            store: Access { urls: urls.iter().map(|url| (*url).to_owned()).collect(), ..Access::default() },
            ..Fleet::at("")
        };
        fleet.stores().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let urls = ["redis://192.0.2.1:6379", "redis://[2001:db8::1]", "redis://store.example", "redis://127.0.0.1"];
    assert_eq!(of(&urls), ["192.0.2.1", "2001:db8::1"]);
    assert_eq!(of(&["unix:///run/redis.sock"]), [""; 0]);
}
