//! What a packet costs the rule that judges it: whether it opens a connection, how many requests begin in it, what it proves, and what is
//! remembered of it beside its source.

use ratelimit_common::hold::{Cost, is};
use ratelimit_common::layout::Rule;
use ratelimit_common::proof::Side;
use ratelimit_common::verdict::Reason;

use crate::conversations;
use crate::flows::Part;
use crate::maps::{self, Pending, seen_is};
use crate::packet::XdpFrame;
use crate::proof::{self, Proof};

/// What is remembered of a packet beside its source, once it is admitted: what is refused is judged again when it is sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Leaves {
    Nothing = 0,
    /// Its connection. It goes on by whatever passes, in a dry run too.
    Conversation = 1,
    /// Its flow. One that is refused opens again with each datagram, in a dry run too: so many would be dropped.
    Flow = 2,
}

/// Keeps what the packet at hand costs, and what it leaves; or why it is not held to the limits.
#[inline(always)]
pub(crate) fn keep_cost(frame: &XdpFrame, pending: &mut Pending, rule: &Rule) -> Result<(), Reason> {
    let seen = maps::seen().ok_or(Reason::InternalError)?;
    let (is_tcp, is_fragment) = (seen.is(seen_is::TCP), seen.is_fragment_of_tcp());
    let (opening, has_payload) = (is_tcp && seen.is_opening(), is_tcp && seen.has_payload());
    let is_segment = is_tcp && !is_fragment && !opening;
    let may_ask = is_segment && rule.counts_requests != 0 && has_payload;
    let is_suspect = pending.is_suspect != 0;
    let proof = if is_segment && (proof::is_asked(rule, may_ask) || rule.guard != 0 && is_suspect) {
        frame.seen().ok_or(Reason::InternalError)?;
        Proof::of(frame, pending.generation(), pending.rule(), may_ask)
    } else {
        Proof::NONE
    };
    // Some of it the server may read elsewhere, or not at all, so what the rest is cannot be told. No client of the web sends such.
    if may_ask && rule.guard != 0 && seen.segment().is_urgent != 0 {
        return Err(Reason::Guard);
    }
    let mut is_unaccounted = false;
    let (opening, requests, leaves) = match () {
        // What begins in it is in other packets too, and what it says of its connection may not be what is put together.
        () if is_tcp && is_fragment && rule.counts_requests != 0 => {
            conversations::come_in_fragments(seen, pending);
            (opening, 1, Leaves::Conversation)
        }
        () if is_tcp && is_fragment => (opening, 1, Leaves::Nothing),
        () if may_ask && !proof.is_ignored() => {
            let judged = conversations::judge(frame, pending, rule.counts_requests == 2);
            is_unaccounted = judged.is_unaccounted() && proof.is_proven();
            (false, judged.requests(), if judged.is_pending() { Leaves::Conversation } else { Leaves::Nothing })
        }
        // A server that takes payload with a SYN answers it.
        () if opening && has_payload && rule.counts_requests != 0 => match conversations::of_syn(frame) {
            Some(requests) => (true, requests, Leaves::Nothing),
            None if rule.guard != 0 => return Err(Reason::Guard),
            None => (true, 1, Leaves::Nothing),
        },
        () if seen.is(seen_is::UDP) && rule.counts_connections | rule.counts_requests != 0 => {
            frame.seen().ok_or(Reason::InternalError)?;
            let part = Part::of_datagram(pending.generation(), pending.rule());
            (part.opens(), part.requests(), Leaves::Flow)
        }
        // Whatever it is, it may be anything.
        () if seen.is(seen_is::UNWALKABLE) => (true, 1, Leaves::Nothing),
        () if seen.is(seen_is::FRAGMENT) => (false, is_fragment as u32, Leaves::Nothing),
        () => (opening, 0, Leaves::Nothing),
    };
    let guarded = match () {
        () if rule.guard == 0 || requests != 0 => None,
        () if opening && is_tcp => Some(Side::Attempts),
        () if is_suspect && proof.is_proven() && seen.may_end_handshake() => Some(Side::Opened),
        () if is_unaccounted => Some(Side::Segments),
        () => None,
    };
    let cost = Cost {
        bytes: seen.ip_bytes(),
        requests: requests as u16,
        guarded: guarded.map_or(0, |side| side as u8),
        is: proof.of_cost(),
    };
    pending.keep_cost(cost.with(is::OPENING, opening).with(is::ASKED, pending.is_asked != 0), leaves);
    Ok(())
}
