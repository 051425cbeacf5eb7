//! Remains of an interrupted removal: directories of other layouts in which nothing enforces.

use std::path::{Path, PathBuf};

use ratelimit_common::layout::map;

use super::{
    PROGRAM_PREFIX, PinsError, entries, is_earlier, links_in, lock, remove, remove_dir, version_dir, version_of,
};

/// Maps that are read of an earlier layout. Without them, its state cannot be taken over.
const READ: [&str; 6] =
    [map::ACTIVE, map::CONFIG, map::COUNTERS, map::SOURCES_V4, map::SOURCES_V6, map::SOURCES_V6_WIDE];

/// Removes all such remains below `root`, because they would only prevent a start.
///
/// # Errors
/// Fails if a file cannot be removed.
pub(super) fn remove_all(root: &Path) -> Result<(), PinsError> {
    if !root.exists() {
        return Ok(());
    }
    for dir in entries(root)?.iter().filter(|dir| is_left_over(root, dir)) {
        let _lock = lock(dir)?;
        // A daemon of that layout may have begun to fill the directory.
        if is_left_over(root, dir) {
            entries(dir)?.iter().try_for_each(|path| remove(path))?;
            remove_dir(dir)?;
            // If the last step of a move was interrupted, the program in the links no longer needs to be recognized.
            let marks = starting_with(&version_dir(root), PROGRAM_PREFIX).unwrap_or_default();
            marks.iter().try_for_each(|path| remove(path))?;
            tracing::info!("removed {}: an earlier run left it, and it enforces nothing", dir.display());
        }
    }
    Ok(())
}

/// Returns the files of a directory that have names starting with `prefix`.
pub(super) fn starting_with(dir: &Path, prefix: &str) -> Result<Vec<PathBuf>, PinsError> {
    let mut files = entries(dir)?;
    files.retain(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(prefix)));
    Ok(files)
}

/// Returns whether a directory holds no usable state. A directory of an earlier layout also counts if it has no link
/// and lacks some map, because a removal deletes links first. During a move, this version has the links.
pub(super) fn is_left_over(root: &Path, dir: &Path) -> bool {
    let own = version_dir(root);
    let (Ok(files), Some(version)) = (entries(dir), version_of(dir)) else { return false };
    let is_whole = READ.iter().all(|name| dir.join(name).exists());
    let is_rest = is_earlier(version) && links_in(dir).is_empty() && links_in(&own).is_empty() && !is_whole;
    dir != own && (files.is_empty() || is_rest)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::refuse_other_versions;
    use super::*;
    use ratelimit_common::layout::VERSION;

    #[test]
    fn unusable_leftover_pins_that_enforce_nothing_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("ratelimitd");
        let at = |name: &str| root.join(name);
        assert!(remove_all(&root).is_ok());
        let (earlier, newer) = (format!("v{}", VERSION - 1), format!("v{}", VERSION + 1));
        for (dir, files, is_left) in [
            (&*earlier, &[][..], true),
            ("v3", &[], true),
            (&newer, &[], true),
            (&earlier, &[map::ACTIVE], true),
            (&earlier, &READ[1..], true),
            (&earlier, &READ, false),
            (&earlier, &["link-eth0"], false),
            (&newer, &[map::ACTIVE], false),
            ("v3", &["link-eth0"], false),
            ("others", &[], false),
        ] {
            fs::create_dir_all(at(dir)).unwrap();
            files.iter().for_each(|name| fs::write(at(dir).join(name), "").unwrap());
            assert_eq!(is_left_over(&root, &at(dir)), is_left, "{dir} with {files:?}");
            assert!(!is_left || refuse_other_versions(&root).is_ok(), "{dir} with {files:?}");
            remove_all(&root).unwrap();
            assert_eq!(at(dir).exists(), !is_left, "{dir} with {files:?}");
            fs::remove_dir_all(&root).unwrap();
        }
        // A move in progress has given this version the links.
        let own = version_dir(&root);
        [&own, &at(&earlier)].into_iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
        fs::write(own.join("link-eth0"), "").unwrap();
        fs::write(at(&earlier).join(map::ACTIVE), "").unwrap();
        assert!(!is_left_over(&root, &at(&earlier)) && !is_left_over(&root, &own));
        // A move that was interrupted at its last step is complete.
        fs::write(own.join("program-7"), "").unwrap();
        fs::remove_file(at(&earlier).join(map::ACTIVE)).unwrap();
        remove_all(&root).unwrap();
        assert!(!at(&earlier).exists() && !own.join("program-7").exists() && own.join("link-eth0").exists());
    }
}
