//! Every map of the program. The maps are private; accessors say what may fail. Knows layouts, decides nothing.

use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_RDONLY_PROG};
use aya_ebpf::macros::map;
use aya_ebpf::maps::lpm_trie::{Key, LpmTrie};
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf};
use ratelimit_common::admission::{Admission, CELLS_PER_SUMMARY};
use ratelimit_common::ban::Ban;
use ratelimit_common::conversation::Conversation;
use ratelimit_common::drop_cache::{CacheSet, DropCause, WAYS};
use ratelimit_common::events::EventTally;
use ratelimit_common::flow::Flow;
use ratelimit_common::hold::Inserted;
use ratelimit_common::layout::{
    self, BANS_CAPACITY, CACHE_SETS, CONFIGS, CONVERSATIONS_CAPACITY, COUNTERS_LEN, ChargeOrder, Config,
    ConversationKeyV4, ConversationKeyV6, Counters, EVENTS_BYTES, FAULTS_MAX, FLOWS_CAPACITY, Fault, FlowKeyV4,
    FlowKeyV6, GENERATION_BITS, GENERATIONS, PREFIX_MISSES_PER_SET, PREFIXES_CAPACITY, PortTable, Prefix, PrefixFilter,
    PrefixKeyV4, PrefixKeyV6, ROWS_MAX, RULES_MAX, Rule, RuleSet, SETS_PER_CONN_CELL, SETS_PER_WORD, SOURCES_CAPACITY,
    STEPS_BYTES, Source, SourceKeyV4, SourceKeyV6, SourceKeyV6Wide, TARGETS_MAX,
};
use ratelimit_common::multiplicity::{Multiplicity, SOURCE_PLACES, SourceName, place_of_rule};
use ratelimit_common::source::Address;
use ratelimit_common::time::Nanos;

use crate::clock::Clock;
use crate::packet::forget;

// Maps that only the daemon writes are read-only to the program, which the verifier enforces. CONFIG is an exception:
// its limits are arguments of global functions. The verifier assumes that such a function may write to what an argument
// points to (`check_mem_reg`, kernel/bpf/verifier.c, Linux 6.18).
#[map]
static ACTIVE: Array<layout::Active> = Array::with_max_entries(1, BPF_F_RDONLY_PROG);
#[map]
static CONFIG: Array<Config> = Array::with_max_entries(CONFIGS, 0);
#[map]
static PORTS: Array<PortTable> = Array::with_max_entries(GENERATIONS, BPF_F_RDONLY_PROG);
#[map]
static PREFIXES_V4: LpmTrie<PrefixKeyV4, Prefix> =
    LpmTrie::with_max_entries(GENERATIONS * PREFIXES_CAPACITY, BPF_F_RDONLY_PROG);
#[map]
static PREFIXES_V6: LpmTrie<PrefixKeyV6, Prefix> =
    LpmTrie::with_max_entries(GENERATIONS * PREFIXES_CAPACITY, BPF_F_RDONLY_PROG);
#[map]
static TARGETS_V4: LpmTrie<PrefixKeyV4, RuleSet> =
    LpmTrie::with_max_entries(GENERATIONS * TARGETS_MAX, BPF_F_RDONLY_PROG);
#[map]
static TARGETS_V6: LpmTrie<PrefixKeyV6, RuleSet> =
    LpmTrie::with_max_entries(GENERATIONS * TARGETS_MAX, BPF_F_RDONLY_PROG);
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
static DROP_CACHE: Array<CacheSet> = Array::with_max_entries(CACHE_SETS, BPF_F_MMAPABLE);
#[map]
static DROP_CAUSES: Array<[DropCause; WAYS]> = Array::with_max_entries(CACHE_SETS, BPF_F_MMAPABLE);
#[map]
static DROP_SUMMARY: Array<u64> = Array::with_max_entries(CACHE_SETS / SETS_PER_WORD, 0);
#[map]
static KNOWN_FILTER: Array<[u64; 2]> = Array::with_max_entries(CACHE_SETS, 0);
#[map]
static KNOWN_SUMMARY: Array<[u64; 2]> = Array::with_max_entries(CACHE_SETS / CELLS_PER_SUMMARY, 0);
#[map]
static CONN_FILTER: Array<[[u64; 2]; 2]> = Array::with_max_entries(CACHE_SETS / SETS_PER_CONN_CELL, 0);
#[map]
static PREFIX_MISSES: Array<u64> = Array::with_max_entries(CACHE_SETS * PREFIX_MISSES_PER_SET, 0);
#[map]
static PREFIX_FILTER: Array<PrefixFilter> = Array::with_max_entries(GENERATIONS, BPF_F_RDONLY_PROG);
#[map]
static MULTIPLICITIES: Array<Multiplicity> =
    Array::with_max_entries(SOURCE_PLACES + ROWS_MAX as u32, BPF_F_RDONLY_PROG);
#[map]
static ADMISSION: PerCpuArray<Admission> = PerCpuArray::with_max_entries(1, 0);
#[map]
static NEW_SOURCES: Array<u64> = Array::with_max_entries(ROWS_MAX as u32, 0);
#[map]
static PARSED: PerCpuArray<ParsedFrame> = PerCpuArray::with_max_entries(1, 0);
#[map]
static DEFERRED: PerCpuArray<Deferred> = PerCpuArray::with_max_entries(Work::PLACES, 0);
#[map]
static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(COUNTERS_LEN as u32, 0);
#[map]
static FAULTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(FAULTS_MAX, 0);
#[map]
static BANS_BEGUN: PerCpuArray<u64> = PerCpuArray::with_max_entries(ROWS_MAX as u32, 0);
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(EVENTS_BYTES, 0);
#[map]
static EVENT_TALLIES: PerCpuArray<EventTally> = PerCpuArray::with_max_entries(layout::EVENT_TALLIES, 0);
#[map]
static STEPS: RingBuf = RingBuf::with_byte_size(STEPS_BYTES, 0);
#[map]
static CHARGE_ORDER: Array<ChargeOrder> = Array::with_max_entries(1, BPF_F_RDONLY_PROG);
#[map]
static SCRATCH: PerCpuArray<Source> = PerCpuArray::with_max_entries(Work::PLACES, 0);
#[map]
static CLOCK_CACHE: PerCpuArray<CachedClock> = PerCpuArray::with_max_entries(1, 0);
#[map]
static INJECTED_NOW: Array<u64> = Array::with_max_entries(1, BPF_F_RDONLY_PROG);

/// 0 in production, so that the verifier drops the code that depends on it. Tests set it when they load the program.
#[unsafe(no_mangle)]
static CLOCK_IS_INJECTED: u8 = 0;

/// Configuration that judges this packet: one generation, read once.
#[derive(Clone, Copy)]
pub(crate) struct Active {
    pub(crate) config: &'static Config,
    /// Generation and epoch in one word, which uses less stack than its parts.
    pub(crate) word: layout::Active,
}

/// Returns the active generation, or the one that follows a trial that has ended. The daemon writes only the other
/// generation. Before it writes a generation again, it waits for all packets that still read it.
#[inline(always)]
pub(crate) fn active() -> Option<Active> {
    let Some(active) = ACTIVE.get_ptr(0) else {
        fault(Fault::ActiveLookup);
        return None;
    };
    // SAFETY: the element lives as long as the map. Volatile: it is read once, so that the packet keeps to one
    // generation.
    let mut word = unsafe { active.read_volatile() };
    let Some(mut config) = config(word.generation()) else {
        fault(Fault::ConfigLookup);
        return None;
    };
    if config.until_ns != 0 && config.until_ns <= Clock::new(config.wall_offset_ns).coarse().0 {
        word = word.after_trial();
        config = self::config(word.generation())?;
    }
    Some(Active { config, word })
}

/// Returns 1 if enforcement has lapsed by this time. Call it only for refused packets, as it reads [`ACTIVE`] again. A
/// function of its own, so that its stack is free again.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn has_lapsed_by(now_ns: u64) -> u32 {
    active_word().is_some_and(|word| word.has_lapsed(Nanos(now_ns))) as u32
}

/// Returns the current word of [`ACTIVE`].
#[inline(always)]
pub(crate) fn active_word() -> Option<layout::Active> {
    ACTIVE.get(0).copied()
}

/// Returns the class of each port.
#[inline(always)]
pub(crate) fn ports(generation: u32) -> Option<&'static PortTable> {
    or_fault(PORTS.get(generation), Fault::PortsLookup)
}

/// Returns the configuration of a generation, without its ports. A missing one was counted by [`active`].
#[inline(always)]
pub(crate) fn config(generation: u32) -> Option<&'static Config> {
    CONFIG.get(generation & (CONFIGS - 1))
}

/// Returns a rule of a configuration. The number may be unknown to the verifier.
#[inline(always)]
pub(crate) fn rule(config: &'static Config, index: u32) -> &'static Rule {
    &config.rules[forget(index) as usize & (RULES_MAX - 1)]
}

/// Returns the number of requests that one turn of this source is charged as by this rule.
#[inline(always)]
pub(crate) fn multiplicity(of: &Of, rule: &Rule, places: u64, now: Nanos) -> u32 {
    let source = SourceName::of(of.words, places);
    let own = MULTIPLICITIES.get(source.place(rule.row, places));
    own.and_then(|own| own.requests(source, rule.row, now)).unwrap_or(1)
}

/// Returns true if the access log of this rule is read in time.
#[inline(always)]
pub(crate) fn is_log_read(rule: &Rule, now: Nanos) -> bool {
    MULTIPLICITIES.get(place_of_rule(rule.row)).is_some_and(|of_rule| of_rule.is_log_read(rule.row, now))
}

/// Returns the daemon's order.
#[inline(always)]
pub(crate) fn charge_order() -> Option<&'static ChargeOrder> {
    CHARGE_ORDER.get(0)
}

/// Returns the time that a test injected; `None` in production.
#[inline(always)]
pub(crate) fn injected_now() -> Option<Nanos> {
    // SAFETY: a static of this program. Volatile: the loader may have replaced the 0 here.
    if unsafe { (&raw const CLOCK_IS_INJECTED).read_volatile() } == 0 {
        return None;
    }
    INJECTED_NOW.get(0).map(|&now_ns| Nanos(now_ns))
}

/// The clock's first reading in a timer tick.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CachedClock {
    /// Number of the tick, by the kernel's count.
    pub(crate) tick: u64,
    /// Monotonic clock at the first reading, in nanoseconds.
    pub(crate) monotonic_ns: u64,
}

/// Returns this CPU's last reading of the clock.
#[inline(always)]
pub(crate) fn cached_clock() -> Option<&'static mut CachedClock> {
    let Some(last) = CLOCK_CACHE.get_ptr_mut(0) else {
        fault(Fault::ClockCacheLookup);
        return None;
    };
    // SAFETY: this CPU's element, which lives as long as the map; it is borrowed only while a clock is read.
    Some(unsafe { &mut *last })
}

/// Returns 0 if no prefix of this generation holds the source. // one or two bits: call it before the trie
#[inline(always)]
pub(crate) fn may_have_prefix(generation: u32, source: Address) -> u32 {
    let Some(filter) = PREFIX_FILTER.get(generation) else { return 1 };
    forget(filter.may_hold(source) as u32)
}

/// Returns the entry of the longest prefix that holds this source. // a trie walk: call it only where there are any
#[inline(always)]
pub(crate) fn prefix(generation: u32, source: Address) -> Option<&'static Prefix> {
    match source {
        Address::V4(address) => prefix_v4(generation, address),
        Address::V6([high, low]) => prefix_v6(generation, high, low),
    }
}

#[inline(always)]
fn prefix_v4(generation: u32, address: u32) -> Option<&'static Prefix> {
    PREFIXES_V4.get(trie_key(&[GENERATION_BITS + 32, generation, address]))
}

/// Looks up an IPv6 prefix. A function of its own, to keep the key on its own stack.
#[inline(never)]
fn prefix_v6(generation: u32, high: u64, low: u64) -> Option<&'static Prefix> {
    let [w0, w1, w2, w3] = words([high, low]);
    PREFIXES_V6.get(trie_key(&[GENERATION_BITS + 128, generation, w0, w1, w2, w3]))
}

/// Returns the rules that name the longest prefix that holds the current packet's destination. // a trie walk
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn target_rules(generation: u32) -> RuleSet {
    let Some(parsed) = parsed() else { return 0 };
    let rules = match parsed.destination() {
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

/// Returns a trie key with these words: length in bits, then data. The key's own type is packed, so the compiler would
/// store it byte by byte.
#[inline(always)]
fn trie_key<const WORDS: usize, const DATA: usize>(words: &[u32; WORDS]) -> &Key<[u32; DATA]> {
    const { assert!(size_of::<Key<[u32; DATA]>>() == size_of::<[u32; WORDS]>()) };
    // SAFETY: a packed key of 32-bit words has the layout of that many words, as asserted, and no alignment.
    unsafe { &*core::ptr::from_ref(words).cast() }
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

mod admission;
mod counts;
mod deferred;
mod drop_cache;
mod events;
mod parsed;
mod sockets;
mod sources;
mod words;

pub(crate) use admission::{
    Filter, admission, admits_new_source, cache_prefix_miss, in_filter, insert_into, is_prefix_miss, to_admit,
};
use counts::or_fault;
pub(crate) use counts::{count, count_ban, fault};
pub(crate) use deferred::{Deferred, DeferredRef, Work, deferred, deferred_of, place, to_defer};
pub(crate) use drop_cache::{Refusal, cached_drop, cached_drop_of, insert_drop, may_be_cached};
pub(crate) use events::{send_event, send_step, sends_events};
pub(crate) use parsed::{NoPacket, ParsedFrame, frame_is, parsed, parsed_mut, to_parse};
pub(crate) use sockets::connection_state_of;
pub(crate) use sources::{BanRef, Of, SourceRef};
pub(crate) use words::{clear, copy, reason};
