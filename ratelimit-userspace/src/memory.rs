//! Sources in memory, held to limits by the kernel's own core: what a fake kernel and a replay judge by. Pure; time is an argument.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;

use ipnet::IpNet;
use ratelimit_common::ban::Ban;
use ratelimit_common::gcra::{self, Rate};
use ratelimit_common::hold::{self, Alone, At, Charged, Cost, Excuse, Inserted, State};
use ratelimit_common::layout::{LIMITS_MAX, Limit, Rule, SHADOWS_MAX, Source};
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;
use ratelimit_common::window::{CELLS, Charge};

use crate::datapath::encode;
use crate::desired;

/// What is kept of sources: windows and bans by source and slot, and each rule's leaky bucket of new sources.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    pub(crate) windows: BTreeMap<(IpNet, u32), Source>,
    pub(crate) bans: BTreeMap<(IpNet, u32), Ban>,
    /// By the name of the rule, as [`Rule::name`] has it.
    new_sources: BTreeMap<u64, u64>,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) reason: Reason,
    /// The position of the limit that refused it, if one did.
    pub(crate) refused_at: Option<usize>,
    /// Whether a ban began.
    pub(crate) has_banned: bool,
}

/// A rule as sources are held to it here, where whatever comes is proven; none where it does not fit the kernel's maps.
pub(crate) fn rule(rule: &desired::Rule) -> Option<Rule> {
    Some(Rule { proof: 0, guard: 0, ..encode::rule(rule).ok()? })
}

impl Sources {
    /// Holds a source to the limits of this rule for what its packet costs.
    pub(crate) fn hold(&mut self, client: IpNet, rule: &Rule, cost: Cost, now: Nanos) -> Held {
        let kept = |limit: &Limit| match self.windows.get(&(client, limit.slot)) {
            // A limit that is none has no buckets.
            Some(window) if limit.bucket_ns != 0 => alone(window).into(),
            Some(_) | None => OnceCell::new(),
        };
        let packet = Packet {
            rule,
            cost,
            now,
            windows: rule.limits.each_ref().map(kept),
            ban: self.bans.get(&(client, rule.bans.slot)).map_or_else(OnceCell::new, |ban| Cell::new(*ban).into()),
            new_sources: Cell::new(self.new_sources.get(&rule.name).copied().unwrap_or(0)),
            charged: <[Cell<u64>; LIMITS_MAX]>::default(),
            refused_at: Cell::new(None),
            has_banned: Cell::new(false),
        };
        let reason = hold::hold(&packet);
        for (limit, window) in rule.limits.iter().zip(&packet.windows) {
            if let Some(Alone { cells, refused }) = window.get() {
                let window = Source { cells: cells.each_ref().map(Cell::get), refused: refused.get() };
                self.windows.insert((client, limit.slot), window);
            }
        }
        if let Some(ban) = packet.ban.get() {
            self.bans.insert((client, rule.bans.slot), ban.get());
        }
        if rule.new_sources != 0 {
            self.new_sources.insert(rule.name, packet.new_sources.get());
        }
        let refused_at = packet.refused_at.get().map(At::position);
        Held { reason, refused_at, has_banned: packet.has_banned.get() }
    }

    /// The window of a source in this slot, made if there is none.
    pub(crate) fn window(&mut self, client: IpNet, slot: u32) -> &mut Source {
        self.windows.entry((client, slot)).or_default()
    }
}

fn alone(window: &Source) -> Alone {
    Alone { cells: window.cells.map(Cell::new), refused: Cell::new(window.refused) }
}

/// One packet, and what is kept of its source.
struct Packet<'a> {
    rule: &'a Rule,
    cost: Cost,
    now: Nanos,
    /// By the position of their limits.
    windows: [OnceCell<Alone>; LIMITS_MAX + SHADOWS_MAX],
    ban: OnceCell<Cell<Ban>>,
    /// The word of the rule's leaky bucket of new sources.
    new_sources: Cell<u64>,
    charged: [Cell<u64>; LIMITS_MAX],
    refused_at: Cell<Option<At>>,
    has_banned: Cell<bool>,
}

impl Packet<'_> {
    /// The place of a window: what is proven and what is not are one here.
    fn place(&self, slot: u32) -> Option<&OnceCell<Alone>> {
        self.rule.limits.iter().zip(&self.windows).find(|(limit, _)| limit.slot == slot).map(|(_, place)| place)
    }

    fn is_known(&self) -> bool {
        self.windows[..self.rule.limits_len.into()].iter().any(|window| window.get().is_some())
    }

    /// Whether the rule passes one more new source.
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

    fn cost(&self) -> Cost {
        self.cost
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

    fn asks_who_is_new(&self) -> bool {
        self.rule.new_sources != 0
    }

    fn turned_away(&self, excuse: Excuse) -> Option<Reason> {
        let is_asked = excuse == Excuse::None && !self.is_known();
        (is_asked && !self.passes_new()).then_some(Reason::NewSourceBudget)
    }

    fn keeps_out(&self) -> Option<Charged> {
        None
    }

    fn make_known(&self) {}

    fn make_armed(&self) {}

    fn keep_charged(&self, position: usize, bucket: u64) {
        self.charged[position & (LIMITS_MAX - 1)].set(bucket);
    }

    fn charged(&self, position: usize) -> u64 {
        self.charged[position & (LIMITS_MAX - 1)].get()
    }

    fn count_refusal(&self, at: At) {
        self.refused_at.set(Some(at));
        hold::count_refusal(*self, at);
    }

    fn charge(&self, at: At, amount: u64) -> Charged {
        let charged = hold::charge(*self, at, amount);
        if charged == Charged::REFUSED {
            self.refused_at.set(Some(at));
        }
        charged
    }
}
