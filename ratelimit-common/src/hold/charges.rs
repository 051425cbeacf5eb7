//! What a packet charges to a limit, and what the steps of [`super`] tell each other.

use crate::layout::{self, LIMITS_MAX, SHADOWS_MAX, Unit};
use crate::verdict::Reason;
use crate::verification::Side;

/// What a packet charges, by unit, and whether it is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Charges {
    /// Bytes of the IP packet.
    pub bytes: u32,
    /// Requests that begin in it.
    pub requests: u16,
    /// Some of [`is`].
    pub is: u8,
    /// The code of the [`Side`] on which the guard counts it; 0 where it does not.
    pub guarded: u8,
}

const _: () = assert!(size_of::<Charges>() == 8);

/// Flags of [`Charges`].
pub mod is {
    /// It opens a connection.
    pub const OPENING: u8 = 1;
    /// Verified: of a connection that the host has answered. It is counted apart from unverified traffic.
    pub const VERIFIED: u8 = 2;
    /// Of an established connection: evidence enough for a ban.
    pub const ESTABLISHED: u8 = 4;
    /// The first that is known of its connection.
    pub const FIRST: u8 = 8;
    /// No charge, on the verified side: checks whether the source is refused whatever it sends.
    pub const GLANCE: u8 = 32;
    /// The gate for new sources has seen the packet already.
    pub const ASKED: u8 = 64;
}

impl Charges {
    /// See [`is::GLANCE`].
    pub const GLANCE: Self = Self { bytes: 0, requests: 0, is: is::GLANCE | is::VERIFIED, guarded: 0 };

    /// It, with one more of [`is`] where that holds.
    #[inline(always)]
    #[must_use]
    pub const fn with(self, bit: u8, holds: bool) -> Self {
        Self { is: self.is | (bit * holds as u8), ..self }
    }

    /// Whether it has any of these of [`is`].
    #[inline(always)]
    pub const fn has(self, bits: u8) -> bool {
        self.is & bits != 0
    }

    /// It as one word, as a function of the kernel's takes it.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.bytes as u64 | (self.requests as u64) << 32 | (self.is as u64) << 48 | (self.guarded as u64) << 56
    }

    /// [`Charges::word`], taken apart.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "each part is cut out")]
    pub const fn from_word(word: u64) -> Self {
        Self { bytes: word as u32, requests: (word >> 32) as u16, is: (word >> 48) as u8, guarded: (word >> 56) as u8 }
    }

    /// How much it charges to a limit, and to which of its windows. The window of verified connections refuses
    /// nothing.
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

/// A limit's position in its rule, and the window of it that is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At(pub u32);

const SIDE_SHIFT: u32 = 4;
const GROUP: u32 = 0x80;
const _: () = assert!(LIMITS_MAX + SHADOWS_MAX <= 1 << SIDE_SHIFT);

impl At {
    /// Of the rule's limit at this position.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "a position has four bits")]
    pub const fn new(position: usize, side: Side) -> Self {
        Self((side as u32) << SIDE_SHIFT | position as u32)
    }

    /// Of this rule's limit at this position, of the source or of a group.
    #[inline(always)]
    pub const fn of(rule: &layout::Rule, position: usize, side: Side) -> Self {
        let group = if position < rule.own_len as usize { 0 } else { GROUP };
        Self(Self::new(position, side).0 | group)
    }

    /// Whether the limit is of a group.
    #[inline(always)]
    pub const fn is_group(self) -> bool {
        self.0 & GROUP != 0
    }

    /// The limit's position.
    #[inline(always)]
    pub const fn position(self) -> usize {
        (self.0 & ((1 << SIDE_SHIFT) - 1)) as usize
    }

    /// Which of its windows.
    #[inline(always)]
    pub const fn side(self) -> Side {
        Side::from_code(self.0 >> SIDE_SHIFT & 7)
    }

    /// The limit of this rule.
    #[inline(always)]
    pub fn limit(self, rule: &layout::Rule) -> Option<&layout::Limit> {
        rule.limits.get(self.position())
    }

    /// The code of that.
    #[inline(always)]
    pub const fn side_code(self) -> u8 {
        (self.0 >> SIDE_SHIFT & 7) as u8
    }

    /// The slot of that window.
    #[inline(always)]
    pub const fn slot(self, limit: &layout::Limit) -> u32 {
        self.side().slot(limit.slot)
    }
}

/// With what [`At`] has of the limit that refused, what a ban is for.
pub mod by {
    /// The packet was of an established connection.
    pub const ESTABLISHED: u32 = 0x100;
    /// Instead of that: by what the source itself has opened.
    pub const EVIDENCE: u32 = 0x200;
    /// Instead of all that: an application says so.
    pub const ORDER: u32 = 0x400;
}

/// What one limit made of a charge, in a word: the number of the bucket that was charged, or a code above all buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged(pub u64);

impl Charged {
    /// Over the limit.
    pub const REFUSED: Self = Self(u64::MAX);
    /// Other CPUs were always faster.
    pub const CONTENDED: Self = Self(u64::MAX - 1);
    /// The source has no window yet, or not any more.
    pub const NOT_KNOWN: Self = Self(u64::MAX - 2);
    /// Nor can it get one.
    pub const NOT_REMEMBERED: Self = Self(u64::MAX - 3);
    /// Nor is it to get one: it was sampled out.
    pub const NOT_ADMITTED: Self = Self(u64::MAX - 4);
    /// Nor is it to get one: its rule has passed as many as it may.
    pub const NEW_SOURCE_BUDGET: Self = Self(u64::MAX - 5);
    /// Over the limit, for the first time in the bucket.
    pub const FIRST_REFUSED: Self = Self(u64::MAX - 6);
    /// With the number of a bucket: those before it have no final counts yet.
    const UNSETTLED: u64 = 1 << 62;
    /// Of the codes, only that one has these two bits so.
    const UNSETTLED_MASK: u64 = 3 << 62;
    /// With the number of a bucket: little was charged to it before.
    const FRESH: u64 = 1 << 61;
    /// With the number of a bucket: other hosts are to be told of it.
    const STEP: u64 = 1 << 60;
    const BUCKET: u64 = Self::STEP - 1;

    /// Charged to this bucket.
    #[inline(always)]
    pub const fn to(bucket: u64, is_fresh: bool, is_step: bool) -> Self {
        Self(bucket | (is_fresh as u64 * Self::FRESH) | (is_step as u64 * Self::STEP))
    }

    /// What is before this bucket is to be settled.
    #[inline(always)]
    pub const fn unsettled(bucket: u64) -> Self {
        Self(Self::UNSETTLED | bucket)
    }

    /// The bucket before which something is to be settled.
    #[inline(always)]
    pub const fn to_settle(self) -> Option<u64> {
        if self.0 & Self::UNSETTLED_MASK == Self::UNSETTLED { Some(self.0 & Self::BUCKET) } else { None }
    }

    /// The bucket that was charged.
    #[inline(always)]
    pub const fn bucket(self) -> Option<u64> {
        if self.0 < Self::UNSETTLED { Some(self.0 & Self::BUCKET) } else { None }
    }

    /// Of a bucket that was charged: whether something is to be done for it.
    #[inline(always)]
    pub const fn has_news(self) -> bool {
        self.0 & (Self::FRESH | Self::STEP) != 0
    }

    /// Whether other hosts are to be told of it.
    #[inline(always)]
    pub const fn is_step(self) -> bool {
        self.0 & Self::STEP != 0
    }

    /// Whether little was charged to it before.
    #[inline(always)]
    pub const fn is_fresh(self) -> bool {
        self.0 & Self::FRESH != 0
    }
}

/// The result of [`super::check_limits`]: a reason's code, and above it, where that is `OverLimit` or `Guard`, the
/// [`At`] of the limit that refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckResult(pub u32);

impl CheckResult {
    /// Within all limits, which are charged.
    pub const CHARGED: Self = Self(1 << 31 | Reason::WithinLimit as u32);

    /// A reason that is no limit's.
    #[inline(always)]
    pub const fn of(reason: Reason) -> Self {
        Self(reason as u32)
    }

    /// What this limit refuses.
    #[inline(always)]
    pub const fn refused(at: At) -> Self {
        Self(at.0 << 8 | refusal(at.side()) as u32)
    }

    /// The reason.
    #[inline(always)]
    pub const fn reason(self) -> Reason {
        Reason::from_code(self.0 & 0xff)
    }

    /// Whether that is this one.
    #[inline(always)]
    pub const fn is(self, reason: Reason) -> bool {
        self.0 & 0xff == reason as u32
    }

    /// The limit that refuses.
    #[inline(always)]
    pub const fn at(self) -> At {
        At(self.0 >> 8)
    }
}

/// The reason of what a limit's window on this side refuses.
#[inline(always)]
pub(super) const fn refusal(side: Side) -> Reason {
    if side.is_guard() { Reason::Guard } else { Reason::OverLimit }
}
