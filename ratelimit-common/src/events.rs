//! Budget for the events that each CPU sends to the daemon, by kind, and the count of all others.
//! [`crate::layout::Event`] is the event, and [`crate::hold`] decides when one begins.

use crate::admission::PERIOD_SHIFT;
use crate::time::Nanos;

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A limit refuses a source, for the first time in a bucket.
    Refused = 0,
    /// A rule in dry run, or a shadow limit, would refuse a source, for the first time in a bucket.
    WouldRefuse = 1,
    /// A rule bans a source.
    Ban = 2,
}

impl Kind {
    /// Every kind, in the order of the codes.
    pub const ALL: [Self; 3] = [Self::Refused, Self::WouldRefuse, Self::Ban];

    /// Number of kinds.
    pub const COUNT: u32 = 3;

    /// Returns the kind of a code, if it is one.
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

/// Maximum number of events of one kind that a CPU sends in a period of [`crate::admission`]: 1900 a second.
pub const BUDGET: u32 = 256;

/// Tally of the events of one kind on one CPU. Each event that began is counted in `sent` or in `lost`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EventTally {
    /// Number of the current period.
    pub period: u64,
    /// Number of events that were put into the ring.
    pub sent: u64,
    /// Number of events that were not sent, since the budget was spent or the ring was full.
    pub lost: u64,
    /// Number of events in the current period, out of [`BUDGET`].
    pub spent: u32,
    /// Padding, always 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<EventTally>() == 32);

impl EventTally {
    /// Spends one event of the current period's budget. Returns false if the budget is spent.
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
