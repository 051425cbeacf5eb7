//! Reports on verified and unverified traffic of one source.

use super::*;

#[test]
fn a_source_with_two_budgets_is_told_of_both_the_worse_first_and_is_tracked_once() {
    let limit = limit(10, Counted::Packets);
    let (policy, now) = (policy(vec![limit]), ratelimit_datapath::fake::START);
    let prefix = IpNet::from(address("198.51.100.7"));
    let reading = |is_verified, used| {
        let window = Source { refused: Refusals(0), cells: window_of(&limit, used, now) };
        SourceReading { prefix, slot: limit.slot, is_verified, window, refused_until: None, repeated: 0 }
    };
    for (unverified, verified, first, verdict) in [
        (10, 3, Budget::Unverified, Outcome::Drop),
        (2, 10, Budget::Verified, Outcome::Drop),
        (1, 3, Budget::Verified, Outcome::Pass),
    ] {
        let windows = [reading(false, unverified), reading(true, verified)];
        let report = CheckReport::build(&policy, now, prefix.addr(), &windows);
        let told: Vec<_> = report.limits.iter().map(|of| (of.budget, of.used)).collect();
        let [worse, other] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!((report.verdict, worse.0), (verdict, Some(first)), "{told:?}");
        assert_eq!(worse.1 + other.1, unverified + verified, "{told:?}");
        let mut census = Census::new(&policy, now, 10);
        windows.iter().for_each(|window| census.visit(window));
        let tracked = census.finish();
        assert_eq!((tracked.sources, tracked.leaders), (1, vec![prefix]));
        let top = TopSource::of(&policy, now, prefix, &windows, &[]).unwrap();
        assert_eq!(top.used, unverified.max(verified));
    }
    let report = CheckReport::build(&policy, now, prefix.addr(), &[reading(false, 4)]);
    assert_eq!((report.limits.len(), report.limits[0].budget), (1, None), "nothing of it is apart");
}
