//! Opens a log without ever blocking, and refuses files that are not logs.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirEntryExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::follower::State;
use crate::position::FilePosition;

/// Maximum number of directory entries that are searched for a rotated file.
const ENTRIES_MAX: usize = 4096;
/// Maximum number of files that are compared with a truncated one.
const COPIES_MAX: usize = 64;
/// File name endings of compressed files, which are never the followed file.
const COMPRESSED: [&str; 6] = [".gz", ".bz2", ".xz", ".zst", ".lz4", ".Z"];

/// Origin of log lines.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A regular file or a FIFO.
    File(PathBuf),
    /// A datagram socket that the follower creates with mode 0660. Each datagram is one line.
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// Group that may send, by its name. None leaves the process's group.
        group: Option<String>,
    },
}

impl Source {
    /// Returns the path of the file or socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Socket { path, .. } => path,
        }
    }
}

/// Describes why a file cannot be opened or read.
pub(crate) fn state_of(error: &io::Error) -> State {
    let is = |kinds: &[io::ErrorKind]| kinds.contains(&error.kind());
    if is(&[io::ErrorKind::NotFound, io::ErrorKind::NotADirectory]) {
        State::Missing
    } else if is(&[io::ErrorKind::PermissionDenied]) {
        State::NoPermission
    } else if is(&[io::ErrorKind::IsADirectory]) {
        State::IsDirectory
    } else {
        State::Failing(format!("cannot be read: {error}"))
    }
}

/// Fails unless the file is regular or a FIFO.
fn check_kind(metadata: &Metadata) -> Result<(), State> {
    let kind = metadata.file_type();
    if kind.is_file() || kind.is_fifo() {
        Ok(())
    } else if kind.is_dir() {
        Err(State::IsDirectory)
    } else if kind.is_socket() {
        Err(State::Failing("is a socket of another process; name a socket to create as unix:PATH".into()))
    } else {
        Err(State::Failing("is a device, not a log".into()))
    }
}

/// Returns the metadata of the file at a path, with symbolic links followed. Fails if it is neither a regular file nor
/// a FIFO.
pub(crate) fn identify(path: &Path) -> Result<Metadata, State> {
    let metadata = fs::metadata(path).map_err(|error| state_of(&error))?;
    check_kind(&metadata)?;
    Ok(metadata)
}

/// Opens a file for reading. A device is refused before it is opened, because opening one can have effects.
pub(crate) fn open(path: &Path) -> Result<(File, Metadata), State> {
    identify(path)?;
    let flags = OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path).map_err(|error| state_of(&error))?;
    // Another file may have replaced the checked one since.
    let metadata = file.metadata().map_err(|error| state_of(&error))?;
    check_kind(&metadata)?;
    Ok((file, metadata))
}

/// Finds the file of a position after it was renamed. A file without a hash must have a name that begins as the log's
/// does.
pub(crate) fn find_renamed(log: &Path, position: &FilePosition) -> Option<(File, Metadata)> {
    search(log, |name, inode| inode == position.inode && (position.head_len > 0 || is_of_log(log, name)))
        .find(|(file, metadata)| position.is_of(file, metadata.dev(), metadata.ino()))
}

/// Finds the copy of a file made before its truncation. The copy's name begins as the log's does. The copy has the same
/// first bytes and at least the length that was read.
pub(crate) fn find_copy(log: &Path, position: &FilePosition) -> Option<(File, Metadata)> {
    if position.head_len == 0 {
        return None;
    }
    search(log, |name, inode| inode != position.inode && is_of_log(log, name))
        .take(COPIES_MAX)
        .find(|(file, metadata)| metadata.len() >= position.offset && position.is_head_of(file))
}

fn is_of_log(log: &Path, name: &[u8]) -> bool {
    name.starts_with(log.file_stem().unwrap_or_default().as_encoded_bytes())
}

/// Opens regular, uncompressed files by name and inode. Searches the directory of the log, and the directory of the
/// file that the log's name links to.
fn search(log: &Path, is_likely: impl Fn(&[u8], u64) -> bool) -> impl Iterator<Item = (File, Metadata)> {
    let linked = fs::canonicalize(log).ok();
    let mut directories: Vec<PathBuf> =
        [Some(log), linked.as_deref()].into_iter().flatten().filter_map(Path::parent).map(Path::to_owned).collect();
    directories.dedup();
    directories
        .into_iter()
        .filter_map(|directory| {
            fs::read_dir(if directory.as_os_str().is_empty() { Path::new(".") } else { &directory }).ok()
        })
        .flat_map(|entries| entries.take(ENTRIES_MAX).flatten())
        .filter(move |entry| {
            let name = entry.file_name();
            let name = name.as_encoded_bytes();
            is_likely(name, entry.ino()) && !COMPRESSED.iter().any(|ending| name.ends_with(ending.as_bytes()))
        })
        .filter_map(|entry| open(&entry.path()).ok())
        .filter(|(_, metadata)| metadata.is_file())
}
