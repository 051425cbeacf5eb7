//! State that outlives a daemon: maps and links as files in a BPF file system, in a directory named after the layout's
//! version.
//!
//! This module knows paths and files. Removing a link's file detaches a filter that no daemon answers for.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg, OFlag};
use ratelimit_common::layout;
use ratelimit_crash::{Point, reach};

use crate::bpf;
use ratelimit_policy::files;

mod left_over;

/// Prefix of the files that hold programs while links are moved from an earlier layout.
pub(crate) const PROGRAM_PREFIX: &str = "program-";

/// Directory of the pins on a host with the usual setup.
pub const ROOT: &str = "/sys/fs/bpf/ratelimitd";

/// Prefix of the files that hold links. The interface's name follows.
const LINK_PREFIX: &str = "link-";

/// Earliest layout version that this version takes over.
pub(crate) const EARLIEST: u32 = 12;

/// `BPF_FS_MAGIC` of linux/magic.h.
pub(crate) const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// Mode of new pin directories, whatever the umask: root alone has access.
const DIRECTORY_MODE: u32 = 0o700;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// The directory of one layout's pins, locked so that one daemon at a time uses it.
#[derive(Debug)]
pub struct Pins {
    dir: PathBuf,
    earlier: Option<Earlier>,
    _lock: Flock<fs::File>,
}

/// The pins of an earlier layout that this version takes over, locked.
#[derive(Debug)]
pub(crate) struct Earlier {
    pub(crate) version: u32,
    pub(crate) dir: PathBuf,
    _lock: Flock<fs::File>,
}

/// Failure to open or change the pins.
#[derive(Debug, thiserror::Error)]
pub enum PinsError {
    /// The directory is not in a BPF file system.
    #[error("{0} is not in a BPF file system; mount one with `mount -t bpf bpf /sys/fs/bpf`")]
    NoBpfFileSystem(PathBuf),
    /// Users other than root could detach the filter.
    #[error("{path} {why}, so other users could remove the filter; {remedy}, then start again")]
    Foreign {
        /// Path that others could change.
        path: PathBuf,
        /// Reason why others could change the path.
        why: String,
        /// Commands to type.
        remedy: String,
    },
    /// Another daemon uses the pins.
    #[error("{0} is in use by another ratelimitd; stop that one first")]
    Locked(PathBuf),
    /// Pins of a layout exist that this version does not read.
    #[error("{}", other_version(.0))]
    OtherVersion(PathBuf),
    /// A file operation failed.
    #[error("{what} {path}: {source}")]
    Io {
        /// Attempted operation.
        what: &'static str,
        /// Path of the operation.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl Pins {
    /// Creates the directory below `root` if missing, and locks it.
    ///
    /// # Errors
    /// Fails without a BPF file system, if another daemon holds the lock, or with unreadable pins of another layout.
    pub fn open(root: &Path) -> Result<Self, PinsError> {
        let parent = root.parent().unwrap_or(Path::new("/"));
        let kind = nix::sys::statfs::statfs(parent).map_err(|errno| PinsError::Io {
            what: "inspect",
            path: parent.to_owned(),
            source: errno.into(),
        })?;
        if kind.filesystem_type().0 != BPF_FS_MAGIC {
            return Err(PinsError::NoBpfFileSystem(root.to_owned()));
        }
        let dir = version_dir(root);
        refuse_foreign(root)?;
        refuse_other_versions(root)?;
        // Create nothing next to an earlier version's pins while its daemon runs: that daemon could not start again.
        left_over::remove_all(root)?;
        let earlier = earlier(root)?;
        for made in [root, &dir] {
            make(made)?;
        }
        reach(Point::PinsMade);
        // A directory that existed before ours may have been made or filled by others since the first check.
        refuse_foreign(root)?;
        let lock = lock(&dir)?;
        reach(Point::PinsLocked);
        Ok(Self { dir, earlier, _lock: lock })
    }

    /// Returns the pins of an earlier layout, if there are any.
    pub(crate) const fn earlier(&self) -> Option<&Earlier> {
        self.earlier.as_ref()
    }

    /// Returns the files of this layout that have names starting with `prefix`.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub(crate) fn starting_with(&self, prefix: &str) -> Result<Vec<PathBuf>, PinsError> {
        left_over::starting_with(&self.dir, prefix)
    }

    /// Removes an earlier layout's maps, but no links.
    ///
    /// # Errors
    /// Fails if a file cannot be removed.
    pub(crate) fn remove_earlier_maps(&self) -> Result<(), PinsError> {
        let Some(earlier) = &self.earlier else { return Ok(()) };
        let links: Vec<PathBuf> = earlier.links().into_iter().map(|(_, path)| path).collect();
        entries(&earlier.dir)?.iter().filter(|path| !links.contains(path)).try_for_each(|path| remove(path))?;
        reach(Point::MoveUnshared);
        Ok(())
    }

    /// Removes the remaining pins of an earlier layout, with their directory.
    ///
    /// # Errors
    /// Fails if a file cannot be removed.
    pub(crate) fn remove_earlier(&mut self) -> Result<(), PinsError> {
        let Some(earlier) = self.earlier.take() else { return Ok(()) };
        entries(&earlier.dir)?.iter().try_for_each(|path| remove(path))?;
        remove_dir(&earlier.dir)
    }

    /// Removes the pins of this layout and their directory. An earlier layout's pins stay in force.
    ///
    /// # Errors
    /// Fails if a file cannot be removed.
    pub(crate) fn remove_own(&self) -> Result<(), PinsError> {
        if self.earlier.is_none() {
            return self.remove_all();
        }
        self.clear_own()?;
        remove_dir(&self.dir)
    }

    /// Removes the pins of this layout. Their directory stays.
    ///
    /// # Errors
    /// Fails if a file cannot be removed.
    pub(crate) fn clear_own(&self) -> Result<(), PinsError> {
        entries(&self.dir)?.iter().try_for_each(|path| remove(path))
    }

    /// Returns the file of a map.
    pub fn map(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the file of an interface's link.
    pub fn link(&self, interface: &str) -> PathBuf {
        link_in(&self.dir, interface)
    }

    /// Returns the directory of this layout's pins.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the interfaces that have a filter pinned here, sorted.
    pub fn interfaces(&self) -> Vec<String> {
        self.root().map_or_else(Vec::new, pinned_interfaces)
    }

    /// Removes all pins. Every filter that no process holds open is detached.
    ///
    /// # Errors
    /// Fails if a file cannot be removed.
    pub fn remove_all(&self) -> Result<(), PinsError> {
        self.root().map_or(Ok(()), |root| remove_files(root, None).map(drop))
    }

    /// Returns the directory that contains the directories of all layouts.
    pub fn root(&self) -> Option<&Path> {
        self.dir.parent()
    }

    /// Removes an interface's link. Its filter is detached once no process holds it open.
    ///
    /// # Errors
    /// Fails if the file cannot be removed. A missing file is no error.
    pub fn remove_link(&self, interface: &str) -> Result<(), PinsError> {
        remove(&self.link(interface))
    }

    /// Renames the link file of one interface to that of another in one step. A link pinned there before is unpinned.
    ///
    /// # Errors
    /// Fails if the file cannot be renamed.
    pub fn rename_link(&self, from: &str, to: &str) -> Result<(), PinsError> {
        let path = self.link(from);
        fs::rename(&path, self.link(to)).map_err(|source| PinsError::Io { what: "rename", path, source })
    }
}

impl Earlier {
    /// Returns the links, each with its interface's name at the time of pinning.
    pub(crate) fn links(&self) -> Vec<(String, PathBuf)> {
        links_in(&self.dir)
    }

    /// Returns the file of a map.
    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Refuses pins below `root` that users other than root and the daemon's own user made or could remove. Changes
/// nothing. Others may create files next to `root` if they cannot remove it: a BPF file system mounted without a mode
/// has 1777.
///
/// # Errors
/// Fails if others could change the pins, or if that cannot be determined.
pub fn refuse_foreign(root: &Path) -> Result<(), PinsError> {
    let parent = root.parent().unwrap_or(Path::new("/"));
    let foreign = |path: &Path, not_ours: NotOurs| {
        let (close, start) = (format!("`sudo chmod 0700 {}`", parent.display()), root.display());
        let remedy = match not_ours {
            NotOurs::Writable(_) => format!("`sudo chmod 0700 {}`", path.display()),
            NotOurs::Link | NotOurs::Owner(_) if path == parent => {
                format!("mount a BPF file system of root's on {}", path.display())
            }
            NotOurs::Link | NotOurs::Owner(_) => {
                format!("`sudo rm -r {start}`, and {close} so that no other user makes it again")
            }
        };
        PinsError::Foreign { path: path.to_owned(), why: not_ours.to_string(), remedy }
    };
    let look = |path: &Path| match fs::symlink_metadata(path) {
        Ok(of) => Ok(Some(of)),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PinsError::Io { what: "inspect", path: path.to_owned(), source }),
    };
    let check = |path: &Path, is_shared: bool| {
        let Some(of) = look(path)? else { return Ok(false) };
        match not_ours(&of, is_shared) {
            Some(why) => Err(foreign(path, why)),
            None => Ok(of.is_dir()),
        }
    };
    check(parent, true)?;
    if !check(root, false)? {
        return Ok(());
    }
    for dir in entries(root)? {
        if check(&dir, false)? {
            entries(&dir)?.iter().try_for_each(|pin| check(pin, false).map(drop))?;
        }
    }
    Ok(())
}

/// Reason why others could change a pin or a directory of pins.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum NotOurs {
    #[error("is a symbolic link")]
    Link,
    #[error("belongs to user {0}, not to root")]
    Owner(u32),
    #[error("may be written to by others, its mode is {0:04o}")]
    Writable(u32),
}

/// Returns how others could change a file. `is_shared` marks a directory that others may add to.
fn not_ours(of: &fs::Metadata, is_shared: bool) -> Option<NotOurs> {
    let (mode, is_sticky) = (of.mode() & 0o7777, of.mode() & STICKY != 0);
    if of.is_symlink() {
        return Some(NotOurs::Link);
    }
    if !files::is_trusted(of.uid()) {
        return Some(NotOurs::Owner(of.uid()));
    }
    // Writing to a pin has no effect, but whoever may write to its directory may remove the pin.
    let is_writable = of.is_dir() && mode & WRITABLE_BY_OTHERS != 0;
    (is_writable && !(is_shared && is_sticky)).then_some(NotOurs::Writable(mode))
}

/// Creates a new directory of this process, accessible to its owner alone.
///
/// # Errors
/// Fails if the directory cannot be created.
pub(crate) fn make_private(dir: &Path) -> Result<(), PinsError> {
    let made = fs::DirBuilder::new().mode(DIRECTORY_MODE).create(dir);
    made.map_err(|source| PinsError::Io { what: "create", path: dir.to_owned(), source })
}

/// Creates a directory that is accessible to its owner alone, if it is missing.
fn make(dir: &Path) -> Result<(), PinsError> {
    match fs::DirBuilder::new().mode(DIRECTORY_MODE).create(dir) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(PinsError::Io { what: "create", path: dir.to_owned(), source })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Refuses pins below `root` that this version neither owns nor takes over. Changes nothing.
///
/// # Errors
/// Fails if there are such pins, or if that cannot be determined.
pub fn refuse_other_versions(root: &Path) -> Result<(), PinsError> {
    if !root.exists() {
        return Ok(());
    }
    let (mut others, own) = (entries(root)?, version_dir(root));
    others.retain(|dir| *dir != own && !left_over::is_left_over(root, dir));
    others.sort_unstable();
    let read = others.iter().position(|dir| version_of(dir).is_some_and(is_earlier));
    match others.into_iter().enumerate().find(|(at, _)| Some(*at) != read) {
        Some((_, other)) => Err(PinsError::OtherVersion(other)),
        None => Ok(()),
    }
}

/// Returns the pins of an earlier layout below `root` that this version takes over.
fn earlier(root: &Path) -> Result<Option<Earlier>, PinsError> {
    if !root.exists() {
        return Ok(None);
    }
    let dirs = entries(root)?.into_iter();
    let mut earlier = dirs.filter_map(|dir| Some((version_of(&dir).filter(|version| is_earlier(*version))?, dir)));
    let Some((version, dir)) = earlier.next() else { return Ok(None) };
    let lock = lock(&dir)?;
    Ok(Some(Earlier { version, dir, _lock: lock }))
}

/// Returns whether this version takes over pins of a layout version.
pub(crate) fn is_earlier(version: u32) -> bool {
    (EARLIEST..layout::VERSION).contains(&version)
}

/// Returns the layout version that a directory is named after.
pub(crate) fn version_of(dir: &Path) -> Option<u32> {
    let name = dir.file_name()?.to_str()?;
    name.strip_prefix('v')?.parse().ok().filter(|version| name == format!("v{version}"))
}

/// Says why pins of another layout are refused, and what to type.
fn other_version(dir: &Path) -> String {
    let path = dir.display();
    let own = layout::VERSION;
    let remedy = format!(
        "its filter stays in force. Start the version that left it, or remove its filter, counts and bans: `sudo \
         ratelimitd detach`, of that version or of this one, or `sudo rm -r {path}`; then start again"
    );
    match version_of(dir) {
        Some(version) if version > own => format!(
            "{path} holds the state of a newer version, of layout {version}, and this one reads layouts {EARLIEST} to {own}; {remedy}"
        ),
        Some(version) if version < EARLIEST => format!(
            "{path} holds the state of a version that is too old, of layout {version}, and this one reads layouts {EARLIEST} to {own}; {remedy}"
        ),
        Some(version) if is_earlier(version) => format!(
            "{path} holds the state of an earlier version, of layout {version}, which is not read without a daemon; \
             start ratelimitd, which takes it over, or remove its filter: `sudo ratelimitd detach`"
        ),
        Some(_) | None => format!("{path} holds the state of another version, which this one does not read; {remedy}"),
    }
}

/// Returns the directory of another layout below `root` that holds this interface's filter.
pub fn other_version_holding(root: &Path, interface: &str) -> Option<PathBuf> {
    let own = version_dir(root);
    entries(root).ok()?.into_iter().find(|dir| *dir != own && link_in(dir, interface).exists())
}

/// Returns the interfaces that have a filter pinned below `root`, sorted. Empty if nothing can be read.
pub fn pinned_interfaces(root: &Path) -> Vec<String> {
    links_in(&version_dir(root)).into_iter().map(|(interface, _)| interface).collect()
}

/// Returns the link files of a directory, each with its interface's name, sorted. Empty if nothing can be read.
pub(crate) fn links_in(dir: &Path) -> Vec<(String, PathBuf)> {
    let name = |path: &PathBuf| Some(path.file_name()?.to_str()?.strip_prefix(LINK_PREFIX)?.replace(':', "."));
    let files = entries(dir).unwrap_or_default().into_iter();
    let mut links: Vec<_> = files.filter_map(|path| Some((name(&path)?, path))).collect();
    links.sort_unstable();
    links
}

/// Returns the file of an interface's link pinned below `root`.
pub fn link_path(root: &Path, interface: &str) -> PathBuf {
    link_in(&version_dir(root), interface)
}

/// Detaches one interface's pinned filter, or all filters with their state, without a daemon. Returns the interfaces.
///
/// # Errors
/// Fails if a daemon holds the pins, because its links keep enforcing without their files. Also fails if a file cannot
/// be removed.
pub fn remove_pinned(root: &Path, interface: Option<&str>) -> Result<Vec<String>, PinsError> {
    let versions = versions(root);
    if versions.is_empty() {
        return Ok(Vec::new());
    }
    refuse_foreign(root)?;
    let _locks = versions.iter().map(|dir| lock(dir)).collect::<Result<Vec<_>, _>>()?;
    remove_files(root, interface)
}

/// Returns the directories of all layout versions below `root`, sorted. Empty if nothing can be read.
pub(crate) fn versions(root: &Path) -> Vec<PathBuf> {
    let mut versions: Vec<_> = entries(root).unwrap_or_default().into_iter().filter(|path| path.is_dir()).collect();
    versions.sort_unstable();
    versions
}

/// Removes the link files of one interface or of all. Link files are the same in every version. Other pins of a version
/// are removed with its last link.
fn remove_files(root: &Path, interface: Option<&str>) -> Result<Vec<String>, PinsError> {
    let mut removed = Vec::new();
    for dir in versions(root) {
        let (gone, left): (Vec<_>, Vec<_>) =
            links_in(&dir).into_iter().partition(|(pinned, _)| interface.is_none_or(|interface| interface == pinned));
        for (pinned, path) in gone {
            // Hold the link until its file is gone, so that the filter is detached at once. The kernel detaches at once
            // if a descriptor is the last reference, and later if a file is (`bpf_link_put`, kernel/bpf/syscall.c,
            // Linux 6.18).
            let held = bpf::open_pin(&path, bpf::Access::Whole);
            remove(&path)?;
            drop(held);
            removed.push(pinned);
        }
        reach(Point::EndLinks);
        if left.is_empty() {
            entries(&dir)?.iter().try_for_each(|path| remove(path))?;
            reach(Point::EndMaps);
            remove_dir(&dir)?;
        }
    }
    if versions(root).is_empty() && root.exists() {
        remove_dir(root)?;
    }
    Ok(removed)
}

fn remove_dir(dir: &Path) -> Result<(), PinsError> {
    fs::remove_dir(dir).map_err(|source| PinsError::Io { what: "remove", path: dir.to_owned(), source })
}

fn lock(dir: &Path) -> Result<Flock<fs::File>, PinsError> {
    let io = |what, source| PinsError::Io { what, path: dir.to_owned(), source };
    let mut options = fs::File::options();
    options.read(true).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY).bits());
    let file = options.open(dir).map_err(|source| io("open", source))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(lock),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Err(PinsError::Locked(dir.to_owned())),
        Err((_, errno)) => Err(io("lock", errno.into())),
    }
}

/// Returns the file of an interface's link. `eth0.100` becomes `link-eth0:100`, because a BPF file system allows no dot
/// in a name (`bpf_lookup`, kernel/bpf/inode.c, Linux 6.18). No interface name has a colon (`dev_valid_name`,
/// net/core/dev.c).
fn link_in(dir: &Path, interface: &str) -> PathBuf {
    dir.join(format!("{LINK_PREFIX}{}", interface.replace('.', ":")))
}

pub(crate) fn version_dir(root: &Path) -> PathBuf {
    root.join(format!("v{}", layout::VERSION))
}

pub(crate) fn remove(path: &Path) -> Result<(), PinsError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(PinsError::Io { what: "remove", path: path.to_owned(), source })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, PinsError> {
    let error = |source| PinsError::Io { what: "list", path: dir.to_owned(), source };
    fs::read_dir(dir).map_err(error)?.map(|entry| Ok(entry.map_err(error)?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_that_others_made_or_could_take_away_are_refused_with_what_to_do() {
        use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
        const NOBODY: u32 = 65_534;
        let directory = tempfile::tempdir().unwrap();
        let parent = directory.path().join("bpf");
        let root = parent.join("ratelimitd");
        let dir = version_dir(&root);
        let link = dir.join("link-eth0");
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let refusal = || refuse_foreign(&root).err().map(|error| error.to_string());
        assert_eq!(refusal(), None, "there is nothing yet");
        fs::create_dir(&parent).unwrap();
        [root.as_path(), &dir].into_iter().try_for_each(make).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        fs::write(&link, "").unwrap();
        for (path, good, bad) in [
            (&parent, &[0o700, 0o755, 0o1777][..], &[0o777, 0o770, 0o2775][..]),
            (&root, &[0o700, 0o755], &[0o1777, 0o770, 0o702]),
            (&dir, &[0o700, 0o755], &[0o1777, 0o770, 0o702]),
        ] {
            for of in bad {
                mode(path, *of);
                let refusal = refusal().unwrap_or_else(|| panic!("{} of {of:o}", path.display()));
                let path = path.display();
                for part in [
                    format!("{path} may be written to by others, its mode is {of:04o}"),
                    format!("sudo chmod 0700 {path}"),
                ] {
                    assert!(refusal.contains(&part), "{refusal}");
                }
            }
            for of in good {
                mode(path, *of);
                assert_eq!(refusal(), None, "{} of {of:o}", path.display());
            }
        }
        let is_root = lchown(&link, Some(NOBODY), None).is_ok();
        if !is_root {
            println!("skipped: pins of other users: needs root");
        }
        for path in [&link, &dir, &root, &parent].into_iter().filter(|_| is_root) {
            lchown(path, Some(NOBODY), None).unwrap();
            let refusal = refusal().unwrap();
            assert!(refusal.contains(&format!("{} belongs to user 65534, not to root", path.display())), "{refusal}");
            lchown(path, Some(0), None).unwrap();
        }
        for path in [&dir, &root] {
            let aside = directory.path().join("aside");
            fs::rename(path, &aside).unwrap();
            symlink(&aside, path).unwrap();
            let refused = refusal().unwrap();
            let parts = [
                format!("{} is a symbolic link", path.display()),
                format!("sudo rm -r {}", root.display()),
                format!("sudo chmod 0700 {}", parent.display()),
            ];
            assert!(parts.iter().all(|part| refused.contains(part)), "{refused}");
            assert!(remove_pinned(&root, None).is_err() && aside.exists(), "nothing is removed through a link");
            fs::remove_file(path).unwrap();
            fs::rename(&aside, path).unwrap();
        }
        assert_eq!(refusal(), None);
    }

    #[test]
    fn pins_that_a_daemon_holds_are_not_removed_by_another_process() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("ratelimitd");
        let dir = version_dir(&root);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("link-eth0"), "").unwrap();
        let daemon = lock(&dir).unwrap();
        for interface in [None, Some("eth0"), Some("eth1")] {
            let error = remove_pinned(&root, interface).unwrap_err();
            assert!(matches!(error, PinsError::Locked(_)), "{error}");
        }
        assert_eq!(pinned_interfaces(&root), ["eth0"]);
        drop(daemon);
        assert_eq!(remove_pinned(&root, Some("eth1")).unwrap(), Vec::<String>::new());
        assert_eq!(remove_pinned(&root, None).unwrap(), ["eth0"]);
        assert!(!root.exists());
        assert_eq!(remove_pinned(&root, None).unwrap(), Vec::<String>::new());
    }
}
