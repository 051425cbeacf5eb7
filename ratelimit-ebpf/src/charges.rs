//! Determines what a packet charges to the rule that judges it. That includes whether it opens a connection, how many
//! requests begin in it, and whether it is verified. Also determines what is remembered besides its source.

use ratelimit_common::hold::{Charges, is};
use ratelimit_common::layout::Rule;
use ratelimit_common::verdict::Reason;
use ratelimit_common::verification::Side;

use crate::conversations;
use crate::flows::FlowStep;
use crate::hold;
use crate::hook;
use crate::maps::{self, Deferred, frame_is};
use crate::packet::PacketFrame;
use crate::verification::{self, Verification};

/// State that is remembered of an admitted packet besides its source. Refused packets leave nothing and are judged
/// again when they are retransmitted.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Leaves {
    Nothing = 0,
    /// The TCP connection, which advances by every segment that passes, in a dry run too.
    Conversation = 1,
    /// The UDP flow. Every datagram of a refused flow opens it again, in a dry run too: an enforcing rule would drop as
    /// many.
    Flow = 2,
}

/// Stores what the current packet charges and what is remembered of it. Fails with a verdict if the packet is not
/// checked against the limits.
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
    // The server may read urgent bytes elsewhere or not at all, so the rest cannot be interpreted. No web client sends
    // them.
    if may_ask && rule.guard != 0 && parsed.segment().is_urgent() {
        return Err(Reason::Guard);
    }
    // The client has given up, and the server must not get the request.
    if may_ask && deferred.closes() && rule.ends_abandoned() && conversations::is_abandoned() != 0 {
        return Err(Reason::OverLimit);
    }
    let mut is_unaccounted = false;
    let (opening, requests, leaves) = match () {
        // The segment's other bytes are in other packets too, and its claims about the connection may differ from the
        // reassembled segment.
        () if is_tcp && is_fragment && rule.counts_requests != 0 => {
            conversations::come_in_fragments(parsed, deferred);
            (opening, 1, Leaves::Conversation)
        }
        () if is_tcp && is_fragment => (opening, 1, Leaves::Nothing),
        () if may_ask && !verification.is_ignored() => {
            let judged = conversations::judge(frame, deferred, rule.counts_requests == 2);
            // The client may have given up long ago, without a sign.
            if deferred.closes() && rule.ends_abandoned() && conversations::is_abandoned() != 0 {
                return Err(Reason::OverLimit);
            }
            is_unaccounted = judged.is_unaccounted() && verification.is_verified();
            // The log has shown that the source hides requests. Until it is within its limit again, none of its
            // segments may be one.
            let is_hidden = rule.has_log != 0 && judged.may_hide_request() && hold::is_beyond_by_log() != 0;
            (
                false,
                judged.requests() + is_hidden as u32,
                if judged.is_pending() { Leaves::Conversation } else { Leaves::Nothing },
            )
        }
        // A server that accepts payload with a SYN answers it.
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
        // The packet may be of any kind.
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
