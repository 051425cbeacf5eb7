//! Reading a whole hash map in batches: 1 M entries in a third of a second, where one entry a call takes three seconds.
//! aya has no batch operations, so this is `BPF_MAP_LOOKUP_BATCH` (Linux 5.6) by hand. Knows file descriptors and bytes.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Entries asked for at once. The kernel hands out whole hash buckets, so a batch may come back shorter.
const BATCH_LEN: usize = 16_384;

/// The command's number in `enum bpf_cmd`.
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;

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
    let mut batch_len = BATCH_LEN.min(max_entries as usize).max(1);
    let mut keys = vec![0_u8; batch_len * key_len];
    let mut values = vec![0_u8; batch_len * value_len];
    // The position is a bucket number of 32 bits for hash maps; room for more does no harm.
    let mut position = 0_u64;
    let mut next = 0_u64;
    let mut is_first = true;
    // Each batch moves on by at least one bucket, and there are at most twice as many buckets as entries.
    for _ in 0..=2 * u64::from(max_entries).next_power_of_two() {
        let mut attr = BatchAttr {
            in_batch: if is_first { 0 } else { (&raw const position) as u64 },
            out_batch: (&raw mut next) as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: u32::try_from(batch_len).unwrap_or(u32::MAX),
            map_fd: map.as_raw_fd().unsigned_abs(),
            ..BatchAttr::default()
        };
        // SAFETY: the buffers hold `count` keys and values, and live until the call returns.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_LOOKUP_BATCH, &raw mut attr, size_of::<BatchAttr>()) };
        let error = (result < 0).then(io::Error::last_os_error);
        match error.as_ref().and_then(io::Error::raw_os_error) {
            // One bucket alone has more entries than the buffers: nothing was copied.
            Some(libc::ENOSPC) => {
                batch_len *= 2;
                keys.resize(batch_len * key_len, 0);
                values.resize(batch_len * value_len, 0);
                continue;
            }
            // The last batch; it may hold entries.
            None | Some(libc::ENOENT) => {}
            Some(_) => return Err(error.unwrap_or_else(io::Error::last_os_error)),
        }
        let count = attr.count as usize;
        for (key, value) in keys.chunks_exact(key_len).zip(values.chunks_exact(value_len)).take(count) {
            entry(key, value);
        }
        if error.is_some() {
            return Ok(());
        }
        position = next;
        is_first = false;
    }
    Ok(())
}
