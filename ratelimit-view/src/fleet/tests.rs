//! Tests of the fleet's output, including its loss.

use super::*;
use crate::{Detail, Page};
use ratelimit_common::layout::Unit as Counted;
use ratelimit_report::fixture;
use ratelimit_report::snapshot::{CheckReport, Limit, Snapshot, Unit, WindowForm};

fn report() -> FleetReport {
    let fleet = Fleet { error: None, ..fixture::fleet() };
    let host = |name: &str, this| FleetHost {
        name: name.to_owned(),
        id: if this { "00000000000000a1" } else { "00000000000000b2" }.to_owned(),
        this,
        heard_seconds_ago: if this { 0.42 } else { 133.0 },
        clock_ahead_seconds: this.then_some(0.0021),
        version: "0.2.0".to_owned(),
        admitted_last_minute: if this { 12_345 } else { 7 },
    };
    let hosts = vec![host("web1", true), host("web2", false)];
    FleetReport { schema: 1, time: "2026-01-01T12:13:00Z".parse().unwrap(), fleet, hosts }
}

#[test]
fn a_fleet_is_its_state_its_hosts_its_limits_and_what_was_exchanged() {
    insta::assert_snapshot!(fleet(&report()));
}

#[test]
fn without_a_fleet_it_says_how_to_turn_it_on() {
    let off = FleetReport::off("2026-01-01T12:13:00Z".parse().unwrap());
    let said = fleet(&off);
    assert!(said.starts_with("No fleet: this host holds its limits by itself.\n"), "{said}");
    assert!(said.contains("[fleet]") && said.contains("secret_file") && said.contains("ratelimitd reload"), "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 100), "{said}");
}

#[test]
fn a_fleet_that_is_away_says_since_when_why_and_what_holds_meanwhile() {
    let mut of = report().fleet;
    assert_eq!(attention(&of), [""; 0]);
    of.state = FleetState::Away;
    of.since = Some("2026-01-01T12:10:00Z".parse().unwrap());
    of.trouble = Some("the store does not answer in time".to_owned());
    assert_eq!(
        attention(&of),
        ["FLEET: away since 2026-01-01 12:10:00 UTC: each host holds its limits by itself; the store does not answer \
          in time"]
    );
    of.store_says = Some("DENIED Redis is running in protected mode".to_owned());
    assert!(attention(&of)[0].ends_with("in time; it says: DENIED Redis is running in protected mode"));
    assert!(summary(&of).starts_with("Fleet web: AWAY, 2 hosts, "), "{}", summary(&of));
}

#[test]
fn a_degraded_fleet_names_the_limits_that_each_host_holds_by_itself() {
    let mut of = Fleet { state: FleetState::Degraded, ..report().fleet };
    assert_eq!(
        attention(&of),
        ["FLEET: degraded: some exchanges with the store fail, and their counts are missing from the sums"]
    );
    let slow = Fleet { slow: true, trouble: Some("the store is slow".to_owned()), ..of.clone() };
    assert_eq!(attention(&slow), ["FLEET: degraded: reports take longer, and the bound is higher; the store is slow"]);
    of.limits[0].summed = false;
    assert_eq!(attention(&of), ["FLEET: degraded: each host holds 1000/5m requests by itself"]);
    let error = Some("no answer. ".repeat(30));
    let said = fleet(&FleetReport { fleet: Fleet { error, ..of }, ..report() });
    assert!(said.lines().all(|line| line.chars().count() <= WIDTH), "{said}");
}

#[test]
fn problems_of_a_connected_fleet_are_reported() {
    let trouble = Some("12 hosts are heard, but `hosts` is 8: the bound holds for 8".to_owned());
    let of = Fleet { trouble, ..report().fleet };
    assert_eq!(attention(&of), ["FLEET: 12 hosts are heard, but `hosts` is 8: the bound holds for 8"]);
}

#[test]
fn a_copied_state_is_said_with_what_ends_it() {
    let of = Fleet { doubled: true, ..report().fleet };
    let said = attention(&of);
    assert_eq!(said.len(), 1);
    assert!(said[0].contains("copy of this host's state") && said[0].contains("ratelimitd detach"), "{said:?}");
}

#[test]
fn seconds_have_a_tenth_while_that_tells_something() {
    assert_eq!(
        [0.04, 0.42, 9.94, 10.2, 133.0].map(ago),
        ["0.0 s ago", "0.4 s ago", "9.9 s ago", "11 s ago", "2 min 13 s ago"]
    );
}

#[test]
fn an_unsummed_limit_is_reported_with_its_bound() {
    let limit = Limit {
        amount: 100,
        window_seconds: 60.0,
        per: None,
        condition: None,
        unit: Unit::Connections,
        bucket_seconds: 10.0,
        window: WindowForm::Strict,
    };
    let of = FleetLimit {
        rule: "ssh".to_owned(),
        limit,
        text: "100/1m connections".to_owned(),
        sum: Summed::All,
        summed: false,
        bound: 400,
        bound_words: "4x100 over 4 hosts".to_owned(),
        shared_with: None,
    };
    let bound = "\n  the fleet admits per source at most 400\n";
    for (shared_with, said) in
        [(None, ""), (Some(3), ""), (Some(2), "; ONLY 2 OF 3 OTHER HOSTS HAVE IT"), (Some(0), "; NO OTHER HOST HAS IT")]
    {
        let line = format!("Rule ssh: 100 connections in 1m, NOT SUMMED, each host by itself{said}{bound}");
        assert_eq!(shared_limit(&FleetLimit { shared_with, ..of.clone() }, 4), line);
    }
}

#[test]
fn check_says_what_is_used_here_and_elsewhere_of_a_shared_limit_alone() {
    let policy = fixture::policy(vec![fixture::limit(1000, Counted::Requests)]);
    let now = ratelimit_datapath::fake::START;
    let mut report = CheckReport::build(&policy, now, fixture::address("198.51.100.7"), &[]);
    assert!(!crate::check(&report, Detail::Normal).contains("elsewhere"));
    let of = &mut report.limits[0];
    (of.used, of.remaining, of.used_elsewhere, of.told_seconds_ago) = (412, 0, Some(588), Some(0.4));
    let said = crate::check(&report, Detail::Normal);
    let line = "1,000 of 1,000 requests used in 5m (412 here, 588 elsewhere, reported 0.4 s ago), 0 left;";
    assert!(said.contains(line), "{said}");
    report.limits[0].told_seconds_ago = None;
    assert!(crate::check(&report, Detail::Normal).contains("(412 here, 588 elsewhere), 0 left"));
    report.limits[0].used_elsewhere = None;
    report.limits[0].added_from_log = Some(300);
    let said = crate::check(&report, Detail::Normal);
    assert!(said.contains("412 of 1,000 requests used in 5m (300 of them added from the log), 0 left"), "{said}");
}

#[test]
fn stats_have_a_line_for_a_fleet_and_their_first_line_says_that_it_is_away() {
    let said = |state| {
        let fleet = Fleet { state, ..fixture::fleet() };
        let snapshot = Snapshot { fleet, ..fixture::snapshot() };
        (crate::what_it_does(&snapshot), crate::stats(&snapshot, Page::ENDLESS))
    };
    let (head, connected) = said(FleetState::Connected);
    assert!(connected.contains("\nFleet web: connected, 2 hosts, last exchange 0.4 s ago\n"), "{connected}");
    assert!(!connected.contains("FLEET") && !head.contains("fleet"), "{connected}");
    let (head, away) = said(FleetState::Away);
    assert!(head.contains("; the fleet is AWAY, so each host limits by itself; NOT PROTECTED: eth1"), "{head}");
    assert!(away.contains("\nFLEET: away: each host holds its limits by itself\n"), "{away}");
    assert!(!said(FleetState::Off).1.to_lowercase().contains("fleet"));
}
