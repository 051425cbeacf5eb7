//! Tests of the enforcement on a source in memory. They know no map and no packet.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::*;
use crate::ban::{self, Ban};
use crate::events::Kind;
use crate::layout::{BAN_STEPS_MAX, Event, Limit, Step, refuses};
use crate::time::SECOND_NS;
use crate::window::{CELLS, Parts};

mod each;
mod groups;
mod logged;

const SOURCE: u32 = 0x0105;
const NOW: Nanos = Nanos(1_767_261_600 * SECOND_NS);

/// State in memory. Each source is a number.
struct Memory {
    rule: Rule,
    source: Cell<u32>,
    /// Group that replaces the source, if any.
    group: Cell<Option<u32>>,
    charges: Cell<Charges>,
    now: Cell<Nanos>,
    /// Lag of the coarse clock in nanoseconds.
    lag_ns: Cell<u64>,
    /// Windows by source or group, and slot.
    windows: RefCell<BTreeMap<(u32, u32), &'static Alone>>,
    ban: Cell<Option<&'static Cell<Ban>>>,
    charged: [Cell<u64>; LIMITS_MAX],
    /// True if a source without a window gets none.
    is_full: Cell<bool>,
    /// True if sources are sampled out before any limit is checked.
    samples_out: Cell<bool>,
    is_known: Cell<u64>,
    events: RefCell<Vec<Event>>,
    steps: RefCell<Vec<Step>>,
}

impl State for &Memory {
    type Window = &'static Alone;
    type Ban = &'static Cell<Ban>;

    fn rule(&self) -> &Rule {
        &self.rule
    }

    fn charges(&self) -> Charges {
        self.charges.get()
    }

    fn precise(&self) -> Nanos {
        self.now.get()
    }

    fn coarse(&self) -> Nanos {
        Nanos(self.now.get().0 - self.lag_ns.get())
    }

    fn window(&self, slot: u32) -> Option<&'static Alone> {
        self.windows.borrow().get(&(self.holder(), slot)).copied()
    }

    fn insert(&self, slot: u32, open: impl FnOnce(&mut [u64; CELLS]) -> bool) -> Inserted {
        let mut cells = [0; CELLS];
        if !open(&mut cells) {
            return Inserted::Nothing;
        }
        let kept = Alone { cells: cells.map(Cell::new), ..Alone::default() };
        self.windows.borrow_mut().insert((self.holder(), slot), Box::leak(Box::new(kept)));
        Inserted::New
    }

    fn ban(&self) -> Option<&'static Cell<Ban>> {
        self.ban.get()
    }

    fn insert_ban(&self, ban: &Ban) -> Inserted {
        self.ban.set(Some(Box::leak(Box::new(Cell::new(*ban)))));
        Inserted::New
    }

    fn count_ban(&self) {}

    fn gates_new_sources(&self) -> bool {
        self.samples_out.get()
    }

    fn new_source_gate(&self, bypass: GateBypass) -> Option<Reason> {
        (self.samples_out.get() && bypass == GateBypass::None).then_some(Reason::NotAdmitted)
    }

    fn refuses_insertion(&self) -> Option<Charged> {
        if self.is_full.get() { Some(Charged::NOT_ADMITTED) } else { None }
    }

    fn make_known(&self) {
        self.is_known.set(self.is_known.get() + 1);
    }

    fn send_event(&self, _: Kind, event: impl FnOnce() -> Event) {
        self.events.borrow_mut().push(event());
    }

    fn send_step(&self, step: Step) {
        self.steps.borrow_mut().push(step);
    }

    fn keep_charged(&self, position: usize, bucket: u64) {
        self.charged[position].set(bucket);
    }

    fn charged(&self, position: usize) -> u64 {
        self.charged[position].get()
    }

    fn turn_to(&self, position: usize) {
        let group = &self.rule.groups[position];
        self.group.set(Some(self.source.get() & group.ipv4_mask));
    }

    fn turn_back(&self) {
        self.group.set(None);
    }
}

fn limit(slot: u32, unit: Unit, amount: u64) -> Limit {
    let (bucket_ns, full_buckets) = (60 * SECOND_NS, 5);
    Limit {
        amount,
        bucket_ns,
        slot,
        unit: unit as u8,
        full_buckets,
        parts: Parts::alone(bucket_ns),
        burst: window::BURST_ANY,
        ..Limit::default()
    }
}

fn rule(limits: &[Limit]) -> Rule {
    let len = u8::try_from(limits.len()).unwrap();
    let mut rule = Rule { limits_len: len, own_len: len, ..Rule::default() };
    rule.limits[..limits.len()].copy_from_slice(limits);
    rule.is_plain = u8::from(is_plain(&rule));
    rule
}

fn memory(rule: Rule) -> Memory {
    Memory {
        rule: Rule { is_of_limits_alone: u8::from(is_of_limits_alone(&rule)), ..rule },
        source: Cell::new(SOURCE),
        group: Cell::new(None),
        charges: Cell::default(),
        now: Cell::new(NOW),
        lag_ns: Cell::new(0),
        windows: RefCell::default(),
        ban: Cell::new(None),
        charged: <[Cell<u64>; LIMITS_MAX]>::default(),
        is_full: Cell::new(false),
        samples_out: Cell::new(false),
        is_known: Cell::new(0),
        events: RefCell::default(),
        steps: RefCell::default(),
    }
}

impl Memory {
    fn judges(&self, charges: Charges) -> Reason {
        self.charges.set(charges);
        hold(self)
    }

    fn used(&self, at: usize) -> u64 {
        let limit = &self.rule.limits[at];
        let arithmetic = limit.arithmetic(Side::Unverified);
        self.window_of(limit.slot).map_or(0, |kept| window::used(&kept, arithmetic, NOW.bucket(limit.bucket_ns)))
    }

    fn holder(&self) -> u32 {
        self.group.get().unwrap_or(self.source.get())
    }

    fn window_of(&self, slot: u32) -> Option<&'static Alone> {
        (&self).window(slot)
    }
}

const PACKET: Charges = Charges { bytes: 100, requests: 0, is: 0, guarded: 0 };

#[test]
fn a_plain_rule_admits_its_limit_and_no_more_and_counts_what_it_refuses() {
    let memory = memory(rule(&[limit(7, Unit::Packets, 3)]));
    assert_eq!(memory.rule.is_plain, 1);
    for expected in
        [Reason::WithinLimit, Reason::WithinLimit, Reason::WithinLimit, Reason::OverLimit, Reason::OverLimit]
    {
        assert_eq!(memory.judges(PACKET), expected);
    }
    assert_eq!((memory.used(0), memory.window_of(7).unwrap().refusals().count()), (3, 2));
}

#[test]
fn a_charge_goes_to_the_exact_clocks_bucket_despite_the_coarse_clocks_lag() {
    let length_ns = 60 * SECOND_NS;
    let begins = NOW.bucket(length_ns).start(length_ns).0;
    let mut at_once = 0;
    for lag_ns in [0, 1, SECOND_NS / 100, COARSE_LAG_NS - 1, COARSE_LAG_NS] {
        for since_ns in [0, 1, SECOND_NS / 100, COARSE_LAG_NS - 1, COARSE_LAG_NS, COARSE_LAG_NS + 1, length_ns - 1] {
            let memory = memory(rule(&[limit(7, Unit::Packets, 100)]));
            // The bucket before is open, and so is this one if it has a charge.
            memory.now.set(Nanos(begins - SECOND_NS));
            assert_eq!(memory.judges(PACKET), Reason::WithinLimit);
            memory.now.set(Nanos(begins + since_ns));
            memory.lag_ns.set(lag_ns);
            at_once += u64::from(charge_at_once(&memory, At::new(0, Side::Unverified), 1).bucket().is_some());
            assert_eq!(memory.judges(PACKET), Reason::WithinLimit);
            at_once += u64::from(charge_at_once(&memory, At::new(0, Side::Unverified), 1).bucket().is_some());
            let count = |bucket| {
                let fixed = window::Limit { full_buckets: 0, ..memory.rule.limits[0].arithmetic(Side::Unverified) };
                window::used(&memory.window_of(7).unwrap(), fixed, bucket)
            };
            let of = Nanos(begins + since_ns).bucket(length_ns);
            assert_eq!(count(BucketIndex(of.0 - 1)), 1, "{since_ns} ns after the bucket began, {lag_ns} ns behind");
            assert!(count(of) >= 1);
        }
    }
    assert!(at_once > 20, "{at_once} charges were made at once");
}

#[test]
fn uncounted_packets_of_a_plain_rule_leave_no_window() {
    let memory = memory(rule(&[limit(7, Unit::Connections, 3)]));
    assert_eq!(memory.judges(PACKET), Reason::NotCounted);
    assert!(memory.windows.borrow().is_empty());
}

#[test]
fn a_refusal_by_one_limit_charges_none_whatever_was_charged_before() {
    // The first packet is charged to all three limits. The second limit refuses the others, which are charged to none.
    let limits = [limit(7, Unit::Packets, 100), limit(8, Unit::Packets, 1), limit(9, Unit::Bytes, 1000)];
    let memory = memory(rule(&limits));
    assert_eq!(memory.judges(PACKET), Reason::WithinLimit);
    for _ in 0..5 {
        assert_eq!(memory.judges(PACKET), Reason::OverLimit);
    }
    assert_eq!([memory.used(0), memory.used(1), memory.used(2)], [1, 1, 100]);
    // Another CPU was faster after the check. The earlier charges are refunded, and nothing else.
    memory.charges.set(PACKET);
    assert_eq!(charge_all(&memory, CheckResult::of(Reason::WithinLimit)), (Reason::OverLimit, false));
    assert_eq!([memory.used(0), memory.used(1), memory.used(2)], [1, 1, 100]);
}

#[test]
fn a_gated_source_is_not_charged_and_a_known_one_is() {
    let memory = memory(rule(&[limit(7, Unit::Packets, 3)]));
    memory.is_full.set(true);
    assert_eq!(memory.judges(PACKET), Reason::NotAdmitted);
    assert_eq!(memory.used(0), 0);
    memory.is_full.set(false);
    assert_eq!(memory.judges(PACKET), Reason::WithinLimit);
    memory.is_full.set(true);
    assert_eq!(memory.judges(PACKET), Reason::WithinLimit);
    assert_eq!(memory.used(0), 2);
}

#[test]
fn a_source_is_made_known_at_the_start_of_each_bucket_and_not_with_each_packet() {
    let memory = memory(rule(&[limit(7, Unit::Packets, 10_000)]));
    for bucket in 0..3 {
        memory.now.set(Nanos(NOW.0 + bucket * 60 * SECOND_NS));
        let before = memory.is_known.get();
        for _ in 0..1000 {
            assert_eq!(memory.judges(PACKET), Reason::WithinLimit);
        }
        let made_known = memory.is_known.get() - before;
        assert!((1..=LITTLE + 1).contains(&made_known), "{made_known} times");
    }
}

#[test]
fn a_source_that_is_charged_a_second_time_is_known_however_little_that_is() {
    for full_buckets in [0, 5] {
        let memory = memory(rule(&[Limit { full_buckets, ..limit(7, Unit::Bytes, 1 << 20) }]));
        assert_eq!(memory.judges(Charges { bytes: 60_000, ..PACKET }), Reason::WithinLimit);
        assert_eq!(memory.is_known.get(), 0, "one packet may be forged");
        assert_eq!(memory.judges(Charges { bytes: 40, ..PACKET }), Reason::WithinLimit);
        assert_eq!(memory.is_known.get(), 1, "{full_buckets} buckets behind");
    }
}

#[test]
fn a_source_with_a_window_that_is_refused_is_known() {
    let memory = memory(rule(&[limit(7, Unit::Packets, 1)]));
    assert_eq!(memory.judges(PACKET), Reason::WithinLimit);
    assert_eq!(memory.is_known.get(), 0, "one packet may be forged");
    for _ in 0..1000 {
        assert_eq!(memory.judges(PACKET), Reason::OverLimit);
    }
    assert!((1..=LITTLE + 1).contains(&memory.is_known.get()));
}

#[test]
fn a_ban_begins_with_what_is_refused_and_drops_until_it_ends() {
    let mut banning = rule(&[limit(7, Unit::Packets, 1)]);
    let mut steps_ns = [0; BAN_STEPS_MAX];
    steps_ns[0] = 10 * SECOND_NS;
    banning.bans = ban::Rule { steps_ns, forget_ns: SECOND_NS, steps_len: 1, slot: 3 };
    assert!(!is_plain(&banning));
    banning.is_plain = 0;
    let memory = memory(banning);
    let judged: Vec<_> = (0..4).map(|_| memory.judges(PACKET)).collect();
    assert_eq!(judged, [Reason::WithinLimit, Reason::OverLimit, Reason::Banned, Reason::Banned]);
    assert_eq!(memory.ban.get().unwrap().get().dropped, 2);
    memory.now.set(Nanos(NOW.0 + 10 * SECOND_NS));
    assert_eq!(memory.judges(PACKET), Reason::OverLimit, "the window is full still");
}

const MINUTE_NS: u64 = 60 * SECOND_NS;

/// Returns the kind, slot, amount and relative bucket of each event so far.
fn told(memory: &Memory) -> Vec<(Kind, u32, u64, u64)> {
    let of = |event: &Event| {
        let bucket = Nanos(event.time_ns).bucket(MINUTE_NS).0 - NOW.bucket(MINUTE_NS).0;
        (Kind::from_code(event.kind).unwrap(), event.slot, event.used, bucket)
    };
    memory.events.borrow().iter().map(of).collect()
}

#[test]
fn the_first_refusal_of_a_bucket_is_an_event_and_no_other_is() {
    for full_buckets in [0, 5] {
        let limits = [Limit { full_buckets, ..limit(7, Unit::Packets, 3) }, limit(8, Unit::Bytes, 1000)];
        for limits in [&limits[..1], &limits[..]] {
            let memory = memory(Rule { name: 77, ..rule(limits) });
            for _ in 0..10 {
                memory.judges(PACKET);
            }
            assert_eq!(told(&memory), [(Kind::Refused, 7, 3, 0)], "{} limits", limits.len());
            memory.now.set(Nanos(NOW.0 + MINUTE_NS));
            for _ in 0..10 {
                memory.judges(PACKET);
            }
            assert_eq!(told(&memory), [(Kind::Refused, 7, 3, 0), (Kind::Refused, 7, 3, 1)]);
            assert_eq!(memory.events.borrow()[1].rule, 77);
        }
    }
}

#[test]
fn admitted_packets_send_no_event_even_at_the_limit() {
    let memory = memory(rule(&[limit(7, Unit::Packets, 3)]));
    assert!((0..3).all(|_| memory.judges(PACKET) == Reason::WithinLimit));
    assert_eq!(told(&memory), []);
}

#[test]
fn a_rule_in_dry_run_and_a_shadow_limit_would_refuse() {
    let dry = memory(Rule { refuses: refuses::NOTHING, ..rule(&[limit(7, Unit::Packets, 1)]) });
    for _ in 0..5 {
        dry.judges(PACKET);
    }
    assert_eq!(told(&dry), [(Kind::WouldRefuse, 7, 1, 0)]);
    let mut shadowed = Rule { shadows_len: 1, is_plain: 0, ..rule(&[limit(7, Unit::Packets, 4)]) };
    shadowed.limits[LIMITS_MAX] = limit(9, Unit::Packets, 2);
    let shadowed = memory(shadowed);
    for _ in 0..6 {
        shadowed.judges(PACKET);
    }
    assert_eq!(told(&shadowed), [(Kind::WouldRefuse, 9, 2, 0), (Kind::Refused, 7, 4, 0)]);
}

#[test]
fn a_ban_is_an_event_with_its_step_and_its_end() {
    let mut banning = rule(&[limit(7, Unit::Packets, 1)]);
    let steps_ns = [10 * SECOND_NS, 20 * SECOND_NS, 0, 0];
    banning.bans = ban::Rule { steps_ns, forget_ns: 3600 * SECOND_NS, steps_len: 2, slot: 3 };
    banning.is_plain = 0;
    let memory = memory(banning);
    for _ in 0..4 {
        memory.judges(PACKET);
    }
    // The ban is over, and the source was admitted again.
    memory.now.set(Nanos(NOW.0 + 6 * MINUTE_NS));
    for _ in 0..4 {
        memory.judges(PACKET);
    }
    let events = memory.events.borrow();
    let bans = events.iter().filter(|event| event.kind == Kind::Ban as u8);
    let bans: Vec<_> = bans.map(|event| (event.until_ns - event.time_ns, event.step, event.used)).collect();
    assert_eq!(bans, [(10 * SECOND_NS, 0, 1), (20 * SECOND_NS, 1, 1)]);
    assert_eq!(events.len(), 4, "each follows the refusal that it is for");
}

/// Returns a rule that bans by verified traffic and allows three connections.
fn banning_by_connections() -> Memory {
    let needs = EvidenceNeeds::BANS.or(EvidenceNeeds::CONNECTIONS).or(EvidenceNeeds::CONNECTIONS_ALONE);
    let bans = ban::Rule { steps_ns: [SECOND_NS; BAN_STEPS_MAX], forget_ns: SECOND_NS, steps_len: 1, slot: 3 };
    memory(Rule { bans, evidence: needs, is_plain: 0, ..rule(&[limit(7, Unit::Connections, 3)]) })
}

impl Memory {
    /// Opens a connection and completes its handshake.
    fn connects(&self) -> Reason {
        let reason = self.judges(SYN);
        if reason == Reason::WithinLimit {
            self.judges(Charges { is: is::VERIFIED | is::ESTABLISHED | is::FIRST, ..PACKET });
            verify(self);
        }
        reason
    }

    fn has_ban(&self) -> bool {
        self.ban.get().is_some()
    }
}

const SYN: Charges = Charges { is: is::OPENING, ..PACKET };

#[test]
fn the_connection_that_exceeds_a_limit_bans_though_all_before_it_are_closed() {
    let memory = banning_by_connections();
    for _ in 0..3 {
        assert_eq!(memory.connects(), Reason::WithinLimit);
        assert!(!memory.has_ban());
    }
    assert_eq!(memory.connects(), Reason::OverLimit);
    assert!(memory.has_ban());
}

#[test]
fn a_refused_source_is_banned_by_the_last_of_its_verified_connections() {
    let memory = banning_by_connections();
    assert!((0..3).all(|_| memory.judges(SYN) == Reason::WithinLimit));
    assert_eq!(memory.judges(SYN), Reason::OverLimit);
    for verified in 1..=3 {
        memory.judges(Charges { is: is::VERIFIED | is::ESTABLISHED | is::FIRST, ..PACKET });
        verify(&memory);
        assert_eq!(memory.has_ban(), verified == 3);
    }
}

#[test]
fn forged_syns_ban_no_source_with_verified_connections_below_the_limit() {
    for verified in 0..3 {
        let memory = banning_by_connections();
        (0..verified).for_each(|_| assert_eq!(memory.connects(), Reason::WithinLimit));
        (0..100).for_each(|_| {
            memory.judges(SYN);
        });
        assert_eq!(memory.judges(SYN), Reason::OverLimit);
        assert!(!memory.has_ban(), "{verified}");
    }
}

#[test]
fn an_acknowledgement_is_nothing_only_to_rules_that_count_and_refuse_none() {
    let counted =
        |units: &[Unit]| rule(&units.iter().zip(0..).map(|(unit, slot)| limit(slot, *unit, 5)).collect::<Vec<_>>());
    assert!(ignores_acknowledgements(&counted(&[Unit::Requests])));
    assert!(ignores_acknowledgements(&counted(&[Unit::Requests, Unit::Connections])));
    assert!(!ignores_acknowledgements(&counted(&[Unit::Requests, Unit::Packets])));
    assert!(!ignores_acknowledgements(&counted(&[Unit::Bytes])));
    let of_requests = counted(&[Unit::Requests]);
    assert!(!ignores_acknowledgements(&Rule { refuse_all: 1, ..of_requests }));
    assert!(!ignores_acknowledgements(&Rule { evidence: EvidenceNeeds::CONNECTIONS, ..of_requests }));
    let bans = ban::Rule { steps_len: 1, ..ban::Rule::default() };
    assert!(!ignores_acknowledgements(&Rule { bans, ..of_requests }));
    let mut with_shadow = Rule { shadows_len: 1, ..of_requests };
    with_shadow.limits[LIMITS_MAX] = limit(9, Unit::Packets, 1);
    assert!(!ignores_acknowledgements(&with_shadow));
}

#[test]
fn charges_are_the_same_as_a_word() {
    let charges = Charges { bytes: u32::MAX - 1, requests: u16::MAX - 2, is: is::OPENING | is::ASKED, guarded: 5 };
    assert_eq!(Charges::from_word(charges.word()), charges);
    assert_eq!(Charges::from_word(Charges::GLANCE.word()), Charges::GLANCE);
}

#[test]
fn each_charge_result_has_exactly_one_meaning() {
    let codes = [
        Charged::REFUSED,
        Charged::FIRST_REFUSED,
        Charged::CONTENDED,
        Charged::NOT_KNOWN,
        Charged::NOT_REMEMBERED,
        Charged::NOT_ADMITTED,
        Charged::NEW_SOURCE_BUDGET,
    ];
    assert!(codes.iter().all(|code| code.bucket().is_none() && code.to_settle().is_none()));
    for bucket in [1, 29_454_360, (1 << 48) - 1] {
        for (is_fresh, is_step) in [(false, false), (true, false), (false, true), (true, true)] {
            let charged = Charged::to(bucket, is_fresh, is_step);
            assert_eq!((charged.bucket(), charged.to_settle()), (Some(bucket), None));
            assert_eq!((charged.is_fresh(), charged.is_step()), (is_fresh, is_step));
            assert_eq!(charged.has_news(), is_fresh || is_step);
        }
        let unsettled = Charged::unsettled(bucket);
        assert_eq!((unsettled.bucket(), unsettled.to_settle()), (None, Some(bucket)));
    }
}

#[test]
fn each_step_is_told_once_with_its_bucket_and_only_of_the_sides_that_are_summed() {
    let parts = Parts::shared(60 * SECOND_NS, 100, 2);
    let told_sides = 1 << Side::Verified as u8;
    let shared = Limit { parts, told_sides, ..limit(7, Unit::Packets, 100) };
    for limits in [vec![shared], vec![shared, limit(8, Unit::Packets, 50)]] {
        let memory = memory(rule(&limits));
        let verified = Charges { is: is::VERIFIED, ..PACKET };
        for packet in 1..=20_usize {
            assert_eq!(memory.judges(PACKET), Reason::WithinLimit);
            assert_eq!(memory.judges(verified), Reason::WithinLimit);
            assert_eq!(memory.steps.borrow().len(), packet / 4, "4 of our own are a step");
        }
        let bucket = NOW.bucket(60 * SECOND_NS).0;
        let step = Step { slot: 7, side: Side::Verified as u8, bucket, ..Step::default() };
        assert!(memory.steps.borrow().iter().all(|of| *of == step));
    }
}
