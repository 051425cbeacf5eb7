//! What a datagram is to its flow: whether it opens a connection, how many requests it is.

use ratelimit_common::flow::{self, Datagram};
use ratelimit_common::source::Address;

use crate::clock::Clock;
use crate::maps;

/// What is known of a datagram, in one word, as an argument must be.
#[derive(Clone, Copy)]
pub(crate) struct Word(u32);

const INITIAL: u32 = 1 << 16;
const SHORT: u32 = 1 << 17;

impl Word {
    #[inline(always)]
    pub(crate) const fn new(quic_initial: bool, quic_short: bool, payload_bytes: u16) -> Self {
        Self(payload_bytes as u32 | quic_initial as u32 * INITIAL | quic_short as u32 * SHORT)
    }

    #[inline(always)]
    pub(crate) const fn word(self) -> u32 {
        self.0
    }
}

/// What the functions below return: in the lowest bit whether the datagram opens a connection, above it the requests that it is.
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

/// Functions of their own, whose stack is free again when the source is judged. Each returns a [`Part`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn flow_v4(address: u32, ports: u32, word: u32, generation: u32) -> u32 {
    flow(Address::V4(address), ports, word, generation)
}

#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn flow_v6(high: u64, low: u64, ports: u32, word: u32, generation: u32) -> u32 {
    flow(Address::V6([high, low]), ports, word, generation)
}

#[inline(always)]
fn flow(source: Address, ports: u32, word: u32, generation: u32) -> u32 {
    let Some(config) = maps::config(generation) else { return 0 };
    let Some(pending) = maps::pending() else { return 0 };
    let (source_port, port) = ((ports >> 16) as u16, ports as u16);
    pending.set_flow(source, source_port, port);
    let now = Clock::new(config.wall_offset_ns).coarse();
    let (quic_initial, quic_short) = (word & INITIAL != 0, word & SHORT != 0);
    let datagram = Datagram { port, quic_initial, quic_short, payload_bytes: word as u16 };
    let step = flow::step(pending.known_flow(), now, datagram);
    pending.flow = step.newest;
    step.opens as u32 | step.requests << 1
}

/// Remembers the connection or flow that was looked at last, as it is with its packet; returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn remember_pending() -> u32 {
    if let Some(pending) = maps::pending() {
        pending.remember();
    }
    0
}
