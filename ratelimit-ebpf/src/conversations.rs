//! How many requests begin in a segment, by what is remembered of its connection.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::programs::XdpContext;
use ratelimit_common::conversation::{Conversation, Record, Sought, Walk};
use ratelimit_common::packet::Segment;

use crate::maps::{self, Seen};
use crate::packet::XdpFrame;

/// How many requests begin in this segment, to this port.
#[inline(always)]
pub(crate) fn requests(frame: &XdpFrame, seen: &Seen, port: u16, segment: Segment) -> u32 {
    let Some(pending) = maps::pending() else { return 0 };
    pending.set_segment(seen.source(), seen.destination(), port, segment);
    turn(frame.context())
}

/// A function of its own: the verifier walks it once, and its stack is free again when the source is judged.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn turn(ctx: *mut xdp_md) -> u32 {
    let Some(pending) = maps::pending() else { return 0 };
    let known = pending.known_conversation();
    if let Some(known) = known {
        pending.conversation = known;
    }
    let ctx = XdpContext::new(ctx);
    pending.conversation.turn(&XdpFrame::new(&ctx), &pending.segment, known.is_some())
}

impl Walk for XdpFrame<'_> {
    #[inline(always)]
    fn found(&self, at: u32, end: u32, sought: Sought) -> u32 {
        found(self.context(), at, end, sought as u32)
    }

    #[inline(always)]
    fn record(&self, conversation: &mut Conversation, record: Record, acknowledged: u32) -> u32 {
        record_of(conversation, record.length.into(), record.kind.into(), record.begins_segment.into(), acknowledged)
    }
}

/// [`Sought::found`], likewise.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn found(ctx: *mut xdp_md, at: u32, end: u32, sought: u32) -> u32 {
    let ctx = XdpContext::new(ctx);
    let frame = XdpFrame::new(&ctx);
    let sought = if sought == Sought::Request as u32 { Sought::Request } else { Sought::Http2 };
    sought.found(&frame, at, end)
}

/// [`Conversation::record`], likewise. Null is not passed; the verifier wants to see that it would do no harm.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn record_of(
    conversation: *mut Conversation,
    length: u32,
    kind: u32,
    begins: u32,
    acknowledged: u32,
) -> u32 {
    let Some(conversation) = maps::conversation(conversation) else { return 0 };
    let record = Record { kind: kind as u8, begins_segment: begins != 0, length: length as u16 };
    conversation.record(record, acknowledged)
}
