//! Who is remembered where more new sources come than the maps can take. What is decided by is in `ratelimit_common::admission`.

use ratelimit_common::admission::Mark;
use ratelimit_common::layout::{CHARGE_GENERATION, Config};
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;

use crate::clock::Clock;
use crate::maps::{self, Marked};

/// Why [`turned_away`] asks nothing.
pub(crate) mod excuses {
    /// It does.
    pub(crate) const NONE: u32 = 0;
    /// The packet gets a window, if it gets any.
    pub(crate) const PROVEN_OR_TOO_MUCH: u32 = 1;
    /// It has asked already, of this packet.
    pub(crate) const ASKED: u32 = 2;
}

/// Whether a packet of this source is not looked at, because nobody knows it and too many are new: a [`Reason`]'s code, that of
/// `WithinLimit` where it is looked at. Nothing is asked of a packet with one of the [`excuses`]. A function of its own, for all families.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn turned_away(high: u64, low: u64, generation: u32, rule: u32, excuse: u32) -> u32 {
    if excuse & excuses::ASKED != 0 {
        return Reason::WithinLimit as u32;
    }
    let (Some(config), Some(admission)) = (maps::config(generation), maps::admission()) else {
        return Reason::WithinLimit as u32;
    };
    let now = Clock::new(config.wall_offset_ns).coarse();
    admission.advance(now, config.insertions_max);
    // LLVM 22 makes a constant of a condition that is stored as a number here.
    if excuse != excuses::NONE {
        admission.is_drawn = 1;
        return Reason::WithinLimit as u32;
    }
    admission.is_drawn = 0;
    if !admission.is_pressed()
        || maps::is_marked(Marked::Known, config, Mark::of(config.seed, high, low, config.turn_shift, now))
    {
        return Reason::WithinLimit as u32;
    }
    let rule = maps::rule(config, rule);
    if rule.new_sources != 0 && !maps::lets_in(rule, now) {
        return Reason::NewSourceBudget as u32;
    }
    if !admission.draw(config.seed) {
        return Reason::NotAdmitted as u32;
    }
    admission.is_drawn = 1;
    Reason::WithinLimit as u32
}

/// Whether a source that has no window yet gets one, and puts it on the budget: a [`Reason`]'s code, likewise.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn admit(generation: u32, rule: u32) -> u32 {
    let (Some(config), Some(admission)) = (maps::config(generation), maps::admission()) else {
        return Reason::WithinLimit as u32;
    };
    // What the daemon charges is no packet's.
    if generation == CHARGE_GENERATION {
        return Reason::WithinLimit as u32;
    }
    if admission.is_drawn == 0 {
        let rule = maps::rule(config, rule);
        if rule.new_sources != 0 && !maps::lets_in(rule, Clock::new(config.wall_offset_ns).coarse()) {
            return Reason::NewSourceBudget as u32;
        }
        // One that was taken for a known one.
        if admission.is_pressed() && !admission.draw(config.seed) {
            return Reason::NotAdmitted as u32;
        }
        admission.is_drawn = 1;
    }
    admission.insert(config.insertions_max, config.insertions_free);
    Reason::WithinLimit as u32
}

/// Notes that this source is known. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn make_known(high: u64, low: u64, generation: u32) -> u32 {
    if let Some(config) = maps::config(generation) {
        let now = Clock::new(config.wall_offset_ns).coarse();
        maps::make_marked(Marked::Known, config, Mark::of(config.seed, high, low, config.turn_shift, now));
    }
    0
}

/// Remembers the connection or flow that was looked at last, as it is with its packet: one that has no entry yet on the budget of new
/// sources. `is_counted`: the packet was counted, so its source is known or drawn; or it is of an established connection. Returns 0. A function of its own, likewise.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn remember_pending(generation: u32, is_counted: u32) -> u32 {
    if let Some(pending) = maps::pending()
        && !pending.renew()
        && is_remembered(generation, is_counted != 0)
    {
        pending.insert();
    }
    0
}

#[inline(always)]
fn is_remembered(generation: u32, is_admitted: bool) -> bool {
    let (Some(config), Some(admission)) = (maps::config(generation), maps::admission()) else { return true };
    admission.advance(Clock::new(config.wall_offset_ns).coarse(), config.insertions_max);
    admission.remembers_flow(config.seed, config.insertions_max, is_admitted)
}

/// By what the words of a source that is armed differ from its own.
const ARMED: u64 = 0x61_72_6d_65_64 << 24;

/// Notes that this source was refused a connection by this rule, after it has itself opened as many as it may: the next segment of one of
/// those bans it. Returns 0.
#[inline(always)]
pub(crate) fn make_armed(high: u64, low: u64, generation: u32, rule: u32) -> u32 {
    make_known(high, low ^ ARMED ^ u64::from(rule) << 16, generation)
}

/// Whether that was noted; true also for some of which it was not.
#[inline(always)]
pub(crate) fn is_armed(config: &Config, high: u64, low: u64, rule: u32, now: Nanos) -> bool {
    let low = low ^ ARMED ^ u64::from(rule) << 16;
    maps::is_marked(Marked::Known, config, Mark::of(config.seed, high, low, config.turn_shift, now))
}
