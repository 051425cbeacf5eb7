//! What people are shown, from snapshots of every kind.

use super::*;
use crate::error::Exit;

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
    insta::assert_snapshot!(stats(&crate::fixture::snapshot()));
}

#[test]
fn stats_of_a_quiet_dry_run_are_short() {
    let mut snapshot = crate::fixture::snapshot();
    snapshot.mode = crate::snapshot::Mode::DryRun;
    snapshot.interfaces.truncate(1);
    snapshot.rules[0].mode = crate::snapshot::Mode::DryRun;
    snapshot.config.last_reload_successful = true;
    snapshot.map_errors.clear();
    snapshot.sources.not_admitted = 0;
    snapshot.top = Some(Vec::new());
    insta::assert_snapshot!(stats(&snapshot));
}

#[test]
fn check_says_why_and_when_again() {
    use crate::datapath::Datapath as _;
    use crate::datapath::fake::FakeDatapath;
    use crate::fixture::{MINUTE_NS, address, limit, opening, policy};

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
        crate::snapshot::CheckReport::build(&policy, now, address("198.51.100.7"), &windows)
    };
    let passing = report(13);
    assert_eq!(check_exit(&passing), Exit::Done);
    insta::assert_snapshot!("check_passing", check(&passing));
    let blocked = report(10);
    assert_eq!(check_exit(&blocked), Exit::Blocked);
    insta::assert_snapshot!("check_blocked", check(&blocked));
}

#[test]
fn a_source_that_is_refused_though_something_is_left_is_told_so() {
    use crate::datapath::Datapath as _;
    use crate::datapath::fake::FakeDatapath;
    use crate::fixture::{address, limit, opening, policy};

    let policy = policy(vec![limit(250, ratelimit_common::layout::Unit::Bytes)]);
    let (mut datapath, kernel) = FakeDatapath::new(&["eth0"]);
    datapath.apply(&policy).unwrap();
    datapath.attach("eth0").unwrap();
    for _ in 0..5 {
        kernel.packet("eth0", opening("198.51.100.7"));
    }
    let windows = datapath.source(address("198.51.100.7")).unwrap();
    let now = datapath.read().unwrap().now;
    let report = crate::snapshot::CheckReport::build(&policy, now, address("198.51.100.7"), &windows);
    let said = check(&report);
    assert!(said.contains("is blocked: it is over a limit.\nThere is room again in 1m,"), "{said}");
    assert!(
        said.contains("200 of 250 bytes used in 5m, 50 left; 3 packets refused, the newest in this bucket\n"),
        "{said}"
    );
}

#[test]
fn what_never_has_room_is_said_so() {
    let policy = crate::fixture::policy(vec![crate::fixture::limit(0, ratelimit_common::layout::Unit::Connections)]);
    let (source, now) = (crate::fixture::address("198.51.100.7"), crate::datapath::fake::START);
    let report = crate::snapshot::CheckReport::build(&policy, now, source, &[]);
    assert_eq!(check_exit(&report), Exit::Blocked);
    insta::assert_snapshot!("check_never", check(&report));
    let mut snapshot = crate::fixture::snapshot();
    snapshot.top.iter_mut().flatten().for_each(|of| of.never = true);
    assert!(stats(&snapshot).contains("over the limit  never: the limit is 0\n"), "{}", stats(&snapshot));
}
