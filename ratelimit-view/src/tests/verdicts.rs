//! Tests of the output of `check` on each rule's verdict, and on who decides it.

use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use ratelimit_common::layout::{Source, Unit as Counted};
use ratelimit_common::refusals::Refusals;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_datapath::{Ban, SourceReading};
use ratelimit_policy::access::{By, Entry};
use ratelimit_policy::config::listing::{Places, WrittenAt};
use ratelimit_policy::desired::{self, Access, Mode as DesiredMode, Policy};
use ratelimit_policy::desired::{Grant, Ports, Rule as Ruled};
use ratelimit_report::fixture::{address, limit, policy, window_of};
use ratelimit_report::snapshot::*;

use crate::Detail;

const NOW: Nanos = ratelimit_datapath::fake::START;

fn timestamp(at: Nanos) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(at.0)).unwrap()
}

fn prefix(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn at(port: u16) -> Ports {
    Ports { tcp: vec![(port, port)], ..Ports::default() }
}

/// Returns a policy with one rule for each name and port.
fn rules(of: &[(&str, u16)]) -> Policy {
    let mut policy = policy(Vec::new());
    let rule = |(name, port): &(&str, u16)| {
        let limit = desired::Limit { slot: u32::from(*port), ..limit(3, Counted::Connections) };
        Ruled::new((*name).to_owned(), at(*port), vec![limit])
    };
    policy.rules = of.iter().map(rule).collect();
    policy
}

fn access(prefix: &str, grant: Grant, until: Option<u64>) -> Access {
    let until = until.map(|seconds| Nanos(NOW.0 + seconds * SECOND_NS));
    Access { prefix: self::prefix(prefix), grant, until }
}

fn by_root(access: &Access, reason: Option<&str>) -> Entry {
    let by = By::Command { user: "root".into(), is_forced: false };
    Entry { by, reason: reason.map(str::to_owned), ..Entry::configured(access) }
}

fn checked(policy: &Policy, address: &str, bans: &[Ban], background: &Background<'_>) -> CheckReport {
    CheckReport::told(policy, self::address(address), &[], bans, background)
}

fn unknown() -> Background<'static> {
    Background::unknown(NOW)
}

/// Returns rule, ports, verdict and reason of each verdict.
fn told(report: &CheckReport) -> Vec<(&str, &str, &str, &str)> {
    report.verdicts.iter().map(|of| (&*of.rule, &*of.ports, of.verdict.label(), &*of.reason)).collect()
}

#[test]
fn a_ban_by_one_rule_blocks_its_ports_and_no_other() {
    let policy = rules(&[("ssh", 22), ("web", 80)]);
    let until = Nanos(NOW.0 + 57 * SECOND_NS);
    let ban = Ban { client: prefix("198.51.100.7/32"), rule: 0, until, step: 2 };
    let report = checked(&policy, "198.51.100.7", &[ban], &unknown());
    assert_eq!(told(&report), [("ssh", "22/tcp", "drop", "banned"), ("web", "80/tcp", "pass", "within_limit")]);
    assert_eq!((report.verdict, &*report.reason), (Outcome::Drop, "banned"), "3 if any rule drops");
    let ssh = &report.verdicts[0];
    assert_eq!(ssh.undo.as_deref(), Some("sudo ratelimitd unblock 198.51.100.7"));
    assert_eq!(ssh.until.map(|at| at.to_string()).as_deref(), Some("2026-01-01T10:00:57Z"));
    insta::assert_snapshot!("check_banned_by_one_rule", crate::check(&report, Detail::Verbose));
    // The ban has no effect on another source.
    assert_eq!(checked(&policy, "198.51.100.8", &[ban], &unknown()).verdict, Outcome::Pass);
}

#[test]
fn a_rule_is_told_with_the_ports_that_are_left_to_it() {
    let mut policy = rules(&[("partner", 80), ("api", 8080), ("web", 0)]);
    policy.rules[0].from = vec![prefix("192.0.2.0/24")];
    policy.rules[1].to = vec![prefix("203.0.113.5/32")];
    policy.rules[2].ports = Ports { tcp: vec![(80, 81), (8080, 8080)], ..Ports::default() };
    let ports = |address: &str| {
        let report = checked(&policy, address, &[], &unknown());
        report.verdicts.iter().map(|of| format!("{} {}", of.rule, of.ports)).collect::<Vec<_>>()
    };
    assert_eq!(ports("192.0.2.1"), ["partner 80/tcp", "api 8080/tcp", "web 81/tcp,8080/tcp"]);
    assert_eq!(ports("198.51.100.7"), ["api 8080/tcp", "web 80-81/tcp,8080/tcp"]);
}

#[test]
fn the_verdict_is_of_the_very_address_that_was_asked_for() {
    let mut policy = rules(&[("web", 80)]);
    for (grant, other, whole) in [(Grant::Denied, "pass", None), (Grant::Exempt, "drop", Some(Grant::Denied))] {
        policy.access = whole.map(|grant| access("fd88::/64", grant, None)).into_iter().collect();
        policy.access.push(access("fd88::5/128", grant, None));
        let (five, six) = (checked(&policy, "fd88::5", &[], &unknown()), checked(&policy, "fd88::6", &[], &unknown()));
        assert_ne!(five.verdict.label(), other);
        assert_eq!(six.verdict.label(), other);
        assert_eq!((&*five.address, &*five.source), ("fd88::5", "fd88::/64"));
        let said = crate::check(&five, Detail::Verbose);
        assert!(said.starts_with("fd88::5 (source fd88::/64) "), "{said}");
    }
    // The source as a whole is denied only by a prefix that contains all of it. A denial of its first address is not
    // enough.
    policy.access = vec![access("fd88::/128", Grant::Denied, None)];
    let reading = SourceReading {
        prefix: prefix("fd88::/64"),
        slot: 80,
        is_verified: false,
        window: Source { refused: Refusals(0), cells: window_of(&policy.rules[0].limits[0], 1, NOW) },
        refused_until: None,
        repeated: 0,
    };
    let top = |policy: &Policy| TopSource::of(policy, NOW, reading.prefix, &[reading], &[]).unwrap().state;
    assert_eq!(top(&policy), State::Ok);
    policy.access = vec![access("fd88::/48", Grant::Denied, None)];
    assert_eq!(top(&policy), State::Denied);
}

#[test]
fn a_source_passes_in_a_panic_and_is_told_what_would_apply() {
    let mut policy = rules(&[("web", 80)]);
    policy.access = vec![access("192.0.2.7/32", Grant::Denied, None)];
    policy.rules[0].mode = DesiredMode::DryRun;
    let entry = by_root(&policy.access[0], Some("scraper"));
    let hold = Hold { panic: true, by: "alice".into(), since: timestamp(NOW) };
    let panic = Background { beside: vec![&entry], hold: Some(hold), ..unknown() };
    let report = checked(&policy, "192.0.2.7", &[], &panic);
    assert_eq!(told(&report), [("web", "80/tcp", "pass", "dry_run")]);
    let of = &report.verdicts[0];
    assert_eq!(of.would.as_deref(), Some("denied"), "and not over a limit of which nothing is used");
    assert_eq!(of.would_be_decided_by.as_deref(), Some("root's denial of 192.0.2.7: scraper"));
    insta::assert_snapshot!("check_denied_in_a_panic", crate::check(&report, Detail::Verbose));
    let short = crate::check(&report, Detail::Normal);
    assert!(short.lines().count() <= 12 && short.contains("used in") && !short.contains("09:55:00"), "{short}");
    let by = |background| checked(&policy, "192.0.2.7", &[], &background).verdicts[0].decided_by.clone();
    assert_eq!(by(unknown()), "the configuration: rule web is in dry run");
    let fallen = Background { fallen_back: vec!["web".into()], ..unknown() };
    assert_eq!(by(fallen), "rule web fell back to dry run; `ratelimitd mode enforce` ends it");
}

#[test]
fn a_denial_by_a_list_names_file_and_line_and_what_lifts_it() {
    let mut policy = rules(&[("web", 80)]);
    policy.access = vec![access("1.10.16.0/20", Grant::Denied, None)];
    let configured = policy.access.clone();
    let written = |_: IpNet, grant| {
        let (list, comment) = (Some("drop".to_owned()), Some("SBL256894".to_owned()));
        vec![WrittenAt { grant, list, file: Some("/etc/ratelimitd/drop.txt".into()), line: Some(7), comment }]
    };
    let told = Background { configured: &configured, written: &written, ..unknown() };
    let of = &checked(&policy, "1.10.16.9", &[], &told).verdicts[0];
    assert_eq!(of.decided_by, "list drop (/etc/ratelimitd/drop.txt line 7: SBL256894), which denies 1.10.16.0/20");
    let undo = "take 1.10.16.0/20 out of /etc/ratelimitd/drop.txt line 7, then: sudo ratelimitd reload; \
                or for an hour: sudo ratelimitd allow 1.10.16.9";
    assert_eq!(of.undo.as_deref(), Some(undo));
    assert_eq!((of.until, of.never), (None, true));
    // For a prefix longer than the source's, an equally long prefix decides.
    policy.access = vec![access("fd88::5/128", Grant::Denied, None)];
    let configured = policy.access.clone();
    let told = Background { configured: &configured, written: &written, ..unknown() };
    let undo = checked(&policy, "fd88::5", &[], &told).verdicts[0].undo.clone().unwrap();
    assert!(undo.ends_with("sudo ratelimitd allow fd88::5/128"), "{undo}");
}

#[test]
fn the_undo_lifts_every_surrounding_denial_and_the_wait_covers_all() {
    let mut policy = rules(&[("web", 80)]);
    policy.access = vec![
        access("10.0.0.0/8", Grant::Denied, Some(300)),
        access("10.88.0.0/16", Grant::Exempt, Some(100)),
        access("10.88.0.0/24", Grant::Denied, Some(200)),
        access("10.88.0.9/32", Grant::Denied, Some(60)),
    ];
    let entries: Vec<Entry> = policy.access.iter().map(|access| by_root(access, None)).collect();
    let told = Background { beside: entries.iter().collect(), ..unknown() };
    let of = &checked(&policy, "10.88.0.9", &[], &told).verdicts[0];
    // The exemption around both denials takes precedence over the denial around the exemption.
    assert_eq!(of.undo.as_deref(), Some("sudo ratelimitd unblock 10.88.0.9; sudo ratelimitd unblock 10.88.0.0/24"));
    assert_eq!(of.until.map(|at| at.to_string()).as_deref(), Some("2026-01-01T10:01:00Z"), "the one that decides");
    assert!((of.retry_after_seconds - 300.0).abs() < f64::EPSILON, "{}", of.retry_after_seconds);
    policy.access[0].until = Some(Nanos(NOW.0 + 50 * SECOND_NS));
    let of = &checked(&policy, "10.88.0.9", &[], &told).verdicts[0];
    assert!((of.retry_after_seconds - 200.0).abs() < f64::EPSILON, "{}", of.retry_after_seconds);
    let of = &checked(&policy, "10.88.1.1", &[], &told).verdicts[0];
    assert_eq!((of.reason.as_str(), of.undo.as_deref()), ("exempt", Some("sudo ratelimitd unallow 10.88.0.0/16")));
}

fn listed(policy: &Policy, entries: &[Entry], bans: &[Ban], filter: &ListFilter) -> ListReport {
    let (entries, places) = (entries.iter().collect(), Places::new());
    let clocks = Clocks { now: NOW, wall: timestamp(NOW) };
    ListReport::build(&ListParts { policy, entries, bans, places, clocks }, filter)
}

#[test]
fn a_ban_that_an_allow_overrides_does_not_decide_and_says_so() {
    let mut policy = rules(&[("ssh", 22)]);
    let client = prefix("198.51.100.7/32");
    let ban = Ban { client, rule: 0, until: Nanos(NOW.0 + 60 * SECOND_NS), step: 1 };
    for (around, words) in [
        ("198.51.100.7/32", "banned, overridden by allow"),
        ("198.51.100.0/24", "banned, overridden by allow of 198.51.100.0/24"),
    ] {
        policy.access = vec![access(around, Grant::Exempt, Some(300))];
        let entries = [by_root(&policy.access[0], None)];
        let report = listed(&policy, &entries, &[ban], &ListFilter::default());
        let decides: Vec<_> = report.entries.iter().map(|of| (of.state, of.decides)).collect();
        assert_eq!(decides, [(State::Exempt, true), (State::Banned, false)]);
        assert!(
            crate::list(&report, usize::MAX).contains(&format!("{words} ")),
            "{}",
            crate::list(&report, usize::MAX)
        );
    }
    // An exemption of one address leaves the ban in force for the client's other addresses.
    let client = prefix("fd88::/64");
    policy.access = vec![access("fd88::5/128", Grant::Exempt, None)];
    let entries = [by_root(&policy.access[0], None)];
    let report = listed(&policy, &entries, &[Ban { client, ..ban }], &ListFilter::default());
    assert!(report.entries.iter().all(|of| of.decides));
}

#[test]
fn a_list_is_asked_for_by_rule_reason_and_prefix_and_bounded_by_origin() {
    let mut policy = rules(&[("ssh", 22), ("web", 80)]);
    let ban = |last: u8, rule| {
        let client = prefix(&format!("198.51.100.{last}/32"));
        Ban { client, rule, until: Nanos(NOW.0 + 60 * SECOND_NS), step: 1 }
    };
    policy.access = vec![access("192.0.2.0/24", Grant::Denied, None), access("198.51.100.0/25", Grant::Denied, None)];
    let entries = [by_root(&policy.access[0], Some("a Scraper")), by_root(&policy.access[1], None)];
    let bans = [ban(1, 0), ban(2, 0), ban(3, 0), ban(200, 1)];
    let of = |filter: ListFilter| {
        let report = listed(&policy, &entries, &bans, &filter);
        (report.entries.iter().map(|of| of.prefix.clone()).collect::<Vec<_>>(), report.omitted)
    };
    let of_rule = ListFilter { rule: Some("web".into()), ..ListFilter::default() };
    assert_eq!(of(of_rule).0, ["198.51.100.200"]);
    let by_reason = ListFilter { reason: Some("scraper".into()), ..ListFilter::default() };
    assert_eq!(of(by_reason).0, ["192.0.2.0/24"]);
    let around = ListFilter { prefix: Some(prefix("198.51.100.2/32")), ..ListFilter::default() };
    assert_eq!(of(around).0, ["198.51.100.0/25", "198.51.100.2"]);
    let (shown, omitted) = of(ListFilter { most: Some(1), ..ListFilter::default() });
    assert_eq!(shown, ["192.0.2.0/24", "198.51.100.1", "198.51.100.200"]);
    let omitted: Vec<_> = omitted.iter().map(|of| (of.of.as_str(), of.count)).collect();
    assert_eq!(omitted, [("bans of rule ssh", 2), ("commands", 1)]);
}

#[test]
fn a_prefix_is_summed_up() {
    let mut policy = rules(&[("ssh", 22), ("web", 80)]);
    policy.access = vec![access("192.0.2.8/32", Grant::Denied, None), access("192.0.2.9/32", Grant::Exempt, None)];
    let until = Nanos(NOW.0 + 60 * SECOND_NS);
    let ban = |client: &str| Ban { client: prefix(client), rule: 0, until, step: 1 };
    let bans = [ban("192.0.2.9/32"), ban("192.0.2.10/32"), ban("192.0.3.1/32")];
    let of = |policy: &Policy, whole: &str, bans: &[Ban]| {
        let whole = prefix(whole);
        let mut within = Within::new(policy, NOW, whole);
        let full = |last: u8| SourceReading {
            prefix: IpNet::from(IpAddr::from([192, 0, 2, last])),
            slot: 80,
            is_verified: false,
            window: Source { refused: Refusals(0), cells: window_of(&policy.rules[1].limits[0], 3, NOW) },
            refused_until: None,
            repeated: 0,
        };
        let windows = [full(1), full(9), full(77)];
        windows.iter().for_each(|window| within.visit(window));
        let (tracked, sources) = within.finish(bans);
        let top = tracked.leaders.iter().filter_map(|source| {
            let windows: Vec<_> = windows.iter().filter(|of| of.prefix == *source).copied().collect();
            TopSource::of(policy, NOW, *source, &windows, bans)
        });
        let top = top.collect();
        let entries: Vec<Entry> = policy.access.iter().map(Entry::configured).collect();
        let clocks = Clocks { now: NOW, wall: timestamp(NOW) };
        let list = ListParts { policy, entries: entries.iter().collect(), bans, places: Places::new(), clocks };
        let background = unknown();
        let parts =
            PrefixParts { prefix: whole, background: &background, list: &list, sources, top, groups: Vec::new() };
        PrefixReport::build(parts, Some(5))
    };
    let report = of(&policy, "192.0.2.0/24", &bans);
    assert_eq!((report.verdict, report.blocked), (Outcome::Drop, Extent::Some));
    let sums = report.sources;
    assert_eq!((sums.tracked, sums.over_limit, sums.banned, sums.blocked), (3, 3, 2, 3), "9 is allowed");
    insta::assert_snapshot!("check_of_a_prefix", crate::check_prefix(&report));
    let part = |whole: &str, bans: &[Ban]| of(&policy, whole, bans).blocked;
    assert_eq!(part("192.0.2.16/28", &[]), Extent::None);
    assert_eq!(part("192.0.2.8/31", &[]), Extent::Some, "8 is denied and 9 is allowed");
    policy.access = vec![access("192.0.0.0/16", Grant::Denied, None)];
    assert_eq!(of(&policy, "192.0.2.16/28", &[]).blocked, Extent::All);
    policy.rules.iter_mut().for_each(|rule| rule.mode = DesiredMode::DryRun);
    let dry = of(&policy, "192.0.2.0/24", &bans);
    assert_eq!((dry.verdict, dry.blocked), (Outcome::Pass, Extent::None), "what really happens");
}
