//! What a pinned XDP link holds. aya does not say which interface, so this is `BPF_OBJ_GET` and
//! `BPF_OBJ_GET_INFO_BY_FD` by hand. Knows paths and file descriptors.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::bpf::{self, Command};

/// `BPF_LINK_TYPE_XDP`, include/uapi/linux/bpf.h.
const KIND_XDP: u32 = 6;

/// What `union bpf_attr` has for `BPF_OBJ_GET`.
#[repr(C)]
struct GetAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

/// The start of `struct bpf_link_info`, as an XDP link fills it.
#[repr(C)]
#[derive(Default)]
struct Info {
    kind: u32,
    id: u32,
    program: u32,
    padding: u32,
    interface: u32,
    rest: u32,
}

const _: () = assert!(size_of::<Info>() == 24);

/// What an XDP link holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkInfo {
    /// The program's id.
    pub(super) program: u32,
    /// The interface's index in its network namespace; 0 once it is gone.
    pub(super) interface: u32,
}

/// Looks at the link that is pinned at `path`.
///
/// # Errors
/// What the kernel answers; and where it is a link of another kind.
pub(super) fn pinned(path: &Path) -> io::Result<LinkInfo> {
    let link = open(path)?;
    let mut info = Info::default();
    // SAFETY: it is integers alone, those that the kernel writes of a link, and points to nothing.
    unsafe { bpf::look_at(link.as_fd(), &mut info) }?;
    if info.kind != KIND_XDP {
        return Err(io::Error::other("it is no XDP link"));
    }
    Ok(LinkInfo { program: info.program, interface: info.interface })
}

/// Holds what is pinned at `path`.
///
/// # Errors
/// What the kernel answers.
pub(super) fn open(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = GetAttr { path: path.as_ptr() as u64, fd: 0, flags: 0 };
    // SAFETY: the path lives until the call returns, and ends with a zero.
    let fd = unsafe { bpf::call(Command::OBJ_GET, &mut attr) }?;
    // SAFETY: the kernel has just made it, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
