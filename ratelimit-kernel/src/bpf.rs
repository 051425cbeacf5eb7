//! The system call `bpf`, for commands that aya has no function for. Knows commands, file descriptors and bytes.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Number of a command in `enum bpf_cmd`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command(libc::c_long);

impl Command {
    #[cfg(any(test, feature = "fixture"))]
    pub(super) const MAP_LOOKUP_ELEM: Self = Self(1);
    #[cfg(any(test, feature = "fixture"))]
    pub(super) const MAP_UPDATE_ELEM: Self = Self(2);
    #[cfg(any(test, feature = "fixture"))]
    pub(super) const MAP_GET_NEXT_KEY: Self = Self(4);
    pub(super) const PROG_LOAD: Self = Self(5);
    const OBJ_PIN: Self = Self(6);
    const OBJ_GET: Self = Self(7);
    const OBJ_GET_INFO_BY_FD: Self = Self(15);
    const PROG_QUERY: Self = Self(16);
    pub(super) const MAP_LOOKUP_BATCH: Self = Self(24);
    pub(super) const MAP_UPDATE_BATCH: Self = Self(26);
    pub(super) const MAP_DELETE_BATCH: Self = Self(27);
}

/// Fields of `union bpf_attr` for `BPF_OBJ_PIN` and `BPF_OBJ_GET`.
#[repr(C)]
struct GetAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

/// Mode in which a pinned object is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Reads and writes.
    Whole,
    /// Reads only: writes through the descriptor are refused. Only maps support this mode. Read permission on the pin
    /// suffices.
    ReadOnly,
}

/// Opens the object pinned at `path`.
///
/// # Errors
/// Returns the kernel's error.
pub(super) fn open_pin(path: &Path, access: Access) -> io::Result<OwnedFd> {
    /// `BPF_F_RDONLY`, include/uapi/linux/bpf.h.
    const RDONLY: u32 = 1 << 3;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = match access {
        Access::Whole => 0,
        Access::ReadOnly => RDONLY,
    };
    let mut attr = GetAttr { path: path.as_ptr() as u64, fd: 0, flags };
    // SAFETY: the path lives until the call returns, and ends with a zero.
    let fd = unsafe { call(Command::OBJ_GET, &mut attr) }?;
    // SAFETY: the kernel has just made the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Pins an object at `path`.
///
/// # Errors
/// Returns the kernel's error.
pub(super) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = GetAttr { path: path.as_ptr() as u64, fd: object.as_raw_fd().unsigned_abs(), flags: 0 };
    // SAFETY: the path lives until the call returns, and ends with a zero.
    unsafe { call(Command::OBJ_PIN, &mut attr) }.map(|_| ())
}

/// `struct { ... } query` of `union bpf_attr`.
#[repr(C)]
#[derive(Default)]
struct QueryAttr {
    interface: u32,
    kind: u32,
    flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    padding: u32,
    rest: [u64; 4],
}

const _: () = assert!(size_of::<QueryAttr>() == 64);

/// Returns the programs at TCX ingress of an interface, in order. Empty if the kernel has no such hook.
///
/// # Errors
/// Returns the kernel's error.
pub(super) fn tcx_programs(interface: u32) -> io::Result<Vec<u32>> {
    /// `BPF_TCX_INGRESS`, include/uapi/linux/bpf.h.
    const TCX_INGRESS: u32 = 46;
    /// Maximum number of programs at the hook (`BPF_MPROG_MAX`, include/linux/bpf_mprog.h, Linux 6.18).
    const PROGRAMS_MAX: u32 = 64;

    let mut programs = vec![0_u32; PROGRAMS_MAX as usize];
    let mut attr = QueryAttr {
        interface,
        kind: TCX_INGRESS,
        programs: programs.as_mut_ptr() as u64,
        count: PROGRAMS_MAX,
        ..QueryAttr::default()
    };
    // SAFETY: the buffer has room for `count` ids and lives until the call returns.
    match unsafe { call(Command::PROG_QUERY, &mut attr) } {
        Ok(_) => {
            programs.truncate(attr.count as usize);
            Ok(programs)
        }
        // No program is attached, or the kernel has no such hook (before Linux 6.6).
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// `struct { ... } info` of `union bpf_attr`.
#[repr(C)]
struct InfoAttr {
    fd: u32,
    len: u32,
    info: u64,
}

/// Calls the kernel and returns the result of a successful call.
///
/// # Errors
/// Returns the kernel's error.
///
/// # Safety
/// `attr` must have the layout of `union bpf_attr` for this command. Its pointers must be valid, with room for the
/// lengths that it gives.
pub(super) unsafe fn call<A>(command: Command, attr: &mut A) -> io::Result<i32> {
    let attr: *mut A = attr;
    // SAFETY: `attr` has the given size. The caller guarantees the rest.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command.0, attr, size_of::<A>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(result).map_err(io::Error::other)
}

/// Reads the kernel's information about a map, program or link, up to the size of `info`.
///
/// # Errors
/// Returns the kernel's error.
///
/// # Safety
/// `info` must be the beginning of the kernel's structure for such an object, and valid for any bytes written. Its
/// pointers must have room for the lengths that it gives.
pub(super) unsafe fn look_at<I>(object: BorrowedFd<'_>, info: &mut I) -> io::Result<()> {
    let len = u32::try_from(size_of::<I>()).map_err(io::Error::other)?;
    let info: *mut I = info;
    let mut attr = InfoAttr { fd: object.as_raw_fd().unsigned_abs(), len, info: info as u64 };
    // SAFETY: `info` has room for the requested length. The caller guarantees the rest.
    unsafe { call(Command::OBJ_GET_INFO_BY_FD, &mut attr) }.map(|_| ())
}
