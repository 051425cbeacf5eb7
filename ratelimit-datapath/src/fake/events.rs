//! Events of the fake.

use super::World;
use crate::{EVENTS_PART, KernelEvent};

impl World {
    /// Returns the events since the last call, and whether more may wait. Without a policy, all events wait.
    pub(super) fn events(&mut self) -> (Vec<KernelEvent>, bool) {
        let Some(policy) = &self.policy else { return (Vec::new(), false) };
        let waiting = &mut self.packets.sources.events;
        let part: Vec<_> = std::iter::from_fn(|| waiting.next()).take(EVENTS_PART).collect();
        (part.iter().filter_map(|event| KernelEvent::of(event, policy)).collect(), part.len() == EVENTS_PART)
    }
}
