//! The drop cache: sources that a limit or a ban refuses, each with the time from which it may be within the limit
//! again. Until then, one look-up drops the packets of the source, before its rule is searched.
//!
//! Entries lie in cache sets of [`WAYS`]. A keyed hash chooses the set; the neighbour set is its overflow. Where both
//! are full a new drop is not cached, and the window judges the source as before. An entry that holds is never
//! replaced by another of the same standing. Otherwise a sender that forges sources over their limit would choose
//! whose entry ends. An entry that takes a verified connection or a ban replaces one that can be forged; never the
//! other way. So the cache fills up, each entry holds until its expiry, and a flood here costs time and forgives no
//! source that was refused before.
//!
//! A full window is within the limit again when its bucket turns, or when a charge is taken back because another
//! limit of its rule refused. In the latter case the source waits for the expiry all the same, for a race of two of
//! its packets.
//!
//! TCP segments that open nothing are of two kinds, see [`crate::verification`]. The entry for all of them is looked
//! up first, and the one for unverified traffic where there is such an entry.
//!
//! An entry is of one port, family and kind of packet, and of one *epoch*. Whatever the daemon changes (a rule, a
//! grant, the counters of a source) begins another epoch, and earlier entries no longer hold. An entry has five bits
//! of the epoch, so the daemon retires the entries of earlier epochs whenever it begins one.
//!
//! An entry is as small as it can be without taking one source for another: a flood from many sources costs the
//! memory that it touches. The window or ban that refuses, and the exact expiry, are apart ([`DropCause`]): few
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

/// Entries in a cache set. // four of 16 bytes are a cache line
pub const WAYS: usize = 4;

/// One entry of the drop cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DropEntry {
    /// What it is of, its expiry, and how many packets it has dropped that are not counted elsewhere; 0 is none. A
    /// writer puts [`BUSY`] here first.
    pub word: u64,
    /// [`Key::source`].
    pub source: u64,
}

/// The entries that share a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct CacheSet(pub [DropEntry; WAYS]);

const _: () = assert!(size_of::<CacheSet>() == 64);

/// The window or ban that drops an entry's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DropCause {
    /// The exact expiry.
    pub until_ns: u64,
    /// The slot of the window or ban.
    pub slot: u32,
    /// Some of [`cause_is`].
    pub is: u32,
    /// The source's prefix: whose window or ban it is. In the first word alone, unless it is [`cause_is::WIDE`].
    pub source: [u64; 2],
}

const _: () = assert!(size_of::<DropCause>() == 32);

/// What else a [`DropCause`] is.
pub mod cause_is {
    /// Its source is a prefix of IPv6 of more than 64 bits, both words of it.
    pub const WIDE: u32 = 1;
    /// Its entry is of one connection: it drops what is sent again after a refused request.
    pub const OF_CONNECTION: u32 = 2;
}

const DROPPED_SHIFT: u32 = 55;
const UNTIL_SHIFT: u32 = 33;
const EPOCH_SHIFT: u32 = 27;
const ROW_SHIFT: u32 = 20;

/// One more packet, in [`DropEntry::word`].
pub const ONE_DROPPED: u64 = 1 << DROPPED_SHIFT;

/// The most packets that an entry counts. With the next its count is 0 again, and [`DROPPED_MAX`] + 1 are to be
/// counted elsewhere.
pub const DROPPED_MAX: u64 = u64::MAX >> DROPPED_SHIFT;

/// An entry that is being written, whatever is counted in it: it drops nothing.
pub const BUSY: u64 = ONE_DROPPED - 1;

const TICKS_MASK: u64 = (1 << TICK_BITS) - 1;
const EPOCH_MASK: u64 = Active::ENTRY_EPOCH_MASK as u64;
const GUARD: u64 = 1 << 32;
const BAN: u64 = 1 << 19;
const IPV6: u64 = 1 << 18;
/// By so much the family is above both ports, in what is hashed of a connection.
const FAMILY_SHIFT: u32 = 14;
const OPENING: u64 = 1 << 16;
const DATAGRAM: u64 = 2 << 16;
const UNVERIFIED: u64 = 3 << 16;
/// Family, kind and port.
const KIND: u64 = IPV6 | (IPV6 - 1);
/// What [`Key::what`] has.
const WHAT: u64 = EPOCH_MASK << EPOCH_SHIFT | KIND;
const EXPIRY: u64 = BUSY & !WHAT;
/// One of the bits of [`KIND`].
const SOME: u64 = 1;

impl DropEntry {
    /// The packets dropped by it that are counted nowhere else.
    #[inline(always)]
    pub const fn dropped(self) -> u64 {
        self.word >> DROPPED_SHIFT
    }

    /// Whether it is being written.
    #[inline(always)]
    pub const fn is_busy(self) -> bool {
        self.word & BUSY == BUSY
    }

    /// Whether its source is one of IPv6.
    #[inline(always)]
    pub const fn is_ipv6(self) -> bool {
        self.word & IPV6 != 0
    }

    /// Its expiry, and the verdict.
    #[inline(always)]
    pub const fn expiry(self) -> Expiry {
        Expiry(self.word & EXPIRY)
    }

    /// Whether it is of this key.
    #[inline(always)]
    pub const fn is_of(self, key: Key) -> bool {
        self.source == key.source && (self.word ^ key.what) & WHAT == 0
    }

    /// Whether it is of this key, or of the same in another epoch.
    #[inline(always)]
    pub const fn is_of_any_epoch(self, key: Key) -> bool {
        self.source == key.source && (self.word ^ key.what) & KIND == 0
    }

    /// Whether it is of the same epoch as this key.
    #[inline(always)]
    pub const fn is_in_epoch_of(self, key: Key) -> bool {
        (self.word ^ key.what) & EPOCH_MASK << EPOCH_SHIFT == 0
    }

    /// Whether it was written in this epoch.
    pub const fn is_in_epoch(self, epoch: u32) -> bool {
        self.word >> EPOCH_SHIFT & EPOCH_MASK == epoch as u64 & EPOCH_MASK
    }

    /// Whether it takes a verified connection or a ban to make it: the drop of all segments is of what established
    /// connections have sent. The other kinds can be forged.
    #[inline(always)]
    pub const fn is_verified(self) -> bool {
        self.word & BAN != 0 || self.word & UNVERIFIED == 0
    }

    /// Its rank for replacement by an entry of this key: the least is replaced. First the key's own entry, then an
    /// expired one. An entry that holds is replaced only where it can be forged and the new one is verified, and then
    /// the one that expires first; [`KEEPS`] is none. In its last tick an entry counts as one that holds.
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

    /// It as one of no epoch: it drops nothing, and keeps its count.
    #[must_use]
    pub const fn retired(self) -> Self {
        Self { word: self.word & !(EPOCH_MASK << EPOCH_SHIFT | TICKS_MASK << UNTIL_SHIFT), source: self.source }
    }
}

/// The [`DropEntry::rank`] of one that keeps its place.
pub const KEEPS: u64 = u64::MAX;

/// The expiry of an entry, and its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry(u64);

/// A tick of an expiry: 537 ms. In its last one [`DropCause::until_ns`] tells whether the entry holds.
pub const TICK_SHIFT: u32 = 29;

/// How many bits an entry has for its ticks: they wrap every 26 days.
pub const TICK_BITS: u32 = DROPPED_SHIFT - UNTIL_SHIFT;

/// The longest time to an expiry: 3 days. An entry that lasts longer is written again. The daemon retires expired
/// entries whenever it reads. Only after 3 weeks without a reader may an expired entry be taken for a new one, and
/// then for as many packets as it counts.
const EXPIRY_TICKS_MAX: u64 = 1 << 19;

/// Whether an entry holds, as far as its expiry tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// It does.
    Yes,
    /// Until its cause says that it ends.
    InLastTick,
    /// It has ended.
    No,
}

impl Expiry {
    /// That `verdict`, a rule's, holds from now until then; and until when it does, which is no later.
    #[inline(always)]
    pub const fn new(now: Nanos, until: Nanos, verdict: Verdict) -> (Self, Nanos) {
        let last = Nanos(((now.0 >> TICK_SHIFT) + EXPIRY_TICKS_MAX) << TICK_SHIFT);
        let until = if until.0 < last.0 { until } else { last };
        // One that has ended ends now, and not in 26 days.
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

    /// From [`Expiry::word`].
    #[inline(always)]
    pub const fn of(word: u64) -> Self {
        Self(word & EXPIRY)
    }

    /// The word, with a bit that no expiry has: it is never 0.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.0 | SOME
    }

    /// Ticks left, this one included; 0 after the expiry.
    #[inline(always)]
    pub const fn left(self, now: Nanos) -> u64 {
        let after = (self.0 >> UNTIL_SHIFT).wrapping_sub(now.0 >> TICK_SHIFT) & TICKS_MASK;
        if after <= EXPIRY_TICKS_MAX { after + 1 } else { 0 }
    }

    /// Whether it holds.
    #[inline(always)]
    pub const fn holds(self, now: Nanos) -> Holds {
        match self.left(now) {
            0 => Holds::No,
            1 => Holds::InLastTick,
            _ => Holds::Yes,
        }
    }

    /// Whether it is a ban's, and not a limit's.
    #[inline(always)]
    pub const fn is_ban(self) -> bool {
        self.0 & BAN != 0
    }

    /// The verdict on what it drops.
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

/// What an entry is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Key {
    /// The source's prefix: an IPv4 address, or the upper half of an IPv6 one, in network order.
    pub source: u64,
    /// Epoch, family, kind and port, as in [`DropEntry::word`]. Never 0, as no epoch is.
    pub what: u64,
}

impl Key {
    /// Of packets that are not cached.
    pub const NONE: Self = Self { source: 0, what: 0 };

    /// The key of this packet; none where packets of its kind are not cached. A source of more than 64 bits is known
    /// by its keyed hash of so many: of two sources one in 2^64 is taken for the other.
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

    /// The word of its entry, which has dropped nothing yet.
    #[inline(always)]
    pub const fn entry_word(self, expiry: Expiry) -> u64 {
        self.what | expiry.0
    }

    /// Whether it is of packets that open TCP connections.
    #[inline(always)]
    pub const fn is_opening(self) -> bool {
        self.what & (OPENING | DATAGRAM) == OPENING
    }

    /// Whether it is of UDP datagrams.
    #[inline(always)]
    pub const fn is_datagram(self) -> bool {
        self.what & (OPENING | DATAGRAM) == DATAGRAM
    }

    /// The second of the words that its source is known by, of IPv4 or of IPv6.
    #[inline(always)]
    pub const fn family(self) -> u64 {
        if self.what & IPV6 == 0 { 4 } else { 6 }
    }

    /// Whether it is of TCP segments that open nothing.
    #[inline(always)]
    pub const fn is_segment(self) -> bool {
        self.what != Self::NONE.what && self.what & (OPENING | DATAGRAM) == 0
    }

    /// The shortest IP packet that it may be of: an IP header, and the ports that even a first fragment has.
    #[inline(always)]
    pub const fn least_bytes(self) -> u64 {
        if self.what & IPV6 == 0 { 20 + 8 } else { 40 + 8 }
    }

    /// Its destination port.
    #[inline(always)]
    pub const fn port(self) -> u16 {
        (self.what & 0xffff) as u16
    }

    /// The key of the requests of one TCP connection, where this is that of its segments. With its [`Key::hash`], it
    /// is that of no other connection. The destination address is left out: it tells few connections of one source
    /// apart.
    #[inline(always)]
    pub const fn of_connection(self, seed: HashKey, source_port: u16) -> Self {
        let of = seed
            .hash(self.source, (source_port as u64) << 16 | self.port() as u64 | (self.what & IPV6) << FAMILY_SHIFT);
        Self { source: of, what: self.what | UNVERIFIED }
    }

    /// The key of unverified requests of one TCP connection, where this is that of verified ones. Such an entry can
    /// be forged, so it drops only unverified traffic.
    #[inline(always)]
    pub const fn of_unverified_requests(self) -> Self {
        Self { source: !self.source, what: self.what }
    }

    /// The key of unverified segments, where this is that of all.
    #[inline(always)]
    pub const fn unverified(self) -> Self {
        Self { source: self.source, what: self.what | UNVERIFIED }
    }

    /// What its [`Key::place`] is made of. The same in each epoch, and of each kind: a segment's packets are looked
    /// for by two of them.
    #[inline(always)]
    pub const fn hash(self, seed: HashKey) -> u64 {
        if self.what == Self::NONE.what { 0 } else { seed.hash_here(self.source, self.what & KIND & !UNVERIFIED) }
    }

    /// Where its cache set is among all, before it is cut to how many there are: each kind has other bits of its
    /// [`Key::hash`].
    #[inline(always)]
    pub const fn place(self, hash: u64) -> u64 {
        hash.rotate_right((self.what >> 16 & 3) as u32 * 16)
    }
}

#[cfg(test)]
mod tests;
