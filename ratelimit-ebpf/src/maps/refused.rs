//! The notes of who is refused for how long: looked at by every packet, written when a limit or a ban refuses.

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd};
use core::ptr::NonNull;

use ratelimit_common::layout::{Config, Fault, LINES_PER_WORD};
use ratelimit_common::refused::{BUSY, Key, Line, Note, ONE_DROPPED, Term, WAYS};
use ratelimit_common::time::Nanos;

use super::{NOTED, REFUSED, SourceV4, SourceV6, Sources, fault};

/// The number of the line that notes of this key are in first.
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

/// The word that says whether there may be a note in a line, or for it in the one beside.
#[inline(always)]
fn noted(place: u32) -> Option<*mut u64> {
    NOTED.get_ptr_mut(place / LINES_PER_WORD)
}

/// What refuses a packet of this key, if it is noted; counts the packet there.
///
/// A note that is being written is not believed. One that is overwritten between the look at its key and the look at its end
/// may refuse one packet of another source, in that instant only.
#[inline(always)]
pub(crate) fn refused(config: &Config, key: Key, now: impl Fn() -> Nanos) -> Option<Term> {
    let place = noted_place(config, key)?;
    if let Some(note) = own(line(place)?, key) {
        return holding(note, now());
    }
    let term = beside(place, key.source, key.what, now().0);
    if term == 0 { None } else { Some(Term::of(term)) }
}

/// Whether there may be a note of this key.
#[inline(always)]
pub(crate) fn may_be_noted(config: &Config, key: Key) -> bool {
    noted_place(config, key).is_some()
}

/// The number of the line that notes of this key are in first, if there may be one.
#[inline(always)]
fn noted_place(config: &Config, key: Key) -> Option<u32> {
    // What has no notes has no line either, and must not tidy up another's.
    if key.what == Key::NONE.what {
        return None;
    }
    let place = place(config, key);
    let word = noted(place)?;
    // SAFETY: the lookup gave a pointer to the word, valid for the run of the program. Volatile: other CPUs write it.
    let bits = unsafe { word.read_volatile() };
    if bits >> (place % LINES_PER_WORD) & 1 == 0 { None } else { Some(place) }
}

/// The note of this key in this line.
#[inline(always)]
fn own(line: *mut Line, key: Key) -> Option<NonNull<Note>> {
    for way in 0..WAYS {
        // SAFETY: the lookup gave a pointer to a whole line, valid for the run of the program; each way is in it.
        let note = unsafe { (&raw mut (*line).0).cast::<Note>().add(way) };
        // SAFETY: as above. Volatile: other CPUs write it.
        if unsafe { (&raw const (*note).source).read_volatile() } != key.source {
            continue;
        }
        // SAFETY: as above.
        if unsafe { (&raw const (*note).what).read_volatile() } == key.what {
            return NonNull::new(note);
        }
    }
    None
}

/// What a note says, if it holds; then the packet is counted there.
#[inline(always)]
fn holding(note: NonNull<Note>, now: Nanos) -> Option<Term> {
    let note = note.as_ptr();
    // SAFETY: as in `own`.
    let term = Term::of(unsafe { (&raw const (*note).until).read_volatile() });
    if !term.holds(now) {
        return None;
    }
    // SAFETY: as in `own`, and map values are aligned to 8 bytes.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(&raw mut (*note).counted, ONE_DROPPED) };
    Some(term)
}

/// The rest of [`refused`], for few: looks in the line beside, where a note is whose own line was full; returns its term, counted, or 0.
/// Where neither line has a note that holds, they are taken out of [`NOTED`], so that the next packet need not look. A note that is written
/// at that time may be overlooked until it is written again.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn beside(place: u32, source: u64, what: u64, now: u64) -> u64 {
    let (Some(first), Some(second), Some(word)) = (line(place), line(place ^ 1), noted(place)) else { return 0 };
    let now = Nanos(now);
    if let Some(note) = own(second, Key { source, what }) {
        return holding(note, now).map_or(0, Term::word);
    }
    for line in [first, second] {
        for way in 0..WAYS {
            // SAFETY: as in `own`.
            let note = unsafe { (&raw mut (*line).0).cast::<Note>().add(way) };
            // SAFETY: as in `own`.
            let until = unsafe { (&raw const (*note).until).read_volatile() };
            // SAFETY: as in `own`.
            let of = unsafe { (&raw const (*note).what).read_volatile() };
            if until == BUSY || Term::of(until).holds(now) && of >> 32 == what >> 32 {
                return 0;
            }
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

/// Notes that what has this key is refused: in the place of a note of its own, else of one that has ended, in its line or in the one
/// beside, else of one that ends sooner. Where all last as long none gives way: its source is judged by its window then, and the others
/// do not take turns at losing theirs. What a note has dropped that gives way is counted where it belongs.
#[inline(always)]
pub(crate) fn note_refused(config: &Config, key: Key, slot: u32, term: Term, now: Nanos) {
    let place = place(config, key);
    let Some(word) = noted(place) else { return };
    let mut chosen = 0;
    let mut least = term.word();
    for candidate in 0..2 * WAYS as u32 {
        let Some(note) = candidate_at(place, candidate) else { return };
        // SAFETY: as in `own`.
        let until = unsafe { (&raw const (*note).until).read_volatile() };
        // SAFETY: as in `own`.
        let source = unsafe { (&raw const (*note).source).read_volatile() };
        // SAFETY: as in `own`.
        let what = unsafe { (&raw const (*note).what).read_volatile() };
        let is_own = source == key.source && what as u32 == key.what as u32;
        let is_of_now = Term::of(until).holds(now) && what >> 32 == key.what >> 32;
        let rank = if until == BUSY {
            u64::MAX
        } else if is_own {
            0
        } else if is_of_now {
            until
        } else {
            1
        };
        if rank < least {
            (least, chosen) = (rank, candidate);
        }
    }
    if least == term.word() {
        return;
    }
    let Some(note) = candidate_at(place, super::forget(chosen)) else { return };
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
    // SAFETY: as in `own`. Nobody else writes it while it is busy, but for packets that are counted by it meanwhile: those
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

/// One of the places that a note may have: those of its line, then those of the one beside.
#[inline(always)]
fn candidate_at(place: u32, candidate: u32) -> Option<*mut Note> {
    let line = line(place ^ (candidate / WAYS as u32 & 1))?;
    // SAFETY: as in `own`.
    Some(unsafe { (&raw mut (*line).0).cast::<Note>().add(candidate as usize & (WAYS - 1)) })
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
