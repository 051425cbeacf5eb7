//! What a segment proves of its sender. What is decided by is in `ratelimit_common::proof`.

use aya_ebpf::bindings::xdp_md;
use ratelimit_common::admission::Mark;
use ratelimit_common::layout::Rule;
use ratelimit_common::proof::{Standing, asks};

use crate::clock::Clock;
use crate::maps;
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

/// A function of its own: it is walked once, and its stack is free again when the source is judged.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn proof(ctx: *mut xdp_md, generation: u32, rule: u32, requests: u32) -> u32 {
    let (Some(config), Some(seen)) = (maps::config(generation), maps::seen()) else { return 0 };
    let rule = maps::rule(config, rule);
    if rule.proof & asks::CONNECTIONS == 0 {
        return bits(maps::standing_of(ctx), rule, requests);
    }
    let [high, low] = seen.connection_words();
    let now = Clock::new(config.wall_offset_ns).coarse();
    let mark = Mark::of(config.seed, high, low, config.turn_shift, now);
    let is_known = maps::is_known(config, mark);
    if is_known && requests == 0 && rule.proof & asks::SEGMENTS == 0 {
        // As long as it sends, it is not taken for another one.
        maps::make_known(config, mark);
        return 0;
    }
    let bits = bits(maps::standing_of(ctx), rule, requests);
    let asked_early = Mark::of(config.seed, low, high, config.turn_shift, now);
    if bits & ESTABLISHED == 0 {
        if bits & PROVEN != 0 {
            maps::make_known(config, asked_early);
        }
        return bits;
    }
    maps::make_known(config, mark);
    if is_known {
        bits
    } else if maps::is_known(config, asked_early) {
        bits | FIRST | ASKED_EARLY
    } else {
        bits | FIRST
    }
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
