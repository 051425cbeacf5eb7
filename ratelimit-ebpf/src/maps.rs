//! Every map of the program, private, behind accessors that say what may fail. Knows layouts, decides nothing.

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd};
use core::ptr::NonNull;

use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_NOEXIST};
use aya_ebpf::macros::map;
use aya_ebpf::maps::lpm_trie::{Key, LpmTrie};
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray};
use ratelimit_common::admission::{Admission, CELLS_PER_SUMMARY};
use ratelimit_common::ban::Ban;
use ratelimit_common::conversation::Conversation;
use ratelimit_common::flow::Flow;
use ratelimit_common::layout::{
    self, BANS_CAPACITY, CONFIGS, CONVERSATIONS_CAPACITY, COUNTERS_LEN, ChargeOrder, Config, ConversationKeyV4,
    ConversationKeyV6, Counters, FAULTS_MAX, FLOWS_CAPACITY, Fault, FlowKeyV4, FlowKeyV6, GENERATION_BITS, GENERATIONS,
    LINES_CAPACITY, LINES_PER_CONNECTIONS, LINES_PER_WORD, PREFIXES_MAX, PortTable, Prefix, PrefixKeyV4, PrefixKeyV6,
    ROWS_MAX, RULES_MAX, Rule, RuleSet, SOURCES_CAPACITY, Source, SourceKeyV4, SourceKeyV6, SourceKeyV6Wide,
    TARGETS_MAX, UNLISTED_PER_LINE,
};
use ratelimit_common::refusals::Refusals;
use ratelimit_common::refused::{Cause, Line, WAYS};
use ratelimit_common::source::Address;
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_common::window::{self, CELLS, Cells};

use crate::clock::Clock;
use crate::packet::forget;

#[map]
static ACTIVE: Array<layout::Active> = Array::with_max_entries(1, 0);
#[map]
static CONFIG: Array<Config> = Array::with_max_entries(CONFIGS, 0);
#[map]
static PORTS: Array<PortTable> = Array::with_max_entries(GENERATIONS, 0);
#[map]
static PREFIXES_V4: LpmTrie<PrefixKeyV4, Prefix> = LpmTrie::with_max_entries(GENERATIONS * PREFIXES_MAX, 0);
#[map]
static PREFIXES_V6: LpmTrie<PrefixKeyV6, Prefix> = LpmTrie::with_max_entries(GENERATIONS * PREFIXES_MAX, 0);
#[map]
static TARGETS_V4: LpmTrie<PrefixKeyV4, RuleSet> = LpmTrie::with_max_entries(GENERATIONS * TARGETS_MAX, 0);
#[map]
static TARGETS_V6: LpmTrie<PrefixKeyV6, RuleSet> = LpmTrie::with_max_entries(GENERATIONS * TARGETS_MAX, 0);
#[map]
static SOURCES_V4: LruHashMap<SourceKeyV4, Source> = LruHashMap::with_max_entries(SOURCES_CAPACITY, 0);
#[map]
static SOURCES_V6: LruHashMap<SourceKeyV6, Source> = LruHashMap::with_max_entries(SOURCES_CAPACITY, 0);
#[map]
static SOURCES_V6_WIDE: LruHashMap<SourceKeyV6Wide, Source> = LruHashMap::with_max_entries(SOURCES_CAPACITY, 0);
#[map]
static BANS_V4: HashMap<SourceKeyV4, Ban> = HashMap::with_max_entries(BANS_CAPACITY, 0);
#[map]
static BANS_V6: HashMap<SourceKeyV6, Ban> = HashMap::with_max_entries(BANS_CAPACITY, 0);
#[map]
static BANS_V6_WIDE: HashMap<SourceKeyV6Wide, Ban> = HashMap::with_max_entries(BANS_CAPACITY, 0);
#[map]
static FLOWS_V4: LruHashMap<FlowKeyV4, Flow> = LruHashMap::with_max_entries(FLOWS_CAPACITY, 0);
#[map]
static FLOWS_V6: LruHashMap<FlowKeyV6, Flow> = LruHashMap::with_max_entries(FLOWS_CAPACITY, 0);
#[map]
static CONVERSATIONS_V4: LruHashMap<ConversationKeyV4, Conversation> =
    LruHashMap::with_max_entries(CONVERSATIONS_CAPACITY, 0);
#[map]
static CONVERSATIONS_V6: LruHashMap<ConversationKeyV6, Conversation> =
    LruHashMap::with_max_entries(CONVERSATIONS_CAPACITY, 0);
#[map]
static REFUSED: Array<Line> = Array::with_max_entries(LINES_CAPACITY, BPF_F_MMAPABLE);
#[map]
static CAUSES: Array<[Cause; WAYS]> = Array::with_max_entries(LINES_CAPACITY, BPF_F_MMAPABLE);
#[map]
static NOTED: Array<u64> = Array::with_max_entries(LINES_CAPACITY / LINES_PER_WORD, 0);
#[map]
static KNOWN: Array<[u64; 2]> = Array::with_max_entries(LINES_CAPACITY, 0);
#[map]
static KNOWN_SUMMARY: Array<[u64; 2]> = Array::with_max_entries(LINES_CAPACITY / CELLS_PER_SUMMARY, 0);
#[map]
static CONNECTIONS: Array<[[u64; 2]; 2]> = Array::with_max_entries(LINES_CAPACITY / LINES_PER_CONNECTIONS, 0);
#[map]
static UNLISTED: Array<u64> = Array::with_max_entries(LINES_CAPACITY * UNLISTED_PER_LINE, 0);
#[map]
static ADMISSION: PerCpuArray<Admission> = PerCpuArray::with_max_entries(1, 0);
#[map]
static NEW_SOURCES: Array<u64> = Array::with_max_entries(ROWS_MAX as u32, 0);
#[map]
static SEEN: PerCpuArray<Seen> = PerCpuArray::with_max_entries(1, 0);
#[map]
static PENDING: PerCpuArray<Pending> = PerCpuArray::with_max_entries(1, 0);
#[map]
static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(COUNTERS_LEN as u32, 0);
#[map]
static FAULTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(FAULTS_MAX, 0);
#[map]
static BANS_BEGUN: PerCpuArray<u64> = PerCpuArray::with_max_entries(ROWS_MAX as u32, 0);
#[map]
static CHARGE_ORDER: Array<ChargeOrder> = Array::with_max_entries(1, 0);
#[map]
static SCRATCH: PerCpuArray<Source> = PerCpuArray::with_max_entries(1, 0);
#[map]
static READ_IN_TICK: PerCpuArray<ReadInTick> = PerCpuArray::with_max_entries(1, 0);
#[map]
static INJECTED_NOW: Array<u64> = Array::with_max_entries(1, 0);

/// 0 in production, where the verifier then drops what depends on it; tests set it when they load the program.
#[unsafe(no_mangle)]
static CLOCK_IS_INJECTED: u8 = 0;

/// The configuration that this packet is judged by: one generation, read once.
#[derive(Clone, Copy)]
pub(crate) struct Active {
    pub(crate) config: &'static Config,
    /// One word, which takes less of the stack than its parts.
    pub(crate) word: layout::Active,
}

/// The active generation. The daemon writes only the other one, and waits for every packet that still reads a
/// generation before it writes that one again.
#[inline(always)]
pub(crate) fn active() -> Option<Active> {
    let Some(active) = ACTIVE.get_ptr(0) else {
        fault(Fault::ActiveLookup);
        return None;
    };
    // SAFETY: the element lives as long as the map. Volatile: it is read once, so that the packet keeps to one generation.
    let mut word = unsafe { active.read_volatile() };
    let mut config = config(word.generation())?;
    if config.until_ns != 0 && config.until_ns <= Clock::new(config.wall_offset_ns).coarse().0 {
        word = word.after_trial();
        config = self::config(word.generation())?;
    }
    Some(Active { config, word })
}

/// The class of each port.
#[inline(always)]
pub(crate) fn ports(generation: u32) -> Option<&'static PortTable> {
    let ports = PORTS.get(generation);
    if ports.is_none() {
        fault(Fault::PortsLookup);
    }
    ports
}

/// The configuration of a generation, without its ports.
#[inline(always)]
pub(crate) fn config(generation: u32) -> Option<&'static Config> {
    let config = CONFIG.get(generation & (CONFIGS - 1));
    if config.is_none() {
        fault(Fault::ConfigLookup);
    }
    config
}

/// A rule of a configuration, by a number that the verifier need not know.
#[inline(always)]
pub(crate) fn rule(config: &'static Config, index: u32) -> &'static Rule {
    &config.rules[forget(index) as usize & (RULES_MAX - 1)]
}

/// What the daemon orders.
#[inline(always)]
pub(crate) fn charge_order() -> Option<&'static ChargeOrder> {
    CHARGE_ORDER.get(0)
}

/// The time that a test injected; none in production.
#[inline(always)]
pub(crate) fn injected_now() -> Option<Nanos> {
    // SAFETY: a static of this program. Volatile: the loader may have put another value in the place of the 0 here.
    if unsafe { (&raw const CLOCK_IS_INJECTED).read_volatile() } == 0 {
        return None;
    }
    INJECTED_NOW.get(0).map(|&now_ns| Nanos(now_ns))
}

/// The clock as it was read first in a timer tick.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ReadInTick {
    /// Which tick, by the kernel's count.
    pub(crate) tick: u64,
    /// What the clock said.
    pub(crate) monotonic_ns: u64,
}

/// What this CPU has last read of the clock.
#[inline(always)]
pub(crate) fn read_in_tick() -> Option<&'static mut ReadInTick> {
    let Some(last) = READ_IN_TICK.get_ptr_mut(0) else {
        fault(Fault::ReadInTickLookup);
        return None;
    };
    // SAFETY: this CPU's element, which lives as long as the map; it is borrowed only while a clock is read.
    Some(unsafe { &mut *last })
}

/// What is known of the longest prefix that holds this source. // a trie walk: call it only where there are any
#[inline(always)]
pub(crate) fn prefix(generation: u32, source: Address) -> Option<&'static Prefix> {
    match source {
        Address::V4(address) => prefix_v4(generation, address),
        Address::V6([high, low]) => prefix_v6(generation, high, low),
    }
}

/// Functions of their own, for the keys' place on the stack.
#[inline(never)]
fn prefix_v4(generation: u32, address: u32) -> Option<&'static Prefix> {
    PREFIXES_V4.get(trie_key(&[GENERATION_BITS + 32, generation, address]))
}

#[inline(never)]
fn prefix_v6(generation: u32, high: u64, low: u64) -> Option<&'static Prefix> {
    let [w0, w1, w2, w3] = words([high, low]);
    PREFIXES_V6.get(trie_key(&[GENERATION_BITS + 128, generation, w0, w1, w2, w3]))
}

/// The rules that name the longest prefix that holds the destination of the packet that was seen last. // likewise
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn target_rules(generation: u32) -> RuleSet {
    let Some(seen) = seen() else { return 0 };
    let rules = match seen.destination() {
        Address::V4(address) => TARGETS_V4.get(trie_key(&[GENERATION_BITS + 32, generation, address])),
        Address::V6(address) => {
            let [w0, w1, w2, w3] = words(address);
            TARGETS_V6.get(trie_key(&[GENERATION_BITS + 128, generation, w0, w1, w2, w3]))
        }
    };
    rules.copied().unwrap_or(0)
}

#[inline(always)]
fn words(address: [u64; 2]) -> [u32; 4] {
    let halves = |half: u64| {
        let [a, b, c, d, e, f, g, h] = half.to_ne_bytes();
        [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
    };
    let ([w0, w1], [w2, w3]) = (halves(address[0]), halves(address[1]));
    [w0, w1, w2, w3]
}

/// A trie's key from its words: length in bits, then data. The key's own type is packed, which would be stored byte by byte.
#[inline(always)]
fn trie_key<const WORDS: usize, const DATA: usize>(words: &[u32; WORDS]) -> &Key<[u32; DATA]> {
    const { assert!(size_of::<Key<[u32; DATA]>>() == size_of::<[u32; WORDS]>()) };
    // SAFETY: a packed key of 32-bit words has the layout of that many words, as asserted, and no alignment.
    unsafe { &*core::ptr::from_ref(words).cast() }
}

/// One window of one source, in its map.
///
/// The kernel reuses an evicted element at once, so another source may get it while this packet still holds it. Then
/// this packet's charge lands there, or is lost: one packet's worth, and only in the instant of an eviction.
#[derive(Clone, Copy)]
pub(crate) struct SourceRef(NonNull<Source>);

impl SourceRef {
    /// The window at this pointer, which a look-up gave; none if it is null.
    #[inline(always)]
    pub(crate) fn new(source: *mut Source) -> Option<Self> {
        NonNull::new(source).map(Self)
    }

    /// What this window has refused.
    #[inline(always)]
    pub(crate) fn refusals(self) -> Refusals {
        // SAFETY: the lookup gave a pointer to a whole element, valid for the run of the program. Volatile: other CPUs write it.
        Refusals(unsafe { self.refused().read_volatile() })
    }

    /// Counts one packet that this window refused in `bucket`.
    #[inline(always)]
    pub(crate) fn count_refused(self, bucket: BucketIndex) {
        let refusals = self.refusals();
        if !refusals.is_in(bucket) {
            let newer = refusals.and_one_in(bucket).0;
            // SAFETY: as above, and map values are aligned to 8 bytes.
            let (_, exchanged) = unsafe {
                atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(
                    self.refused(),
                    refusals.0,
                    newer,
                )
            };
            if exchanged {
                return;
            }
        }
        if !refusals.is_full() {
            // SAFETY: as above.
            unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(self.refused(), 1) };
        }
    }

    /// Counts packets that were refused in its name, in the bucket of the newest refusal or after it.
    #[inline(always)]
    pub(crate) fn add_refused(self, packets: u64) {
        // SAFETY: as above.
        unsafe {
            atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(self.refused(), self.refusals().room_for(packets))
        };
    }

    #[inline(always)]
    fn refused(self) -> *mut u64 {
        // SAFETY: a field of the element that the lookup gave.
        unsafe { &raw mut (*self.0.as_ptr()).refused.0 }
    }

    /// [`window::full_until`].
    #[inline(always)]
    pub(crate) fn full_until(self, limit: &layout::Limit, bucket: BucketIndex, least: u64) -> BucketIndex {
        BucketIndex(out_of_line::full_until(self.0.as_ptr(), limit, bucket.0, least))
    }

    /// [`window::used`].
    #[inline(always)]
    pub(crate) fn used(self, limit: &layout::Limit, bucket: BucketIndex) -> u64 {
        out_of_line::used(self.0.as_ptr(), limit, bucket.0)
    }

    /// [`window::has_room`].
    #[inline(always)]
    pub(crate) fn has_room(self, limit: &layout::Limit, bucket: BucketIndex, amount: u64) -> bool {
        out_of_line::has_room(self.0.as_ptr(), limit, bucket.0, amount) != 0
    }

    #[inline(always)]
    fn cell(&self, index: usize) -> *mut u64 {
        // SAFETY: as above; the index stays within the array.
        unsafe { (&raw mut (*self.0.as_ptr()).cells).cast::<u64>().add(index & (CELLS - 1)) }
    }
}

impl Cells for SourceRef {
    const TRIES: usize = 4;

    #[inline(always)]
    fn load(&self, index: usize) -> u64 {
        // SAFETY: as above. Volatile: other CPUs write it, and each look wants one load.
        unsafe { self.cell(index).read_volatile() }
    }

    #[inline(always)]
    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> bool {
        // SAFETY: as above, and map values are aligned to 8 bytes.
        let (_, exchanged) = unsafe {
            atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(self.cell(index), current, new)
        };
        exchanged
    }

    #[inline(always)]
    fn used_unsettled(&self, limit: window::Limit, bucket: BucketIndex) -> u64 {
        out_of_line::used_unsettled(self.0.as_ptr(), limit.behind.into(), limit.count_bits.into(), bucket.0)
    }

    #[inline(always)]
    fn settle(&self, _: window::Limit, _: BucketIndex) -> Option<BucketIndex> {
        None
    }

    #[inline(always)]
    fn forget(&self, value: u64) -> u64 {
        u64::from(forget(value as u32)) | u64::from(forget((value >> 32) as u32)) << 32
    }
}

/// The verifier walks a global function once, whatever it is called with. Null is not passed; the verifier wants to
/// see that it would do no harm.
mod out_of_line {
    use super::{BucketIndex, Source, SourceRef, layout, window};

    #[unsafe(no_mangle)]
    #[inline(never)]
    pub(super) extern "C" fn used_unsettled(source: *mut Source, behind: u32, count_bits: u32, bucket: u64) -> u64 {
        let Some(source) = SourceRef::new(source) else { return 0 };
        window::used_unsettled(&source, limit(behind, count_bits), BucketIndex(bucket))
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    pub(super) extern "C" fn full_until(
        source: *mut Source,
        limit: *const layout::Limit,
        bucket: u64,
        least: u64,
    ) -> u64 {
        let (Some(source), Some(limit)) = (SourceRef::new(source), held(limit)) else { return bucket };
        window::full_until(&source, limit, BucketIndex(bucket), least).0
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    pub(super) extern "C" fn has_room(
        source: *mut Source,
        limit: *const layout::Limit,
        bucket: u64,
        amount: u64,
    ) -> u32 {
        let (Some(source), Some(limit)) = (SourceRef::new(source), held(limit)) else { return 1 };
        window::has_room(&source, limit, BucketIndex(bucket), amount) as u32
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    pub(super) extern "C" fn used(source: *mut Source, limit: *const layout::Limit, bucket: u64) -> u64 {
        let (Some(source), Some(limit)) = (SourceRef::new(source), held(limit)) else { return 0 };
        window::used(&source, limit, BucketIndex(bucket))
    }

    #[inline(always)]
    fn held(limit: *const layout::Limit) -> Option<window::Limit> {
        // SAFETY: a limit of a rule, which lives as long as its map.
        unsafe { limit.as_ref() }.map(layout::Limit::arithmetic)
    }

    const fn limit(behind: u32, count_bits: u32) -> window::Limit {
        window::Limit { amount: 0, behind: behind as u8, count_bits: count_bits as u8, burst: window::BURST_ANY }
    }
}

/// What became of the insertion of a source or flow.
pub(crate) enum Inserted {
    /// It is in the map.
    New,
    /// Another CPU was first.
    Existed,
    /// The map refused it; already counted as a fault.
    Refused,
}

const EEXIST: i32 = -17;

#[inline(always)]
fn inserted(result: Result<(), i32>, on_failure: Fault) -> Inserted {
    match result {
        Ok(()) => Inserted::New,
        Err(EEXIST) => Inserted::Existed,
        Err(_) => {
            fault(on_failure);
            Inserted::Refused
        }
    }
}

mod counts;
mod newcomers;
mod passing;
mod refused;
mod sockets;

pub(crate) use counts::{count, count_ban, fault};
pub(crate) use newcomers::{Marked, admission, is_marked, is_unlisted, lets_in, make_marked, note_unlisted};
pub(crate) use passing::{NoPacket, Pending, Seen, park, pending, place, scratch, seen, take_parked, to_see};
pub(crate) use refused::{may_be_noted, note_refused, refused};
pub(crate) use sockets::standing_of;

/// One source, in the map of its family.
pub(crate) trait Sources {
    /// Its window in `slot`, if it is remembered.
    fn window(&self, slot: u32) -> Option<SourceRef>;
    /// Remembers it. Never an update: an existing entry stays as it is.
    fn insert(&self, slot: u32, source: &Source) -> Inserted;
    /// Its prefix as two words, for hashes.
    fn words(&self) -> [u64; 2];
    /// Its newest ban in `slot`, if it is not forgotten.
    fn ban(&self, slot: u32) -> Option<BanRef>;
    /// Bans it for the first time.
    fn insert_ban(&self, slot: u32, ban: &Ban) -> Inserted;
}

/// A ban in its map.
#[derive(Clone, Copy)]
pub(crate) struct BanRef(NonNull<Ban>);

impl BanRef {
    /// Whether it holds.
    #[inline(always)]
    pub(crate) fn holds(self, now: Nanos) -> bool {
        now < self.until()
    }

    /// When it ends.
    #[inline(always)]
    pub(crate) fn until(self) -> Nanos {
        // SAFETY: as in `read`.
        Nanos(unsafe { (&raw const (*self.0.as_ptr()).until_ns).read_volatile() })
    }

    /// What it is. A copy: of what other CPUs change meanwhile, `until_ns` alone decides anything.
    #[inline(always)]
    pub(crate) fn read(self) -> Ban {
        // SAFETY: the lookup gave a pointer to a whole element, valid for the run of the program. The kernel reuses an
        // element that the daemon deletes; then one packet is judged by another's ban, in that instant only.
        unsafe { self.0.as_ptr().read_volatile() }
    }

    /// Notes that the source was let in after it. What two CPUs write here at once is the same.
    #[inline(always)]
    pub(crate) fn note_let_in(self) {
        // SAFETY: as above.
        unsafe { (&raw mut (*self.0.as_ptr()).let_in).write_volatile(1) };
    }

    /// Counts packets that it dropped.
    #[inline(always)]
    pub(crate) fn count_dropped(self, packets: u64) {
        // SAFETY: as above, and map values are aligned to 8 bytes.
        unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(&raw mut (*self.0.as_ptr()).dropped, packets) };
    }

    /// Puts `next` in its place, unless another CPU was first: so one excess makes one ban. Who reads between the writes sees
    /// the new end with the old step, which nothing is decided by before that end. True if it was done.
    #[inline(always)]
    #[must_use]
    pub(crate) fn replace(self, read: &Ban, next: &Ban) -> bool {
        // SAFETY: as above.
        let (_, exchanged) = unsafe {
            atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(
                &raw mut (*self.0.as_ptr()).until_ns,
                read.until_ns,
                next.until_ns,
            )
        };
        if exchanged {
            // SAFETY: as above.
            unsafe { (&raw mut (*self.0.as_ptr()).step).write_volatile(next.step) };
            // SAFETY: as above.
            unsafe { (&raw mut (*self.0.as_ptr()).let_in).write_volatile(next.let_in) };
            // SAFETY: as above.
            unsafe { (&raw mut (*self.0.as_ptr()).forgotten_ns).write_volatile(next.forgotten_ns) };
        }
        exchanged
    }
}

macro_rules! sources {
    ($(#[$doc:meta])* $name:ident, $prefix:ty, $key:ident, $map:ident, $fault:ident, $bans:ident, $ban_fault:ident, $words:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name(pub(crate) $prefix);

        impl Sources for $name {
            #[inline(always)]
            fn window(&self, slot: u32) -> Option<SourceRef> {
                $map.get_ptr_mut($key { prefix: self.0, slot }).and_then(NonNull::new).map(SourceRef)
            }

            #[inline(always)]
            fn insert(&self, slot: u32, source: &Source) -> Inserted {
                inserted($map.insert($key { prefix: self.0, slot }, source, BPF_NOEXIST.into()), Fault::$fault)
            }

            #[inline(always)]
            fn words(&self) -> [u64; 2] {
                ($words)(self.0)
            }

            #[inline(always)]
            fn ban(&self, slot: u32) -> Option<BanRef> {
                $bans.get_ptr_mut($key { prefix: self.0, slot }).and_then(NonNull::new).map(BanRef)
            }

            #[inline(always)]
            fn insert_ban(&self, slot: u32, ban: &Ban) -> Inserted {
                inserted($bans.insert($key { prefix: self.0, slot }, ban, BPF_NOEXIST.into()), Fault::$ban_fault)
            }
        }
    };
}

sources!(/** An IPv4 source. */ SourceV4, [u8; 4], SourceKeyV4, SOURCES_V4, SourcesV4Insert, BANS_V4, BansV4Insert, |prefix: [u8; 4]| [u64::from(u32::from_ne_bytes(prefix)), 4]);
sources!(/** An IPv6 source by a prefix of at most 64 bits. */ SourceV6, [u8; 8], SourceKeyV6, SOURCES_V6, SourcesV6Insert, BANS_V6, BansV6Insert, |prefix: [u8; 8]| [u64::from_ne_bytes(prefix), 6]);
sources!(/** An IPv6 source by a longer prefix. */ SourceV6Wide, [[u8; 8]; 2], SourceKeyV6Wide, SOURCES_V6_WIDE, SourcesV6WideInsert, BANS_V6_WIDE, BansV6WideInsert, |prefix: [[u8; 8]; 2]| prefix.map(u64::from_ne_bytes));
