//! What a datagram is to its flow: whether it opens a connection, how many requests it is.

use ratelimit_common::flow;

use crate::hold;
use crate::hook;
use crate::maps;

/// What [`flow_step`] returns: in the lowest bit whether the datagram opens a connection, above it the requests that
/// it is.
#[derive(Clone, Copy)]
pub(crate) struct FlowStep(u32);

impl FlowStep {
    /// That of the datagram at hand, which this rule judges.
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

/// Other datagrams that came merged with the one at hand.
pub(crate) struct Others {
    /// Requests that they are.
    pub(crate) requests: u32,
    /// True if the one at hand or another opens a connection.
    pub(crate) opens: bool,
}

/// A function of its own, whose stack is free again when the source is judged. Returns a [`FlowStep`].
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
    // Any datagram of a source beyond its limit is refused, so it is asked about those that are no request too.
    if datagram.speaks_quic && rule.has_log != 0 {
        let of_log = hold::of_quic(requests, opens as u32);
        if of_log == 0 && requests != 0 {
            deferred.flow.add_logged(requests);
        }
        requests = of_log;
    }
    opens as u32 | requests << 1
}
