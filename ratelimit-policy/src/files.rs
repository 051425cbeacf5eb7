//! Safe reading of files that other users may have influenced. Opening never blocks. Devices, pipes and files above a
//! given size are refused. Symbolic links of users other than root and the daemon's own
//! are followed only for paths that an administrator has named.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};

/// Maximum number of symbolic links on a path, as in the kernel (`MAXSYMLINKS`, linux/namei.h).
const LINKS_MAX: usize = 40;

/// Mode bits that let other users change a file.
const WRITABLE_BY_OTHERS: u32 = 0o002;
const WRITABLE_BY_GROUP: u32 = 0o020;
const STICKY: u32 = 0o1000;

/// Returns true if a user is root or the daemon's own user.
pub fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::geteuid().as_raw()
}

/// Returns what other users may do to a file that root is responsible for: write to it, or replace it. None if they
/// may do neither, or if the modes cannot be read.
pub fn others_may_write(path: &Path) -> Option<String> {
    const BY_OTHERS: u32 = WRITABLE_BY_GROUP | WRITABLE_BY_OTHERS;
    let path = path.canonicalize().ok()?;
    let mode = path.metadata().ok()?.mode();
    if mode & BY_OTHERS != 0 {
        return Some(format!(
            "others than its owner may write to it (mode {:03o}): chmod go-w {}",
            mode & 0o777,
            path.display()
        ));
    }
    let directory = path.parent()?;
    let mode = directory.metadata().ok()?.mode();
    // A sticky directory is safe: no user can remove another user's file.
    let is_open = mode & BY_OTHERS != 0 && mode & STICKY == 0;
    let shown = directory.display();
    is_open.then(|| format!("others may put files into {shown} (mode {:03o}): chmod go-w {shown}", mode & 0o777))
}

/// Reads a regular file that the daemon has written itself. It must not be a symbolic link. Only
/// root and the daemon's own user may own it, and no other user may write to it.
///
/// # Errors
/// Fails if the file is of another kind, has more than `bytes_max` bytes, or cannot be read.
pub fn read_own(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = open_last(path)?;
    let of = file.metadata()?;
    if !is_trusted(of.uid()) {
        return Err(refused(format!("it belongs to user {}, not to root", of.uid())));
    }
    let is_group_root = of.gid() == 0;
    if of.mode() & WRITABLE_BY_OTHERS != 0 || (of.mode() & WRITABLE_BY_GROUP != 0 && !is_group_root) {
        return Err(refused(format!("others than its owner may write to it: its mode is {:03o}", of.mode() & 0o777)));
    }
    read(file, bytes_max)
}

/// Reads a regular file of any user. Only symbolic links of root and of the daemon's own user are followed.
///
/// # Errors
/// Fails if the file is of another kind, has more than `bytes_max` bytes, or cannot be read.
pub fn read_of_anyone(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read(open_through(path)?, bytes_max)
}

/// Reads a regular file that an administrator has named, through any symbolic links.
///
/// # Errors
/// Fails if the file is of another kind, has more than `bytes_max` bytes, or cannot be read.
pub fn read_named(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read(open_named(path)?, bytes_max)
}

/// Opens a regular file that an administrator has named, through any symbolic links. The caller bounds how much is
/// read.
///
/// # Errors
/// Fails if the file is of another kind, or cannot be opened.
pub fn open_named(path: &Path) -> io::Result<File> {
    // Opening a device can have side effects, so the kind is checked first.
    refuse_irregular(&nix::sys::stat::stat(path)?)?;
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = nix::fcntl::open(path, flags, Mode::empty())?;
    refuse_irregular(&fstat(&file)?)?;
    Ok(file.into())
}

/// Opens a regular file for reading. Fails if the last component is a symbolic link.
fn open_last(path: &Path) -> io::Result<File> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let at = open_directory(directory)?;
    let name = Path::new(path.file_name().ok_or_else(|| refused("it is a directory, not a file".to_owned()))?);
    let of = fstat(look(&at, name)?)?;
    open_regular(&at, name, &of)
}

/// Opens a path component by component. Each is opened before it is checked, so that nobody can replace it in
/// between.
fn open_through(path: &Path) -> io::Result<File> {
    let root = Path::new("/");
    let mut at = open_directory(if path.is_absolute() { root } else { Path::new(".") })?;
    let mut left = components(path);
    let mut links = 0;
    while let Some(name) = left.pop() {
        let found = look(&at, &name)?;
        let of = fstat(&found)?;
        match kind(&of) {
            SFlag::S_IFLNK => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::ELOOP.into());
                }
                if !is_trusted(of.st_uid) {
                    let link = name.display();
                    return Err(refused(format!("{link} is a symbolic link of user {}, not of root", of.st_uid)));
                }
                let target = PathBuf::from(readlinkat(&found, "")?);
                if target.is_absolute() {
                    at = open_directory(root)?;
                }
                left.extend(components(&target));
            }
            SFlag::S_IFDIR => at = found,
            _ if left.is_empty() => return open_regular(&at, &name, &of),
            _ => return Err(Errno::ENOTDIR.into()),
        }
    }
    Err(refused("it is a directory, not a file".to_owned()))
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(path, flags, Mode::empty())?)
}

/// Opens a path for inspection only (`O_PATH`), which has no effect on devices.
fn look(at: &OwnedFd, name: &Path) -> io::Result<OwnedFd> {
    Ok(openat(at, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// Opens an inspected file for reading. Fails if another file has taken its name in between.
fn open_regular(at: &OwnedFd, name: &Path, looked_at: &FileStat) -> io::Result<File> {
    refuse_irregular(looked_at)?;
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let (file, directory) = (openat(at, name, flags, Mode::empty())?, fstat(at)?);
    let of = fstat(&file)?;
    refuse_irregular(&of)?;
    if (of.st_dev, of.st_ino) != (looked_at.st_dev, looked_at.st_ino) {
        return Err(refused("it was replaced while it was opened".to_owned()));
    }
    // Some kernels let users make hard links to files that they may not read (`fs.protected_hardlinks`).
    if of.st_nlink > 1 && of.st_uid != directory.st_uid && !is_trusted(directory.st_uid) {
        return Err(refused(format!(
            "it has other hard links, and user {} could have made this one",
            directory.st_uid
        )));
    }
    Ok(file.into())
}

/// Returns the components of a path, last first.
fn components(path: &Path) -> Vec<PathBuf> {
    let named = path.components().filter(|component| match component {
        Component::RootDir | Component::CurDir | Component::Prefix(_) => false,
        Component::ParentDir | Component::Normal(_) => true,
    });
    named.map(|component| PathBuf::from(component.as_os_str())).rev().collect()
}

fn kind(of: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(of.st_mode) & SFlag::S_IFMT
}

fn refuse_irregular(of: &FileStat) -> io::Result<()> {
    let what = match kind(of) {
        SFlag::S_IFREG => return Ok(()),
        SFlag::S_IFLNK => "a symbolic link",
        SFlag::S_IFIFO => "a pipe",
        SFlag::S_IFDIR => "a directory",
        SFlag::S_IFSOCK => "a socket",
        _ => "a device",
    };
    Err(refused(format!("it is {what}, not a file")))
}

fn read(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(refused(format!("it is longer than {bytes_max} bytes")));
    }
    Ok(bytes)
}

fn refused(why: String) -> io::Error {
    io::Error::other(why)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    const NOBODY: u32 = 65_534;

    fn own(path: &Path) -> String {
        outcome(read_own(path, 100))
    }

    fn anyones(path: &Path) -> String {
        outcome(read_of_anyone(path, 100))
    }

    fn named(path: &Path) -> String {
        outcome(read_named(path, 100))
    }

    fn outcome(read: io::Result<Vec<u8>>) -> String {
        read.map_or_else(|error| error.to_string(), |bytes| String::from_utf8(bytes).unwrap())
    }

    /// Returns true if the file was given to another user. Without root that is impossible, and the test prints what
    /// it skips.
    fn give_away(path: &Path) -> bool {
        let given = std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).is_ok();
        if !given {
            println!("skipped: files of other users: needs root");
        }
        given
    }

    #[test]
    fn irregular_files_are_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        assert_eq!([own(&path), anyones(&path), named(&path)], ["it is a pipe, not a file"; 3]);
        fs::remove_file(&path).unwrap();
        let _socket = UnixListener::bind(&path).unwrap();
        assert_eq!([own(&path), anyones(&path), named(&path)], ["it is a socket, not a file"; 3]);
        let zero = Path::new("/dev/zero");
        assert_eq!([own(zero), anyones(zero), named(zero)], ["it is a device, not a file"; 3]);
        for path in [directory.path(), Path::new("/")] {
            let said = [own(path), anyones(path), named(path)];
            assert_eq!(said, ["it is a directory, not a file"; 3], "{}", path.display());
        }
    }

    #[test]
    fn files_up_to_the_maximum_size_are_read_and_larger_ones_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        for (len, is_read) in [(0, true), (100, true), (101, false), (1 << 40, false)] {
            File::create(&path).unwrap().set_len(len).unwrap();
            for read in [read_own(&path, 100), read_of_anyone(&path, 100), read_named(&path, 100)] {
                assert_eq!(read.is_ok_and(|bytes| bytes.len() as u64 == len), is_read, "{len}");
            }
        }
    }

    #[test]
    fn a_file_of_state_is_no_link_and_nobody_elses_to_write() {
        let directory = tempfile::tempdir().unwrap();
        let [path, link] = ["x", "link"].map(|name| directory.path().join(name));
        fs::write(&path, "text").unwrap();
        symlink(&path, &link).unwrap();
        assert_eq!(own(&link), "it is a symbolic link, not a file");
        for (mode, is_read) in [(0o600, true), (0o644, true), (0o640, true), (0o602, false), (0o666, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(own(&path) == "text", is_read, "{mode:o}: {}", own(&path));
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
        if chown(&path, None, Some(NOBODY)).is_ok() {
            assert!(own(&path).contains("others than its owner may write to it: its mode is 660"), "{}", own(&path));
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        if give_away(&path) {
            assert_eq!(own(&path), "it belongs to user 65534, not to root");
        }
    }

    #[test]
    fn links_of_ones_own_are_followed_wherever_they_stand_and_those_of_others_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("real")).unwrap();
        fs::write(at("real/list"), "text").unwrap();
        symlink("real", at("directory")).unwrap();
        symlink("real/../directory/list", at("relative")).unwrap();
        symlink(at("relative"), at("absolute")).unwrap();
        symlink("itself", at("itself")).unwrap();
        for name in ["real/list", "directory/list", "relative", "absolute", "real/../real/./list"] {
            assert_eq!(anyones(&at(name)), "text", "{name}");
        }
        assert!(anyones(&at("itself")).contains("Too many"), "{}", anyones(&at("itself")));
        assert!(anyones(&at("real/list/x")).contains("Not a directory"), "{}", anyones(&at("real/list/x")));
        for read in [read_of_anyone, read_named] {
            assert_eq!(read(&at("none"), 9).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        if give_away(&at("relative")) {
            for name in ["relative", "absolute"] {
                assert_eq!(anyones(&at(name)), "relative is a symbolic link of user 65534, not of root", "{name}");
                assert_eq!(named(&at(name)), "text", "{name}");
            }
        }
        if give_away(&at("directory")) {
            assert_eq!(anyones(&at("directory/list")), "directory is a symbolic link of user 65534, not of root");
        }
        if give_away(&at("real/list")) {
            assert_eq!(anyones(&at("real/list")), "text", "a file may be of anyone");
        }
    }

    #[test]
    fn a_second_name_that_another_user_could_have_made_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let [feed, secret, name] = ["feed", "secret", "feed/list"].map(|name| directory.path().join(name));
        fs::create_dir(&feed).unwrap();
        fs::write(&secret, "text").unwrap();
        fs::hard_link(&secret, &name).unwrap();
        assert_eq!(anyones(&name), "text");
        if give_away(&feed) {
            assert!(anyones(&name).contains("user 65534 could have made this one"), "{}", anyones(&name));
            assert_eq!(anyones(&secret), "text");
        }
    }
}
