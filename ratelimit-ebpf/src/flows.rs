//! Whether a datagram opens its flow.

use ratelimit_common::flow::{self, Datagram};
use ratelimit_common::source::Address;

use crate::clock::Clock;
use crate::maps::{self, FlowKey};

/// What is done with a flow.
pub(crate) mod step {
    pub(crate) const LOOK: u32 = 0;
    pub(crate) const REMEMBER: u32 = 1;
}

/// Functions of their own, whose stack is free again when the source is judged.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn flow_v4(address: u32, ports: u32, quic_initial: u32, step: u32, generation: u32) -> u32 {
    flow(FlowKey::new(Address::V4(address), (ports >> 16) as u16, ports as u16), quic_initial, step, generation)
}

#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn flow_v6(high: u64, low: u64, ports: u32, initial_and_step: u32, generation: u32) -> u32 {
    let flow_key = FlowKey::new(Address::V6([high, low]), (ports >> 16) as u16, ports as u16);
    flow(flow_key, initial_and_step & 0xff, initial_and_step >> 8, generation)
}

/// Returns 1 where the datagram opens its flow, which is remembered if `step` says so.
#[inline(always)]
fn flow(flow: FlowKey, quic_initial: u32, step: u32, generation: u32) -> u32 {
    let Some(config) = maps::config(generation) else { return 0 };
    let now = Clock::new(config.wall_offset_ns).coarse();
    let (opens, newest) = match flow::step(flow.known(), now, quic_initial != 0) {
        Datagram::Continues(newest) => (0, newest),
        Datagram::Opens(newest) => (1, newest),
    };
    if step == step::REMEMBER {
        flow.remember(&newest);
    }
    opens
}
