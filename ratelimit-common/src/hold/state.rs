//! What a decision reads and writes.

use super::{At, Charged, Charges, CheckResult};
use crate::ban::Ban;
use crate::events::Kind;
use crate::layout::{Event, Limit, Rule, Step};
use crate::refusals::Refusals;
use crate::time::{BucketIndex, Nanos};
use crate::verdict::Reason;
use crate::verification::Side;
use crate::window::{self, CELLS, Cells};

/// The source of one packet: its windows and bans, and where they are kept.
///
/// Steps have a method each, which does the step: where a verifier follows every path, from a function that it
/// follows once.
pub trait State: Copy {
    /// A window of the source.
    type Window: Window;
    /// The source's newest ban by the rule.
    type Ban: Banned;

    /// The rule that judges the packet.
    fn rule(&self) -> &Rule;
    /// What the packet charges.
    fn charges(&self) -> Charges;
    /// What a packet with these charges is charged by a limit, and on which side. A frame that was put together of
    /// several packets is charged as those.
    #[inline(always)]
    fn charged_by(&self, charges: Charges, limit: &Limit) -> (u64, Side) {
        charges.of(limit)
    }
    /// The same, with its position and side. Where the stack is short, those are found in it and not kept beside it.
    #[inline(always)]
    fn told_by(&self, at: At, position: usize, side: Side) -> (At, usize, Side) {
        (at, position, side)
    }
    /// Whether it is no packet at all: the daemon charges the source.
    #[inline(always)]
    fn is_ordered(&self) -> bool {
        false
    }

    /// Whether enforcement has lapsed, as no daemon runs: nobody is banned then. Asked only where a source is refused.
    #[inline(always)]
    fn has_lapsed(&self) -> bool {
        false
    }

    /// The time to charge at.
    fn precise(&self) -> Nanos;
    /// A time that is never ahead of that and at most a timer tick behind.
    fn coarse(&self) -> Nanos;

    /// The source's window in this slot, if it has one.
    fn window(&self, slot: u32) -> Option<Self::Window>;
    /// The same where most packets ask for it.
    #[inline(always)]
    fn window_here(&self, slot: u32) -> Option<Self::Window> {
        self.window(slot)
    }
    /// Gives the source a window with the cells that `open` writes, if that says so. Never an update: one that is
    /// there stays as it is.
    fn insert(&self, slot: u32, open: impl FnOnce(&mut [u64; CELLS]) -> bool) -> Inserted;

    /// The source's newest ban, if it is still kept.
    fn ban(&self) -> Option<Self::Ban>;
    /// Bans it for the first time.
    fn insert_ban(&self, ban: &Ban) -> Inserted;
    /// Counts a ban that has begun.
    fn count_ban(&self);

    /// Whether new sources are gated now.
    fn gates_new_sources(&self) -> bool;
    /// The gate for new sources: why the packet is sampled out or refused, if it is.
    fn new_source_gate(&self, bypass: GateBypass) -> Option<Reason>;
    /// Why the source, which has no window, gets none, if it does not: [`Charged::NOT_ADMITTED`] or
    /// [`Charged::NEW_SOURCE_BUDGET`].
    fn refuses_insertion(&self) -> Option<Charged>;
    /// Makes the source a known one.
    fn make_known(&self);

    /// Keeps which bucket of the limit at this position was charged.
    fn keep_charged(&self, position: usize, bucket: u64);
    /// What was kept.
    fn charged(&self, position: usize) -> u64;
    /// Sends an event of this kind, or counts that it is lost; with the source that it is of.
    fn send_event(&self, kind: Kind, event: impl FnOnce() -> Event);
    /// Sends a step, with the source that it is of; or counts that it is lost.
    fn send_step(&self, step: Step);
    /// Has what contains the source stand in its place, by the rule's limit at this position, which is of a group:
    /// windows, marks and events are of that. Not bans, nor what the drop cache has of the source.
    fn turn_to(&self, position: usize);
    /// Has the source itself stand there again.
    fn turn_back(&self);
    // What follows is of the drop cache. Without it, each packet is judged by its window, to the same end.

    /// Keeps which limit says that the source has tried to connect too often.
    #[inline(always)]
    fn keep_suspected(&self, at: At) {
        let _ = at;
    }
    /// What was kept.
    #[inline(always)]
    fn suspected(&self) -> Option<At> {
        None
    }

    /// Whether the limit, once one more is over it in the window that refused the packet, refuses each packet like
    /// that until it frees, and nothing else is done with those.
    #[inline(always)]
    fn is_refusal_cacheable(&self, limit: &Limit) -> bool {
        let _ = limit;
        false
    }
    /// The least that a packet like this charges to the limit: where less is within the limit, this is over it.
    #[inline(always)]
    fn least(&self, limit: &Limit) -> u64 {
        let _ = limit;
        1
    }
    /// Caches until when the window or ban in this slot drops packets like this, or those of them that are
    /// unverified.
    #[inline(always)]
    fn cache_drop(&self, slot: u32, until_ns: u64, reason: Reason, is_unverified: bool) {
        let _ = (slot, until_ns, reason, is_unverified);
    }
    /// Remembers of the packet's connection that its request was refused by the window in this slot, and counts there
    /// if it was refused before.
    #[inline(always)]
    fn keep_refused(&self, slot: u32) {
        let _ = slot;
    }
    /// Caches until when no segment of the packet's connection is judged again; 0 is a moment. Of unverified
    /// segments, or of all.
    #[inline(always)]
    fn cache_connection_drop(&self, slot: u32, until_ns: u64, is_unverified: bool) {
        let _ = (slot, until_ns, is_unverified);
    }
    /// Whether the source can be cached as suspect, and is not yet.
    #[inline(always)]
    fn may_cache_suspect(&self) -> bool {
        false
    }
    /// Caches until when each connection that the source completes is counted.
    #[inline(always)]
    fn cache_suspect(&self, slot: u32, until_ns: u64) {
        let _ = (slot, until_ns);
    }

    /// [`super::hold_plain`].
    #[inline(always)]
    fn hold_plain(&self) -> Reason {
        super::hold_plain(*self)
    }

    /// [`super::is_banned`].
    #[inline(always)]
    fn is_banned(&self) -> bool {
        super::is_banned(*self)
    }

    /// [`super::record_admitted`].
    #[inline(always)]
    fn record_admitted(&self) {
        super::record_admitted(*self);
    }

    /// [`super::check_limits`].
    #[inline(always)]
    fn check_limits(&self, charges: Charges) -> CheckResult {
        super::check_limits(*self, charges)
    }

    /// [`super::check_limit`].
    #[inline(always)]
    fn check_limit(&self, position: usize, charges: Charges, before: Reason) -> CheckResult {
        super::check_limit(*self, position, charges, before)
    }

    /// [`super::charge_all`].
    #[inline(always)]
    fn charge_all(&self, checked: CheckResult) -> (Reason, bool) {
        super::charge_all(*self, checked)
    }

    /// [`super::charge_own`].
    #[inline(always)]
    fn charge_own(&self, checked: CheckResult) -> Reason {
        super::charge_own(*self, checked)
    }

    /// [`super::charge_groups`].
    #[inline(always)]
    fn charge_groups(&self, own: Reason) -> Reason {
        super::charge_groups(*self, own)
    }

    /// [`super::charge_group`].
    #[inline(always)]
    fn charge_group(&self, position: usize) -> Reason {
        super::charge_group(*self, position)
    }

    /// [`super::refund_before`].
    #[inline(always)]
    fn refund_before(&self, refused_by: usize) {
        super::refund_before(*self, refused_by);
    }

    /// [`super::charge_shadows`].
    #[inline(always)]
    fn charge_shadows(&self) {
        super::charge_shadows(*self);
    }

    /// [`super::charge_with_retry`].
    #[inline(always)]
    fn charge(&self, at: At, amount: u64) -> Charged {
        super::charge_with_retry(*self, at, amount)
    }

    /// [`super::charge_each`].
    #[inline(always)]
    fn charge_each(&self) -> Option<CheckResult> {
        super::charge_each(*self)
    }

    /// [`super::charge_one`].
    #[inline(always)]
    fn charge_one(&self, at: At, amount: u64) -> Charged {
        super::charge_one(*self, at, amount)
    }

    /// [`super::tell_each`].
    #[inline(always)]
    fn tell_each(&self, told: u32) {
        super::tell_each(*self, told);
    }

    /// [`super::charge_at_once`].
    #[inline(always)]
    fn charge_at_once(&self, at: At, amount: u64) -> Charged {
        super::charge_at_once(*self, at, amount)
    }

    /// [`super::remember`].
    #[inline(always)]
    fn remember(&self, at: At, amount: u64) -> Charged {
        super::remember(*self, at, amount)
    }

    /// [`super::refund`].
    #[inline(always)]
    fn refund(&self, at: At, amount: u64, bucket: u64) {
        super::refund(*self, at, amount, bucket);
    }

    /// [`super::cache_refusal`].
    #[inline(always)]
    fn cache_refusal(&self, at: At, is_counted: bool) {
        super::cache_refusal(*self, at, is_counted);
    }

    /// [`super::suspect`].
    #[inline(always)]
    fn suspect(&self, at: At) {
        super::suspect(*self, at);
    }

    /// [`super::tell`].
    #[inline(always)]
    fn tell(&self, how: u32, until_ns: u64, step: u32) {
        super::tell(*self, how, until_ns, step);
    }

    /// [`super::tell_step`].
    #[inline(always)]
    fn tell_step(&self, at: At, bucket: u64) {
        super::tell_step(*self, at, bucket);
    }

    /// [`super::cache_ban`].
    #[inline(always)]
    fn cache_ban(&self) {
        super::cache_ban(*self);
    }

    /// [`super::ban_source`].
    #[inline(always)]
    fn ban_source(&self, how: u32) {
        super::ban_source(*self, how);
    }
}

/// A source's window, where it is kept.
pub trait Window: Cells + Copy {
    /// What it has refused.
    fn refusals(&self) -> Refusals;
    /// Counts one packet that it refused in this bucket. True of the first one there, on one CPU alone.
    fn count_refused(&self, bucket: BucketIndex) -> bool;

    /// [`super::charge_window`].
    #[inline(always)]
    fn charge(&self, limit: &Limit, side: Side, now: Nanos, amount: u64) -> Charged {
        super::charge_window(*self, limit, side, now, amount)
    }

    /// [`window::settle`], which is the same on all sides.
    #[inline(always)]
    fn settle_before(&self, limit: &Limit, bucket: BucketIndex) {
        let _newest = window::settle(self, limit.arithmetic(Side::Unverified), bucket);
    }

    /// What it holds at `now`: an amount, or of a leaky bucket nanoseconds until it is empty.
    #[inline(always)]
    fn used(&self, limit: &Limit, now: Nanos) -> u64 {
        super::window_used(*self, limit, now)
    }

    /// Whether so much more is within the limit at `now`.
    #[inline(always)]
    fn is_within_limit(&self, limit: &Limit, side: Side, now: Nanos, amount: u64) -> bool {
        super::window_is_within_limit(*self, limit, side, now, amount)
    }

    /// [`super::window_passes_refuse_all`].
    #[inline(always)]
    fn passes_refuse_all(&self, limit: &Limit, side: Side, now: Nanos, amount: u64) -> bool {
        super::window_passes_refuse_all(*self, limit, side, now, amount)
    }

    /// [`window::full_until`].
    #[inline(always)]
    fn full_until(&self, limit: &Limit, side: Side, bucket: BucketIndex, least: u64) -> BucketIndex {
        window::full_until(self, limit.arithmetic(side), bucket, least)
    }
}

/// A source's newest ban, where it is kept.
pub trait Banned: Copy {
    /// When it ends.
    fn until(&self) -> Nanos;
    /// What it is. A copy: of what other CPUs change meanwhile, the end alone decides anything.
    fn read(&self) -> Ban;
    /// Records that the source was admitted after it.
    fn record_admitted(&self);
    /// Counts packets that it dropped.
    fn count_dropped(&self, packets: u64);
    /// Puts `next` in its place, unless another CPU was first. True if it was done.
    #[must_use]
    fn replace(&self, read: &Ban, next: &Ban) -> bool;
}

/// Why a packet bypasses [`State::new_source_gate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum GateBypass {
    /// It does not.
    None = 0,
    /// It is of an established connection, or charges more than the limit.
    VerifiedOrTooLarge = 1,
    /// The gate has seen this packet already.
    Asked = 2,
}

/// What became of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// It is in the map.
    New,
    /// Another CPU was first.
    Existed,
    /// The map refused it, which is counted already.
    Refused,
    /// There was nothing to insert.
    Nothing,
}
