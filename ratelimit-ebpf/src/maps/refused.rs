//! The notes of who is refused for how long: looked at by every packet, written when a limit or a ban refuses.

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd};

use ratelimit_common::layout::{Config, Fault, LINES_PER_WORD};
use ratelimit_common::refused::{BUSY, Key, Line, Note, ONE_DROPPED, Term, WAYS};
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Verdict;

use super::{NOTED, REFUSED, SourceV4, SourceV6, Sources, fault};

/// The number of the line that notes of this key are in.
#[inline(always)]
fn place(config: &Config, key: Key) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "any of its bits will do")]
    let place = key.place(config.seed) as u32;
    place & config.lines_mask
}

#[inline(always)]
fn line(place: u32) -> Option<*mut Line> {
    let line = REFUSED.get_ptr_mut(place);
    if line.is_none() {
        fault(Fault::RefusedLookup);
    }
    line
}

/// The word that says whether there may be a note in a line.
#[inline(always)]
fn noted(place: u32) -> Option<*mut u64> {
    NOTED.get_ptr_mut(place / LINES_PER_WORD)
}

/// What refuses a packet of this key, if it is noted; counts the packet there.
///
/// A note that is being written is not believed. One that is overwritten between the look at its key and the look at its end
/// may refuse one packet of another source, in that instant only.
#[inline(always)]
pub(crate) fn refused(config: &Config, key: Key, now: impl Fn() -> Nanos) -> Option<Verdict> {
    let place = place(config, key);
    let word = noted(place)?;
    // SAFETY: the lookup gave a pointer to the word, valid for the run of the program. Volatile: other CPUs write it.
    let bits = unsafe { word.read_volatile() };
    if bits >> (place % LINES_PER_WORD) & 1 == 0 {
        return None;
    }
    let line = line(place)?;
    for way in 0..WAYS {
        // SAFETY: the lookup gave a pointer to a whole line, valid for the run of the program; each way is in it.
        let note = unsafe { (&raw mut (*line).0).cast::<Note>().add(way) };
        // SAFETY: as above. Volatile: other CPUs write it.
        if unsafe { (&raw const (*note).source).read_volatile() } != key.source {
            continue;
        }
        // SAFETY: as above.
        if unsafe { (&raw const (*note).what).read_volatile() } != key.what {
            continue;
        }
        // SAFETY: as above.
        let term = Term::of(unsafe { (&raw const (*note).until).read_volatile() });
        if !term.holds(now()) {
            return None;
        }
        // SAFETY: as above, and map values are aligned to 8 bytes.
        unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(&raw mut (*note).counted, ONE_DROPPED) };
        return Some(term.verdict());
    }
    let _always_zero = clear_if_over(place, key.what, now().0);
    None
}

/// Takes a line out of [`NOTED`] where no note in it holds any more, so that the next packet need not look. One that is written at that time
/// may be overlooked until it is written again. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn clear_if_over(place: u32, what: u64, now: u64) -> u32 {
    let (Some(line), Some(word)) = (line(place), noted(place)) else { return 0 };
    for way in 0..WAYS {
        // SAFETY: as in `refused`.
        let note = unsafe { (&raw mut (*line).0).cast::<Note>().add(way) };
        // SAFETY: as in `refused`.
        let (until, of) =
            unsafe { ((&raw const (*note).until).read_volatile(), (&raw const (*note).what).read_volatile()) };
        if until == BUSY || Term::of(until).holds(Nanos(now)) && of >> 32 == what >> 32 {
            return 0;
        }
    }
    // SAFETY: as in `refused`.
    let bits = unsafe { word.read_volatile() };
    // SAFETY: as in `refused`, and map values are aligned to 8 bytes.
    let _ = unsafe {
        atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(
            word,
            bits,
            bits & !(1 << (place % LINES_PER_WORD)),
        )
    };
    0
}

/// Notes that what has this key is refused, in the place of a note of its own, else of one that has ended, else of the
/// one that ends first. What that one has dropped is counted where it belongs.
#[inline(always)]
pub(crate) fn note_refused(config: &Config, key: Key, slot: u32, term: Term, now: Nanos) {
    let place = place(config, key);
    let (Some(line), Some(word)) = (line(place), noted(place)) else { return };
    let mut chosen = 0;
    let mut least = u64::MAX;
    for way in 0..WAYS {
        // SAFETY: as in `refused`.
        let note = unsafe { (&raw mut (*line).0).cast::<Note>().add(way) };
        // SAFETY: as in `refused`.
        let (until, source, what) = unsafe {
            (
                (&raw const (*note).until).read_volatile(),
                (&raw const (*note).source).read_volatile(),
                (&raw const (*note).what).read_volatile(),
            )
        };
        let is_own = source == key.source && what as u32 == key.what as u32;
        let is_of_now = Term::of(until).holds(now) && what >> 32 == key.what >> 32;
        let rank = if is_own {
            0
        } else if is_of_now {
            until
        } else {
            1
        };
        if rank < least {
            (least, chosen) = (rank, way);
        }
    }
    // SAFETY: as in `refused`; `chosen` is one of the ways.
    let note = unsafe { (&raw mut (*line).0).cast::<Note>().add(super::forget(chosen as u32) as usize & (WAYS - 1)) };
    // SAFETY: as in `refused`.
    let before = unsafe { (&raw const (*note).until).read_volatile() };
    if before == BUSY {
        return;
    }
    // SAFETY: as in `refused`, and map values are aligned to 8 bytes.
    let (_, is_ours) = unsafe {
        atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(
            &raw mut (*note).until,
            before,
            BUSY,
        )
    };
    if !is_ours {
        return;
    }
    // SAFETY: as in `refused`. Nobody else writes it while it is busy, but for packets that are counted by it meanwhile: those
    // that are counted between this and the next write are lost to their source's count, and to nothing else.
    let counted = unsafe { (&raw const (*note).counted).read_volatile() };
    if counted >> 32 != 0 {
        // SAFETY: as in `refused`.
        let (source, what) = unsafe { ((*note).source, (*note).what) };
        let _always_zero = count_dropped(source, what, counted, before);
    }
    // SAFETY: as in `refused`.
    unsafe {
        (&raw mut (*note).source).write_volatile(key.source);
        (&raw mut (*note).what).write_volatile(key.what);
        (&raw mut (*note).counted).write_volatile(slot.into());
        // Last: only now is it believed.
        (&raw mut (*note).until).write_volatile(term.word());
    }
    // SAFETY: as in `refused`.
    let bits = unsafe { word.read_volatile() };
    let noted = bits | 1 << (place % LINES_PER_WORD);
    if noted != bits {
        // SAFETY: as in `refused`, and map values are aligned to 8 bytes. Where another CPU was first, the next refusal notes it again.
        let _ =
            unsafe { atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(word, bits, noted) };
    }
}

/// Counts what a note has dropped where its window or ban counts it, if that is still remembered. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_dropped(source: u64, what: u64, counted: u64, until: u64) -> u32 {
    let note = Note { until, source, what, counted };
    if note.is_ipv6() {
        count_in(&SourceV6(source.to_ne_bytes()), note);
    } else {
        count_in(&SourceV4((source as u32).to_ne_bytes()), note);
    }
    0
}

#[inline(always)]
fn count_in<S: Sources>(source: &S, note: Note) {
    if Term::of(note.until).is_ban() {
        if let Some(ban) = source.ban(note.slot()) {
            ban.count_dropped(note.dropped());
        }
    } else if let Some(window) = source.window(note.slot()) {
        window.add_refused(note.dropped());
    }
}
