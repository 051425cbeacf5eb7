//! The ring of events, and the counts of sent and lost events.

use aya_ebpf::Global;
use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_NO_WAKEUP};
use ratelimit_common::events::{EventTally, Kind};
use ratelimit_common::layout::{EVENTS_OF_REFUSALS_BYTES, Event, Fault, Step};
use ratelimit_common::time::Nanos;

use super::{EVENT_TALLIES, EVENTS, Of, STEPS, Work, fault, or_fault};

/// [`ratelimit_common::layout::SENDS_EVENTS`]. If it is 0, the verifier drops the code that depends on it.
#[unsafe(no_mangle)]
static SENDS_EVENTS: Global<u8> = Global::new(1);

/// Returns true if events are sent.
#[inline(always)]
pub(crate) fn sends_events() -> bool {
    SENDS_EVENTS.load() != 0
}

/// Sends an event of this source, or counts it as lost. The daemon polls the ring, so nothing wakes it.
#[inline(always)]
pub(crate) fn send_event(work: Work, kind: Kind, now: Nanos, of: &Of, event: impl FnOnce() -> Event) {
    let Some(tally) = or_fault(tally(work, kind), Fault::EventTalliesLookup) else { return };
    let room = if tally.spend(now) && has_room(kind) { EVENTS.reserve::<Event>(0) } else { None };
    let Some(mut room) = room else {
        tally.lost = tally.lost.wrapping_add(1);
        return;
    };
    room.write(Event { prefix: of.prefix(), family: of.family(), ..event() });
    room.submit(BPF_RB_NO_WAKEUP.into());
    tally.sent = tally.sent.wrapping_add(1);
}

/// Sends a step of this source, or counts it as lost. The daemon polls the ring, so nothing wakes it.
#[inline(always)]
pub(crate) fn send_step(of: &Of, step: Step) {
    let Some(mut room) = STEPS.reserve::<Step>(0) else {
        fault(Fault::StepsReserve);
        return;
    };
    room.write(Step { prefix: of.prefix(), family: of.family(), ..step });
    room.submit(BPF_RB_NO_WAKEUP.into());
}

/// Returns true if the ring has room for an event of this kind. Its last part is for bans alone, so that an attacker
/// with many refused sources cannot hide them.
#[inline(always)]
fn has_room(kind: Kind) -> bool {
    kind == Kind::Ban || EVENTS.query(BPF_RB_AVAIL_DATA.into()) < u64::from(EVENTS_OF_REFUSALS_BYTES)
}

/// Returns this CPU's tally of events of a kind. Packets and orders have separate tallies, as a packet may interrupt an
/// order.
#[inline(always)]
fn tally(work: Work, kind: Kind) -> Option<&'static mut EventTally> {
    let tally = EVENT_TALLIES.get_ptr_mut(work.0 * Kind::COUNT + kind as u32)?;
    // SAFETY: this CPU's element, which lives as long as the map; it is borrowed while one event is sent.
    Some(unsafe { &mut *tally })
}
