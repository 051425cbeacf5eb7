//! Tests of the output of `ratelimitd suggest`, from various observations.

use ratelimit_common::layout::Unit;

use crate::suggest;
use ratelimit_datapath::Datapath as _;
use ratelimit_datapath::fake::FakeDatapath;
use ratelimit_policy::desired::{Limit, Mode, Policy, Refuse, WindowForm};
use ratelimit_report::fixture::{MINUTE_NS, limit, opening, policy};
use ratelimit_report::observe::Observer;
use ratelimit_report::snapshot::SuggestReport;

/// Returns the output after sources have sent `wanted` packets each, and `minutes` have passed.
fn said(policy: &Policy, wanted: &[u64], minutes: u64) -> String {
    let (mut datapath, kernel) = FakeDatapath::new(&["eth0"]);
    datapath.apply(policy).unwrap();
    datapath.attach("eth0").unwrap();
    let mut observer = Observer::default();
    let mut round = |observer: &mut Observer| {
        let now = datapath.read().unwrap().now;
        observer.follow(policy, &[], 10_000, now);
        let mut round = observer.round(now, &[1400]);
        datapath.visit_sources(&mut |reading| round.visit(&reading)).unwrap();
        round.finish();
        now
    };
    round(&mut observer);
    for (source, count) in wanted.iter().enumerate() {
        for _ in 0..*count {
            let _verdict = kernel.packet("eth0", opening(&format!("10.0.{}.{}", source / 250, source % 250)));
        }
    }
    let mut now = round(&mut observer);
    for _ in 0..minutes {
        kernel.advance(MINUTE_NS);
        now = round(&mut observer);
    }
    suggest(&SuggestReport::build(policy, &observer, now, None, &[]), usize::MAX)
}

fn with(heavy: &[u64]) -> Vec<u64> {
    (0..480).map(|source| 1 + source % 40).chain(heavy.iter().copied()).collect()
}

#[test]
fn a_dry_run_ends_with_the_line_to_paste() {
    let mut policy = policy(vec![limit(1000, Unit::Connections)]);
    policy.rules[0].mode = Mode::DryRun;
    insta::assert_snapshot!(said(&policy, &with(&[700, 900, 4000]), 60));
}

#[test]
fn uncertain_proposals_say_so() {
    let hour = Limit {
        window_ns: 60 * MINUTE_NS,
        bucket_ns: 10 * MINUTE_NS,
        buckets: 6,
        slot: 99,
        ..limit(20, Unit::Packets)
    };
    let mut policy =
        policy(vec![Limit { burst: Some(15), ..limit(20, Unit::Connections) }, hour, limit(4000, Unit::Bytes)]);
    policy.rules[0].refuse = Refuse::All;
    policy.rules[0].bans =
        Some(ratelimit_policy::desired::Bans { steps_ns: vec![1], forget_ns: 1, needs_proof: false });
    insta::assert_snapshot!(said(&policy, &with(&[300])[420..], 9));
}

#[test]
fn too_little_is_no_ground_for_a_proposal() {
    let gcra = Limit { form: WindowForm::Gcra, buckets: 1, bucket_ns: 5 * MINUTE_NS, ..limit(10, Unit::Packets) };
    insta::assert_snapshot!(said(&policy(vec![limit(1000, Unit::Connections), gcra]), &[], 1));
}
