//! Bans that grow to the prefix, over a fake datapath whose clock the test owns.

use std::net::Ipv4Addr;

use ratelimit_common::layout::Unit;
use ratelimit_common::time::SECOND_NS;
use ratelimit_common::verdict::Reason;
use ratelimit_common::verification::ConnectionState;
use ratelimit_datapath::fake::Sender;
use ratelimit_policy::config::network::Target;
use ratelimit_policy::desired::{Access, Bans, Grant};

use super::bans::Site;
use super::lists::root;
use super::*;
use crate::fleet::Reach;

/// One packet a source, bans of one and of ten minutes, and three of them deny a prefix.
fn site(adjust: impl FnOnce(&mut Config)) -> Site {
    Site::of("2026-01-01T10:00:00Z".parse().unwrap(), |config, _| {
        let rule = &mut config.policy.rules[0];
        rule.limits[0].unit = Unit::Packets;
        let steps_ns = vec![60 * SECOND_NS, 600 * SECOND_NS];
        rule.bans = Some(Bans { steps_ns, forget_ns: 3_600 * SECOND_NS, needs_proof: true });
        rule.block_prefix_after = Some(3);
        adjust(config);
    })
}

/// A segment of an established connection to port 80.
fn segment(source: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([8, 0, 0x45, 0, 0, 44, 0, 0, 0, 0, 64, 6, 0, 0]);
    frame.extend(source.octets());
    frame.extend([203, 0, 113, 1, 0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    frame.extend(*b"abcd");
    frame
}

fn judged(site: &Site, source: &str, state: ConnectionState) -> Reason {
    let sender = Sender { connection_state: state, peer: None };
    site.kernel.frame("eth0", &segment(source.parse().unwrap()), sender).unwrap().reason
}

/// As many packets as get it banned.
fn exceed(site: &Site, source: &str) {
    for _ in 0..2 {
        judged(site, source, ConnectionState::Established);
    }
}

fn denied(site: &Site) -> Vec<String> {
    let policy = &site.engine.enforced.desired.policy;
    policy.prefixes(Grant::Denied).map(|prefix| prefix.to_string()).collect()
}

#[test]
fn so_many_banned_sources_deny_their_prefix_for_the_rules_step_and_no_other() {
    let mut site = site(|_| {});
    for source in ["198.51.100.1", "198.51.100.2", "198.51.101.1", "198.51.101.2"] {
        exceed(&site, source);
    }
    site.pass(2);
    assert_eq!(denied(&site), [""; 0], "two are too few");
    exceed(&site, "198.51.100.200");
    let said = site.pass(2);
    assert_eq!(denied(&site), ["198.51.100.0/24"]);
    let line = said.iter().find(|line| line.starts_with("198.51.100.0/24 denied until 2026-01-01 10:01:0"));
    let line = line.unwrap_or_else(|| panic!("{said:#?}"));
    assert!(line.ends_with("by ratelimitd for rule default: 3 of its sources were banned by rule default"), "{line}");
    assert_eq!(judged(&site, "198.51.100.77", ConnectionState::Established), Reason::Denied);
    assert_eq!(judged(&site, "198.51.101.77", ConnectionState::Established), Reason::WithinLimit);
    // It is over, and nothing has begun since: the bans that it was for do not deny it again.
    site.pass(70);
    assert_eq!(denied(&site), [""; 0]);
    exceed(&site, "198.51.101.9");
    site.pass(2);
    assert_eq!(denied(&site), ["198.51.101.0/24"], "three of the neighbour's, within the hour");
    // One more of it is the second time in a row, which is longer.
    exceed(&site, "198.51.100.5");
    site.pass(2);
    assert_eq!(denied(&site), ["198.51.100.0/24", "198.51.101.0/24"]);
    site.pass(300);
    assert_eq!(denied(&site), ["198.51.100.0/24"]);
}

#[test]
fn one_unblock_undoes_it() {
    let mut site = site(|_| {});
    (1..=3).for_each(|host| exceed(&site, &format!("198.51.100.{host}")));
    site.pass(2);
    assert_eq!(denied(&site), ["198.51.100.0/24"]);
    let moment = site.moment();
    let target = Target::parse("198.51.100.0/24").unwrap();
    let report = site.engine.unblock(Some(target), Reach::Host, &root(), moment).unwrap();
    assert_eq!(report.removed_count, 4, "the denial and the three bans");
    site.pass(5);
    assert_eq!(denied(&site), [""; 0]);
    assert_eq!(judged(&site, "198.51.100.2", ConnectionState::Established), Reason::WithinLimit);
}

#[test]
fn a_prefix_that_holds_or_lies_in_what_is_allowed_is_never_denied() {
    for allowed in ["198.51.100.77/32", "198.51.100.0/24", "198.51.0.0/16"] {
        let mut site = site(|config| config.policy.access = vec![Access::exempt(allowed.parse().unwrap())]);
        // Of a wider prefix none is banned.
        (1..=5).for_each(|host| exceed(&site, &format!("198.51.100.{host}")));
        (1..=3).for_each(|host| exceed(&site, &format!("192.0.2.{host}")));
        site.pass(2);
        assert_eq!(denied(&site), ["192.0.2.0/24"], "{allowed}");
    }
}

#[test]
fn what_is_forged_denies_no_prefix() {
    let mut site = site(|_| {});
    for host in 1..=9 {
        for _ in 0..5 {
            judged(&site, &format!("198.51.100.{host}"), ConnectionState::Unknown);
        }
    }
    site.pass(2);
    assert_eq!(denied(&site), [""; 0]);
}
