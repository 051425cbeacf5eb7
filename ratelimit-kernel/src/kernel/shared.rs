//! A kernel array mapped into this process: read in place, and changed atomically beside packets.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

/// A map made with `BPF_F_MMAPABLE` (Linux 5.5), as the consecutive words of its values. Unmapped on drop.
#[derive(Debug)]
pub(super) struct Shared<'a> {
    start: NonNull<AtomicU64>,
    words: usize,
    map: PhantomData<BorrowedFd<'a>>,
}

impl<'a> Shared<'a> {
    /// Maps an array whose values have `bytes` bytes in total, each a multiple of 8.
    ///
    /// # Errors
    /// Returns the kernel's error: `EPERM` if the map was not made mappable.
    pub(super) fn of(map: BorrowedFd<'a>, bytes: usize) -> io::Result<Self> {
        // SAFETY: this makes a new mapping at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, map.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { start, words: bytes / size_of::<u64>(), map: PhantomData })
    }

    /// Returns the words, which packets may change at any time.
    pub(super) const fn words(&self) -> &[AtomicU64] {
        // SAFETY: `words` words are mapped, aligned to a page, as long as `self` lives. Every other writer writes whole
        // words.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        // SAFETY: `of` made this mapping, and it is unmapped only here.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.words * size_of::<u64>()) };
    }
}
