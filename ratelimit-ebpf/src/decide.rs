//! From a parsed packet to its verdict: which rule judges it, and what that rule asks of its source. Whether it fits the
//! rule's limits is told by [`crate::hold`].

use ratelimit_common::access::{self, Grant};
use ratelimit_common::admission::asks_first;
use ratelimit_common::conversation::SHORT_BYTES;
use ratelimit_common::hold::{Excuse, is};
use ratelimit_common::layout::{self, Config, Prefix, RULES_MAX, Rule, RuleSet, Unlisted};
use ratelimit_common::packet::{Head, To, is_of_other_protocol};
use ratelimit_common::refused::Key;
use ratelimit_common::source::Address;
use ratelimit_common::verdict::{Action, Reason, Verdict};

use crate::clock::Clock;
use crate::conversations;
use crate::cost::{Leaves, keep_cost};
use crate::fragments;
use crate::hold::{Held, prove};
use crate::maps::{self, Active, NoPacket, Pending, Seen};
use crate::newcomers::{are_asked_for, remember_pending, turned_away};
use crate::packet::{XdpFrame, forget};
use crate::proof;

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
    let Some(protecting) = protecting(active, head.to) else { return Verdict::unruled(Reason::InternalError) };
    if protecting == 0 {
        return Verdict::unruled(Reason::NotProtected);
    }
    let config = active.config;
    let key = Key::of(&head, active.word.epoch(), config.ipv4_mask, config.ipv6_mask, config.seed).unwrap_or(Key::NONE);
    if !key.is_segment()
        && let Some(term) =
            maps::refused(config, key, key.hash(config.seed), || Clock::new(config.wall_offset_ns).coarse())
    {
        return term.verdict();
    }
    // From here on the packet is where functions find it, and the stack is theirs.
    let (Some(seen), Some(pending)) = (maps::to_see(), maps::pending()) else {
        return Verdict::unruled(Reason::InternalError);
    };
    seen.keep_head(&head);
    pending.key = key;
    // Of a fragment it is not known what else there is.
    if let To::Tcp { opening: false, has_payload, .. } = head.to
        && !frame.is_seen()
    {
        let ignoring = Ignoring(ignoring(active.word.0, protecting));
        if ignoring != Ignoring::NONE
            && (!has_payload
                || !ignoring.counts_requests()
                || head.ip_bytes > SHORT_BYTES
                    && conversations::goes_on(frame.context(), active.word.generation()) != 0)
        {
            return Verdict { reason: Reason::NotCounted, rule: ignoring.row() };
        }
    }
    if key.is_segment() {
        // Where the frame is not plain, no connection is noted.
        let may_ask = matches!(head.to, To::Tcp { has_payload: true, .. }) && !frame.is_seen();
        if let Some(term) = proof::refused(frame, active.word.generation(), key, may_ask) {
            return term.verdict();
        }
    }
    pending.refused = key;
    pending.suspect_at = 0;
    if !key.is_segment() {
        pending.forget_connection();
        pending.is_suspect = 0;
    }
    if !frame.is_seen() {
        seen.keep_whole();
    }
    if config.has_targets != 0 && frame.seen().is_none() {
        return Verdict::unruled(Reason::InternalError);
    }
    let choice = Choice(choose(active.word.0, protecting));
    let Some(index) = choice.rule() else { return Verdict::unruled(choice.reason()) };
    let rule = maps::rule(config, index);
    let mut reason = choice.reason();
    if reason == Reason::NotCounted {
        reason = judge(frame, pending, rule);
    }
    if pending.fragment_rules != 0 {
        return fragments::verdict(active, reason);
    }
    enforced(rule, reason)
}

/// The rule that judges the segment at hand, which opens nothing, where a glance tells that it is nothing to that unless it asks for something,
/// and that nothing is known of its source: an [`Ignoring`]. Most of what clients send to a web server is such. A function of its own, for its
/// place on the stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn ignoring(word: u64, protecting: RuleSet) -> u32 {
    let word = layout::Active(word);
    let (Some(config), Some(seen), Some(pending)) = (maps::config(word.generation()), maps::seen(), maps::pending())
    else {
        return Ignoring::NONE.0;
    };
    let (source, key) = (seen.source(), pending.key());
    let Some(index) = lowest(protecting & config.from_any) else { return Ignoring::NONE.0 };
    let rule = maps::rule(config, index);
    let is_ignored = rule.ignores_acknowledgements != 0
        && rule.until_ns == 0
        && config.has_targets == 0
        && (has_prefixes(config, source) == 0
            || maps::is_unlisted(config, Unlisted::of(source, word.epoch(), config.seed)))
        && (rule.guard == 0 || key == Key::NONE || !maps::may_be_noted(config, key.unproven(), key.hash(config.seed)));
    if is_ignored { Ignoring::by(rule).0 } else { Ignoring::NONE.0 }
}

/// The row of a rule, and whether it counts requests.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ignoring(u32);

impl Ignoring {
    /// None.
    const NONE: Self = Self(u32::MAX);

    #[inline(always)]
    const fn by(rule: &Rule) -> Self {
        Self(rule.row as u32 | (rule.counts_requests as u32) << 8)
    }

    #[inline(always)]
    const fn row(self) -> u8 {
        self.0 as u8
    }

    #[inline(always)]
    const fn counts_requests(self) -> bool {
        self.0 >> 8 != 0
    }
}

/// Whether there are prefixes of the source's family, as [`Config::has_prefixes_v4`] says it.
#[inline(always)]
const fn has_prefixes(config: &Config, source: Address) -> u8 {
    match source {
        Address::V4(_) => config.has_prefixes_v4,
        Address::V6(_) => config.has_prefixes_v6,
    }
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

/// Which of the rules for what it is sent to judges the packet that was seen last, and what its source is granted: a [`Choice`], of a
/// [`layout::Active`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn choose(word: u64, protecting: RuleSet) -> u32 {
    let word = layout::Active(word);
    let (Some(config), Some(seen), Some(pending)) = (maps::config(word.generation()), maps::seen(), maps::pending())
    else {
        return Choice::none(Reason::InternalError).0;
    };
    choice(Active { config, word }, protecting, seen, pending).0
}

#[inline(always)]
fn choice(active: Active, protecting: RuleSet, seen: &Seen, pending: &mut Pending) -> Choice {
    let Ok(head) = seen.head() else { return Choice::none(Reason::InternalError) };
    let has_prefixes = has_prefixes(active.config, head.source);
    let prefix = if has_prefixes == 0 { None } else { prefix(active, head.source) };
    let rules = matching(active, protecting, prefix);
    pending.fragment_rules = 0;
    let Some(index) = judging(active, head.to, rules) else { return Choice::none(Reason::NotProtected) };
    // A note is of a whole client, wherever it sends: not where lists tell its parts from each other, or rules its destinations.
    if prefix.is_some() || has_prefixes == 2 || active.config.has_targets != 0 {
        pending.forget_refused();
        pending.forget_connection();
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
                if let Some(admission) = maps::admission() {
                    admission.is_drawn = 0;
                }
            }
            pending.of.set(head.source, active.config);
            pending.judge_by(active.word.generation(), index);
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
        None if is_of_other_protocol(frame) => Err(NoPacket::NotIp),
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

/// What the rule that judges the packet at hand says of it.
#[inline(always)]
fn judge(frame: &XdpFrame, pending: &mut Pending, rule: &Rule) -> Reason {
    pending.is_asked = (asks_first(rule, pending.key()) && are_asked_for(rule)) as u32;
    if pending.is_asked != 0 {
        let reason = Reason::from_code(turned_away(Excuse::None as u32));
        if reason != Reason::WithinLimit {
            return reason;
        }
    }
    if let Err(reason) = keep_cost(frame, pending, rule) {
        return reason;
    }
    let Some(held) = Held::packet() else { return Reason::InternalError };
    let reason = held.hold();
    let cost = pending.cost();
    if cost.has(is::FIRST | is::ARMED) && reason.action() == Action::Pass {
        let _always_zero = prove();
    }
    let decisive = match pending.leaves() {
        Leaves::Nothing => return reason,
        Leaves::Flow => reason,
        Leaves::Conversation => enforced(rule, reason).reason,
    };
    // Of a source that is not remembered nothing else is.
    if decisive != Reason::NotAdmitted && decisive.action() == Action::Pass {
        let is_counted = reason == Reason::WithinLimit || cost.has(is::ESTABLISHED);
        let _always_zero = remember_pending(pending.generation(), is_counted as u32);
    }
    reason
}
