//! A limit as a leaky bucket.

use ratelimit_common::gcra::Rate;
use ratelimit_common::layout::Unit;
use ratelimit_common::time::Nanos;

use super::Limit;

impl Limit {
    /// The arithmetic of [`WindowForm::Gcra`].
    pub fn leak(&self) -> Rate {
        let rate = Rate { amount: self.amount, window_ns: self.window_ns, burst_ns: 0 };
        let burst = self.burst.unwrap_or(self.amount);
        let burst_ns = match self.unit {
            // As many as are said fit, one by one, each rounded up.
            Unit::Requests | Unit::Connections | Unit::Packets => rate.cost_ns(1).saturating_mul(burst),
            Unit::Bytes => {
                u64::try_from((u128::from(burst) * u128::from(self.window_ns)).div_ceil(u128::from(self.amount.max(1))))
                    .unwrap_or(u64::MAX)
            }
        };
        Rate { burst_ns, ..rate }
    }

    /// How much is in the bucket where it is empty after so long, rounded up. What is counted one by one was rounded up
    /// one by one.
    pub fn leak_used(&self, left_ns: u64) -> u64 {
        let rate = self.leak();
        match self.unit {
            Unit::Requests | Unit::Connections | Unit::Packets => left_ns.div_ceil(rate.cost_ns(1).max(1)),
            Unit::Bytes => rate.used(left_ns, Nanos(0)),
        }
    }
}
