//! Filters that keep enforcing while no daemon answers, found by their pins. Changes and locks nothing, so a daemon may
//! start meanwhile.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};
use ratelimit_common::layout::map;

use crate::kernel::lapse;
use crate::link_info::{self, LinkInfo};
use crate::{Left, Orphans, PinnedLayout, alone, interface, pins};

/// File with the kernel's table of file locks.
const LOCKS: &str = "/proc/locks";

/// Looks for pinned filters on a host with the usual setup. See [`orphans`].
pub fn orphans_of_host() -> Orphans {
    orphans(Path::new(pins::ROOT))
}

/// Looks for pinned filters below `root`, of any layout version.
pub fn orphans(root: &Path) -> Orphans {
    if fs::read_dir(root).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
        return Orphans::Hidden(root.to_owned());
    }
    if let Err(foreign) = pins::refuse_foreign(root) {
        return Orphans::Foreign(foreign.to_string());
    }
    let left = |dir: PathBuf| {
        let links = enforcing(pins::links_in(&dir));
        let alone = alone::since(&dir.join(map::ACTIVE), &dir.join(map::CONFIG));
        // State of other layouts is not read.
        let lapse = if dir == pins::version_dir(root) { lapse(&dir) } else { None };
        let layout = layout_of(&dir, root);
        (!links.is_empty()).then(|| Left { root: root.to_owned(), dir, layout, links, alone, lapse })
    };
    let Some(left) = pins::versions(root).into_iter().find_map(left) else { return Orphans::Nothing };
    match holder(&left.dir) {
        Some(process) => Orphans::Held(process),
        None => Orphans::Enforcing(left),
    }
}

/// Returns the layout of a directory below `root`, which its name contains.
fn layout_of(dir: &Path, root: &Path) -> PinnedLayout {
    if dir == pins::version_dir(root) {
        PinnedLayout::Own
    } else if pins::version_of(dir).is_some_and(pins::is_earlier) {
        PinnedLayout::Earlier
    } else {
        PinnedLayout::Unknown
    }
}

/// Keeps the links to existing interfaces, by current name. A link that may not be read keeps the name of its file.
fn enforcing(links: Vec<(String, PathBuf)>) -> Vec<(String, PathBuf)> {
    let present = interface::all().unwrap_or_default();
    let now = |(name, path): (String, PathBuf)| match link_info::pinned(&path) {
        Ok(LinkInfo { interface: 0, .. }) => None,
        Ok(LinkInfo { hook, interface, program }) => {
            let is_on =
                |there: &&interface::Interface| there.index == interface && there.attachment(hook, program).is_some();
            Some((present.iter().find(is_on).map_or(name, |there| there.name.clone()), path))
        }
        Err(_) => Some((name, path)),
    };
    let mut links: Vec<_> = links.into_iter().filter_map(now).collect();
    links.sort_unstable();
    links
}

/// Returns the process that has locked a directory of pins, as a running daemon does.
pub(crate) fn holder(dir: &Path) -> Option<u32> {
    let of = fs::metadata(dir).ok()?;
    let file = format!("{:02x}:{:02x}:{}", major(of.dev()), minor(of.dev()), of.ino());
    holder_in(&fs::read_to_string(LOCKS).ok()?, &file)
}

/// Finds the holder of a lock. A line is `1: FLOCK  ADVISORY  WRITE 123 00:1e:45 0 EOF`; `->` marks a waiting process.
fn holder_in(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| match line.split_whitespace().collect::<Vec<_>>().as_slice() {
        [_, "FLOCK", _, "WRITE", process, locked, ..] if *locked == file => process.parse().ok(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_holder_of_a_directory_lock_is_found_among_other_locks() {
        let locks = "1: POSIX  ADVISORY  WRITE 10 00:1e:45 0 EOF\n2: FLOCK  ADVISORY  WRITE 11 00:1e:46 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 12 00:1e:45 0 EOF\n3: -> FLOCK  ADVISORY  WRITE 13 00:1e:45 0 EOF\n";
        assert_eq!(holder_in(locks, "00:1e:45"), Some(12));
        assert_eq!(holder_in(locks, "00:1e:47"), None);
    }

    #[test]
    fn links_are_found_by_their_interfaces_with_how_long_they_are_alone() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("ratelimitd");
        assert_eq!(orphans(&root), Orphans::Nothing);
        let dir = pins::version_dir(&root);
        fs::create_dir_all(&dir).unwrap();
        let touched = |name: &str, ago: u64| {
            let file = fs::File::create(dir.join(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - Duration::from_secs(ago)).unwrap();
        };
        touched("CONFIG", 600);
        touched("ACTIVE", 180);
        assert_eq!(orphans(&root), Orphans::Nothing, "maps alone enforce nothing");
        touched("link-eth1", 0);
        touched("link-eth0:100", 0);
        let Orphans::Enforcing(left) = orphans(&root) else { panic!("{:?}", orphans(&root)) };
        assert_eq!((left.interfaces().as_str(), left.is_of_this_version()), ("eth0.100, eth1", true));
        assert!(left.alone.is_some_and(|alone| (180..240).contains(&alone.as_secs())), "{left:?}");
        let lock = nix::fcntl::Flock::lock(fs::File::open(&dir).unwrap(), nix::fcntl::FlockArg::LockExclusive).unwrap();
        assert_eq!(orphans(&root), Orphans::Held(std::process::id()));
        drop(lock);
        let other = root.join("v999999");
        fs::rename(&dir, &other).unwrap();
        let Orphans::Enforcing(left) = orphans(&root) else { panic!("{:?}", orphans(&root)) };
        assert!(!left.is_of_this_version() && !left.is_taken_over(), "{left:?}");
        fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
        let Orphans::Foreign(why) = orphans(&root) else { panic!("{:?}", orphans(&root)) };
        assert!(why.contains("chmod 0700"), "what others could have made is not believed: {why}");
    }
}
