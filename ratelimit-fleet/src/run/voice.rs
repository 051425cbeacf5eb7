//! Decides which changes of state are logged at once and which are summarised. Pure: instants are arguments.
//!
//! A flapping store would write a line per change. The first changes are logged at once. Afterwards a summary gives
//! their number, at intervals that grow while the flapping continues.

use std::time::Duration;

use ratelimit_common::time::Nanos;

use crate::core::after;

/// Maximum number of consecutive changes that are logged at once.
pub(super) const AT_ONCE_MAX: u32 = 4;

/// Quiet time after which one more change is logged at once.
pub(super) const QUIET: Duration = Duration::from_secs(300);

/// First pause before a summary. Each further pause is twice as long.
pub(super) const PAUSE_MIN: Duration = Duration::from_secs(60);

/// Maximum pause before a summary.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// Line to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Current state.
    State,
    /// Current state, and a summary of the changes that were not logged.
    Summary {
        /// Number of changes that were not logged.
        changes: u64,
        /// Time in which the changes occurred.
        within: Duration,
    },
}

/// State of the logging decision.
#[derive(Clone, Debug)]
pub(super) struct Voice {
    at_once: u32,
    changed_at: Option<Nanos>,
    /// Number of changes that are not logged yet, and the time of the first.
    held: Option<(u64, Nanos)>,
    pause: Duration,
}

impl Default for Voice {
    fn default() -> Self {
        Self { at_once: AT_ONCE_MAX, changed_at: None, held: None, pause: PAUSE_MIN }
    }
}

impl Voice {
    /// Returns the line to log now. `is_changed` is true if the state differs from the last call.
    pub(super) fn line(&mut self, is_changed: bool, now: Nanos) -> Option<Line> {
        if is_changed {
            let quiet = Duration::from_nanos(self.changed_at.map_or(0, |at| now.0.saturating_sub(at.0)));
            let more = u32::try_from(quiet.as_secs() / QUIET.as_secs()).unwrap_or(u32::MAX);
            self.at_once = self.at_once.saturating_add(more).min(AT_ONCE_MAX);
            if self.at_once == AT_ONCE_MAX {
                self.pause = PAUSE_MIN;
            }
            self.changed_at = Some(now);
            if self.held.is_none() && self.at_once > 0 {
                self.at_once -= 1;
                return Some(Line::State);
            }
            let (changes, since) = self.held.unwrap_or((0, now));
            self.held = Some((changes + 1, since));
        }
        let (changes, since) = self.held.filter(|(_, since)| now >= after(*since, self.pause))?;
        self.held = None;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Some(Line::Summary { changes, within: Duration::from_nanos(now.0 - since.0) })
    }
}

#[cfg(test)]
mod tests {
    use ratelimit_common::time::SECOND_NS;

    use super::*;

    const START: u64 = 1_750_000_000;

    /// Returns the lines logged over `seconds` seconds. The state changes in the seconds for which `is_changed` returns
    /// true.
    fn lines(seconds: u64, is_changed: impl Fn(u64) -> bool) -> Vec<(u64, Line)> {
        let mut voice = Voice::default();
        let line = |second| Some((second, voice.line(is_changed(second), Nanos((START + second) * SECOND_NS))?));
        (0..seconds).filter_map(line).collect()
    }

    #[test]
    fn a_store_that_flaps_for_a_day_logs_under_forty_lines_with_all_changes() {
        let lines = lines(86_400, |second| second % 2 == 0);
        assert!(lines.len() < 40, "{}", lines.len());
        let told: u64 = lines
            .iter()
            .map(|(_, line)| match line {
                Line::State => 1,
                Line::Summary { changes, .. } => *changes,
            })
            .sum();
        assert!(told > 43_200 - 1800, "{told} of 43200, the rest of the last hour comes later");
        assert_eq!(lines[..4].iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 2, 4, 6]);
        assert_eq!(lines[4], (68, Line::Summary { changes: 31, within: PAUSE_MIN }));
    }

    #[test]
    fn outages_that_are_far_apart_are_logged_at_once() {
        let lines = lines(86_400, |second| second % 3600 < 2);
        assert_eq!(lines.len(), 48);
        assert!(lines.iter().all(|(_, line)| *line == Line::State));
    }

    #[test]
    fn held_changes_are_summarized_even_if_nothing_changes_any_more() {
        let lines = lines(3600, |second| second < 10);
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[4].1, Line::Summary { changes: 6, within: PAUSE_MIN });
    }
}
