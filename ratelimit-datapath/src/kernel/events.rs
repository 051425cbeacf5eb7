//! The ring of events, and how many were put into it.

use anyhow::{Context as _, anyhow};
use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray, RingBuf};
use ratelimit_common::events::{EventTally, Kind};
use ratelimit_common::layout::{self, Event, map};

use super::plain::Plain;
use super::{Kernel, map_ref};
use crate::DatapathError;
use crate::events::{EVENTS_PART, EventCounts, KernelEvent};

/// The reading end of the ring. The next reader goes on where this one ends.
pub(super) struct Ring(RingBuf<MapData>);

impl Ring {
    /// Takes it out of what was loaded.
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, DatapathError> {
        let ring = ebpf.take_map(map::EVENTS).with_context(|| format!("the object has no map {}", map::EVENTS))?;
        Ok(Self(RingBuf::try_from(ring).with_context(|| format!("open {}", map::EVENTS))?))
    }

    /// The next event, if there is one.
    fn next(&mut self) -> Result<Option<Event>, DatapathError> {
        let Some(item) = self.0.next() else { return Ok(None) };
        let bytes: &[u8; size_of::<Event>()] =
            (&*item).try_into().map_err(|_| anyhow!("{} has an entry of {} bytes", map::EVENTS, item.len()))?;
        // SAFETY: so many bytes, of a layout type whose bytes are all there is to it.
        Ok(Some(unsafe { bytes.as_ptr().cast::<Plain<Event>>().read_unaligned() }.0))
    }
}

impl Kernel {
    /// [`crate::Datapath::events`]. Without a policy there are no names for what the ring has, and it stays there.
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

    /// What became of all events.
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
