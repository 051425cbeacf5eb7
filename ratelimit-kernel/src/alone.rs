//! Time that pins have been without a daemon, from the modification time of a pin that a running daemon touches.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;

/// Time within which all pins are made. A later touch shows that a daemon ran.
const MADE_WITHIN: Duration = Duration::from_secs(1);

/// Updates the modification time of a pin, to show that a daemon runs. A failure is only logged.
pub(super) fn touch(path: &Path) {
    let now = TimeSpec::UTIME_NOW;
    if let Err(errno) = utimensat(AT_FDCWD, path, &now, &now, UtimensatFlags::FollowSymlink) {
        tracing::debug!("touch {}: {errno}", path.display());
    }
}

/// Returns the time since `touched` was touched. None if that was never done after both pins were made.
pub(super) fn since(touched: &Path, untouched: &Path) -> Option<Duration> {
    let at = |path: &Path| -> io::Result<SystemTime> { fs::metadata(path)?.modified() };
    let (touched, made) = (at(touched).ok()?, at(untouched).ok()?);
    touched.duration_since(made).ok().filter(|after| *after >= MADE_WITHIN)?;
    SystemTime::now().duration_since(touched).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_touched_after_its_creation_tells_how_long_ago() {
        let directory = tempfile::tempdir().unwrap();
        let make = |name: &str, ago: u64| {
            let path = directory.path().join(name);
            let file = fs::File::create(&path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(ago)).unwrap();
            path
        };
        let (made, touched) = (make("CONFIG", 600), make("ACTIVE", 180));
        let alone = since(&touched, &made).unwrap();
        assert!((Duration::from_secs(180)..Duration::from_secs(240)).contains(&alone), "{alone:?}");
        assert_eq!(since(&make("same", 600), &made), None, "it is as old as the other");
        let late = make("late", 600);
        touch(&late);
        assert!(since(&late, &made).is_some_and(|alone| alone < Duration::from_secs(60)));
        touch(&directory.path().join("gone"));
        assert_eq!(since(&directory.path().join("gone"), &made), None);
    }
}
