//! Readings of the fake: of bans, and an empty one.

use ratelimit_common::time::Nanos;

use super::World;
use crate::{Ban, EventCounts, Reading, SourceReading, SourcesPosition, Tallies};
use ratelimit_policy::desired;

/// Maximum number of windows in one part of a visit.
const SOURCES_PART: usize = 1_000;

impl Reading {
    /// Returns a reading without interfaces or packets, which a test can extend.
    pub fn fixture() -> Self {
        Self {
            now: Nanos(0),
            interfaces: Vec::new(),
            unlisted: Tallies::default(),
            faults: Vec::new(),
            bans_begun: Vec::new(),
            sources_capacity: 0,
            admissions: Vec::new(),
            not_cached: 0,
            events: EventCounts::default(),
        }
    }
}

impl World {
    pub(super) fn visit_part(
        &self,
        from: SourcesPosition,
        visit: &mut dyn FnMut(SourceReading),
    ) -> Option<SourcesPosition> {
        let part = self.packets.sources.windows.iter().skip(from.map * SOURCES_PART).take(SOURCES_PART);
        let visited = part.map(|(&(prefix, slot), &window)| visit(self.reading(prefix, slot, window))).count();
        (visited == SOURCES_PART).then_some(SourcesPosition { map: from.map + 1, bucket: None })
    }

    /// Returns the newest ban of each source by each rule that is in force. The kernel too reports only bans of such
    /// rules.
    pub(super) fn bans(&self) -> impl Iterator<Item = Ban> {
        self.bans_read().map(|(ban, _)| ban)
    }

    pub(super) fn bans_read(&self) -> impl Iterator<Item = (Ban, u64)> {
        let rules = self.in_force().map_or(&[][..], |policy| &policy.rules);
        self.packets.sources.bans.iter().filter_map(|(&(client, slot), ban)| {
            let rule = rules.iter().position(|rule| desired::ban_slot(&rule.name) == slot)?;
            Some((Ban { client, rule, until: Nanos(ban.until_ns), step: ban.step + 1 }, ban.dropped))
        })
    }
}
