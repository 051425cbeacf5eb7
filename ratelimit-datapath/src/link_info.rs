//! What a pinned link holds. aya does not say which interface, so this is `BPF_OBJ_GET` and
//! `BPF_OBJ_GET_INFO_BY_FD` by hand. Knows paths and file descriptors.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::Path;

use super::Hook;
use super::bpf::{self, Access};

/// `BPF_LINK_TYPE_XDP` and `BPF_LINK_TYPE_TCX`, include/uapi/linux/bpf.h.
const KIND_XDP: u32 = 6;
const KIND_TCX: u32 = 11;

/// The start of `struct bpf_link_info`, as links of both kinds fill it.
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

/// What a link holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkInfo {
    /// Where.
    pub(super) hook: Hook,
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
    let link = bpf::open_pin(path, Access::Whole)?;
    of(link.as_fd())
}

/// Looks at this link.
///
/// # Errors
/// Likewise.
pub(super) fn of(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    let mut info = Info::default();
    // SAFETY: it is integers alone, those that the kernel writes of a link, and points to nothing.
    unsafe { bpf::look_at(link, &mut info) }?;
    let hook = match info.kind {
        KIND_XDP => Hook::Xdp,
        KIND_TCX => Hook::Tcx,
        _ => return Err(io::Error::other("it is a link of neither XDP nor TCX")),
    };
    Ok(LinkInfo { hook, program: info.program, interface: info.interface })
}

/// The number of the program that a pin is, or whose link it is; none of maps, and of what may not be opened.
pub(super) fn program_of(path: &Path) -> Option<u32> {
    let object = bpf::open_pin(path, Access::Whole).ok()?;
    program_in(&fs::read_to_string(format!("/proc/self/fdinfo/{}", object.as_raw_fd())).ok()?)
}

/// `prog_id:` of a descriptor's lines, which programs and links have.
pub(super) fn program_in(lines: &str) -> Option<u32> {
    lines.lines().find_map(|line| line.strip_prefix("prog_id:"))?.trim().parse().ok()
}
