//! What the fake has to tell.

use super::World;
use crate::{EVENTS_PART, KernelEvent};

impl World {
    /// What has begun since the last call, and whether more waits: not before there are names for it.
    pub(super) fn events(&mut self) -> (Vec<KernelEvent>, bool) {
        let Some(policy) = &self.policy else { return (Vec::new(), false) };
        let waiting = &mut self.packets.sources.events;
        let part: Vec<_> = std::iter::from_fn(|| waiting.next()).take(EVENTS_PART).collect();
        (part.iter().filter_map(|event| KernelEvent::of(event, policy)).collect(), part.len() == EVENTS_PART)
    }
}
