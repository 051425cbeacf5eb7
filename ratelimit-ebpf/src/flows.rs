//! What a datagram is to its flow: whether it opens a connection, how many requests it is.

use ratelimit_common::flow;

use crate::maps;

/// What [`part_of_flow`] returns: in the lowest bit whether the datagram opens a connection, above it the requests that it is.
#[derive(Clone, Copy)]
pub(crate) struct Part(u32);

impl Part {
    /// That of the datagram that was seen last, which this rule judges.
    #[inline(always)]
    pub(crate) fn of_datagram(generation: u32, rule: u32) -> Self {
        Self(part_of_flow(generation, rule))
    }

    #[inline(always)]
    pub(crate) const fn opens(self) -> bool {
        self.0 & 1 != 0
    }

    #[inline(always)]
    pub(crate) const fn requests(self) -> u32 {
        self.0 >> 1
    }
}

/// A function of its own, whose stack is free again when the source is judged. Returns a [`Part`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn part_of_flow(generation: u32, rule: u32) -> u32 {
    let Some(config) = maps::config(generation) else { return 0 };
    let (Some(seen), Some(pending)) = (maps::seen(), maps::pending()) else { return 0 };
    let datagram = seen.datagram(maps::rule(config, rule).speaks_quic(seen.port()));
    pending.set_flow(seen.source(), seen.source_port(), seen.port());
    let step = flow::step(pending.known_flow().map(|known| *known), pending.now(), datagram);
    pending.flow = step.newest;
    step.opens as u32 | step.requests << 1
}
