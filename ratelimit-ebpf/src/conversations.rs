//! How many requests begin in a segment, by what is remembered of its connection.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::programs::XdpContext;
use ratelimit_common::conversation;
use ratelimit_common::packet::{Packet, Segment};

use crate::maps;
use crate::packet::XdpFrame;

/// How many requests begin in this segment, to this port. Remembered only by [`remember`].
#[inline(always)]
pub(crate) fn requests(frame: &XdpFrame, packet: &Packet, port: u16, segment: Segment) -> u32 {
    let Some(pending) = maps::pending() else { return 0 };
    pending.set(packet.source, packet.destination, port, segment);
    turn(frame.context())
}

/// Remembers the connection as it is with the segment that was judged last, which passes.
#[inline(always)]
pub(crate) fn remember() {
    if let Some(pending) = maps::pending() {
        pending.remember();
    }
}

/// A function of its own: the verifier walks it once, and its stack is free again when the source is judged.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn turn(ctx: *mut xdp_md) -> u32 {
    let Some(pending) = maps::pending() else { return 0 };
    let ctx = XdpContext::new(ctx);
    let turn = conversation::turn(&XdpFrame::new(&ctx), &pending.segment, pending.known());
    pending.newest = turn.newest;
    turn.requests
}
