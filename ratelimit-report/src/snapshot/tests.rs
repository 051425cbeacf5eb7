//! Tests of the read model over the fake datapath: conservation, JSON names, and the order of `top`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use ratelimit_common::admission::Admission;
use ratelimit_common::layout::{Fault, Source, Tally, Unit as Counted};
use ratelimit_common::refusals::Refusals;
use ratelimit_common::time::{BucketIndex, SECOND_NS};
use ratelimit_common::window;
use serde_json::Value;

use super::*;
use crate::fixture::{MINUTE_NS, address, limit, opening, policy, window_of};
use ratelimit_datapath::fake::{FakeDatapath, FakeKernel, FakePacket};
use ratelimit_datapath::{Datapath, SourceReading};
use ratelimit_policy::desired;
use ratelimit_policy::desired::{Access, Mode as DesiredMode, Refuse};

mod agreement;
mod budgets;
mod fleet;
mod groups;
mod guard;
mod shadow;

fn fake(policy: &Policy) -> (FakeDatapath, FakeKernel) {
    let (mut datapath, kernel) = FakeDatapath::new(&["eth0", "eth1"]);
    datapath.apply(policy).unwrap();
    datapath.attach("eth0").unwrap();
    datapath.attach("eth1").unwrap();
    (datapath, kernel)
}

fn build(datapath: &mut FakeDatapath, policy: &Policy) -> Snapshot {
    let reading = datapath.read().unwrap();
    let mut census = Census::new(policy, reading.now, TOP_DEFAULT);
    datapath.visit_sources(&mut |source| census.visit(&source)).unwrap();
    let tracked = census.finish();
    let top = tracked.leaders.iter().filter_map(|source| {
        TopSource::of(policy, reading.now, *source, &datapath.source(source.addr()).unwrap(), &[])
    });
    let top = TopSource::rank(top.collect());
    Snapshot::build(Parts {
        reading: &reading,
        tracked,
        top,
        policy,
        samples: &Samples::default(),
        uptime: Duration::from_millis(12_500),
        version: "0.2.0",
        config: ConfigState {
            last_reload_successful: true,
            last_reload_success_at: timestamp(reading.now),
            rolled_back: None,
            error: None,
        },
    })
}

#[test]
fn equal_sources_are_sorted_by_address() {
    let policy = policy(vec![limit(9, Counted::Connections)]);
    let (mut datapath, kernel) = fake(&policy);
    for source in ["192.0.2.10", "2001:db8::1", "192.0.2.9", "9.0.0.1", "192.0.2.200"] {
        kernel.packet("eth0", opening(source));
    }
    let top = build(&mut datapath, &policy).top.unwrap();
    let sources: Vec<&str> = top.iter().map(|of| of.source.as_str()).collect();
    assert_eq!(sources, ["9.0.0.1", "192.0.2.9", "192.0.2.10", "192.0.2.200", "2001:db8::/64"]);
}

#[test]
fn a_rule_sums_the_use_of_each_limit_over_all_sources() {
    let policy = policy(vec![limit(3, Counted::Connections), limit(1000, Counted::Bytes)]);
    let (mut datapath, kernel) = fake(&policy);
    for source in (1..=30).flat_map(|at| vec![format!("192.0.2.{at}"); 2]) {
        kernel.packet("eth0", opening(&source));
    }
    let snapshot = build(&mut datapath, &policy);
    let used: Vec<_> = snapshot.rules[0].used.iter().map(|of| (of.unit, of.used, of.sources)).collect();
    assert_eq!(used, [(Unit::Connections, 60, 30), (Unit::Bytes, 6_000, 30)]);
    assert_eq!((snapshot.sources.in_use, snapshot.top.unwrap().len()), (30, TOP_DEFAULT));
    datapath.apply(&policy).unwrap();
    kernel.advance(10 * MINUTE_NS);
    assert_eq!(build(&mut datapath, &policy).sources.in_use, 0, "windows have ended");
}

#[test]
fn received_is_passed_plus_dropped_on_every_interface_and_by_rule() {
    let policy = policy(vec![limit(3, Counted::Connections)]);
    let (mut datapath, kernel) = fake(&policy);
    for _ in 0..5 {
        kernel.packet("eth0", opening("198.51.100.7"));
    }
    kernel.packet("eth0", FakePacket { opens: false, ..opening("198.51.100.7") });
    kernel.packet("eth1", opening("198.51.100.8"));
    for reason in Reason::ALL {
        kernel.unruled("eth1", *reason, Tally { packets: 2, bytes: 120 });
    }

    let snapshot = build(&mut datapath, &policy);
    for of in &snapshot.interfaces {
        assert_eq!(of.packets.received, of.packets.passed + of.packets.dropped, "{}", of.name);
        assert_eq!(of.bytes.received, of.bytes.passed + of.bytes.dropped, "{}", of.name);
        let counters = of.counters.iter().map(|counter| counter.packets).sum::<u64>();
        assert_eq!(of.packets.received, counters, "{}", of.name);
    }
    let eth0 = &snapshot.interfaces[0];
    assert_eq!(eth0.packets, Volume { received: 6, passed: 4, dropped: 2, would_drop: 0 });
    assert_eq!(eth0.bytes, Volume { received: 600, passed: 400, dropped: 200, would_drop: 0 });
    let all = snapshot.interfaces.iter().map(|of| of.packets.received).sum::<u64>();
    assert_eq!(snapshot.reasons.values().sum::<u64>(), all);
    let rule = &snapshot.rules[0];
    assert_eq!((rule.admitted, rule.dropped, rule.would_drop, rule.not_counted), (4, 2, 0, 1));
    assert_eq!(rule.sources_over_limit, 1);
}

#[test]
fn a_dry_run_passes_what_it_would_drop() {
    let mut policy = policy(vec![limit(1, Counted::Connections)]);
    policy.rules[0].mode = DesiredMode::DryRun;
    let (mut datapath, kernel) = fake(&policy);
    kernel.packet("eth0", opening("198.51.100.7"));
    kernel.packet("eth0", opening("198.51.100.7"));

    let snapshot = build(&mut datapath, &policy);
    assert_eq!(snapshot.mode, Mode::DryRun);
    assert_eq!(snapshot.interfaces[0].packets, Volume { received: 2, passed: 2, dropped: 0, would_drop: 1 });
    let top = &snapshot.top.unwrap()[0];
    assert_eq!((top.state, top.dropped, top.would_drop), (State::OverLimit, 0, 1));
    let windows = datapath.source(address("198.51.100.7")).unwrap();
    let report = CheckReport::build(&policy, datapath.read().unwrap().now, address("198.51.100.7"), &windows);
    assert_eq!((report.verdict, &*report.reason), (Outcome::Pass, "dry_run"));
}

/// Checks that the JSON has the documented field names, which are listed literally.
#[test]
fn json_has_every_field_that_the_interface_fixes() {
    let policy = policy(vec![limit(1, Counted::Connections)]);
    let (mut datapath, kernel) = fake(&policy);
    kernel.packet("eth0", opening("198.51.100.7"));
    kernel.packet("eth0", opening("2001:db8:1:2::9"));
    kernel.fault(Fault::SourcesV4Insert);
    let snapshot = build(&mut datapath, &policy);
    let json = serde_json::to_value(&snapshot).unwrap();

    let fixed: Value = serde_json::from_str(
        r#"{ "schema": 1, "version": "0.2.0", "mode": "enforce", "uptime_seconds": 12.5,
          "interfaces": [ { "name": "eth0", "xdp_mode": "native", "attached": true,
              "packets": { "received": 0, "passed": 0, "dropped": 0, "would_drop": 0 },
              "bytes":   { "received": 0, "passed": 0, "dropped": 0, "would_drop": 0 } } ],
          "rules": [ { "name": "default", "mode": "enforce", "ports": "80,443",
              "limits": [ { "amount": 1000, "window_seconds": 300, "unit": "requests", "bucket_seconds": 60 } ],
              "admitted": 0, "dropped": 0, "would_drop": 0, "sources_over_limit": 0 } ],
          "sources": { "tracked": 0, "capacity": 262144, "banned": 0, "not_admitted": 0 },
          "reasons": { "within_limit": 0, "over_limit": 0, "banned": 0, "denied": 0, "malformed": 0 },
          "top": [ { "source": "198.51.100.7", "rule": "default", "unit": "requests", "used": 1000, "limit": 1000,
              "dropped": 40, "state": "over_limit", "retry_after_seconds": 12.0 } ] }"#,
    )
    .unwrap();
    assert_holds(&fixed, &json, "stats");
    assert_eq!(json["schema"], 1);
    assert_eq!(json["rules"][0]["ports"], "80,443");
    assert_eq!(json["rules"][0]["limits"][0]["window_seconds"], 300.0);
    assert_eq!(json["sources"]["tracked"], 2);
    let named: BTreeSet<_> = json["top"].as_array().unwrap().iter().map(|of| of["source"].as_str().unwrap()).collect();
    assert_eq!(named, BTreeSet::from(["198.51.100.7", "2001:db8:1:2::/64"]));
    let back: Snapshot = serde_json::from_value(json).unwrap();
    assert_eq!(back, snapshot);

    let now = datapath.read().unwrap().now;
    let windows = datapath.source(address("198.51.100.7")).unwrap();
    let report = CheckReport::build(&policy, now, address("198.51.100.7"), &windows);
    let fixed: Value = serde_json::from_str(
        r#"{ "schema":1, "source":"…", "verdict":"pass|drop", "reason":"…", "limits":[ { "rule":"…", "unit":"…", "used":0,
        "limit":0, "remaining":0, "retry_after_seconds":0.0, "buckets":[ { "start":"…", "count":0 } ] } ] }"#,
    )
    .unwrap();
    assert_holds(&fixed, &serde_json::to_value(&report).unwrap(), "check");
}

/// Asserts that `actual` has every field of `fixed`, with a value of the same type. Of lists, only the first elements
/// are compared.
fn assert_holds(fixed: &Value, actual: &Value, path: &str) {
    match (fixed, actual) {
        (Value::Object(fixed), Value::Object(actual)) => {
            for (name, value) in fixed {
                let field = actual.get(name).unwrap_or_else(|| panic!("{path} lacks {name}"));
                assert_holds(value, field, &format!("{path}.{name}"));
            }
        }
        (Value::Array(fixed), Value::Array(actual)) => {
            let first = actual.first().unwrap_or_else(|| panic!("{path} is empty"));
            assert_holds(&fixed[0], first, &format!("{path}[0]"));
        }
        _ => assert_eq!(std::mem::discriminant(fixed), std::mem::discriminant(actual), "{path}: {fixed} and {actual}"),
    }
}

#[test]
fn without_sources_no_address_is_left() {
    let policy = policy(vec![limit(1, Counted::Connections)]);
    let (mut datapath, kernel) = fake(&policy);
    kernel.packet("eth0", opening("198.51.100.7"));
    let mut snapshot = build(&mut datapath, &policy);
    snapshot.config.error = Some("line 3: 198.51.100.7/40".to_owned());
    snapshot.attention = vec!["RULE default: 97 % of what it counts comes from 198.51.100.7".to_owned()];
    let json = serde_json::to_string(&snapshot.without_sources()).unwrap();
    assert!(!json.contains("198.51.100") && !json.contains("\"top\""), "{json}");
}

#[test]
fn the_strict_timeline_is_told_bucket_by_bucket_and_when_it_ends() {
    let policy = policy(vec![limit(20, Counted::Connections)]);
    let (mut datapath, kernel) = fake(&policy);
    // 13 connections at 10:00, 7 at 10:01. At 10:02 the limit is reached, until 10:00 leaves the strict window at
    // 10:06.
    for (count, minutes) in [(13, 1), (7, 1), (0, 0)] {
        for _ in 0..count {
            assert_eq!(kernel.packet("eth0", opening("198.51.100.7")), Some(Reason::WithinLimit));
        }
        kernel.advance(minutes * MINUTE_NS);
    }
    kernel.advance(15 * SECOND_NS);
    assert_eq!(kernel.packet("eth0", opening("198.51.100.7")), Some(Reason::OverLimit));

    let now = datapath.read().unwrap().now;
    let windows = datapath.source(address("198.51.100.7")).unwrap();
    let report = CheckReport::build(&policy, now, address("198.51.100.7"), &windows);
    assert_eq!((report.verdict, &*report.reason), (Outcome::Drop, "over_limit"));
    let of = &report.limits[0];
    assert_eq!((of.used, of.remaining, of.refused), (20, 0, 1));
    assert_eq!(of.buckets.iter().map(|bucket| bucket.count).collect::<Vec<_>>(), [0, 0, 0, 13, 7, 0]);
    assert_eq!(of.buckets[3].start.to_string(), "2026-01-01T10:00:00Z");
    assert_eq!((of.retry_after_seconds, of.never), (225.0, false));

    kernel.advance(225 * SECOND_NS - 1);
    assert_eq!(kernel.packet("eth0", opening("198.51.100.7")), Some(Reason::OverLimit));
    kernel.advance(1);
    assert_eq!(kernel.packet("eth0", opening("198.51.100.7")), Some(Reason::WithinLimit));
}

#[test]
fn a_source_that_a_limit_of_bytes_refuses_is_over_it_until_the_next_bucket_begins() {
    for refuse in [Refuse::Excess, Refuse::All] {
        let mut policy = policy(vec![limit(1050, Counted::Bytes)]);
        policy.rules[0].refuse = refuse;
        let (mut datapath, kernel) = fake(&policy);
        kernel.advance(15 * SECOND_NS);
        let report = |datapath: &mut FakeDatapath| {
            let windows = datapath.source(address("198.51.100.7")).unwrap();
            CheckReport::build(&policy, datapath.read().unwrap().now, address("198.51.100.7"), &windows)
        };
        for _ in 0..10 {
            assert_eq!(kernel.packet("eth0", opening("198.51.100.7")), Some(Reason::WithinLimit));
        }
        assert_eq!(report(&mut datapath).verdict, Outcome::Pass, "50 bytes are left, and nothing was refused");
        assert_eq!(kernel.packet("eth0", opening("198.51.100.7")), Some(Reason::OverLimit));

        let blocked = report(&mut datapath);
        assert_eq!((blocked.verdict, &*blocked.reason), (Outcome::Drop, "over_limit"), "{refuse:?}");
        assert_eq!((blocked.limits[0].remaining, blocked.limits[0].refused), (50, 1));
        assert_eq!((blocked.retry_after_seconds, blocked.limits[0].retry_after_seconds), (45.0, 45.0));
        let snapshot = build(&mut datapath, &policy);
        assert_eq!(snapshot.rules[0].sources_over_limit, 1);
        let top = &snapshot.top.unwrap()[0];
        assert_eq!((top.state, top.dropped, top.retry_after_seconds), (State::OverLimit, 1, 45.0));

        kernel.advance(45 * SECOND_NS - 1);
        assert_eq!(report(&mut datapath).verdict, Outcome::Drop);
        kernel.advance(1);
        let free = report(&mut datapath);
        assert_eq!((free.verdict, free.retry_after_seconds), (Outcome::Pass, 0.0));
        assert_eq!(build(&mut datapath, &policy).rules[0].sources_over_limit, 0);
    }
}

#[test]
fn a_limit_that_was_raised_admits_at_once_unless_everything_is_refused() {
    for (refuse, verdict, reason) in
        [(Refuse::Excess, Outcome::Pass, Reason::WithinLimit), (Refuse::All, Outcome::Drop, Reason::OverLimit)]
    {
        let of = |amount| {
            let mut policy = policy(vec![limit(amount, Counted::Connections)]);
            policy.rules[0].refuse = refuse;
            policy
        };
        let (mut datapath, kernel) = fake(&of(1));
        kernel.packet("eth0", opening("198.51.100.7"));
        assert_eq!(kernel.packet("eth0", opening("198.51.100.7")), Some(Reason::OverLimit));
        datapath.apply(&of(5)).unwrap();
        let (now, windows) = (datapath.read().unwrap().now, datapath.source(address("198.51.100.7")).unwrap());
        let report = CheckReport::build(&of(5), now, address("198.51.100.7"), &windows);
        assert_eq!(report.verdict, verdict, "{refuse:?}");
        assert_eq!(kernel.packet("eth0", opening("198.51.100.7")), Some(reason), "{refuse:?}");
    }
}

/// Returns a reading of an unverified window without a drop-cache entry.
fn reading(prefix: IpNet, slot: u32, window: Source) -> SourceReading {
    SourceReading { prefix, slot, is_verified: false, window, refused_until: None, repeated: 0 }
}

#[test]
fn a_refusal_after_the_clock_was_read_is_seen() {
    let limit = limit(1050, Counted::Bytes);
    let policy = policy(vec![limit]);
    let now = ratelimit_datapath::fake::START;
    let later = BucketIndex(now.bucket(MINUTE_NS).0 + 1);
    let window = Source { refused: Refusals::default().and_one_in(later), cells: window_of(&limit, 1000, now) };
    let prefix = IpNet::from(address("198.51.100.7"));
    let source = reading(prefix, limit.slot, window);
    let report = CheckReport::build(&policy, now, prefix.addr(), &[source]);
    assert_eq!(report.verdict, Outcome::Drop);
}

#[test]
fn a_source_that_was_never_seen_and_one_that_is_exempt_pass() {
    let mut policy = policy(vec![limit(20, Counted::Connections)]);
    policy.access = vec![Access::exempt("192.0.2.0/24".parse().unwrap())];
    let now = ratelimit_datapath::fake::START;
    let unknown = CheckReport::build(&policy, now, address("198.51.100.7"), &[]);
    assert_eq!((unknown.verdict, &*unknown.reason), (Outcome::Pass, "within_limit"));
    assert_eq!((unknown.limits[0].used, unknown.limits[0].buckets.len()), (0, 6));
    let exempt = CheckReport::build(&policy, now, address("192.0.2.9"), &[]);
    assert_eq!((exempt.verdict, &*exempt.reason), (Outcome::Pass, "exempt"));
}

#[test]
fn a_source_whose_window_was_evicted_is_refused_as_long_as_its_drop_cache_entry() {
    let policy = policy(vec![limit(2, Counted::Connections)]);
    let (mut datapath, kernel) = fake(&policy);
    let source = IpNet::from(address("198.51.100.7"));
    let mut report = || {
        let (now, windows) = (datapath.read().unwrap().now, datapath.source(source.addr()).unwrap());
        (CheckReport::build(&policy, now, source.addr(), &windows), TopSource::of(&policy, now, source, &windows, &[]))
    };
    assert!(!report().0.remembered);
    kernel.evict_windows(
        source,
        policy.rules[0].limits[0].slot,
        Nanos(ratelimit_datapath::fake::START.0 + 90 * SECOND_NS),
    );
    let (refused, top) = report();
    assert_eq!((refused.verdict, &*refused.reason, refused.remembered), (Outcome::Drop, "over_limit", true));
    assert_eq!((refused.retry_after_seconds, refused.limits[0].used, refused.limits[0].remaining), (90.0, 0, 0));
    assert_eq!(top.unwrap().state, State::OverLimit);
    kernel.advance(90 * SECOND_NS);
    let (again, top) = report();
    assert_eq!((again.verdict, again.remembered, top), (Outcome::Pass, false, None));
}

#[test]
fn new_sources_over_a_rules_budget_are_dropped_and_told_and_known_ones_served() {
    let mut policy = policy(vec![limit(20, Counted::Connections)]);
    policy.rules[0].new_sources = Some(desired::NewSources { amount: 2, window_ns: SECOND_NS });
    let (mut datapath, kernel) = fake(&policy);
    let sent = |last: u8| kernel.packet("eth0", opening(&format!("198.51.100.{last}"))).unwrap();
    let budget = Reason::NewSourceBudget;
    assert_eq!([1, 2, 3].map(sent), [Reason::WithinLimit, Reason::WithinLimit, budget]);
    assert_eq!([1, 3].map(sent), [Reason::WithinLimit, budget]);
    kernel.advance(SECOND_NS);
    assert_eq!(sent(3), Reason::WithinLimit);
    let period = datapath.now().unwrap().0 >> 27;
    kernel.set_admission(Admission { period, shift: 3, insertions: 3, ..Admission::default() });
    let of = build(&mut datapath, &policy);
    assert_eq!((of.sources.not_admitted, of.sources.insertions, of.sources.sampled_one_in), (2, 3, 8));
    assert_eq!(of.sources.overload, Overload::Sampling);
    assert_eq!(of.rules[0].new_sources, Some(NewSources { amount: 2, window_seconds: 1.0 }));
}

#[test]
fn a_limit_of_zero_never_lets_anyone_in() {
    let policy = policy(vec![limit(0, Counted::Connections)]);
    let report = CheckReport::build(&policy, ratelimit_datapath::fake::START, address("198.51.100.7"), &[]);
    // The wait covers five full buckets and the current one, which begins now.
    assert_eq!((report.verdict, report.retry_after_seconds, report.never), (Outcome::Drop, 360.0, true));
    insta::assert_json_snapshot!("check_of_a_limit_of_zero", report);
}

#[test]
fn a_source_that_never_passes_is_told_a_number_too() {
    let mut other = limit(1, Counted::Packets);
    (other.window_ns, other.bucket_ns) = (10 * MINUTE_NS, 2 * MINUTE_NS);
    let policy = policy(vec![limit(0, Counted::Connections), other]);
    let now = ratelimit_datapath::fake::START;
    let prefix = IpNet::from(address("198.51.100.7"));
    let of = |limit: &desired::Limit| {
        reading(prefix, limit.slot, Source { refused: Refusals(1), cells: window_of(limit, limit.amount, now) })
    };
    let windows: Vec<_> = policy.rules[0].limits.iter().map(of).collect();
    // The result is never, although the other limit's wait is twelve minutes.
    let top = TopSource::of(&policy, now, prefix, &windows, &[]).unwrap();
    assert_eq!((top.state, top.limit, top.retry_after_seconds, top.never), (State::OverLimit, 0, 360.0, true));
    let report = CheckReport::build(&policy, now, prefix.addr(), &windows);
    assert_eq!((report.retry_after_seconds, report.never), (360.0, true));
    let each: Vec<_> = report.limits.iter().map(|of| (of.retry_after_seconds, of.never)).collect();
    assert_eq!(each, [(360.0, true), (720.0, false)]);
    let json = serde_json::to_value(&report).unwrap();
    assert!(json["retry_after_seconds"].is_number() && json["limits"][0]["retry_after_seconds"].is_number(), "{json}");
}

#[test]
fn the_worst_of_many_sources_are_the_same_as_if_all_were_kept() {
    let limits = vec![limit(1000, Counted::Connections), limit(2000, Counted::Packets)];
    let policy = policy(limits.clone());
    let now = ratelimit_datapath::fake::START;
    let mut census = Census::new(&policy, now, TOP_DEFAULT);
    let mut all = Vec::new();
    // Fixed sequence without visible order: multiples of numbers prime to the moduli.
    for n in 1..=5000_u32 {
        let prefix = IpNet::from(IpAddr::from(n.to_be_bytes()));
        let used = [u64::from(n * 617 % 1001), u64::from(n * 389 % 2001)];
        let windows = [0, 1].map(|at| {
            reading(
                prefix,
                limits[at].slot,
                Source { refused: Refusals(used[at] % 7), cells: window_of(&limits[at], used[at], now) },
            )
        });
        let over = used[0] == 1000 || used[1] == 2000;
        let refused = [0, 1].into_iter().filter(|&at| used[at] == limits[at].amount).map(|at| used[at] % 7).max();
        let fill = [0, 1].map(|at| (u128::from(used[at]) << 32) / u128::from(limits[at].amount));
        let most = if over {
            (
                true,
                refused.unwrap_or(0),
                [0, 1].into_iter().filter(|&at| used[at] == limits[at].amount).map(|at| fill[at]).max().unwrap_or(0),
            )
        } else {
            (false, 0, fill[0].max(fill[1]))
        };
        all.push((std::cmp::Reverse(most), prefix));
        for window in &windows {
            census.visit(window);
        }
    }
    all.sort_unstable();
    let expected: Vec<_> = all.into_iter().take(TOP_DEFAULT).map(|(_, prefix)| prefix).collect();
    let tracked = census.finish();
    assert_eq!(tracked.sources, 5000);
    assert_eq!(tracked.leaders, expected);
}

#[test]
fn a_source_over_two_limits_passes_when_both_windows_free() {
    let mut short = limit(1, Counted::Packets);
    (short.window_ns, short.bucket_ns) = (MINUTE_NS, 10 * SECOND_NS);
    let limits = vec![short, limit(1, Counted::Connections)];
    let policy = policy(limits);
    let (mut datapath, kernel) = fake(&policy);
    kernel.packet("eth0", opening("198.51.100.7"));
    let top = build(&mut datapath, &policy).top.unwrap();
    assert_eq!(top.len(), 1);
    assert_eq!((top[0].state, top[0].retry_after_seconds), (State::OverLimit, 360.0));
}

#[test]
fn windows_of_an_older_policy_are_passed_over() {
    let old = policy(vec![limit(1, Counted::Connections)]);
    let (mut datapath, kernel) = fake(&old);
    kernel.packet("eth0", opening("198.51.100.7"));
    let new = policy(vec![limit(1, Counted::Bytes)]);
    datapath.apply(&new).unwrap();
    let snapshot = build(&mut datapath, &new);
    assert_eq!((snapshot.sources.tracked, snapshot.top), (0, Some(vec![])));
}

#[test]
fn any_words_in_a_window_are_read_without_a_panic() {
    let policy = policy(vec![limit(1000, Counted::Connections), limit(1000, Counted::Bytes)]);
    for seed in 1..2000_u64 {
        let mut word = seed;
        let cells = std::array::from_fn(|_| {
            word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            word
        });
        let window = Source { refused: Refusals(u64::MAX), cells };
        let prefix = IpNet::from(address("198.51.100.7"));
        let windows = policy.rules[0].limits.iter().map(|limit| reading(prefix, limit.slot, window));
        let windows: Vec<_> = windows.collect();
        let now = ratelimit_datapath::fake::START;
        let mut census = Census::new(&policy, now, 1);
        windows.iter().for_each(|window| census.visit(window));
        let _tracked = census.finish();
        let _report = CheckReport::build(&policy, now, address("198.51.100.7"), &windows);
        let _top = TopSource::of(&policy, now, prefix, &windows, &[]);
    }
}

#[test]
fn ports_are_named_as_the_flag_takes_them() {
    let of = |tcp: &[(u16, u16)], udp: &[(u16, u16)], other_protocols| {
        desired::Ports { tcp: tcp.to_vec(), udp: udp.to_vec(), other_protocols }.to_string()
    };
    assert_eq!(of(&[(80, 80), (443, 443)], &[(53, 53), (80, 80), (443, 443)], false), "53/udp,80,443");
    assert_eq!(of(&[(22, 22), (8000, 8100)], &[(8000, 8100)], false), "22/tcp,8000-8100");
    assert_eq!(of(&[(0, 65_535)], &[(0, 65_535)], true), "all");
}

#[test]
fn a_rate_is_over_the_oldest_of_the_last_two_samples() {
    let policy = policy(vec![limit(10, Counted::Connections)]);
    let (mut datapath, kernel) = fake(&policy);
    let mut samples = Samples::default();
    let mut at = Duration::ZERO;
    for packets in [100, 4, 6] {
        samples.push(Sample::of(&datapath.read().unwrap(), at));
        kernel.unruled("eth0", Reason::NotIp, Tally { packets, bytes: 0 });
        at += Duration::from_secs(2);
    }
    let now = Traffic::on(&datapath.read().unwrap().interfaces[0]).packets;
    let rates = samples.rates("eth0", now, at).unwrap();
    assert!((rates.received - 2.5).abs() < f64::EPSILON, "{rates:?}");
    assert_eq!(samples.rates("eth9", now, at), None);
    assert_eq!(Samples::default().rates("eth0", now, at), None);
}

#[test]
fn a_leaky_bucket_and_a_fixed_window_are_read_as_the_packet_path_reads_them() {
    let source = address("198.51.100.7");
    let six = desired::Limit {
        form: desired::WindowForm::Gcra,
        window_ns: 30 * SECOND_NS,
        bucket_ns: 30 * SECOND_NS,
        buckets: 1,
        ..limit(6, Counted::Connections)
    };
    let now = Nanos(1_767_261_600 * SECOND_NS);
    let check = |of: desired::Limit, cells: [u64; 8]| {
        let prefix = IpNet::from(source);
        let windows = [reading(prefix, of.slot, Source { refused: Refusals(0), cells })];
        let report = CheckReport::build(&policy(vec![of]), now, source, &windows);
        let of = &report.limits[0];
        (report.reason.clone(), of.used, of.remaining, of.retry_after_seconds, of.buckets.len())
    };
    let leak = |seconds: u64| [now.0 + seconds * SECOND_NS, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(check(six, leak(30)), ("over_limit".into(), 6, 0, 5.0, 0));
    assert_eq!(check(six, leak(11)), ("within_limit".into(), 3, 3, 0.0, 0));
    let burst = desired::Limit { burst: Some(2), ..six };
    assert_eq!(check(burst, leak(8)), ("over_limit".into(), 2, 0, 3.0, 0));
    let third = desired::Limit { amount: 7, ..six };
    let word = now.0 + third.leak().cost_ns(1);
    assert_eq!(check(third, [word, 0, 0, 0, 0, 0, 0, 0]), ("within_limit".into(), 1, 6, 0.0, 0));

    let fixed = desired::Limit { form: desired::WindowForm::Fixed, ..six };
    let mut cells = [0; 8];
    assert!(window::open(&mut cells, fixed.arithmetic(), now.bucket(fixed.bucket_ns), 6));
    assert_eq!(check(fixed, cells), ("over_limit".into(), 6, 0, 30.0, 1));
}

#[test]
fn bans_are_counted_as_they_begin() {
    let mut policy = policy(vec![limit(1, Counted::Connections)]);
    policy.rules[0].bans = Some(desired::Bans { steps_ns: vec![MINUTE_NS], forget_ns: MINUTE_NS, needs_proof: false });
    let (mut datapath, kernel) = fake(&policy);
    for source in ["198.51.100.7", "198.51.100.8"] {
        for _ in 0..5 {
            kernel.packet("eth0", opening(source));
        }
    }
    assert_eq!(build(&mut datapath, &policy).rules[0].bans, 2);
    kernel.advance(MINUTE_NS);
    kernel.packet("eth0", opening("198.51.100.8"));
    assert_eq!(build(&mut datapath, &policy).rules[0].bans, 2, "it was banned for this");
    // The source is evicted.
    kernel.advance(MINUTE_NS);
    kernel.packet("eth0", opening("198.51.100.8"));
    let snapshot = build(&mut datapath, &policy);
    let metrics = crate::export::metrics(std::sync::Arc::new(snapshot)).unwrap();
    assert!(metrics.lines().any(|line| line == "ratelimitd_bans_total{rule=\"default\"} 3"), "{metrics}");
}
