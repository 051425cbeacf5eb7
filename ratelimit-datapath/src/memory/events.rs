//! What has begun, on the kernel's budget and with its room.

use std::collections::VecDeque;

use ipnet::IpNet;
use ratelimit_common::events::{EventTally, Kind};
use ratelimit_common::layout::{EVENTS_MAX, Event};
use ratelimit_common::time::Nanos;

#[cfg(any(test, feature = "fixture"))]
use crate::events::EventCounts;
use crate::events::source;

/// Events, as a ring of the kernel's has them with one CPU.
#[derive(Debug, Default)]
pub(crate) struct Told {
    waiting: VecDeque<Event>,
    tallies: [EventTally; Kind::ALL.len()],
}

impl Told {
    /// Keeps an event of this client, or counts it as lost.
    pub(super) fn send(&mut self, kind: Kind, client: IpNet, event: Event) {
        let tally = &mut self.tallies[kind as usize];
        if !tally.spend(Nanos(event.time_ns)) || self.waiting.len() >= EVENTS_MAX {
            tally.lost += 1;
            return;
        }
        let (family, prefix) = source(client);
        self.waiting.push_back(Event { family, prefix, ..event });
        tally.sent += 1;
    }

    /// The oldest that waits, taken out.
    #[cfg(any(test, feature = "fixture"))]
    pub(crate) fn next(&mut self) -> Option<Event> {
        self.waiting.pop_front()
    }

    /// What became of all.
    #[cfg(any(test, feature = "fixture"))]
    pub(crate) fn counts(&self) -> EventCounts {
        let mut counts = EventCounts::default();
        Kind::ALL.into_iter().zip(&self.tallies).for_each(|(kind, tally)| counts.add(kind, *tally));
        counts
    }
}
