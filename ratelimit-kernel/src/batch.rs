//! Batch access to map entries: 1 M entries of a hash map are read in a third of a second instead of three. aya has no
//! batch operations, so this module calls `BPF_MAP_LOOKUP_BATCH` and the like (Linux 5.6, for tries 5.13) itself. Knows
//! file descriptors and bytes.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

use super::bpf::{self, Command};

/// Number of entries requested at once. The kernel returns whole hash buckets, so a batch may be shorter.
const BATCH_LEN: usize = 16_384;
/// Bytes of a position in a hash map. The position is a bucket number of 32 bits; the extra bytes are harmless.
const BUCKET_LEN: usize = 8;

/// `struct { ... } batch` of `union bpf_attr`.
#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// Visits every entry of the hash map `map`, whose keys and values have these sizes in bytes. An entry that is added,
/// removed or moved meanwhile may be missed or seen twice.
///
/// # Errors
/// Returns the kernel's error: `EINVAL` from kernels before 5.6.
pub(super) fn visit(
    map: BorrowedFd<'_>,
    key_len: usize,
    value_len: usize,
    max_entries: u32,
    mut entry: impl FnMut(&[u8], &[u8]),
) -> io::Result<()> {
    // Each batch advances by at least one bucket, and there are at most twice as many buckets as entries.
    let batches = 2 * u64::from(max_entries).next_power_of_two();
    Batch::new(key_len, value_len, max_entries).visit_all(map, BUCKET_LEN, batches, &mut entry)
}

/// Visits the entries of one batch, beginning at position `from`. Returns the next position, or none at the end.
///
/// # Errors
/// Returns the kernel's error: `EINVAL` from kernels before 5.6.
pub(super) fn visit_part(
    map: BorrowedFd<'_>,
    key_len: usize,
    value_len: usize,
    max_entries: u32,
    from: Option<u64>,
    mut entry: impl FnMut(&[u8], &[u8]),
) -> io::Result<Option<u64>> {
    let (from, mut next) = (from.map(u64::to_ne_bytes), [0; BUCKET_LEN]);
    let mut batch = Batch::new(key_len, value_len, max_entries);
    let more = batch.visit(map, from.as_ref().map(<[u8; BUCKET_LEN]>::as_slice), &mut next, &mut entry)?;
    Ok(more.then(|| u64::from_ne_bytes(next)))
}

/// Visits every entry of the trie `map`, whose keys and values have these sizes in bytes. A position is a key.
///
/// # Errors
/// Returns the kernel's error: `EINVAL` or `ENOTSUPP` from kernels before 5.13.
pub(super) fn visit_trie(
    map: BorrowedFd<'_>,
    key_len: usize,
    value_len: usize,
    max_entries: u32,
    mut entry: impl FnMut(&[u8], &[u8]),
) -> io::Result<()> {
    let mut batch = Batch::new(key_len, value_len, max_entries);
    // Every batch except the last is full.
    let batches = u64::from(max_entries) / batch.len as u64;
    batch.visit_all(map, key_len, batches, &mut entry)
}

/// Buffers for the entries of one call.
struct Batch {
    key_len: usize,
    value_len: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
    len: usize,
}

impl Batch {
    fn new(key_len: usize, value_len: usize, max_entries: u32) -> Self {
        let len = BATCH_LEN.min(max_entries as usize).max(1);
        Self { key_len, value_len, keys: vec![0; len * key_len], values: vec![0; len * value_len], len }
    }

    /// Visits the entries of all batches, at most `batches` + 1. A position has `position_len` bytes.
    fn visit_all(
        &mut self,
        map: BorrowedFd<'_>,
        position_len: usize,
        batches: u64,
        entry: &mut impl FnMut(&[u8], &[u8]),
    ) -> io::Result<()> {
        let (mut from, mut next) = (None::<Vec<u8>>, vec![0; position_len]);
        for _ in 0..=batches {
            if !self.visit(map, from.as_deref(), &mut next, entry)? {
                break;
            }
            from = Some(next.clone());
        }
        Ok(())
    }

    /// Visits the entries of one batch. Writes the next position to `next` and returns whether more entries follow.
    fn visit(
        &mut self,
        map: BorrowedFd<'_>,
        from: Option<&[u8]>,
        next: &mut [u8],
        entry: &mut impl FnMut(&[u8], &[u8]),
    ) -> io::Result<bool> {
        loop {
            let mut attr = BatchAttr {
                in_batch: from.map_or(0, |position| position.as_ptr() as u64),
                out_batch: next.as_mut_ptr() as u64,
                keys: self.keys.as_mut_ptr() as u64,
                values: self.values.as_mut_ptr() as u64,
                count: u32::try_from(self.len).unwrap_or(u32::MAX),
                map_fd: map.as_raw_fd().unsigned_abs(),
                ..BatchAttr::default()
            };
            // SAFETY: the buffers hold `count` keys and values, and a position each, and live until the call returns.
            let error = unsafe { bpf::call(Command::MAP_LOOKUP_BATCH, &mut attr) }.err();
            match error.as_ref().and_then(io::Error::raw_os_error) {
                // One bucket alone has more entries than the buffers. Nothing was copied.
                Some(libc::ENOSPC) => {
                    self.len *= 2;
                    self.keys.resize(self.len * self.key_len, 0);
                    self.values.resize(self.len * self.value_len, 0);
                    continue;
                }
                // This is the last batch. It may hold entries.
                None | Some(libc::ENOENT) => {}
                Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
            }
            self.entries(attr.count).for_each(|(key, value)| entry(key, value));
            return Ok(error.is_none());
        }
    }

    /// Returns the entries that a call has written to the buffers.
    fn entries(&self, count: u32) -> impl Iterator<Item = (&[u8], &[u8])> {
        let entries = self.keys.chunks_exact(self.key_len).zip(self.values.chunks_exact(self.value_len));
        entries.take(count as usize)
    }
}

/// Position of the entry at which a batch stopped, and the kernel's error.
#[derive(Debug)]
pub(super) struct Stopped {
    pub(super) at: usize,
    pub(super) error: io::Error,
}

/// Maximum number of entries changed by one call. A call cannot be interrupted, so it should take only milliseconds.
const CHANGED_LEN: usize = 16_384;
/// Number of attempts for an entry that memory is missing for, and the pause between them. A trie takes only memory
/// that is free at once (`lpm_trie_node_alloc`, kernel/bpf/lpm_trie.c, Linux 6.18).
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// Writes entries: `keys` with the value of each.
///
/// # Errors
/// Stops at the first entry that the kernel refuses. The entries before are written.
///
/// # Safety
/// `K` and `V` must have the sizes of the map's keys and values.
pub(super) unsafe fn update<K: Copy, V: Copy>(map: BorrowedFd<'_>, keys: &[K], values: &[V]) -> Result<(), Stopped> {
    // SAFETY: the caller guarantees the sizes.
    let write =
        |part: Range<usize>| unsafe { change(Command::MAP_UPDATE_BATCH, map, &keys[part.clone()], &values[part]) };
    in_parts(keys.len(), write, || std::thread::sleep(PAUSE))
}

/// Changes `len` entries, a part in each call. If memory is missing for an entry, retries it after a pause.
///
/// # Errors
/// Stops at the first entry that the kernel refuses.
fn in_parts(
    len: usize,
    mut change: impl FnMut(Range<usize>) -> Result<(), Stopped>,
    mut pause: impl FnMut(),
) -> Result<(), Stopped> {
    let (mut at, mut tries) = (0, 0);
    while at < len {
        let end = len.min(at + CHANGED_LEN);
        let Err(stopped) = change(at..end) else {
            at = end;
            continue;
        };
        tries = if stopped.at == 0 { tries + 1 } else { 1 };
        at += stopped.at;
        if stopped.error.raw_os_error() != Some(libc::ENOMEM) || tries > TRIES {
            return Err(Stopped { at, ..stopped });
        }
        pause();
    }
    Ok(())
}

/// Removes the entries of these keys.
///
/// # Errors
/// Stops at the first missing key. The entries before are removed.
///
/// # Safety
/// `K` must have the size of the map's keys.
pub(super) unsafe fn remove<K: Copy>(map: BorrowedFd<'_>, keys: &[K]) -> Result<(), Stopped> {
    for (begin, keys) in (0..).step_by(CHANGED_LEN).zip(keys.chunks(CHANGED_LEN)) {
        // SAFETY: the caller guarantees the size, and no value is read.
        let removed = unsafe { change::<K, ()>(Command::MAP_DELETE_BATCH, map, keys, &[]) };
        removed.map_err(|stopped| Stopped { at: begin + stopped.at, ..stopped })?;
    }
    Ok(())
}

/// # Safety
/// `K` and `V` must have the sizes of the map's keys and values. If the command reads values, there must be one for
/// each key.
unsafe fn change<K, V>(command: Command, map: BorrowedFd<'_>, keys: &[K], values: &[V]) -> Result<(), Stopped> {
    let mut attr = BatchAttr {
        keys: keys.as_ptr() as u64,
        values: values.as_ptr() as u64,
        count: u32::try_from(keys.len()).unwrap_or(u32::MAX),
        map_fd: map.as_raw_fd().unsigned_abs(),
        ..BatchAttr::default()
    };
    // SAFETY: the slices hold `count` keys and values, and live until the call returns.
    let called = unsafe { bpf::call(command, &mut attr) };
    called.map(|_| ()).map_err(|error| Stopped { at: attr.count as usize, error })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(at: usize, errno: i32) -> Result<(), Stopped> {
        Err(Stopped { at, error: io::Error::from_raw_os_error(errno) })
    }

    #[test]
    fn an_entry_without_memory_is_tried_again_and_each_is_written_once() {
        // Memory suffices for a thousand entries, then for none in three calls.
        let (mut written, mut calls, mut pauses) = (Vec::new(), 0, 0);
        let write = |part: Range<usize>| {
            calls += 1;
            let taken = if calls % 4 == 1 { part.len().min(1000) } else { 0 };
            written.extend(part.start..part.start + taken);
            if taken == part.len() { Ok(()) } else { stopped(taken, libc::ENOMEM) }
        };
        in_parts(20_500, write, || pauses += 1).unwrap();
        assert_eq!(written, Vec::from_iter(0..20_500));
        assert_eq!((calls, pauses), (81, 80), "a pause before each further call");
    }

    #[test]
    fn lasting_lack_of_memory_stops_at_its_entry_and_other_errors_at_once() {
        let (mut calls, mut pauses) = (0, 0);
        let write = |_| {
            calls += 1;
            stopped(if calls == 1 { 7 } else { 0 }, libc::ENOMEM)
        };
        let ended = in_parts(100, write, || pauses += 1).unwrap_err();
        assert_eq!((ended.at, ended.error.raw_os_error()), (7, Some(libc::ENOMEM)));
        assert_eq!((calls, pauses), (TRIES + 1, TRIES));

        let ended = in_parts(100, |_| stopped(3, libc::E2BIG), || panic!("no pause")).unwrap_err();
        assert_eq!((ended.at, ended.error.raw_os_error()), (3, Some(libc::E2BIG)));
    }
}
