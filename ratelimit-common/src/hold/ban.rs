//! Checking, caching and starting of bans.

use super::{At, Banned, Inserted, State, Window, by, time_to_look_at};
use crate::ban::{self, Ban};
use crate::layout::{self, LIMITS_MAX, Unit};
use crate::verdict::Reason;
use crate::verification::{EvidenceNeeds, Side};

/// Returns whether a ban of the source is in force, and counts the packet there if so.
#[inline(always)]
pub fn is_banned<S: State>(state: S) -> bool {
    match state.ban() {
        Some(ban) if state.coarse() < ban.until() => {
            ban.count_dropped(1);
            true
        }
        Some(_) | None => false,
    }
}

/// Records that the source was admitted after its ban, if it was banned.
#[inline(always)]
pub fn record_admitted<S: State>(state: S) {
    if let Some(ban) = state.ban() {
        ban.record_admitted();
    }
}

/// Caches the end of the ban that dropped the packet.
#[inline(always)]
pub fn cache_ban<S: State>(state: S) {
    if let Some(ban) = state.ban() {
        state.cache_drop(state.rule().bans.slot, ban.until().0, Reason::Banned, false);
    }
}

/// Bans the source, or bans it again. Does nothing without verified traffic if the rule needs that, or after
/// enforcement has lapsed. A group's refusal never bans, since it does not show that one of the sources exceeds a
/// limit. Each new ban is counted once, on the CPU that was first. `how` is the [`At`] of the limit that refused, with
/// flags of [`by`].
#[inline(always)]
pub fn ban_source<S: State>(state: S, how: u32) {
    let rule = state.rule();
    let needs_evidence = rule.evidence.any(EvidenceNeeds::BANS) && how & by::ORDER == 0;
    if At(how & 0xff).is_group() || needs_evidence && !is_verified(state, how) || state.has_lapsed() {
        return;
    }
    let (rule, now): (&ban::Rule, _) = (&rule.bans, state.coarse());
    let (begins, until_ns, step) = match state.ban() {
        Some(newest) => {
            let read = newest.read();
            // A charge by an application is an offence of its own.
            let is_another = read.may_be_followed(now) || state.is_ordered() && !read.holds(now);
            let next = read.next(rule, now);
            (is_another && newest.replace(&read, &next), next.until_ns, next.step)
        }
        None => {
            let first = Ban::first(rule, now);
            (matches!(state.insert_ban(&first), Inserted::New), first.until_ns, first.step)
        }
    };
    if begins {
        state.count_ban();
        state.tell(how, until_ns, step);
    }
}

/// Returns whether the source itself is over the limit, rather than forged traffic in its name. For a connection limit,
/// the source must have completed as many handshakes as the limit allows. Then the next connection over the limit bans,
/// even if the earlier ones are closed. SYNs alone never do.
#[inline(always)]
fn is_verified<S: State>(state: S, how: u32) -> bool {
    let at = At(how & 0xff);
    let limit = &state.rule().limits[at.position() & (LIMITS_MAX - 1)];
    if limit.unit != Unit::Connections as u8 {
        return how & by::ESTABLISHED != 0 && at.side() == Side::Verified;
    }
    if !has_opened_all(state, limit) {
        return false;
    }
    if how & by::EVIDENCE == 0 {
        return true;
    }
    let bucket = state.coarse().bucket(limit.bucket_ns);
    let full_buckets = if limit.is_gcra == 0 { limit.full_buckets } else { 1 };
    state.window(limit.slot).is_some_and(|window| window.refusals().is_within(bucket, full_buckets))
}

/// Returns whether the source itself has opened as many connections as the limit allows.
#[inline(always)]
fn has_opened_all<S: State>(state: S, limit: &layout::Limit) -> bool {
    let window = state.window(Side::Evidence.slot(limit.slot));
    window.is_some_and(|window| !window.is_within_limit(limit, Side::Evidence, time_to_look_at(state, limit), 1))
}
