//! What a datagram is to its flow: whether it opens a connection, how many requests it is.

use ratelimit_common::flow::{self, Datagram};
use ratelimit_common::source::Address;

use crate::clock::Clock;
use crate::maps::{self, FlowKey};

/// A datagram and what is done with its flow, in one word, as an argument must be.
#[derive(Clone, Copy)]
pub(crate) struct Word(u32);

const INITIAL: u32 = 1 << 16;
const SHORT: u32 = 1 << 17;
const REMEMBER: u32 = 1 << 18;

impl Word {
    /// To look what it is.
    #[inline(always)]
    pub(crate) const fn look(quic_initial: bool, quic_short: bool, payload_bytes: u16) -> Self {
        Self(payload_bytes as u32 | quic_initial as u32 * INITIAL | quic_short as u32 * SHORT)
    }

    /// To remember its flow as it is with it.
    #[inline(always)]
    pub(crate) const fn remember(self) -> u32 {
        self.0 | REMEMBER
    }

    #[inline(always)]
    pub(crate) const fn word(self) -> u32 {
        self.0
    }
}

/// Whether a datagram opens a connection, in the lowest bit of what the functions below return, and how many requests it is.
#[derive(Clone, Copy)]
pub(crate) struct Part(pub(crate) u32);

impl Part {
    #[inline(always)]
    pub(crate) const fn opens(self) -> bool {
        self.0 & 1 != 0
    }

    #[inline(always)]
    pub(crate) const fn requests(self) -> u32 {
        self.0 >> 1
    }
}

/// Functions of their own, whose stack is free again when the source is judged.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn flow_v4(address: u32, ports: u32, word: u32, generation: u32) -> u32 {
    flow(FlowKey::new(Address::V4(address), (ports >> 16) as u16, ports as u16), ports as u16, word, generation)
}

#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn flow_v6(high: u64, low: u64, ports: u32, word: u32, generation: u32) -> u32 {
    let key = FlowKey::new(Address::V6([high, low]), (ports >> 16) as u16, ports as u16);
    flow(key, ports as u16, word, generation)
}

/// Returns a [`Part`].
#[inline(always)]
fn flow(flow: FlowKey, port: u16, word: u32, generation: u32) -> u32 {
    let Some(config) = maps::config(generation) else { return 0 };
    let now = Clock::new(config.wall_offset_ns).coarse();
    let (quic_initial, quic_short) = (word & INITIAL != 0, word & SHORT != 0);
    let step = flow::step(flow.known(), now, Datagram { port, quic_initial, quic_short, payload_bytes: word as u16 });
    if word & REMEMBER != 0 {
        flow.remember(&step.newest);
    }
    step.opens as u32 | step.requests << 1
}
