//! Contents of a pinned link. aya does not report the interface, so this module calls `BPF_OBJ_GET` and
//! `BPF_OBJ_GET_INFO_BY_FD` itself. Knows paths and file descriptors.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::Path;

use super::Hook;
use super::bpf::{self, Access};

/// Values of `BPF_LINK_TYPE_XDP` and `BPF_LINK_TYPE_TCX`, include/uapi/linux/bpf.h.
const KIND_XDP: u32 = 6;
const KIND_TCX: u32 = 11;

/// Start of `struct bpf_link_info`, as links of both kinds fill it.
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

/// Contents of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkInfo {
    /// Hook of the link.
    pub(super) hook: Hook,
    /// Id of the program.
    pub(super) program: u32,
    /// Index of the interface in its network namespace. 0 once the interface is gone.
    pub(super) interface: u32,
}

/// Reads the link that is pinned at `path`.
///
/// # Errors
/// Returns the kernel's error, or fails if the link is of another kind.
pub(super) fn pinned(path: &Path) -> io::Result<LinkInfo> {
    let link = bpf::open_pin(path, Access::Whole)?;
    of(link.as_fd())
}

/// Reads an open link.
///
/// # Errors
/// Returns the kernel's error, or fails if the link is of another kind.
pub(super) fn of(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    let mut info = Info::default();
    // SAFETY: the structure has only integers, which the kernel fills in, and no pointers.
    unsafe { bpf::look_at(link, &mut info) }?;
    let hook = match info.kind {
        KIND_XDP => Hook::Xdp,
        KIND_TCX => Hook::Tcx,
        _ => return Err(io::Error::other("it is neither an XDP nor a TCX link")),
    };
    Ok(LinkInfo { hook, program: info.program, interface: info.interface })
}

/// Returns the id of the program that is pinned directly or through a link. None for maps, and for pins that may not be
/// opened.
pub(super) fn program_of(path: &Path) -> Option<u32> {
    let object = bpf::open_pin(path, Access::Whole).ok()?;
    program_in(&fs::read_to_string(format!("/proc/self/fdinfo/{}", object.as_raw_fd())).ok()?)
}

/// Returns `prog_id:` from a descriptor's lines, which programs and links have.
pub(super) fn program_in(lines: &str) -> Option<u32> {
    lines.lines().find_map(|line| line.strip_prefix("prog_id:"))?.trim().parse().ok()
}
