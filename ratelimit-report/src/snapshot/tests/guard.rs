//! `check` and `explain` for a source that a guard of a request limit refuses.

use ratelimit_common::verification::Side;

use super::*;
use ratelimit_policy::desired::{Grant, Guard, Sent};

/// Returns a datapath in which a source has used these amounts of the guard of the first limit: attempts, connections,
/// segments.
fn used(policy: &Policy, used: [u64; 3]) -> (FakeDatapath, FakeKernel) {
    let (datapath, kernel) = fake(policy);
    let source = IpNet::from(address("198.51.100.7"));
    for (side, amount) in [Side::Attempts, Side::Opened, Side::Segments].into_iter().zip(used) {
        kernel.guard(source, &policy.rules[0].limits[0].guard(side), amount);
    }
    (datapath, kernel)
}

fn report(policy: &Policy, datapath: &mut FakeDatapath) -> CheckReport {
    let windows = datapath.source(address("198.51.100.7")).unwrap();
    CheckReport::build(policy, datapath.now().unwrap(), address("198.51.100.7"), &windows)
}

#[test]
fn the_guard_blocks_on_full_segments_or_on_connections_of_a_suspect() {
    let policy = policy(vec![limit(10, Counted::Requests)]);
    for (amounts, is_blocked) in [
        ([10, 9, 16_383], false),
        ([9, 10, 0], false),
        ([10, 10, 0], true),
        ([10, 0, 0], false),
        ([0, 0, 16_384], true),
    ] {
        let (mut datapath, kernel) = used(&policy, amounts);
        let of = report(&policy, &mut datapath);
        let expected = if is_blocked { (Outcome::Drop, "guard") } else { (Outcome::Pass, "within_limit") };
        assert_eq!((of.verdict, of.reason.as_str()), expected, "{amounts:?}");
        assert_eq!(of.retry_after_seconds != 0.0, is_blocked, "{amounts:?}");
        assert_eq!((of.limits.len(), of.limits[0].used, of.limits[0].over), (1, 0, false), "no limit's: {amounts:?}");
        let json = serde_json::to_value(&of).unwrap();
        if amounts == [10, 0, 0] {
            assert_eq!(json.get("guard"), None, "attempts alone are nothing to tell");
        } else {
            let fixed = format!(
                r#"{{ "rule": "default", "mode": "enforce", "connections": {{ "used": {}, "limit": 10 }},
                "segments": {{ "used": {}, "limit": 16384 }}, "datagrams": {{ "used": 0, "limit": 4194304 }},
                "window_seconds": 300.0, "over": {is_blocked},
                "retry_after_seconds": {:?} }}"#,
                amounts[1], amounts[2], of.retry_after_seconds
            );
            assert_eq!(json["guard"], serde_json::json!([serde_json::from_str::<Value>(&fixed).unwrap()]));
            assert!(of.remembered);
        }
        kernel.advance(u64::try_from(Duration::from_secs_f64(of.retry_after_seconds).as_nanos()).unwrap());
        assert_eq!(report(&policy, &mut datapath).verdict, Outcome::Pass, "when it was said: {amounts:?}");
    }
}

#[test]
fn a_guard_that_is_off_or_in_a_dry_run_blocks_nobody_nor_one_that_is_exempt() {
    let of = policy(vec![limit(10, Counted::Requests)]);
    for (change, reason, told) in [
        ((|policy| policy.rules[0].guard = Guard::Off) as fn(&mut Policy), "within_limit", 0),
        (|policy| policy.rules[0].refuse = Refuse::All, "within_limit", 0),
        (|policy| policy.rules[0].mode = DesiredMode::DryRun, "dry_run", 1),
        (|policy| policy.access = vec![Access::exempt("198.51.100.0/24".parse().unwrap())], "exempt", 1),
    ] {
        let mut policy = of.clone();
        change(&mut policy);
        let (mut datapath, _kernel) = used(&policy, [0, 0, 16_384]);
        let of = report(&policy, &mut datapath);
        assert_eq!((of.verdict, of.reason.as_str(), of.guard.len()), (Outcome::Pass, reason, told));
    }
    let mut policy = of;
    policy.access = vec![Access { prefix: "198.51.100.7/32".parse().unwrap(), grant: Grant::Denied, until: None }];
    let (mut datapath, _kernel) = used(&policy, [0, 0, 16_384]);
    assert_eq!(report(&policy, &mut datapath).reason, "denied", "a denial goes before");
}

#[test]
fn the_guard_of_a_leaky_bucket_blocks_when_it_is_full() {
    let leaky = desired::Limit {
        form: desired::WindowForm::Gcra,
        buckets: 1,
        bucket_ns: 5 * MINUTE_NS,
        ..limit(10, Counted::Requests)
    };
    let (policy, now) = (policy(vec![leaky]), ratelimit_datapath::fake::START);
    let guard = leaky.guard(Side::Segments);
    let reading = |used: u64| {
        let cells = std::array::from_fn(|at| if at == 0 { now.0 + used * guard.leak().cost_ns(1) } else { 0 });
        let (prefix, window) = (IpNet::from(address("198.51.100.7")), Source { refused: Refusals(0), cells });
        SourceReading { prefix, slot: guard.slot, is_verified: false, window, refused_until: None, repeated: 0 }
    };
    for (used, reason) in [(16_000, "within_limit"), (16_384, "guard")] {
        let of = CheckReport::build(&policy, now, address("198.51.100.7"), &[reading(used)]);
        assert_eq!((of.reason.as_str(), of.guard[0].segments.used), (reason, used));
    }
}

#[test]
fn an_explanation_has_a_step_for_a_guard_of_tcp_that_holds_something() {
    let policy = policy(vec![limit(10, Counted::Requests)]);
    let (mut datapath, _kernel) = used(&policy, [10, 10, 700]);
    let windows = datapath.source(address("198.51.100.7")).unwrap();
    let explained = |to: &str, windows: &[SourceReading]| {
        let sent = Sent::to_port(address("198.51.100.7"), None, to).unwrap();
        ExplainReport::build(&policy, ratelimit_datapath::fake::START, &sent, windows, &[])
    };
    let of = explained("443", &windows);
    assert_eq!((of.verdict, of.reason.as_str()), (Outcome::Drop, "guard"));
    let last = of.steps.last().unwrap();
    assert_eq!(
        format!("{}: {}", last.at, last.why),
        "guard of 10/5m requests: 10 of 10 connections without a request, 700 of 16384 segments that begin no request used: at the limit"
    );
    assert_eq!(explained("443/udp", &windows).reason, "within_limit");
    assert_eq!(explained("443", &[]).steps.len() + 1, of.steps.len());
}

#[test]
fn the_guard_of_datagrams_holds_udp_alone() {
    let policy = policy(vec![limit(10, Counted::Requests)]);
    let (mut datapath, kernel) = fake(&policy);
    let guard = policy.rules[0].limits[0].guard(Side::Datagrams);
    kernel.guard(IpNet::from(address("198.51.100.7")), &guard, guard.amount);
    let of = report(&policy, &mut datapath);
    assert_eq!((of.reason.as_str(), of.guard[0].datagrams.unwrap().used), ("guard", 16_384 * 256));
    assert_eq!(of.verdicts[0].refuses.as_deref(), Some("datagrams of QUIC that are no request"));
    let windows = datapath.source(address("198.51.100.7")).unwrap();
    for (to, reason) in [("443/udp", "guard"), ("443", "within_limit")] {
        let sent = Sent::to_port(address("198.51.100.7"), None, to).unwrap();
        let of = ExplainReport::build(&policy, ratelimit_datapath::fake::START, &sent, &windows, &[]);
        assert_eq!(of.reason, reason, "{to}");
        let last = of.steps.last().unwrap();
        let words =
            "guard of 10/5m requests: 4194304 of 4194304 datagrams of QUIC that are no request used: at the limit";
        assert_eq!(format!("{}: {}", last.at, last.why) == words, to == "443/udp", "{last:?}");
    }
}
