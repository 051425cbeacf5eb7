//! Results of the functions that choose a rule, packed into words, as global functions return nothing else.

use ratelimit_common::layout::Rule;
use ratelimit_common::verdict::Reason;

use crate::maps;

/// Result of a quick look at a segment: the judging rule's number and row, whether it counts requests, and whether it
/// ignores segments without one.
#[derive(Clone, Copy)]
pub(super) struct Glance(pub(super) u32);

impl Glance {
    /// The quick look decides nothing.
    pub(super) const NONE: Self = Self(0);
    const IS_ONE: u32 = 1 << 31;
    const COUNTS_REQUESTS: u32 = 1 << 30;
    const IS_IGNORED: u32 = 1 << 29;
    /// The segment has no payload, and may end a connection whose client has given up.
    pub(super) const CLOSES: u32 = 1 << 28;

    #[inline(always)]
    pub(super) const fn new(index: u32, rule: &Rule, is_ignored: bool) -> Self {
        let counts_requests = if rule.counts_requests == 0 { 0 } else { Self::COUNTS_REQUESTS };
        let is_ignored = if is_ignored { Self::IS_IGNORED } else { 0 };
        Self(Self::IS_ONE | counts_requests | is_ignored | (index & 0xff) << 8 | rule.row as u32)
    }

    #[inline(always)]
    pub(super) const fn is_ignored(self) -> bool {
        self.0 & Self::IS_IGNORED != 0
    }

    #[inline(always)]
    pub(super) const fn counts_requests(self) -> bool {
        self.0 & Self::COUNTS_REQUESTS != 0
    }

    #[inline(always)]
    pub(super) const fn closes(self) -> bool {
        self.0 & Self::CLOSES != 0
    }

    #[inline(always)]
    pub(super) const fn row(self) -> u8 {
        self.0 as u8
    }

    /// Returns the choice of this rule, whose limits decide. Valid only if the value is not [`Glance::NONE`].
    #[inline(always)]
    pub(super) const fn choice(self) -> Choice {
        Choice::new(Reason::NotCounted, self.0 >> 8 & 0xff)
    }
}

/// Result of [`super::choose`]: a reason code, `NotCounted` if the limits decide. Above it is the number of the judging
/// rule plus one; 0 is none.
#[derive(Clone, Copy)]
pub(super) struct Choice(pub(super) u32);

impl Choice {
    /// The rule is not chosen yet.
    pub(super) const UNKNOWN: Self = Self(u32::MAX);

    #[inline(always)]
    pub(super) const fn new(reason: Reason, rule: u32) -> Self {
        Self((rule + 1) << 8 | reason as u32)
    }

    #[inline(always)]
    pub(super) const fn none(reason: Reason) -> Self {
        Self(reason as u32)
    }

    #[inline(always)]
    pub(super) const fn reason(self) -> Reason {
        maps::reason(self.0 & 0xff)
    }

    #[inline(always)]
    pub(super) const fn rule(self) -> Option<u32> {
        (self.0 >> 8).checked_sub(1)
    }
}
