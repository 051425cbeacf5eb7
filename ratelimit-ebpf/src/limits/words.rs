//! What the functions of [`super`] pass each other: plain numbers, as the verifier wants them.

use ratelimit_common::layout::{self, Unit};
use ratelimit_common::proof::Side;
use ratelimit_common::verdict::Reason;

use crate::clock::Clock;
use crate::maps;
use crate::proof::Proof;

/// What a packet costs, by unit: its bytes, above them the requests that begin in it, and in the top bits whether it opens a
/// connection, what it proves, and what was asked of it already. One word, as an argument must be.
#[derive(Clone, Copy)]
pub(crate) struct Cost(pub(super) u64);

const COST_OPENS: u32 = 63;
const COST_PROVEN: u32 = 62;
const COST_GLANCE: u32 = 61;
const COST_ESTABLISHED: u32 = 60;
const COST_ASKED: u32 = 59;
/// Two bits: what the guard counts, by how far the code of its side is behind that of [`Side::Evidence`].
const COST_GUARDED: u32 = 57;
const COST_FIRST: u32 = 56;
const COST_ARMED: u32 = 55;
const COST_REQUESTS: u32 = 32;

impl Cost {
    /// Nothing, of what is proven: whether the source is refused whatever it sends.
    pub(crate) const GLANCE: Self = Self(1 << COST_PROVEN | 1 << COST_GLANCE);

    #[inline(always)]
    pub(crate) const fn new(opening: bool, requests: u32, bytes: u32, proof: Proof) -> Self {
        let proven = (proof.is_proven() as u64) << COST_PROVEN | (proof.is_established() as u64) << COST_ESTABLISHED;
        let evidence = (proof.is_first() as u64) << COST_FIRST | (proof.is_armed() as u64) << COST_ARMED;
        Self((opening as u64) << COST_OPENS | proven | evidence | (requests as u64) << COST_REQUESTS | bytes as u64)
    }

    /// It, of a packet of whose source it was asked already whether it is known.
    #[inline(always)]
    pub(crate) const fn asked(self) -> Self {
        Self(self.0 | 1 << COST_ASKED)
    }

    /// It, of a packet that a guard counts on this side.
    #[inline(always)]
    pub(crate) const fn guarded(self, side: Side) -> Self {
        Self(self.0 | (side as u64 - Side::Evidence as u64) << COST_GUARDED)
    }

    /// Whether that was asked already.
    #[inline(always)]
    pub(super) const fn is_asked(self) -> bool {
        self.has(COST_ASKED)
    }

    /// Whether its connection is established.
    #[inline(always)]
    pub(crate) const fn is_established(self) -> bool {
        self.has(COST_ESTABLISHED)
    }

    /// Whether it says something of its source's connections: that this is the first that is known of one, or that too many were opened.
    #[inline(always)]
    pub(crate) const fn is_evidence(self) -> bool {
        self.has(COST_FIRST) || self.has(COST_ARMED)
    }

    /// Whether it is the first that is known of its connection.
    #[inline(always)]
    pub(crate) const fn is_first(self) -> bool {
        self.has(COST_FIRST)
    }

    #[inline(always)]
    pub(crate) const fn is_proven(self) -> bool {
        self.has(COST_PROVEN)
    }

    #[inline(always)]
    const fn has(self, bit: u32) -> bool {
        self.0 >> bit & 1 != 0
    }

    #[inline(always)]
    pub(crate) const fn word(self) -> u64 {
        self.0
    }

    /// Whether it is [`Cost::GLANCE`].
    #[inline(always)]
    pub(super) const fn is_glance(self) -> bool {
        self.0 == Self::GLANCE.0
    }

    /// How much of a limit it takes, and of which of its windows. The proven connections refuse nothing.
    #[inline(always)]
    pub(super) fn of(self, limit: &layout::Limit) -> (u64, Side) {
        let side = if self.is_proven() { Side::Proven } else { Side::Unproven };
        if self.is_glance() {
            return (0, side);
        }
        match Unit::from_code(limit.unit) {
            Some(Unit::Connections) => (self.0 >> COST_OPENS, Side::Unproven),
            Some(Unit::Packets) => (1, side),
            Some(Unit::Bytes) => (self.0 & u64::from(u32::MAX), side),
            Some(Unit::Requests) => {
                let (requests, guarded) = (self.0 >> COST_REQUESTS & u64::from(u16::MAX), self.0 >> COST_GUARDED & 3);
                if guarded == 0 {
                    (requests, side)
                } else {
                    (1, Side::from_code(guarded as u32 + Side::Evidence as u32))
                }
            }
            None => (0, side),
        }
    }
}

/// Which limit of which rule, of which generation where that is not another argument, and which window of it. One word, likewise.
#[derive(Clone, Copy)]
pub(super) struct LimitIndex(pub(super) u32);

/// A limit's position in its rule and the window of it that is meant: of a [`Look`] too.
#[derive(Clone, Copy)]
pub(super) struct At(pub(super) u32);

const AT_SIDE_SHIFT: u32 = 4;
const _: () = assert!(layout::LIMITS_MAX + layout::SHADOWS_MAX <= 1 << AT_SIDE_SHIFT);

impl At {
    #[inline(always)]
    pub(super) const fn new(at: usize, side: Side) -> Self {
        Self((side as u32) << AT_SIDE_SHIFT | at as u32)
    }

    #[inline(always)]
    pub(super) const fn position(self) -> usize {
        (self.0 & (1 << AT_SIDE_SHIFT) - 1) as usize
    }

    #[inline(always)]
    pub(super) const fn side(self) -> Side {
        Side::from_code(self.0 >> AT_SIDE_SHIFT & 7)
    }
}

/// With what [`At`] has of the limit that refused: the packet was of an established connection.
pub(crate) const BY_ESTABLISHED: u32 = 0x100;
/// Instead of that: by what the source itself has opened.
pub(super) const BY_EVIDENCE: u32 = 0x200;
/// Instead of all that: an application says so.
pub(crate) const BY_ORDER: u32 = 0x400;

impl LimitIndex {
    #[inline(always)]
    pub(super) const fn new(rule: u32, at: At) -> Self {
        Self((rule & 0x3f) << 8 | at.0 & 0xff)
    }

    #[inline(always)]
    pub(super) const fn in_generation(self, generation: u32) -> u32 {
        generation << 16 | self.0
    }

    #[inline(always)]
    pub(super) const fn rule(self) -> u32 {
        self.0 >> 8 & 0x3f
    }

    #[inline(always)]
    pub(super) const fn at(self) -> At {
        At(self.0 & 0xff)
    }

    /// The limit, and the clock to hold it by.
    #[inline(always)]
    pub(super) fn limit(self, generation: u32) -> Option<(&'static layout::Limit, Clock)> {
        let config = maps::config(generation)?;
        let limit = config.rules.get(self.rule() as usize)?.limits.get(self.at().position())?;
        Some((limit, Clock::new(config.wall_offset_ns)))
    }

    /// Which window.
    #[inline(always)]
    pub(super) const fn slot(self, limit: &layout::Limit) -> u32 {
        self.at().side().slot(limit.slot)
    }
}

/// What [`charge`] returns besides the number of the bucket that was charged.
pub(super) mod charged {
    pub(in crate::limits) const REFUSED: u64 = u64::MAX;
    pub(in crate::limits) const CONTENDED: u64 = u64::MAX - 1;
    /// The source has no window yet, or not any more.
    pub(in crate::limits) const NOT_KNOWN: u64 = u64::MAX - 2;
    /// Nor can it get one.
    pub(in crate::limits) const NOT_REMEMBERED: u64 = u64::MAX - 3;
    /// Nor is it to get one: it was not drawn.
    pub(in crate::limits) const NOT_ADMITTED: u64 = u64::MAX - 4;
    /// Nor is it to get one: its rule has let in as many as it may.
    pub(in crate::limits) const NEW_SOURCE_BUDGET: u64 = u64::MAX - 5;
    /// The first of these codes.
    pub(in crate::limits) const CODES: u64 = NEW_SOURCE_BUDGET;
    /// With the number of a bucket: those before it have no final counts yet.
    pub(in crate::limits) const UNSETTLED: u64 = 1 << 62;
    /// Of the codes, only that one has these two bits so.
    pub(in crate::limits) const UNSETTLED_MASK: u64 = 3 << 62;
}

/// What [`look`] has found: a reason's code, and above it, where that is `OverLimit` or `Guard`, the position of the limit that refuses.
#[derive(Clone, Copy)]
pub(crate) struct Look(pub(super) u32);

impl Look {
    /// Nothing yet.
    pub(crate) const NONE: Self = Self::of(Reason::NotCounted);

    /// Of what a function has returned.
    #[inline(always)]
    pub(crate) const fn from_word(word: u32) -> Self {
        Self(word)
    }

    #[inline(always)]
    pub(in crate::limits) const fn of(reason: Reason) -> Self {
        Self(reason as u32)
    }

    #[inline(always)]
    pub(in crate::limits) const fn refused(at: At) -> Self {
        let reason = if at.side().is_guard() { Reason::Guard } else { Reason::OverLimit };
        Self(at.0 << 8 | reason as u32)
    }

    /// The reason's code.
    #[inline(always)]
    pub(crate) const fn code(self) -> u32 {
        self.0 & 0xff
    }

    /// What [`At`] has of the limit that refuses.
    #[inline(always)]
    pub(crate) const fn at(self) -> u32 {
        self.0 >> 8
    }
}
