//! Conversion of a limit to a leaky bucket.

use ratelimit_common::gcra::Rate;
use ratelimit_common::layout::Unit;
use ratelimit_common::time::Nanos;

use super::Limit;

impl Limit {
    /// Returns the rate of [`WindowForm::Gcra`].
    pub fn leak(&self) -> Rate {
        let rate = Rate { amount: self.amount, window_ns: self.window_ns, burst_ns: 0 };
        let burst = self.burst.unwrap_or(self.amount);
        let burst_ns = match self.unit {
            // The burst is the cost of that many single units, each rounded up.
            Unit::Requests | Unit::Connections | Unit::Packets => rate.cost_ns(1).saturating_mul(burst),
            Unit::Bytes => {
                u64::try_from((u128::from(burst) * u128::from(self.window_ns)).div_ceil(u128::from(self.amount.max(1))))
                    .unwrap_or(u64::MAX)
            }
        };
        Rate { burst_ns, ..rate }
    }

    /// Returns the amount in a bucket that drains in `left_ns`, rounded up. Units counted one by one use the cost of
    /// a single unit, which was rounded up.
    pub fn leak_used(&self, left_ns: u64) -> u64 {
        let rate = self.leak();
        match self.unit {
            Unit::Requests | Unit::Connections | Unit::Packets => left_ns.div_ceil(rate.cost_ns(1).max(1)),
            Unit::Bytes => rate.used(left_ns, Nanos(0)),
        }
    }
}
