//! A datagram socket that servers send log lines to, such as nginx with `syslog:server=unix:PATH`.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt, lchown};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, setsockopt, sockopt};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::Group;

use crate::file::Budget;
use crate::follower::State;
use crate::lines::Tally;
use crate::open::state_of;

const MODE: u32 = 0o660;
/// Requested size of the receive buffer in bytes.
const BUFFER: usize = 1 << 20;

/// A bound socket, removed when dropped.
#[derive(Debug)]
pub(crate) struct Listening {
    socket: OwnedFd,
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Listening {
    /// Creates the socket. Replaces a socket that no process has open. Fails if anything else has the path.
    pub(crate) fn bind(path: &Path, group: Option<&str>) -> Result<Self, State> {
        let group = group.map(number_of).transpose()?;
        make_room(path)?;
        Self::create(path, group).map_err(|error| state_of(&error))
    }

    fn create(path: &Path, group: Option<u32>) -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket::socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
        // The path has this mode from its creation on, less the umask.
        fchmod(&socket, Mode::from_bits_truncate(MODE))?;
        // A smaller buffer is acceptable.
        setsockopt(&socket, sockopt::RcvBuf, &BUFFER).ok();
        socket::bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
        let metadata = fs::symlink_metadata(path)?;
        let this = Self { socket, path: path.into(), device: metadata.dev(), inode: metadata.ino() };
        if let Some(group) = group {
            let why =
                |error| format!("its socket cannot be given to the group; the daemon must be a member of it: {error}");
            lchown(path, None, Some(group)).map_err(|error| io::Error::other(why(error)))?;
        }
        fs::set_permissions(path, PermissionsExt::from_mode(MODE))?;
        Ok(this)
    }

    /// Returns true if the path still names this socket.
    pub(crate) fn is_in_place(&self) -> bool {
        fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| metadata.dev() == self.device && metadata.ino() == self.inode)
    }

    /// Hands on at most `line_max` bytes of each datagram, as one line. Returns true if more may be ready. Fails if the
    /// socket cannot be read.
    pub(crate) fn read(
        &self,
        line_max: usize,
        chunk: &mut [u8],
        budget: &mut Budget,
        tally: &mut Tally,
        sink: &mut impl FnMut(&[u8]),
    ) -> io::Result<bool> {
        while budget.bytes > 0 && budget.lines > 0 {
            let length = match socket::recv(self.socket.as_raw_fd(), chunk, MsgFlags::MSG_TRUNC) {
                Ok(length) => length,
                Err(Errno::EAGAIN) => return Ok(false),
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            budget.bytes = budget.bytes.saturating_sub(length.max(1) as u64);
            budget.lines -= 1;
            // MSG_TRUNC returns the datagram's whole length, even if the buffer was smaller.
            let line = chunk.get(..length).map(|line| line.strip_suffix(b"\n").unwrap_or(line));
            match line {
                Some(line) if line.len() <= line_max && !line.contains(&b'\n') => {
                    tally.lines += 1;
                    tally.bytes += length as u64;
                    sink(line);
                }
                _ => {
                    tally.skipped_lines += 1;
                    tally.skipped_bytes += length as u64;
                    let cut = chunk.get(..line_max).filter(|cut| length > line_max && !cut.contains(&b'\n'));
                    cut.into_iter().for_each(&mut *sink);
                }
            }
        }
        Ok(true)
    }
}

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.is_in_place() {
            fs::remove_file(&self.path).ok();
        }
    }
}

/// Returns the id of a group. Fails if the group does not exist.
fn number_of(group: &str) -> Result<u32, State> {
    match Group::from_name(group) {
        Ok(Some(of)) => Ok(of.gid.as_raw()),
        Ok(None) => Err(State::Failing(format!("is for group {group}, which does not exist"))),
        Err(error) => Err(State::Failing(format!("is for group {group}, which cannot be looked up: {error}"))),
    }
}

/// Removes a socket that no process has open. Fails if anything else has the path.
fn make_room(path: &Path) -> Result<(), State> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(state_of(&error)),
    };
    if metadata.is_dir() {
        return Err(State::IsDirectory);
    }
    if !metadata.file_type().is_socket() {
        return Err(State::Failing("exists and is no socket; remove it or choose another path".into()));
    }
    match UnixDatagram::unbound().and_then(|probe| probe.connect(path)) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| state_of(&error))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(State::NoPermission),
        Ok(()) | Err(_) => Err(State::Failing("is a socket that another process receives on".into())),
    }
}
