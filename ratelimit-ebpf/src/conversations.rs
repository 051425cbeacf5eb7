//! How many requests begin in a segment, by what is remembered of its connection.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::programs::XdpContext;
use ratelimit_common::conversation::{Conversation, Record, Sought, Walk};

use crate::maps;
use crate::packet::XdpFrame;

/// What [`turn`] says of a segment.
#[derive(Clone, Copy)]
pub(crate) struct Judged(u32);

/// Above all numbers of requests: nothing is pending.
const CONTINUES: u32 = 1 << 31;

impl Judged {
    /// How many requests begin in it.
    #[inline(always)]
    pub(crate) const fn requests(self) -> u32 {
        self.0 & !CONTINUES
    }

    /// Whether its connection is to be remembered once it is admitted.
    #[inline(always)]
    pub(crate) const fn is_pending(self) -> bool {
        self.0 & CONTINUES == 0
    }
}

/// Judges the segment that this frame is. Where it `passes` unless a request begins in it, and none does, its connection is
/// remembered there and then.
#[inline(always)]
pub(crate) fn judge(frame: &XdpFrame, passes: bool) -> Judged {
    Judged(turn(frame.context(), passes as u32))
}

/// Functions of their own: the verifier walks each once, and their stacks are free again when the source is judged.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn turn(ctx: *mut xdp_md, passes: u32) -> u32 {
    let (Some(seen), Some(pending)) = (maps::seen(), maps::pending()) else { return CONTINUES };
    pending.set_conversation(seen);
    let Some(known) = pending.known_conversation() else { return begins(ctx, 0) };
    let context = XdpContext::new(ctx);
    if passes != 0 && known.continues(&XdpFrame::new(&context), &seen.segment()) {
        return CONTINUES;
    }
    pending.conversation = *known;
    if passes == 0 && pending.conversation.continues(&XdpFrame::new(&context), &seen.segment()) {
        return 0;
    }
    begins(ctx, 1)
}

/// The rest of [`turn`]: what begins in a segment.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn begins(ctx: *mut xdp_md, is_known: u32) -> u32 {
    let (Some(seen), Some(pending)) = (maps::seen(), maps::pending()) else { return CONTINUES };
    let context = XdpContext::new(ctx);
    pending.conversation.turn(&XdpFrame::new(&context), &seen.segment(), is_known != 0)
}

impl Walk for XdpFrame<'_> {
    #[inline(always)]
    fn found(&self, at: u32, end: u32, sought: Sought) -> u32 {
        found(self.context(), at, end, sought as u32)
    }

    #[inline(always)]
    fn is_at(&self, sought: Sought, start: u32, next: u32, end: u32) -> bool {
        is_at(self.context(), sought as u32, start, next, end) != 0
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
    self::sought(sought).found(&frame, at, end)
}

/// [`Sought::is_at`], likewise.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_at(ctx: *mut xdp_md, sought: u32, start: u32, next: u32, end: u32) -> u32 {
    let ctx = XdpContext::new(ctx);
    self::sought(sought).is_at(&XdpFrame::new(&ctx), start, next, end) as u32
}

#[inline(always)]
const fn sought(code: u32) -> Sought {
    if code == Sought::Request as u32 { Sought::Request } else { Sought::Http2 }
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
    let Some(conversation) = maps::place(conversation) else { return 0 };
    let record = Record { kind: kind as u8, begins_segment: begins != 0, length: length as u16 };
    conversation.record(record, acknowledged)
}
