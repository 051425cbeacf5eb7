//! Which events are sent to the daemon: how many of a kind each CPU may, and that the others are counted. What an
//! event is, is in [`crate::layout::Event`]; when one begins, in [`crate::hold`].

use crate::admission::PERIOD_SHIFT;
use crate::time::Nanos;

/// What begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A limit refuses a source, for the first time in a bucket.
    Refused = 0,
    /// The same of a rule in dry run, or of a shadow limit: it would.
    WouldRefuse = 1,
    /// A rule bans a source.
    Ban = 2,
}

impl Kind {
    /// Every one, by code.
    pub const ALL: [Self; 3] = [Self::Refused, Self::WouldRefuse, Self::Ban];

    /// How many there are.
    pub const COUNT: u32 = 3;

    /// The kind of a code, if it is one.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Refused),
            1 => Some(Self::WouldRefuse),
            2 => Some(Self::Ban),
            _ => None,
        }
    }
}

const _: () = assert!(Kind::ALL.len() == Kind::COUNT as usize);

/// Events of one kind that a CPU sends in a period of [`crate::admission`]: 1900 a second.
pub const BUDGET: u32 = 256;

/// What became of the events of one kind on one CPU: each that began is in `sent` or in `lost`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EventTally {
    /// Which period it is.
    pub period: u64,
    /// Events that are, or were, in the ring.
    pub sent: u64,
    /// Events that are not, for the budget or for want of room.
    pub lost: u64,
    /// Of the period's budget.
    pub spent: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<EventTally>() == 32);

impl EventTally {
    /// Whether the budget is for one more now, which is then spent.
    #[inline(always)]
    #[must_use]
    pub const fn spend(&mut self, now: Nanos) -> bool {
        let period = now.0 >> PERIOD_SHIFT;
        if period != self.period {
            self.period = period;
            self.spent = 0;
        }
        if self.spent >= BUDGET {
            return false;
        }
        self.spent += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_NS: u64 = 1 << PERIOD_SHIFT;

    #[test]
    fn a_period_has_its_budget_and_no_more_whatever_the_last_one_spent() {
        let mut tally = EventTally::default();
        for period in [7, 8, 100] {
            let of_period = |at| Nanos(period * PERIOD_NS + at % PERIOD_NS);
            let spent = (0..10 * u64::from(BUDGET)).filter(|at| tally.spend(of_period(*at))).count();
            assert_eq!(spent, BUDGET as usize, "in period {period}");
        }
        assert!(tally.spend(Nanos(101 * PERIOD_NS)));
    }

    #[test]
    fn a_kind_survives_its_code() {
        for (code, kind) in (0..).zip(Kind::ALL) {
            assert_eq!((kind as u8, Kind::from_code(code)), (code, Some(kind)));
        }
        assert_eq!(Kind::from_code(3), None);
    }
}
