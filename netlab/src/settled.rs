//! Waiting until a value no longer changes: logs and counts lag behind what clients did.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// Time without a change after which a value has settled.
const QUIET: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(50);
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// Returns the value of `read` once it has not changed for 0.3 seconds.
///
/// # Errors
/// Fails if `read` fails, or if its value still changes after 10 seconds.
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
