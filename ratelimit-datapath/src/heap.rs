//! The memory that the C library keeps after it was freed.

/// Gives memory that was freed back to the system, in every arena. Without glibc it does nothing: there, what is freed goes
/// back by itself, or cannot. Takes about a millisecond.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
