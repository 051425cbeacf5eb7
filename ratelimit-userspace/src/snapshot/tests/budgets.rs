//! What is proven and what anyone can forge, told apart.

use super::*;

#[test]
fn a_source_with_two_budgets_is_told_of_both_the_worse_first_and_is_tracked_once() {
    let limit = limit(10, Counted::Packets);
    let (policy, now) = (policy(vec![limit]), crate::datapath::fake::START);
    let prefix = IpNet::from(address("198.51.100.7"));
    let reading = |is_proven, used| {
        let window = Source { refused: Refusals(0), cells: window_of(&limit, used, now) };
        SourceReading { prefix, slot: limit.slot, is_proven, window, refused_until: None }
    };
    for (unproven, proven, first, verdict) in [
        (10, 3, Budget::Unproven, Outcome::Drop),
        (2, 10, Budget::Proven, Outcome::Drop),
        (1, 3, Budget::Proven, Outcome::Pass),
    ] {
        let windows = [reading(false, unproven), reading(true, proven)];
        let report = CheckReport::build(&policy, now, prefix.addr(), &windows);
        let told: Vec<_> = report.limits.iter().map(|of| (of.budget, of.used)).collect();
        let [worse, other] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!((report.verdict, worse.0), (verdict, Some(first)), "{told:?}");
        assert_eq!(worse.1 + other.1, unproven + proven, "{told:?}");
        let mut census = Census::new(&policy, now, 10);
        windows.iter().for_each(|window| census.visit(window));
        let tracked = census.finish();
        assert_eq!((tracked.sources, tracked.leaders), (1, vec![prefix]));
        let top = TopSource::of(&policy, now, prefix, &windows, &[]).unwrap();
        assert_eq!(top.used, unproven.max(proven));
    }
    let report = CheckReport::build(&policy, now, prefix.addr(), &[reading(false, 4)]);
    assert_eq!((report.limits.len(), report.limits[0].budget), (1, None), "nothing of it is apart");
}
