//! Agreement of `check`, `explain`, `list` and the top of `stats` with each other and with the packet path.

use proptest::prelude::*;

use super::*;
use ratelimit_datapath::Ban;
use ratelimit_policy::config::listing::Places;
use ratelimit_policy::desired::{Grant, Ports, Rule as Ruled, Sent};

const NOW: Nanos = ratelimit_datapath::fake::START;
const SOURCE: &str = "198.51.100.7";

fn access() -> impl Strategy<Value = Vec<Access>> {
    let one = (22_u8..=32, prop::sample::select(vec![Grant::Exempt, Grant::Denied]), prop::option::of(0_u64..2));
    prop::collection::vec(one, 0..4).prop_map(|all| {
        let of = |(length, grant, until): (u8, _, Option<u64>)| Access {
            prefix: IpNet::new(address(SOURCE), length).unwrap().trunc(),
            grant,
            until: until.map(|until| Nanos(NOW.0 + until * SECOND_NS)),
        };
        let mut all: Vec<Access> = all.into_iter().map(of).collect();
        all.sort_unstable_by_key(|of| of.prefix);
        all.dedup_by_key(|of| of.prefix);
        all
    })
}

proptest! {
    #[test]
    fn every_report_says_the_same_of_a_source(
        access in access(),
        modes in prop::collection::vec(any::<bool>(), 1..4),
        used in prop::collection::vec(0_u64..=3, 3),
        banned in prop::collection::vec(any::<bool>(), 3),
    ) {
        let rule = |(at, is_dry): (usize, &bool)| {
            let port = u16::try_from(80 + at).unwrap();
            let limit = desired::Limit { slot: u32::from(port), ..limit(3, Counted::Connections) };
            let ports = Ports { tcp: vec![(port, port)], ..Ports::default() };
            let mode = if *is_dry { DesiredMode::DryRun } else { DesiredMode::Enforce };
            Ruled { mode, ..Ruled::new(format!("r{at}"), ports, vec![limit]) }
        };
        let rules: Vec<Ruled> = modes.iter().enumerate().map(rule).collect();
        let policy = Policy { access, rules, ..policy(Vec::new()) };
        let prefix = IpNet::from(address(SOURCE));
        let reading = |rule: &Ruled, used: u64| SourceReading {
            prefix,
            slot: rule.limits[0].slot,
            is_verified: false,
            window: Source { refused: Refusals(0), cells: window_of(&rule.limits[0], used, NOW) },
            refused_until: None,
            repeated: 0,
        };
        let windows: Vec<_> = policy.rules.iter().zip(&used).map(|(rule, used)| reading(rule, *used)).collect();
        let ban = |rule| Ban { client: prefix, rule, until: Nanos(NOW.0 + SECOND_NS), step: 1 };
        let bans: Vec<Ban> = (0..policy.rules.len()).filter(|at| banned[*at]).map(ban).collect();

        let check = CheckReport::with_bans(&policy, NOW, address(SOURCE), &windows, &bans);
        prop_assert_eq!(check.verdicts.len(), policy.rules.len());
        for of in &check.verdicts {
            let port = of.ports.trim_end_matches("/tcp");
            let sent = Sent::to_port(address(SOURCE), None, port).unwrap();
            let explained = ExplainReport::build(&policy, NOW, &sent, &windows, &bans);
            prop_assert_eq!((of.verdict, &of.reason), (explained.verdict, &explained.reason));
            prop_assert_eq!(of.verdict == Outcome::Drop, of.refuses.is_some() && of.would.is_none());
            let is_lifted_by_something = of.reason != "within_limit";
            prop_assert_eq!(of.undo.is_some(), is_lifted_by_something);
        }
        let drops = check.verdicts.iter().any(|of| of.verdict == Outcome::Drop);
        prop_assert_eq!(check.verdict == Outcome::Drop, drops, "3 if any rule drops");

        let entries: Vec<_> = policy.access.iter().map(ratelimit_policy::access::Entry::configured).collect();
        let clocks = Clocks { now: NOW, wall: timestamp(NOW) };
        let parts = ListParts { policy: &policy, entries: entries.iter().collect(), bans: &bans, places: Places::new(), clocks };
        let listed = ListReport::build(&parts, &ListFilter::default());
        let grant = policy.grant(address(SOURCE), NOW);
        for of in listed.entries.iter().filter(|of| of.state == State::Banned) {
            prop_assert_eq!(of.decides, grant.is_none(), "what is allowed or denied goes before a ban");
            prop_assert_eq!(of.overridden_by.is_some(), grant.is_some());
        }

        let top = TopSource::of(&policy, NOW, prefix, &windows, &bans).unwrap();
        let would = |of: &RuleVerdict| of.would.clone().unwrap_or_else(|| of.reason.clone());
        let of_rule = check.verdicts.iter().find(|of| of.rule == top.rule).unwrap();
        prop_assert_eq!(&top.reason, &would(of_rule));
        let any = |reason: &str| check.verdicts.iter().any(|of| would(of) == reason);
        let expected = match grant.map(|access| access.grant) {
            Some(Grant::Exempt) => State::Exempt,
            Some(Grant::Denied) => State::Denied,
            None if any("banned") => State::Banned,
            None if any("over_limit") => State::OverLimit,
            None => State::Ok,
        };
        prop_assert_eq!(top.state, expected);
    }
}

#[test]
fn the_reported_verdict_is_what_the_next_packet_gets() {
    let mut of = policy(vec![limit(2, Counted::Connections)]);
    for (is_denied, mode, sent) in [
        (false, DesiredMode::Enforce, 1),
        (false, DesiredMode::Enforce, 2),
        (false, DesiredMode::DryRun, 2),
        (true, DesiredMode::Enforce, 0),
        (true, DesiredMode::DryRun, 0),
    ] {
        of.access = if is_denied { vec![Access::denied("198.51.100.0/24".parse().unwrap())] } else { Vec::new() };
        of.rules[0].mode = mode;
        let (mut datapath, kernel) = fake(&of);
        for _ in 0..sent {
            kernel.packet("eth0", opening(SOURCE));
        }
        let windows = datapath.source(address(SOURCE)).unwrap();
        let report = CheckReport::build(&of, datapath.now().unwrap(), address(SOURCE), &windows);
        let met = kernel.packet("eth0", opening(SOURCE)).unwrap();
        assert_eq!(report.verdicts[0].reason, met.label(), "denied: {is_denied}, {mode:?}, {sent} sent");
    }
}
