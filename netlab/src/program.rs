//! Small BPF programs in the kernel's encoding.

use std::os::fd::{FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc;

/// `struct bpf_insn`: code, registers, offset, immediate.
pub(crate) type Instruction = [u8; 8];

pub(crate) const EXIT: Instruction = [0x95, 0, 0, 0, 0, 0, 0, 0];

/// `enum bpf_prog_type` of linux/bpf.h.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Kind {
    /// A classifier, `BPF_PROG_TYPE_SCHED_CLS`
    Classifier = 3,
    /// An XDP program, `BPF_PROG_TYPE_XDP`
    Xdp = 6,
}

/// The start of `union bpf_attr` for BPF_PROG_LOAD.
#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    kind: u32,
    instructions_len: u32,
    instructions: u64,
    license: u64,
    /// Log and its buffer, unused.
    log: [u64; 2],
    /// Version of the kernel, unused.
    version: u32,
    flags: u32,
    /// Name and interface, unused.
    rest: [u64; 3],
}

pub(crate) fn load(kind: Kind, flags: u32, instructions: &[Instruction]) -> Result<OwnedFd> {
    const PROG_LOAD: libc::c_long = 5;
    let attr = LoadAttr {
        kind: kind as u32,
        instructions_len: u32::try_from(instructions.len())?,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        flags,
        ..LoadAttr::default()
    };
    // SAFETY: what the attribute points to lives until the call returns, and is as long as it says.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const attr, size_of::<LoadAttr>()) };
    let fd = i32::try_from(Errno::result(fd)?).context("a descriptor")?;
    // SAFETY: the kernel has just made it, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
