//! Events in the ring, and the counts of sent and lost events.

use anyhow::Context as _;
use aya::maps::PerCpuArray;
use ratelimit_common::events::{EventTally, Kind};
use ratelimit_common::layout::{self, map};

use super::plain::Plain;
use super::{Kernel, map_ref};
use crate::{DatapathError, EVENTS_PART, EventCounts, KernelEvent};

impl Kernel {
    /// See [`crate::Datapath::events`]. Without a policy, the events have no names and stay in the ring.
    pub(super) fn visit_events(&mut self, visit: &mut dyn FnMut(KernelEvent)) -> Result<bool, DatapathError> {
        let Some(policy) = &self.generations.policy else { return Ok(false) };
        for _ in 0..EVENTS_PART {
            let Some(event) = self.events.next()? else { return Ok(false) };
            if let Some(event) = KernelEvent::of(&event, policy) {
                visit(event);
            }
        }
        Ok(true)
    }

    /// Returns the counts of all events.
    pub(super) fn event_counts(&self) -> Result<EventCounts, DatapathError> {
        let name = map::EVENT_TALLIES;
        let tallies: PerCpuArray<_, Plain<EventTally>> =
            PerCpuArray::try_from(map_ref(&self.ebpf, name)?).with_context(|| format!("open {name}"))?;
        let mut counts = EventCounts::default();
        for (cell, kind) in (0..layout::EVENT_TALLIES).zip(Kind::ALL.into_iter().cycle()) {
            let cpus = tallies.get(&cell, 0).with_context(|| format!("read {name}"))?;
            cpus.iter().for_each(|Plain(tally)| counts.add(kind, *tally));
        }
        Ok(counts)
    }
}
