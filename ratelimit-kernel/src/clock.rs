//! The kernel's information about its clocks. Read only.

use std::io;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Values of `TIME_ERROR` and `STA_UNSYNC`, include/uapi/linux/timex.h.
const TIME_ERROR: i32 = 5;
const UNSYNCHRONISED: i32 = 0x40;

/// Returns whether the wall clock is synchronised with a server, from adjtimex(2).
///
/// # Errors
/// Returns the kernel's error.
pub fn is_synchronised() -> io::Result<bool> {
    // SAFETY: the structure has only integers, for which 0 is a valid value. With no mode set, nothing is changed.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `state` lives until the call returns.
    match unsafe { libc::adjtimex(&raw mut state) } {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer != TIME_ERROR && state.status & UNSYNCHRONISED == 0),
    }
}

/// Returns how long the host was suspended since it started. The packet path's clock stood still meanwhile.
///
/// # Errors
/// Returns the kernel's error.
pub fn suspended() -> io::Result<Duration> {
    let monotonic = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    let since_start = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME)?);
    Ok(since_start.saturating_sub(monotonic))
}
