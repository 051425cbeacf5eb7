//! Tests of the choice on a configuration in memory.

use super::*;
use crate::access::Step;
use crate::hash::HashKey;
use crate::layout::{CLASSES_MAX, INTERFACES_MAX, refuses};
use crate::time::SECOND_NS;

const NOW: Nanos = Nanos(1_767_261_600 * SECOND_NS);
const SOURCE: Address = Address::v4([198, 51, 100, 7]);
const SYN: Destination = Destination::Tcp { port: 80, opening: true, has_payload: false };

/// Configuration whose rules all protect TCP port 80 and packets without a port.
struct Memory {
    config: Box<Config>,
    ports: Box<PortTable>,
    prefix: Option<Prefix>,
    target_rules: RuleSet,
    /// Flags: a prefix was asked for, and a destination was.
    asked: std::cell::Cell<[bool; 2]>,
}

impl Rules for Memory {
    fn config(&self) -> &Config {
        &self.config
    }

    fn ports(&self) -> Option<&PortTable> {
        Some(&self.ports)
    }

    fn prefix(&self, _: Address) -> Option<&Prefix> {
        self.asked.set([true, self.asked.get()[1]]);
        self.prefix.as_ref()
    }

    fn target_rules(&self) -> RuleSet {
        self.asked.set([self.asked.get()[0], true]);
        self.target_rules
    }

    fn coarse(&self) -> Nanos {
        NOW
    }
}

/// Returns a configuration with `count` rules, from any source and to any address.
fn memory(count: usize) -> Memory {
    let all = if count == RULES_MAX { RuleSet::MAX } else { (1 << count) - 1 };
    let mut config = Box::new(Config {
        wall_offset_ns: 0,
        seed: HashKey::default(),
        places: 0,
        ipv6_mask: [0; 2],
        ipv4_mask: 0,
        sets_mask: 0,
        insertions_max: 0,
        insertions_free: 0,
        suspended: 0,
        generation_shift: 0,
        interfaces: [0; INTERFACES_MAX],
        prefixes_generation: 0,
        has_prefixes_v4: 0,
        has_prefixes_v6: 0,
        has_targets: 0,
        ipv6_wide: 0,
        until_ns: 0,
        portless_rules: all,
        volume_rules: 0,
        other_rules: 0,
        from_any: all,
        to_any: all,
        class_rules: [0; CLASSES_MAX],
        rules: [Rule::default(); RULES_MAX],
    });
    config.class_rules[1] = all;
    for (row, rule) in (0..).zip(config.rules.iter_mut()) {
        rule.row = row;
    }
    let mut ports = Box::new(PortTable { tcp: [0; 65_536], udp: [0; 65_536] });
    ports.tcp[80] = 1;
    Memory { config, ports, prefix: None, target_rules: 0, asked: [false; 2].into() }
}

impl Memory {
    /// Adds facts about the source's prefix.
    fn knowing(mut self, rules: RuleSet, access: &[Step]) -> Self {
        let mut prefix = Prefix { rules, ..Prefix::default() };
        prefix.access[..access.len()].copy_from_slice(access);
        self.prefix = Some(prefix);
        self.config.has_prefixes_v4 = 1;
        self
    }

    fn choice(&self, to: Destination) -> Choice {
        self.choice_of(to, false)
    }

    fn choice_of(&self, to: Destination, may_be_tcp: bool) -> Choice {
        choice(self, Asked { source: SOURCE, to, may_be_tcp }, protecting(self, to).unwrap())
    }

    /// Returns the reason and the rule's number.
    fn chosen(&self, to: Destination) -> (Reason, Option<u32>) {
        let choice = self.choice(to);
        (choice.reason, choice.rule)
    }
}

#[test]
fn a_port_a_protocol_and_what_has_no_port_have_the_rules_that_name_them() {
    let mut of = memory(3);
    (of.config.portless_rules, of.config.other_rules) = (0b110, 0b100);
    let protecting = |to| protecting(&of, to);
    assert_eq!(protecting(SYN), Some(0b111));
    assert_eq!(protecting(Destination::Tcp { port: 81, opening: true, has_payload: false }), Some(0));
    assert_eq!(protecting(Destination::Udp { port: 80 }), Some(0));
    assert_eq!([Destination::Fragment, Destination::UnparsableHeaders].map(protecting), [Some(0b110); 2]);
    assert_eq!([Destination::Other, Destination::ControlTraffic].map(protecting), [Some(0b100), Some(0)]);
}

#[test]
fn nothing_is_looked_up_that_no_rule_names() {
    let mut of = memory(1);
    assert_eq!(of.chosen(SYN), (Reason::NotCounted, Some(0)));
    assert_eq!(of.asked.get(), [false; 2]);
    (of.config.has_prefixes_v4, of.config.has_targets) = (1, 1);
    assert_eq!(of.chosen(SYN), (Reason::NotCounted, Some(0)));
    assert_eq!(of.asked.get(), [true; 2]);
}

#[test]
fn the_first_rule_for_the_source_and_the_destination_judges() {
    let mut of = memory(3).knowing(0b010, &[]);
    of.config.from_any = 0b100;
    assert_eq!(of.chosen(SYN), (Reason::NotCounted, Some(1)));
    (of.config.has_targets, of.config.to_any, of.target_rules) = (1, 0b001, 0b100);
    assert_eq!(of.chosen(SYN), (Reason::NotCounted, Some(2)));
    of.target_rules = 0;
    assert_eq!(of.chosen(SYN), (Reason::NotProtected, None));
}

#[test]
fn a_rule_that_has_ended_is_looked_past_up_to_three_of_them() {
    let mut of = memory(5);
    of.config.rules[0].until_ns = NOW.0 + 1;
    assert_eq!(of.choice(SYN).rule, Some(0));
    for ended in 0..5 {
        of.config.rules[ended].until_ns = NOW.0;
        let next = u32::try_from(ended + 1).unwrap().min(3);
        assert_eq!(of.choice(SYN).rule, Some(next), "after {} that have ended", ended + 1);
    }
}

#[test]
fn no_rule_judges_once_all_of_three_rules_or_fewer_have_ended() {
    let mut of = memory(2);
    (of.config.rules[0].until_ns, of.config.rules[1].until_ns) = (1, NOW.0);
    assert_eq!(of.chosen(SYN), (Reason::NotProtected, None));
}

#[test]
fn a_grant_holds_whatever_the_limits_say_until_it_ends() {
    let (later, over) = (Nanos(NOW.0 + 2), NOW);
    for (access, expected) in [
        (&[Step::new(Grant::Exempt, later)][..], Reason::Exempt),
        (&[Step::new(Grant::Denied, later)], Reason::Denied),
        (&[Step::new(Grant::Denied, over), Step::new(Grant::Exempt, later)], Reason::Exempt),
        (&[Step::new(Grant::Denied, over)], Reason::NotCounted),
        (&[], Reason::NotCounted),
    ] {
        assert_eq!(memory(1).knowing(0, access).chosen(SYN), (expected, Some(0)), "{access:?}");
    }
}

#[test]
fn unparsable_packets_are_dropped_unless_counted_or_exempt() {
    let mut of = memory(1);
    assert_eq!(of.chosen(Destination::UnparsableHeaders), (Reason::TooManyHeaders, Some(0)));
    of.config.rules[0].counts_unparsable = 1;
    assert_eq!(of.chosen(Destination::UnparsableHeaders), (Reason::NotCounted, Some(0)));
    let exempt = memory(1).knowing(0, &[Step::new(Grant::Exempt, access::PERMANENT)]);
    assert_eq!(exempt.chosen(Destination::UnparsableHeaders), (Reason::Exempt, Some(0)));
}

#[test]
fn later_fragments_go_to_the_volume_rule_and_tcp_ones_to_other_rules_too() {
    let mut of = memory(3);
    of.config.volume_rules = 0b100;
    let choice = of.choice_of(Destination::Fragment, true);
    assert_eq!((choice.rule, choice.beside), (Some(2), 0b011));
    let of_udp = of.choice_of(Destination::Fragment, false);
    assert_eq!((of_udp.rule, of_udp.beside), (Some(2), 0));
    assert_eq!(of.choice(SYN).rule, Some(0));
    // If no rule counts volume, or that rule has ended, the first rule judges.
    of.config.rules[2].until_ns = 1;
    assert_eq!(of.choice_of(Destination::Fragment, true).rule, Some(0));
}

#[test]
fn addresses_are_one_client_unless_a_list_or_a_destination_separates_them() {
    assert!(memory(1).choice(SYN).is_of_client);
    assert!(!memory(1).knowing(0, &[]).choice(SYN).is_of_client);
    for (has_prefixes, has_targets, expected) in [(1, 0, true), (2, 0, false), (0, 1, false)] {
        let mut of = memory(1);
        (of.config.has_prefixes_v4, of.config.has_targets) = (has_prefixes, has_targets);
        assert_eq!(of.choice(SYN).is_of_client, expected, "{has_prefixes} {has_targets}");
    }
}

#[test]
fn too_many_tags_are_dropped_by_the_first_rule_for_what_has_no_port() {
    let mut of = memory(2);
    of.config.portless_rules = 0b10;
    assert_eq!(too_many_tags(&of), Verdict { reason: Reason::TooManyTags, rule: 1 });
    of.config.rules[1].refuses = refuses::NOTHING;
    assert_eq!(too_many_tags(&of), Verdict { reason: Reason::DryRun, rule: 1 });
    of.config.portless_rules = 0;
    assert_eq!(too_many_tags(&of), Verdict::unruled(Reason::NotProtected));
}

#[test]
fn the_last_of_all_rules_is_found() {
    let mut of = memory(RULES_MAX);
    of.config.from_any = 1 << (RULES_MAX - 1);
    assert_eq!(of.choice(SYN).rule, Some(63));
}

/// Returns the steps of a fragment after rule 0, with a result of `found` for each rule, and the verdict.
fn held_to(of: &Memory, beside: RuleSet, found: &[Reason]) -> (Vec<Next>, Verdict) {
    let mut fragment = Beside::new(0, beside);
    let mut held_to = Vec::new();
    for &found in found {
        let next = fragment.next(of, found);
        held_to.push(next);
        if next == Next::Nothing {
            break;
        }
    }
    (held_to, fragment.verdict())
}

#[test]
fn a_fragment_is_held_to_each_rule_until_one_drops_it() {
    const FITS: Reason = Reason::WithinLimit;
    let of = memory(4);
    let (all, first) = ([Next::Rule(1), Next::Rule(3), Next::Nothing], Verdict { reason: FITS, rule: 0 });
    assert_eq!(held_to(&of, 0b1010, &[FITS; 5]), (all.to_vec(), first));
    let over = Verdict { reason: Reason::OverLimit, rule: 1 };
    assert_eq!(held_to(&of, 0b1010, &[FITS, Reason::OverLimit]), (vec![Next::Rule(1), Next::Nothing], over));
    // If all rules pass the fragment, the verdict is that of the rule that judges it.
    let not_counted = Verdict { reason: Reason::NotCounted, rule: 0 };
    assert_eq!(held_to(&of, 0b10, &[Reason::NotCounted, FITS]).1, not_counted);
    // A source that one rule does not remember is remembered by no other.
    let not_admitted = Verdict { reason: Reason::NotAdmitted, rule: 0 };
    assert_eq!(held_to(&of, 0b10, &[Reason::NotAdmitted]), (vec![Next::Nothing], not_admitted));
}

#[test]
fn a_rule_that_has_ended_or_drops_nothing_refuses_no_fragment() {
    let mut of = memory(3);
    of.config.rules[1].until_ns = NOW.0;
    of.config.rules[2].refuses = refuses::NOTHING;
    let (next, verdict) = held_to(&of, 0b110, &[Reason::WithinLimit, Reason::WithinLimit, Reason::OverLimit]);
    assert_eq!(next, [Next::Ended, Next::Rule(2), Next::Nothing]);
    assert_eq!(verdict, Verdict { reason: Reason::WithinLimit, rule: 0 });
}
