//! Reports on limits that a fleet enforces together.

use super::*;
use crate::fleet::{Fleet, FleetReport, FleetState};
use ratelimit_common::verification::Side;
use ratelimit_datapath::{LimitAt, Told};
use ratelimit_policy::desired::{self, Shared};
use ratelimit_policy::fleet::Sum;

const SOURCE: &str = "198.51.100.7";

/// Returns the `check` report after 412 connections on this host and 588 elsewhere.
fn checked(limit: desired::Limit) -> CheckReport {
    let policy = policy(vec![limit]);
    let (mut datapath, kernel) = fake(&policy);
    for _ in 0..412 {
        kernel.packet("eth0", opening(SOURCE));
    }
    let now = datapath.read().unwrap().now;
    let units = 588 >> limit.parts().unit_bits();
    let told = Told { client: address(SOURCE).into(), bucket: now.bucket(limit.bucket_ns), units };
    if limit.shared.is_some() {
        let at = LimitAt { rule: 0, limit: 0, side: Side::Unverified };
        assert_eq!(datapath.tell_others(at, &[told]).unwrap(), 1);
    }
    CheckReport::build(&policy, now, address(SOURCE), &datapath.source(address(SOURCE)).unwrap())
}

#[test]
fn remote_admissions_are_listed_beside_local_ones_and_both_count() {
    let shared = Some(Shared { sum: Sum::All, step_bits: 1 });
    let report = checked(desired::Limit { shared, ..limit(1000, Counted::Connections) });
    let of = &report.limits[0];
    assert_eq!((of.used, of.used_elsewhere, of.remaining), (412, Some(588), 0));
    assert_eq!((report.verdict, report.reason.as_str()), (Outcome::Drop, "over_limit"));
    assert_eq!(of.buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 412, "buckets are this host's");
    assert_eq!(serde_json::to_value(of).unwrap()["used_elsewhere"], 588);
}

#[test]
fn a_limit_that_is_not_shared_says_nothing_of_other_hosts() {
    let report = checked(limit(1000, Counted::Connections));
    let of = serde_json::to_value(&report.limits[0]).unwrap();
    assert_eq!((of.get("used_elsewhere"), of.get("told_seconds_ago")), (None, None));
    assert_eq!(report.verdict, Outcome::Pass);
}

#[test]
fn only_the_window_of_verified_traffic_is_shared_where_that_alone_is_summed() {
    let shared = Some(Shared { sum: Sum::Verified, step_bits: 0 });
    let limit = desired::Limit { shared, ..limit(10, Counted::Packets) };
    let (policy, now) = (policy(vec![limit]), ratelimit_datapath::fake::START);
    let reading = |is_verified, used| {
        let window = Source { refused: Refusals(0), cells: window_of(&limit, used, now) };
        let prefix = address(SOURCE).into();
        SourceReading { prefix, slot: limit.slot, is_verified, window, refused_until: None, repeated: 0 }
    };
    let report = CheckReport::build(&policy, now, address(SOURCE), &[reading(false, 2), reading(true, 3)]);
    let told: Vec<_> = report.limits.iter().map(|of| (of.budget, of.used_elsewhere)).collect();
    assert_eq!(told, [(Some(Budget::Verified), Some(0)), (Some(Budget::Unverified), None)]);
}

#[test]
fn the_fleet_has_every_field_that_the_interface_fixes_also_where_it_is_off() {
    let fixed: Value = serde_json::from_str(
        r#"{ "state": "off", "hosts": 0, "last_exchange_seconds": null, "rounds": 0, "rounds_failed": 0, "reports": 0,
          "reports_lost": 0 }"#,
    )
    .unwrap();
    let off = serde_json::to_value(crate::fixture::snapshot()).unwrap();
    assert_holds(&fixed, &off["fleet"], "fleet");
    assert_eq!(off["fleet"]["state"], "off");
    for state in FleetState::ALL {
        assert_eq!(serde_json::to_value(state).unwrap(), state.label());
    }
    let error = Some("10.0.0.1:6379: refused".to_owned());
    let fleet = Fleet { error, last_exchange_seconds: None, ..crate::fixture::fleet() };
    let report = FleetReport { fleet, ..FleetReport::off("2026-01-01T00:00:00Z".parse().unwrap()) };
    let json = serde_json::to_value(&report).unwrap();
    assert_holds(&fixed, &json["fleet"], "fleet");
    assert_eq!(serde_json::from_value::<FleetReport>(json).unwrap(), report);
}

#[test]
fn text_that_may_name_the_store_is_removed_with_the_sources() {
    let fleet = Fleet { error: Some("10.0.0.1:6379: refused".to_owned()), ..crate::fixture::fleet() };
    let snapshot = Snapshot { fleet, ..crate::fixture::snapshot() }.without_sources();
    assert_eq!((snapshot.fleet.error, snapshot.fleet.hosts), (None, 2));
}
