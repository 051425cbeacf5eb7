//! Crash points with the feature `armed`: the file that arms a point, and the kill of the process at the point.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Point;

/// Environment variable with the path of the arming file. The file contains `NAME PASSES`: a point, and the number of
/// passes before it kills.
pub const VARIABLE: &str = "RATELIMITD_CRASH_POINT";

static FILE: LazyLock<Option<PathBuf>> = LazyLock::new(|| std::env::var_os(VARIABLE).map(PathBuf::from));

/// Returns the name that the arming file gets when its point kills the process.
#[must_use]
pub fn reached(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".reached");
    name.into()
}

/// Arms a point that kills after `passes` passes, and forgets that an earlier point was reached.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn arm(file: &Path, point: Point, passes: u32) -> std::io::Result<()> {
    let _there_may_be_none = fs::remove_file(reached(file));
    fs::write(file, format!("{} {passes}", point.name()))
}

pub(crate) fn reach(point: Point) {
    let Some(file) = FILE.as_ref() else { return };
    if is_due(file, point) {
        // A signal to the own process is handled before kill(2) returns, by this thread or another.
        while kill(Pid::this(), Signal::SIGKILL).is_ok() {
            thread::yield_now();
        }
    }
}

/// Returns true if the file arms this point and its passes are used up. The thread that finds this renames the file,
/// which shows that the point was reached.
fn is_due(file: &Path, point: Point) -> bool {
    let Ok(text) = fs::read_to_string(file) else { return false };
    let Some((name, passes)) = text.trim().split_once(' ') else { return false };
    if name != point.name() {
        return false;
    }
    match passes.parse::<u32>() {
        Ok(0) => fs::rename(file, reached(file)).is_ok(),
        Ok(more) => {
            // On failure the test misses the renamed file and reports it.
            let _is_counted = fs::write(file, format!("{name} {}", more - 1));
            false
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_point_is_due_once_after_it_was_passed_as_often_as_the_file_says() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("point");
        assert!(!is_due(&file, Point::Ready), "nothing is armed");
        fs::write(&file, "start.ready 2\n").unwrap();
        assert!(!is_due(&file, Point::Serving), "another is");
        let due: Vec<bool> = (0..5).map(|_| is_due(&file, Point::Ready)).collect();
        assert_eq!(due, [false, false, true, false, false]);
        assert!(!file.exists() && reached(&file).exists());
        for broken in ["", "start.ready", "start.ready x", "start.ready -1"] {
            fs::write(&file, broken).unwrap();
            assert!(!is_due(&file, Point::Ready), "{broken:?}");
        }
    }

    #[test]
    fn each_point_has_a_name_and_a_step_of_its_own() {
        let names: BTreeSet<&str> = Point::ALL.iter().map(|point| point.name()).collect();
        let steps: BTreeSet<&str> = Point::ALL.iter().map(|point| point.step()).collect();
        assert_eq!((names.len(), steps.len()), (Point::ALL.len(), Point::ALL.len()));
        assert!(names.iter().all(|name| name.split_once('.').is_some() && !name.contains(' ')), "{names:?}");
    }
}
