//! What a packet charges to the rule that judges it: whether it opens a connection, how many requests begin in it,
//! whether it is verified, and what is remembered of it beside its source.

use ratelimit_common::hold::{Charges, is};
use ratelimit_common::layout::Rule;
use ratelimit_common::verdict::Reason;
use ratelimit_common::verification::Side;

use crate::conversations;
use crate::flows::FlowStep;
use crate::hook;
use crate::maps::{self, Deferred, frame_is};
use crate::packet::PacketFrame;
use crate::verification::{self, Verification};

/// What is remembered of a packet beside its source, once it is admitted: what is refused is judged again when it is
/// sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Leaves {
    Nothing = 0,
    /// Its connection. It goes on by whatever passes, in a dry run too.
    Conversation = 1,
    /// Its flow. One that is refused opens again with each datagram, in a dry run too: so many would be dropped.
    Flow = 2,
}

/// Keeps what the packet at hand charges, and what it leaves; or why it is not held to the limits.
#[inline(always)]
pub(crate) fn keep_charges(frame: &PacketFrame, deferred: &mut Deferred, rule: &Rule) -> Result<(), Reason> {
    let parsed = maps::parsed().ok_or(Reason::InternalError)?;
    let (is_tcp, is_fragment) = (parsed.is(frame_is::TCP), parsed.is_fragment_of_tcp());
    let (opening, has_payload) = (is_tcp && parsed.is_opening(), is_tcp && parsed.has_payload());
    let is_segment = is_tcp && !is_fragment && !opening;
    let may_ask = is_segment && rule.counts_requests != 0 && has_payload;
    let is_suspect = deferred.is_suspect != 0;
    let verification = if is_segment && (verification::is_asked(rule, may_ask) || rule.guard != 0 && is_suspect) {
        frame.parsed().ok_or(Reason::InternalError)?;
        Verification::of(frame, deferred.generation(), deferred.rule(), may_ask)
    } else {
        Verification::NONE
    };
    // Some of it the server may read elsewhere, or not at all, so what the rest is cannot be told. No client of the
    // web sends such.
    if may_ask && rule.guard != 0 && parsed.segment().is_urgent() {
        return Err(Reason::Guard);
    }
    // Its client has given up, and the server is not to have the request.
    if may_ask && deferred.closes() && rule.ends_abandoned() && conversations::is_abandoned() != 0 {
        return Err(Reason::OverLimit);
    }
    let mut is_unaccounted = false;
    let (opening, requests, leaves) = match () {
        // What begins in it is in other packets too, and what it says of its connection may not be what is put
        // together.
        () if is_tcp && is_fragment && rule.counts_requests != 0 => {
            conversations::come_in_fragments(parsed, deferred);
            (opening, 1, Leaves::Conversation)
        }
        () if is_tcp && is_fragment => (opening, 1, Leaves::Nothing),
        () if may_ask && !verification.is_ignored() => {
            let judged = conversations::judge(frame, deferred, rule.counts_requests == 2);
            // Its client may have given up long ago, without a sign.
            if deferred.closes() && rule.ends_abandoned() && conversations::is_abandoned() != 0 {
                return Err(Reason::OverLimit);
            }
            is_unaccounted = judged.is_unaccounted() && verification.is_verified();
            (false, judged.requests(), if judged.is_pending() { Leaves::Conversation } else { Leaves::Nothing })
        }
        // A server that takes payload with a SYN answers it.
        () if opening && has_payload && rule.counts_requests != 0 => match conversations::of_syn(frame) {
            Some(requests) => (true, requests, Leaves::Nothing),
            None if rule.guard != 0 => return Err(Reason::Guard),
            None => (true, 1, Leaves::Nothing),
        },
        () if parsed.is(frame_is::UDP) && rule.counts_connections | rule.counts_requests != 0 => {
            frame.parsed().ok_or(Reason::InternalError)?;
            let step = FlowStep::of_datagram(deferred.generation(), deferred.rule());
            (step.opens(), step.requests(), Leaves::Flow)
        }
        // Whatever it is, it may be anything.
        () if parsed.is(frame_is::UNPARSABLE_HEADERS) => (true, 1, Leaves::Nothing),
        () if parsed.is(frame_is::FRAGMENT) => (false, is_fragment as u32, Leaves::Nothing),
        () => (opening, 0, Leaves::Nothing),
    };
    let guarded = match () {
        () if rule.guard == 0 || requests != 0 => None,
        () if opening && is_tcp => Some(Side::Attempts),
        () if is_suspect && verification.is_verified() && parsed.may_end_handshake() => Some(Side::Opened),
        () if is_unaccounted => Some(Side::Segments),
        () if parsed.is(frame_is::UDP) && deferred.flow.is_due() => Some(Side::Datagrams),
        () => None,
    };
    let charges = Charges {
        bytes: hook::charged_bytes(parsed.ip_bytes()),
        requests: requests as u16,
        guarded: guarded.map_or(0, |side| side as u8),
        is: verification.of_charges(),
    };
    deferred.keep_charges(charges.with(is::OPENING, opening).with(is::ASKED, deferred.is_asked != 0), leaves);
    Ok(())
}
