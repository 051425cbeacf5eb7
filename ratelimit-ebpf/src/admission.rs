//! Decides which new sources are remembered when more arrive than the maps can take. `ratelimit_common::admission`
//! makes the decisions.

use ratelimit_common::admission::{Admission, Fingerprint};
use ratelimit_common::hold::GateBypass;
use ratelimit_common::layout::{Config, Rule};
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;

use crate::maps::{self, Deferred, Filter};

/// Returns true if new sources are gated now for packets that this rule judges.
#[inline(always)]
pub(crate) fn are_gated(rule: &Rule) -> bool {
    rule.new_sources != 0 || maps::admission().is_some_and(|admission| admission.is_overloaded())
}

/// Runs the gate for new sources on the current packet, unless it has a [`GateBypass`]. Returns a [`Reason`] code:
/// `WithinLimit` if the packet is counted. Any other code means that the source is new and too many are. A function of
/// its own, for the verifier.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn new_source_gate(bypass: u32) -> u32 {
    let (Some(deferred), Some(admission)) = (maps::deferred(), maps::admission()) else {
        return Reason::WithinLimit as u32;
    };
    let Some(config) = maps::config(deferred.generation()) else { return Reason::WithinLimit as u32 };
    let now = deferred.now();
    admission.advance(now, config.insertions_max);
    // LLVM 22 turns a condition that is stored as a number into a constant here.
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

/// Decides once per packet whether a new source is sampled in and within its rule's budget for new sources. Returns a
/// [`Reason`] code. Inlined, because a flood's packets take this path.
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

/// Decides whether a source without a window may get one, and charges the insertion budget. Returns a [`Reason`] code.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn admit() -> u32 {
    let (Some(deferred), Some(admission)) = (maps::deferred(), maps::to_admit()) else {
        return Reason::WithinLimit as u32;
    };
    let Some(config) = maps::config(deferred.generation()) else { return Reason::WithinLimit as u32 };
    admission.advance(deferred.now(), config.insertions_max);
    // If new sources are gated, this source passed the gate as a known one. Without an overload, the value is left from
    // an earlier packet.
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

/// Returns 1 if the filter of known sources contains these words, else 0. False positives are possible.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn is_known(high: u64, low: u64, generation: u32, now: u64) -> u32 {
    let Some(config) = maps::config(generation) else { return 1 };
    let fingerprint = Fingerprint::of(config.seed, high, low, config.generation_shift, Nanos(now));
    maps::in_filter(Filter::Known, config, fingerprint) as u32
}

/// Adds these words to the filter of known sources. Returns 0.
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

/// Stores the new state of the current connection or flow. A new entry is charged to the insertion budget. `is_counted`
/// means that the packet was counted, so its source is known or sampled in, or that it belongs to an established
/// connection. Returns 0. A function of its own, for the verifier.
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
