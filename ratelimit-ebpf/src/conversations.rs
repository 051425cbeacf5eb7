//! Counts the requests that begin in a TCP segment, by what is remembered of its connection.

use ratelimit_common::conversation::{
    self, Conversation, Entered, Found, Fresh, Hit, Likely, Moment, Record, Sought, Step, Walk,
};

use ratelimit_common::packet::plain_segment;

use crate::hold;
use crate::hook::{self, Context, Raw};
use crate::maps::{self, Deferred, ParsedFrame};
use crate::packet::{self, PacketFrame};

/// Result of [`judge`] for a segment: the number of requests, and three flags above it.
#[derive(Clone, Copy)]
pub(crate) struct Judged(u32);

/// Flag: the connection needs no update after the verdict.
const CONTINUES: u32 = 1 << 31;
/// Flag: the guard counts the segment.
const IS_UNACCOUNTED: u32 = 1 << 30;
/// Flag: the segment may be a request that its records do not show.
const MAY_HIDE_REQUEST: u32 = 1 << 29;

impl Judged {
    /// Returns the number of requests that begin in the segment.
    #[inline(always)]
    pub(crate) const fn requests(self) -> u32 {
        self.0 & !(CONTINUES | IS_UNACCOUNTED | MAY_HIDE_REQUEST)
    }

    /// Returns true if no request begins in the segment and the guard counts it.
    #[inline(always)]
    pub(crate) const fn is_unaccounted(self) -> bool {
        self.0 & IS_UNACCOUNTED != 0
    }

    /// Returns true if the segment may be a request that its records do not show.
    #[inline(always)]
    pub(crate) const fn may_hide_request(self) -> bool {
        self.0 & MAY_HIDE_REQUEST != 0
    }

    /// Returns true if the connection's state is to be stored once the segment is admitted.
    #[inline(always)]
    pub(crate) const fn is_pending(self) -> bool {
        self.0 & CONTINUES == 0
    }
}

/// Runs [`Conversation::goes_on`] on the current segment, of which only the head was read and which has payload.
/// Returns 1 if the segment lies within the record under way; the connection's state is stored at once then. Refused
/// requests are not checked: such a segment belongs to an admitted one.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn goes_on(ctx: *mut Raw) -> u32 {
    let (Some(parsed), Some(deferred)) = (maps::parsed(), maps::deferred()) else { return 0 };
    let context = Context::new(ctx);
    let (frame, source) = (PacketFrame::new(&context), parsed.source());
    let Some((destination, port, segment)) = plain_segment(&frame, source, parsed.ip_bytes()) else { return 0 };
    deferred.set_conversation(source, destination, segment.source_port, port);
    deferred.known_conversation().is_some_and(|known| known.goes_on(&frame, &segment)) as u32
}

/// Judges the segment in this frame, after its socket was queried. `passes` means that the segment passes unless a
/// request begins in it or the guard counts it. If neither is so, the connection's state is stored at once.
#[inline(always)]
pub(crate) fn judge(frame: &PacketFrame, deferred: &mut Deferred, passes: bool) -> Judged {
    let Some(parsed) = maps::parsed() else { return Judged(CONTINUES) };
    let known = recalled(parsed, deferred);
    let mut requests = 0;
    if enter(frame.context(), known.is_some() as u32) != 0 {
        requests = deferred.conversation.speak(frame, &mut deferred.entered);
    }
    if requests != 0 {
        return Judged(charged(requests));
    }
    let went_on = known.is_none() || deferred.went_on();
    if deferred.conversation.is_unaccounted(&parsed.segment(), went_on) {
        let may_hide_request = went_on && deferred.conversation.may_hide_request(&parsed.segment());
        return Judged(if may_hide_request { IS_UNACCOUNTED | MAY_HIDE_REQUEST } else { IS_UNACCOUNTED });
    }
    match known {
        Some(known) if passes => {
            maps::copy(&deferred.conversation, known);
            Judged(CONTINUES)
        }
        Some(_) | None => Judged(0),
    }
}

/// Returns the number of requests that these turns of the current connection are charged as. A function of its own, to
/// use its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn charged(turns: u32) -> u32 {
    let turns = turns & !(CONTINUES | IS_UNACCOUNTED | MAY_HIDE_REQUEST);
    let Some(deferred) = maps::deferred() else { return turns };
    let Some(config) = maps::config(deferred.generation()) else { return turns };
    // In the clear too: some servers answer requests without a version, which share a turn.
    if maps::rule(config, deferred.rule()).has_log != 0 { hold::multiplied(turns) } else { turns }
}

/// Records that the connection of this first fragment sends fragments. A function of its own, to use its own stack.
#[inline(never)]
pub(crate) fn come_in_fragments(parsed: &ParsedFrame, deferred: &mut Deferred) {
    let is_known = recalled(parsed, deferred).is_some();
    deferred.conversation.come_in_fragments(is_known);
}

/// Returns the stored state of this segment's connection, and copies it as the start of the new state. A function of
/// its own, to use its own stack.
#[inline(never)]
fn recalled(parsed: &ParsedFrame, deferred: &mut Deferred) -> Option<&'static mut Conversation> {
    deferred.set_conversation(parsed.source(), parsed.destination(), parsed.segment().source_port, parsed.port());
    let kept = deferred.kept_conversation();
    if let Some(kept) = kept.as_ref().filter(|kept| kept.has_refused()) {
        deferred.refused |= Deferred::REPEATS;
        if kept.has_waited(deferred.now()) {
            deferred.refused |= Deferred::CLOSES;
        }
    }
    let known = kept.filter(|known| !known.is_alone());
    match &known {
        Some(known) => {
            maps::copy(*known, &mut deferred.conversation);
            deferred.conversation.forget_refused();
        }
        None => maps::clear(&mut deferred.conversation),
    }
    deferred.keep_next();
    known
}

/// Records that the current request, which an established connection sent, was refused. Returns 1 if that was recorded
/// already.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn note_refused() -> u32 {
    let (Some(parsed), Some(deferred)) = (maps::parsed(), maps::deferred()) else { return 0 };
    let Some(peer) = parsed.peer() else { return 0 };
    let segment = parsed.segment();
    if let Some(known) = deferred.kept_conversation() {
        return known.keep_refused(&segment, &peer, deferred.now()) as u32;
    }
    // The new state belongs to admitted segments, so clear it first.
    maps::clear(&mut deferred.conversation);
    deferred.conversation.begin_alone();
    let now = deferred.now();
    let _always_new = deferred.conversation.keep_refused(&segment, &peer, now);
    deferred.insert();
    0
}

/// Runs [`Conversation::is_abandoned`] on the current segment, by what its socket reports. Returns 1 if the connection
/// is abandoned.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn is_abandoned() -> u32 {
    let (Some(parsed), Some(deferred)) = (maps::parsed(), maps::deferred()) else { return 0 };
    let Some(peer) = parsed.peer() else { return 0 };
    let segment = parsed.segment();
    deferred.set_conversation(parsed.source(), parsed.destination(), segment.source_port, parsed.port());
    let now = deferred.now();
    deferred.kept_conversation().is_some_and(|known| known.is_abandoned(&segment, &peer, now)) as u32
}

/// Returns the number of requests in a SYN with payload: a server with TCP Fast Open answers each. Returns `None` if
/// the payload begins HTTP/2, because the following segments could not be interpreted. The client then retries without
/// payload.
#[inline(always)]
pub(crate) fn of_syn(frame: &PacketFrame) -> Option<u32> {
    let Some(segment) = frame.parsed().map(|parsed| parsed.segment()) else { return Some(1) };
    match begins_with_syn(frame.context(), segment.payload_at, segment.payload_at.saturating_add(segment.payload_bytes))
    {
        0 => None,
        requests => Some(requests),
    }
}

/// Runs [`Conversation::enter`] on the segment. Returns 1 if a request may begin in it.
///
/// This step and the next ones are functions of their own, called in turn. The verifier walks each once, and their
/// stacks are free again when the next one runs and when the source is judged.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn enter(ctx: *mut Raw, is_known: u32) -> u32 {
    let (Some(parsed), Some(deferred)) = (maps::parsed(), maps::deferred()) else { return 0 };
    let context = Context::new(ctx);
    let entered =
        deferred.conversation.enter(&PacketFrame::new(&context), &parsed.segment(), is_known != 0, parsed.peer());
    match entered {
        Some(entered) => {
            deferred.entered = entered;
            1
        }
        None => 0,
    }
}

/// Returns [`of_syn`] for the payload from `at` to `end`; 0 for `None`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn begins_with_syn(ctx: *mut Raw, at: u32, end: u32) -> u32 {
    let context = Context::new(ctx);
    let frame = PacketFrame::new(&context);
    conversation::with_syn(&frame, at, end).unwrap_or(0)
}

impl Walk for PacketFrame<'_> {
    #[inline(always)]
    fn found(&self, at: u32, end: u32, sought: Sought) -> Found {
        Found(found(self.context(), at, end, sought as u32))
    }

    #[inline(always)]
    fn repeat<S: Step>(&self, most: u32, steps: S) -> S {
        packet::repeat(self.context(), most, steps)
    }

    #[inline(always)]
    fn likely(&self, sought: Sought, start: u32, block: u32, end: u32) -> Likely {
        Likely(likely(self.context(), sought as u32, start, block, end))
    }

    #[inline(always)]
    fn what_is_at(&self, sought: Sought, start: u32, next: u32, end: u32) -> Hit {
        match what_is_at(self.context(), sought as u32, start, next, end) {
            0 => Hit::None,
            1 => Hit::One,
            _ => Hit::Preface,
        }
    }

    #[inline(always)]
    fn record(&self, conversation: &mut Conversation, record: Record, moment: Moment) -> u32 {
        let word = u32::from(record.length) | u32::from(record.kind) << 16 | u32::from(record.begins_segment) << 24;
        record_of(conversation, word, moment.sequence, moment.said)
    }

    #[inline(always)]
    fn lost(&self, conversation: &mut Conversation, moment: Moment) -> u32 {
        lost(conversation, moment.sequence, moment.said)
    }

    #[inline(always)]
    fn preface(&self, conversation: &mut Conversation, fresh: Fresh) -> u32 {
        preface_in(self.context(), conversation, fresh.at, fresh.end)
    }

    #[inline(always)]
    fn clear(&self, conversation: &mut Conversation, entered: &mut Entered) -> u32 {
        clear_in(self.context(), conversation, entered)
    }

    #[inline(always)]
    fn http2(&self, conversation: &mut Conversation, entered: &Entered) -> u32 {
        http2_in(self.context(), conversation, entered)
    }

    #[inline(always)]
    fn tls(&self, conversation: &mut Conversation, entered: &Entered) -> u32 {
        tls_in(self.context(), conversation, entered)
    }
}

/// Runs [`Sought::found`]. Returns the word of a [`Found`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn found(ctx: *mut Raw, at: u32, end: u32, sought: u32) -> u64 {
    let ctx = Context::new(ctx);
    self::sought(sought).found(&PacketFrame::new(&ctx), at, end).0
}

/// Returns [`Sought::likely`] as a word. A function of its own, to use its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn likely(ctx: *mut Raw, sought: u32, start: u32, block: u32, end: u32) -> u32 {
    let ctx = Context::new(ctx);
    hook::likely(&PacketFrame::new(&ctx), self::sought(sought), start, block, end).0
}

/// Runs [`Sought::at`]. Returns the code of a [`Hit`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn what_is_at(ctx: *mut Raw, sought: u32, start: u32, next: u32, end: u32) -> u32 {
    let ctx = Context::new(ctx);
    hook::what_is_at(&PacketFrame::new(&ctx), self::sought(sought), start, next, end) as u32
}

#[inline(always)]
const fn sought(code: u32) -> Sought {
    match code {
        0 => Sought::Version,
        1 => Sought::Http2,
        _ => Sought::VersionToPreface,
    }
}

/// Runs [`Conversation::record`] on a [`Record`] packed into a word.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn record_of(conversation: *mut Conversation, word: u32, sequence: u32, said: u32) -> u32 {
    let Some(conversation) = maps::place(conversation) else { return 0 };
    let record = Record { kind: (word >> 16) as u8, begins_segment: word >> 24 != 0, length: word as u16 };
    conversation.record(record, Moment { sequence, said })
}

/// Runs [`Conversation::clear`]. No caller passes null, but the verifier requires the check.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn clear_in(ctx: *mut Raw, conversation: *mut Conversation, entered: *mut Entered) -> u32 {
    let (Some(conversation), Some(entered)) = (maps::place(conversation), maps::place(entered)) else { return 0 };
    let ctx = Context::new(ctx);
    conversation.clear(&PacketFrame::new(&ctx), entered)
}

/// Runs [`Conversation::http2`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn http2_in(ctx: *mut Raw, conversation: *mut Conversation, entered: *const Entered) -> u32 {
    let (Some(conversation), Some(entered)) = (maps::place(conversation), maps::place(entered.cast_mut())) else {
        return 0;
    };
    let ctx = Context::new(ctx);
    conversation.http2(&PacketFrame::new(&ctx), entered)
}

/// Runs [`Conversation::tls`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn tls_in(ctx: *mut Raw, conversation: *mut Conversation, entered: *const Entered) -> u32 {
    let (Some(conversation), Some(entered)) = (maps::place(conversation), maps::place(entered.cast_mut())) else {
        return 0;
    };
    let ctx = Context::new(ctx);
    conversation.tls(&PacketFrame::new(&ctx), entered)
}

/// Runs [`Conversation::preface`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn preface_in(ctx: *mut Raw, conversation: *mut Conversation, at: u32, end: u32) -> u32 {
    let Some(conversation) = maps::place(conversation) else { return 0 };
    let ctx = Context::new(ctx);
    conversation.preface(&PacketFrame::new(&ctx), at, end)
}

/// Runs [`Conversation::lost`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lost(conversation: *mut Conversation, sequence: u32, said: u32) -> u32 {
    let Some(conversation) = maps::place(conversation) else { return 0 };
    conversation.lost(Moment { sequence, said })
}
