//! Limit on failed logins: ten per minute for each address, by the limiter's own arithmetic. A valid code always works,
//! even over the limit. A code has a 256-bit MAC, which cannot be guessed. So nobody can lock out another user. The
//! limit only bounds the cost of failures. Time is an argument.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ratelimit_common::gcra::Rate;
use ratelimit_common::time::{Nanos, SECOND_NS};

/// Number of failures of an address that are answered at once. Afterwards one is answered every six seconds.
pub(crate) const FAILURES_MAX: u64 = 10;
const LIMIT: Rate = Rate { amount: FAILURES_MAX, window_ns: 60 * SECOND_NS, burst_ns: 60 * SECOND_NS };
/// Maximum number of addresses that are tracked. // 1024 x 64 B = 64 kB
const ADDRESSES_MAX: usize = 1024;

/// GCRA state of each address.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    failed: BTreeMap<IpAddr, u64>,
}

impl Attempts {
    /// Counts a failed login of an address.
    ///
    /// # Errors
    /// Fails if the address is over the limit, with the time until its next failure is within the limit.
    pub(crate) fn fail(&mut self, from: IpAddr, now: Nanos) -> Result<(), Duration> {
        if self.failed.len() >= ADDRESSES_MAX && !self.failed.contains_key(&from) {
            // An empty bucket needs no entry.
            self.failed.retain(|_, word| *word > now.0);
            if self.failed.len() >= ADDRESSES_MAX {
                return Err(Duration::from_nanos(LIMIT.window_ns));
            }
        }
        let word = self.failed.entry(from).or_insert(0);
        match LIMIT.next(*word, now, 1) {
            Some(next) => {
                *word = next;
                Ok(())
            }
            None => {
                let free = LIMIT.free_from(*word, now, 1).map_or(LIMIT.window_ns, |free| free.0 - now.0);
                Err(Duration::from_nanos(free))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn at(bits: u32) -> IpAddr {
        Ipv4Addr::from_bits(bits).into()
    }

    fn seconds(of: u64) -> Nanos {
        Nanos((1_000 + of) * SECOND_NS)
    }

    #[test]
    fn ten_failures_a_minute_are_answered_and_others_failures_do_not_count() {
        let mut attempts = Attempts::default();
        assert!((0..FAILURES_MAX).all(|_| attempts.fail(at(1), seconds(0)).is_ok()));
        assert_eq!(attempts.fail(at(1), seconds(0)), Err(Duration::from_secs(6)));
        assert_eq!(attempts.fail(at(1), seconds(4)), Err(Duration::from_secs(2)), "what is refused does not count");
        assert_eq!(attempts.fail(at(2), seconds(0)), Ok(()));
        assert_eq!(attempts.fail(at(1), seconds(6)), Ok(()));
        assert!(attempts.fail(at(1), seconds(6)).is_err());
    }

    #[test]
    fn failures_from_everywhere_take_no_more_memory_than_stated() {
        let mut attempts = Attempts::default();
        for of in 0..5_000 {
            let _refused = attempts.fail(at(of), seconds(0));
        }
        assert_eq!(attempts.failed.len(), ADDRESSES_MAX);
        assert!(attempts.fail(at(9_999), seconds(1)).is_err() && attempts.fail(at(0), seconds(1)).is_ok());
        assert!(attempts.fail(at(9_999), seconds(60)).is_ok());
    }
}
