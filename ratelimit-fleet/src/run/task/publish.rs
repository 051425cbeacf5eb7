//! Publication of the task's status, and log lines about its changes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ratelimit_common::time::Nanos;

use super::{Connection, Task};
use crate::hosts::SILENT_AFTER;
use crate::run::State;
use crate::trips::Distance;

impl Task {
    pub(super) fn publish(&mut self, now: Nanos) {
        let before = self.status.kind();
        let status = &mut self.status;
        status.trouble = self.pulse.trouble();
        if status.trouble.is_none() {
            status.said = None;
        }
        status.not_summed = self.core.not_summed();
        status.reach = self.trips.reach(now);
        let is_whole = status.trouble.is_none() && status.not_summed.is_empty();
        status.state = match &self.connection {
            Connection::Up(_) if !self.is_heard => State::Away,
            Connection::Up(_) => match status.reach.distance {
                Distance::Far => State::Away,
                Distance::Near if is_whole => State::Connected,
                Distance::Near | Distance::Slow => State::Degraded,
            },
            Connection::None { .. } | Connection::Connecting => State::Away,
        };
        let silence = self.beaten_at.elapsed();
        status.hosts = self.hosts.all(silence).collect();
        status.hosts_heard = self.hosts.heard(silence);
        status.delay = status.reach.delay.max(self.hosts.delay(silence));
        status.unread = self.hosts.unread(silence);
        status.is_doubled = self.doubled_at.is_some_and(|at| at.elapsed() < SILENT_AFTER);
        status.ahead_ns = self.core.ahead_ns();
        status.counters = self.core.counters();
        status.lost = self.lost.load(Ordering::Relaxed) + self.ledger.lost();
        status.tracked = self.core.tracked();
        status.acts_unsaid = self.ledger.unsaid();
        if let Some(line) = self.voice.line(before != self.status.kind(), now) {
            self.status.log(line);
        }
        self.published.send_replace(self.status.clone());
    }

    /// Returns the maximum time of this host's reports in milliseconds, for its record.
    pub(super) fn own_delay_ms(&self, now: Nanos) -> Option<u64> {
        let delay = self.trips.reach(now).delay?;
        Some(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn up_ms(&self) -> u64 {
        u64::try_from(Duration::as_millis(&self.began_at.elapsed())).unwrap_or(u64::MAX)
    }
}
