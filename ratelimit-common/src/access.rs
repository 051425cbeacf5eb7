//! Grants and denials of a prefix that override the limits, as the packet path reads them.
//!
//! A trie finds only the longest prefix that holds an address. So each prefix carries what applies after its own time:
//! a few steps, each a word with an end and a grant. The daemon computes them from the surrounding prefixes.

use crate::time::Nanos;

/// Number of steps of one prefix: its own, and those of up to two surrounding prefixes that outlast it.
pub const STEPS: usize = 3;

/// Action on a prefix's packets before any limit is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grant {
    /// The packets pass, uncounted.
    Exempt,
    /// The packets are dropped.
    Denied,
}

impl Grant {
    /// Returns the name in flags, files, JSON and metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Exempt => "exempt",
            Self::Denied => "denied",
        }
    }
}

/// Grant with its end, in one word; 0 is none. The lowest bit is 1 for a denial. The other bits are the time, to two
/// nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Step(pub u64);

/// End of a permanent grant.
pub const PERMANENT: Nanos = Nanos(u64::MAX);

impl Step {
    /// Returns a step with this grant and end.
    pub const fn new(grant: Grant, until: Nanos) -> Self {
        match grant {
            Grant::Exempt => Self(until.0 & !1),
            Grant::Denied => Self(until.0 | 1),
        }
    }
}

/// Returns the grant of the first step that has not ended.
#[inline(always)]
pub fn grant(steps: [Step; STEPS], now: Nanos) -> Option<Grant> {
    for step in steps {
        if step.0 | 1 > now.0 | 1 {
            return Some(if step.0 & 1 == 0 { Grant::Exempt } else { Grant::Denied });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos(1_767_261_600_000_000_000);
    const LATER: Nanos = Nanos(NOW.0 + 10);

    #[test]
    fn a_step_holds_until_its_end_and_then_the_next() {
        let steps = [Step::new(Grant::Denied, LATER), Step::new(Grant::Exempt, PERMANENT), Step(0)];
        assert_eq!(grant(steps, NOW), Some(Grant::Denied));
        assert_eq!(grant(steps, Nanos(LATER.0 - 2)), Some(Grant::Denied));
        assert_eq!(grant(steps, LATER), Some(Grant::Exempt));
        assert_eq!(grant(steps, Nanos(u64::MAX - 2)), Some(Grant::Exempt));
    }

    #[test]
    fn no_step_grants_nothing() {
        assert_eq!(grant([Step(0); STEPS], NOW), None);
        assert_eq!(grant([Step::new(Grant::Denied, NOW), Step(0), Step(0)], LATER), None);
    }
}
