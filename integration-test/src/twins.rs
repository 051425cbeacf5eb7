//! Random policies and packets, each in two forms: one for the program and one for the oracle.

use ipnet::IpNet;
use ratelimit_common::layout::Unit;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_policy::desired::{
    Access, Bans, Grant, Guard, Limit, Mode, Per, Policy, Ports, QuicPorts, Refuse, Rule, Unparsable, WindowForm,
};

use crate::oracle;
use crate::program::limit_over;
use crate::random::Random;

mod packet;

pub use packet::random_packet;

/// Ports that some rules protect.
const PORTS: [u16; 4] = [80, 443, 22, 8080];
/// Prefix of forged sources, none of which [`random_packet`] uses.
const FORGED: &str = "16.0.0.0/4";
const BUCKETS_NS: [u64; 5] = [SECOND_NS / 5, 2 * SECOND_NS, 10 * SECOND_NS, 60 * SECOND_NS, 600 * SECOND_NS];

/// Prefixes that contain some of the sources, nested or not.
const SOURCES: [&str; 7] = [
    "198.51.0.0/16",
    "198.51.100.0/24",
    "198.51.100.2/32",
    "203.0.113.1/32",
    "2001:db8::/32",
    "2001:db8:0:1::/64",
    "2001:db8:0:1::2/128",
];
const DESTINATIONS: [&str; 5] =
    ["192.0.2.0/24", "192.0.2.1/32", "192.0.2.2/32", "2001:db8:ff::/48", "2001:db8:ff::1/128"];
const ENDED_MAX: usize = 3;
const RULES: [&str; 5] = ["web", "api", "login", "premium", "rest"];

/// Returns a random policy in both forms.
pub fn random_policy(random: &mut Random, prefixes: (u8, u8), now: Nanos) -> (Policy, oracle::Policy) {
    let mut access = Vec::new();
    if random.one_in(3) {
        for prefix in SOURCES.map(net) {
            if random.one_in(4) {
                let grant = random.of(&[Grant::Exempt, Grant::Denied]);
                access.push(Access { prefix, grant, until: random_end(random, now) });
            }
        }
    }
    let mut names = RULES.to_vec();
    let mut rules = Vec::new();
    for _ in 0..=random.below(4) {
        let name = names.swap_remove(random.index(names.len()));
        let mut rule = random_rule(random, name, now);
        // The program skips at most this many ended rules, which the daemon removes.
        if rules.iter().filter(|(_, rule): &&(_, Rule)| rule.until.is_some()).count() == ENDED_MAX {
            rule.until = None;
        }
        rules.push((name, rule));
    }
    let twin_of_access = |access: &Access| {
        let grant = match access.grant {
            Grant::Exempt => oracle::Grant::Exempt,
            Grant::Denied => oracle::Grant::Denied,
        };
        (twin_of_net(&access.prefix), grant, access.until.map(|until| until.0))
    };
    let twin = oracle::Policy {
        ipv4_prefix: prefixes.0,
        ipv6_prefix: prefixes.1,
        access: access.iter().map(twin_of_access).collect(),
        rules: rules.iter().map(|(name, rule)| twin_of_rule(name, rule)).collect(),
    };
    let rules = rules.into_iter().map(|(_, rule)| rule).collect();
    (Policy { ipv4_prefix: prefixes.0, ipv6_prefix: prefixes.1, access, rules }, twin)
}

/// Groups of limits. None is as long as a source's prefix.
const GROUPS: [Per; 3] = [Per::Prefix { v4: 23, v6: 32 }, Per::Prefix { v4: 8, v6: 47 }, Per::List];

fn random_rule(random: &mut Random, name: &str, now: Nanos) -> Rule {
    let mut limits = random_limits(random, name, 1, 4);
    // The first limit is for each source, so that new sources are recognised.
    for limit in limits.iter_mut().skip(1) {
        if !random.one_in(3) {
            continue;
        }
        let place = random.index(GROUPS.len());
        let number = u32::try_from(place + 1).expect("a few");
        *limit = Limit { per: GROUPS[place], slot: limit.slot | number << 16, ..*limit };
    }
    let (tcp, udp) = (some_ports(random), some_ports(random));
    let ports = Ports { tcp, udp, other_protocols: random.one_in(4) };
    let (from, to) = (some_prefixes(random, &SOURCES), some_prefixes(random, &DESTINATIONS));
    let bans = random.one_in(4).then(|| Bans {
        steps_ns: (0..=random.below(4)).map(|_| 1 + random.below(200 * SECOND_NS)).collect(),
        forget_ns: random.below(600 * SECOND_NS),
        needs_proof: random.one_in(4),
    });
    Rule {
        from,
        to,
        mode: if random.one_in(8) { Mode::DryRun } else { Mode::Enforce },
        // The guard's refusals need a socket, or a source with too many of them. No frame here has one.
        guard: Guard::Off,
        refuse: if random.one_in(3) { Refuse::All } else { Refuse::Excess },
        until: random_end(random, now),
        bans,
        shadow_limits: random_limits(random, name, 0, 3)
            .into_iter()
            .map(|limit| Limit { slot: limit.slot | 1 << 28, ..limit })
            .collect(),
        quic_ports: random.of(&[QuicPorts::DEFAULT, QuicPorts::NONE]),
        unparsable: random.of(&[Unparsable::Drop, Unparsable::Count]),
        ..Rule::new(name.into(), ports, limits)
    }
}

fn random_limits(random: &mut Random, rule: &str, at_least: u64, below: u64) -> Vec<Limit> {
    let mut limits: Vec<Limit> = Vec::new();
    for _ in 0..at_least + random.below(below) {
        let unit = random.of(&[Unit::Connections, Unit::Packets, Unit::Bytes, Unit::Requests, Unit::Requests]);
        let form = random.of(&[
            WindowForm::Strict,
            WindowForm::Strict,
            WindowForm::Lenient,
            WindowForm::Lenient,
            WindowForm::Fixed,
            WindowForm::Gcra,
        ]);
        let amount = match unit {
            Unit::Connections | Unit::Requests => random.below(12),
            Unit::Packets => random.below(25),
            Unit::Bytes => random.below(3000),
        };
        let buckets = match form {
            WindowForm::Strict | WindowForm::Lenient => u8::try_from(5 + random.below(3)).expect("a few"),
            WindowForm::Fixed | WindowForm::Gcra => 1,
        };
        let limit = limit_over(amount, unit, form, buckets, random.of(&BUCKETS_NS));
        let rule = u32::try_from(RULES.iter().position(|name| *name == rule).expect("one of them")).expect("a few");
        limits.push(Limit {
            burst: random.one_in(4).then(|| random.below(amount + 1)),
            slot: rule << 20 | u32::from(form == WindowForm::Gcra) << 19 | limit.slot,
            ..limit
        });
    }
    // Two limits of one rule share a window only where configurations allow it; program.rs tests that case.
    limits.sort_by_key(|limit| limit.slot);
    limits.dedup_by_key(|limit| limit.slot);
    limits
}

fn random_end(random: &mut Random, now: Nanos) -> Option<Nanos> {
    random.one_in(4).then(|| Nanos(now.0 + random.below(200 * SECOND_NS)))
}

fn net(text: &str) -> IpNet {
    text.parse().expect("a prefix")
}

fn some_ports(random: &mut Random) -> Vec<(u16, u16)> {
    let mut ranges: Vec<_> = PORTS.into_iter().filter(|_| !random.one_in(3)).map(|port| (port, port)).collect();
    ranges.sort_unstable();
    ranges
}

fn some_prefixes(random: &mut Random, of: &[&str]) -> Vec<IpNet> {
    let is_for_all = !random.one_in(3);
    of.iter().map(|text| net(text)).filter(|_| !is_for_all && random.one_in(2)).collect()
}

fn twin_of_net(net: &IpNet) -> oracle::Prefix {
    (net.addr(), net.prefix_len())
}

fn twin_of_rule(name: &'static str, rule: &Rule) -> oracle::Rule {
    let ports = |ranges: &[(u16, u16)]| ranges.iter().map(|(first, _)| *first).collect();
    oracle::Rule {
        name,
        from: rule.from.iter().map(twin_of_net).collect(),
        to: rule.to.iter().map(twin_of_net).collect(),
        tcp: ports(&rule.ports.tcp),
        udp: ports(&rule.ports.udp),
        other_protocols: rule.ports.other_protocols,
        limits: rule.limits.iter().map(twin_of).collect(),
        shadows: rule.shadow_limits.iter().map(|limit| twin_of_unit(limit.unit)).collect(),
        refuse: match rule.refuse {
            Refuse::Excess => oracle::Refuse::Excess,
            Refuse::All => oracle::Refuse::All,
        },
        guard: match rule.guard {
            Guard::Auto => oracle::Guard::Auto,
            Guard::Off => oracle::Guard::Off,
        },
        mode: match rule.mode {
            Mode::Enforce => oracle::Mode::Enforce,
            Mode::DryRun => oracle::Mode::DryRun,
        },
        until: rule.until.map(|until| until.0),
        bans: rule.bans.as_ref().map(|bans| oracle::Bans {
            steps: bans.steps_ns.clone(),
            forget: bans.forget_ns,
            needs_proof: bans.needs_proof,
        }),
        quic: rule.quic_ports.iter().collect(),
        counts_unparsable: rule.unparsable == Unparsable::Count,
    }
}

fn twin_of(limit: &Limit) -> oracle::Limit {
    oracle::Limit {
        amount: limit.amount,
        unit: twin_of_unit(limit.unit),
        bucket: limit.bucket_ns,
        buckets: limit.buckets.into(),
        form: match limit.form {
            WindowForm::Strict => oracle::Form::Strict,
            WindowForm::Lenient => oracle::Form::Lenient,
            WindowForm::Fixed => oracle::Form::Fixed,
            WindowForm::Gcra => oracle::Form::Leaky,
        },
        burst: limit.burst,
        per: match limit.per {
            Per::Source => oracle::Per::Client,
            Per::Prefix { v4, v6 } => oracle::Per::Prefix(v4, v6),
            Per::List => oracle::Per::Rule,
        },
    }
}

const fn twin_of_unit(unit: Unit) -> oracle::Unit {
    match unit {
        Unit::Connections => oracle::Unit::Connections,
        Unit::Packets => oracle::Unit::Packets,
        Unit::Bytes => oracle::Unit::Bytes,
        Unit::Requests => oracle::Unit::Requests,
    }
}

/// Returns a random policy with lasting refusals that are cached. Each client is judged as a whole, and rules drop
/// traffic over a limit and nothing else.
pub fn random_policy_to_cache_drops(random: &mut Random, prefixes: (u8, u8), now: Nanos) -> (Policy, oracle::Policy) {
    let (mut policy, mut twin) = random_policy(random, prefixes, now);
    policy.access.clear();
    twin.access.clear();
    for (rule, twin) in policy.rules.iter_mut().zip(&mut twin.rules) {
        (rule.from, rule.to, rule.shadow_limits) = (Vec::new(), Vec::new(), Vec::new());
        (rule.mode, rule.refuse) = (Mode::Enforce, Refuse::Excess);
        // Most have a single limit and no bans.
        if !random.one_in(4) {
            rule.limits.truncate(1);
            rule.bans = None;
        }
        *twin = twin_of_rule(twin.name, rule);
    }
    (policy, twin)
}

/// Returns a random policy for overload, under which the source that each packet is charged to stays known. Each rule
/// has one limit, so that a source is remembered as a whole or not at all. Names and windows are new. The first rule is
/// for forged sources.
pub fn random_policy_to_overload(
    random: &mut Random,
    prefixes: (u8, u8),
    now: Nanos,
    number: u32,
) -> (Policy, oracle::Policy) {
    let (mut policy, mut twin) = random_policy(random, prefixes, now);
    for (rule, twin) in policy.rules.iter_mut().zip(&mut twin.rules) {
        let name: &'static str = format!("{} {number}", rule.name).leak();
        name.clone_into(&mut rule.name);
        rule.shadow_limits.clear();
        rule.limits.truncate(1);
        rule.limits[0].slot |= number << 23;
        *twin = twin_of_rule(name, rule);
    }
    let ports = Ports { tcp: vec![(80, 80)], udp: Vec::new(), other_protocols: false };
    let limit = limit_over(1000, Unit::Connections, WindowForm::Strict, 5, 60 * SECOND_NS);
    let forged = Rule { from: vec![net(FORGED)], ..Rule::new("forged".into(), ports, vec![limit]) };
    twin.rules.insert(0, twin_of_rule("forged", &forged));
    policy.rules.insert(0, forged);
    (policy, twin)
}
