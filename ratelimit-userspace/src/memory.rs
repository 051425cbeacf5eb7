//! Sources in memory, held to limits by the kernel's own core: what a fake kernel and a replay judge by. Pure; time is an argument.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use ipnet::IpNet;
use ratelimit_common::ban::Ban;
use ratelimit_common::gcra::{self, Rate};
use ratelimit_common::hold::{self, At, Banned, Charged, Cost, Excuse, Inserted, State, Window};
use ratelimit_common::layout::{LIMITS_MAX, Limit, Rule, Source};
use ratelimit_common::refusals::Refusals;
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_common::verdict::Reason;
use ratelimit_common::window::{CELLS, Cells, Charge};

/// What is kept of sources: windows and bans by source and slot, and each rule's leaky bucket of new sources.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    pub(crate) windows: BTreeMap<(IpNet, u32), Source>,
    pub(crate) bans: BTreeMap<(IpNet, u32), Ban>,
    /// By the name of the rule, as [`Rule::name`] has it.
    pub(crate) new_sources: BTreeMap<u64, u64>,
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

impl Sources {
    /// Holds a source to the limits of this rule for what its packet costs.
    pub(crate) fn hold(&mut self, client: IpNet, rule: &Rule, cost: Cost, now: Nanos) -> Held {
        let packet = Packet {
            sources: RefCell::new(std::mem::take(self)),
            client,
            rule,
            cost,
            now,
            charged: <[Cell<u64>; LIMITS_MAX]>::default(),
            refused_at: Cell::new(None),
            has_banned: Cell::new(false),
        };
        let reason = hold::hold(&packet);
        let (refused_at, has_banned) = (packet.refused_at.get().map(At::position), packet.has_banned.get());
        *self = packet.sources.into_inner();
        Held { reason, refused_at, has_banned }
    }

    /// The window of a source in this slot, made if there is none.
    pub(crate) fn window(&mut self, client: IpNet, slot: u32) -> &mut Source {
        self.windows.entry((client, slot)).or_default()
    }
}

/// One packet of one source.
struct Packet<'a> {
    sources: RefCell<Sources>,
    client: IpNet,
    rule: &'a Rule,
    cost: Cost,
    now: Nanos,
    charged: [Cell<u64>; LIMITS_MAX],
    refused_at: Cell<Option<At>>,
    has_banned: Cell<bool>,
}

/// A window, or a ban, by its slot.
#[derive(Clone, Copy)]
struct Place<'a> {
    sources: &'a RefCell<Sources>,
    key: (IpNet, u32),
}

impl Place<'_> {
    fn read(&self) -> Source {
        self.sources.borrow().windows.get(&self.key).copied().unwrap_or_default()
    }

    fn change(&self, change: impl FnOnce(&mut Source)) {
        if let Some(window) = self.sources.borrow_mut().windows.get_mut(&self.key) {
            change(window);
        }
    }

    fn change_ban(&self, change: impl FnOnce(&mut Ban)) {
        if let Some(ban) = self.sources.borrow_mut().bans.get_mut(&self.key) {
            change(ban);
        }
    }
}

impl Cells for Place<'_> {
    fn load(&self, index: usize) -> u64 {
        self.read().cells.load(index)
    }

    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> bool {
        let is_current = self.load(index) == current;
        if is_current {
            self.change(|window| window.cells[index & (CELLS - 1)] = new);
        }
        is_current
    }
}

impl Window for Place<'_> {
    fn refusals(&self) -> Refusals {
        self.read().refused
    }

    fn count_refused(&self, bucket: BucketIndex) {
        self.change(|window| window.refused = window.refused.and_one_in(bucket));
    }
}

impl Banned for Place<'_> {
    fn until(&self) -> Nanos {
        Nanos(Banned::read(self).until_ns)
    }

    fn read(&self) -> Ban {
        self.sources.borrow().bans.get(&self.key).copied().unwrap_or_default()
    }

    fn note_let_in(&self) {
        self.change_ban(|ban| ban.let_in = 1);
    }

    fn count_dropped(&self, packets: u64) {
        self.change_ban(|ban| ban.dropped = ban.dropped.saturating_add(packets));
    }

    fn replace(&self, _: &Ban, next: &Ban) -> bool {
        self.change_ban(|ban| *ban = *next);
        true
    }
}

impl Packet<'_> {
    fn place(&self, slot: u32) -> Place<'_> {
        Place { sources: &self.sources, key: (self.client, slot) }
    }

    fn is_known(&self) -> bool {
        let sources = self.sources.borrow();
        let limits = self.rule.limits[..LIMITS_MAX].iter().take(self.rule.limits_len.into());
        limits.into_iter().any(|limit| sources.windows.contains_key(&(self.client, limit.slot)))
    }

    /// Whether the rule lets one more new source in.
    fn lets_in(&self) -> bool {
        let (amount, window_ns) = (self.rule.new_sources, self.rule.new_sources_ns);
        let mut sources = self.sources.borrow_mut();
        let word = sources.new_sources.entry(self.rule.name).or_default();
        let words = <[Cell<u64>; CELLS]>::default();
        words[0].set(*word);
        let charge = gcra::charge(&words, Rate { amount, window_ns, burst_ns: window_ns }, self.now, 1);
        *word = words[0].get();
        matches!(charge, Charge::Admitted(_))
    }
}

impl<'a> State for &'a Packet<'_> {
    type Window = Place<'a>;
    type Ban = Place<'a>;

    fn rule(&self) -> &Rule {
        self.rule
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn is_ordered(&self) -> bool {
        false
    }

    fn precise(&self) -> Nanos {
        self.now
    }

    fn coarse(&self) -> Nanos {
        self.now
    }

    fn window(&self, slot: u32) -> Option<Place<'a>> {
        let place = Packet::place(self, slot);
        self.sources.borrow().windows.contains_key(&place.key).then_some(place)
    }

    fn insert(&self, slot: u32, open: impl FnOnce(&mut [u64; CELLS]) -> bool) -> Inserted {
        let mut window = Source::default();
        if !open(&mut window.cells) {
            return Inserted::Nothing;
        }
        self.sources.borrow_mut().windows.insert((self.client, slot), window);
        Inserted::New
    }

    fn ban(&self) -> Option<Place<'a>> {
        let place = Packet::place(self, self.rule.bans.slot);
        self.sources.borrow().bans.contains_key(&place.key).then_some(place)
    }

    fn insert_ban(&self, ban: &Ban) -> Inserted {
        self.sources.borrow_mut().bans.insert((self.client, self.rule.bans.slot), *ban);
        Inserted::New
    }

    fn count_ban(&self) {
        self.has_banned.set(true);
    }

    fn asks_who_is_new(&self) -> bool {
        self.rule.new_sources != 0
    }

    fn turned_away(&self, excuse: Excuse) -> Option<Reason> {
        let is_asked = excuse == Excuse::None && !self.is_known();
        (is_asked && !self.lets_in()).then_some(Reason::NewSourceBudget)
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

    fn keep_suspected(&self, _: At) {}

    fn suspected(&self) -> Option<At> {
        None
    }

    fn is_refusal_lasting(&self, _: &Limit) -> bool {
        false
    }

    fn least(&self, _: &Limit) -> u64 {
        1
    }

    fn note(&self, _: u32, _: u64, _: Reason, _: bool) {}

    fn note_connection(&self, _: u32, _: u64, _: bool) {}

    fn may_note_suspect(&self) -> bool {
        false
    }

    fn note_suspect(&self, _: u32, _: u64) {}

    fn count_refusal(&self, at: At) {
        self.refused_at.set(Some(at));
        hold::count_refusal(*self, at);
    }

    fn note_refusal(&self, _: At) {}

    fn charge(&self, at: At, amount: u64) -> Charged {
        let charged = hold::charge(*self, at, amount);
        if charged == Charged::REFUSED {
            self.refused_at.set(Some(at));
        }
        charged
    }
}
