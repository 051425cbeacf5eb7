//! Runs a program under the restrictions of the systemd unit: capabilities, group, umask, no new privileges, system
//! calls and address families.
//!
//! Arguments: the program and its own arguments. Not reproduced are the unit's mounts and hidden paths, and its limits
//! on memory protection and namespaces. Whatever systemd sets up before the start is missing too.

use std::collections::BTreeSet;
use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use caps::{CapSet, CapsHashSet};
use integration_test::unit;
use nix::errno::Errno;
use nix::libc::{self, sock_filter, sock_fprog};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Group, setgid, setgroups};

/// `AUDIT_ARCH_*` of linux/audit.h.
#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(not(target_arch = "x86_64"))]
const ARCH: u32 = 0xc000_00b7;

/// Offsets in `struct seccomp_data` of linux/seccomp.h.
const DATA_NUMBER: u32 = 0;
const DATA_ARCH: u32 = 4;
const DATA_FIRST_ARGUMENT: u32 = 16;

fn main() -> Result<()> {
    let mut arguments = env::args_os().skip(1);
    let program = arguments.next().context("no program to run")?;
    let filter = filter(&unit::system_calls()?, &families()?);
    take_group()?;
    for mode in unit::setting("UMask") {
        umask(Mode::from_bits_truncate(u32::from_str_radix(mode, 8).context("UMask=")?));
    }
    bound(&unit::capabilities())?;
    ensure!(unit::setting("NoNewPrivileges") == ["yes"], "the unit gains new privileges");
    nix::sys::prctl::set_no_new_privs()?;
    install(&filter)?;
    Err(Command::new(program).args(arguments).exec()).context("run the program")
}

fn take_group() -> Result<()> {
    for name in unit::setting("Group") {
        let group = Group::from_name(name)?.with_context(|| format!("there is no group {name}"))?;
        setgroups(&[])?;
        setgid(group.gid)?;
    }
    Ok(())
}

/// Limits the bounding set to the named capabilities, which become those of the next program that root executes.
fn bound(names: &[&str]) -> Result<()> {
    let kept = names.iter().map(|name| name.parse()).collect::<Result<CapsHashSet, _>>()?;
    for other in caps::read(None, CapSet::Bounding)?.difference(&kept) {
        caps::drop(None, CapSet::Bounding, *other)?;
    }
    caps::clear(None, CapSet::Ambient)?;
    Ok(caps::clear(None, CapSet::Inheritable)?)
}

fn families() -> Result<Vec<u32>> {
    let names = unit::setting("RestrictAddressFamilies").into_iter().flat_map(str::split_whitespace);
    let number = |name| {
        let family = match name {
            "AF_UNIX" => libc::AF_UNIX,
            "AF_INET" => libc::AF_INET,
            "AF_INET6" => libc::AF_INET6,
            "AF_NETLINK" => libc::AF_NETLINK,
            other => bail!("what is the number of {other}?"),
        };
        Ok(family.unsigned_abs())
    };
    names.map(number).collect()
}

/// Builds the classic BPF filter of system calls. A call fails with the unit's error unless it is allowed. Numbers of
/// another architecture and sockets of other families fail too.
fn filter(allowed: &BTreeSet<u32>, families: &[u32]) -> Vec<sock_filter> {
    let load = |k| sock_filter { code: code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), jt: 0, jf: 0, k };
    let unless = |k, skip| sock_filter { code: code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K), jt: 0, jf: skip, k };
    let when = |k, skip| sock_filter { jt: skip, jf: 0, ..unless(k, 0) };
    let end = |k| sock_filter { code: code(libc::BPF_RET | libc::BPF_K), jt: 0, jf: 0, k };
    let allow = || end(libc::SECCOMP_RET_ALLOW);
    let fail = |errno: Errno| end(libc::SECCOMP_RET_ERRNO | (errno as i32).unsigned_abs());

    let mut of_socket = vec![load(DATA_FIRST_ARGUMENT)];
    families.iter().for_each(|family| of_socket.extend([unless(*family, 1), allow()]));
    of_socket.push(fail(Errno::EAFNOSUPPORT));
    let socket = u32::try_from(libc::SYS_socket).unwrap_or(u32::MAX);
    let behind_socket = u8::try_from(of_socket.len()).unwrap_or(u8::MAX);

    let mut filter =
        vec![load(DATA_ARCH), when(ARCH, 1), fail(Errno::EPERM), load(DATA_NUMBER), unless(socket, behind_socket)];
    filter.extend(of_socket);
    allowed.iter().filter(|number| **number != socket).for_each(|number| filter.extend([unless(*number, 1), allow()]));
    filter.push(fail(Errno::EPERM));
    filter
}

/// Returns an operation's code, which must fit into two bytes.
const fn code(bits: u32) -> u16 {
    let [low, high, ..] = bits.to_le_bytes();
    u16::from_le_bytes([low, high])
}

fn install(filter: &[sock_filter]) -> Result<()> {
    let len = u16::try_from(filter.len()).context("the filter is too long")?;
    let program = sock_fprog { len, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the filter, which lives until the call returns and is as long as it says.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    Errno::result(result).context("install the filter of system calls")?;
    Ok(())
}
