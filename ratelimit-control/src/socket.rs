//! Path of the control socket, owned by one daemon at a time.
//!
//! The owner holds a lock on `PATH.lock` for as long as it lives, so the kernel releases it whatever ends the daemon.
//! Only the lock's holder removes a stale socket. The new socket appears in one step, with its final mode.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Gid, Group};
use ratelimit_crash::{Point, reach};

/// Name of the group that may read statistics.
pub const GROUP: &str = "ratelimitd";

const SOCKET_MODE: u32 = 0o660;
const LOCK_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o755;

/// Reason why the path is not available.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another daemon owns it.
    #[error("another ratelimitd{} already answers on {path}; stop that one first, or give this one another --socket", pid_text(*.pid))]
    Busy {
        /// Path of the socket.
        path: PathBuf,
        /// PID of the other daemon, if the kernel reports it.
        pid: Option<i32>,
    },
    /// Something that is no socket exists there.
    #[error("{path} exists and is no socket; remove it, or give another --socket")]
    NotASocket {
        /// Path of the obstacle.
        path: PathBuf,
    },
    /// Any other system error.
    #[error("{what} {path}: {source}")]
    Io {
        /// Description of the failed step.
        what: &'static str,
        /// Path that it was tried on.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// The bound socket and the lock on its path. Dropping it removes both.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    listener: UnixListener,
    _lock: Lock,
}

/// Lock that removes its file when dropped, while it is still held.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _file: Flock<File>,
}

impl ControlSocket {
    /// Takes the path and binds the socket, making its directory if needed. Fails if another daemon or a file has the
    /// path.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        if let Some(directory) = path.parent()
            && !directory.exists()
        {
            fs::create_dir(directory).map_err(error("make the directory", directory))?;
            let mode = Permissions::from_mode(DIRECTORY_MODE);
            fs::set_permissions(directory, mode).map_err(error("set the mode of", directory))?;
        }
        let lock = lock(path)?;
        remove_stale(path)?;
        let listener = place(path)?;
        reach(Point::SocketBound);
        Ok(Self { path: path.to_owned(), listener, _lock: lock })
    }

    /// Returns a second, non-blocking descriptor of the listening socket.
    pub fn listener(&self) -> io::Result<UnixListener> {
        let listener = self.listener.try_clone()?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Errors do not matter: the next daemon removes a stale socket.
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Errors do not matter: an unlocked lock file obstructs nobody.
        let _ = fs::remove_file(&self.path);
    }
}

fn lock(socket: &Path) -> Result<Lock, SocketError> {
    let path = suffixed(socket, ".lock");
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(LOCK_MODE).custom_flags(OFlag::O_NOFOLLOW.bits());
        let file = options.open(&path).map_err(error("open", &path))?;
        let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                return Err(SocketError::Busy { path: socket.to_owned(), pid: owner(socket) });
            }
            Err((_, errno)) => return Err(error("lock", &path)(errno.into())),
        };
        // An earlier holder may have removed the file between the open and the lock. Such a lock excludes nobody.
        let ours = file.metadata().map_err(error("look at", &path))?;
        if fs::metadata(&path).is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
            return Ok(Lock { path, _file: file });
        }
    }
}

fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let there = match fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(missing) if missing.kind() == ErrorKind::NotFound => return Ok(()),
        Err(other) => return Err(error("look at", path)(other)),
    };
    if !there.file_type().is_socket() {
        return Err(SocketError::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path) {
        Err(refused) if refused.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(error("remove the stale", path))
        }
        Err(other) => Err(error("connect to", path)(other)),
        Ok(stream) => Err(SocketError::Busy { path: path.to_owned(), pid: peer(&stream) }),
    }
}

/// Binds beside the path and renames, so that the path never shows a socket with another mode or group.
fn place(path: &Path) -> Result<UnixListener, SocketError> {
    let beside = suffixed(path, ".new");
    match fs::remove_file(&beside) {
        Err(other) if other.kind() != ErrorKind::NotFound => return Err(error("remove the stale", &beside)(other)),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&beside).map_err(error("listen on", path))?;
    let mode = Permissions::from_mode(SOCKET_MODE);
    fs::set_permissions(&beside, mode).map_err(error("set the mode of", &beside))?;
    // For a service, the socket is created with the group. The unit does not allow the system call chown(2).
    let is_of = |group: &Gid| fs::metadata(&beside).is_ok_and(|of| of.gid() == group.as_raw());
    if let Some(group) = group().filter(|group| !is_of(group))
        && let Err(refused) = std::os::unix::fs::chown(&beside, None, Some(group.as_raw()))
    {
        tracing::warn!(path = %path.display(), "cannot give the control socket to group {GROUP}: {refused}");
    }
    reach(Point::SocketBeside);
    fs::rename(&beside, path).map_err(error("put in place", path))?;
    Ok(listener)
}

fn group() -> Option<Gid> {
    Group::from_name(GROUP).ok().flatten().map(|group| group.gid)
}

/// Returns the PID of the listener, from the kernel's record of who called listen(2).
fn owner(path: &Path) -> Option<i32> {
    peer(&UnixStream::connect(path).ok()?)
}

fn peer(stream: &UnixStream) -> Option<i32> {
    getsockopt(stream, PeerCredentials).ok().map(|peer| peer.pid()).filter(|pid| *pid > 0)
}

fn pid_text(pid: Option<i32>) -> String {
    pid.map_or(String::new(), |pid| format!(" (process {pid})"))
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SocketError {
    let path = path.to_owned();
    move |source| SocketError::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_is_refused_by_the_first_ones_pid_and_leaves_it_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let first = ControlSocket::bind(&path).unwrap();
        let second = ControlSocket::bind(&path).unwrap_err();
        let SocketError::Busy { pid, .. } = &second else { panic!("{second}") };
        assert_eq!(*pid, i32::try_from(std::process::id()).ok());
        assert!(second.to_string().contains(&format!("(process {})", std::process::id())));
        assert!(UnixStream::connect(&path).is_ok());
        drop(first);
        assert!(ControlSocket::bind(&path).is_ok());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_without_a_lock_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let other = UnixListener::bind(&path).unwrap();
        assert!(matches!(ControlSocket::bind(&path), Err(SocketError::Busy { .. })));
        drop(other);
        let socket = ControlSocket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, SOCKET_MODE);
        drop(socket);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn a_path_that_is_not_a_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(ControlSocket::bind(&path), Err(SocketError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }
}
