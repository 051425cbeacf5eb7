//! Drop cache: sources that a limit or a ban refuses, each with the time from which it may be within the limit again.
//! Until then, one lookup drops the source's packets, before a rule is searched.
//!
//! Entries lie in cache sets of [`WAYS`]. A keyed hash chooses the set; the neighbour set is its overflow. If both are
//! full, a new drop is not cached, and the window judges the source as before. An entry in force is never replaced by
//! another of the same standing. Otherwise a sender that forges sources over their limit could choose which entry ends.
//! An entry that needs a verified connection or a ban replaces one that can be forged, never the reverse. So the cache
//! fills up, each entry lasts until its expiry, and a flood costs time but frees no refused source.
//!
//! A full window is within the limit again when its bucket turns, or when a charge is refunded because another limit of
//! the rule refused. In the latter case, a race of two of its packets, the source still waits for the expiry.
//!
//! TCP segments that open nothing are of two kinds, see [`crate::verification`]. The entry for all of them is looked up
//! first, then, if there is one, the entry for unverified traffic.
//!
//! An entry is for one port, family, kind of packet and *epoch*. Every change by the daemon (a rule, a grant, the
//! counters of a source) begins another epoch, which invalidates earlier entries. An entry has only five bits of the
//! epoch, so the daemon retires old entries whenever it begins one.
//!
//! Entries are as small as they can be without confusing two sources, since a flood from many sources costs the memory
//! that it touches. The window or ban that refuses, and the exact expiry, are stored apart ([`DropCause`]), since few
//! packets need them.
//!
//! ```text
//!     word    63       55 54               33 32        31    27 26      20 19      18        17..16 15     0
//!            [ dropped   | until, 2^29 ns    | is guard | epoch  | rule row | is ban | is IPv6 | kind  | port ]
//! ```

use crate::hash::HashKey;
use crate::layout::Active;
use crate::packet::{Destination, Head};
use crate::source::{Address, cut_ipv4, cut_ipv6};
use crate::time::Nanos;
use crate::verdict::{Reason, Verdict};

/// Number of entries in a cache set: four entries of 16 bytes are a cache line.
pub const WAYS: usize = 4;

/// Entry of the drop cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DropEntry {
    /// Key and expiry of the entry, and the number of dropped packets that are not counted elsewhere. 0 is an empty
    /// entry. A writer puts [`BUSY`] here first.
    pub word: u64,
    /// Value of [`Key::source`].
    pub source: u64,
}

/// Set of entries that share a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct CacheSet(pub [DropEntry; WAYS]);

const _: () = assert!(size_of::<CacheSet>() == 64);

/// Window or ban that drops an entry's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DropCause {
    /// Exact expiry in nanoseconds.
    pub until_ns: u64,
    /// Slot of the window or ban.
    pub slot: u32,
    /// Flags of [`cause_is`].
    pub is: u32,
    /// Prefix of the window's or ban's source. Only the first word is used, unless [`cause_is::WIDE`] is set.
    pub source: [u64; 2],
}

const _: () = assert!(size_of::<DropCause>() == 32);

/// Flags of a [`DropCause`].
pub mod cause_is {
    /// The source is an IPv6 prefix of more than 64 bits, in both words.
    pub const WIDE: u32 = 1;
    /// The entry is for one connection: it drops retransmissions after a refused request.
    pub const OF_CONNECTION: u32 = 2;
}

const DROPPED_SHIFT: u32 = 55;
const UNTIL_SHIFT: u32 = 33;
const EPOCH_SHIFT: u32 = 27;
const ROW_SHIFT: u32 = 20;

/// Increment of [`DropEntry::word`] for one more dropped packet.
pub const ONE_DROPPED: u64 = 1 << DROPPED_SHIFT;

/// Maximum number of packets that an entry counts. The next packet resets the count to 0, and [`DROPPED_MAX`] + 1
/// packets are then counted elsewhere.
pub const DROPPED_MAX: u64 = u64::MAX >> DROPPED_SHIFT;

/// Word of an entry that is being written, apart from its count. Such an entry drops nothing.
pub const BUSY: u64 = ONE_DROPPED - 1;

const TICKS_MASK: u64 = (1 << TICK_BITS) - 1;
const EPOCH_MASK: u64 = Active::ENTRY_EPOCH_MASK as u64;
const GUARD: u64 = 1 << 32;
const BAN: u64 = 1 << 19;
const IPV6: u64 = 1 << 18;
/// Shift that places the family above both ports, in the hash input of a connection.
const FAMILY_SHIFT: u32 = 14;
const OPENING: u64 = 1 << 16;
const DATAGRAM: u64 = 2 << 16;
const UNVERIFIED: u64 = 3 << 16;
/// Mask of family, kind and port.
const KIND: u64 = IPV6 | (IPV6 - 1);
/// Mask of the bits of [`Key::what`].
const WHAT: u64 = EPOCH_MASK << EPOCH_SHIFT | KIND;
const EXPIRY: u64 = BUSY & !WHAT;
/// Bit of [`KIND`] that marks an expiry word as non-zero.
const SOME: u64 = 1;

impl DropEntry {
    /// Returns the number of dropped packets that are counted nowhere else.
    #[inline(always)]
    pub const fn dropped(self) -> u64 {
        self.word >> DROPPED_SHIFT
    }

    /// Returns whether the entry is being written.
    #[inline(always)]
    pub const fn is_busy(self) -> bool {
        self.word & BUSY == BUSY
    }

    /// Returns whether the source is an IPv6 one.
    #[inline(always)]
    pub const fn is_ipv6(self) -> bool {
        self.word & IPV6 != 0
    }

    /// Returns the entry's expiry and verdict.
    #[inline(always)]
    pub const fn expiry(self) -> Expiry {
        Expiry(self.word & EXPIRY)
    }

    /// Returns whether the entry has this key.
    #[inline(always)]
    pub const fn is_of(self, key: Key) -> bool {
        self.source == key.source && (self.word ^ key.what) & WHAT == 0
    }

    /// Returns whether the entry has this key, in any epoch.
    #[inline(always)]
    pub const fn is_of_any_epoch(self, key: Key) -> bool {
        self.source == key.source && (self.word ^ key.what) & KIND == 0
    }

    /// Returns whether the entry has the epoch of this key.
    #[inline(always)]
    pub const fn is_in_epoch_of(self, key: Key) -> bool {
        (self.word ^ key.what) & EPOCH_MASK << EPOCH_SHIFT == 0
    }

    /// Returns whether the entry was written in this epoch.
    pub const fn is_in_epoch(self, epoch: u32) -> bool {
        self.word >> EPOCH_SHIFT & EPOCH_MASK == epoch as u64 & EPOCH_MASK
    }

    /// Returns whether the entry needs a verified connection or a ban. An entry for all segments does, since it follows
    /// from data of established connections. Entries of other kinds can be forged.
    #[inline(always)]
    pub const fn is_verified(self) -> bool {
        self.word & BAN != 0 || self.word & UNVERIFIED == 0
    }

    /// Returns the entry's rank for replacement by an entry of this key; the lowest rank is replaced. The key's own
    /// entry comes first, then an expired one. An entry in force is replaced only if it can be forged and the new one
    /// is verified, in the order of expiry. Otherwise the rank is [`KEEPS`]. In its last tick, an entry counts as in
    /// force.
    #[inline(always)]
    pub const fn rank(self, key: Key, is_verified: bool, now: Nanos) -> u64 {
        if self.is_busy() {
            return KEEPS;
        }
        if self.is_of_any_epoch(key) {
            return 0;
        }
        let left = if self.is_in_epoch_of(key) { self.expiry().left(now) } else { 0 };
        if left == 0 {
            1
        } else if is_verified && !self.is_verified() {
            1 + left
        } else {
            KEEPS
        }
    }

    /// Returns the entry without an epoch: it drops nothing, and keeps its count.
    #[must_use]
    pub const fn retired(self) -> Self {
        Self { word: self.word & !(EPOCH_MASK << EPOCH_SHIFT | TICKS_MASK << UNTIL_SHIFT), source: self.source }
    }
}

/// Value of [`DropEntry::rank`] for an entry that is not replaced.
pub const KEEPS: u64 = u64::MAX;

/// Expiry of an entry, with its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry(u64);

/// Shift of the expiry's tick: 2^29 ns, 537 ms. In the last tick, [`DropCause::until_ns`] says whether the entry is in
/// force.
pub const TICK_SHIFT: u32 = 29;

/// Number of bits of an entry's expiry in ticks: they wrap every 26 days.
pub const TICK_BITS: u32 = DROPPED_SHIFT - UNTIL_SHIFT;

/// Maximum ticks to an expiry: 3 days. A longer entry is written again. The daemon retires expired entries whenever it
/// reads. Only after 3 weeks without a reader may an expired entry be mistaken for a new one, for as many packets as it
/// counts.
const EXPIRY_TICKS_MAX: u64 = 1 << 19;

/// State of an entry, as far as its expiry shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// The entry is in force.
    Yes,
    /// The entry is in force until the time in its [`DropCause`].
    InLastTick,
    /// The entry has expired.
    No,
}

impl Expiry {
    /// Returns the expiry of a rule's `verdict` that lasts from `now` to `until`, and the end that it encodes. That end
    /// may be earlier than `until`.
    #[inline(always)]
    pub const fn new(now: Nanos, until: Nanos, verdict: Verdict) -> (Self, Nanos) {
        let last = Nanos(((now.0 >> TICK_SHIFT) + EXPIRY_TICKS_MAX) << TICK_SHIFT);
        let until = if until.0 < last.0 { until } else { last };
        // An entry that has ended expires now, and not in 26 days.
        let until = if until.0 < now.0 { now } else { until };
        let by = if matches!(verdict.reason, Reason::Banned) {
            BAN
        } else if matches!(verdict.reason, Reason::Guard) {
            GUARD
        } else {
            0
        };
        let said = ((verdict.rule as u64) << ROW_SHIFT | by) & EXPIRY;
        (Self((until.0 >> TICK_SHIFT & TICKS_MASK) << UNTIL_SHIFT | said), until)
    }

    /// Returns the expiry of an [`Expiry::word`].
    #[inline(always)]
    pub const fn of(word: u64) -> Self {
        Self(word & EXPIRY)
    }

    /// Returns the expiry as a word with a bit that no expiry has, so it is never 0.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.0 | SOME
    }

    /// Returns the number of ticks left, including the current one; 0 after the expiry.
    #[inline(always)]
    pub const fn left(self, now: Nanos) -> u64 {
        let after = (self.0 >> UNTIL_SHIFT).wrapping_sub(now.0 >> TICK_SHIFT) & TICKS_MASK;
        if after <= EXPIRY_TICKS_MAX { after + 1 } else { 0 }
    }

    /// Returns whether the entry is in force.
    #[inline(always)]
    pub const fn holds(self, now: Nanos) -> Holds {
        match self.left(now) {
            0 => Holds::No,
            1 => Holds::InLastTick,
            _ => Holds::Yes,
        }
    }

    /// Returns whether the entry is a ban's, and not a limit's.
    #[inline(always)]
    pub const fn is_ban(self) -> bool {
        self.0 & BAN != 0
    }

    /// Returns the verdict on the packets that the entry drops.
    #[inline(always)]
    pub const fn verdict(self) -> Verdict {
        let rule = (self.0 >> ROW_SHIFT & 0x7f) as u8;
        let reason = match self.0 & (BAN | GUARD) {
            0 => Reason::OverLimit,
            GUARD => Reason::Guard,
            _ => Reason::Banned,
        };
        Verdict { reason, rule }
    }
}

/// Key of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Key {
    /// Prefix of the source: an IPv4 address, or the upper half of an IPv6 address, in network order. For wide IPv6
    /// sources, a hash.
    pub source: u64,
    /// Epoch, family, kind and port, as in [`DropEntry::word`]. Never 0, since no epoch is.
    pub what: u64,
}

impl Key {
    /// Key of packets that are not cached.
    pub const NONE: Self = Self { source: 0, what: 0 };

    /// Returns the key of this packet; None if packets of its kind are not cached. A source of more than 64 bits is
    /// identified by a keyed hash of 64 bits, so one in 2^64 pairs of sources is confused.
    #[inline(always)]
    pub const fn of(head: &Head, epoch: u32, ipv4_mask: u32, ipv6_mask: [u64; 2], seed: HashKey) -> Option<Self> {
        let kind_and_port = match head.to {
            Destination::Tcp { port, opening: true, .. } => OPENING | port as u64,
            Destination::Tcp { port, .. } => port as u64,
            Destination::Udp { port } => DATAGRAM | port as u64,
            Destination::Fragment
            | Destination::UnparsableHeaders
            | Destination::ControlTraffic
            | Destination::Other => return None,
        };
        let (source, family) = match head.source {
            Address::V4(address) => (cut_ipv4(address, ipv4_mask) as u64, 0),
            Address::V6(address) => {
                let [high, low] = cut_ipv6(address, ipv6_mask);
                (if ipv6_mask[1] == 0 { high } else { seed.hash(high, low) }, IPV6)
            }
        };
        Some(Self { source, what: (epoch as u64 & EPOCH_MASK) << EPOCH_SHIFT | family | kind_and_port })
    }

    /// Returns the word of a new entry, which has dropped nothing yet.
    #[inline(always)]
    pub const fn entry_word(self, expiry: Expiry) -> u64 {
        self.what | expiry.0
    }

    /// Returns whether the key is for packets that open TCP connections.
    #[inline(always)]
    pub const fn is_opening(self) -> bool {
        self.what & (OPENING | DATAGRAM) == OPENING
    }

    /// Returns whether the key is for UDP datagrams.
    #[inline(always)]
    pub const fn is_datagram(self) -> bool {
        self.what & (OPENING | DATAGRAM) == DATAGRAM
    }

    /// Returns the second of the two words that identify the source: 4 for IPv4, 6 for IPv6.
    #[inline(always)]
    pub const fn family(self) -> u64 {
        if self.what & IPV6 == 0 { 4 } else { 6 }
    }

    /// Returns whether the key is for TCP segments that open nothing.
    #[inline(always)]
    pub const fn is_segment(self) -> bool {
        self.what != Self::NONE.what && self.what & (OPENING | DATAGRAM) == 0
    }

    /// Returns the length of the shortest IP packet of the key: an IP header, and the ports that even a first fragment
    /// has.
    #[inline(always)]
    pub const fn least_bytes(self) -> u64 {
        if self.what & IPV6 == 0 { 20 + 8 } else { 40 + 8 }
    }

    /// Returns the destination port.
    #[inline(always)]
    pub const fn port(self) -> u16 {
        (self.what & 0xffff) as u16
    }

    /// Returns the key for the requests of one TCP connection, from the key of its segments. Together with its
    /// [`Key::hash`], it identifies the connection. The destination address is left out, since it separates few
    /// connections of one source.
    #[inline(always)]
    pub const fn of_connection(self, seed: HashKey, source_port: u16) -> Self {
        let of = seed
            .hash(self.source, (source_port as u64) << 16 | self.port() as u64 | (self.what & IPV6) << FAMILY_SHIFT);
        Self { source: of, what: self.what | UNVERIFIED }
    }

    /// Returns the key for unverified requests of a TCP connection, from the key of verified ones. Such an entry can be
    /// forged, so it drops only unverified traffic.
    #[inline(always)]
    pub const fn of_unverified_requests(self) -> Self {
        Self { source: !self.source, what: self.what }
    }

    /// Returns the key of unverified segments, from the key of all segments.
    #[inline(always)]
    pub const fn unverified(self) -> Self {
        Self { source: self.source, what: self.what | UNVERIFIED }
    }

    /// Returns the hash from which [`Key::place`] is made. It is equal for all epochs and kinds, since a segment is
    /// looked up by two kinds.
    #[inline(always)]
    pub const fn hash(self, seed: HashKey) -> u64 {
        if self.what == Self::NONE.what { 0 } else { seed.hash_here(self.source, self.what & KIND & !UNVERIFIED) }
    }

    /// Returns the place of the key's cache set, modulo the number of sets. Each kind uses other bits of the
    /// [`Key::hash`].
    #[inline(always)]
    pub const fn place(self, hash: u64) -> u64 {
        hash.rotate_right((self.what >> 16 & 3) as u32 * 16)
    }
}

#[cfg(test)]
mod tests;
