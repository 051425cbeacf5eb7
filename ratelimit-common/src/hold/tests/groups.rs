//! Tests of limits that count groups.

use super::*;
use crate::layout::Group;

/// Mask of the group: the higher one of a source's two lowest bytes.
const GROUP: u32 = 0xff00;

/// Returns a rule whose limits from `own` on count groups.
pub(super) fn grouped(limits: &[Limit], own: u8) -> Rule {
    let mut rule = Rule { own_len: own, is_plain: 0, ..rule(limits) };
    for group in &mut rule.groups[own.into()..limits.len()] {
        *group = Group { ipv4_mask: GROUP, ..Group::default() };
    }
    rule
}

impl Memory {
    fn judges_of(&self, source: u32, charges: Charges) -> Reason {
        self.source.set(source);
        self.judges(charges)
    }

    fn used_by(&self, holder: u32, at: usize, side: Side) -> u64 {
        let limit = &self.rule.limits[at];
        let window = self.windows.borrow().get(&(holder, side.slot(limit.slot))).copied();
        window.map_or(0, |kept| window::used(&kept, limit.arithmetic(side), NOW.bucket(limit.bucket_ns)))
    }
}

#[test]
fn a_group_admits_its_limit_over_many_sources_and_spares_its_neighbour() {
    let memory = memory(grouped(&[limit(7, Unit::Packets, 3), limit(8, Unit::Packets, 10)], 1));
    assert!(!is_plain(&memory.rule));
    let judged = |sources: std::ops::Range<u32>| -> Vec<Reason> {
        sources.map(|source| memory.judges_of(source, PACKET)).collect()
    };
    let first = judged(0x0100..0x0114);
    assert_eq!(first[..10], [Reason::WithinLimit; 10]);
    assert_eq!(first[10..], [Reason::OverLimit; 10]);
    assert_eq!(judged(0x0200..0x020a), [Reason::WithinLimit; 10], "the neighbour");
    assert_eq!(memory.judges_of(0x02ff, PACKET), Reason::OverLimit, "one more");
    assert_eq!(memory.used_by(0x0100, 1, Side::Unverified), 10);
}

#[test]
fn a_sources_own_refusals_are_not_charged_to_its_group() {
    let memory = memory(grouped(&[limit(7, Unit::Packets, 3), limit(8, Unit::Packets, 10)], 1));
    for packet in 0..8 {
        let expected = if packet < 3 { Reason::WithinLimit } else { Reason::OverLimit };
        assert_eq!(memory.judges_of(0x0105, PACKET), expected);
    }
    assert_eq!(memory.used_by(0x0100, 1, Side::Unverified), 3);
    let refusals = |holder, slot| memory.windows.borrow()[&(holder, slot)].refused.get().count();
    assert_eq!((refusals(0x0105, 7), refusals(0x0100, 8)), (5, 0));
}

#[test]
fn a_group_refusal_is_charged_to_no_source_and_no_earlier_group() {
    let limits = [limit(7, Unit::Packets, 100), limit(8, Unit::Packets, 50), limit(9, Unit::Packets, 4)];
    let memory = memory(grouped(&limits, 1));
    for source in 0..6 {
        memory.judges_of(0x0101 + source, PACKET);
    }
    assert_eq!(memory.used_by(0x0100, 1, Side::Unverified), 4, "the wider limit of the group");
    assert_eq!(memory.used_by(0x0106, 0, Side::Unverified), 0, "refused before anything was charged");
    // Another CPU filled the limit after the check. All earlier charges are refunded.
    memory.source.set(0x0107);
    memory.charges.set(PACKET);
    assert_eq!(charge_all(&memory, CheckResult::of(Reason::WithinLimit)), (Reason::OverLimit, true));
    let used = [(0x0107, 0), (0x0100, 1), (0x0100, 2)].map(|(of, at)| memory.used_by(of, at, Side::Unverified));
    assert_eq!(used, [0, 4, 4]);
    assert_eq!(memory.group.get(), None, "the source stands in its own place again");
}

#[test]
fn a_groups_windows_of_verified_and_unverified_traffic_are_two() {
    let memory = memory(grouped(&[limit(7, Unit::Packets, 100), limit(8, Unit::Packets, 2)], 1));
    let verified = Charges { is: is::VERIFIED, ..PACKET };
    let judged: Vec<_> = (0..4).map(|source| memory.judges_of(0x0100 + source, PACKET)).collect();
    assert_eq!(judged[2..], [Reason::OverLimit; 2], "forged");
    let judged: Vec<_> = (0..3).map(|source| memory.judges_of(0x0100 + source, verified)).collect();
    assert_eq!(judged, [Reason::WithinLimit, Reason::WithinLimit, Reason::OverLimit]);
    assert_eq!(memory.used_by(0x0100, 1, Side::Verified), 2);
}

#[test]
fn a_rule_of_groups_alone_holds_them() {
    let memory = memory(grouped(&[limit(8, Unit::Packets, 2)], 0));
    let judged: Vec<_> = (0..3).map(|source| memory.judges_of(0x0100 + source, PACKET)).collect();
    assert_eq!(judged, [Reason::WithinLimit, Reason::WithinLimit, Reason::OverLimit]);
    assert!(!is_plain(&memory.rule));
    assert!(memory.windows.borrow().keys().all(|(holder, _)| *holder == 0x0100), "no source has a window");
}

#[test]
fn a_group_refusal_bans_nobody_whatever_the_order_of_cpus() {
    let mut banning = grouped(&[limit(7, Unit::Packets, 5), limit(8, Unit::Packets, 3)], 1);
    let mut steps_ns = [0; BAN_STEPS_MAX];
    steps_ns[0] = 10 * SECOND_NS;
    banning.bans = ban::Rule { steps_ns, forget_ns: SECOND_NS, steps_len: 1, slot: 3 };
    let memory = memory(banning);
    for _ in 0..20 {
        memory.judges_of(0x0105, PACKET);
    }
    assert!(memory.ban.get().is_none(), "3 of its 5 were admitted, and its group has no more");
    // The group's limit is higher now, and the source's own limit refuses: that bans.
    let memory = Memory { rule: Rule { limits: [limit(7, Unit::Packets, 2); 12], ..memory.rule }, ..memory };
    assert_eq!(memory.judges_of(0x0105, PACKET), Reason::OverLimit);
    assert!(memory.ban.get().is_some());
}

#[test]
fn a_group_is_told_once_in_a_bucket_however_many_of_its_sources_are_refused() {
    let memory = memory(grouped(&[limit(7, Unit::Packets, 3), limit(8, Unit::Packets, 2)], 1));
    for source in 0..20 {
        memory.judges_of(0x0100 + source, PACKET);
    }
    assert_eq!(told(&memory), [(Kind::Refused, 8, 2, 0)]);
}

#[test]
fn a_sampled_out_source_is_held_to_its_known_group_and_not_remembered() {
    for before_any_limit in [false, true] {
        let memory =
            memory(grouped(&[limit(7, Unit::Packets, 3), limit(8, Unit::Packets, 3), limit(9, Unit::Packets, 9)], 1));
        assert_eq!(memory.judges_of(0x0105, PACKET), Reason::WithinLimit);
        memory.is_full.set(true);
        memory.samples_out.set(before_any_limit);
        let used = |of: u32| [0, 1, 2].map(|at| memory.used_by(of, at, Side::Unverified));
        assert_eq!(memory.judges_of(0x0106, PACKET), Reason::NotAdmitted);
        assert_eq!(memory.judges_of(0x0107, PACKET), Reason::NotAdmitted);
        assert_eq!((used(0x0100), used(0x0106)), ([0, 3, 3], [0, 0, 0]));
        for source in [0x0106, 0x0108] {
            assert_eq!(memory.judges_of(source, PACKET), Reason::OverLimit, "the group is full");
        }
        assert_eq!(memory.judges_of(0x0205, PACKET), Reason::NotAdmitted, "of a group that is not known");
        assert_eq!((used(0x0100), used(0x0200)), ([0, 3, 3], [0, 0, 0]));
    }
}

#[test]
fn a_packet_that_is_more_than_a_limit_bans_where_the_limit_is_the_sources_own() {
    for (own, group, bans) in [(0, 5, true), (5, 0, false)] {
        let mut banning = grouped(&[limit(7, Unit::Packets, own), limit(8, Unit::Packets, group)], 1);
        let mut steps_ns = [0; BAN_STEPS_MAX];
        steps_ns[0] = 10 * SECOND_NS;
        banning.bans = ban::Rule { steps_ns, forget_ns: SECOND_NS, steps_len: 1, slot: 3 };
        let memory = memory(banning);
        assert_eq!(memory.judges_of(0x0105, PACKET), Reason::OverLimit);
        assert_eq!(memory.ban.get().is_some(), bans, "{own} of its own, {group} of its group");
    }
}
