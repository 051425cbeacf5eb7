//! From a parsed packet to its verdict: which rule judges it, and what that rule asks of its source. Whether it fits the
//! rule's limits is told by [`crate::limits`].

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::programs::XdpContext;
use ratelimit_common::access::{self, Grant};
use ratelimit_common::admission::asks_first;
use ratelimit_common::layout::{self, Prefix, RULES_MAX, Rule, RuleSet, Unlisted};
use ratelimit_common::packet::{Head, To, source_port_of_payload};
use ratelimit_common::proof::{Side, asks as proof_of};
use ratelimit_common::refused::{Key, Term};
use ratelimit_common::source::{Address, cut_ipv4, cut_ipv6};
use ratelimit_common::verdict::{Action, Reason, Verdict};

use crate::clock::Clock;
use crate::conversations;
use crate::flows::Part;
use crate::fragments;
use crate::limits::{
    BY_ESTABLISHED, Cost, Look, ban_v4, ban_v6, ban_v6_wide, charge_all_v4, charge_all_v6, charge_all_v6_wide,
    prove_v4, prove_v6, prove_v6_wide, refused_v4, refused_v6, refused_v6_wide, room_v4, room_v6, room_v6_wide,
    shadow_v4, shadow_v6, shadow_v6_wide, suspect_v4, suspect_v6, suspect_v6_wide,
};
use crate::maps::{self, Active, NoPacket, Pending, Seen};
use crate::newcomers::{excuses, remember_pending, turned_away};
use crate::packet::{XdpFrame, forget};
use crate::proof::{self, Proof, Unproven};

/// Judges one packet, and charges it where it is admitted.
#[inline(always)]
pub(crate) fn verdict(active: Active, frame: &XdpFrame) -> Verdict {
    let head = match head(frame) {
        Ok(head) => head,
        Err(NoPacket::NotIp) => return Verdict::unruled(Reason::NotIp),
        Err(NoPacket::Malformed) => return Verdict::unruled(Reason::Malformed),
        Err(NoPacket::NotSeen) => return Verdict::unruled(Reason::InternalError),
        Err(NoPacket::TooManyTags) => return too_many_tags(active),
    };
    let config = active.config;
    let key = Key::of(&head, active.word.epoch(), config.ipv4_mask, config.ipv6_mask).unwrap_or(Key::NONE);
    let term = if key.is_segment() {
        let term = refused_segment(frame.context(), active.word.generation(), key.source, key.what);
        if term == 0 { None } else { Some(Term::of(term)) }
    } else {
        maps::refused(config, key, key.hash(config.seed), || Clock::new(config.wall_offset_ns).coarse())
    };
    if let Some(term) = term {
        return term.verdict();
    }
    // From here on the packet is where functions find it, and the stack is theirs.
    let (Some(seen), Some(pending)) = (maps::to_see(), maps::pending()) else {
        return Verdict::unruled(Reason::InternalError);
    };
    pending.key = key;
    pending.refused = key;
    pending.suspect_at = 0;
    if !key.is_segment() {
        pending.connection = Key::NONE;
        pending.is_suspect = 0;
    }
    seen.keep_head(&head);
    if !frame.is_seen() {
        seen.keep_whole();
    }
    if config.has_targets != 0 && frame.seen().is_none() {
        return Verdict::unruled(Reason::InternalError);
    }
    let choice = Choice(choose(active.word.0));
    let Some(index) = choice.rule() else { return Verdict::unruled(choice.reason()) };
    let rule = maps::rule(config, index);
    let judging = Judging { index, rule };
    let mut reason = choice.reason();
    if reason == Reason::NotCounted {
        let key = pending.key();
        pending.is_asked = asks_first(rule, key) as u32;
        if pending.is_asked != 0 {
            reason = Reason::from_code(turned_away(
                key.source,
                key.family(),
                active.word.generation(),
                index,
                excuses::NONE,
            ));
        }
        if pending.is_asked == 0 || reason == Reason::WithinLimit {
            reason = judge(active, frame, judging);
        }
    }
    if pending.fragment_rules != 0 {
        return fragments::verdict(active, reason);
    }
    enforced(rule, reason)
}

/// What refuses a segment with this key, by a note of all its source's, of those that prove nothing, or of its connection: a [`Term`], or 0.
/// Keeps whether there may be the second, and what the third has. A function of its own, for its place on the stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn refused_segment(ctx: *mut xdp_md, generation: u32, source: u64, what: u64) -> u64 {
    let (Some(config), Some(pending)) = (maps::config(generation), maps::pending()) else { return 0 };
    let (context, key) = (XdpContext::new(ctx), Key { source, what });
    let (frame, hash) = (XdpFrame::new(&context), key.hash(config.seed));
    let now = || Clock::new(config.wall_offset_ns).coarse();
    if let Some(term) = maps::refused(config, key, hash, now) {
        return term.word();
    }
    pending.connection = Key::NONE;
    pending.is_suspect = maps::may_be_noted(config, key.unproven(), hash) as u32;
    // What the guard notes of a suspect source refuses nothing.
    if pending.is_suspect != 0
        && let Some(term) = proof::refused(&frame, generation, key, Unproven::Source)
        && term.verdict().reason != Reason::Guard
    {
        return term.word();
    }
    let Some(source_port) = source_port_of_payload(&frame) else { return 0 };
    let connection = key.of_connection(config.seed, source_port);
    pending.connection = connection;
    if let Some(term) = maps::refused(config, connection, connection.source, now) {
        return term.word();
    }
    let unproven = connection.of_unproven_requests();
    if maps::may_be_noted(config, unproven, unproven.source)
        && let Some(term) = proof::refused(&frame, generation, key, Unproven::Connection)
    {
        return term.word();
    }
    0
}

/// Whether it is asked first of all whether the source is known of a packet with this key.
#[inline(always)]
fn asks_first(rule: &Rule, key: Key) -> bool {
    let kind = if key.is_opening() {
        asks_first::OPENINGS
    } else if key.is_datagram() {
        asks_first::DATAGRAMS
    } else {
        0
    };
    rule.asks_first & kind != 0
}

/// What [`choose`] returns: a reason's code, that of `NotCounted` where the limits decide; above it the number of the rule that judges,
/// counted from 1.
#[derive(Clone, Copy)]
struct Choice(u32);

impl Choice {
    #[inline(always)]
    const fn new(reason: Reason, rule: u32) -> Self {
        Self(rule + 1 << 8 | reason as u32)
    }

    #[inline(always)]
    const fn none(reason: Reason) -> Self {
        Self(reason as u32)
    }

    #[inline(always)]
    const fn reason(self) -> Reason {
        Reason::from_code(self.0 & 0xff)
    }

    #[inline(always)]
    const fn rule(self) -> Option<u32> {
        (self.0 >> 8).checked_sub(1)
    }
}

/// Which rule judges the packet that was seen last, and what its source is granted: a [`Choice`], of a [`layout::Active`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn choose(word: u64) -> u32 {
    let word = layout::Active(word);
    let (Some(config), Some(seen), Some(pending)) = (maps::config(word.generation()), maps::seen(), maps::pending())
    else {
        return Choice::none(Reason::InternalError).0;
    };
    choice(Active { config, word }, seen, pending).0
}

#[inline(always)]
fn choice(active: Active, seen: &Seen, pending: &mut Pending) -> Choice {
    let Ok(head) = seen.head() else { return Choice::none(Reason::InternalError) };
    let Some(protecting) = protecting(active, head.to) else { return Choice::none(Reason::InternalError) };
    if protecting == 0 {
        return Choice::none(Reason::NotProtected);
    }
    let has_prefixes = match head.source {
        Address::V4(_) => active.config.has_prefixes_v4,
        Address::V6(_) => active.config.has_prefixes_v6,
    };
    let prefix = if has_prefixes == 0 { None } else { prefix(active, head.source) };
    let rules = matching(active, protecting, prefix);
    pending.fragment_rules = 0;
    let Some(index) = judging(active, head.to, rules) else { return Choice::none(Reason::NotProtected) };
    // A note is of a whole client, wherever it sends: not where lists tell its parts from each other, or rules its destinations.
    if prefix.is_some() || has_prefixes == 2 || active.config.has_targets != 0 {
        pending.refused = Key::NONE;
        pending.connection = Key::NONE;
    }
    match prefix.and_then(|prefix| granted(active, prefix)) {
        Some(Grant::Exempt) => Choice::new(Reason::Exempt, index),
        Some(Grant::Denied) => Choice::new(Reason::Denied, index),
        None if is_unparsable(head.to) && maps::rule(active.config, index).counts_unparsable == 0 => {
            Choice::new(Reason::TooManyHeaders, index)
        }
        None => {
            if let To::Fragment = head.to
                && seen.is_fragment_of_tcp()
            {
                pending.fragment_rules = rules & !(1 << index);
                pending.fragment_rule = index;
                pending.fragment_verdict = 0;
            }
            Choice::new(Reason::NotCounted, index)
        }
    }
}

/// Whether nobody can tell what it is, while the network stack might: as behind too many tags.
#[inline(always)]
const fn is_unparsable(to: To) -> bool {
    matches!(to, To::Unwalkable)
}

/// Whom the packet is from and what it is sent to: at a glance, or by parsing all of it.
#[inline(always)]
fn head(frame: &XdpFrame) -> Result<Head, NoPacket> {
    match Head::of(frame) {
        Some(head) => Ok(head),
        None => frame.seen().ok_or(NoPacket::NotSeen)?.head(),
    }
}

/// What is behind the tags cannot be told, so whoever has what has no port has this.
#[inline(always)]
fn too_many_tags(active: Active) -> Verdict {
    match lowest(active.config.portless_rules) {
        Some(index) => enforced(&active.config.rules[index as usize], Reason::TooManyTags),
        None => Verdict::unruled(Reason::NotProtected),
    }
}

/// The rules for what the packet is sent to, by its port or protocol.
#[inline(always)]
fn protecting(active: Active, to: To) -> Option<RuleSet> {
    let class = match to {
        To::Tcp { port, .. } => maps::ports(active.word.generation())?.tcp[bounded(port)],
        To::Udp { port } => maps::ports(active.word.generation())?.udp[bounded(port)],
        To::Fragment | To::Unwalkable => return Some(active.config.portless_rules),
        To::Other => return Some(active.config.other_rules),
        To::Essential => return Some(0),
    };
    Some(active.config.class_rules[class as usize])
}

/// What is known of the packet's source, where anything is known of some of its family.
#[inline(always)]
fn prefix(active: Active, source: Address) -> Option<&'static Prefix> {
    let config = active.config;
    let unlisted = Unlisted::of(source, active.word.epoch(), config.seed);
    if maps::is_unlisted(config, unlisted) {
        return None;
    }
    let prefix = maps::prefix(config.prefixes_generation, source);
    if prefix.is_none() {
        maps::note_unlisted(config, unlisted);
    }
    prefix
}

/// Which of these rules are for packets from this source to this address.
#[inline(always)]
fn matching(active: Active, protecting: RuleSet, prefix: Option<&'static Prefix>) -> RuleSet {
    let Active { config, word } = active;
    let generation = word.generation();
    let from = config.from_any | prefix.map_or(0, |prefix| prefix.rules);
    let to = match config.has_targets {
        0 => RuleSet::MAX,
        _ => config.to_any | maps::target_rules(generation),
    };
    protecting & from & to
}

/// Which of these rules judges the packet. A later fragment may belong to any port, and is held to volume if it is to be held at
/// all: by the first rule that counts that, so that a rule for connections before it is no way around.
#[inline(always)]
fn judging(active: Active, to: To, rules: RuleSet) -> Option<u32> {
    if let To::Fragment = to
        && let Some(index) = first(active, rules & active.config.volume_rules)
    {
        return Some(index);
    }
    first(active, rules)
}

/// Rules that have ended and still stand: the daemon takes them out within seconds. After so many the next judges.
const ENDED_MAX: usize = 3;

/// The first of these rules that has not ended.
#[inline(always)]
fn first(active: Active, rules: RuleSet) -> Option<u32> {
    let mut rules = rules;
    for _ in 0..ENDED_MAX {
        let index = lowest(rules)?;
        let until_ns = active.config.rules[index as usize].until_ns;
        if until_ns == 0 || Clock::new(active.config.wall_offset_ns).coarse().0 < until_ns {
            return Some(index);
        }
        rules &= rules - 1;
    }
    lowest(rules)
}

/// The first of these rules. The verifier does not know what the compiler does, that there are no more than bits in a word.
#[inline(always)]
pub(crate) fn lowest(rules: RuleSet) -> Option<u32> {
    if rules == 0 { None } else { Some(forget(rules.trailing_zeros()) & (RULES_MAX as u32 - 1)) }
}

/// What the source is granted whatever the limits say.
#[inline(always)]
fn granted(active: Active, prefix: &'static Prefix) -> Option<Grant> {
    if prefix.access[0] == access::Step::default() {
        return None;
    }
    access::grant(prefix.access, Clock::new(active.config.wall_offset_ns).coarse())
}

/// A port as an index. The verifier of Linux 6.12 knows nothing of a number whose bytes were swapped, so its bound must be
/// in the program, where the compiler leaves it out if it knows.
#[inline(always)]
fn bounded(port: u16) -> usize {
    forget(port as u32) as usize & 0xffff
}

#[inline(always)]
pub(crate) fn enforced(rule: &Rule, reason: Reason) -> Verdict {
    match (reason.action(), rule.dry_run) {
        (Action::Pass, _) | (Action::Drop, 0) => Verdict { reason, rule: rule.row },
        (Action::Drop, _) => Verdict { reason: Reason::DryRun, rule: rule.row },
    }
}

/// The rule that judges a packet.
#[derive(Clone, Copy)]
struct Judging {
    index: u32,
    rule: &'static Rule,
}

#[inline(always)]
fn judge(active: Active, frame: &XdpFrame, judging: Judging) -> Reason {
    let rule = judging.rule;
    let Some(seen) = maps::seen() else { return Reason::InternalError };
    let (Ok(head), is_fragment) = (seen.head(), seen.is_fragment_of_tcp()) else { return Reason::InternalError };
    let is_segment = !is_fragment && matches!(head.to, To::Tcp { opening: false, .. });
    let may_ask = is_segment && rule.counts_requests != 0 && matches!(head.to, To::Tcp { has_payload: true, .. });
    let is_suspect = || maps::pending().is_some_and(|pending| pending.is_suspect != 0);
    let proof = if is_segment && (proof::is_asked(rule, may_ask) || rule.guard != 0 && is_suspect()) {
        if frame.seen().is_none() {
            return Reason::InternalError;
        }
        Proof::of(frame, active.word.generation(), judging.index, may_ask)
    } else {
        Proof::NONE
    };
    // Some of it the server may read elsewhere, or not at all, so nobody knows what the rest is. No client of the web sends such.
    if may_ask && rule.guard != 0 && seen.segment().is_urgent != 0 {
        return Reason::Guard;
    }
    let mut is_unaccounted = false;
    let (opening, requests, pending) = match head.to {
        // What begins in it is in other packets too, and what it says of its connection may not be what is put together.
        To::Tcp { opening, .. } if is_fragment => (opening, 1, Leaves::Nothing),
        To::Tcp { .. } if may_ask && !proof.is_ignored() => {
            let judged = conversations::judge(frame, rule.counts_requests == 2);
            is_unaccounted = judged.is_unaccounted() && proof.is_proven();
            (false, judged.requests(), if judged.is_pending() { Leaves::Conversation } else { Leaves::Nothing })
        }
        // A server that takes payload with a SYN answers it.
        To::Tcp { opening: true, has_payload: true, .. } if rule.counts_requests != 0 => {
            match conversations::of_syn(frame) {
                Some(requests) => (true, requests, Leaves::Nothing),
                None if rule.guard != 0 => return Reason::Guard,
                None => (true, 1, Leaves::Nothing),
            }
        }
        To::Udp { .. } if rule.counts_connections | rule.counts_requests != 0 => {
            if frame.seen().is_none() {
                return Reason::InternalError;
            }
            let part = Part::of_datagram(active.word.generation(), judging.index);
            (part.opens(), part.requests(), Leaves::Flow)
        }
        To::Tcp { opening, .. } => (opening, 0, Leaves::Nothing),
        // Whatever it is, it may be anything.
        To::Unwalkable => (true, 1, Leaves::Nothing),
        To::Fragment => (false, is_fragment as u32, Leaves::Nothing),
        To::Udp { .. } | To::Other | To::Essential => (false, 0, Leaves::Nothing),
    };
    let Some(seen) = maps::seen() else { return Reason::InternalError };
    let cost = Cost::new(opening, requests, seen.ip_bytes(), proof);
    let is_asked = maps::pending().is_some_and(|pending| pending.is_asked != 0);
    let cost = if is_asked { cost.asked() } else { cost };
    let cost = match () {
        () if rule.guard == 0 || requests != 0 => cost,
        () if opening && matches!(head.to, To::Tcp { .. }) => cost.guarded(Side::Attempts),
        () if is_suspect() && cost.is_proven() && seen.may_end_handshake() => cost.guarded(Side::Opened),
        () if is_unaccounted => cost.guarded(Side::Segments),
        () => cost,
    };
    let reason = judge_source(active, judging, seen.source(), cost);
    if cost.is_evidence() && reason.action() == Action::Pass {
        prove(active, judging.index, seen.source(), cost.is_first());
    }
    let decisive = match pending {
        Leaves::Nothing => return reason,
        Leaves::Flow => reason,
        Leaves::Conversation => enforced(rule, reason).reason,
    };
    // Of a source that is not remembered nothing else is.
    if decisive != Reason::NotAdmitted && decisive.action() == Action::Pass {
        let is_counted = reason == Reason::WithinLimit || cost.is_established();
        let _always_zero = remember_pending(active.word.generation(), is_counted as u32);
    }
    reason
}

/// What is remembered of a packet beside its source, once it is admitted: what is refused is judged again when it is sent again.
#[derive(Clone, Copy)]
enum Leaves {
    Nothing,
    /// Its connection. It goes on by whatever passes, in a dry run too.
    Conversation,
    /// Its flow. One that is refused opens again with each datagram, in a dry run too: so many would be dropped.
    Flow,
}

/// Holds the source to the rule's limits, in the maps of its family.
#[inline(always)]
fn judge_source(active: Active, judging: Judging, source: Address, cost: Cost) -> Reason {
    let by = if cost.is_established() { BY_ESTABLISHED } else { 0 };
    let Active { config, word } = active;
    let generation = word.generation();
    let Judging { index, rule, .. } = judging;
    let code = match source {
        Address::V4(address) => {
            let prefix = cut_ipv4(address, config.ipv4_mask);
            hold(
                rule,
                cost,
                |cost| room_v4(prefix, generation, index, cost.word()),
                |at| refused_v4(prefix, generation, index, at),
                |at| suspect_v4(prefix, generation, index, at),
                || charge_all_v4(prefix, generation, index, cost.word()),
                |at| ban_v4(prefix, generation, index, at | by),
                || shadow_v4(prefix, generation, index, cost.word()),
            )
        }
        Address::V6(address) => {
            let [high, low] = cut_ipv6(address, config.ipv6_mask);
            if config.ipv6_wide == 0 {
                hold(
                    rule,
                    cost,
                    |cost| room_v6(high, generation, index, cost.word()),
                    |at| refused_v6(high, generation, index, at),
                    |at| suspect_v6(high, generation, index, at),
                    || charge_all_v6(high, generation, index, cost.word()),
                    |at| ban_v6(high, generation, index, at | by),
                    || shadow_v6(high, generation, index, cost.word()),
                )
            } else {
                hold(
                    rule,
                    cost,
                    |cost| room_v6_wide(high, low, generation, index, cost.word()),
                    |at| refused_v6_wide(high, low, generation, index, at),
                    |at| suspect_v6_wide(high, low, generation, index, at),
                    || charge_all_v6_wide(high, low, generation, index, cost.word()),
                    |at| ban_v6_wide(high, low, generation, index, at | by),
                    || shadow_v6_wide(high, low, generation, index, cost.word()),
                )
            }
        }
    };
    Reason::from_code(code)
}

/// Counts a connection that the source has opened, or bans it for too many.
#[inline(always)]
fn prove(active: Active, rule: u32, source: Address, is_first: bool) {
    let first = u32::from(is_first);
    let Active { config, word } = active;
    let generation = word.generation();
    let _always_zero = match source {
        Address::V4(address) => prove_v4(cut_ipv4(address, config.ipv4_mask), generation, rule, first),
        Address::V6(address) => {
            let [high, low] = cut_ipv6(address, config.ipv6_mask);
            if config.ipv6_wide == 0 {
                prove_v6(high, generation, rule, first)
            } else {
                prove_v6_wide(high, low, generation, rule, first)
            }
        }
    };
}

/// All limits are looked at before any is charged: most of what is refused ends with the look. Each is a function of its
/// own, called from here, so that their stacks do not add up.
#[inline(always)]
fn hold(
    rule: &Rule,
    cost: Cost,
    room: impl Fn(Cost) -> u32,
    refused: impl FnOnce(u32) -> u32,
    suspect: impl FnOnce(u32) -> u32,
    charge_all: impl FnOnce() -> u32,
    ban: impl FnOnce(u32) -> u32,
    shadow: impl FnOnce() -> u32,
) -> u32 {
    let mut look = Look::NONE;
    // Where everything is refused of whoever is over the limit, that is what proves nothing too.
    if rule.refuse_all != 0 && !cost.is_proven() {
        look = Look::from_word(room(Cost::GLANCE));
    }
    if look.code() == Reason::NotCounted as u32 {
        look = Look::from_word(room(cost));
    }
    let mut code = look.code();
    let suspect_at = maps::pending().map_or(0, |pending| pending.suspect_at);
    if suspect_at != 0 || code == Reason::Banned as u32 {
        let _always_zero = suspect(suspect_at);
    }
    let mut bans = rule.bans.steps_len != 0 && rule.dry_run == 0;
    if code == Reason::WithinLimit as u32 {
        // Which limit another CPU has filled meanwhile is not known: where bans need proof, the next packet bans.
        bans &= rule.proof & proof_of::BANS == 0;
        code = charge_all();
    } else if code == Reason::OverLimit as u32 || code == Reason::Guard as u32 {
        let _always_zero = refused(look.at());
    }
    if code == Reason::OverLimit as u32 && bans {
        let _always_zero = ban(look.at());
    }
    // Whatever the limits say: what a wider one would let through counts too.
    if rule.shadows_len != 0 && code != Reason::Banned as u32 {
        let _always_zero = shadow();
    }
    code
}
