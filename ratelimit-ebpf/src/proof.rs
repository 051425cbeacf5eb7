//! What a segment proves of its sender. What is decided by is in `ratelimit_common::proof`.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::programs::XdpContext;
use ratelimit_common::admission::Mark;
use ratelimit_common::layout::Rule;
use ratelimit_common::packet::source_port;
use ratelimit_common::proof::{Standing, asks, found, is_looked_up, not_found};
use ratelimit_common::refused::{Key, Term};

use crate::clock::Clock;
use crate::maps::{self, Marked};
use crate::newcomers::make_known;
use crate::packet::XdpFrame;

/// What [`proof`] says of a segment.
#[derive(Clone, Copy)]
pub(crate) struct Proof(u32);

const PROVEN: u32 = 1;
const ESTABLISHED: u32 = 2;
const FIRST: u32 = 4;
const ASKED_EARLY: u32 = 8;

impl Proof {
    /// Of what proves nothing.
    pub(crate) const NONE: Self = Self(0);

    /// Of the segment that this frame is, once it was seen.
    #[inline(always)]
    pub(crate) fn of(frame: &XdpFrame, generation: u32, rule: u32, requests: u32) -> Self {
        Self(proof(frame.context(), generation, rule, requests))
    }

    /// Whether it is counted as what is proven.
    #[inline(always)]
    pub(crate) const fn is_proven(self) -> bool {
        self.0 & PROVEN != 0
    }

    /// Whether it is proof enough for a ban.
    #[inline(always)]
    pub(crate) const fn is_established(self) -> bool {
        self.0 & ESTABLISHED != 0
    }

    /// What the rule's bans need of it, in which so many requests were let in: those, with the one that came before its connection was
    /// established, and above 16 bits whether it is the first of its connection that is known to be.
    #[inline(always)]
    pub(crate) const fn proven(self, rule: &Rule, requests: u32) -> u32 {
        if rule.proof & asks::CONNECTIONS == 0 || !self.is_established() {
            return 0;
        }
        let early = (self.0 & ASKED_EARLY != 0) as u32;
        (self.0 & FIRST != 0) as u32 * (1 << 16) | (requests + early) & 0xffff
    }
}

/// Whether it matters to the rule what a segment proves in which so many requests begin.
#[inline(always)]
pub(crate) const fn is_asked(rule: &Rule, requests: u32) -> bool {
    requests != 0 || rule.proof & (asks::SEGMENTS | asks::CONNECTIONS) != 0
}

/// What [`refused_unproven`] returns of a segment that is to be looked up first, which is no [`Term`].
const LOOK_UP: u64 = 2;

/// What refuses the segment that this frame is, which has this key, by a note of what proves nothing. Looked up among the host's
/// sockets are connections that were found there lately, and those that were not looked for a moment ago.
#[inline(always)]
pub(crate) fn refused(frame: &XdpFrame, generation: u32, key: Key) -> Option<Term> {
    let (ctx, Key { source, what }) = (frame.context(), key);
    let mut code = refused_unproven(ctx, generation, source, what, 0);
    if code == LOOK_UP {
        frame.seen()?;
        let is_proven = look_up(ctx, generation, source, what) == Standing::Established as u32;
        code = if is_proven { 0 } else { refused_unproven(ctx, generation, source, what, 1) };
    }
    if code == 0 { None } else { Some(Term::of(code)) }
}

/// The note that refuses a segment with this key which proves nothing: a [`Term`], or 0; but [`LOOK_UP`] where it may prove something and was
/// not looked up yet.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn refused_unproven(ctx: *mut xdp_md, generation: u32, source: u64, what: u64, looked_up: u32) -> u64 {
    let Some(config) = maps::config(generation) else { return 0 };
    let (key, now) = (Key { source, what }, Clock::new(config.wall_offset_ns).coarse());
    if looked_up == 0 {
        let context = XdpContext::new(ctx);
        // Where a glance does not tell, the frame was seen: its key is of that.
        let Some(source_port) = source_port(&XdpFrame::new(&context)).or_else(seen_source_port) else { return LOOK_UP };
        let marks = (found(config.seed, key, source_port, now), not_found(config.seed, key, source_port, now));
        if maps::is_marked(Marked::Found, config, marks.0)
            || !maps::is_marked(Marked::NotFound, config, marks.1)
            || is_looked_up(marks.1, now)
        {
            return LOOK_UP;
        }
    }
    maps::refused(config, key.unproven(), key.hash(config.seed), || now).map_or(0, Term::word)
}

#[inline(always)]
fn seen_source_port() -> Option<u16> {
    maps::seen().map(|seen| seen.segment().source_port)
}

/// The [`Standing`] of the segment that was seen last. Whether that is of a connection is marked, if it has this key: also before it is
/// established, for who begins one may be forged before the first request is there.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn look_up(ctx: *mut xdp_md, generation: u32, source: u64, what: u64) -> u32 {
    let standing = maps::standing_of(ctx);
    let key = Key { source, what };
    if key != Key::NONE
        && let (Some(config), Some(source_port)) = (maps::config(generation), seen_source_port())
    {
        let now = Clock::new(config.wall_offset_ns).coarse();
        let (of, mark) = if standing == Standing::Unknown as u32 {
            (Marked::NotFound, not_found(config.seed, key, source_port, now))
        } else {
            (Marked::Found, found(config.seed, key, source_port, now))
        };
        maps::make_marked(of, config, mark);
    }
    standing
}

/// A function of its own: it is walked once, and its stack is free again when the source is judged.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn proof(ctx: *mut xdp_md, generation: u32, rule: u32, requests: u32) -> u32 {
    let (Some(config), Some(seen)) = (maps::config(generation), maps::seen()) else { return 0 };
    let rule = maps::rule(config, rule);
    if rule.proof & asks::CONNECTIONS == 0 {
        return bits(standing(ctx, generation, rule), rule, requests);
    }
    let [high, low] = seen.connection_words(config.seed);
    let now = Clock::new(config.wall_offset_ns).coarse();
    let mark = Mark::of(config.seed, high, low, config.turn_shift, now);
    let is_known = maps::is_marked(Marked::Known, config, mark);
    if is_known && requests == 0 && rule.proof & asks::SEGMENTS == 0 {
        // As long as it sends, it is not taken for another one.
        let _always_zero = make_known(high, low, generation);
        return 0;
    }
    let bits = bits(standing(ctx, generation, rule), rule, requests);
    let asked_early = Mark::of(config.seed, low, high, config.turn_shift, now);
    if bits & ESTABLISHED == 0 {
        if bits & PROVEN != 0 {
            let _always_zero = make_known(low, high, generation);
        }
        return bits;
    }
    let _always_zero = make_known(high, low, generation);
    if is_known {
        bits
    } else if maps::is_marked(Marked::Known, config, asked_early) {
        bits | FIRST | ASKED_EARLY
    } else {
        bits | FIRST
    }
}

/// [`look_up`]; only where a rule's segments are refused for what they prove does it matter later that a connection was found.
#[inline(always)]
fn standing(ctx: *mut xdp_md, generation: u32, rule: &Rule) -> u32 {
    let key = match maps::pending() {
        Some(pending) if rule.proof & asks::SEGMENTS != 0 => pending.refused,
        _ => Key::NONE,
    };
    look_up(ctx, generation, key.source, key.what)
}

/// Of a [`Standing`]'s number, and the requests that begin in its segment.
#[inline(always)]
const fn bits(standing: u32, rule: &Rule, requests: u32) -> u32 {
    const ANSWERED: u32 = Standing::Answered as u32;
    const ESTABLISHED: u32 = Standing::Established as u32;
    match standing {
        ANSWERED if requests != 0 && rule.proof & asks::SEGMENTS == 0 => PROVEN,
        ESTABLISHED => PROVEN | self::ESTABLISHED,
        _ => 0,
    }
}
