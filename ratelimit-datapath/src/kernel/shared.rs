//! An array of the kernel's as memory of this process: read in place, and changed as packets change it.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

/// A map made with `BPF_F_MMAPABLE` (Linux 5.5), as the words of its values, one after the other. Unmapped when it is
/// dropped.
#[derive(Debug)]
pub(super) struct Shared<'a> {
    start: NonNull<AtomicU64>,
    words: usize,
    map: PhantomData<BorrowedFd<'a>>,
}

impl<'a> Shared<'a> {
    /// An array whose values are so many bytes in all, each a multiple of 8.
    ///
    /// # Errors
    /// What the kernel answers; `EPERM` where the map was not made for it.
    pub(super) fn of(map: BorrowedFd<'a>, bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping, wherever there is room.
        let start = unsafe {
            libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, map.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { start, words: bytes / size_of::<u64>(), map: PhantomData })
    }

    /// The words, which packets change at any time.
    pub(super) const fn words(&self) -> &[AtomicU64] {
        // SAFETY: so many words are mapped, aligned to a page, as long as `self` lives; every other
        // writer writes word by word.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        // SAFETY: what `of` has mapped, once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.words * size_of::<u64>()) };
    }
}
