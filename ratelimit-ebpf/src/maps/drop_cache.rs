//! The drop cache: read for every packet, written when a limit or a ban refuses.

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xchg};
use core::ptr::NonNull;

use ratelimit_common::drop_cache::{
    BUSY, CacheSet, DROPPED_MAX, DropCause, DropEntry, Expiry, Holds, KEEPS, Key, ONE_DROPPED, WAYS, cause_is,
};
use ratelimit_common::hold::Banned as _;
use ratelimit_common::layout::{BITS_PER_SET, Config, Fault, SETS_PER_WORD};
use ratelimit_common::time::Nanos;
use ratelimit_common::verification::repeated_of_verified;

use super::counts::count_not_cached;
use super::sources::{Of, ban_of, family_of, window_of};
use super::{DROP_CACHE, DROP_CAUSES, DROP_SUMMARY, forget, or_fault};
use crate::packet::one_register;

/// Place of a key's entry: the number of its first set, and its bit in [`DROP_SUMMARY`].
#[derive(Clone, Copy)]
struct Place {
    set: u32,
    bit: u32,
}

impl Place {
    #[inline(always)]
    fn of(config: &Config, key: Key, hash: u64) -> Self {
        let place = key.place(hash);
        #[expect(clippy::cast_possible_truncation, reason = "any of its bits will do")]
        let (set, more) = (place as u32 & config.sets_mask, (place >> 32) as u32);
        Self { set, bit: set % SETS_PER_WORD * BITS_PER_SET + more % BITS_PER_SET }
    }

    /// Returns the word of [`DROP_SUMMARY`] for this place.
    #[inline(always)]
    fn word(self) -> Option<*mut u64> {
        DROP_SUMMARY.get_ptr_mut(self.set / SETS_PER_WORD)
    }
}

#[inline(always)]
fn set(number: u32) -> Option<*mut CacheSet> {
    or_fault(DROP_CACHE.get_ptr_mut(number), Fault::DropCacheLookup)
}

/// Returns one entry of a set.
#[inline(always)]
fn way(set: *mut CacheSet, way: usize) -> *mut DropEntry {
    // SAFETY: the caller has a pointer to a whole set from a lookup, valid for the run of the program; the index stays
    // within it.
    unsafe { (&raw mut (*set).0).cast::<DropEntry>().add(way & (WAYS - 1)) }
}

/// Reads an entry, its word first. A later exchange of the word confirms the other fields, so an older source must not
/// be combined with this word.
#[inline(always)]
fn read(entry: *mut DropEntry) -> DropEntry {
    // SAFETY: as in `way`. Volatile: other CPUs write it.
    unsafe {
        let word = (&raw const (*entry).word).read_volatile();
        let source = (&raw const (*entry).source).byte_add(after(word)).read_volatile();
        DropEntry { word, source }
    }
}

/// Returns 0, derived from a loaded value. If an address includes it, the load there comes after the load of that
/// value. aarch64 orders only loads that depend on each other in this way. x86_64 orders all loads, and needs nothing.
#[inline(always)]
#[cfg_attr(not(bpf_target_arch = "aarch64"), expect(unused_variables, reason = "only aarch64 needs it"))]
fn after(loaded: u64) -> usize {
    #[cfg(bpf_target_arch = "aarch64")]
    {
        let mut zero = loaded as usize;
        // SAFETY: the instruction takes all bits from a register.
        unsafe { core::arch::asm!("{0} &= 0", inout(reg) zero, options(pure, nomem, nostack)) };
        zero
    }
    #[cfg(not(bpf_target_arch = "aarch64"))]
    0
}

/// Returns the cached drop of a packet with this key and [`Key::hash`], if there is one, and counts the packet in it.
///
/// Ignores entries that are being written, and entries that were overwritten between the lookup and the count.
#[inline(always)]
pub(crate) fn cached_drop(config: &Config, key: Key, hash: u64, now: Nanos) -> Option<Expiry> {
    let place = summary_place(config, key, hash)?;
    if let Some((entry, word)) = own(set(place.set)?, key) {
        return holding(entry, word, key, place.set, now);
    }
    let expiry = beside(place.set, place.bit, key.source, key.what, now.0);
    if expiry == 0 { None } else { Some(Expiry::of(expiry)) }
}

/// Runs [`cached_drop`]. Returns 0 for none. A function of its own, for lookups that few packets need.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn cached_drop_of(generation: u32, source: u64, what: u64, hash: u64, now: u64) -> u64 {
    let Some(config) = super::config(generation) else { return 0 };
    cached_drop(config, Key { source, what }, hash, Nanos(now)).map_or(0, Expiry::word)
}

/// Returns true if there may be an entry for this key.
#[inline(always)]
pub(crate) fn may_be_cached(config: &Config, key: Key, hash: u64) -> bool {
    summary_place(config, key, hash).is_some()
}

/// Returns the place of this key's entry, if there may be one.
#[inline(always)]
fn summary_place(config: &Config, key: Key, hash: u64) -> Option<Place> {
    // Packets that are not cached have no set, and must not clear another key's summary bits.
    if key.what == Key::NONE.what {
        return None;
    }
    let place = Place::of(config, key, hash);
    // SAFETY: the lookup gave a pointer to the word, valid for the run of the program. Volatile: other CPUs write it.
    let bits = unsafe { place.word()?.read_volatile() };
    if bits >> place.bit & 1 == 0 { None } else { Some(place) }
}

/// Returns the entry for this key in this set, and its word.
#[inline(always)]
fn own(set: *mut CacheSet, key: Key) -> Option<(NonNull<DropEntry>, u64)> {
    for at in 0..WAYS {
        let entry = way(set, at);
        let read = read(entry);
        if read.is_of(key) {
            return NonNull::new(entry).map(|entry| (entry, read.word));
        }
    }
    None
}

/// Returns the expiry of this entry if it holds, and counts the packet in it.
#[inline(always)]
fn holding(entry: NonNull<DropEntry>, word: u64, key: Key, set: u32, now: Nanos) -> Option<Expiry> {
    let read = DropEntry { word, source: key.source };
    // SAFETY: as in `way`.
    let place = unsafe { &raw mut (*entry.as_ptr()).word };
    let is_counted = match read.expiry().holds(now) {
        Holds::No => return None,
        Holds::Yes => read.dropped() != DROPPED_MAX && exchange(place, word, word + ONE_DROPPED).1,
        Holds::InLastTick => false,
    };
    if is_counted || counted(set, key.source, key.what, now.0) != 0 { Some(read.expiry()) } else { None }
}

/// Maximum number of tries to count a packet in an entry that other CPUs also count in. After that, the window or ban
/// judges and counts it.
const TRIES_MAX: usize = 4;

/// Counts a packet in an entry that [`holding`] could not decide on. The entry is in its last tick, or was counted in
/// by another CPU meanwhile, or its count is full. A full count moves to its window or ban. Returns 0 if the entry has
/// expired or was replaced.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn counted(number: u32, source: u64, what: u64, now: u64) -> u32 {
    let Some(set) = set(number) else { return 0 };
    let key = Key { source, what };
    for at in 0..one_register(WAYS) {
        let entry = way(set, at);
        let mut before = read(entry);
        if !before.is_of(key) {
            continue;
        }
        let Some(cause) = cause(number, at) else { return 0 };
        // SAFETY: as in `cause`. Volatile: other CPUs write it.
        let cause = unsafe { cause.byte_add(after(before.word)).read_volatile() };
        for _ in 0..one_register(TRIES_MAX) {
            if !before.is_of(key) || cause.until_ns <= now {
                return 0;
            }
            // SAFETY: as in `way`.
            let place = unsafe { &raw mut (*entry).word };
            let (is, exchanged) = exchange(place, before.word, before.word.wrapping_add(ONE_DROPPED));
            if exchanged {
                if before.dropped() == DROPPED_MAX {
                    count_of(cause, before.word, DROPPED_MAX + 1);
                }
                return 1;
            }
            before.word = is;
        }
    }
    0
}

/// Returns the cause of an entry.
#[inline(always)]
fn cause(set: u32, way: usize) -> Option<*mut DropCause> {
    // SAFETY: the lookup gave a pointer to all causes of a set, valid for the run of the program.
    DROP_CAUSES.get_ptr_mut(set).map(|causes| unsafe { causes.cast::<DropCause>().add(way & (WAYS - 1)) })
}

/// Continues [`cached_drop`] for few packets: searches the neighbour set, which has the entry if the first set was
/// full. Returns its expiry after counting the packet, or 0.
///
/// If neither set has an entry that holds, their bits in [`DROP_SUMMARY`] are cleared, so that the next packet skips
/// them. An entry that is written at that moment may be overlooked until it is written again.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn beside(number: u32, bit: u32, source: u64, what: u64, now: u64) -> u64 {
    let word = Place { set: number, bit }.word();
    let (Some(first), Some(second), Some(word)) = (set(number), set(number ^ 1), word) else { return 0 };
    let (key, now) = (Key { source, what }, Nanos(now));
    if let Some((entry, word)) = own(second, key) {
        return holding(entry, word, key, number ^ 1, now).map_or(0, Expiry::word);
    }
    for set in [first, second] {
        for at in 0..one_register(WAYS) {
            let entry = read(way(set, at));
            if entry.is_busy() || entry.expiry().left(now) != 0 && entry.is_in_epoch_of(key) {
                return 0;
            }
        }
    }
    // SAFETY: as in `summary_place`.
    let bits = unsafe { word.read_volatile() };
    let of_set = ((1 << BITS_PER_SET) - 1) << (bit / BITS_PER_SET * BITS_PER_SET);
    let _whatever = exchange(word, bits, bits & !of_set);
    0
}

/// Replaces a word if it still has the expected value. Returns the value before, and whether it was replaced.
#[inline(always)]
fn exchange(word: *mut u64, before: u64, after: u64) -> (u64, bool) {
    // SAFETY: the caller has a pointer to the word from a lookup, valid for the run of the program; map values are
    // aligned to 8 bytes.
    unsafe { atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(word, before, after) }
}

/// Refusal to be cached.
#[derive(Clone, Copy)]
pub(crate) struct Refusal<'a> {
    /// Slot of the window or ban that refuses.
    pub(crate) slot: u32,
    pub(crate) expiry: Expiry,
    /// Exact end of the refusal.
    pub(crate) until: Nanos,
    /// True if the refusal's cause cannot be forged: see [`DropEntry::rank`].
    pub(crate) is_verified: bool,
    /// Source of the window or ban.
    pub(crate) of: &'a Of,
    /// [`cause_is::OF_CONNECTION`], or 0.
    pub(crate) of_connection: u32,
}

/// Caches a refusal of packets with this key. The new entry replaces the key's own entry, or an expired one in its set
/// or the neighbour, or one of lower standing.
///
/// If there is none to replace, the window judges the source, and that is counted. The count of a replaced entry moves
/// to its window or ban.
#[inline(always)]
pub(crate) fn insert_drop(config: &Config, key: Key, hash: u64, refusal: Refusal<'_>, now: Nanos) {
    let Refusal { slot, expiry, until, is_verified, of, of_connection } = refusal;
    let place = Place::of(config, key, hash);
    let verified_bit = if is_verified { IS_VERIFIED } else { 0 };
    let (mut least, mut chosen) = (KEEPS, u32::MAX);
    for candidate in 0..one_register(2 * WAYS) as u32 {
        let rank = rank(place.set, candidate | verified_bit, key.source, key.what, now.0);
        if rank < least {
            (least, chosen) = (rank, candidate);
        }
    }
    if chosen == u32::MAX {
        count_not_cached();
        return;
    }
    let chosen = forget(chosen);
    let Some(entry) = candidate_at(place.set, chosen) else { return };
    let set = place.set ^ ((chosen / WAYS as u32) & 1);
    let Some(at) = self::cause(set, chosen as usize) else { return };
    let before = read(entry);
    // SAFETY: as in `way`.
    if before.is_busy() || !exchange(unsafe { &raw mut (*entry).word }, before.word, BUSY).1 {
        return;
    }
    if before.dropped() != 0 {
        // SAFETY: as in `cause`. Nothing else writes it while the entry is busy.
        count_of(unsafe { at.read_volatile() }, before.word, before.dropped());
    }
    // SAFETY: as in `way`. Nothing else writes them while the entry is busy. The word comes last, behind a barrier, and
    // makes the entry valid.
    unsafe {
        (&raw mut (*entry).source).write_volatile(key.source);
        (&raw mut (*at).until_ns).write_volatile(until.0);
        (&raw mut (*at).slot).write_volatile(slot);
        (&raw mut (*at).is).write_volatile((of.is_wide() as u32 * cause_is::WIDE) | of_connection);
        (&raw mut (*at).source).write_volatile(of.prefix());
        atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(&raw mut (*entry).word, key.entry_word(expiry));
    }
    let Some(word) = place.word() else { return };
    // SAFETY: as in `summary_place`.
    let bits = unsafe { word.read_volatile() };
    let set_bits = bits | 1 << place.bit;
    if set_bits != bits {
        // If another CPU was first, the next refusal caches it again.
        let _whatever = exchange(word, bits, set_bits);
    }
}

/// Flag in the number of a candidate: the new entry is verified.
const IS_VERIFIED: u32 = 1 << 8;

/// Returns the [`DropEntry::rank`] of a candidate against this key. A function of its own, for the verifier.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn rank(number: u32, candidate: u32, source: u64, what: u64, now: u64) -> u64 {
    let Some(entry) = candidate_at(number, candidate).map(read) else { return KEEPS };
    entry.rank(Key { source, what }, candidate & IS_VERIFIED != 0, Nanos(now))
}

/// Returns one of the places that an entry may have: those of its set, then those of the neighbour.
#[inline(always)]
fn candidate_at(number: u32, candidate: u32) -> Option<*mut DropEntry> {
    Some(way(set(number ^ ((candidate / WAYS as u32) & 1))?, candidate as usize))
}

/// Adds the drops of an entry with this word and cause to its window or ban, if that still exists.
#[inline(always)]
fn count_of(DropCause { slot, is, source: [high, low], .. }: DropCause, word: u64, dropped: u64) {
    let is = u64::from(is & (cause_is::WIDE | cause_is::OF_CONNECTION));
    let _always_zero = count_dropped(high, low, word, slot, dropped << CAUSE_BITS | is);
}

/// Number of bits of [`cause_is`].
const CAUSE_BITS: u32 = 2;

/// Runs [`count_of`]; the lowest bits of `dropped` hold [`cause_is`]. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_dropped(high: u64, low: u64, word: u64, slot: u32, dropped: u64) -> u32 {
    let entry = DropEntry { word, source: 0 };
    let family = family_of(entry.is_ipv6(), dropped & u64::from(cause_is::WIDE) != 0);
    let is_repeated = dropped & u64::from(cause_is::OF_CONNECTION) != 0;
    let (source, dropped) = ([high, low], dropped >> CAUSE_BITS);
    if entry.expiry().is_ban() {
        if let Some(ban) = ban_of(family, source, slot) {
            ban.count_dropped(dropped);
        }
    } else if let Some(window) = window_of(family, source, slot) {
        window.add_refused(dropped);
        if is_repeated && let Some(repeated) = window_of(family, source, repeated_of_verified(slot)) {
            repeated.add_refused(dropped);
        }
    }
    0
}
