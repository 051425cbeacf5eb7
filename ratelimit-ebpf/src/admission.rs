//! Who is remembered where more new sources come than the maps can take. What is decided by is in `ratelimit_common::admission`.

use ratelimit_common::admission::{Admission, Fingerprint};
use ratelimit_common::hold::GateBypass;
use ratelimit_common::layout::{Config, Rule};
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;

use crate::maps::{self, Deferred, Filter};

/// Whether it matters now who is new, to a packet that this rule judges.
#[inline(always)]
pub(crate) fn are_gated(rule: &Rule) -> bool {
    rule.new_sources != 0 || maps::admission().is_some_and(|admission| admission.is_overloaded())
}

/// Whether the packet at hand is not looked at, because its source is new and too many are: a [`Reason`]'s code, that of
/// `WithinLimit` where it is looked at. Nothing is asked of a packet that has an [`GateBypass`]. A function of its own, for the verifier.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn new_source_gate(bypass: u32) -> u32 {
    let (Some(deferred), Some(admission)) = (maps::deferred(), maps::admission()) else {
        return Reason::WithinLimit as u32;
    };
    let Some(config) = maps::config(deferred.generation()) else { return Reason::WithinLimit as u32 };
    let now = deferred.now();
    admission.advance(now, config.insertions_max);
    // LLVM 22 makes a constant of a condition that is stored as a number here.
    if bypass != GateBypass::None as u32 {
        admission.is_sampled = 1;
        return Reason::WithinLimit as u32;
    }
    admission.is_sampled = 0;
    let rule = maps::rule(config, deferred.rule());
    let [high, low] = deferred.of.words;
    let fingerprint = Fingerprint::of(config.seed, high, low, config.generation_shift, now);
    if rule.new_sources == 0 && !admission.is_overloaded() || maps::in_filter(Filter::Known, config, fingerprint) {
        return Reason::WithinLimit as u32;
    }
    sample(deferred, admission, config)
}

/// Whether a source that is new is let in, which is drawn once: a [`Reason`]'s code, likewise. Where it is: a flood's packets ask.
#[inline(always)]
fn sample(deferred: &Deferred, admission: &mut Admission, config: &'static Config) -> u32 {
    let rule = maps::rule(config, deferred.rule());
    if rule.new_sources != 0 && !maps::admits_new_source(rule, deferred.now()) {
        return Reason::NewSourceBudget as u32;
    }
    if admission.is_overloaded() && !admission.sample(config.seed) {
        return Reason::NotAdmitted as u32;
    }
    admission.is_sampled = 1;
    Reason::WithinLimit as u32
}

/// Whether a source that has no window yet gets one, and puts it on the budget: a [`Reason`]'s code, likewise.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn admit() -> u32 {
    let (Some(deferred), Some(admission)) = (maps::deferred(), maps::to_admit()) else {
        return Reason::WithinLimit as u32;
    };
    let Some(config) = maps::config(deferred.generation()) else { return Reason::WithinLimit as u32 };
    admission.advance(deferred.now(), config.insertions_max);
    // Where it matters who is new, this is one that was taken for a known one.
    if admission.is_sampled == 0 {
        let code = sample(deferred, admission, config);
        if code != Reason::WithinLimit as u32 {
            return code;
        }
    }
    admission.insert(config.insertions_max, config.insertions_free);
    Reason::WithinLimit as u32
}

/// Whether it was noted lately that what has these words is known, 1 or 0; 1 also for some of which it was not.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn is_known(high: u64, low: u64, generation: u32, now: u64) -> u32 {
    let Some(config) = maps::config(generation) else { return 1 };
    let fingerprint = Fingerprint::of(config.seed, high, low, config.generation_shift, Nanos(now));
    maps::in_filter(Filter::Known, config, fingerprint) as u32
}

/// Notes that what has these words is known. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn make_known(high: u64, low: u64, generation: u32, now: u64) -> u32 {
    if let Some(config) = maps::config(generation) {
        maps::insert_into(
            Filter::Known,
            config,
            Fingerprint::of(config.seed, high, low, config.generation_shift, Nanos(now)),
        );
    }
    0
}

/// Remembers the connection or flow that was looked at last, as it is with its packet: one that has no entry yet on the budget of new
/// sources. `is_counted`: the packet was counted, so its source is known or drawn; or it is of an established connection. Returns 0. A function of its own, likewise.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn remember_deferred(generation: u32, is_counted: u32) -> u32 {
    if let Some(deferred) = maps::deferred()
        && !deferred.renew()
        && is_remembered(generation, deferred, is_counted != 0)
    {
        deferred.insert();
    }
    0
}

#[inline(always)]
fn is_remembered(generation: u32, deferred: &Deferred, is_admitted: bool) -> bool {
    let (Some(config), Some(admission)) = (maps::config(generation), maps::admission()) else { return true };
    admission.advance(deferred.now(), config.insertions_max);
    admission.remembers_flow(config.seed, config.insertions_max, is_admitted)
}

/// By what the words of a source differ that was refused a connection by this rule, after it has itself opened as many as it may: the next
/// segment of one of those bans it.
#[inline(always)]
pub(crate) const fn armed(rule: u32) -> u64 {
    0x61_726d_6564 << 24 ^ (rule as u64) << 16
}

/// Whether that was noted of the source of the packet at hand; true also for some of which it was not.
#[inline(always)]
pub(crate) fn is_armed(deferred: &Deferred, generation: u32) -> bool {
    let [high, low] = deferred.of.words;
    is_known(high, low ^ armed(deferred.rule()), generation, deferred.now().0) != 0
}
