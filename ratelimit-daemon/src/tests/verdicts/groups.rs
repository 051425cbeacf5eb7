//! Tests of group limits queried by prefix, over a fake datapath with a clock that the test controls.

use ipnet::IpNet;
use ratelimit_common::layout::Unit;
use ratelimit_policy::desired::{Access, Limit, Mode, Per};
use ratelimit_report::fixture::limit;
use ratelimit_report::snapshot::{Extent, Outcome, PrefixReport};

use crate::tests::bans::Site;
use crate::tests::*;

/// Creates an engine with limits of three connections per source, five per /24, and eight for the list
/// 203.0.112.0/21.
fn site(adjust: impl FnOnce(&mut Config)) -> Site {
    let mut site = Site::of("2026-01-01T10:00:00Z".parse().unwrap(), |config, _| {
        let rule = &mut config.policy.rules[0];
        let group = |per, slot, amount| Limit { per, slot, ..limit(amount, Unit::Connections) };
        rule.limits =
            vec![limit(3, Unit::Connections), group(Per::Prefix { v4: 24, v6: 56 }, 70, 5), group(Per::List, 71, 8)];
        rule.from = vec!["203.0.112.0/21".parse().unwrap()];
        rule.list = Some("crawler".to_owned());
        adjust(config);
    });
    for source in ["203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.114.1"] {
        for _ in 0..2 {
            site.kernel.packet("eth0", opening(source));
        }
    }
    site.pass(1);
    site
}

fn asked(site: &mut Site, prefix: &str) -> PrefixReport {
    let (prefix, moment): (IpNet, _) = (prefix.parse().unwrap(), site.moment());
    site.engine.check_prefix(prefix, None, moment).unwrap()()
}

#[test]
fn check_of_a_prefix_names_the_groups_around_and_within_and_what_they_block() {
    let mut site = site(|_| {});
    for (prefix, blocked, groups) in [
        ("203.0.113.0/24", Extent::All, &[("203.0.113.0/24", 5), ("list crawler", 7)][..]),
        ("203.0.113.128/25", Extent::All, &[("203.0.113.0/24", 5), ("list crawler", 7)]),
        ("203.0.114.0/24", Extent::None, &[("list crawler", 7), ("203.0.114.0/24", 2)]),
        ("203.0.112.0/22", Extent::Some, &[("203.0.113.0/24", 5), ("list crawler", 7), ("203.0.114.0/24", 2)]),
        ("198.51.100.0/24", Extent::None, &[]),
    ] {
        let report = asked(&mut site, prefix);
        let told: Vec<_> = report.groups.iter().map(|of| (&*of.group, of.used)).collect();
        assert_eq!((report.blocked, told), (blocked, groups.to_vec()), "{prefix}");
        let expected = if blocked == Extent::None { Outcome::Pass } else { Outcome::Drop };
        assert_eq!((report.verdict, report.sources.blocked), (expected, 0), "{prefix}: a group is no source");
        let words = ratelimit_view::check_prefix(&report);
        assert!(groups.iter().all(|(group, _)| words.contains(&format!("Group {group}: "))), "{words}");
    }
    // One more connection of the neighbour fills the list.
    site.kernel.packet("eth0", opening("203.0.114.9"));
    site.kernel.packet("eth0", opening("203.0.114.9"));
    for prefix in ["203.0.114.0/24", "203.0.115.0/24"] {
        assert_eq!(asked(&mut site, prefix).blocked, Extent::All, "{prefix}");
    }
    assert_eq!(asked(&mut site, "203.0.0.0/16").blocked, Extent::Some);
}

#[test]
fn a_group_blocks_nothing_in_dry_run_nor_of_who_is_allowed() {
    let mut dry_run = site(|config| config.policy.rules[0].mode = Mode::DryRun);
    assert_eq!(asked(&mut dry_run, "203.0.113.0/24").blocked, Extent::None);
    let mut allowed = site(|config| config.policy.access = vec![Access::exempt("203.0.113.64/26".parse().unwrap())]);
    assert_eq!(asked(&mut allowed, "203.0.113.64/27").blocked, Extent::None);
    assert_eq!(asked(&mut allowed, "203.0.113.0/26").blocked, Extent::All);
}
