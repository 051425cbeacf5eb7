//! A private BPF file system, so that nobody else sees a test's pins.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statfs::statfs;

use crate::child::{directory, must, text_of};
use crate::program::{EXIT, Instruction, Kind, load};

/// A BPF file system on a temporary directory, unmounted on drop. Pins outlive the processes that created them.
#[derive(Debug)]
pub struct Bpffs {
    path: PathBuf,
}

impl Bpffs {
    /// Mounts a new file system.
    ///
    /// # Errors
    /// Fails if `mount` fails.
    pub fn mount() -> Result<Self> {
        let path = directory();
        std::fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        let bpffs = Self { path };
        must("mount", &["-t", "bpf", "-o", "mode=0700", "bpf", &bpffs.path.to_string_lossy()])?;
        Ok(bpffs)
    }

    /// Loads an XDP program that passes every packet, pins it as `name`, and returns the path for `ip link set dev IF
    /// xdp pinned PATH`.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn pin_passing_program(&self, name: &str) -> Result<PathBuf> {
        self.pin_passing(name, 0)
    }

    /// Loads and pins a passing XDP program that accepts packets in several fragments, as a program that only reads
    /// headers may do (Linux 5.18).
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn pin_passing_program_with_fragments(&self, name: &str) -> Result<PathBuf> {
        // include/uapi/linux/bpf.h: BPF_F_XDP_HAS_FRAGS.
        const HAS_FRAGMENTS: u32 = 1 << 5;
        self.pin_passing(name, HAS_FRAGMENTS)
    }

    fn pin_passing(&self, name: &str, flags: u32) -> Result<PathBuf> {
        // `r0 = XDP_PASS`
        self.pin_program(name, Kind::Xdp, flags, &[[0xb7, 0, 0, 0, 2, 0, 0, 0], EXIT])
    }

    pub(crate) fn pin_program(&self, name: &str, kind: Kind, flags: u32, of: &[Instruction]) -> Result<PathBuf> {
        let path = self.path.join(name);
        let program = load(kind, flags, of).with_context(|| format!("load the program {name}"))?;
        pin(&program, &path).with_context(|| format!("pin {}", path.display()))?;
        Ok(path)
    }

    /// Returns the path of the mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Mounts a BPF file system at /sys/fs/bpf for the calling thread and what it starts, unless one is mounted there.
///
/// # Errors
/// Fails if the kernel refuses.
pub fn usual_bpffs() -> Result<()> {
    /// Magic number `BPF_FS_MAGIC` of linux/magic.h.
    const MAGIC: i64 = 0xcafe_4a11;
    const USUAL: &str = "/sys/fs/bpf";

    if statfs(USUAL).is_ok_and(|of| of.filesystem_type().0 == MAGIC) {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWNS).context("leave the mount namespace")?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("keep mounts to this thread")?;
    mount(Some("bpf"), USUAL, Some("bpf"), MsFlags::empty(), Some("mode=0700")).context("mount a BPF file system")
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        // A later run sweeps what cannot be removed now.
        let _left = remove(&self.path);
    }
}

/// `union bpf_attr` of linux/bpf.h, for BPF_OBJ_PIN.
#[repr(C)]
struct PinAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

fn pin(program: &OwnedFd, path: &Path) -> Result<()> {
    const OBJ_PIN: libc::c_long = 6;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attr = PinAttr { path: path.as_ptr() as u64, fd: program.as_raw_fd().unsigned_abs(), flags: 0 };
    // SAFETY: the path lives until the call returns, and ends with a zero.
    let result = unsafe { libc::syscall(libc::SYS_bpf, OBJ_PIN, &raw const attr, size_of::<PinAttr>()) };
    Errno::result(result)?;
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    let is_mounted = text_of(Path::new("/proc/self/mounts"))
        .lines()
        .any(|line| line.split(' ').nth(1).is_some_and(|mounted| Path::new(mounted) == path));
    if is_mounted {
        must("umount", &["--lazy", &path.to_string_lossy()])?;
    }
    std::fs::remove_dir(path).with_context(|| format!("remove {}", path.display()))
}

pub(crate) fn sweep() -> Result<Vec<String>> {
    let mut swept = Vec::new();
    for entry in std::fs::read_dir(std::env::temp_dir()).context("list the temporary directory")? {
        let path = entry?.path();
        let is_leftover = path.file_name().is_some_and(|name| crate::is_leftover(&name.to_string_lossy()));
        if is_leftover && path.is_dir() && remove(&path).is_ok() {
            swept.push(format!("BPF file system {}", path.display()));
        }
    }
    Ok(swept)
}
