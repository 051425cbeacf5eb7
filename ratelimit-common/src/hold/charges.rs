//! Amounts that a packet charges to a limit, and the values that the steps of [`super`] exchange.

use crate::layout::{self, LIMITS_MAX, SHADOWS_MAX, Unit};
use crate::verdict::Reason;
use crate::verification::Side;

/// Charges of a packet, by unit, and whether it is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Charges {
    /// Bytes of the IP packet.
    pub bytes: u32,
    /// Number of requests that begin in the packet.
    pub requests: u16,
    /// Flags of [`is`].
    pub is: u8,
    /// Code of the [`Side`] on which the guard counts the packet; 0 if the guard does not count it.
    pub guarded: u8,
}

const _: () = assert!(size_of::<Charges>() == 8);

/// Flags of [`Charges`].
pub mod is {
    /// The packet opens a connection.
    pub const OPENING: u8 = 1;
    /// The packet is verified: it belongs to a connection that the host has answered. It is counted apart from
    /// unverified traffic.
    pub const VERIFIED: u8 = 2;
    /// The packet belongs to an established connection, which is evidence enough for a ban.
    pub const ESTABLISHED: u8 = 4;
    /// The packet is the first known one of its connection.
    pub const FIRST: u8 = 8;
    /// No charge, on the verified side: checks whether every packet of the source is refused.
    pub const GLANCE: u8 = 32;
    /// The gate for new sources has seen the packet already.
    pub const ASKED: u8 = 64;
}

impl Charges {
    /// Charges with [`is::GLANCE`].
    pub const GLANCE: Self = Self { bytes: 0, requests: 0, is: is::GLANCE | is::VERIFIED, guarded: 0 };

    /// Returns the charges with the flag `bit` of [`is`] added if `holds`.
    #[inline(always)]
    #[must_use]
    pub const fn with(self, bit: u8, holds: bool) -> Self {
        Self { is: self.is | (bit * holds as u8), ..self }
    }

    /// Returns whether any of these flags of [`is`] is set.
    #[inline(always)]
    pub const fn has(self, bits: u8) -> bool {
        self.is & bits != 0
    }

    /// Returns the charges as one word, in which the kernel's functions take them.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.bytes as u64 | (self.requests as u64) << 32 | (self.is as u64) << 48 | (self.guarded as u64) << 56
    }

    /// Returns the charges of a [`Charges::word`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "each part is cut out")]
    pub const fn from_word(word: u64) -> Self {
        Self { bytes: word as u32, requests: (word >> 32) as u16, is: (word >> 48) as u8, guarded: (word >> 56) as u8 }
    }

    /// Returns the amount that the packet charges to a limit, and the window that it is charged to. The window of
    /// verified connections is charged elsewhere, and refuses nothing.
    #[inline(always)]
    pub const fn of(self, limit: &layout::Limit) -> (u64, Side) {
        let side = if self.has(is::VERIFIED) { Side::Verified } else { Side::Unverified };
        if self.has(is::GLANCE) {
            return (0, side);
        }
        match Unit::from_code(limit.unit) {
            Some(Unit::Connections) => (self.has(is::OPENING) as u64, Side::Unverified),
            Some(Unit::Packets) => (1, side),
            Some(Unit::Bytes) => (self.bytes as u64, side),
            Some(Unit::Requests) if self.guarded != 0 => (1, Side::from_code(self.guarded as u32)),
            Some(Unit::Requests) => (self.requests as u64, side),
            None => (0, side),
        }
    }
}

/// Position of a limit in its rule, and one of its windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At(pub u32);

const SIDE_SHIFT: u32 = 4;
const GROUP: u32 = 0x80;
const _: () = assert!(LIMITS_MAX + SHADOWS_MAX <= 1 << SIDE_SHIFT);

impl At {
    /// Returns the place of the source's limit at this position.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "a position has four bits")]
    pub const fn new(position: usize, side: Side) -> Self {
        Self((side as u32) << SIDE_SHIFT | position as u32)
    }

    /// Returns the place of this rule's limit at this position. The limit counts the source or a group.
    #[inline(always)]
    pub const fn of(rule: &layout::Rule, position: usize, side: Side) -> Self {
        let group = if position < rule.own_len as usize { 0 } else { GROUP };
        Self(Self::new(position, side).0 | group)
    }

    /// Returns whether the limit counts a group.
    #[inline(always)]
    pub const fn is_group(self) -> bool {
        self.0 & GROUP != 0
    }

    /// Returns the limit's position.
    #[inline(always)]
    pub const fn position(self) -> usize {
        (self.0 & ((1 << SIDE_SHIFT) - 1)) as usize
    }

    /// Returns the limit's window.
    #[inline(always)]
    pub const fn side(self) -> Side {
        Side::from_code(self.0 >> SIDE_SHIFT & 7)
    }

    /// Returns this rule's limit at the position.
    #[inline(always)]
    pub fn limit(self, rule: &layout::Rule) -> Option<&layout::Limit> {
        rule.limits.get(self.position())
    }

    /// Returns the code of the window's side.
    #[inline(always)]
    pub const fn side_code(self) -> u8 {
        (self.0 >> SIDE_SHIFT & 7) as u8
    }

    /// Returns the slot of the window.
    #[inline(always)]
    pub const fn slot(self, limit: &layout::Limit) -> u32 {
        self.side().slot(limit.slot)
    }
}

/// Flags, beside the [`At`] of the limit that refused, that say what a ban is for.
pub mod by {
    /// The packet belonged to an established connection.
    pub const ESTABLISHED: u32 = 0x100;
    /// The ban is based on connections that the source itself opened. Excludes [`ESTABLISHED`].
    pub const EVIDENCE: u32 = 0x200;
    /// The ban is based on an application's order. Excludes the other flags.
    pub const ORDER: u32 = 0x400;
}

/// Result of a charge to one limit, as one word: the number of the charged bucket, or a code above all buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged(pub u64);

impl Charged {
    /// The charge is over the limit.
    pub const REFUSED: Self = Self(u64::MAX);
    /// Other CPUs were faster in every try.
    pub const CONTENDED: Self = Self(u64::MAX - 1);
    /// The source has no window yet, or its window was evicted.
    pub const NOT_KNOWN: Self = Self(u64::MAX - 2);
    /// The source has no window, and the map has no place for one.
    pub const NOT_REMEMBERED: Self = Self(u64::MAX - 3);
    /// The source has no window and gets none: it was sampled out.
    pub const NOT_ADMITTED: Self = Self(u64::MAX - 4);
    /// The source has no window and gets none: its rule has admitted its maximum of new sources.
    pub const NEW_SOURCE_BUDGET: Self = Self(u64::MAX - 5);
    /// The charge is over the limit, for the first time in the bucket.
    pub const FIRST_REFUSED: Self = Self(u64::MAX - 6);
    /// Flag beside a bucket's number: the counts of the buckets before it are not final yet.
    const UNSETTLED: u64 = 1 << 62;
    /// Mask of two bits; among the codes, only [`Charged::UNSETTLED`] has just the lower one set.
    const UNSETTLED_MASK: u64 = 3 << 62;
    /// Flag beside a bucket's number: little was charged to the bucket before.
    const FRESH: u64 = 1 << 61;
    /// Flag beside a bucket's number: other hosts have to be told of the charge.
    const STEP: u64 = 1 << 60;
    const BUCKET: u64 = Self::STEP - 1;

    /// Returns the result of a charge to this bucket.
    #[inline(always)]
    pub const fn to(bucket: u64, is_fresh: bool, is_step: bool) -> Self {
        Self(bucket | (is_fresh as u64 * Self::FRESH) | (is_step as u64 * Self::STEP))
    }

    /// Returns the result that the counts before this bucket have to be settled first.
    #[inline(always)]
    pub const fn unsettled(bucket: u64) -> Self {
        Self(Self::UNSETTLED | bucket)
    }

    /// Returns the bucket before which counts have to be settled, if any.
    #[inline(always)]
    pub const fn to_settle(self) -> Option<u64> {
        if self.0 & Self::UNSETTLED_MASK == Self::UNSETTLED { Some(self.0 & Self::BUCKET) } else { None }
    }

    /// Returns the bucket that was charged, if one was.
    #[inline(always)]
    pub const fn bucket(self) -> Option<u64> {
        if self.0 < Self::UNSETTLED { Some(self.0 & Self::BUCKET) } else { None }
    }

    /// Returns whether the charge has to be followed by an action.
    #[inline(always)]
    pub const fn has_news(self) -> bool {
        self.0 & (Self::FRESH | Self::STEP) != 0
    }

    /// Returns whether other hosts have to be told of the charge.
    #[inline(always)]
    pub const fn is_step(self) -> bool {
        self.0 & Self::STEP != 0
    }

    /// Returns whether little was charged to the bucket before.
    #[inline(always)]
    pub const fn is_fresh(self) -> bool {
        self.0 & Self::FRESH != 0
    }
}

/// Result of [`super::check_limits`]: a reason's code. For `OverLimit` and `Guard`, the [`At`] of the limit that
/// refuses is above the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckResult(pub u32);

impl CheckResult {
    /// The packet is within all limits, and they are charged.
    pub const CHARGED: Self = Self(1 << 31 | Reason::WithinLimit as u32);

    /// Returns a result with a reason that comes from no limit.
    #[inline(always)]
    pub const fn of(reason: Reason) -> Self {
        Self(reason as u32)
    }

    /// Returns the result of a refusal by this limit.
    #[inline(always)]
    pub const fn refused(at: At) -> Self {
        Self(at.0 << 8 | refusal(at.side()) as u32)
    }

    /// Returns the reason of the result.
    #[inline(always)]
    pub const fn reason(self) -> Reason {
        Reason::from_code(self.0 & 0xff)
    }

    /// Returns whether the result has this reason.
    #[inline(always)]
    pub const fn is(self, reason: Reason) -> bool {
        self.0 & 0xff == reason as u32
    }

    /// Returns the limit that refuses.
    #[inline(always)]
    pub const fn at(self) -> At {
        At(self.0 >> 8)
    }
}

/// Returns the reason for a refusal by a limit's window on this side.
#[inline(always)]
pub(super) const fn refusal(side: Side) -> Reason {
    if side.is_guard() { Reason::Guard } else { Reason::OverLimit }
}
