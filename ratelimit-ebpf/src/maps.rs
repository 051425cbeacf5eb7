//! Every map of the program, private, behind accessors that say what may fail. Knows layouts, decides nothing.

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd};

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::macros::map;
use aya_ebpf::maps::lpm_trie::{Key, LpmTrie};
use aya_ebpf::maps::{Array, LruHashMap, PerCpuArray};
use ratelimit_common::flow::Flow;
use ratelimit_common::layout::{
    COUNTERS_LEN, Config, Counters, EXEMPT_GENERATION_BITS, EXEMPT_MAX, ExemptKeyV4, ExemptKeyV6, FAULTS_MAX,
    FLOWS_CAPACITY, Fault, FlowKeyV4, FlowKeyV6, GENERATIONS, PortTable, REASONS_MAX, SOURCES_CAPACITY, Source,
    SourceKeyV4, SourceKeyV6, SourceKeyV6Wide,
};
use ratelimit_common::source::Address;
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;
use ratelimit_common::window::{CELLS, Cells};

use crate::packet::forget;

#[map]
static ACTIVE: Array<u32> = Array::with_max_entries(1, 0);
#[map]
static CONFIG: Array<Config> = Array::with_max_entries(GENERATIONS, 0);
#[map]
static PORTS: Array<PortTable> = Array::with_max_entries(GENERATIONS, 0);
#[map]
static EXEMPT_V4: LpmTrie<ExemptKeyV4, u8> = LpmTrie::with_max_entries(GENERATIONS * EXEMPT_MAX, 0);
#[map]
static EXEMPT_V6: LpmTrie<ExemptKeyV6, u8> = LpmTrie::with_max_entries(GENERATIONS * EXEMPT_MAX, 0);
#[map]
static SOURCES_V4: LruHashMap<SourceKeyV4, Source> = LruHashMap::with_max_entries(SOURCES_CAPACITY, 0);
#[map]
static SOURCES_V6: LruHashMap<SourceKeyV6, Source> = LruHashMap::with_max_entries(SOURCES_CAPACITY, 0);
#[map]
static SOURCES_V6_WIDE: LruHashMap<SourceKeyV6Wide, Source> = LruHashMap::with_max_entries(SOURCES_CAPACITY, 0);
#[map]
static FLOWS_V4: LruHashMap<FlowKeyV4, Flow> = LruHashMap::with_max_entries(FLOWS_CAPACITY, 0);
#[map]
static FLOWS_V6: LruHashMap<FlowKeyV6, Flow> = LruHashMap::with_max_entries(FLOWS_CAPACITY, 0);
#[map]
static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(COUNTERS_LEN as u32, 0);
#[map]
static FAULTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(FAULTS_MAX, 0);
#[map]
static INJECTED_NOW: Array<u64> = Array::with_max_entries(1, 0);

/// 0 in production, where the verifier then drops what depends on it; tests set it when they load the program.
#[unsafe(no_mangle)]
static CLOCK_IS_INJECTED: u8 = 0;

/// The configuration that this packet is judged by: one generation, read once.
#[derive(Clone, Copy)]
pub(crate) struct Active {
    pub(crate) config: &'static Config,
    pub(crate) ports: &'static PortTable,
    pub(crate) generation: u32,
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
    let generation = unsafe { active.read_volatile() } & (GENERATIONS - 1);
    let Some(config) = CONFIG.get(generation) else {
        fault(Fault::ConfigLookup);
        return None;
    };
    let Some(ports) = PORTS.get(generation) else {
        fault(Fault::PortsLookup);
        return None;
    };
    Some(Active { config, ports, generation })
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

/// A key on the stack, which the verifier wants accessed at multiples of the access's width. The compiler may merge
/// stores, so it must see that the key's start is aligned.
#[repr(C, align(8))]
pub(crate) struct Aligned<T>(T);

/// Whether a prefix that holds this IPv4 address is exempt. // a trie walk: call it only where there are any
#[inline(always)]
pub(crate) fn is_exempt_v4(generation: u32, address: [u8; 4]) -> bool {
    let mut words = Aligned([0; 3]);
    let key = trie_key(&mut words, [EXEMPT_GENERATION_BITS + 32, generation, u32::from_ne_bytes(address)]);
    EXEMPT_V4.get(key).is_some()
}

/// Whether a prefix that holds this IPv6 address is exempt.
#[inline(always)]
pub(crate) fn is_exempt_v6(generation: u32, address: [u8; 16]) -> bool {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = address;
    let [w0, w1, w2, w3] = [[a, b, c, d], [e, f, g, h], [i, j, k, l], [m, n, o, p]].map(u32::from_ne_bytes);
    let mut words = Aligned([0; 6]);
    let key = trie_key(&mut words, [EXEMPT_GENERATION_BITS + 128, generation, w0, w1, w2, w3]);
    EXEMPT_V6.get(key).is_some()
}

/// A trie's key from its words: length in bits, then data. Stored one at a time, since the data lies 4 bytes off
/// the alignment of the wider stores that the compiler would merge these into.
#[inline(always)]
fn trie_key<const WORDS: usize, const DATA: usize>(
    place: &mut Aligned<[u32; WORDS]>,
    words: [u32; WORDS],
) -> &Key<[u32; DATA]> {
    const { assert!(size_of::<Key<[u32; DATA]>>() == size_of::<[u32; WORDS]>()) };
    for (slot, word) in place.0.iter_mut().zip(words) {
        // SAFETY: a place on the stack that is borrowed here.
        unsafe { core::ptr::from_mut(slot).write_volatile(word) };
    }
    // SAFETY: a packed key of 32-bit words has the layout of that many words, as asserted, and no alignment.
    unsafe { &*(&raw const place.0).cast() }
}

/// Adds one packet to its row. Each CPU has its own cells and XDP is not preempted by itself there, so no atomic is needed.
#[inline(always)]
pub(crate) fn count(row: u32, reason: Reason, bytes: u64) {
    // Each row and reason would be another path to the end for the verifier.
    let (row, reason) = (forget(row), forget(reason as u32) as usize & (REASONS_MAX - 1));
    let Some(counters) = COUNTERS.get_ptr_mut(row) else {
        fault(Fault::CountersLookup);
        return;
    };
    // SAFETY: this CPU's cells, which live as long as the map; nobody else writes them.
    let tally = unsafe { &mut (*counters).by_reason[reason] };
    tally.packets = tally.packets.wrapping_add(1);
    tally.bytes = tally.bytes.wrapping_add(bytes);
}

/// Counts a failed map operation.
#[inline(always)]
pub(crate) fn fault(fault: Fault) {
    if let Some(count) = FAULTS.get_ptr_mut(fault as u32) {
        // SAFETY: this CPU's cell, as in `count`.
        unsafe { *count = (*count).wrapping_add(1) };
    }
}

/// One window of one source, in its map.
///
/// The kernel reuses an evicted element at once, so another source may get it while this packet still holds it. Then
/// this packet's charge lands there, or is lost: one packet's worth, and only in the instant of an eviction.
#[derive(Clone, Copy)]
pub(crate) struct SourceRef(*mut Source);

impl SourceRef {
    /// Counts one packet that this window refused.
    #[inline(always)]
    pub(crate) fn count_refused(self) {
        // SAFETY: the lookup gave a pointer to a whole element, valid for the run of the program.
        let refused = unsafe { &raw mut (*self.0).refused };
        // SAFETY: as above, and map values are aligned to 8 bytes.
        unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(refused, 1) };
    }

    #[inline(always)]
    fn cell(&self, index: usize) -> *mut u64 {
        // SAFETY: as above; the index stays within the array.
        unsafe { (&raw mut (*self.0).cells).cast::<u64>().add(index & (CELLS - 1)) }
    }
}

impl Cells for SourceRef {
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
    fn forget(&self, value: u64) -> u64 {
        u64::from(forget(value as u32)) | u64::from(forget((value >> 32) as u32)) << 32
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

macro_rules! inserted {
    ($result:expr, $fault:expr) => {
        match $result {
            Ok(()) => Inserted::New,
            Err(EEXIST) => Inserted::Existed,
            Err(_) => {
                fault($fault);
                Inserted::Refused
            }
        }
    };
}

/// One source, in the map of its family.
pub(crate) trait Sources {
    /// Its window in `slot`, if it is remembered.
    fn window(&self, slot: u32) -> Option<SourceRef>;
    /// Remembers it. Never an update: an existing entry stays as it is.
    fn insert(&self, slot: u32, source: &Source) -> Inserted;
}

macro_rules! sources {
    ($(#[$doc:meta])* $name:ident, $prefix:ty, $key:ident, $map:ident, $fault:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name(pub(crate) $prefix);

        impl Sources for $name {
            #[inline(always)]
            fn window(&self, slot: u32) -> Option<SourceRef> {
                let key = Aligned($key { prefix: self.0, slot });
                $map.get_ptr_mut(&key.0).map(SourceRef)
            }

            #[inline(always)]
            fn insert(&self, slot: u32, source: &Source) -> Inserted {
                let key = Aligned($key { prefix: self.0, slot });
                inserted!($map.insert(&key.0, source, BPF_NOEXIST.into()), Fault::$fault)
            }
        }
    };
}

sources!(/** An IPv4 source. */ SourceV4, [u8; 4], SourceKeyV4, SOURCES_V4, SourcesV4Insert);
sources!(/** An IPv6 source by a prefix of at most 64 bits. */ SourceV6, [u8; 8], SourceKeyV6, SOURCES_V6, SourcesV6Insert);
sources!(/** An IPv6 source by a longer prefix. */ SourceV6Wide, [[u8; 8]; 2], SourceKeyV6Wide, SOURCES_V6_WIDE, SourcesV6WideInsert);

/// One UDP flow, in the map of its family.
pub(crate) enum FlowKey {
    V4(Aligned<FlowKeyV4>),
    V6(Aligned<FlowKeyV6>),
}

impl FlowKey {
    #[inline(always)]
    pub(crate) fn new(source: Address, source_port: u16, port: u16) -> Self {
        match source {
            Address::V4(address) => Self::V4(Aligned(FlowKeyV4 { address, source_port, port })),
            Address::V6(address) => Self::V6(Aligned(FlowKeyV6 { address, source_port, port })),
        }
    }

    /// What is remembered of it. A copy: a flow's packets arrive on one CPU, and where they do not, what a race loses is
    /// a time stamp, or one of a handshake's Initials.
    #[inline(always)]
    pub(crate) fn known(&self) -> Option<Flow> {
        // SAFETY: the element is read at once; that the kernel may reuse it meanwhile is the race allowed above.
        self.entry().map(|flow| unsafe { *flow })
    }

    /// Remembers it, or renews what is remembered through the entry itself.
    #[inline(always)]
    pub(crate) fn remember(&self, flow: &Flow) {
        if let Some(known) = self.entry() {
            // SAFETY: a whole element, valid for the run of the program.
            unsafe { *known = *flow };
            return;
        }
        let _counted = match self {
            Self::V4(key) => inserted!(FLOWS_V4.insert(&key.0, flow, BPF_NOEXIST.into()), Fault::FlowsV4Insert),
            Self::V6(key) => inserted!(FLOWS_V6.insert(&key.0, flow, BPF_NOEXIST.into()), Fault::FlowsV6Insert),
        };
    }

    #[inline(always)]
    fn entry(&self) -> Option<*mut Flow> {
        match self {
            Self::V4(key) => FLOWS_V4.get_ptr_mut(&key.0),
            Self::V6(key) => FLOWS_V6.get_ptr_mut(&key.0),
        }
    }
}
