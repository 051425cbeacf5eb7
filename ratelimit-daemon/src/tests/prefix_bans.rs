//! Tests of bans that grow to a prefix, over a fake datapath with a clock that the test controls.

use std::net::Ipv4Addr;

use ratelimit_common::layout::Unit;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_common::verdict::Reason;
use ratelimit_common::verification::ConnectionState;
use ratelimit_datapath::fake::Sender;
use ratelimit_policy::config::network::Target;
use ratelimit_policy::desired::{Access, Bans, Grant};

use super::bans::Site;
use super::lists::root;
use super::*;
use crate::fleet::Reach;
use crate::prefix_bans::PrefixBans;
use crate::start::{Record, Unfinished, Version};
use ipnet::IpNet;
use ratelimit_control::proto::GrantRequest;
use ratelimit_datapath::Connection;

/// Creates an engine with one packet per source, bans of one and of ten minutes, and prefix denials after three bans.
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

/// Returns a segment of an established connection to port 80.
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

/// Sends as many packets as it takes to get the source banned.
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
fn enough_banned_sources_deny_their_prefix_for_a_step_and_no_other() {
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
    // The denial is over and no ban has begun since. The bans that caused it do not deny the prefix again.
    site.pass(70);
    assert_eq!(denied(&site), [""; 0]);
    exceed(&site, "198.51.101.9");
    site.pass(2);
    assert_eq!(denied(&site), ["198.51.101.0/24"], "three of the neighbour's, within the hour");
    // One more ban causes the second denial in a row, which is longer.
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
    (11..=13).for_each(|host| exceed(&site, &format!("198.51.100.{host}")));
    site.pass(2);
    assert_eq!(denied(&site), ["198.51.100.0/24"], "it is not immune either");
}

#[test]
fn a_prefix_that_holds_or_lies_in_what_is_allowed_is_never_denied() {
    for allowed in ["198.51.100.77/32", "198.51.100.0/24", "198.51.0.0/16"] {
        let mut site = site(|config| config.policy.access = vec![Access::exempt(allowed.parse().unwrap())]);
        // In a wider allowed prefix, no source is banned.
        (1..=5).for_each(|host| exceed(&site, &format!("198.51.100.{host}")));
        (1..=3).for_each(|host| exceed(&site, &format!("192.0.2.{host}")));
        site.pass(2);
        assert_eq!(denied(&site), ["192.0.2.0/24"], "{allowed}");
    }
}

#[test]
fn forged_traffic_denies_no_prefix() {
    let mut site = site(|_| {});
    for host in 1..=9 {
        for _ in 0..5 {
            judged(&site, &format!("198.51.100.{host}"), ConnectionState::Unknown);
        }
    }
    site.pass(2);
    assert_eq!(denied(&site), [""; 0]);
}

/// Simulates a daemon that starts with the same maps and the same ledger.
fn restart(site: &mut Site) {
    site.engine.watched.prefix_bans = PrefixBans::default();
}

fn end_of(site: &Site, prefix: &str) -> Option<Nanos> {
    let prefix = prefix.parse().unwrap();
    let entries = &mut site.engine.overrides.grants.ledger.entries();
    entries.find(|entry| entry.prefix == prefix).and_then(|entry| entry.until)
}

#[test]
fn a_restart_neither_extends_nor_repeats_a_denial_and_keeps_its_step() {
    let mut site = site(|_| {});
    (1..=3).for_each(|host| exceed(&site, &format!("198.51.100.{host}")));
    site.pass(2);
    let end = end_of(&site, "198.51.100.0/24");
    assert!(end.is_some());
    site.pass(30);
    restart(&mut site);
    assert_eq!(site.pass(5), [""; 0]);
    assert_eq!(end_of(&site, "198.51.100.0/24"), end);
    // The denial ends, and one more ban causes the second in a row.
    site.pass(40);
    assert_eq!(denied(&site), [""; 0]);
    exceed(&site, "198.51.100.9");
    site.pass(2);
    site.pass(300);
    assert_eq!(denied(&site), ["198.51.100.0/24"], "for ten minutes");
    // That denial ends too. The bans that caused it are still in the maps, and deny nothing after a restart.
    site.pass(310);
    assert_eq!(denied(&site), [""; 0]);
    restart(&mut site);
    site.pass(3);
    assert_eq!(denied(&site), [""; 0]);
    exceed(&site, "198.51.100.10");
    site.pass(2);
    assert_eq!(denied(&site), ["198.51.100.0/24"], "what began since");
}

#[test]
fn bans_by_a_configuration_on_trial_deny_no_prefix() {
    let mut site = site(|_| {});
    let (before, policy) = (site.engine.enforced.config.clone(), site.engine.enforced.desired.policy.clone());
    let until = Nanos(site.engine.datapath.now().unwrap().0 + 600 * SECOND_NS);
    site.engine.datapath.apply_until(&policy, until).unwrap();
    let text = |path| Version { path: Path::new(path), text: "", lists: &[] };
    let record = Record::new(text("new.toml"), text("kept.toml"), site.moment().wall);
    let unfinished = Unfinished { before, before_path: "kept.toml".into(), record };
    let moment = site.moment();
    assert!(site.engine.resume(unfinished, moment).unwrap());
    (1..=3).for_each(|host| exceed(&site, &format!("198.51.100.{host}")));
    site.pass(2);
    assert!(site.engine.trials.pending.is_some());
    assert_eq!(denied(&site), [""; 0]);
    site.engine.trials.pending = None;
    site.pass(3);
    assert_eq!(denied(&site), [""; 0], "banned by what was tried");
    exceed(&site, "198.51.100.4");
    site.pass(2);
    assert_eq!(denied(&site), ["198.51.100.0/24"]);
}

#[test]
fn many_prefixes_are_denied_a_few_hundred_at_a_time_by_one_change_each() {
    let mut site = site(|config| config.max_sources = 10_000);
    for prefix in 0..300_u32 {
        (1..=3).for_each(|host| exceed(&site, &Ipv4Addr::from_bits(0x0a00_0000 | prefix << 8 | host).to_string()));
    }
    let applied = |site: &Site| site.kernel.calls().iter().filter(|call| *call == "apply").count();
    let before = applied(&site);
    site.pass(1);
    assert_eq!((denied(&site).len(), applied(&site) - before), (256, 1));
    site.pass(1);
    assert_eq!((denied(&site).len(), applied(&site) - before), (300, 2));
}

#[test]
fn a_rule_that_ends_connections_ends_those_of_a_prefix_that_it_denies() {
    for (block_kill, left) in [(true, 2), (false, 4)] {
        let mut site = site(|config| config.policy.rules[0].block_kill = block_kill);
        let to = |remote: &str, port| Connection::fake(remote.parse().unwrap(), [203, 0, 113, 1].into(), port);
        site.kernel.connect([
            to("198.51.100.77", 80),
            to("198.51.100.78", 443),
            to("198.51.100.79", 22),
            to("198.51.101.77", 80),
        ]);
        (1..=3).for_each(|host| exceed(&site, &format!("198.51.100.{host}")));
        site.pass(2);
        let moment = site.moment();
        site.engine.close_due(moment);
        assert_eq!(site.kernel.connections(), left, "those to other ports and of neighbours stay");
    }
}

#[test]
fn a_denial_that_ends_connections_says_what_became_of_them() {
    let mut site = site(|_| {});
    let of = |prefix: [u8; 3], count: u8| {
        (0..count).map(move |last| {
            Connection::fake([prefix[0], prefix[1], prefix[2], last].into(), [203, 0, 113, 1].into(), 80)
        })
    };
    for third in 1..=5 {
        site.kernel.connect(of([10, 1, third], 250));
    }
    site.kernel.connect(of([10, 2, 0], 10));
    let moment = site.moment();
    let mut kill = |prefix: &str| {
        let request = GrantRequest { prefix: prefix.into(), kill: true, ..GrantRequest::default() };
        let target = Target::parse(prefix).unwrap();
        let report = site.engine.grant(Grant::Denied, target, &request, &root(), moment).unwrap();
        report.notes.into_iter().find(|note| note.contains("connections")).expect("it says")
    };
    assert_eq!(kill("10.3.0.0/24"), "it has no open connections to ports that a rule enforces");
    assert_eq!(kill("10.1.0.0/20"), "ended 1000 of its connections; 250 more follow, 1000 a second in all");
    assert_eq!(kill("10.2.0.0/24"), "ended 0 of its connections; 10 more follow, 1000 a second in all");
    let later = |seconds| Moment { uptime: moment.uptime + Duration::from_secs(seconds), ..moment };
    site.engine.close_due(later(1));
    assert_eq!(site.kernel.connections(), 0);
}

#[test]
fn an_ended_or_lifted_ban_closes_no_connection_unless_denied_meanwhile() {
    let client: IpNet = "198.51.100.7/32".parse().unwrap();
    for (lift, seconds, deny, left) in
        [(false, 1, false, 0), (false, 61, false, 1), (true, 1, false, 1), (false, 1, true, 0)]
    {
        let mut site = site(|config| config.policy.rules[0].block_kill = true);
        exceed(&site, "198.51.100.7");
        let until = site.engine.datapath.now().unwrap().0 + 60 * SECOND_NS;
        let moment = site.moment();
        site.engine.kill_client(client, 0, Nanos(until), moment.uptime);
        let target = Target::parse("198.51.100.7").unwrap();
        if lift {
            site.engine.unblock(Some(target), Reach::Host, &root(), moment).unwrap();
        }
        if deny {
            let request = GrantRequest { prefix: "198.51.100.7".into(), ..GrantRequest::default() };
            site.engine.grant(Grant::Denied, target, &request, &root(), moment).unwrap();
        }
        site.kernel.connect([Connection::fake(client.addr(), [203, 0, 113, 1].into(), 80)]);
        site.kernel.advance(seconds * SECOND_NS);
        site.engine.close_due(moment);
        assert_eq!(site.kernel.connections(), left, "lifted: {lift}, after {seconds} s, denied: {deny}");
    }
}
