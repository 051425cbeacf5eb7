//! Reports on group limits: which groups are named, and how many sources they have.

use super::*;
use ratelimit_policy::desired::Per;

/// Returns a policy that admits three connections per source and five per /24 and /56.
fn grouped() -> Policy {
    let step = Per::Prefix { v4: 24, v6: 56 };
    policy(vec![
        limit(3, Counted::Connections),
        desired::Limit { per: step, slot: 70, ..limit(5, Counted::Connections) },
    ])
}

/// Sends two connections from each of three sources of one /24, of which the group admits five, and one from a
/// neighbour.
fn crawled() -> (FakeDatapath, Policy) {
    let policy = grouped();
    let (datapath, kernel) = fake(&policy);
    for source in ["203.0.113.1", "203.0.113.2", "203.0.113.3"] {
        for _ in 0..2 {
            kernel.packet("eth0", opening(source));
        }
    }
    kernel.packet("eth0", opening("203.0.114.1"));
    (datapath, policy)
}

fn check(datapath: &mut FakeDatapath, policy: &Policy, of: &str) -> CheckReport {
    let now = datapath.now().unwrap();
    let windows = datapath.source(address(of)).unwrap();
    let mut members = Members::around(policy, now, address(of));
    datapath.visit_sources(&mut |reading| members.visit(&reading)).unwrap();
    let background = Background { members, ..Background::unknown(now) };
    CheckReport::told(policy, address(of), &windows, &[], &background)
}

#[test]
fn check_names_the_group_that_refuses_and_how_many_sources_have_used_it() {
    let (mut datapath, policy) = crawled();
    let report = check(&mut datapath, &policy, "203.0.113.9");
    assert_eq!((report.verdict, report.reason.as_str()), (Outcome::Drop, "over_limit"));
    assert!(!report.remembered, "the source itself has sent nothing");
    let row = &report.limits[1];
    assert_eq!((row.per.as_deref(), row.sources), (Some("203.0.113.0/24"), Some(3)));
    assert_eq!((row.used, row.limit, row.refused, row.over), (5, 5, 1, true));
    let own = &report.limits[0];
    assert_eq!((own.per.as_deref(), own.sources, own.used), (None, None, 0));
    let verdict = &report.verdicts[0];
    assert_eq!(
        verdict.decided_by,
        "rule default: 203.0.113.0/24 by 3 sources, limit 5/5m connections per /24,/56, 5 of 5 used"
    );
    assert_eq!(verdict.undo.as_deref(), Some("sudo ratelimitd unblock 203.0.113.0/24"));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((&json["limits"][1]["per"], &json["limits"][1]["sources"]), (&"203.0.113.0/24".into(), &3.into()));
    assert_eq!(json["limits"][0].get("per"), None);
}

#[test]
fn a_neighbour_prefix_passes() {
    let (mut datapath, policy) = crawled();
    let report = check(&mut datapath, &policy, "203.0.114.9");
    assert_eq!(report.verdict, Outcome::Pass);
    assert_eq!((report.limits[1].per.as_deref(), report.limits[1].used), (Some("203.0.114.0/24"), 1));
    assert_eq!(report.limits[1].sources, Some(1));
}

#[test]
fn stats_list_groups_apart_and_name_the_group_that_refuses_a_source() {
    let (mut datapath, policy) = crawled();
    let now = datapath.now().unwrap();
    let mut census = Census::new(&policy, now, TOP_DEFAULT);
    datapath.visit_sources(&mut |source| census.visit(&source)).unwrap();
    let tracked = census.finish();
    assert_eq!((tracked.sources, tracked.over_limit.as_slice()), (4, [0].as_slice()), "a group is no source");
    assert!(tracked.leaders.iter().all(|source| source.prefix_len() == 32), "{:?}", tracked.leaders);
    let mut members = Members::of_windows(&policy, now, &tracked.groups);
    datapath.visit_sources(&mut |source| members.visit(&source)).unwrap();
    let groups = TopGroup::all(&policy, now, &tracked.groups, &members);
    let told: Vec<_> = groups.iter().map(|of| (of.group.as_str(), of.used, of.sources, of.dropped, of.state)).collect();
    assert_eq!(
        told,
        [("203.0.113.0/24", 5, Some(3), 1, State::OverLimit), ("203.0.114.0/24", 1, Some(1), 0, State::Ok)]
    );
    let top =
        TopSource::of(&policy, now, tracked.leaders[0], &datapath.source(tracked.leaders[0].addr()).unwrap(), &[]);
    let top = top.unwrap();
    assert_eq!((top.limit, top.used < 3), (3, true), "used and limit are those of the source's own limit");
    assert_eq!((top.state, top.reason.as_str()), (State::OverLimit, "over_limit"));
    assert_eq!(top.group.as_deref(), Some("203.0.113.0/24"));
    assert!(top.retry_after_seconds > 0.0, "{top:?}");
    let neighbour = "203.0.114.1/32".parse().unwrap();
    let neighbour = TopSource::of(&policy, now, neighbour, &datapath.source(address("203.0.114.1")).unwrap(), &[]);
    assert_eq!(neighbour.map(|of| (of.state, of.group)), Some((State::Ok, None)), "its group is within the limit");
    let snapshot = Snapshot { groups, ..build(&mut datapath, &policy) };
    assert!(snapshot.without_sources().groups.is_empty(), "a group names addresses");
}

#[test]
fn all_sources_of_a_list_are_one_client_in_both_families() {
    let list = desired::Limit { per: Per::List, slot: 71, ..limit(3, Counted::Connections) };
    let mut policy = policy(vec![limit(3, Counted::Connections), list]);
    policy.rules[0].from = ["203.0.113.0/24", "2001:db8::/32"].map(|of| of.parse().unwrap()).to_vec();
    policy.rules[0].list = Some("asn64496".to_owned());
    let (mut datapath, kernel) = fake(&policy);
    for source in ["203.0.113.1", "2001:db8::1", "203.0.113.2", "2001:db8:1::1"] {
        kernel.packet("eth0", opening(source));
    }
    let report = check(&mut datapath, &policy, "203.0.113.9");
    let row = &report.limits[1];
    assert_eq!((row.per.as_deref(), row.used, row.over), (Some("list asn64496"), 3, true));
    assert_eq!(row.sources, Some(3), "the fourth was refused and has used nothing");
    assert!(report.verdicts[0].decided_by.starts_with("rule default: list asn64496 by 3 sources, limit 3/5m"));
}
