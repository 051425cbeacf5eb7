//! Path from a parsed packet to its verdict: selects the rule that judges the packet and what its source is granted.
//! [`crate::hold`] checks the rule's limits.

use ratelimit_common::admission::known_first;
use ratelimit_common::choose::{self, Asked, Beside, Rules, enforced, lowest};
use ratelimit_common::conversation::SHORT_BYTES;
use ratelimit_common::drop_cache::Key;
use ratelimit_common::hold::{GateBypass, is};
use ratelimit_common::layout::{self, Config, PortTable, Prefix, PrefixMiss, Rule, RuleSet};
use ratelimit_common::packet::{self, Destination, Head, is_of_other_protocol};
use ratelimit_common::source::Address;
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::{Action, Reason, Verdict};

use crate::admission::{are_gated, new_source_gate, remember_deferred};
use crate::charges::{Leaves, keep_charges};
use crate::clock::Clock;
use crate::conversations;
use crate::fragments;
use crate::hold::{Held, count_repeated, verify};
use crate::hook::{Context, Raw};
use crate::maps::{self, Active, Deferred, NoPacket, ParsedFrame};
use crate::packet::{PacketFrame, forget, one_register};
use crate::refusal;
use crate::verification;

mod word;

use word::{Choice, Glance};

/// Minimum IP length in bytes of a packet that is checked for lying within a TLS record. Most shorter packets begin a
/// record. Longer packets never have a short payload, which the guard would have to count.
const PART_BYTES_MIN: u32 = 512;
const _: () = assert!(PART_BYTES_MIN >= SHORT_BYTES + HEADERS_BYTES_MAX);
/// Maximum length in bytes of the IP and TCP headers.
const HEADERS_BYTES_MAX: u32 = 60 + 60;

/// Judges one packet, and charges it if it is admitted.
#[inline(always)]
pub(crate) fn verdict(active: Active, frame: &PacketFrame) -> Verdict {
    let head = match head(frame) {
        Ok(head) => head,
        Err(NoPacket::NotIp) => return Verdict::unruled(Reason::NotIp),
        Err(NoPacket::Malformed) => return Verdict::unruled(Reason::Malformed),
        Err(NoPacket::NotParsed) => return Verdict::unruled(Reason::InternalError),
        Err(NoPacket::TooManyTags) => return too_many_tags(active),
    };
    let Some(protecting) = choose::protecting(&Maps::at_no_time(active), head.to) else {
        return Verdict::unruled(Reason::InternalError);
    };
    if protecting == 0 {
        return Verdict::unruled(Reason::NotProtected);
    }
    let config = active.config;
    let key = Key::of(&head, active.word.epoch(), config.ipv4_mask, config.ipv6_mask, config.seed).unwrap_or(Key::NONE);
    let (hash, clock) = (key.hash(config.seed), Clock::new(config.wall_offset_ns));
    let mut now = Nanos(0);
    if !key.is_segment() {
        now = clock.coarse();
        if let Some(expiry) = maps::cached_drop(config, key, hash, now) {
            return expiry.verdict();
        }
    }
    // Functions find the packet's state in map elements from here on, so they have the stack for themselves.
    let (Some(parsed), Some(deferred)) = (maps::to_parse(), maps::to_defer()) else {
        return Verdict::unruled(Reason::InternalError);
    };
    parsed.keep_head(&head);
    (deferred.key, deferred.hash, deferred.now) = (key, hash, now);
    deferred.refused = 0;
    let mut glance = Glance::NONE;
    // A fragment is not judged here, as it may carry data that was not seen.
    if let Destination::Tcp { opening: false, has_payload, .. } = head.to
        && !frame.is_parsed()
    {
        glance = Glance(at_a_glance(frame.context(), active.word.0, protecting));
        if glance.is_ignored()
            && (!has_payload
                || !glance.counts_requests()
                || head.ip_bytes > PART_BYTES_MIN && conversations::goes_on(frame.context()) != 0)
        {
            if glance.closes() {
                deferred.refused = Reason::NotCounted as u32 | Deferred::CLOSES;
                return Verdict { reason: Reason::Reset, rule: glance.row() };
            }
            return Verdict { reason: Reason::NotCounted, rule: glance.row() };
        }
    }
    let may_be_quick =
        !frame.is_parsed() && matches!(head.to, Destination::Tcp { opening: true, .. } | Destination::Udp { .. });
    if key.is_segment() {
        deferred.now = clock.coarse();
        // A frame that is not plain has no cached drop of its connection.
        let may_ask = matches!(head.to, Destination::Tcp { has_payload: true, .. }) && !frame.is_parsed();
        if let Some(expiry) = verification::cached_drop(frame, active.word.generation(), key, may_ask) {
            return expiry.verdict();
        }
    }
    deferred.drop_key = key;
    deferred.suspect_at = 0;
    if !key.is_segment() {
        deferred.cache_no_connection();
        deferred.is_suspect = 0;
    }
    if !frame.is_parsed() {
        parsed.keep_whole();
    }
    if config.has_targets != 0 && frame.parsed().is_none() {
        return Verdict::unruled(Reason::InternalError);
    }
    let mut choice = glance.choice();
    if glance.0 == Glance::NONE.0 {
        choice = if may_be_quick { quick(active, head.source, protecting, deferred) } else { Choice::UNKNOWN };
        if choice.0 == Choice::UNKNOWN.0 {
            choice = Choice(choose(active.word.0, protecting));
        }
    }
    let Some(index) = choice.rule() else { return Verdict::unruled(choice.reason()) };
    let rule = maps::rule(config, index);
    let mut reason = choice.reason();
    if reason == Reason::NotCounted {
        reason = judge(frame, deferred, rule);
    }
    if deferred.beside.rules != 0 {
        return fragments::verdict(active, reason);
    }
    let verdict = enforced(rule, reason);
    // The reset is made later, by `unless_lapsed`, when the stack is free.
    let mut refused = verdict.reason as u32;
    if deferred.closes() && rule.ends_abandoned() {
        refused |= Deferred::CLOSES;
    } else if verdict.reason.action() == Action::Pass || !rule.refuses_by_reset() {
        return verdict;
    }
    deferred.refused = refused;
    Verdict { reason: Reason::Reset, ..verdict }
}

/// Selects the rule for a segment that opens nothing, if its source is known to have no prefix. Returns a [`Glance`].
/// Most packets of a web server take this path. A function of its own, to use its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn at_a_glance(ctx: *mut Raw, word: u64, protecting: RuleSet) -> u32 {
    let word = layout::Active(word);
    let (Some(config), Some(parsed), Some(deferred)) =
        (maps::config(word.generation()), maps::parsed(), maps::deferred())
    else {
        return Glance::NONE.0;
    };
    let (active, source, key) = (Active { config, word }, parsed.source(), deferred.key());
    let context = Context::new(ctx);
    if packet::closes(&PacketFrame::new(&context), source) {
        deferred.refused = Deferred::CLOSES;
    }
    let Some(index) = lowest(&Maps::at_no_time(active), protecting & config.from_any) else { return Glance::NONE.0 };
    let rule = maps::rule(config, index);
    if !is_first_for_all(active, source, index) {
        return Glance::NONE.0;
    }
    let is_ignored = rule.ignores_acknowledgements != 0
        && (rule.guard == 0 || !maps::may_be_cached(config, key.unverified(), deferred.hash()));
    let closes = deferred.closes() && !parsed.has_payload() && rule.ends_abandoned();
    if !is_ignored || parsed.has_payload() || closes {
        judged_alone(active, source, index, deferred);
    }
    let glance = Glance::new(index, rule, is_ignored).0;
    if closes { glance | Glance::CLOSES } else { glance }
}

/// Returns true if the gate for new sources runs first for packets with this key.
#[inline(always)]
fn known_first(rule: &Rule, key: Key) -> bool {
    let kind = if key.is_opening() {
        known_first::OPENINGS
    } else if key.is_datagram() {
        known_first::DATAGRAMS
    } else {
        0
    };
    rule.known_first & kind != 0
}

/// Returns the first rule, whose limits decide, if [`is_first_for_all`] holds; [`choose`] would return it too.
/// Otherwise returns [`Choice::UNKNOWN`].
#[inline(always)]
fn quick(active: Active, source: Address, protecting: RuleSet, deferred: &mut Deferred) -> Choice {
    let Some(index) = lowest(&Maps::at_no_time(active), protecting & active.config.from_any) else {
        return Choice::UNKNOWN;
    };
    if !is_first_for_all(active, source, index) {
        return Choice::UNKNOWN;
    }
    judged_alone(active, source, index, deferred);
    Choice::new(Reason::NotCounted, index)
}

/// Makes this rule the only one that judges the current packet.
#[inline(always)]
fn judged_alone(Active { config, word }: Active, source: Address, index: u32, deferred: &mut Deferred) {
    deferred.beside.rules = 0;
    deferred.of.set(source, config);
    deferred.judge_by(word.generation(), index);
}

/// Returns true if this rule, the first of those for any source, judges all packets of this source. No prefix may hold
/// the source, no rule may name destinations, and the rule must have no end.
#[inline(always)]
fn is_first_for_all(Active { config, word }: Active, source: Address, index: u32) -> bool {
    let is_known = match Maps::at_no_time(Active { config, word }).has_prefixes(source) {
        0 => false,
        // The client's prefix is wider than this address, and lists tell its addresses apart.
        2 => true,
        _ => !maps::is_prefix_miss(config, PrefixMiss::of(source, word.epoch(), config.seed, config.places)),
    };
    !is_known && maps::rule(config, index).until_ns == 0 && config.has_targets == 0
}

/// Selects the rule that judges the current packet, and what its source is granted. `word` is a [`layout::Active`].
/// Returns a [`Choice`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn choose(word: u64, protecting: RuleSet) -> u32 {
    let word = layout::Active(word);
    let (Some(config), Some(parsed), Some(deferred)) =
        (maps::config(word.generation()), maps::parsed(), maps::deferred())
    else {
        return Choice::none(Reason::InternalError).0;
    };
    choice(Active { config, word }, protecting, parsed, deferred).0
}

#[inline(always)]
fn choice(active: Active, protecting: RuleSet, parsed: &ParsedFrame, deferred: &mut Deferred) -> Choice {
    let Ok(head) = parsed.head() else { return Choice::none(Reason::InternalError) };
    let asked = Asked { source: head.source, to: head.to, may_be_tcp: parsed.is_fragment_of_tcp() };
    let choice = choose::choice(&Maps { active, now: deferred.now() }, asked, protecting);
    deferred.beside.rules = choice.beside;
    let Some(index) = choice.rule else { return Choice::none(choice.reason) };
    // A drop-cache entry applies to a whole client and all its destinations, so this packet is not cached.
    if !choice.is_of_client {
        deferred.cache_nothing();
    }
    // A refusal is reported by its rule's settings too, so the rule is kept for all verdicts.
    deferred.judge_by(active.word.generation(), index);
    if choice.reason == Reason::NotCounted {
        if choice.beside != 0 {
            deferred.beside = Beside::new(index, choice.beside);
            if let Some(admission) = maps::admission() {
                admission.is_sampled = 0;
            }
        }
        deferred.of.set(head.source, active.config);
    }
    Choice::new(choice.reason, index)
}

/// Lets a packet pass that would be dropped, if enforcement has lapsed. Also turns a refused packet into a reset if its
/// rule does so. Reads nothing for packets that pass.
#[inline(always)]
pub(crate) fn unless_lapsed(frame: &PacketFrame, verdict: Verdict) -> Verdict {
    match verdict.reason.action() {
        Action::Pass => verdict,
        Action::Drop => {
            let said = dropped_unless_lapsed(frame.context(), verdict.reason as u32 | (verdict.rule as u32) << 8);
            Verdict { reason: maps::reason(said & 0xff), rule: (said >> 8) as u8 }
        }
    }
}

/// Returns the final code of a verdict to drop: a reason code with the rule's row above it. A function of its own that
/// takes the whole verdict and reads [`layout::Active`] again, because values kept over a call use stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn dropped_unless_lapsed(ctx: *mut Raw, said: u32) -> u32 {
    const RESET: u32 = Reason::Reset as u32;
    if has_lapsed() {
        let reason = if said & 0xff == RESET { refused() } else { said };
        let verdict = Verdict { reason: maps::reason(reason & 0xff), rule: (said >> 8) as u8 };
        let Verdict { reason, rule } = choose::lapsed(verdict);
        return reason as u32 | (rule as u32) << 8;
    }
    if said & 0xff != RESET {
        return said;
    }
    said & !0xff | if refused() & Deferred::CLOSES == 0 { refusal::told(ctx) } else { refusal::end_abandoned(ctx) }
}

/// Returns [`Deferred::refused`] of the current packet.
#[inline(always)]
fn refused() -> u32 {
    maps::deferred().map_or(0, |deferred| deferred.refused)
}

#[inline(always)]
fn has_lapsed() -> bool {
    let Some(word) = maps::active_word().filter(|word| word.may_lapse()) else { return false };
    let Some(config) = maps::config(word.generation()) else { return false };
    word.has_lapsed(Clock::new(config.wall_offset_ns).coarse())
}

/// Returns the packet's source and destination: by a quick look if the frame is plain, otherwise by parsing all of it.
#[inline(always)]
fn head(frame: &PacketFrame) -> Result<Head, NoPacket> {
    match Head::of(frame) {
        Some(head) => Ok(head),
        None if is_of_other_protocol(frame) => Err(NoPacket::NotIp),
        None => frame.parsed().ok_or(NoPacket::NotParsed)?.head(),
    }
}

/// Returns the verdict on a frame with too many VLAN tags.
fn too_many_tags(active: Active) -> Verdict {
    choose::too_many_tags(&Maps { active, now: Clock::new(active.config.wall_offset_ns).coarse() })
}

/// The maps that the choice of a rule reads.
pub(crate) struct Maps {
    pub(crate) active: Active,
    /// Arrival time of the packet, by the coarse clock.
    pub(crate) now: Nanos,
}

impl Maps {
    /// Returns a value for choices that do not depend on the time.
    #[inline(always)]
    const fn at_no_time(active: Active) -> Self {
        Self { active, now: Nanos(0) }
    }
}

impl Rules for Maps {
    #[inline(always)]
    fn config(&self) -> &Config {
        self.active.config
    }

    #[inline(always)]
    fn ports(&self) -> Option<&PortTable> {
        maps::ports(self.active.word.generation())
    }

    /// Checks the prefix-miss cache first: a hit means that no prefix holds the source.
    #[inline(always)]
    fn prefix(&self, source: Address) -> Option<&Prefix> {
        let Active { config, word } = self.active;
        let miss = PrefixMiss::of(source, word.epoch(), config.seed, config.places);
        if maps::is_prefix_miss(config, miss) {
            return None;
        }
        let prefix = maps::prefix(config.prefixes_generation, source);
        if prefix.is_none() {
            maps::cache_prefix_miss(config, miss);
        }
        prefix
    }

    #[inline(always)]
    fn has_prefixes(&self, source: Address) -> u8 {
        let config = self.active.config;
        let has_prefixes = choose::has_prefixes(config, source);
        if has_prefixes == 0 || maps::may_have_prefix(config.prefixes_generation, source) != 0 {
            return has_prefixes;
        }
        // Prefixes may hold other addresses of a client whose prefix is wider than the addresses that share a filter
        // bit.
        if has_prefixes == 2 && !layout::shares_bits(config.ipv4_mask, config.ipv6_mask, source) { 2 } else { 0 }
    }

    #[inline(always)]
    fn target_rules(&self) -> RuleSet {
        maps::target_rules(self.active.word.generation())
    }

    #[inline(always)]
    fn coarse(&self) -> Nanos {
        self.now
    }

    #[inline(always)]
    fn unknown(value: usize) -> usize {
        one_register(value)
    }

    #[inline(always)]
    fn forget(&self, value: u32) -> u32 {
        forget(value)
    }
}

/// Returns the verdict of the rule that judges the current packet.
#[inline(always)]
fn judge(frame: &PacketFrame, deferred: &mut Deferred, rule: &Rule) -> Reason {
    deferred.is_asked = (known_first(rule, deferred.key()) && are_gated(rule)) as u32;
    if deferred.is_asked != 0 {
        let reason = maps::reason(new_source_gate(GateBypass::None as u32));
        if reason != Reason::WithinLimit {
            return reason;
        }
    }
    if let Err(reason) = keep_charges(frame, deferred, rule) {
        return reason;
    }
    let Some(held) = Held::packet() else { return Reason::InternalError };
    let reason = held.hold();
    let charges = deferred.charges();
    if charges.has(is::FIRST) && reason.action() == Action::Pass {
        let _always_zero = verify();
    }
    let decisive = match deferred.leaves() {
        Leaves::Nothing => return reason,
        Leaves::Flow => reason,
        Leaves::Conversation => enforced(rule, reason).reason,
    };
    // If the source is not remembered, its connections and flows are not remembered either.
    if decisive != Reason::NotAdmitted && decisive.action() == Action::Pass {
        let is_counted = reason == Reason::WithinLimit || charges.has(is::ESTABLISHED);
        let _always_zero = remember_deferred(deferred.generation(), is_counted as u32);
        if deferred.repeats() {
            let _always_zero = count_repeated();
        }
    }
    reason
}
