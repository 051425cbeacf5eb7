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
use crate::newcomers::{is_armed, make_known};
use crate::packet::XdpFrame;

/// What [`proof`] says of a segment.
#[derive(Clone, Copy)]
pub(crate) struct Proof(u32);

const PROVEN: u32 = 1;
const ESTABLISHED: u32 = 2;
const FIRST: u32 = 4;
const IGNORED: u32 = 8;
const ARMED: u32 = 16;

impl Proof {
    /// Of what proves nothing.
    pub(crate) const NONE: Self = Self(0);

    /// Of the segment that this frame is, once it was seen; `may_ask`: it may be asked for something, by a rule that counts that.
    #[inline(always)]
    pub(crate) fn of(frame: &XdpFrame, generation: u32, rule: u32, may_ask: bool) -> Self {
        Self(proof(frame.context(), generation, rule, may_ask as u32))
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

    /// Whether the server does not take it, so that no request begins in it.
    #[inline(always)]
    pub(crate) const fn is_ignored(self) -> bool {
        self.0 & IGNORED != 0
    }

    /// Whether its source was refused a connection, after it had opened as many as it may.
    #[inline(always)]
    pub(crate) const fn is_armed(self) -> bool {
        self.0 & ARMED != 0
    }

    /// Whether it is the first that is known of its connection.
    #[inline(always)]
    pub(crate) const fn is_first(self) -> bool {
        self.0 & FIRST != 0
    }
}

/// Whether it matters to the rule what a segment proves.
#[inline(always)]
pub(crate) const fn is_asked(rule: &Rule, may_ask: bool) -> bool {
    may_ask || rule.proof & (asks::SEGMENTS | asks::CONNECTIONS) != 0
}

/// What [`refused_unproven`] returns of a segment that is to be looked up first, which is no [`Term`].
const LOOK_UP: u64 = 2;

/// Whose note of what proves nothing is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unproven {
    /// Of all that a source sends.
    Source = 0,
    /// Of one connection's requests.
    Connection = 1,
}

/// What refuses the segment that this frame is, which has this key, by a note of what proves nothing. Looked up among the host's
/// sockets are connections that were found there lately, and those that were not looked for a moment ago.
#[inline(always)]
pub(crate) fn refused(frame: &XdpFrame, generation: u32, key: Key, of: Unproven) -> Option<Term> {
    let (ctx, Key { source, what }) = (frame.context(), key);
    let mut code = refused_unproven(ctx, generation, source, what, of as u32);
    if code == LOOK_UP {
        frame.seen()?;
        let is_proven = look_up(ctx, generation, source, what) == Standing::Established as u32;
        code = if is_proven { 0 } else { refused_unproven(ctx, generation, source, what, of as u32 | LOOKED_UP) };
    }
    if code == 0 { None } else { Some(Term::of(code)) }
}

/// Beside an [`Unproven`]: the segment was looked up, and proves nothing.
const LOOKED_UP: u32 = 2;

/// The note that refuses a segment with this key which proves nothing: a [`Term`], or 0; but [`LOOK_UP`] where it may prove something and was
/// not looked up yet.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn refused_unproven(ctx: *mut xdp_md, generation: u32, source: u64, what: u64, of: u32) -> u64 {
    let Some(config) = maps::config(generation) else { return 0 };
    let (key, now) = (Key { source, what }, Clock::new(config.wall_offset_ns).coarse());
    let context = XdpContext::new(ctx);
    // Where a glance does not tell, the frame was seen: its key is of that.
    let Some(source_port) = source_port(&XdpFrame::new(&context)).or_else(seen_source_port) else {
        return if of & LOOKED_UP == 0 { LOOK_UP } else { 0 };
    };
    if of & LOOKED_UP == 0 {
        // Who forges requests from all ports has each be one that is looked up; else he has the first request of whoever connects from one wait.
        if of & Unproven::Connection as u32 != 0 {
            return LOOK_UP;
        }
        let marks = (found(config.seed, key, source_port, now), not_found(config.seed, key, source_port, now));
        if maps::is_marked(Marked::Found, config, marks.0)
            || !maps::is_marked(Marked::NotFound, config, marks.1)
            || is_looked_up(marks.1, now)
        {
            return LOOK_UP;
        }
    }
    let (key, hash) = if of & Unproven::Connection as u32 == 0 {
        (key.unproven(), key.hash(config.seed))
    } else {
        let key = key.of_connection(config.seed, source_port).of_unproven_requests();
        (key, key.source)
    };
    maps::refused(config, key, hash, || now).map_or(0, Term::word)
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
extern "C" fn proof(ctx: *mut xdp_md, generation: u32, rule: u32, may_ask: u32) -> u32 {
    let (Some(config), Some(seen)) = (maps::config(generation), maps::seen()) else { return 0 };
    let index = rule;
    let rule = maps::rule(config, rule);
    if rule.proof & asks::CONNECTIONS == 0 {
        return bits(standing(ctx, generation, rule), rule, may_ask);
    }
    let now = Clock::new(config.wall_offset_ns).coarse();
    let [high, low] = seen.source_words(config);
    let is_armed = is_armed(config, high, low, index, now);
    let [high, low] = seen.connection_words(config.seed);
    let is_known = maps::is_marked(Marked::Known, config, Mark::of(config.seed, high, low, config.turn_shift, now));
    if is_known && !is_armed && may_ask == 0 && rule.proof & asks::SEGMENTS == 0 {
        // As long as it sends, it is not taken for another one.
        let _always_zero = make_known(high, low, generation);
        return 0;
    }
    let mut bits = bits(standing(ctx, generation, rule), rule, may_ask);
    if bits & ESTABLISHED != 0 {
        let _always_zero = make_known(high, low, generation);
        if !is_known {
            bits |= FIRST;
        }
        if is_armed {
            bits |= ARMED;
        }
    }
    bits
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

/// Of a [`Standing`]'s number, and whether its segment may ask for something.
#[inline(always)]
const fn bits(standing: u32, rule: &Rule, may_ask: u32) -> u32 {
    const ANSWERED: u32 = Standing::Answered as u32;
    const ESTABLISHED: u32 = Standing::Established as u32;
    const IGNORED: u32 = Standing::Ignored as u32;
    match standing {
        ANSWERED if may_ask != 0 && rule.proof & asks::SEGMENTS == 0 => PROVEN,
        ESTABLISHED => PROVEN | self::ESTABLISHED,
        IGNORED => self::IGNORED,
        _ => 0,
    }
}
