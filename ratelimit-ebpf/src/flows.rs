//! Judges what a datagram does to its flow: whether it opens a connection, and how many requests it makes.

use ratelimit_common::flow;

use crate::hold;
use crate::hook;
use crate::maps;

/// Result of [`flow_step`]: the lowest bit says whether the datagram opens a connection; the bits above hold its
/// requests.
#[derive(Clone, Copy)]
pub(crate) struct FlowStep(u32);

impl FlowStep {
    /// Judges the current datagram by this rule.
    #[inline(always)]
    pub(crate) fn of_datagram(generation: u32, rule: u32) -> Self {
        Self(flow_step(generation, rule))
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

/// Further datagrams that were merged with the first one of the frame.
pub(crate) struct Others {
    /// Requests that these datagrams make.
    pub(crate) requests: u32,
    /// True if any datagram of the frame opens a connection.
    pub(crate) opens: bool,
}

/// Returns a [`FlowStep`]. A function of its own, so that its stack is free again when the source is judged.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_step(generation: u32, rule: u32) -> u32 {
    let Some(config) = maps::config(generation) else { return 0 };
    let (Some(parsed), Some(deferred)) = (maps::parsed(), maps::deferred()) else { return 0 };
    let rule = maps::rule(config, rule);
    let datagram = parsed.datagram(rule.speaks_quic(parsed.port()));
    deferred.set_flow(parsed.source(), parsed.source_port(), parsed.port());
    let step = flow::step(deferred.known_flow().map(|known| *known), deferred.now(), hook::first_of(datagram));
    deferred.flow = step.newest;
    let Others { requests: of_others, opens } = hook::others(deferred, datagram, step.opens);
    let mut requests = step.requests + of_others;
    // Every datagram of a source over its limit is refused, so datagrams that make no request are checked too.
    if datagram.speaks_quic && rule.has_log != 0 {
        let of_log = hold::of_quic(requests, opens as u32);
        if of_log == 0 && requests != 0 {
            deferred.flow.add_logged(requests);
        }
        requests = of_log;
    }
    opens as u32 | requests << 1
}
