//! What a pinned XDP link holds. aya does not say which interface, so this is `BPF_OBJ_GET` and `BPF_OBJ_GET_INFO_BY_FD` by hand.
//! Knows paths and file descriptors.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The commands' numbers in `enum bpf_cmd`.
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;

/// `BPF_LINK_TYPE_XDP`, include/uapi/linux/bpf.h.
const KIND_XDP: u32 = 6;

/// What `union bpf_attr` has for `BPF_OBJ_GET`.
#[repr(C)]
struct GetAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

/// `struct { ... } info` of `union bpf_attr`.
#[repr(C)]
struct InfoAttr {
    fd: u32,
    info_len: u32,
    info: u64,
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

const INFO_BYTES: u32 = 24;

const _: () = assert!(size_of::<Info>() == INFO_BYTES as usize);

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
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = GetAttr { path: path.as_ptr() as u64, fd: 0, flags: 0 };
    // SAFETY: the path lives until the call returns, and ends with a zero.
    let fd = answer(unsafe { libc::syscall(libc::SYS_bpf, BPF_OBJ_GET, &raw mut attr, size_of::<GetAttr>()) })?;
    // SAFETY: the kernel has just made it, and nobody else has it.
    let link = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut info = Info::default();
    let mut attr = InfoAttr { fd: link.as_raw_fd().unsigned_abs(), info_len: INFO_BYTES, info: (&raw mut info) as u64 };
    // SAFETY: there is room for what is asked for, and it lives until the call returns.
    answer(unsafe { libc::syscall(libc::SYS_bpf, BPF_OBJ_GET_INFO_BY_FD, &raw mut attr, size_of::<InfoAttr>()) })?;
    if info.kind != KIND_XDP {
        return Err(io::Error::other("it is no XDP link"));
    }
    Ok(LinkInfo { program: info.program, interface: info.interface })
}

fn answer(result: libc::c_long) -> io::Result<i32> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(result).map_err(io::Error::other)
}
