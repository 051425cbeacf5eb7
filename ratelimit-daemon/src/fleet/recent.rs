//! Growth of a monotonic counter over the last minute. Pure.

use std::collections::VecDeque;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
/// Maximum number of remembered readings. // one each two seconds
const LOOKS_MAX: usize = 64;

/// Readings of the last minute: uptime and counter.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent(VecDeque<(Duration, u64)>);

impl Recent {
    /// Adds a reading. Returns the counter's growth over the last minute, or since the first reading if that is
    /// later.
    pub(super) fn last_minute(&mut self, count: u64, now: Duration) -> u64 {
        if self.0.back().is_some_and(|(_, before)| *before > count) {
            // The counter was reset or replaced.
            self.0.clear();
        }
        // One reading that is at least a minute old stays as the baseline.
        while self.0.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= MINUTE) || self.0.len() >= LOOKS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, count));
        self.0.front().map_or(0, |(_, first)| count - first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_is_what_the_counter_grew_by_in_it() {
        let mut recent = Recent::default();
        let mut look = |count, second| recent.last_minute(count, Duration::from_secs(second));
        assert_eq!(look(100, 0), 0, "what was before is not known");
        assert_eq!(look(130, 30), 30);
        assert_eq!(look(160, 60), 60);
        assert_eq!(look(190, 90), 60);
        assert_eq!(look(190, 150), 0);
        assert_eq!(look(5, 152), 0, "a counter that was reset");
        assert_eq!(look(9, 154), 4);
    }

    #[test]
    fn looks_that_come_often_take_no_more_memory() {
        let mut recent = Recent::default();
        for millisecond in 0..10_000 {
            recent.last_minute(millisecond, Duration::from_millis(millisecond));
        }
        assert!(recent.0.len() <= LOOKS_MAX);
    }
}
