//! Events in memory, within the kernel's budget and capacity.

use std::collections::VecDeque;

use ipnet::IpNet;
use ratelimit_common::events::{EventTally, Kind};
use ratelimit_common::layout::{EVENTS_MAX, Event};
use ratelimit_common::time::Nanos;

#[cfg(any(test, feature = "fixture"))]
use crate::events::EventCounts;
use crate::events::source;

/// Queue of events, like the kernel's ring with one CPU.
#[derive(Debug, Default)]
pub(crate) struct Told {
    waiting: VecDeque<Event>,
    tallies: [EventTally; Kind::ALL.len()],
}

impl Told {
    /// Queues an event of this client, or counts it as lost.
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

    /// Removes and returns the oldest waiting event.
    #[cfg(any(test, feature = "fixture"))]
    pub(crate) fn next(&mut self) -> Option<Event> {
        self.waiting.pop_front()
    }

    /// Returns the counts of all events.
    #[cfg(any(test, feature = "fixture"))]
    pub(crate) fn counts(&self) -> EventCounts {
        let mut counts = EventCounts::default();
        Kind::ALL.into_iter().zip(&self.tallies).for_each(|(kind, tally)| counts.add(kind, *tally));
        counts
    }
}
