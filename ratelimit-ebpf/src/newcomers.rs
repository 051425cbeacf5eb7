//! Who is remembered where more new sources come than the maps can take. What is decided by is in `ratelimit_common::admission`.

use ratelimit_common::admission::Mark;
use ratelimit_common::layout::CHARGE_GENERATION;
use ratelimit_common::source::{Address, cut_ipv4, cut_ipv6};
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
    if !admission.draw() {
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
        if admission.is_pressed() && !admission.draw() {
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
/// sources. `is_counted`: the packet was counted, so its source is known or drawn. Returns 0. A function of its own, likewise.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn remember_pending(generation: u32, is_counted: u32) -> u32 {
    if let Some(pending) = maps::pending()
        && !pending.renew()
        && is_remembered(generation, is_counted != 0 || pending.is_conversation() && is_source_known(generation))
    {
        pending.insert();
    }
    0
}

#[inline(always)]
fn is_remembered(generation: u32, is_admitted: bool) -> bool {
    let (Some(config), Some(admission)) = (maps::config(generation), maps::admission()) else { return true };
    admission.advance(Clock::new(config.wall_offset_ns).coarse(), config.insertions_max);
    admission.remembers_flow(config.insertions_max, is_admitted)
}

/// Whether the source of the packet that was seen last is known. Of a connection that is asked, since its first segments are not counted
/// under TLS; of a flow it is not, or whoever forges a known address would be on no budget.
#[inline(always)]
fn is_source_known(generation: u32) -> bool {
    let (Some(config), Some(seen)) = (maps::config(generation), maps::seen()) else { return false };
    let [high, low] = match seen.source() {
        Address::V4(address) => [u64::from(cut_ipv4(address, config.ipv4_mask)), 4],
        Address::V6(address) => match cut_ipv6(address, config.ipv6_mask) {
            [high, _] if config.ipv6_wide == 0 => [high, 6],
            wide => wide,
        },
    };
    let now = Clock::new(config.wall_offset_ns).coarse();
    maps::is_marked(Marked::Known, config, Mark::of(config.seed, high, low, config.turn_shift, now))
}
