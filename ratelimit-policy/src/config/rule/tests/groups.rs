//! Tests of limits for groups of sources: their parsed form, and where they are refused.

use super::{parsed, rules, wrong};
use crate::config::lint::warnings;
use crate::config::settings::Settings;
use crate::desired::{Group, Per};
use ratelimit_common::time::Nanos;

/// Returns a file with these limits in its first rule, and one line before the rule.
fn with(top: &str, limits: &str) -> String {
    format!("{top}\n[rule]\nlimits = [{limits}]\n")
}

#[test]
fn each_step_is_a_limit_with_a_slot_of_its_own() {
    let three = r#""300/1m", "5000/1m per /24,/56", "20000/1m per /20,/48""#;
    let rules = rules(&with("", three));
    let pers: Vec<Per> = rules[0].limits.iter().map(|limit| limit.per).collect();
    assert_eq!(pers, [Per::Source, Per::Prefix { v4: 24, v6: 56 }, Per::Prefix { v4: 20, v6: 48 }]);
    assert_eq!(rules[0].limits[1].to_string(), "5000/1m requests per /24,/56");
    let slots = |limits: &str| -> Vec<u32> {
        self::rules(&with("", limits))[0].limits.iter().map(|limit| limit.slot).collect()
    };
    let (before, after) = (slots(three), slots(r#""300/1m", "9/1m per /24,/56", "20000/1m per /21,/48""#));
    assert_eq!((before[0], before[1]), (after[0], after[1]), "another amount finds its counts again");
    assert_ne!(before[2], after[2], "another length does not");
    assert_eq!(slots(r#""300/1m""#)[0], before[0], "a limit of each source keeps its slot");
}

#[test]
fn a_limit_on_the_command_line_has_the_same_group() {
    let of = |limit: &str| Settings::of_flags([("--iface", "eth0"), ("--limit", limit)]).config();
    let config = of("300/1m,5000/1m per /24,/56").expect("well-formed");
    assert_eq!(config.policy.rules[0].limits[1].per, Per::Prefix { v4: 24, v6: 56 });
    let error = of("5000/1m per list").expect_err("there is no list").first().to_string();
    assert!(error.contains("no list is named, and flags cannot name one"), "{error}");
}

#[test]
fn a_list_is_what_the_rule_or_the_override_is_for() {
    let text = r#"
        [lists]
        asn64496 = ["192.0.2.0/24", "2001:db8::/32"]
        [[rule]]
        name = "web"
        limits = ["300/1m"]
        [[rule.override]]
        name = "asn64496"
        from = ["@asn64496"]
        limits = ["300/1m", "20000/1m per list"]
        [[rule.override]]
        name = "drop"
        from = ["file:drop.txt"]
        limits = ["10/1m per list"]
    "#;
    let rules = rules(text);
    let lists: Vec<Option<&str>> = rules.iter().map(|rule| rule.list.as_deref()).collect();
    assert_eq!(lists, [Some("asn64496"), Some("file:drop.txt"), None]);
    let (rule, address) = (&rules[0], "192.0.2.77".parse().expect("an address"));
    assert_eq!(rule.group_of(&rule.limits[1], address), Some(Group::List("asn64496".to_owned())));
    assert_eq!(rule.group_of(&rule.limits[0], address), None);
}

#[test]
fn a_group_that_cannot_be_is_refused_with_what_to_do() {
    for (top, limits, problem, help) in [
        (
            "ipv4_prefix = 24",
            r#""5/1m per /24,/56""#,
            "a /24 is one IPv4 source (ipv4_prefix), not a group",
            "write a length of 1 to 23 for IPv4",
        ),
        (
            "ipv4_prefix = 16",
            r#""5/1m per /24,/56""#,
            "a /24 is a part of one IPv4 source, which is a /16 (ipv4_prefix)",
            "write a length of 1 to 15 for IPv4",
        ),
        (
            "",
            r#""5/1m per /24,/64""#,
            "a /64 is one IPv6 source (ipv6_prefix), not a group",
            "write a length of 1 to 63 for IPv6",
        ),
        (
            "ipv6_prefix = 48",
            r#""5/1m per /24,/56""#,
            "a /56 is a part of one IPv6 source, which is a /48 (ipv6_prefix)",
            "write a length of 1 to 47 for IPv6",
        ),
        (
            "ipv4_prefix = 1",
            r#""5/1m per /1,/56""#,
            "one IPv4 source is a /1, and no prefix is shorter",
            "choose a longer ipv4_prefix, or leave `per` out",
        ),
        (
            "",
            r#""5/1m per list""#,
            "this rule is for all sources, and names no list",
            "name it: from = [\"@NAME\"], best in a [[rule.override]] with these limits",
        ),
        (
            "",
            r#""1/1s", "5/1m per /24,/56", "6/1m per /24,/56""#,
            "there is a limit of requests for this window already: 5/1m per /24,/56",
            "keep the smaller one: only it has an effect",
        ),
        (
            "",
            r#""1/1s", "2/1m per /24,/56", "3/1m per /23,/55", "4/1m per /22,/54", "5/1m per /21,/53""#,
            "a rule has at most 4 limits",
            "limits of groups are among them: keep those that matter most",
        ),
    ] {
        let (found, _, column, helped) = wrong(&with(top, limits));
        assert_eq!((found.as_str(), helped.as_str()), (&*format!("bad value for `rule.limits`: {problem}"), help));
        assert!(column > 10, "{limits}: {column}");
    }
    for (top, limits) in [
        ("ipv4_prefix = 25", r#""5/1m per /24,/56""#),
        ("ipv6_prefix = 57", r#""5/1m per /24,/56""#),
        ("ipv6_prefix = 128", r#""5/1m per /31,/64""#),
        ("", r#""1/1s", "2/1m per /24,/56", "3/1m per /23,/55", "4/1m per /22,/54""#),
    ] {
        assert!(parsed(&with(top, limits)).is_ok(), "{top} {limits}");
    }
}

#[test]
fn a_limit_per_list_is_of_one_list_and_what_is_only_tried_of_each_source() {
    let of = |lines: &str| format!("[lists]\na = [\"192.0.2.0/24\"]\nb = [\"198.51.100.0/24\"]\n[rule]\n{lines}\n");
    let (problem, line, column, help) = wrong(&of("from = [\"@a\", \"@b\"]\nlimits = [\"5/1m\", \"9/1m per list\"]"));
    assert_eq!(problem, "bad value for `rule.limits`: `from` has 2 entries, and a limit per list covers one list");
    assert_eq!((line, column), (7, 25));
    assert_eq!(help, "put them into one list under [lists], or give each a [[rule.override]]");
    for (key, what) in [("shadow_limits", "a shadow limit"), ("candidates", "a candidate")] {
        let lines = format!("limits = [\"5/1m\", \"9/1m per /24,/56\"]\n{key} = [\"7/1m per /24,/56\"]");
        let (problem, _, _, help) = wrong(&of(&lines));
        assert_eq!(problem, format!("bad value for `rule.{key}`: {what} applies to each source"));
        assert_eq!(help, "leave `per` out; a rule in dry run tries limits of groups");
    }
}

#[test]
fn hosts_of_a_fleet_share_limits_of_sources_alone() {
    let of = |lines: &str| format!("[rule]\n{lines}\n[fleet]\nurl = \"unix:///run/redis.sock\"\n");
    let config = parsed(&of("limits = [\"300/1m\", \"5000/1m per /24,/56\"]\nfleet = true")).expect("well-formed");
    let shared: Vec<bool> = config.policy.rules[0].limits.iter().map(|limit| limit.shared.is_some()).collect();
    assert_eq!(shared, [true, false]);
    let said = "rule default: 5000/1m requests per /24,/56: each host of the fleet limits it alone";
    assert!(warnings(&config, Nanos(0)).contains(&said.to_owned()));
    assert!(parsed(&of("limits = [\"5000/1m per /24,/56\"]")).is_ok(), "a fleet carries bans then");
    let (problem, line, _, help) = wrong(&of("limits = [\"5000/1m per /24,/56\"]\nfleet = true"));
    assert!(problem.ends_with("hosts share only limits of each source, and all limits of this rule are for groups"));
    assert_eq!(
        (line, help.as_str()),
        (4, "leave it out, because each host limits groups alone; or add a limit of each source")
    );
}

#[test]
fn groups_take_no_more_memory() {
    let windows = |limits: &str| parsed(&with("", limits)).expect(limits).policy.windows_per_source();
    assert_eq!(windows(r#""300/1m", "5000/1m per /24,/56", "9000/1m per /20,/48""#), windows(r#""300/1m""#));
    assert_eq!(windows(r#""5000/1m per /24,/56""#), 1);
}

#[test]
fn a_limit_that_a_group_leaves_idle_is_said_and_one_that_is_wider_is_not() {
    let said = |limits: &str| warnings(&parsed(&with("", limits)).expect(limits), Nanos(0));
    assert_eq!(
        said(r#""600/1m", "300/1m per /24,/56""#),
        ["rule default: 600/1m requests never refuses anything: 300/1m per /24,/56 admits no more in 1 minute"]
    );
    assert!(said(r#""599/1m", "300/1m per /24,/56""#).is_empty());
    assert!(said(r#""300/1m", "600/1m per /24,/56""#).is_empty(), "a limit of each source bounds no group");
    let banning = "[rule]\nlimits = [\"5000/1m per /24,/56\"]\nblock_for = \"10m\"\n";
    let banning = warnings(&parsed(banning).expect("well-formed"), Nanos(0));
    assert_eq!(banning, ["rule default: it bans nobody: only limits of each source ban"]);
}
