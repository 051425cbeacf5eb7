//! From a policy to the words that packets are judged by. Pure: no map, no kernel.

use ipnet::IpNet;
use ratelimit_common::layout::{
    CLASS_NONE, Config, EXEMPT_GENERATION_BITS, EXEMPT_MAX, ExemptKeyV4, ExemptKeyV6, INTERFACES_MAX, LIMITS_MAX,
    Limit, PortTable, RULES_MAX, Rule, Unit,
};
use ratelimit_common::source::{Family, ipv4_mask, ipv6_mask};

use crate::desired::{self, Grant, Mode, Policy, Ports, Refuse};

/// Why a policy does not fit the maps.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EncodeError {
    #[error("{0} rules; there is room for {RULES_MAX}")]
    Rules(usize),
    #[error("rule {0}: {1} limits; there is room for 1 to {LIMITS_MAX}")]
    Limits(String, usize),
    #[error("rule {0}: two limits would count in one window, and every packet twice")]
    SharedWindow(String),
    #[error("{0} exempt prefixes of one family; there is room for {EXEMPT_MAX}")]
    Exempt(usize),
}

/// The configuration of one generation.
pub(super) fn config(
    policy: &Policy,
    interfaces: [u32; INTERFACES_MAX],
    wall_offset_ns: u64,
) -> Result<Config, EncodeError> {
    if policy.rules.len() > RULES_MAX {
        return Err(EncodeError::Rules(policy.rules.len()));
    }
    let (exempt_v4, exempt_v6) = (exempt_v4(policy, 0).count(), exempt_v6(policy, 0).count());
    for count in [exempt_v4, exempt_v6] {
        if count > EXEMPT_MAX as usize {
            return Err(EncodeError::Exempt(count));
        }
    }
    let mut rules = [Rule::default(); RULES_MAX];
    let mut portless_class = CLASS_NONE;
    let mut other_class = CLASS_NONE;
    for (index, wanted) in policy.rules.iter().enumerate() {
        rules[index] = rule(wanted)?;
        // The first rule that has any packets has those without a port too.
        if portless_class == CLASS_NONE && wanted.ports != Ports::default() {
            portless_class = class(index);
        }
        if wanted.ports.other_protocols && other_class == CLASS_NONE {
            other_class = class(index);
        }
    }
    Ok(Config {
        wall_offset_ns,
        ipv6_mask: ipv6_mask(policy.ipv6_prefix),
        ipv4_mask: ipv4_mask(policy.ipv4_prefix),
        interfaces,
        exempt_v4: u32::try_from(exempt_v4).unwrap_or(u32::MAX),
        exempt_v6: u32::try_from(exempt_v6).unwrap_or(u32::MAX),
        ipv6_wide: u8::from(Family::of_ipv6_prefix(policy.ipv6_prefix) == Family::V6Wide),
        portless_class,
        other_class,
        reserved: 0,
        rules,
    })
}

/// The class of each port. // 128 KiB: keep it boxed
pub(super) fn ports(policy: &Policy) -> Box<PortTable> {
    let mut table = Box::new(PortTable { tcp: [CLASS_NONE; 65_536], udp: [CLASS_NONE; 65_536] });
    for (index, rule) in policy.rules.iter().enumerate() {
        for (ranges, classes) in [(&rule.ports.tcp, &mut table.tcp), (&rule.ports.udp, &mut table.udp)] {
            for &(first, last) in ranges {
                for entry in &mut classes[usize::from(first)..=usize::from(last)] {
                    // Of two rules, the first has the port.
                    if *entry == CLASS_NONE {
                        *entry = class(index);
                    }
                }
            }
        }
    }
    table
}

/// The exempt IPv4 prefixes as keys of a trie: length in bits, and data.
pub(super) fn exempt_v4(policy: &Policy, generation: u32) -> impl Iterator<Item = (u32, ExemptKeyV4)> {
    policy.prefixes(Grant::Exempt).filter_map(move |prefix| match prefix {
        IpNet::V4(net) => {
            let bits = EXEMPT_GENERATION_BITS + u32::from(net.prefix_len());
            Some((bits, [generation, u32::from_ne_bytes(net.network().octets())]))
        }
        IpNet::V6(_) => None,
    })
}

/// The exempt IPv6 prefixes likewise.
pub(super) fn exempt_v6(policy: &Policy, generation: u32) -> impl Iterator<Item = (u32, ExemptKeyV6)> {
    policy.prefixes(Grant::Exempt).filter_map(move |prefix| match prefix {
        IpNet::V4(_) => None,
        IpNet::V6(net) => {
            let mut data = [generation; 5];
            for (word, bytes) in data[1..].iter_mut().zip(net.network().octets().as_chunks().0) {
                *word = u32::from_ne_bytes(*bytes);
            }
            Some((EXEMPT_GENERATION_BITS + u32::from(net.prefix_len()), data))
        }
    })
}

fn rule(rule: &desired::Rule) -> Result<Rule, EncodeError> {
    let count = rule.limits.len();
    if count == 0 || count > LIMITS_MAX {
        return Err(EncodeError::Limits(rule.name.clone(), count));
    }
    let mut slots: Vec<_> = rule.limits.iter().map(|limit| limit.slot).collect();
    slots.sort_unstable();
    slots.dedup();
    if slots.len() != count {
        return Err(EncodeError::SharedWindow(rule.name.clone()));
    }
    let mut limits = [Limit::default(); LIMITS_MAX];
    for (encoded, limit) in limits.iter_mut().zip(&rule.limits) {
        *encoded = limit.layout();
    }
    Ok(Rule {
        limits,
        limits_len: u8::try_from(count).unwrap_or(u8::MAX),
        dry_run: u8::from(rule.mode == Mode::DryRun),
        refuse_all: u8::from(rule.refuse == Refuse::All),
        counts_connections: u8::from(rule.limits.iter().any(|limit| limit.unit == Unit::Connections)),
        reserved: [0; 4],
    })
}

fn class(rule: usize) -> u8 {
    u8::try_from(rule + 1).unwrap_or(CLASS_NONE)
}

#[cfg(test)]
mod tests {
    use ratelimit_common::time::SECOND_NS;

    use super::*;
    use crate::desired::{Access, WindowForm};

    fn policy() -> Policy {
        let limit = desired::Limit {
            amount: 10,
            unit: Unit::Connections,
            window_ns: 300 * SECOND_NS,
            buckets: 5,
            bucket_ns: 60 * SECOND_NS,
            form: WindowForm::Strict,
            burst: None,
            slot: 7,
        };
        Policy {
            ipv4_prefix: 24,
            ipv6_prefix: 64,
            access: ["192.0.2.0/24", "2001:db8::/32"].map(|prefix| Access::exempt(prefix.parse().unwrap())).to_vec(),
            rules: vec![desired::Rule {
                name: "default".into(),
                mode: Mode::Enforce,
                refuse: Refuse::Excess,
                from: Vec::new(),
                to: Vec::new(),
                shadow_limits: Vec::new(),
                bans: None,
                under_attack_ok: false,
                until: None,
                ports: Ports { tcp: vec![(80, 80), (8000, 8002)], udp: vec![(65_535, 65_535)], other_protocols: false },
                limits: vec![limit],
            }],
        }
    }

    #[test]
    fn a_range_of_ports_ends_with_its_last_port() {
        let table = ports(&policy());
        let protected: Vec<_> = (0..65_536).filter(|&port| table.tcp[port] != CLASS_NONE).collect();
        assert_eq!(protected, [80, 8000, 8001, 8002]);
        assert_eq!(table.tcp[80], 1);
        assert_eq!((table.udp[65_535], table.udp[65_534]), (1, 0));
    }

    #[test]
    fn a_key_says_its_generation_before_its_address() {
        assert_eq!(exempt_v4(&policy(), 1).collect::<Vec<_>>(), [(32 + 24, [1, u32::from_ne_bytes([192, 0, 2, 0])])]);
        let (len, data) = exempt_v6(&policy(), 1).next().unwrap();
        assert_eq!((len, &data[..2]), (32 + 32, [1, u32::from_ne_bytes([0x20, 1, 0x0d, 0xb8])].as_slice()));
    }

    #[test]
    fn more_than_there_is_room_for_is_refused_by_name() {
        let mut crowded = policy();
        crowded.rules[0].limits = vec![crowded.rules[0].limits[0]; LIMITS_MAX + 1];
        assert_eq!(
            config(&crowded, [0; INTERFACES_MAX], 0),
            Err(EncodeError::Limits("default".into(), LIMITS_MAX + 1))
        );
    }

    #[test]
    fn two_limits_in_one_window_are_refused() {
        let mut shared = policy();
        shared.rules[0].limits = vec![shared.rules[0].limits[0]; 2];
        assert_eq!(config(&shared, [0; INTERFACES_MAX], 0), Err(EncodeError::SharedWindow("default".into())));
    }

    #[test]
    fn what_has_no_port_has_a_class_only_where_a_rule_asks_for_it() {
        let encoded = config(&policy(), [0; INTERFACES_MAX], 5).unwrap();
        assert_eq!((encoded.portless_class, encoded.other_class, encoded.wall_offset_ns), (1, 0, 5));
        let mut none = policy();
        none.rules[0].ports = Ports::default();
        assert_eq!(config(&none, [0; INTERFACES_MAX], 5).unwrap().portless_class, 0);
        let mut all = policy();
        all.rules[0].ports.other_protocols = true;
        assert_eq!(config(&all, [0; INTERFACES_MAX], 5).unwrap().other_class, 1);
    }
}
