//! What the kernel says of its clocks. Read only.

use std::io;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// `TIME_ERROR` and `STA_UNSYNC`, include/uapi/linux/timex.h.
const TIME_ERROR: i32 = 5;
const UNSYNCHRONISED: i32 = 0x40;

/// Whether the wall clock is held to a server's, by adjtimex(2).
///
/// # Errors
/// What the kernel answers.
pub fn is_synchronised() -> io::Result<bool> {
    // SAFETY: integers alone, for which 0 is a value: with no mode set nothing is changed.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: it lives until the call returns.
    match unsafe { libc::adjtimex(&raw mut state) } {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer != TIME_ERROR && state.status & UNSYNCHRONISED == 0),
    }
}

/// How long the host has been suspended since it started: the packet path's clock stood still.
///
/// # Errors
/// What the kernel answers.
pub fn suspended() -> io::Result<Duration> {
    let monotonic = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    let since_start = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME)?);
    Ok(since_start.saturating_sub(monotonic))
}
