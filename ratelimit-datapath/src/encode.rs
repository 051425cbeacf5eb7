//! Conversion of a policy into the words that packets are judged by. Pure: no map, no kernel.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use ratelimit_common::access::{PERMANENT, STEPS, Step};
use ratelimit_common::admission;
use ratelimit_common::admission::known_first;
use ratelimit_common::ban;
use ratelimit_common::hash::HashKey;
use ratelimit_common::hold;
use ratelimit_common::layout::{
    BAN_STEPS_MAX, CLASSES_MAX, Config, GENERATION_BITS, Group, INTERFACES_MAX, LIMITS_MAX, Limit, PREFIXES_CAPACITY,
    PortTable, Prefix, PrefixKeyV4, PrefixKeyV6, RULES_MAX, Rule, RuleSet, SHADOWS_MAX, TARGETS_MAX, Unit, refuses,
};
use ratelimit_common::source::{Family, IPV6_NARROW_PREFIX_MAX, ipv4_mask, ipv6_mask};
use ratelimit_common::verification::{self, EvidenceNeeds};

use ratelimit_policy::desired::{self, Access, Mode, Per, Policy, Ports, Refuse, RefuseWith, Unparsable};

/// Failure of a policy to fit into the maps.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Number of rules in the policy.
    #[error("{0} rules; there is room for {RULES_MAX}")]
    Rules(usize),
    /// Rule, and its number of limits.
    #[error("rule {0}: {1} limits; there is room for 1 to {LIMITS_MAX}")]
    Limits(String, usize),
    /// Rule, and its number of shadow limits.
    #[error("rule {0}: {1} shadow limits; there is room for {SHADOWS_MAX}")]
    Shadows(String, usize),
    /// Rule with two limits for one window.
    #[error("rule {0}: two limits would share one window, and count every packet twice")]
    SharedWindow(String),
    /// Rule with a group of IPv6 sources by a longer prefix.
    #[error("rule {0}: a group of IPv6 sources is counted by /{IPV6_NARROW_PREFIX_MAX} or a shorter prefix")]
    NarrowGroup(String),
    /// Rule, and its number of ban lengths.
    #[error("rule {0}: {1} ban lengths; there is room for {BAN_STEPS_MAX}")]
    BanSteps(String, usize),
    /// The rules distinguish too many sets of ports.
    #[error("the ports of the rules overlap in more than {} ways; give fewer rules ports of their own", CLASSES_MAX - 1)]
    Classes,
    /// Number of source prefixes of one family.
    #[error("{0} source prefixes of one family; there is room for {PREFIXES_CAPACITY}")]
    Prefixes(usize),
    /// Number of destination prefixes of one family.
    #[error("{0} destination prefixes of one family; there is room for {TARGETS_MAX}")]
    Targets(usize),
}

/// A policy as the packet path reads it, without values that depend on the state that it is written to.
#[derive(Debug)]
pub struct Encoded {
    /// Configuration without interfaces, clock, rows and generations.
    pub config: Config,
    /// Class of each port. Boxed because the table has 128 KiB.
    pub ports: Box<PortTable>,
    /// Rules and access of each source prefix.
    pub prefixes: BTreeMap<IpNet, Prefix>,
    /// Rules that name each destination prefix.
    pub targets: BTreeMap<IpNet, RuleSet>,
}

/// Encodes a policy. Fails if the policy exceeds a capacity of the maps.
pub fn encode(policy: &Policy) -> Result<Encoded, EncodeError> {
    if policy.rules.len() > RULES_MAX {
        return Err(EncodeError::Rules(policy.rules.len()));
    }
    let mut rules = [Rule::default(); RULES_MAX];
    for (encoded, wanted) in rules.iter_mut().zip(&policy.rules) {
        *encoded = rule(wanted)?;
    }
    let (ports, class_rules) = ports(policy)?;
    let (prefixes, targets) = (prefixes(policy), targets(policy));
    let of_family = |is_v4: bool| prefixes.keys().filter(|net| matches!(net, IpNet::V4(_)) == is_v4).count();
    let (prefixes_v4, prefixes_v6) = (of_family(true), of_family(false));
    if prefixes_v4.max(prefixes_v6) > PREFIXES_CAPACITY as usize {
        return Err(EncodeError::Prefixes(prefixes_v4.max(prefixes_v6)));
    }
    let targets_v4 = targets.keys().filter(|net| matches!(net, IpNet::V4(_))).count();
    let targets_most = targets_v4.max(targets.len() - targets_v4);
    if targets_most > TARGETS_MAX as usize {
        return Err(EncodeError::Targets(targets_most));
    }
    let config = Config {
        wall_offset_ns: 0,
        seed: HashKey::default(),
        places: 0,
        ipv6_mask: ipv6_mask(policy.ipv6_prefix),
        ipv4_mask: ipv4_mask(policy.ipv4_prefix),
        sets_mask: 0,
        insertions_max: 0,
        insertions_free: 0,
        suspended: 0,
        generation_shift: generation_shift(policy),
        interfaces: [0; INTERFACES_MAX],
        prefixes_generation: 0,
        has_prefixes_v4: has_prefixes(prefixes.keys().filter(|net| matches!(net, IpNet::V4(_))), policy.ipv4_prefix),
        has_prefixes_v6: has_prefixes(prefixes.keys().filter(|net| matches!(net, IpNet::V6(_))), policy.ipv6_prefix),
        has_targets: u8::from(!targets.is_empty()),
        ipv6_wide: u8::from(Family::of_ipv6_prefix(policy.ipv6_prefix) == Family::V6Wide),
        until_ns: 0,
        portless_rules: set(policy, |rule| rule.ports != Ports::default()),
        volume_rules: set(policy, |rule| {
            rule.limits.iter().any(|limit| matches!(limit.unit, Unit::Packets | Unit::Bytes))
        }),
        other_rules: set(policy, |rule| rule.ports.other_protocols),
        from_any: set(policy, |rule| rule.from.is_empty()),
        to_any: set(policy, |rule| rule.to.is_empty()),
        class_rules,
        rules,
    };
    Ok(Encoded { config, ports, prefixes, targets })
}

/// Returns the value of [`Config::has_prefixes_v4`] for these prefixes.
fn has_prefixes<'a>(nets: impl Iterator<Item = &'a IpNet>, client: u8) -> u8 {
    nets.map(|net| if net.prefix_len() > client { 2 } else { 1 }).max().unwrap_or(0)
}

/// Returns the shift of a generation that lasts as long as the longest window may hold a source.
fn generation_shift(policy: &Policy) -> u32 {
    let limits = policy.rules.iter().flat_map(|rule| rule.limits.iter().chain(&rule.shadow_limits));
    let longest_ns = limits.map(|limit| limit.window_ns.saturating_add(limit.bucket_ns)).max();
    admission::generation_shift(longest_ns.unwrap_or(0))
}

/// Returns the set of rules for which `holds` is true.
fn set(policy: &Policy, holds: impl Fn(&desired::Rule) -> bool) -> RuleSet {
    let bits = policy.rules.iter().enumerate().filter(|(_, rule)| holds(rule));
    bits.fold(0, |set, (index, _)| set | 1 << index)
}

/// Returns the class of each port, and the rules of each class. Class 0 has no rules.
fn ports(policy: &Policy) -> Result<(Box<PortTable>, [RuleSet; CLASSES_MAX]), EncodeError> {
    let mut table = Box::new(PortTable { tcp: [0; 65_536], udp: [0; 65_536] });
    let mut class_rules = [0; CLASSES_MAX];
    let mut classes = BTreeMap::from([(0, 0_u8)]);
    for (ranges_of, row) in
        [((|ports| &ports.tcp) as fn(&Ports) -> &Vec<(u16, u16)>, &mut table.tcp), (|ports| &ports.udp, &mut table.udp)]
    {
        let mut sets: Vec<RuleSet> = vec![0; row.len()];
        for (index, rule) in policy.rules.iter().enumerate() {
            for &(first, last) in ranges_of(&rule.ports) {
                for set in &mut sets[usize::from(first)..=usize::from(last)] {
                    *set |= 1 << index;
                }
            }
        }
        for (class, set) in row.iter_mut().zip(sets) {
            let next = u8::try_from(classes.len());
            *class = match (classes.get(&set), next) {
                (Some(&known), _) => known,
                (None, Ok(next)) => {
                    classes.insert(set, next);
                    class_rules[usize::from(next)] = set;
                    next
                }
                (None, Err(_)) => return Err(EncodeError::Classes),
            };
        }
    }
    Ok((table, class_rules))
}

/// Rules and access of one prefix, including those of the prefixes that contain it.
struct Around {
    net: IpNet,
    rules: RuleSet,
    /// Access of the prefix, then of the prefixes around it, nearest first.
    access: Vec<Access>,
}

/// Returns the rules and access of each prefix that a rule or an access names. Each entry includes those of the
/// prefixes around it, because a trie lookup finds only the longest matching prefix.
fn prefixes(policy: &Policy) -> BTreeMap<IpNet, Prefix> {
    let mut named: BTreeMap<IpNet, (RuleSet, Option<Access>)> = BTreeMap::new();
    for (index, rule) in policy.rules.iter().enumerate() {
        for net in &rule.from {
            named.entry(*net).or_default().0 |= 1 << index;
        }
    }
    for access in &policy.access {
        named.entry(access.prefix).or_default().1 = Some(*access);
    }
    let mut around: Vec<Around> = Vec::new();
    let mut known = BTreeMap::new();
    // In sorted order, a prefix comes before the prefixes that it contains.
    for (net, (rules, access)) in named {
        while around.last().is_some_and(|outer| !outer.net.contains(&net)) {
            around.pop();
        }
        let outer = around.last();
        let here = Around {
            net,
            rules: rules | outer.map_or(0, |outer| outer.rules),
            access: access
                .into_iter()
                .chain(outer.into_iter().flat_map(|outer| outer.access.iter().copied()))
                .collect(),
        };
        known.insert(net, Prefix { rules: here.rules, access: steps(&here.access) });
        around.push(here);
    }
    known
}

/// Returns the sequence of grants: each access until its end, then the next one that lasts longer.
fn steps(nearest_first: &[Access]) -> [Step; STEPS] {
    let mut steps = [Step::default(); STEPS];
    let mut last_ns = 0;
    let mut at = 0;
    for access in nearest_first {
        let until = access.until.unwrap_or(PERMANENT);
        if until.0 > last_ns && at < STEPS {
            steps[at] = Step::new(access.grant, until);
            last_ns = until.0;
            at += 1;
        }
    }
    steps
}

/// Returns for each destination prefix the rules that name the prefix or one around it.
fn targets(policy: &Policy) -> BTreeMap<IpNet, RuleSet> {
    let named: Vec<_> = policy
        .rules
        .iter()
        .enumerate()
        .flat_map(|(index, rule)| rule.to.iter().map(move |net| (*net, 1 << index)))
        .collect();
    let rules_of =
        |net: &IpNet| named.iter().filter(|(outer, _)| outer.contains(net)).fold(0, |set, (_, bit)| set | bit);
    named.iter().map(|(net, _)| (*net, rules_of(net))).collect()
}

/// Returns an IPv4 prefix as a trie key: length in bits, and data. None for an IPv6 prefix.
pub fn key_v4(net: &IpNet, generation: u32) -> Option<(u32, PrefixKeyV4)> {
    let IpNet::V4(net) = net else { return None };
    let bits = GENERATION_BITS + u32::from(net.prefix_len());
    Some((bits, [generation, u32::from_ne_bytes(net.network().octets())]))
}

/// Returns an IPv6 prefix as a trie key: length in bits, and data. None for an IPv4 prefix.
pub fn key_v6(net: &IpNet, generation: u32) -> Option<(u32, PrefixKeyV6)> {
    let IpNet::V6(net) = net else { return None };
    let mut data = [generation; 5];
    for (word, bytes) in data[1..].iter_mut().zip(net.network().octets().as_chunks().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    Some((GENERATION_BITS + u32::from(net.prefix_len()), data))
}

/// Returns the IPv4 prefix of `bits` bits from the bytes of an address.
pub fn net_v4(bits: u32, address: &[u8]) -> Option<IpNet> {
    let octets: [u8; 4] = address.try_into().ok()?;
    IpNet::new(IpAddr::from(octets), u8::try_from(bits).ok()?).ok()
}

/// Returns the IPv6 prefix of `bits` bits from the bytes of an address.
pub fn net_v6(bits: u32, address: &[u8]) -> Option<IpNet> {
    let octets: [u8; 16] = address.try_into().ok()?;
    IpNet::new(IpAddr::from(octets), u8::try_from(bits).ok()?).ok()
}

/// Encodes a rule for the core. Fails if the rule exceeds a capacity or two of its limits share a window.
pub(crate) fn rule(rule: &desired::Rule) -> Result<Rule, EncodeError> {
    let count = rule.limits.len();
    if count == 0 || count > LIMITS_MAX {
        return Err(EncodeError::Limits(rule.name.clone(), count));
    }
    let limits = rule.limits.iter().chain(&rule.shadow_limits);
    let mut slots: Vec<_> = limits.map(|limit| verification::of_all_sides(limit.slot)).collect();
    slots.sort_unstable();
    slots.dedup();
    if slots.len() != count + rule.shadow_limits.len() {
        return Err(EncodeError::SharedWindow(rule.name.clone()));
    }
    let shadows = rule.shadow_limits.len();
    if shadows > SHADOWS_MAX {
        return Err(EncodeError::Shadows(rule.name.clone(), shadows));
    }
    // Packets refused by the source's own limits are not charged to its groups, so group limits come last.
    let (own, of_groups): (Vec<&desired::Limit>, Vec<_>) =
        rule.limits.iter().partition(|limit| limit.per == Per::Source);
    let own_len = own.len();
    let mut limits = [Limit::default(); LIMITS_MAX + SHADOWS_MAX];
    let mut groups = [Group::default(); LIMITS_MAX];
    let (held, beside) = limits.split_at_mut(LIMITS_MAX);
    for ((encoded, encoded_group), limit) in held.iter_mut().zip(&mut groups).zip(own.into_iter().chain(of_groups)) {
        *encoded = limit.layout();
        *encoded_group = group(limit.per).ok_or_else(|| EncodeError::NarrowGroup(rule.name.clone()))?;
    }
    beside.iter_mut().zip(&rule.shadow_limits).for_each(|(encoded, limit)| *encoded = limit.layout());
    let mut encoded = Rule {
        limits,
        limits_len: u8::try_from(count).unwrap_or(u8::MAX),
        refuses: refuses(rule),
        refuse_all: u8::from(rule.refuse == Refuse::All),
        counts_connections: u8::from(counts(rule, Unit::Connections)),
        row: 0,
        shadows_len: u8::try_from(shadows).unwrap_or(0),
        counts_requests: counts_requests(rule),
        evidence: evidence(rule),
        known_first: 0,
        counts_unparsable: u8::from(rule.unparsable == Unparsable::Count),
        guard: u8::from(rule.is_guarded()),
        is_plain: 0,
        ignores_acknowledgements: 0,
        quic_ports: rule.quic_ports.layout(),
        name: desired::name_hash(&rule.name),
        until_ns: rule.until.map_or(0, |until| until.0.max(1)),
        new_sources: rule.new_sources.map_or(0, |of| of.amount),
        new_sources_ns: rule.new_sources.map_or(0, |of| of.window_ns),
        bans: rule.bans.as_ref().map_or(Ok(ban::Rule::default()), |bans| self::bans(&rule.name, bans))?,
        groups,
        own_len: u8::try_from(own_len).unwrap_or(u8::MAX),
        is_of_limits_alone: 0,
        has_log: u8::from(!rule.access_logs.is_empty()),
        reserved: [0; 5],
    };
    encoded.known_first = known_first::of(&encoded);
    encoded.is_plain = u8::from(hold::is_plain(&encoded));
    encoded.is_of_limits_alone = u8::from(hold::is_of_limits_alone(&encoded));
    encoded.ignores_acknowledgements = u8::from(hold::ignores_acknowledgements(&encoded));
    Ok(encoded)
}

/// Returns the group that a limit counts by. All zeros for a limit per source. None if the first word of an address
/// does not determine the group.
fn group(per: Per) -> Option<Group> {
    match per {
        Per::Source => Some(Group::default()),
        Per::Prefix { v4, v6 } if v6 <= IPV6_NARROW_PREFIX_MAX => {
            Some(Group { ipv4_mask: ipv4_mask(v4), is_list: 0, ipv6_mask: ipv6_mask(v6)[0] })
        }
        Per::Prefix { .. } => None,
        Per::List => Some(Group { is_list: 1, ..Group::default() }),
    }
}

/// Returns [`Rule::refuses`], as if every interface were attached in native mode.
fn refuses(rule: &desired::Rule) -> u8 {
    // Without a connection limit, refused SYNs are dropped, and the drop cache drops their repeats.
    let is_syn_told = rule.limits.iter().any(|limit| limit.unit == Unit::Connections);
    let of_syns = if is_syn_told { refuses::SYN_BY_RESET } else { 0 };
    match (rule.mode, rule.refuse_with) {
        (Mode::DryRun, RefuseWith::Drop | RefuseWith::Reset | RefuseWith::Page) => refuses::NOTHING,
        (Mode::Enforce, RefuseWith::Drop) => 0,
        (Mode::Enforce, RefuseWith::Reset) => refuses::BY_RESET | of_syns,
        (Mode::Enforce, RefuseWith::Page) => refuses::BY_RESET | refuses::BY_PAGE | of_syns,
    }
}

/// Stops a rule from answering SYNs and requests itself.
pub fn answer_nothing(rule: &mut Rule) {
    rule.refuses &= !(refuses::SYN_BY_RESET | refuses::BY_PAGE);
    rule.evidence = rule.evidence.without(EvidenceNeeds::PAGES);
    rule.ignores_acknowledgements = hold::ignores_acknowledgements(rule).into();
}

/// Returns whether a limit or shadow limit of the rule counts this unit.
fn counts(rule: &desired::Rule, unit: Unit) -> bool {
    rule.limits.iter().chain(&rule.shadow_limits).any(|limit| limit.unit == unit)
}

/// Returns [`Rule::evidence`].
fn evidence(rule: &desired::Rule) -> EvidenceNeeds {
    let holds = |unit| rule.limits.iter().any(|limit| limit.unit == unit);
    // A group is no source that could be banned.
    let bans_by = |unit| rule.limits.iter().any(|limit| limit.unit == unit && limit.per == Per::Source);
    let bans = rule.mode == Mode::Enforce && rule.bans.as_ref().is_some_and(|bans| bans.needs_proof);
    let mut needs = EvidenceNeeds::default();
    if holds(Unit::Packets) || holds(Unit::Bytes) || holds(Unit::Requests) && rule.refuse == Refuse::All {
        needs = needs.or(EvidenceNeeds::SEGMENTS);
    }
    if bans {
        needs = needs.or(EvidenceNeeds::BANS);
    }
    if refuses(rule) & refuses::BY_PAGE != 0 {
        needs = needs.or(EvidenceNeeds::PAGES);
    }
    if bans && bans_by(Unit::Connections) || rule.limits.iter().any(desired::Limit::sums_evidence) {
        needs = needs.or(EvidenceNeeds::CONNECTIONS);
    }
    if rule.limits.iter().all(|limit| limit.unit == Unit::Connections) {
        needs = needs.or(EvidenceNeeds::CONNECTIONS_ALONE);
    }
    needs
}

/// Returns [`Rule::counts_requests`].
fn counts_requests(rule: &desired::Rule) -> u8 {
    if !counts(rule, Unit::Requests) {
        return 0;
    }
    let is_of_requests = |limit: &desired::Limit| limit.unit == Unit::Requests;
    let refuses_nothing_else =
        rule.limits.iter().all(is_of_requests) && rule.refuse == Refuse::Excess && rule.bans.is_none();
    if refuses_nothing_else { 2 } else { 1 }
}

/// Encodes how a rule bans. Fails if the rule has too many ban steps.
pub(crate) fn bans(rule: &str, bans: &desired::Bans) -> Result<ban::Rule, EncodeError> {
    let count = bans.steps_ns.len();
    if count > BAN_STEPS_MAX {
        return Err(EncodeError::BanSteps(rule.to_owned(), count));
    }
    let mut steps_ns = [0; BAN_STEPS_MAX];
    steps_ns[..count].copy_from_slice(&bans.steps_ns);
    Ok(ban::Rule {
        steps_ns,
        forget_ns: bans.forget_ns,
        steps_len: u32::try_from(count).unwrap_or(0),
        slot: desired::ban_slot(rule),
    })
}

#[cfg(test)]
mod tests {
    use ratelimit_common::access::{self, Grant};
    use ratelimit_common::layout::CLASS_NONE;
    use ratelimit_common::time::{Nanos, SECOND_NS};

    use super::*;
    use ratelimit_policy::desired::WindowForm;

    const NOW: Nanos = Nanos(1_767_261_600 * SECOND_NS);

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn rule(name: &str, tcp: &[(u16, u16)], from: &[&str]) -> desired::Rule {
        let limit = desired::Limit {
            amount: 10,
            unit: Unit::Connections,
            window_ns: 300 * SECOND_NS,
            buckets: 5,
            bucket_ns: 60 * SECOND_NS,
            form: WindowForm::Strict,
            burst: None,
            slot: desired::slot(name, Unit::Connections, 60 * SECOND_NS),
            shared: None,
            per: Per::Source,
            condition: None,
        };
        let ports = Ports { tcp: tcp.to_vec(), udp: vec![(65_535, 65_535)], other_protocols: false };
        let from = from.iter().map(|text| net(text)).collect();
        desired::Rule { from, ..desired::Rule::new(name.into(), ports, vec![limit]) }
    }

    fn policy(rules: Vec<desired::Rule>) -> Policy {
        Policy { ipv4_prefix: 24, ipv6_prefix: 64, access: Vec::new(), rules }
    }

    fn single() -> Policy {
        policy(vec![rule("default", &[(80, 80), (8000, 8002)], &[])])
    }

    #[test]
    fn a_range_of_ports_ends_with_its_last_port() {
        let encoded = encode(&single()).unwrap();
        let table = &encoded.ports;
        let protected: Vec<_> = (0..65_536).filter(|&port| table.tcp[port] != CLASS_NONE).collect();
        assert_eq!(protected, [80, 8000, 8001, 8002]);
        assert_eq!(encoded.config.class_rules[usize::from(table.tcp[80])], 1);
        assert_eq!((table.udp[65_535], table.udp[65_534]), (table.tcp[80], CLASS_NONE));
    }

    #[test]
    fn a_port_has_every_rule_that_names_it() {
        let encoded = encode(&policy(vec![rule("a", &[(80, 90)], &[]), rule("b", &[(85, 95)], &[])])).unwrap();
        let of = |port: usize| encoded.config.class_rules[usize::from(encoded.ports.tcp[port])];
        assert_eq!([of(79), of(80), of(85), of(95), of(96)], [0, 1, 3, 2, 0]);
    }

    #[test]
    fn rules_whose_ports_overlap_in_too_many_ways_are_refused() {
        let rules = |count| (0..count).map(|index| rule(&format!("r{index}"), &[(index, index)], &[])).collect();
        assert!(encode(&policy(rules(64))).is_ok());
        let ways = |index: u16| {
            (1..1024).filter(move |ways| ways >> index & 1 == 1).map(|ways| (ways, ways)).collect::<Vec<_>>()
        };
        let rules = (0..10).map(|index| rule(&format!("r{index}"), &ways(index), &[])).collect();
        assert_eq!(encode(&policy(rules)).unwrap_err(), EncodeError::Classes);
    }

    #[test]
    fn a_key_says_its_generation_before_its_address() {
        assert_eq!(key_v4(&net("192.0.2.0/24"), 1), Some((32 + 24, [1, u32::from_ne_bytes([192, 0, 2, 0])])));
        let (len, data) = key_v6(&net("2001:db8::/32"), 1).unwrap();
        assert_eq!((len, &data[..2]), (32 + 32, [1, u32::from_ne_bytes([0x20, 1, 0x0d, 0xb8])].as_slice()));
    }

    #[test]
    fn a_prefix_has_the_rules_of_those_around_it() {
        let policy = policy(vec![rule("a", &[], &["10.0.0.0/8"]), rule("b", &[], &["10.1.0.0/16", "192.0.2.0/24"])]);
        let known = encode(&policy).unwrap().prefixes;
        let rules = |text| known[&net(text)].rules;
        assert_eq!([rules("10.0.0.0/8"), rules("10.1.0.0/16"), rules("192.0.2.0/24")], [1, 3, 2]);
    }

    #[test]
    fn the_longest_prefix_decides_and_then_the_next_that_lasts_longer() {
        let until = |seconds| Some(Nanos(NOW.0 + seconds * SECOND_NS));
        let mut policy = single();
        policy.access = vec![
            Access { prefix: net("10.0.0.0/8"), grant: Grant::Denied, until: None },
            Access { prefix: net("10.1.0.0/16"), grant: Grant::Exempt, until: until(60) },
            Access { prefix: net("10.1.1.0/24"), grant: Grant::Denied, until: until(10) },
        ];
        let known = encode(&policy).unwrap().prefixes;
        for seconds in [0, 9, 10, 59, 60, 600] {
            let now = Nanos(NOW.0 + seconds * SECOND_NS);
            for (text, address) in
                [("10.1.1.0/24", "10.1.1.1"), ("10.1.0.0/16", "10.1.2.1"), ("10.0.0.0/8", "10.2.0.1")]
            {
                let expected = policy.grant(address.parse().unwrap(), now).map(|access| access.grant);
                assert_eq!(access::grant(known[&net(text)].access, now), expected, "{text} after {seconds} s");
            }
        }
    }

    #[test]
    fn more_than_the_capacity_is_refused_by_name() {
        let mut crowded = single();
        crowded.rules[0].limits = vec![crowded.rules[0].limits[0]; LIMITS_MAX + 1];
        assert_eq!(encode(&crowded).unwrap_err(), EncodeError::Limits("default".into(), LIMITS_MAX + 1));
        let many = policy(vec![rule("a", &[], &[]); RULES_MAX + 1]);
        assert_eq!(encode(&many).unwrap_err(), EncodeError::Rules(RULES_MAX + 1));
    }

    #[test]
    fn two_limits_in_one_window_are_refused() {
        let mut shared = single();
        shared.rules[0].limits = vec![shared.rules[0].limits[0]; 2];
        assert_eq!(encode(&shared).unwrap_err(), EncodeError::SharedWindow("default".into()));
    }

    #[test]
    fn the_limits_of_the_source_come_first_and_groups_after_them_by_their_masks() {
        let mut grouped = single();
        let own = grouped.rules[0].limits[0];
        let group = |slot, per| desired::Limit { slot, per, ..own };
        grouped.rules[0].limits = vec![group(7, Per::Prefix { v4: 24, v6: 56 }), own, group(8, Per::List)];
        let rule = encode(&grouped).unwrap().config.rules[0];
        assert_eq!((rule.limits_len, rule.own_len, rule.is_plain), (3, 1, 0));
        assert_eq!([0, 1, 2].map(|at| rule.limits[at].slot), [own.slot, 7, 8]);
        let prefix = Group { ipv4_mask: ipv4_mask(24), is_list: 0, ipv6_mask: ipv6_mask(56)[0] };
        let list = Group { is_list: 1, ..Group::default() };
        assert_eq!(rule.groups, [Group::default(), prefix, list, Group::default()]);
        grouped.rules[0].limits[0].per = Per::Prefix { v4: 24, v6: 65 };
        assert_eq!(encode(&grouped).unwrap_err(), EncodeError::NarrowGroup("default".into()));
        let plain = encode(&single()).unwrap().config.rules[0];
        assert_eq!((plain.limits_len, plain.own_len, plain.is_plain), (1, 1, 1));
        let mut alone = single();
        alone.rules[0].limits[0].per = Per::Prefix { v4: 24, v6: 56 };
        let alone = encode(&alone).unwrap().config.rules[0];
        assert_eq!((alone.limits_len, alone.own_len, alone.is_plain, alone.known_first), (1, 0, 0, 0));
    }

    #[test]
    fn a_budget_of_new_sources_is_one_of_its_rule_and_none_is_0() {
        let mut policy = policy(vec![rule("a", &[(80, 80)], &[]), rule("b", &[(81, 81)], &[])]);
        policy.rules[1].new_sources = Some(desired::NewSources { amount: 20_000, window_ns: SECOND_NS });
        let rules = encode(&policy).unwrap().config.rules;
        assert_eq!([0, 1].map(|at| (rules[at].new_sources, rules[at].new_sources_ns)), [(0, 0), (20_000, SECOND_NS)]);
    }

    #[test]
    fn unparsable_packets_drop_and_quic_is_on_443_unless_the_rule_says_so() {
        let mut policy = policy(vec![rule("a", &[(80, 80)], &[]), rule("b", &[(81, 81)], &[])]);
        policy.rules[1].unparsable = Unparsable::Count;
        policy.rules[1].quic_ports = desired::QuicPorts::new(&[8443, 4433]).unwrap();
        let rules = encode(&policy).unwrap().config.rules;
        assert_eq!([rules[0].counts_unparsable, rules[1].counts_unparsable], [0, 1]);
        let speaks = |port| [rules[0].speaks_quic(port), rules[1].speaks_quic(port)];
        let expected = [(0, [false; 2]), (53, [false; 2]), (443, [true, false]), (4433, [false, true])];
        assert_eq!(expected.map(|(port, _)| (port, speaks(port))), expected);
    }

    #[test]
    fn packets_without_ports_have_rules_only_where_one_asks_for_them() {
        let encoded = encode(&single()).unwrap().config;
        assert_eq!((encoded.portless_rules, encoded.other_rules), (1, 0));
        let mut none = single();
        none.rules[0].ports = Ports::default();
        assert_eq!(encode(&none).unwrap().config.portless_rules, 0);
        let mut all = single();
        all.rules[0].ports.other_protocols = true;
        assert_eq!(encode(&all).unwrap().config.other_rules, 1);
    }
}
