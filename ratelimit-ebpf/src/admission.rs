//! Which new sources are remembered where more of them come than the maps can take. `ratelimit_common::admission`
//! decides.

use ratelimit_common::admission::{Admission, Fingerprint};
use ratelimit_common::hold::GateBypass;
use ratelimit_common::layout::{Config, Rule};
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;

use crate::maps::{self, Deferred, Filter};

/// Whether new sources are gated now, of packets that this rule judges.
#[inline(always)]
pub(crate) fn are_gated(rule: &Rule) -> bool {
    rule.new_sources != 0 || maps::admission().is_some_and(|admission| admission.is_overloaded())
}

/// The gate for new sources: a [`Reason`]'s code, that of `WithinLimit` where the packet at hand is counted.
/// Otherwise its source is new, and too many are. A packet with a [`GateBypass`] is not gated. A function of its own,
/// for the verifier.
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

/// Whether a packet of a new source is sampled in and within its rule's budget for new sources; decided once a
/// packet. A [`Reason`]'s code, likewise. In line: a flood's packets come here.
#[inline(always)]
fn sample(deferred: &Deferred, admission: &mut Admission, config: &'static Config) -> u32 {
    let rule = maps::rule(config, deferred.rule());
    if rule.new_sources != 0 && !maps::admits_new_source(rule, deferred.now()) {
        return Reason::NewSourceBudget as u32;
    }
    if admission.is_overloaded() && !admission.sample(config.seed) {
        admission.is_sampled = Admission::SAMPLED_OUT;
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
    // Where new sources are gated, this one was taken for a known one.
    // Without an overload it is of a packet before.
    if admission.is_sampled == Admission::SAMPLED_OUT && admission.is_overloaded() {
        return Reason::NotAdmitted as u32;
    }
    if admission.is_sampled == 0 {
        let code = sample(deferred, admission, config);
        if code != Reason::WithinLimit as u32 {
            return code;
        }
    }
    admission.insert(config.insertions_max, config.insertions_free);
    Reason::WithinLimit as u32
}

/// Whether what has these words is known, 1 or 0. False positives are possible.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn is_known(high: u64, low: u64, generation: u32, now: u64) -> u32 {
    let Some(config) = maps::config(generation) else { return 1 };
    let fingerprint = Fingerprint::of(config.seed, high, low, config.generation_shift, Nanos(now));
    maps::in_filter(Filter::Known, config, fingerprint) as u32
}

/// Makes what has these words known. Returns 0.
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

/// Remembers the connection or flow at hand as it is with its packet: one that has no entry yet on the budget of new
/// sources. `is_counted`: the packet was counted, so its source is known or sampled in; or it is of an established
/// connection. Returns 0. A function of its own, likewise.
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
