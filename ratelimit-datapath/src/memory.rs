//! Packets and their sources in memory, judged by the kernel's own core. A fake kernel and a replay use this. Pure:
//! time is an argument.
//!
//! [`Rules`] choose the rule for a packet, [`Conversations`] determine its charges, and [`Sources`] apply the limits.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;

use ipnet::IpNet;
use ratelimit_common::ban::Ban;
use ratelimit_common::events::Kind;
use ratelimit_common::gcra::{self, Rate};
use ratelimit_common::hold::{self, Alone, At, Charged, Charges, CheckResult, GateBypass, Inserted, State, is};
use ratelimit_common::layout::{Event, LIMITS_MAX, Rule, SHADOWS_MAX, Source, Step};
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::{Action, Reason};
use ratelimit_common::verification::{EvidenceNeeds, Side};
use ratelimit_common::window::{CELLS, Charge};

mod events;
mod groups;
#[cfg(any(test, feature = "fixture"))]
mod packets;
mod recent;
mod rules;
mod traffic;

pub(crate) use events::Told;
pub use groups::LIST;
#[cfg(any(test, feature = "fixture"))]
pub use packets::{Judged, Packets, Sender};
pub use rules::Rules;
pub use traffic::{Conversations, address};

/// State of sources: windows and bans by source and slot, and each rule's leaky bucket of new sources.
#[derive(Debug, Default)]
pub struct Sources {
    /// Windows by source and slot.
    pub windows: BTreeMap<(IpNet, u32), Source>,
    /// Bans by source and the hash of the rule's name.
    pub bans: BTreeMap<(IpNet, u32), Ban>,
    /// Leaky buckets of new sources by the rule's [`Rule::name`].
    new_sources: BTreeMap<u64, u64>,
    /// Recorded events.
    pub(crate) events: Told,
    /// Recorded steps of limits that hosts share.
    #[cfg(any(test, feature = "fixture"))]
    pub(crate) steps: Vec<Step>,
}

/// Outcome of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Reason why the packet passes or is dropped.
    pub reason: Reason,
    /// Position of the limit that refused the packet, if one did.
    pub refused_at: Option<usize>,
    /// True if a ban began.
    pub has_banned: bool,
    /// Expiry of the connection's drop entry, set when one of its requests is refused, with the side that refused. 0
    /// means a brief entry.
    pub shuts: Option<(u64, Side)>,
    /// Expiry of the source's ban, if the packet met it.
    pub banned_until: Option<u64>,
}

/// Windows of a limit in memory. The guard's window is not simulated.
const SIDES: [Side; 3] = [Side::Unverified, Side::Verified, Side::Evidence];

impl Sources {
    /// Applies a rule's limits to a source's packet. If the first known packet of a connection passes, the connection
    /// also counts as verified.
    pub fn hold(&mut self, client: IpNet, rule: &Rule, charges: Charges, now: Nanos) -> Held {
        self.step(client, rule, charges, now, |packet| {
            let reason = hold::hold(packet);
            if charges.has(is::FIRST) && reason.action() == Action::Pass {
                hold::verify(packet);
            }
            reason
        })
    }

    /// Charges a source's packet to a rule other than the one that judges the packet.
    pub fn charge(&mut self, client: IpNet, rule: &Rule, charges: Charges, now: Nanos) -> Held {
        self.step(client, rule, charges, now, |packet| hold::charge_all(packet, CheckResult::of(Reason::WithinLimit)).0)
    }

    fn step(
        &mut self,
        client: IpNet,
        rule: &Rule,
        charges: Charges,
        now: Nanos,
        step: impl FnOnce(&Packet<'_>) -> Reason,
    ) -> Held {
        // The sides differ only if the packet is verified or the rule needs evidence.
        let sides =
            if rule.evidence == EvidenceNeeds::default() && !charges.has(is::VERIFIED) { 1 } else { SIDES.len() };
        let windows = <[[OnceCell<Alone>; LIMITS_MAX + SHADOWS_MAX]; SIDES.len()]>::default();
        let held = held(client, rule);
        for (side, windows) in SIDES[..sides].iter().zip(&windows) {
            // An unused limit has a bucket length of 0.
            let limits = rule.limits.iter().zip(held).zip(windows).filter(|((limit, _), _)| limit.bucket_ns != 0);
            for ((limit, held), place) in limits {
                if let Some(window) = self.windows.get(&(held, side.slot(limit.slot))) {
                    let _is_new = place.set(alone(window));
                }
            }
        }
        let packet = Packet {
            rule,
            charges,
            now,
            windows,
            ban: self.bans.get(&(client, rule.bans.slot)).map_or_else(OnceCell::new, |ban| Cell::new(*ban).into()),
            new_sources: Cell::new(self.new_sources.get(&rule.name).copied().unwrap_or(0)),
            charged: <[Cell<u64>; LIMITS_MAX]>::default(),
            refused_at: Cell::new(None),
            has_banned: Cell::new(false),
            shuts: Cell::new(None),
            banned_until: Cell::new(None),
            turned: Cell::new(None),
            events: RefCell::default(),
            steps: RefCell::default(),
        };
        let reason = step(&packet);
        for (side, windows) in SIDES.iter().zip(&packet.windows) {
            for ((limit, held), window) in rule.limits.iter().zip(held).zip(windows) {
                if let Some(Alone { cells, refused }) = window.get() {
                    let window = Source { cells: cells.each_ref().map(Cell::get), refused: refused.get() };
                    self.windows.insert((held, side.slot(limit.slot)), window);
                }
            }
        }
        if let Some(ban) = packet.ban.get() {
            self.bans.insert((client, rule.bans.slot), ban.get());
        }
        for (kind, of, event) in packet.events.take() {
            self.events.send(kind, of.map_or(client, |position| held[position & (LIMITS_MAX - 1)]), event);
        }
        #[cfg(any(test, feature = "fixture"))]
        for step in packet.steps.take() {
            let (family, prefix) = crate::events::source(client);
            self.steps.push(Step { family, prefix, ..step });
        }
        if rule.new_sources != 0 {
            self.new_sources.insert(rule.name, packet.new_sources.get());
        }
        Held {
            reason,
            refused_at: packet.refused_at.get().map(At::position),
            has_banned: packet.has_banned.get(),
            shuts: packet.shuts.get(),
            banned_until: packet.banned_until.get(),
        }
    }

    /// Returns the window of a source in this slot. Creates the window if there is none.
    pub fn window(&mut self, client: IpNet, slot: u32) -> &mut Source {
        self.windows.entry((client, slot)).or_default()
    }
}

/// Returns for each limit the source or group whose window counts this client's packets.
fn held(client: IpNet, rule: &Rule) -> [IpNet; LIMITS_MAX + SHADOWS_MAX] {
    let mut held = [client; LIMITS_MAX + SHADOWS_MAX];
    let of_groups = usize::from(rule.own_len)..usize::from(rule.limits_len).min(LIMITS_MAX);
    for (held, group) in held[of_groups.clone()].iter_mut().zip(&rule.groups[of_groups]) {
        *held = groups::holder(group, client);
    }
    held
}

fn alone(window: &Source) -> Alone {
    Alone { cells: window.cells.map(Cell::new), refused: Cell::new(window.refused) }
}

/// One packet, and the state of its source.
struct Packet<'a> {
    rule: &'a Rule,
    charges: Charges,
    now: Nanos,
    /// Windows by side (see [`SIDES`]) and by position of the limit.
    windows: [[OnceCell<Alone>; LIMITS_MAX + SHADOWS_MAX]; SIDES.len()],
    ban: OnceCell<Cell<Ban>>,
    /// Word of the rule's leaky bucket of new sources.
    new_sources: Cell<u64>,
    charged: [Cell<u64>; LIMITS_MAX],
    refused_at: Cell<Option<At>>,
    has_banned: Cell<bool>,
    shuts: Cell<Option<(u64, Side)>>,
    banned_until: Cell<Option<u64>>,
    /// Position of the group limit that is evaluated, if any.
    turned: Cell<Option<usize>>,
    events: RefCell<Vec<(Kind, Option<usize>, Event)>>,
    steps: RefCell<Vec<Step>>,
}

impl Packet<'_> {
    /// Returns the cell of the window in this slot.
    fn place(&self, slot: u32) -> Option<&OnceCell<Alone>> {
        SIDES.iter().zip(&self.windows).find_map(|(side, windows)| {
            let mut limits = self.rule.limits.iter().zip(windows);
            limits.find(|(limit, _)| side.slot(limit.slot) == slot).map(|(_, place)| place)
        })
    }

    fn is_known(&self) -> bool {
        let limits = self.turned.get().map_or(0..self.rule.own_len.into(), |position| position..position + 1);
        self.windows.iter().any(|of| of[limits.clone()].iter().any(|window| window.get().is_some()))
    }

    /// Charges one new source to the rule's budget. Returns whether the source is admitted.
    fn passes_new(&self) -> bool {
        let (amount, window_ns) = (self.rule.new_sources, self.rule.new_sources_ns);
        let words = <[Cell<u64>; CELLS]>::default();
        words[0].set(self.new_sources.get());
        let charge = gcra::charge(&words, Rate { amount, window_ns, burst_ns: window_ns }, self.now, 1);
        self.new_sources.set(words[0].get());
        matches!(charge, Charge::Admitted(_))
    }
}

impl<'a> State for &'a Packet<'_> {
    type Window = &'a Alone;
    type Ban = &'a Cell<Ban>;

    fn rule(&self) -> &Rule {
        self.rule
    }

    fn charges(&self) -> Charges {
        self.charges
    }

    fn precise(&self) -> Nanos {
        self.now
    }

    fn coarse(&self) -> Nanos {
        self.now
    }

    fn window(&self, slot: u32) -> Option<&'a Alone> {
        self.place(slot)?.get()
    }

    fn insert(&self, slot: u32, open: impl FnOnce(&mut [u64; CELLS]) -> bool) -> Inserted {
        let mut window = Source::default();
        if !open(&mut window.cells) {
            return Inserted::Nothing;
        }
        match self.place(slot).map(|place| place.set(alone(&window))) {
            Some(Ok(())) => Inserted::New,
            Some(Err(_)) => Inserted::Existed,
            None => Inserted::Refused,
        }
    }

    fn ban(&self) -> Option<&'a Cell<Ban>> {
        let packet: &'a Packet<'_> = self;
        packet.ban.get()
    }

    fn insert_ban(&self, ban: &Ban) -> Inserted {
        match self.ban.set(Cell::new(*ban)) {
            Ok(()) => Inserted::New,
            Err(_) => Inserted::Existed,
        }
    }

    fn count_ban(&self) {
        self.has_banned.set(true);
    }

    fn gates_new_sources(&self) -> bool {
        self.rule.new_sources != 0
    }

    fn new_source_gate(&self, bypass: GateBypass) -> Option<Reason> {
        let is_asked = bypass == GateBypass::None && !self.is_known();
        (is_asked && !self.passes_new()).then_some(Reason::NewSourceBudget)
    }

    fn refuses_insertion(&self) -> Option<Charged> {
        None
    }

    fn make_known(&self) {}

    fn send_event(&self, kind: Kind, event: impl FnOnce() -> Event) {
        self.events.borrow_mut().push((kind, self.turned.get(), event()));
    }

    fn send_step(&self, step: Step) {
        self.steps.borrow_mut().push(step);
    }

    fn cache_drop(&self, _: u32, until_ns: u64, reason: Reason, _: bool) {
        if reason == Reason::Banned {
            self.banned_until.set(Some(until_ns));
        }
    }

    fn cache_connection_drop(&self, _: u32, until_ns: u64, is_unverified: bool) {
        self.shuts.set(Some((until_ns, if is_unverified { Side::Unverified } else { Side::Verified })));
    }

    fn keep_charged(&self, position: usize, bucket: u64) {
        self.charged[position & (LIMITS_MAX - 1)].set(bucket);
    }

    fn charged(&self, position: usize) -> u64 {
        self.charged[position & (LIMITS_MAX - 1)].get()
    }

    fn turn_to(&self, position: usize) {
        self.turned.set(Some(position));
    }

    fn turn_back(&self) {
        self.turned.set(None);
    }

    fn cache_refusal(&self, at: At, is_counted: bool) {
        self.refused_at.set(Some(at));
        hold::cache_refusal(*self, at, is_counted);
    }

    fn charge(&self, at: At, amount: u64) -> Charged {
        let charged = hold::charge_with_retry(*self, at, amount);
        if charged == Charged::REFUSED {
            self.refused_at.set(Some(at));
        }
        charged
    }
}
