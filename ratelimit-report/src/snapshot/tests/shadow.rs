//! Tests of shadow limits in the read model.

use super::*;

#[test]
fn shadow_limit_refusals_are_summed_over_the_sources() {
    let mut policy = policy(vec![limit(6, Counted::Connections)]);
    policy.rules[0].shadow_limits = vec![desired::Limit { slot: 901, ..limit(3, Counted::Connections) }];
    let mut census = Census::new(&policy, Nanos(SECOND_NS), 5);
    for (last, refused) in [(1, 4), (2, 0), (3, 7)] {
        let prefix = IpNet::from(IpAddr::from([192, 0, 2, last]));
        census.visit(&reading(prefix, 901, Source { refused: Refusals(refused), cells: [0; 8] }));
    }
    assert_eq!(census.finish().shadows, [[Shadowed { packets: 11, sources: 2 }]]);
}

#[test]
fn shadow_limits_are_shown_of_one_source_too_and_judge_nothing() {
    let mut policy = policy(vec![limit(6, Counted::Connections)]);
    let shadow = |amount, slot| desired::Limit { slot, ..limit(amount, Counted::Connections) };
    policy.rules[0].shadow_limits = vec![shadow(3, 901), shadow(9, 902)];
    let (mut datapath, kernel) = fake(&policy);
    for _ in 0..5 {
        kernel.packet("eth0", opening("198.51.100.7"));
    }
    let (now, source) = (datapath.read().unwrap().now, address("198.51.100.7"));
    let windows = datapath.source(source).unwrap();
    let report = CheckReport::build(&policy, now, source, &windows);
    let sent = desired::Sent::to_port(source, None, "80").unwrap();
    let explained = ExplainReport::build(&policy, now, &sent, &windows, &[]);
    assert_eq!((report.verdict, report.limits.len()), (Outcome::Pass, 1));
    assert_eq!((explained.verdict, explained.limits.len(), explained.steps.len()), (Outcome::Pass, 1, 4));
    for shadows in [report.shadow_limits.clone(), explained.shadow_limits.clone()] {
        let of: Vec<_> = shadows.iter().map(|of| (of.mode, of.used, of.limit, of.refused, of.over)).collect();
        assert_eq!(of, [(Mode::DryRun, 3, 3, 2, true), (Mode::DryRun, 5, 9, 0, false)]);
    }
    assert_eq!(build(&mut datapath, &policy).rules[0].shadow_limits[0].would_drop, 2);
    datapath.charge("198.51.100.7/32".parse().unwrap(), 0, 4).unwrap();
    let windows = datapath.source(source).unwrap();
    assert_eq!(CheckReport::build(&policy, now, source, &windows).shadow_limits[1].used, 9);
}
