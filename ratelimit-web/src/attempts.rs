//! How often logins of an address have failed. A good code opens at any time: nobody guesses one of 256 bits, and so
//! nobody keeps another out. What is bounded is what failing costs. Time is an argument.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Failures of an address that are answered in [`PERIOD`].
pub(crate) const FAILURES_MAX: u32 = 10;
/// How long failures are remembered.
pub(crate) const PERIOD: Duration = Duration::from_secs(60);
/// Addresses that are remembered. // 1024 x 64 B = 64 kB
const ADDRESSES_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Attempts {
    failed: BTreeMap<IpAddr, (Instant, u32)>,
}

impl Attempts {
    /// Counts a failure; true while the address has had few.
    pub(crate) fn fail(&mut self, from: IpAddr, now: Instant) -> bool {
        let is_over = |began: &Instant| now.saturating_duration_since(*began) >= PERIOD;
        if self.failed.len() >= ADDRESSES_MAX {
            self.failed.retain(|_, (began, _)| !is_over(began));
        }
        if self.failed.len() >= ADDRESSES_MAX && !self.failed.contains_key(&from) {
            return false;
        }
        let (began, count) = self.failed.entry(from).or_insert((now, 0));
        if is_over(began) {
            (*began, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= FAILURES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn at(bits: u32) -> IpAddr {
        Ipv4Addr::from_bits(bits).into()
    }

    #[test]
    fn ten_failures_a_minute_are_answered_and_others_failures_do_not_count() {
        let (mut attempts, now) = (Attempts::default(), Instant::now());
        assert!((0..FAILURES_MAX).all(|_| attempts.fail(at(1), now)));
        assert!(!attempts.fail(at(1), now + PERIOD - Duration::from_secs(1)) && attempts.fail(at(2), now));
        assert!(attempts.fail(at(1), now + PERIOD));
    }

    #[test]
    fn failures_from_everywhere_take_no_more_memory_than_stated() {
        let (mut attempts, now) = (Attempts::default(), Instant::now());
        for of in 0..5_000 {
            attempts.fail(at(of), now);
        }
        assert_eq!(attempts.failed.len(), ADDRESSES_MAX);
        assert!(attempts.fail(at(9_999), now + PERIOD));
    }
}
