//! Many entries of a map a call: 1 M of a hash map are read in a third of a second, where one entry a call takes three.
//! aya has no batch operations, so this is `BPF_MAP_LOOKUP_BATCH` and its kin (Linux 5.6, of tries 5.13) by hand. Knows
//! file descriptors and bytes.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

use super::bpf::{self, Command};

/// Entries asked for at once. The kernel hands out whole hash buckets, so a batch may come back shorter.
const BATCH_LEN: usize = 16_384;
/// Bytes of a position in a hash map: the number of a bucket, of 32 bits; room for more does no harm.
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

/// Visits every entry of the hash map `map`, whose keys and values have these sizes in bytes. An entry that comes,
/// goes or moves meanwhile may be missed, or seen twice.
///
/// # Errors
/// What the kernel answers; `EINVAL` from kernels before 5.6.
pub(super) fn visit(
    map: BorrowedFd<'_>,
    key_len: usize,
    value_len: usize,
    max_entries: u32,
    mut entry: impl FnMut(&[u8], &[u8]),
) -> io::Result<()> {
    // Each batch moves on by at least one bucket, and there are at most twice as many buckets as entries.
    let batches = 2 * u64::from(max_entries).next_power_of_two();
    Batch::new(key_len, value_len, max_entries).visit_all(map, BUCKET_LEN, batches, &mut entry)
}

/// Visits the entries of one batch, from where another has ended, and tells where this one has; none where that is
/// the end.
///
/// # Errors
/// What the kernel answers; `EINVAL` from kernels before 5.6.
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

/// Visits every entry of the trie `map`, whose keys and values have these sizes in bytes. Its position is a key.
///
/// # Errors
/// What the kernel answers; `EINVAL` or `ENOTSUPP` from kernels before 5.13.
pub(super) fn visit_trie(
    map: BorrowedFd<'_>,
    key_len: usize,
    value_len: usize,
    max_entries: u32,
    mut entry: impl FnMut(&[u8], &[u8]),
) -> io::Result<()> {
    let mut batch = Batch::new(key_len, value_len, max_entries);
    // Each batch but the last is full.
    let batches = u64::from(max_entries) / batch.len as u64;
    batch.visit_all(map, key_len, batches, &mut entry)
}

/// Room for the entries of one call.
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

    /// Visits the entries of batch after batch, as many as there are at most. A position has so many bytes.
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

    /// Visits the entries of one batch, and tells whether more follow, from `next` on.
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
                // One bucket alone has more entries than the buffers: nothing was copied.
                Some(libc::ENOSPC) => {
                    self.len *= 2;
                    self.keys.resize(self.len * self.key_len, 0);
                    self.values.resize(self.len * self.value_len, 0);
                    continue;
                }
                // The last batch; it may hold entries.
                None | Some(libc::ENOENT) => {}
                Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
            }
            self.entries(attr.count).for_each(|(key, value)| entry(key, value));
            return Ok(error.is_none());
        }
    }

    /// Those that a call has returned.
    fn entries(&self, count: u32) -> impl Iterator<Item = (&[u8], &[u8])> {
        let entries = self.keys.chunks_exact(self.key_len).zip(self.values.chunks_exact(self.value_len));
        entries.take(count as usize)
    }
}

/// Why a batch ended before its end: which entry it was, and what the kernel answered.
#[derive(Debug)]
pub(super) struct Stopped {
    pub(super) at: usize,
    pub(super) error: io::Error,
}

/// Entries changed by one call: nothing ends a call, so it is to take milliseconds.
const CHANGED_LEN: usize = 16_384;
/// How often an entry is tried again for which there is no memory, and after which pause: a trie takes what is free at
/// once, without waiting for what can be made free (`lpm_trie_node_alloc`, kernel/bpf/lpm_trie.c, Linux 6.18).
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// Writes entries: so many keys, and the value of each.
///
/// # Errors
/// At the first entry that is not taken; those before it are written.
///
/// # Safety
/// `K` and `V` have the sizes of the map's keys and values.
pub(super) unsafe fn update<K: Copy, V: Copy>(map: BorrowedFd<'_>, keys: &[K], values: &[V]) -> Result<(), Stopped> {
    // SAFETY: as promised.
    let write =
        |part: Range<usize>| unsafe { change(Command::MAP_UPDATE_BATCH, map, &keys[part.clone()], &values[part]) };
    in_parts(keys.len(), write, || std::thread::sleep(PAUSE))
}

/// Changes so many entries, a part each call, and tries one again after a pause for which there is no memory now.
///
/// # Errors
/// At the first entry that is not taken.
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
/// At the first that is not there; those before it are removed.
///
/// # Safety
/// `K` has the size of the map's keys.
pub(super) unsafe fn remove<K: Copy>(map: BorrowedFd<'_>, keys: &[K]) -> Result<(), Stopped> {
    for (begin, keys) in (0..).step_by(CHANGED_LEN).zip(keys.chunks(CHANGED_LEN)) {
        // SAFETY: as promised; no value is read.
        let removed = unsafe { change::<K, ()>(Command::MAP_DELETE_BATCH, map, keys, &[]) };
        removed.map_err(|stopped| Stopped { at: begin + stopped.at, ..stopped })?;
    }
    Ok(())
}

/// # Safety
/// `K` and `V` have the sizes of the map's keys and, where the command reads any, values, of which there are as many.
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
        // There is memory for a thousand entries, then for none three times.
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
    fn where_there_is_no_memory_for_long_it_ends_at_that_entry_and_at_once_for_any_other_error() {
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
