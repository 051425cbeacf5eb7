//! What is read where nothing has happened.

use ratelimit_common::time::Nanos;

use crate::{EventCounts, Reading, Tallies};

impl Reading {
    /// Of no interface and no packet; a test says what else there is.
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
