//! Waiting for what is read to come to rest: logs and counts, which follow what clients did.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// How long it must not change until it has come to rest.
const QUIET: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(50);
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// What `read` says once it does not change any more.
///
/// # Errors
/// If `read` fails, or what it says still changes after 10 seconds.
pub fn settled<T: PartialEq + Copy + Debug>(read: impl Fn() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let (mut last, mut since) = (read()?, Instant::now());
    while since.elapsed() < QUIET {
        ensure!(start.elapsed() < SETTLES_WITHIN, "log and count do not come to rest: {last:?}");
        thread::sleep(LOOK);
        let now = read()?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(last)
}
