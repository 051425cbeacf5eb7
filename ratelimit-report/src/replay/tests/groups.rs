//! Replays of logs in which many addresses belong to one crawler.

use super::*;
use ratelimit_policy::desired::{self, Per, Refuse};

#[test]
fn a_crawler_of_many_addresses_is_within_each_limit_and_over_that_of_its_prefix() {
    let of_group = desired::Limit { per: Per::Prefix { v4: 24, v6: 56 }, slot: 70, ..limit(50, Unit::Requests) };
    // The order in which the limits are given does not matter.
    let policy = policy(vec![of_group, limit(3, Unit::Requests)]);
    let line = |prefix: &str, last: u32| {
        format!("{prefix}.{last} - - [15/Jan/2027:08:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n").repeat(2)
    };
    let log: String = (1..=40).map(|last| line("203.0.113", last)).chain([line("203.0.114", 1)]).collect();
    let report = replayed(log.as_bytes(), &policy).unwrap();
    let [own, group] = report.limits.as_slice() else { panic!("{report:?}") };
    let per = |of: &LimitReport| of.limit.per.map(String::from);
    assert_eq!((per(own), own.admitted, own.refused), (None, 52, 0));
    assert_eq!((per(group).as_deref(), group.admitted, group.refused), (Some("/24,/56"), 52, 30));
    let prefix = &group.prefixes[0];
    assert_eq!((prefix.prefix.as_str(), prefix.sources, prefix.refused), ("203.0.113.0/24", 15, 30));
    assert_eq!(group.prefixes.len(), 1, "a neighbour is no part of it");
}

#[test]
fn a_full_group_with_refuse_all_refuses_sources_without_requests() {
    let of_group = desired::Limit { per: Per::Prefix { v4: 24, v6: 56 }, slot: 70, ..limit(1, Unit::Requests) };
    let reasons = |refuse| {
        let mut policy = policy(vec![of_group]);
        policy.rules[0].refuse = refuse;
        let asked = |from, payload| tcp(from, SERVER, 1, 1, payload);
        said(&policy, &[asked("203.0.113.1:4000", GET), asked("203.0.113.2:4000", GET), asked("203.0.113.3:4000", b"")])
    };
    assert_eq!(reasons(Refuse::Excess), [Reason::WithinLimit, Reason::DryRun, Reason::NotCounted]);
    assert_eq!(reasons(Refuse::All), [Reason::WithinLimit, Reason::DryRun, Reason::DryRun]);
}
