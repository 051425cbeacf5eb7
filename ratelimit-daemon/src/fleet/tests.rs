//! Tests of messages that do not fit into the task's queue.

use super::*;
use ratelimit_common::layout::Unit;
use ratelimit_common::time::BucketIndex;
use ratelimit_datapath::LimitAt;
use ratelimit_fleet::tracked::LimitId;
use ratelimit_policy::desired::Shared;
use ratelimit_policy::fleet::Sum;
use ratelimit_report::fixture;

fn policy(amounts: &[u64]) -> Policy {
    let shared = |amount: &u64| {
        let limit = fixture::limit(*amount, Unit::Connections);
        ratelimit_policy::desired::Limit { shared: Some(Shared { sum: Sum::All, step_bits: 1 }), ..limit }
    };
    let mut policy = fixture::policy(amounts.iter().map(shared).collect());
    policy.rules[0].name = "web".to_owned();
    policy
}

/// Creates a fleet with a task that takes no messages.
fn joined(policy: &Policy) -> Joined {
    let by = config::Fleet::at("unix:///dev/null/none");
    let shared = SharedLimits::of(policy);
    let begin = Begin {
        host: HostId([1; 8]),
        process: 1,
        name: "a".to_owned(),
        machine: 0,
        version: "0.2.0".to_owned(),
        names: Names::without_secret("web").unwrap(),
        settings: Settings::default(),
        limits: shared.limits(),
        access: by.store.clone(),
    };
    let (asks, _) = way::channel();
    let (fleet, _acts, task) = Fleet::begin(begin, Way::new(asks, 1, shared.limits()), || Nanos(1));
    // The task is kept, so that messages have somewhere to wait.
    let task = tokio::spawn(async move {
        std::future::pending::<()>().await;
        task.await;
    });
    Joined { by, host: HostId([1; 8]), secret: Secret(None), fleet, task, shared, is_told: true }
}

#[tokio::test]
async fn limits_without_room_in_the_task_follow_the_packets_and_are_told_later() {
    let (before, after) = (policy(&[10]), policy(&[20]));
    let mut moved = policy(&[10]);
    moved.rules.insert(0, ratelimit_policy::desired::Rule { name: "first".to_owned(), ..after.rules[0].clone() });
    let mut joined = joined(&before);
    let old = joined.shared.limits();
    let subject = Subject { limit: LimitId(0), source: "192.0.2.1/32".parse().unwrap() };
    while {
        let lost = joined.fleet.lost();
        joined.fleet.crossed(subject, BucketIndex(1));
        joined.fleet.lost() == lost
    } {}
    joined.follow(&moved);
    assert!(!joined.is_told, "there was no room");
    assert!(joined.shared.are_of(&moved));
    let web = joined.shared.named(&old, LimitId(0)).map(|shared| (shared.rule.as_str(), shared.at.rule));
    assert_eq!(web, Some(("web", 1)), "what the task calls so is looked up where it is now");
    let of = |at: LimitAt| joined.shared.all().find(|(_, shared)| shared.at == at).unwrap().1.rule.as_str();
    assert_eq!(of(LimitAt { rule: 0, ..joined.shared.all().next().unwrap().1.at }), "first");
    let mut ties = Ties { joined: Some(joined), ..Ties::none() };
    assert!(ties.shared().is_none(), "no number is said that the task understands otherwise");
    ties.joined = None;
}
