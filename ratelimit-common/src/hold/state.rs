//! Interface between a decision and the state that it reads and writes.

use super::{At, Charged, Charges, CheckResult};
use crate::ban::Ban;
use crate::events::Kind;
use crate::layout::{Event, Limit, Rule, Step};
use crate::refusals::Refusals;
use crate::time::{BucketIndex, Nanos};
use crate::verdict::Reason;
use crate::verification::Side;
use crate::window::{self, CELLS, Cells};

/// Source of one packet: its windows and bans, and their storage.
///
/// Each step of a decision has a method that does the step. A verifier that follows every path then sees the step as a
/// function of its own, and follows it once.
pub trait State: Copy {
    /// Window of the source.
    type Window: Window;
    /// Newest ban of the source by the rule.
    type Ban: Banned;

    /// Returns the rule that judges the packet.
    fn rule(&self) -> &Rule;
    /// Returns the packet's charges.
    fn charges(&self) -> Charges;
    /// Returns the amount and the side that a limit charges for a packet with these charges. A frame that was merged
    /// from several packets is charged as those.
    #[inline(always)]
    fn charged_by(&self, charges: Charges, limit: &Limit) -> (u64, Side) {
        charges.of(limit)
    }
    /// Returns its arguments. A state with little stack reads position and side back from `at` instead of keeping them.
    #[inline(always)]
    fn told_by(&self, at: At, position: usize, side: Side) -> (At, usize, Side) {
        (at, position, side)
    }
    /// Returns whether the daemon charges the source, without a packet.
    #[inline(always)]
    fn is_ordered(&self) -> bool {
        false
    }

    /// Returns whether enforcement has lapsed because no daemon runs. Bans are off then. Called only if a source is
    /// refused.
    #[inline(always)]
    fn has_lapsed(&self) -> bool {
        false
    }

    /// Returns the exact time, at which charges are made.
    fn precise(&self) -> Nanos;
    /// Returns a time that is never ahead of the exact time, and at most a timer tick behind.
    fn coarse(&self) -> Nanos;

    /// Returns the source's window in this slot, if it has one.
    fn window(&self, slot: u32) -> Option<Self::Window>;
    /// Returns the source's window in this slot, on the path of most packets.
    #[inline(always)]
    fn window_here(&self, slot: u32) -> Option<Self::Window> {
        self.window(slot)
    }
    /// Opens a window for the source with the cells that `open` writes, unless `open` returns false. An existing window
    /// stays unchanged.
    fn insert(&self, slot: u32, open: impl FnOnce(&mut [u64; CELLS]) -> bool) -> Inserted;

    /// Returns the source's newest ban, if it is still kept.
    fn ban(&self) -> Option<Self::Ban>;
    /// Inserts the first ban of the source.
    fn insert_ban(&self, ban: &Ban) -> Inserted;
    /// Counts a ban that has begun.
    fn count_ban(&self);

    /// Returns whether the gate for new sources is active.
    fn gates_new_sources(&self) -> bool;
    /// Asks the gate for new sources. Returns the reason if the packet is sampled out or refused.
    fn new_source_gate(&self, bypass: GateBypass) -> Option<Reason>;
    /// Returns why a source without a window gets none: [`Charged::NOT_ADMITTED`] or [`Charged::NEW_SOURCE_BUDGET`].
    /// Returns None if it may get one.
    fn refuses_insertion(&self) -> Option<Charged>;
    /// Marks the source as known.
    fn make_known(&self);

    /// Stores the bucket that the limit at this position charged.
    fn keep_charged(&self, position: usize, bucket: u64);
    /// Returns the bucket that [`State::keep_charged`] stored for this position.
    fn charged(&self, position: usize) -> u64;
    /// Sends an event of this kind with its source, or counts that it is lost.
    fn send_event(&self, kind: Kind, event: impl FnOnce() -> Event);
    /// Sends a step with its source, or counts that it is lost.
    fn send_step(&self, step: Step);
    /// Replaces the source by the group of the limit at this position. Windows, known-source marks and events are then
    /// the group's. Bans and drop-cache entries remain the source's.
    fn turn_to(&self, position: usize);
    /// Restores the source after [`State::turn_to`].
    fn turn_back(&self);
    // The methods below concern the drop cache. Without one, each packet is judged by its window, with the same result.

    /// Stores the limit of which the source has used up all connection attempts.
    #[inline(always)]
    fn keep_suspected(&self, at: At) {
        let _ = at;
    }
    /// Returns the limit that [`State::keep_suspected`] stored.
    #[inline(always)]
    fn suspected(&self) -> Option<At> {
        None
    }

    /// Returns whether a refusal by this limit may be cached. The limit must refuse each similar packet until its
    /// window frees, and nothing else may be done with those packets.
    #[inline(always)]
    fn is_refusal_cacheable(&self, limit: &Limit) -> bool {
        let _ = limit;
        false
    }
    /// Returns the least that a packet like this charges to the limit. If less is within the limit, this packet is over
    /// it.
    #[inline(always)]
    fn least(&self, limit: &Limit) -> u64 {
        let _ = limit;
        1
    }
    /// Caches until when the window or ban in this slot drops packets like this one, or only unverified ones.
    #[inline(always)]
    fn cache_drop(&self, slot: u32, until_ns: u64, reason: Reason, is_unverified: bool) {
        let _ = (slot, until_ns, reason, is_unverified);
    }
    /// Records that the window in this slot refused a request of the packet's connection. Counts there if the request
    /// was refused before.
    #[inline(always)]
    fn keep_refused(&self, slot: u32) {
        let _ = slot;
    }
    /// Caches until when segments of the packet's connection are dropped unseen; 0 means a brief entry. The entry
    /// covers all segments, or only unverified ones.
    #[inline(always)]
    fn cache_connection_drop(&self, slot: u32, until_ns: u64, is_unverified: bool) {
        let _ = (slot, until_ns, is_unverified);
    }
    /// Returns whether the source can be cached as suspect, and is not yet.
    #[inline(always)]
    fn may_cache_suspect(&self) -> bool {
        false
    }
    /// Caches until when each connection that the source completes is counted.
    #[inline(always)]
    fn cache_suspect(&self, slot: u32, until_ns: u64) {
        let _ = (slot, until_ns);
    }

    /// Calls [`super::hold_plain`].
    #[inline(always)]
    fn hold_plain(&self) -> Reason {
        super::hold_plain(*self)
    }

    /// Calls [`super::is_banned`].
    #[inline(always)]
    fn is_banned(&self) -> bool {
        super::is_banned(*self)
    }

    /// Calls [`super::record_admitted`].
    #[inline(always)]
    fn record_admitted(&self) {
        super::record_admitted(*self);
    }

    /// Calls [`super::check_limits`].
    #[inline(always)]
    fn check_limits(&self, charges: Charges) -> CheckResult {
        super::check_limits(*self, charges)
    }

    /// Calls [`super::check_limit`].
    #[inline(always)]
    fn check_limit(&self, position: usize, charges: Charges, before: Reason) -> CheckResult {
        super::check_limit(*self, position, charges, before)
    }

    /// Calls [`super::charge_all`].
    #[inline(always)]
    fn charge_all(&self, checked: CheckResult) -> (Reason, bool) {
        super::charge_all(*self, checked)
    }

    /// Calls [`super::charge_own`].
    #[inline(always)]
    fn charge_own(&self, checked: CheckResult) -> Reason {
        super::charge_own(*self, checked)
    }

    /// Calls [`super::charge_groups`].
    #[inline(always)]
    fn charge_groups(&self, own: Reason) -> Reason {
        super::charge_groups(*self, own)
    }

    /// Calls [`super::charge_group`].
    #[inline(always)]
    fn charge_group(&self, position: usize) -> Reason {
        super::charge_group(*self, position)
    }

    /// Calls [`super::refund_before`].
    #[inline(always)]
    fn refund_before(&self, refused_by: usize) {
        super::refund_before(*self, refused_by);
    }

    /// Calls [`super::charge_shadows`].
    #[inline(always)]
    fn charge_shadows(&self) {
        super::charge_shadows(*self);
    }

    /// Calls [`super::charge_with_retry`].
    #[inline(always)]
    fn charge(&self, at: At, amount: u64) -> Charged {
        super::charge_with_retry(*self, at, amount)
    }

    /// Calls [`super::charge_each`].
    #[inline(always)]
    fn charge_each(&self) -> Option<CheckResult> {
        super::charge_each(*self)
    }

    /// Calls [`super::charge_one`].
    #[inline(always)]
    fn charge_one(&self, at: At, amount: u64) -> Charged {
        super::charge_one(*self, at, amount)
    }

    /// Calls [`super::tell_each`].
    #[inline(always)]
    fn tell_each(&self, told: u32) {
        super::tell_each(*self, told);
    }

    /// Calls [`super::charge_at_once`].
    #[inline(always)]
    fn charge_at_once(&self, at: At, amount: u64) -> Charged {
        super::charge_at_once(*self, at, amount)
    }

    /// Calls [`super::remember`].
    #[inline(always)]
    fn remember(&self, at: At, amount: u64) -> Charged {
        super::remember(*self, at, amount)
    }

    /// Calls [`super::refund`].
    #[inline(always)]
    fn refund(&self, at: At, amount: u64, bucket: u64) {
        super::refund(*self, at, amount, bucket);
    }

    /// Calls [`super::cache_refusal`].
    #[inline(always)]
    fn cache_refusal(&self, at: At, is_counted: bool) {
        super::cache_refusal(*self, at, is_counted);
    }

    /// Calls [`super::suspect`].
    #[inline(always)]
    fn suspect(&self, at: At) {
        super::suspect(*self, at);
    }

    /// Calls [`super::tell`].
    #[inline(always)]
    fn tell(&self, how: u32, until_ns: u64, step: u32) {
        super::tell(*self, how, until_ns, step);
    }

    /// Calls [`super::tell_step`].
    #[inline(always)]
    fn tell_step(&self, at: At, bucket: u64) {
        super::tell_step(*self, at, bucket);
    }

    /// Calls [`super::cache_ban`].
    #[inline(always)]
    fn cache_ban(&self) {
        super::cache_ban(*self);
    }

    /// Calls [`super::ban_source`].
    #[inline(always)]
    fn ban_source(&self, how: u32) {
        super::ban_source(*self, how);
    }
}

/// Window of a source, in its storage.
pub trait Window: Cells + Copy {
    /// Returns the refusals by this window.
    fn refusals(&self) -> Refusals;
    /// Counts one packet that the window refused in this bucket. Returns true for the first refusal in the bucket, on
    /// one CPU only.
    fn count_refused(&self, bucket: BucketIndex) -> bool;

    /// Calls [`super::charge_window`].
    #[inline(always)]
    fn charge(&self, limit: &Limit, side: Side, now: Nanos, amount: u64) -> Charged {
        super::charge_window(*self, limit, side, now, amount)
    }

    /// Calls [`window::settle`], which is independent of the side.
    #[inline(always)]
    fn settle_before(&self, limit: &Limit, bucket: BucketIndex) {
        let _newest = window::settle(self, limit.arithmetic(Side::Unverified), bucket);
    }

    /// Returns what the window holds at `now`: an amount, or for a leaky bucket the nanoseconds until it is empty.
    #[inline(always)]
    fn used(&self, limit: &Limit, now: Nanos) -> u64 {
        super::window_used(*self, limit, now)
    }

    /// Returns whether `amount` more is within the limit at `now`.
    #[inline(always)]
    fn is_within_limit(&self, limit: &Limit, side: Side, now: Nanos, amount: u64) -> bool {
        super::window_is_within_limit(*self, limit, side, now, amount)
    }

    /// Calls [`super::window_passes_refuse_all`].
    #[inline(always)]
    fn passes_refuse_all(&self, limit: &Limit, side: Side, now: Nanos, amount: u64) -> bool {
        super::window_passes_refuse_all(*self, limit, side, now, amount)
    }

    /// Calls [`window::full_until`].
    #[inline(always)]
    fn full_until(&self, limit: &Limit, side: Side, bucket: BucketIndex, least: u64) -> BucketIndex {
        window::full_until(self, limit.arithmetic(side), bucket, least)
    }
}

/// Newest ban of a source, in its storage.
pub trait Banned: Copy {
    /// Returns the end of the ban.
    fn until(&self) -> Nanos;
    /// Returns a copy of the ban. Other CPUs may change the ban meanwhile; only its end affects decisions.
    fn read(&self) -> Ban;
    /// Records that the source was admitted after the ban.
    fn record_admitted(&self);
    /// Counts packets that the ban dropped.
    fn count_dropped(&self, packets: u64);
    /// Replaces the ban by `next`, unless another CPU was first. Returns whether it was replaced.
    #[must_use]
    fn replace(&self, read: &Ban, next: &Ban) -> bool;
}

/// Reason why a packet bypasses [`State::new_source_gate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum GateBypass {
    /// The packet does not bypass the gate.
    None = 0,
    /// The packet belongs to an established connection, or charges more than the limit.
    VerifiedOrTooLarge = 1,
    /// The gate has seen this packet already.
    Asked = 2,
}

/// Result of an insertion into a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The element was inserted.
    New,
    /// Another CPU inserted the element first.
    Existed,
    /// The map refused the element, which is counted already.
    Refused,
    /// No element was built, so none was inserted.
    Nothing,
}
