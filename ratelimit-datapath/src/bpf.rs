//! The system call `bpf`, where aya has no function for what is asked. Knows commands, file descriptors and bytes.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A command's number in `enum bpf_cmd`.
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
    const OBJ_GET: Self = Self(7);
    const OBJ_GET_INFO_BY_FD: Self = Self(15);
    pub(super) const MAP_LOOKUP_BATCH: Self = Self(24);
    pub(super) const MAP_UPDATE_BATCH: Self = Self(26);
    pub(super) const MAP_DELETE_BATCH: Self = Self(27);
}

/// What `union bpf_attr` has for `BPF_OBJ_GET`.
#[repr(C)]
struct GetAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

/// How a pinned object is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// To read it and to change it.
    Whole,
    /// To read it: what writes through it is refused. Maps alone know that, and who may read the pin may do it.
    ReadOnly,
}

/// Opens what is pinned at `path`.
///
/// # Errors
/// What the kernel answers.
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
    // SAFETY: the kernel has just made it, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `struct { ... } info` of `union bpf_attr`.
#[repr(C)]
struct InfoAttr {
    fd: u32,
    len: u32,
    info: u64,
}

/// Asks the kernel; what it returns where that is no error.
///
/// # Errors
/// What the kernel answers.
///
/// # Safety `attr` is what `union bpf_attr` has for this command, and what it points to is there, with room for as
/// much as it says.
pub(super) unsafe fn call<A>(command: Command, attr: &mut A) -> io::Result<i32> {
    let attr: *mut A = attr;
    // SAFETY: `attr` is of that size; the rest is promised.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command.0, attr, size_of::<A>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(result).map_err(io::Error::other)
}

/// Asks what there is to know of a map, program or link, as far as `info` goes.
///
/// # Errors
/// What the kernel answers.
///
/// # Safety `info` is the beginning of what the kernel has for such an object, valid whatever is written there, and
/// what it points to has room for as much as it says.
pub(super) unsafe fn look_at<I>(object: BorrowedFd<'_>, info: &mut I) -> io::Result<()> {
    let len = u32::try_from(size_of::<I>()).map_err(io::Error::other)?;
    let info: *mut I = info;
    let mut attr = InfoAttr { fd: object.as_raw_fd().unsigned_abs(), len, info: info as u64 };
    // SAFETY: there is room for what is asked for; the rest is promised.
    unsafe { call(Command::OBJ_GET_INFO_BY_FD, &mut attr) }.map(|_| ())
}
