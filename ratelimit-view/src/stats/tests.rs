//! Tests of the size and the order of the output.

use super::*;
use ratelimit_report::snapshot::{Hold, RolledBack, StaleList, State, TopSource, TopTalker};

const CLASSIC: Page = Page { width: 80, rows: Some(23), detail: Detail::Normal };
const WIDE: Page = Page { width: 120, rows: None, detail: Detail::Verbose };

/// Sets the top sources to `count` sources over a limit, some with long addresses.
fn many(snapshot: &mut Snapshot, count: u64) {
    let first = snapshot.top.as_ref().unwrap()[0].clone();
    let source = |at: u64| TopSource {
        source: if at % 3 == 2 { format!("2001:db8:aaaa:{:x}::/64", 0xbb00 + at) } else { format!("198.51.100.{at}") },
        dropped: 9_000_000 >> at.min(60),
        state: if at == 1 { State::Banned } else { State::OverLimit },
        ..first.clone()
    };
    snapshot.top = Some((0..count).map(source).collect());
}

fn quiet() -> Snapshot {
    let mut snapshot = ratelimit_report::fixture::snapshot();
    snapshot.interfaces.truncate(1);
    snapshot.config.last_reload_successful = true;
    snapshot.map_errors.clear();
    snapshot.events.lost = 0;
    snapshot
}

/// Returns a snapshot with every problem that needs attention.
fn troubled() -> Snapshot {
    let mut snapshot = ratelimit_report::fixture::snapshot();
    snapshot.interfaces[1].problem = Some("no interface eth1; there are lo, eth0, wan".into());
    let since = "2026-01-01T10:00:00Z".parse().unwrap();
    snapshot.hold = Some(Hold { panic: true, by: "root (alice)".into(), since });
    snapshot.confirm_within_seconds = Some(42.0);
    snapshot.fallen_back = vec!["web".into()];
    let file = "/etc/ratelimitd/ratelimitd.toml".to_owned();
    snapshot.config.rolled_back = Some(RolledBack { file, why: "it was not confirmed in time".into() });
    let error = Some("line 7: `10.9.0.300` is no address".to_owned());
    snapshot.stale_lists = vec![StaleList { file: "/etc/ratelimitd/bad.txt".into(), error }];
    snapshot.list_entries_passed_over = 2;
    snapshot.top_talkers = vec![TopTalker { rule: "default".into(), source: "198.51.100.7".into(), percent: 91 }];
    snapshot.sources.overload = Overload::Sampling;
    snapshot.sources.sampled_one_in = 256;
    snapshot
}

fn assert_fits(said: &str, page: Page) {
    for line in said.lines() {
        assert!(line.chars().count() <= page.width.max(80), "{} columns: {line}\n{said}", line.chars().count());
    }
    assert!(said.lines().count() <= page.rows.unwrap_or(usize::MAX), "{} lines:\n{said}", said.lines().count());
}

#[test]
fn an_access_log_says_what_it_added_and_what_is_wrong_with_it() {
    let mut snapshot = quiet();
    snapshot.rules[0].name = "default".into();
    snapshot.access_logs = vec![ratelimit_report::fixture::access_log()];
    let said = stats(&snapshot, CLASSIC);
    assert_fits(&said, CLASSIC);
    assert!(said.contains("  access log   588 requests added; /var/log/nginx/access.log is 0.3 s behind"), "{said}");
    assert!(!said.contains("ACCESS LOG"), "{said}");
    snapshot.access_logs[0].trouble = Some("is 9 s behind".into());
    let said = stats(&snapshot, CLASSIC);
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("ACCESS LOG /var/log/nginx/access.log is 9 s behind: requests are counted without"),
        "{said}"
    );
}

#[test]
fn a_quiet_day_fits_the_classic_screen() {
    let said = stats(&quiet(), CLASSIC);
    assert_fits(&said, CLASSIC);
    insta::assert_snapshot!("stats_at_80_columns", said);
}

#[test]
fn the_worst_fits_the_classic_screen_and_the_rest_is_counted() {
    let mut snapshot = quiet();
    many(&mut snapshot, 20);
    for at in 0..5 {
        let rule = Rule { name: format!("rule-{at}"), dropped: at, ..snapshot.rules[0].clone() };
        snapshot.rules.push(rule);
    }
    let said = stats(&snapshot, CLASSIC);
    assert_fits(&said, CLASSIC);
    insta::assert_snapshot!("stats_of_many_at_80_columns", said);
    let all = stats(&snapshot, Page { rows: None, ..CLASSIC });
    assert_fits(&all, Page { rows: None, ..CLASSIC });
    assert!(
        !all.contains("--all")
            && all.matches("\nRule ").count() == 6
            && all.matches("over the limit  in").count() == 19
    );
}

#[test]
fn a_pipe_lists_all_sources_and_counts_those_that_the_daemon_omitted() {
    let mut snapshot = quiet();
    many(&mut snapshot, 300);
    snapshot.sources.in_use = 300;
    let said = stats(&snapshot, Page::ENDLESS);
    assert!(said.contains(" 198.51.100.298 ") && !said.contains("more source"), "{said}");
    let screen = stats(&snapshot, CLASSIC);
    assert_fits(&screen, CLASSIC);
    assert!(screen.contains("more sources: ratelimitd stats --all\n"), "{screen}");
    snapshot.top.as_mut().unwrap().truncate(20);
    let said = stats(&snapshot, Page::ENDLESS);
    assert!(said.contains("\nat least 280 more sources: ratelimitd stats --all\n"), "{said}");
    let screen = stats(&snapshot, CLASSIC);
    assert_fits(&screen, CLASSIC);
    let more = screen.lines().find(|line| line.contains("more source")).unwrap();
    let shown = screen.lines().filter(|line| line.contains("198.51.100.") || line.contains("2001:db8:aaaa:")).count();
    assert_eq!(more, format!("at least {} more sources: ratelimitd stats --all", 300 - shown));
}

#[test]
fn a_source_refused_by_its_group_names_the_group() {
    let mut snapshot = quiet();
    let top = snapshot.top.as_mut().unwrap();
    top[0].used = 20;
    top[0].group = Some("198.51.100.0/24".to_owned());
    let wide = stats(&snapshot, Page::ENDLESS);
    assert!(wide.contains("20 of 1,000 requests in 5m"), "{wide}");
    assert!(wide.contains("  over its group 198.51.100.0/24  in 2 min 13 s\n"), "{wide}");
    let narrow = stats(&snapshot, CLASSIC);
    assert_fits(&narrow, CLASSIC);
    assert!(narrow.contains("  over its group  in 2m 13s\n"), "{narrow}");
}

#[test]
fn a_rule_shows_the_units_of_its_limits_before_packets() {
    let snapshot = quiet();
    let said = stats(&snapshot, Page::ENDLESS);
    let line = |start: &str| said.lines().position(|line| line.starts_with(start)).unwrap();
    let (limit, requests, packets) = (line("  limit "), line("  requests "), line("  admitted "));
    assert!(limit < requests && requests < packets, "{said}");
    assert!(said.contains("\n  requests     1,212 in the last 5m, from 212 sources\n"), "{said}");
    assert!(said.contains("\n  bytes        49,096,000 in the last 1m, from 2 sources\n"), "{said}");
    let mut short = snapshot;
    let rule = short.rules[0].clone();
    short.rules = (0..9).map(|at| Rule { name: format!("rule-{at}"), ..rule.clone() }).collect();
    let said = stats(&short, CLASSIC);
    assert!(said.contains("(enforced): 1,212 requests/5m; dropped 40, admitted 1,300 packets\n"), "{said}");
    short.rules[0].used.retain(|of| of.unit == ratelimit_report::snapshot::Unit::Packets);
    assert!(stats(&short, CLASSIC).contains("Rule rule-0 (enforced): 1,300 packets admitted, dropped 40\n"));
}

#[test]
fn trouble_comes_first_by_urgency_and_in_full_where_there_is_room() {
    let mut snapshot = troubled();
    many(&mut snapshot, 20);
    let said = stats(&snapshot, CLASSIC);
    assert_fits(&said, CLASSIC);
    insta::assert_snapshot!("stats_of_trouble_at_80_columns", said);
    let said = stats(&troubled(), WIDE);
    assert_fits(&said, WIDE);
    insta::assert_snapshot!("stats_of_trouble_at_120_columns", said);
}

#[test]
fn the_busiest_rule_is_shown_whole_when_not_all_rules_fit() {
    let mut snapshot = quiet();
    snapshot.top = None;
    let idle = Rule {
        name: "idle".into(),
        used: Vec::new(),
        admitted: 0,
        dropped: 0,
        sources_over_limit: 0,
        ..snapshot.rules[0].clone()
    };
    let dry = Rule { name: "dry".into(), mode: Mode::DryRun, would_drop: 7, ..idle.clone() };
    snapshot.rules = vec![idle, dry, snapshot.rules[0].clone()];
    let page = |rows| Page { rows: Some(rows), ..CLASSIC };
    let said = stats(&snapshot, page(20));
    assert!(said.contains("\nRule default (enforced) on ports 80,443\n  limit "), "{said}");
    let short = "\n\nRule idle (enforced): 0 packets admitted, dropped 0\nRule dry (dry run): 0 packets admitted, would drop 7\n";
    assert!(said.contains(short), "{said}");
    let tight = stats(&snapshot, page(8));
    assert!(
        tight.contains("\n3 more rules: ratelimitd stats --all\n") || tight.contains("\n2 more rules: "),
        "{tight}"
    );
    for rows in 1..40 {
        assert_fits(&stats(&snapshot, page(rows)), page(rows));
    }
}

#[test]
fn no_line_is_wider_than_any_terminal_from_80_columns_on() {
    let mut snapshot = troubled();
    many(&mut snapshot, 12);
    let long = "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff".to_owned();
    let top = snapshot.top.as_mut().unwrap();
    top[0] = TopSource { source: long, rule: "a-rule-with-a-long-name".into(), dropped: u64::MAX, ..top[0].clone() };
    snapshot.interfaces[0].name = "abcdefghijklmno".into();
    snapshot.interfaces[0].packets.received = u64::MAX;
    snapshot.rules[0].ports = (1..200).map(|port| port.to_string()).collect::<Vec<_>>().join(",");
    snapshot.config.error = Some(format!("{}: too long", "x".repeat(400)));
    for (width, rows) in (60..200).zip((10..70).cycle()) {
        let rows = (rows % 4 != 0).then_some(rows);
        let page = Page { width, rows, detail: Detail::Verbose };
        assert_fits(&stats(&snapshot, page), page);
        assert_fits(&stats_below(Some(&"gone ".repeat(50)), &snapshot, page), page);
        assert_fits(&left(&snapshot, Page { rows: None, ..page }), Page { rows: None, ..page });
    }
}

#[test]
fn counting_of_units_is_explained_on_request() {
    let verbose = Page { detail: Detail::Verbose, ..Page::ENDLESS };
    assert!(!stats(&quiet(), Page::ENDLESS).contains("\nCounted "));
    let said = stats(&quiet(), verbose);
    assert!(said.contains("\nPackets by reason: 40 over_limit, 1,300 within_limit\nCounted "), "{said}");
    assert!(said.contains("\nCounted bytes: exact\n"), "{said}");
}

#[test]
fn a_panic_is_not_called_a_dry_run() {
    let snapshot = troubled();
    let said = stats(&snapshot, Page::ENDLESS);
    assert!(
        said.starts_with("ratelimitd 0.2.0, up 2h 13m: PANIC, everything passes and is still counted on "),
        "{said}"
    );
}

#[test]
fn drops_are_said_in_the_unit_of_the_limit_too() {
    use ratelimit_report::snapshot::Unit;
    let mut snapshot = quiet();
    let mut said = |units: &[Unit]| {
        let limit = snapshot.rules[0].limits[0];
        snapshot.rules[0].limits =
            units.iter().map(|&unit| ratelimit_report::snapshot::Limit { unit, ..limit }).collect();
        let said = stats(&snapshot, Page::ENDLESS);
        said.lines().find_map(|line| line.strip_prefix("  dropped      40 packets over the limit")).unwrap().to_owned()
    };
    assert_eq!(said(&[Unit::Requests, Unit::Bytes]), " (3,200 bytes)");
    assert_eq!(said(&[Unit::Requests]), "");
    assert_eq!(said(&[Unit::Connections]), " (at most 40 connections)");
    assert_eq!(said(&[Unit::Packets]), "");
}

#[test]
fn words_are_not_torn_where_a_line_ends_and_what_follows_stands_in() {
    assert_eq!(wrap("ab cd ef", 5), ["ab cd", "  ef"]);
    assert_eq!(wrap("ab cd ef", 8), ["ab cd ef"]);
    assert_eq!(wrap("  ab cd", 5), ["  ab", "    c", "    d"]);
    assert_eq!(wrap("ab", 2), ["ab"]);
}
