//! Windows and bans of the current source, in the maps of its address family. Each family has its own maps, with keys
//! of its own size.

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd};
use core::ptr::NonNull;

use aya_ebpf::bindings::BPF_NOEXIST;
use ratelimit_common::ban::Ban;
use ratelimit_common::hold::{Banned, Charged, Inserted, Window};
use ratelimit_common::layout::{Config, Fault, Group, Limit, Source, SourceKeyV4, SourceKeyV6, SourceKeyV6Wide};
use ratelimit_common::refusals::Refusals;
use ratelimit_common::source::{Address, cut_ipv4, cut_ipv6};
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_common::verification::Side;
use ratelimit_common::window::{self, CELLS, Cells};

use super::{BANS_V4, BANS_V6, BANS_V6_WIDE, SCRATCH, SOURCES_V4, SOURCES_V6, SOURCES_V6_WIDE, Work, fault, inserted};
use crate::packet::{forget, one_register};

/// The current source, as a key of the maps. Part of the deferred update.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Of {
    /// Words that identify the source in hashes.
    pub(crate) words: [u64; 2],
    v4: SourceKeyV4,
    v6: SourceKeyV6,
    v6_wide: SourceKeyV6Wide,
    family: u32,
    /// 0 for the source itself. For a group that contains the source: the source's family plus 1.
    turned: u32,
    /// The source's words while a group takes its place.
    source: [u64; 2],
}

const V4: u32 = 0;
const V6: u32 = 1;
const V6_WIDE: u32 = 2;
const TURNED_V4: u32 = V4 + 1;
const TURNED_V6: u32 = V6 + 1;

/// Calls a method of the map of the source's family, with the key of this slot.
macro_rules! of_family {
    ($self:ident, $slot:expr, [$v4:ident $v6:ident $v6_wide:ident], $method:ident($($argument:expr),*)) => {
        match $self.family {
            V4 => {
                $self.v4.slot = $slot;
                $v4.$method(&$self.v4 $(, $argument)*)
            }
            V6 => {
                $self.v6.slot = $slot;
                $v6.$method(&$self.v6 $(, $argument)*)
            }
            _ => {
                $self.v6_wide.slot = $slot;
                $v6_wide.$method(&$self.v6_wide $(, $argument)*)
            }
        }
    };
}

impl Of {
    /// Sets the source to this address, cut to the configured prefix length of one client.
    #[inline(always)]
    pub(crate) fn set(&mut self, address: Address, config: &Config) {
        match address {
            Address::V4(address) => self.set_v4(cut_ipv4(address, config.ipv4_mask)),
            Address::V6(address) => {
                let prefix = cut_ipv6(address, config.ipv6_mask);
                if config.ipv6_wide == 0 { self.set_v6(prefix[0]) } else { self.set_v6_wide(prefix) }
            }
        }
    }

    #[inline(always)]
    pub(crate) fn set_v4(&mut self, prefix: u32) {
        self.words = [u64::from(prefix), 4];
        self.v4.prefix = prefix.to_ne_bytes();
        self.family = V4;
    }

    #[inline(always)]
    pub(crate) fn set_v6(&mut self, prefix: u64) {
        self.words = [prefix, 6];
        self.v6.prefix = prefix.to_ne_bytes();
        self.family = V6;
    }

    #[inline(always)]
    pub(crate) fn set_v6_wide(&mut self, prefix: [u64; 2]) {
        self.words = prefix;
        self.v6_wide.prefix = prefix.map(u64::to_ne_bytes);
        self.family = V6_WIDE;
    }

    /// Replaces the source by the group that contains it. The words get the limit's slot, so hashes differ from those
    /// of sources and of other limits' groups.
    #[inline(always)]
    pub(crate) fn turn_to(&mut self, group: &Group, slot: u32) {
        if self.turned == 0 {
            self.source = self.words;
            self.turned = self.family + 1;
        }
        let [high, _] = self.source;
        if group.is_list != 0 {
            self.set_v4(0);
        } else {
            match self.turned {
                TURNED_V4 => self.set_v4(high as u32 & group.ipv4_mask),
                TURNED_V6 => self.set_v6(high & group.ipv6_mask),
                _ => self.set_v6_wide([high & group.ipv6_mask, 0]),
            }
        }
        self.words[1] |= u64::from(slot) << 32 | 1 << 16;
    }

    /// Restores the source after [`Of::turn_to`].
    #[inline(always)]
    pub(crate) fn turn_back(&mut self) {
        let [high, _] = self.source;
        match self.turned {
            0 => {}
            TURNED_V4 => self.set_v4(high as u32),
            TURNED_V6 => self.set_v6(high),
            _ => self.set_v6_wide(self.source),
        }
        self.turned = 0;
    }

    /// Returns true if the source is an IPv6 prefix of more than 64 bits.
    #[inline(always)]
    pub(crate) const fn is_wide(&self) -> bool {
        self.family == V6_WIDE
    }

    /// Returns the family, which tells the map: a value of [`ratelimit_common::layout::ChargeOrder::family`].
    #[inline(always)]
    pub(crate) const fn family(&self) -> u8 {
        self.family as u8
    }

    /// Returns the prefix of the source. The second word is 0 unless the source is wide and no group replaces it.
    #[inline(always)]
    pub(crate) const fn prefix(&self) -> [u64; 2] {
        let [high, low] = self.words;
        [high, if self.is_wide() && self.turned == 0 { low } else { 0 }]
    }

    /// Returns the source's window in this slot, if there is one. A function of its own, because many places call it.
    #[inline(never)]
    pub(crate) fn window(&mut self, slot: u32) -> Option<SourceRef> {
        self.window_here(slot)
    }

    /// Returns the source's window in this slot, inlined for the lookup that most packets need.
    #[inline(always)]
    pub(crate) fn window_here(&mut self, slot: u32) -> Option<SourceRef> {
        let source = of_family!(self, slot, [SOURCES_V4 SOURCES_V6 SOURCES_V6_WIDE], get_ptr_mut());
        source.and_then(SourceRef::new)
    }

    /// Returns the source's newest ban in this slot, if it is still kept.
    #[inline(never)]
    pub(crate) fn ban(&mut self, slot: u32) -> Option<BanRef> {
        let ban = of_family!(self, slot, [BANS_V4 BANS_V6 BANS_V6_WIDE], get_ptr_mut());
        ban.and_then(NonNull::new).map(BanRef)
    }

    /// Adds the source's first ban in this slot. An existing ban stays as it is.
    #[inline(always)]
    pub(crate) fn insert_ban(&mut self, slot: u32, ban: &Ban) -> Inserted {
        let result = of_family!(self, slot, [BANS_V4 BANS_V6 BANS_V6_WIDE], insert(ban, BPF_NOEXIST.into()));
        inserted(result, self.fault([Fault::BansV4Insert, Fault::BansV6Insert, Fault::BansV6WideInsert]))
    }

    /// Adds the source's window in this slot, built in the scratch space of this work. An existing window stays as it
    /// is.
    #[inline(always)]
    pub(crate) fn insert(&mut self, at: Work, slot: u32, open: impl FnOnce(&mut [u64; CELLS]) -> bool) -> Inserted {
        let Some(first) = scratch(at) else { return Inserted::Refused };
        if !open(&mut first.cells) {
            return Inserted::Nothing;
        }
        let result = of_family!(
            self, slot, [SOURCES_V4 SOURCES_V6 SOURCES_V6_WIDE], insert(&*first, BPF_NOEXIST.into())
        );
        inserted(result, self.fault([Fault::SourcesV4Insert, Fault::SourcesV6Insert, Fault::SourcesV6WideInsert]))
    }

    #[inline(always)]
    const fn fault(&self, [v4, v6, v6_wide]: [Fault; 3]) -> Fault {
        match self.family {
            V4 => v4,
            V6 => v6,
            _ => v6_wide,
        }
    }
}

/// Returns the family code of a source.
#[inline(always)]
pub(super) const fn family_of(is_ipv6: bool, is_wide: bool) -> u32 {
    match (is_ipv6, is_wide) {
        (false, _) => V4,
        (true, false) => V6,
        (true, true) => V6_WIDE,
    }
}

/// Looks up another source's entry for a slot in the map of its family.
macro_rules! get_of {
    ($family:expr, $source:expr, $slot:expr, [$v4:ident $v6:ident $v6_wide:ident]) => {{
        let ([high, low], slot) = ($source, $slot);
        match $family {
            V4 => $v4.get_ptr_mut(SourceKeyV4 { prefix: (high as u32).to_ne_bytes(), slot }),
            V6 => $v6.get_ptr_mut(SourceKeyV6 { prefix: high.to_ne_bytes(), slot }),
            _ => $v6_wide.get_ptr_mut(SourceKeyV6Wide { prefix: [high, low].map(u64::to_ne_bytes), slot }),
        }
    }};
}

/// Returns the window of another source in this slot.
#[inline(always)]
pub(super) fn window_of(family: u32, source: [u64; 2], slot: u32) -> Option<SourceRef> {
    get_of!(family, source, slot, [SOURCES_V4 SOURCES_V6 SOURCES_V6_WIDE]).and_then(SourceRef::new)
}

/// Returns the newest ban of another source in this slot.
#[inline(always)]
pub(super) fn ban_of(family: u32, source: [u64; 2], slot: u32) -> Option<BanRef> {
    get_of!(family, source, slot, [BANS_V4 BANS_V6 BANS_V6_WIDE]).and_then(NonNull::new).map(BanRef)
}

/// Returns this CPU's scratch space for one source, which would take a seventh of the stack. Its contents do not
/// outlast a packet.
#[inline(always)]
fn scratch(at: Work) -> Option<&'static mut Source> {
    let Some(source) = SCRATCH.get_ptr_mut(at.0) else {
        fault(Fault::ScratchLookup);
        return None;
    };
    // SAFETY: this CPU's element, which lives as long as the map; it is borrowed once a packet. Refusals are not
    // counted in it.
    Some(unsafe { &mut *source })
}

/// One window of one source, in its map.
///
/// The kernel reuses an evicted element at once, so another source may get it while this packet still holds it. Then
/// this packet's charge lands there, or is lost: one packet's worth, and only in the instant of an eviction.
#[derive(Clone, Copy)]
pub(crate) struct SourceRef(NonNull<Source>);

impl SourceRef {
    /// Wraps the pointer that a lookup gave; `None` if it is null.
    #[inline(always)]
    pub(crate) fn new(source: *mut Source) -> Option<Self> {
        NonNull::new(source).map(Self)
    }

    /// Adds refused packets to the window's count, in the bucket of the newest refusal or later.
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

    #[inline(always)]
    fn cell(&self, index: usize) -> *mut u64 {
        // SAFETY: as above; the index stays within the array.
        unsafe { (&raw mut (*self.0.as_ptr()).cells).cast::<u64>().add(index & (CELLS - 1)) }
    }
}

impl Cells for SourceRef {
    const TRIES: usize = 2;

    #[inline(always)]
    fn load(&self, index: usize) -> u64 {
        // SAFETY: as above. Volatile: other CPUs write it, and each read must be one load.
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
    fn unknown(value: usize) -> usize {
        one_register(value)
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

impl Window for SourceRef {
    #[inline(always)]
    fn refusals(&self) -> Refusals {
        // SAFETY: the lookup gave a pointer to a whole element, valid for the run of the program. Volatile: other CPUs
        // write it.
        Refusals(unsafe { self.refused().read_volatile() })
    }

    #[inline(always)]
    fn count_refused(&self, bucket: BucketIndex) -> bool {
        let refusals = self.refusals();
        if refusals.is_first_in(bucket) {
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
                return true;
            }
        }
        if !refusals.is_full() {
            // SAFETY: as above.
            unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(self.refused(), 1) };
        }
        false
    }

    #[inline(always)]
    fn charge(&self, limit: &Limit, side: Side, now: Nanos, amount: u64) -> Charged {
        Charged(out_of_line::charge_window(self.0.as_ptr(), limit, side as u32, now.0, amount))
    }

    #[inline(always)]
    fn settle_before(&self, limit: &Limit, bucket: BucketIndex) {
        let _always_zero = out_of_line::settle_window(self.0.as_ptr(), limit, bucket.0);
    }

    #[inline(always)]
    fn used(&self, limit: &Limit, now: Nanos) -> u64 {
        out_of_line::used(self.0.as_ptr(), limit, now.0)
    }

    #[inline(always)]
    fn is_within_limit(&self, limit: &Limit, side: Side, now: Nanos, amount: u64) -> bool {
        out_of_line::is_within_limit(self.0.as_ptr(), limit, side as u32, now.0, amount) != 0
    }

    #[inline(always)]
    fn passes_refuse_all(&self, limit: &Limit, side: Side, now: Nanos, amount: u64) -> bool {
        out_of_line::passes_refuse_all(self.0.as_ptr(), limit, side as u32, now.0, amount) != 0
    }

    #[inline(always)]
    fn full_until(&self, limit: &Limit, side: Side, bucket: BucketIndex, least: u64) -> BucketIndex {
        BucketIndex(out_of_line::full_until(self.0.as_ptr(), limit, side as u32, bucket.0, least))
    }
}

/// Global functions, which the verifier walks once for all callers. No caller passes null, but the verifier requires
/// the check.
mod out_of_line {
    use ratelimit_common::hold::{
        Charged, charge_window as charge, window_is_within_limit, window_passes_refuse_all, window_used,
    };

    use super::{BucketIndex, Limit, Nanos, Side, Source, SourceRef, window};

    /// Charges one window. Returns a [`Charged`].
    #[unsafe(no_mangle)]
    #[inline(never)]
    pub(super) extern "C" fn charge_window(
        source: *mut Source,
        limit: *const Limit,
        side: u32,
        now: u64,
        amount: u64,
    ) -> u64 {
        let Some((source, limit)) = at(source, limit) else { return Charged::NOT_REMEMBERED.0 };
        charge(source, limit, Side::from_code(side), Nanos(now), amount).0
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    pub(super) extern "C" fn settle_window(source: *mut Source, limit: *const Limit, bucket: u64) -> u32 {
        if let Some((source, limit)) = at(source, limit) {
            let _newest = window::settle(&source, limit.arithmetic(Side::Unverified), BucketIndex(bucket));
        }
        0
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    pub(super) extern "C" fn full_until(
        source: *mut Source,
        limit: *const Limit,
        side: u32,
        bucket: u64,
        least: u64,
    ) -> u64 {
        let Some((source, limit)) = at(source, limit) else { return bucket };
        window::full_until(&source, limit.arithmetic(Side::from_code(side)), BucketIndex(bucket), least).0
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    pub(super) extern "C" fn used(source: *mut Source, limit: *const Limit, now: u64) -> u64 {
        let Some((source, limit)) = at(source, limit) else { return 0 };
        window_used(source, limit, Nanos(now))
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    pub(super) extern "C" fn is_within_limit(
        source: *mut Source,
        limit: *const Limit,
        side: u32,
        now: u64,
        amount: u64,
    ) -> u32 {
        let Some((source, limit)) = at(source, limit) else { return 1 };
        window_is_within_limit(source, limit, Side::from_code(side), Nanos(now), amount) as u32
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    pub(super) extern "C" fn passes_refuse_all(
        source: *mut Source,
        limit: *const Limit,
        side: u32,
        now: u64,
        amount: u64,
    ) -> u32 {
        let Some((source, limit)) = at(source, limit) else { return 1 };
        window_passes_refuse_all(source, limit, Side::from_code(side), Nanos(now), amount) as u32
    }

    #[inline(always)]
    fn at(source: *mut Source, limit: *const Limit) -> Option<(SourceRef, &'static Limit)> {
        // SAFETY: a limit of a rule, which lives as long as its map.
        Some((SourceRef::new(source)?, unsafe { limit.as_ref() }?))
    }
}

/// A ban, in its map.
#[derive(Clone, Copy)]
pub(crate) struct BanRef(NonNull<Ban>);

impl Banned for BanRef {
    #[inline(always)]
    fn until(&self) -> Nanos {
        // SAFETY: as in `read`.
        Nanos(unsafe { (&raw const (*self.0.as_ptr()).until_ns).read_volatile() })
    }

    #[inline(always)]
    fn read(&self) -> Ban {
        // SAFETY: the lookup gave a pointer to a whole element, valid for the run of the program. The kernel reuses an
        // element that the daemon deletes. In that instant one packet may be judged by another source's ban.
        unsafe { self.0.as_ptr().read_volatile() }
    }

    #[inline(always)]
    fn record_admitted(&self) {
        // SAFETY: as above.
        unsafe { (&raw mut (*self.0.as_ptr()).admitted).write_volatile(1) };
    }

    #[inline(always)]
    fn count_dropped(&self, packets: u64) {
        // SAFETY: as above, and map values are aligned to 8 bytes.
        unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(&raw mut (*self.0.as_ptr()).dropped, packets) };
    }

    /// Replaces the ban by `next` unless another CPU did so first, so one excess makes one ban. Returns true if this
    /// CPU replaced it.
    ///
    /// A reader between the writes sees the new end with the old step. No decision uses the step before that end.
    #[inline(always)]
    fn replace(&self, read: &Ban, next: &Ban) -> bool {
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
            unsafe { (&raw mut (*self.0.as_ptr()).admitted).write_volatile(next.admitted) };
            // SAFETY: as above.
            unsafe { (&raw mut (*self.0.as_ptr()).forgotten_ns).write_volatile(next.forgotten_ns) };
        }
        exchanged
    }
}
