//! Tests of the text for people, from various snapshots.

use ratelimit_report::snapshot::Outcome;

use super::*;

fn stats(snapshot: &ratelimit_report::snapshot::Snapshot) -> String {
    super::stats(snapshot, Page::ENDLESS)
}

mod suggest;
mod verdicts;

#[test]
fn durations_have_two_units_and_never_promise_too_early() {
    for (seconds, expected) in [
        (0.0, "0s"),
        (0.2, "1s"),
        (12.0, "12s"),
        (59.1, "1m"),
        (133.0, "2m 13s"),
        (300.0, "5m"),
        (3600.0, "1h"),
        (3661.0, "1h 1m"),
        (90_000.0, "1d 1h"),
        (86_460.0, "1d"),
    ] {
        assert_eq!(duration(seconds), expected, "{seconds}");
    }
}

#[test]
fn numbers_have_their_thousands_apart() {
    for (value, expected) in [(0, "0"), (999, "999"), (1000, "1,000"), (262_144, "262,144"), (1_234_567, "1,234,567")] {
        assert_eq!(number(value), expected);
    }
}

#[test]
fn stats_say_what_is_not_as_it_should_be_in_words() {
    insta::assert_snapshot!(stats(&ratelimit_report::fixture::snapshot()));
}

#[test]
fn stats_of_a_quiet_dry_run_are_short() {
    let mut snapshot = ratelimit_report::fixture::snapshot();
    snapshot.mode = ratelimit_report::snapshot::Mode::DryRun;
    snapshot.interfaces.truncate(1);
    snapshot.rules[0].mode = ratelimit_report::snapshot::Mode::DryRun;
    snapshot.config.last_reload_successful = true;
    snapshot.map_errors.clear();
    snapshot.sources.not_admitted = 0;
    snapshot.top = Some(Vec::new());
    insta::assert_snapshot!(stats(&snapshot));
}

#[test]
fn the_header_of_stats_says_of_each_rule_and_interface_what_holds() {
    use ratelimit_report::snapshot::Mode;
    let mut snapshot = ratelimit_report::fixture::snapshot();
    let header = |snapshot: &_| stats(snapshot).lines().next().unwrap().split_once(": ").unwrap().1.to_owned();
    let attach = |snapshot: &mut ratelimit_report::snapshot::Snapshot, names: &[&str]| {
        snapshot.interfaces.iter_mut().for_each(|of| of.attached = names.contains(&of.name.as_str()));
    };
    let on = " on eth0, wan; NOT PROTECTED: eth1 not attached";
    assert_eq!(header(&snapshot), format!("enforcing, what is over a limit is dropped{on}"));
    let mut ssh = snapshot.rules[0].clone();
    (ssh.name, ssh.mode) = ("ssh".to_owned(), Mode::DryRun);
    snapshot.rules.push(ssh.clone());
    assert_eq!(header(&snapshot), format!("enforcing rule default, dry run in rule ssh{on}"));
    ssh.name = "mail".to_owned();
    snapshot.rules.push(ssh);
    attach(&mut snapshot, &["eth0", "eth1", "wan"]);
    assert_eq!(header(&snapshot), "enforcing rule default, dry run in rules ssh, mail");
    snapshot.rules.remove(0);
    assert_eq!(header(&snapshot), "dry run, nothing is dropped and what would be is counted");
    attach(&mut snapshot, &[]);
    assert!(header(&snapshot).starts_with("NOT PROTECTED: eth0, eth1, wan not attached"), "{}", header(&snapshot));
}

#[test]
fn without_a_daemon_what_pins_tell_is_shown_and_no_more() {
    let mut snapshot = ratelimit_report::fixture::snapshot();
    snapshot.reasons.insert("banned".to_owned(), 2);
    insta::assert_snapshot!(left(&snapshot, Page::ENDLESS));
}

#[test]
fn check_says_why_and_when_again() {
    use ratelimit_datapath::Datapath as _;
    use ratelimit_datapath::fake::FakeDatapath;
    use ratelimit_report::fixture::{MINUTE_NS, address, limit, opening, policy};

    let policy = policy(vec![limit(20, ratelimit_common::layout::Unit::Connections)]);
    let (mut datapath, kernel) = FakeDatapath::new(&["eth0"]);
    datapath.apply(&policy).unwrap();
    datapath.attach("eth0").unwrap();
    let mut report = |count: u64| {
        for _ in 0..count {
            kernel.packet("eth0", opening("198.51.100.7"));
        }
        kernel.advance(MINUTE_NS);
        let windows = datapath.source(address("198.51.100.7")).unwrap();
        let now = datapath.read().unwrap().now;
        ratelimit_report::snapshot::CheckReport::build(&policy, now, address("198.51.100.7"), &windows)
    };
    let passing = report(13);
    assert_eq!(passing.verdict, Outcome::Pass);
    insta::assert_snapshot!("check_passing", check(&passing, Detail::Verbose));
    let blocked = report(10);
    assert_eq!(blocked.verdict, Outcome::Drop);
    insta::assert_snapshot!("check_blocked", check(&blocked, Detail::Verbose));
}

#[test]
fn check_says_what_the_guard_blocks_and_what_to_do() {
    use ratelimit_common::verification::Side;
    use ratelimit_datapath::Datapath as _;
    use ratelimit_datapath::fake::FakeDatapath;
    use ratelimit_report::fixture::{address, limit, opening, policy};

    let mut policy = policy(vec![limit(10, ratelimit_common::layout::Unit::Requests)]);
    let (mut datapath, kernel) = FakeDatapath::new(&["eth0"]);
    datapath.apply(&policy).unwrap();
    datapath.attach("eth0").unwrap();
    kernel.packet("eth0", opening("198.51.100.7"));
    for (side, amount) in [(Side::Attempts, 10), (Side::Opened, 10), (Side::Segments, 16_384)] {
        let guard = policy.rules[0].limits[0].guard(side);
        kernel.guard("198.51.100.7/32".parse().unwrap(), &guard, amount);
    }
    let windows = datapath.source(address("198.51.100.7")).unwrap();
    let now = datapath.read().unwrap().now;
    let report = |policy: &ratelimit_policy::desired::Policy| {
        ratelimit_report::snapshot::CheckReport::build(policy, now, address("198.51.100.7"), &windows)
    };
    assert_eq!(report(&policy).verdict, Outcome::Drop);
    insta::assert_snapshot!("check_guarded", check(&report(&policy), Detail::Verbose));
    let mut connections = report(&policy);
    connections.verdicts[0].refuses = Some("new connections".to_owned());
    assert!(
        check(&connections, Detail::Verbose).contains("on ports 80,443: drops new connections; its requests pass\n")
    );
    policy.rules[0].mode = ratelimit_policy::desired::Mode::DryRun;
    assert_eq!(report(&policy).verdict, Outcome::Pass);
    let said = check(&report(&policy), Detail::Verbose);
    assert!(said.contains("80,443: passes all packets, would drop segments that begin no request\n"), "{said}");
    assert!(
        said.contains(
            "\nGuard of rule default, dry run: in 5m 10 of 10 connections without a request beyond the first 10, and"
        ),
        "{said}"
    );
}

#[test]
fn stats_say_why_a_rule_drops_where_that_is_not_its_limit_alone() {
    use ratelimit_common::verdict::{Action, Reason};
    use ratelimit_report::snapshot::{Counter, Outcome};

    let mut snapshot = ratelimit_report::fixture::snapshot();
    let counter = |rule: &str, reason: &str, packets| {
        let (rule, reason) = (rule.to_owned(), reason.to_owned());
        Counter { rule, verdict: Outcome::Drop, reason, packets, bytes: 0 }
    };
    assert!(stats(&snapshot).contains("  dropped      40 packets over the limit (3,200 bytes)\n"));
    snapshot.rules[0].dropped = 1_555;
    snapshot.interfaces[0].counters = vec![counter("default", "over_limit", 1_000), counter("default", "guard", 200)];
    let of_another = counter("other", "banned", 7);
    let more = vec![counter("default", "over_limit", 285), counter("default", "guard", 70), of_another];
    snapshot.interfaces[2].counters = more;
    let said = stats(&snapshot);
    assert!(
        said.contains("  dropped      1,555 packets: 1,285 over the limit (0 bytes), 270 by the guard\n"),
        "{said}"
    );
    snapshot.interfaces.truncate(1);
    let drops = Reason::ALL.iter().filter(|reason| reason.action() == Action::Drop);
    snapshot.interfaces[0].counters = drops.map(|reason| counter("default", reason.label(), 1)).collect();
    snapshot.interfaces[0].counters.push(counter("default", "of_a_later_daemon", 1));
    let said = stats(&snapshot);
    let line = said.lines().find(|line| line.starts_with("  dropped ")).unwrap();
    insta::assert_snapshot!("stats_reasons", line);
    assert_eq!(line.matches('_').count(), 3, "no other reason is without words: {line}");
}

#[test]
fn a_source_that_is_refused_though_something_is_left_is_told_so() {
    use ratelimit_datapath::Datapath as _;
    use ratelimit_datapath::fake::FakeDatapath;
    use ratelimit_report::fixture::{address, limit, opening, policy};

    let policy = policy(vec![limit(250, ratelimit_common::layout::Unit::Bytes)]);
    let (mut datapath, kernel) = FakeDatapath::new(&["eth0"]);
    datapath.apply(&policy).unwrap();
    datapath.attach("eth0").unwrap();
    for _ in 0..5 {
        kernel.packet("eth0", opening("198.51.100.7"));
    }
    let windows = datapath.source(address("198.51.100.7")).unwrap();
    let now = datapath.read().unwrap().now;
    let report = ratelimit_report::snapshot::CheckReport::build(&policy, now, address("198.51.100.7"), &windows);
    let said = check(&report, Detail::Verbose);
    assert!(said.starts_with("198.51.100.7 is blocked on ports 80,443.\n"), "{said}");
    assert!(said.contains(" UTC. Passes again in 1 min\n"), "{said}");
    assert!(
        said.contains("200 of 250 bytes used in 5m, 50 left; 3 packets refused, the newest in this bucket\n"),
        "{said}"
    );
}

#[test]
fn a_limit_of_zero_is_reported_as_never_passing() {
    let policy = ratelimit_report::fixture::policy(vec![ratelimit_report::fixture::limit(
        0,
        ratelimit_common::layout::Unit::Connections,
    )]);
    let (source, now) = (ratelimit_report::fixture::address("198.51.100.7"), ratelimit_datapath::fake::START);
    let report = ratelimit_report::snapshot::CheckReport::build(&policy, now, source, &[]);
    assert_eq!(report.verdict, Outcome::Drop);
    insta::assert_snapshot!("check_never", check(&report, Detail::Verbose));
    let mut snapshot = ratelimit_report::fixture::snapshot();
    snapshot.top.iter_mut().flatten().for_each(|of| of.never = true);
    assert!(stats(&snapshot).contains("over the limit  never: the limit is 0\n"), "{}", stats(&snapshot));
}

#[test]
fn an_overload_is_said_with_what_helps_and_only_where_it_would() {
    use ratelimit_report::snapshot::{NewSources, Overload};
    let mut snapshot = ratelimit_report::fixture::snapshot();
    assert!(!stats(&snapshot).contains("NEW SOURCES") && !stats(&snapshot).contains("new sources"));
    snapshot.sources.overloaded_periods = 12;
    let said = stats(&snapshot);
    assert!(said.contains("  source tracking overflowed 12 times on a CPU, not now"), "{said}");
    snapshot.sources.overload = Overload::Sampling;
    snapshot.sources.sampled_one_in = 256;
    let said = stats(&snapshot);
    let line = "\nMORE NEW SOURCES COME THAN CAN BE REMEMBERED: 1 in 256 of their packets is sampled, the rest pass";
    assert!(said.contains(&format!("{line}; `new_sources` in a rule bounds them\n")), "{said}");
    snapshot.rules[0].new_sources = Some(NewSources { amount: 20_000, window_seconds: 1.0 });
    let said = stats(&snapshot);
    assert!(said.contains(&format!("{line}\n")), "{said}");
    assert!(said.contains("  new sources  at most 20,000 in 1s\n"), "{said}");
}

#[test]
fn a_source_of_which_nothing_is_remembered_is_told_so() {
    let policy = ratelimit_report::fixture::policy(vec![ratelimit_report::fixture::limit(
        20,
        ratelimit_common::layout::Unit::Connections,
    )]);
    let (source, now) = (ratelimit_report::fixture::address("198.51.100.7"), ratelimit_datapath::fake::START);
    let said = check(&ratelimit_report::snapshot::CheckReport::build(&policy, now, source, &[]), Detail::Verbose);
    assert!(said.contains(": it is within every limit.\nNo recent traffic from this address.\n"), "{said}");
}

fn listed(json: &str) -> ratelimit_report::snapshot::Listed {
    serde_json::from_str(json).unwrap()
}

#[test]
fn a_list_says_until_when_by_whom_and_why() {
    let rows = [
        r#"{"prefix":"10.0.0.0/8","state":"denied","until":null,"by":"configuration","reason":null,"since":null,"decides":true}"#,
        r#"{"prefix":"192.0.2.1","state":"exempt","until":null,"by":"safety","reason":"the default gateway","since":null,"decides":true}"#,
        r#"{"prefix":"192.0.2.1","state":"denied","until":"2026-01-01T14:00:00Z","by":"command","user":"root","reason":null,"since":"2026-01-01T10:00:00Z","decides":false}"#,
        r#"{"prefix":"198.51.100.7","state":"banned","until":"2026-01-01T10:10:00Z","by":"ban","rule":"login","step":2,"reason":"it exceeded a limit of rule login","since":"2026-01-01T10:00:00Z","decides":true}"#,
    ];
    let time = "2026-01-01T10:00:00Z".parse().unwrap();
    let report = ratelimit_report::snapshot::ListReport {
        schema: 1,
        time,
        entries: rows.map(listed).to_vec(),
        omitted: Vec::new(),
        would_ban: Vec::new(),
    };
    insta::assert_snapshot!(list(&report, usize::MAX));
    let none = ratelimit_report::snapshot::ListReport { entries: vec![], ..report };
    assert!(list(&none, usize::MAX).starts_with("Nothing is allowed"));
}

#[test]
fn a_list_fits_any_terminal_and_is_never_cut() {
    let denied = listed(
        r#"{"prefix":"2001:db8:1111:2222:3333:4444:5555:6666","state":"denied","until":"2026-01-01T14:00:00Z","by":"command","user":"root (alice)","reason":"it scans every port of this host and of its neighbours, day after day","since":"2026-01-01T10:00:00Z","decides":true}"#,
    );
    let short = listed(
        r#"{"prefix":"192.0.2.1","state":"exempt","until":null,"by":"safety","reason":"the default gateway","since":null,"decides":true}"#,
    );
    let time = "2026-01-01T10:00:00Z".parse().unwrap();
    let report = ratelimit_report::snapshot::ListReport {
        schema: 1,
        time,
        entries: vec![denied.clone(), short.clone()],
        omitted: Vec::new(),
        would_ban: vec![denied],
    };
    for width in (50..200).chain([usize::MAX]) {
        let said = list(&report, width);
        assert!(said.lines().all(|line| line.chars().count() <= width), "{width} columns\n{said}");
        let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("it scans every port of this host and of its neighbours, day after day"), "{said}");
        assert!(words.contains("the default gateway") && !said.contains('…'), "{said}");
    }
    assert_eq!(list(&report, usize::MAX).lines().count(), 6 + 1, "a line for each entry in a pipe");
    let entries = vec![short];
    let one = ratelimit_report::snapshot::ListReport { entries, would_ban: Vec::new(), ..report };
    let expected =
        [" PREFIX     STATE    UNTIL      BY      WHY", " 192.0.2.1  allowed  permanent  safety  the default gateway"];
    assert_eq!(list(&one, 60).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn command_results_are_reported_in_a_line_or_two() {
    use ratelimit_control::proto::{
        ApplyReport, GrantReport, ModeReport, ModeWord, ResetReport, RollbackReport, Still, UnblockReport,
    };
    use ratelimit_report::snapshot::{Author, Listed, Mode, RuleMode, State};
    let entry = listed(
        r#"{"prefix":"192.0.2.0/24","state":"exempt","until":"2026-01-01T11:00:00Z","by":"command","user":"root","reason":null,"since":null,"decides":true}"#,
    );
    let ban = listed(
        r#"{"prefix":"192.0.2.7","state":"banned","until":"2026-01-01T10:10:00Z","by":"ban","rule":"login","step":2,"reason":"it exceeded a limit of rule login","since":"2026-01-01T10:00:00Z","decides":true}"#,
    );
    let denied = Listed { state: State::Denied, until: None, user: Some("root (alice)".into()), ..entry.clone() };
    let frees = vec!["192.0.2.7".to_owned(), "192.0.2.8".to_owned()];
    let lift = |removed: &[&Listed], freed: usize, still: &[Still]| UnblockReport {
        schema: 1,
        prefix: "192.0.2.0/24".to_owned(),
        removed: removed.iter().copied().cloned().collect(),
        removed_count: removed.len() as u64,
        freed: frees.iter().take(freed).cloned().collect(),
        freed_count: freed as u64,
        still: still.to_vec(),
        notes: vec![],
    };
    let lifted = |report: UnblockReport| lifted(&report);
    let still = |entry: Listed, lift: &str| Still { entry, lift: lift.to_owned() };
    let file = Some("/etc/ratelimitd/deny.txt".to_owned());
    let how = "take 192.0.2.0/24 out of /etc/ratelimitd/deny.txt line 7, or override it: ratelimitd allow 192.0.2.7";
    let comment = Some("a scanner".to_owned());
    let configured = Listed { by: Author::Configuration, user: None, file, line: Some(7), comment, ..denied.clone() };
    let by_command = still(denied.clone(), "ratelimitd unblock 192.0.2.0/24");
    let by_list = still(configured, how);
    let allowed = still(entry.clone(), "ratelimitd unallow 192.0.2.0/24");
    let reset = |source: &str, windows, limits, bans| {
        reset(&ResetReport { schema: 1, source: source.into(), windows, limits, bans, notes: vec![] })
    };
    let roll_back =
        |was_over| rolled_back(&RollbackReport { schema: 1, file: "/etc/ratelimitd/ratelimitd.toml".into(), was_over });
    let rule = |name: &str, mode| RuleMode { name: name.to_owned(), mode };
    let rules = vec![rule("web", Mode::Enforce), rule("ssh", Mode::DryRun)];
    let notes = vec!["overrides root's denial of 192.0.0.0/16 until 11:00 UTC".to_owned()];
    let said = [
        granted(&GrantReport {
            schema: 1,
            entry: entry.clone(),
            before: None,
            frees: frees.clone(),
            frees_count: 5,
            connections: None,
            notes,
        }),
        granted(&GrantReport {
            schema: 1,
            entry: denied.clone(),
            before: None,
            frees: vec![],
            frees_count: 0,
            connections: None,
            notes: vec![],
        }),
        lifted(lift(&[&denied, &ban], 2, &[])),
        lifted(lift(&[], 1, &[])),
        lifted(lift(&[], 0, &[])),
        lifted(lift(&[], 0, &[by_command, by_list])),
        lifted(lift(&[&entry], 0, &[allowed])),
        lifted(UnblockReport { prefix: String::new(), ..lift(&[], 0, &[]) }),
        reset("192.0.2.7/32", 7, 3, 1),
        reset("192.0.2.7/32", 7, 3, 0),
        reset("2001:db8::/64", 0, 0, 0),
        roll_back(false),
        roll_back(true),
        mode(&ModeReport { schema: 1, mode: ModeWord::Panic, changed: true, rules: rules.clone(), notes: vec![] }),
        mode(&ModeReport { schema: 1, mode: ModeWord::Enforce, changed: true, rules, notes: vec![] }),
        applied(&ApplyReport {
            schema: 1,
            changes: vec!["limit of rule web: 3/5m -> 9/5m connections".into()],
            confirm_within_seconds: Some(60),
            notes: vec![],
        }),
        applied(&ApplyReport { schema: 1, changes: vec![], confirm_within_seconds: None, notes: vec![] }),
    ];
    insta::assert_snapshot!(said.join("---\n"));
}

#[test]
fn an_explanation_ends_with_the_verdict() {
    use ratelimit_policy::desired::{Access, Grant, Sent};
    let mut policy = ratelimit_report::fixture::policy(vec![ratelimit_report::fixture::limit(
        20,
        ratelimit_common::layout::Unit::Connections,
    )]);
    let mut partner = policy.rules[0].clone();
    partner.name = "partner".into();
    partner.from = vec!["192.0.2.0/24".parse().unwrap()];
    policy.rules.insert(0, partner);
    let now = ratelimit_datapath::fake::START;
    let sent = Sent::to_port(ratelimit_report::fixture::address("198.51.100.7"), None, "443").unwrap();
    let explained = |policy: &ratelimit_policy::desired::Policy| {
        explain(&ratelimit_report::snapshot::ExplainReport::build(policy, now, &sent, &[], &[]))
    };
    insta::assert_snapshot!("explain_within_limit", explained(&policy));
    policy.access = vec![Access { prefix: "198.51.0.0/16".parse().unwrap(), grant: Grant::Denied, until: None }];
    insta::assert_snapshot!("explain_denied", explained(&policy));
}

#[test]
fn stats_say_loudly_what_keeps_rules_from_dropping() {
    let mut snapshot = ratelimit_report::fixture::snapshot();
    let since = "2026-01-01T10:00:00Z".parse().unwrap();
    snapshot.hold = Some(ratelimit_report::snapshot::Hold { panic: true, by: "root".into(), since });
    snapshot.fallen_back = vec!["web".into()];
    snapshot.confirm_within_seconds = Some(42.0);
    snapshot.config.rolled_back = Some(ratelimit_report::snapshot::RolledBack {
        file: "/etc/ratelimitd/ratelimitd.toml".into(),
        why: "it was not confirmed in time".into(),
    });
    let said: Vec<_> = stats(&snapshot).lines().take(6).map(str::to_owned).collect();
    insta::assert_snapshot!(said.join("\n"));
}

#[test]
fn the_mode_is_said_of_each_rule_and_of_what_holds_them_all() {
    use ratelimit_report::snapshot::{Hold, Mode, ModeNow, RuleMode};
    let rule = |name: &str, mode| RuleMode { name: name.to_owned(), mode };
    let rules = vec![rule("web", Mode::Enforce), rule("ssh", Mode::DryRun)];
    let now = ModeNow { schema: 1, mode: Mode::Enforce, hold: None, rules };
    assert_eq!(mode_now(&now), "rule web: enforce\nrule ssh: dry run\n");
    let since = "2026-01-01T10:00:00Z".parse().unwrap();
    let panic = ModeNow { hold: Some(Hold { panic: true, by: "root (alice)".into(), since }), ..now };
    let said =
        "panic: EVERYTHING PASSES, by root (alice) since 2026-01-01 10:00:00 UTC; `ratelimitd mode enforce` ends it\n";
    assert_eq!(mode_now(&panic), said);
}
