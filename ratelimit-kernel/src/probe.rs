//! Features of the running kernel, each tried by itself. A distribution's kernel may have features that its version
//! number denies, and lack ones that it promises. Loads programs of two instructions and creates maps of one entry, and
//! drops both at once. Attaches nothing.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use aya::maps::MapType;
use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported, is_map_supported, is_program_supported};

use crate::bpf::{self, Command};
use crate::btf::{self, Btf};

/// Types of the program's maps.
pub const MAPS: [(&str, MapType); 6] = [
    ("array", MapType::Array),
    ("hash", MapType::Hash),
    ("LPM trie", MapType::LpmTrie),
    ("LRU hash", MapType::LruHash),
    ("per-CPU array", MapType::PerCpuArray),
    ("ring buffer", MapType::RingBuf),
];

/// Kernel functions that the program calls.
pub const HELPERS: [(&str, BpfHelper); 15] = [
    ("bpf_map_lookup_elem", BpfHelper::BPF_FUNC_map_lookup_elem),
    ("bpf_map_update_elem", BpfHelper::BPF_FUNC_map_update_elem),
    ("bpf_ktime_get_ns", BpfHelper::BPF_FUNC_ktime_get_ns),
    ("bpf_sk_release", BpfHelper::BPF_FUNC_sk_release),
    ("bpf_skc_lookup_tcp", BpfHelper::BPF_FUNC_skc_lookup_tcp),
    ("bpf_tcp_check_syncookie", BpfHelper::BPF_FUNC_tcp_check_syncookie),
    ("bpf_jiffies64", BpfHelper::BPF_FUNC_jiffies64),
    ("bpf_ringbuf_reserve", BpfHelper::BPF_FUNC_ringbuf_reserve),
    ("bpf_ringbuf_submit", BpfHelper::BPF_FUNC_ringbuf_submit),
    ("bpf_ringbuf_query", BpfHelper::BPF_FUNC_ringbuf_query),
    ("bpf_skc_to_tcp_sock", BpfHelper::BPF_FUNC_skc_to_tcp_sock),
    ("bpf_skc_to_tcp_request_sock", BpfHelper::BPF_FUNC_skc_to_tcp_request_sock),
    ("bpf_loop", BpfHelper::BPF_FUNC_loop),
    ("bpf_xdp_get_buff_len", BpfHelper::BPF_FUNC_xdp_get_buff_len),
    ("bpf_xdp_adjust_tail", BpfHelper::BPF_FUNC_xdp_adjust_tail),
];

/// A kernel feature that the program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Name of the feature, such as `map LRU hash`.
    pub name: String,
    /// Presence of the feature in the kernel, or why it is not known.
    pub is_there: Result<bool, String>,
}

/// Tries every feature that the program needs.
pub fn features() -> Vec<Feature> {
    let of = |name: String, is_there: Result<bool, anyhow::Error>| Feature {
        name,
        is_there: is_there.map_err(|error| short(&error)),
    };
    let program = of("program type xdp".to_owned(), is_program_supported(ProgramType::Xdp).map_err(Into::into));
    let frags = of("XDP programs for frames of several buffers".to_owned(), takes_frags().map_err(Into::into));
    let link = of("BPF links on XDP".to_owned(), has_structure("bpf_xdp_link"));
    let maps = MAPS.map(|(name, kind)| of(format!("map {name}"), is_map_supported(kind).map_err(Into::into)));
    let helper = |id| is_helper_supported(ProgramType::Xdp, id).map_err(Into::into);
    let helpers = HELPERS.map(|(name, id)| of(format!("function {name}"), helper(id)));
    [program, frags, link].into_iter().chain(maps).chain(helpers).collect()
}

/// Returns the kernel's error as text without its number.
fn short(error: &anyhow::Error) -> String {
    match crate::kernel::errno_of(error) {
        Some(libc::EPERM | libc::EACCES) => "permission denied".to_owned(),
        Some(_) | None => format!("{error:#}"),
    }
}

/// Returns whether the kernel's type information has a structure with this name.
fn has_structure(name: &str) -> anyhow::Result<bool> {
    let bytes = btf::of_kernel()?;
    Ok(Btf::parse(&bytes)?.has_structure(name))
}

/// Fields of `union bpf_attr` for `BPF_PROG_LOAD`, up to the last needed one.
#[repr(C)]
struct LoadAttr {
    kind: u32,
    instructions_len: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

/// `BPF_PROG_TYPE_XDP` and `BPF_F_XDP_HAS_FRAGS`, include/uapi/linux/bpf.h.
const XDP: u32 = 6;
const HAS_FRAGS: u32 = 1 << 5;

/// `r0 = 2` (XDP_PASS) and `exit`, each an instruction of 8 bytes.
const PASS: [u64; 2] = [0x0000_0002_0000_00b7, 0x95];

/// Returns whether the kernel loads a program with `BPF_F_XDP_HAS_FRAGS`. Kernels that do not know the flag refuse it.
fn takes_frags() -> io::Result<bool> {
    let mut attr = LoadAttr {
        kind: XDP,
        instructions_len: 2,
        instructions: PASS.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: HAS_FRAGS,
    };
    // SAFETY: the instructions and the license live until the call returns, and have the given length.
    match unsafe { bpf::call(Command::PROG_LOAD, &mut attr) } {
        Ok(fd) => {
            // SAFETY: the kernel has just made the descriptor, and nothing else owns it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            Ok(true)
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::E2BIG)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Checks that the kernel shows its type information, which gives the field offsets in sockets.
///
/// # Errors
/// Fails if the type information cannot be read, or lacks `tcp_sock.rcv_nxt`.
pub fn type_information() -> anyhow::Result<()> {
    let bytes = btf::of_kernel()?;
    Btf::parse(&bytes)?.offset("tcp_sock", "rcv_nxt").map(|_| ())
}

/// Returns the number of possible processors and of online processors.
///
/// # Errors
/// Fails if /sys does not list them.
pub fn processors() -> io::Result<(u32, u32)> {
    let failed = |(file, error): (&str, io::Error)| io::Error::other(format!("{file}: {error}"));
    let count = |count: usize| u32::try_from(count).map_err(io::Error::other);
    let possible = aya::util::nr_cpus().map_err(failed)?;
    let online = aya::util::online_cpus().map_err(failed)?.len();
    Ok((count(possible)?, count(online)?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use object::read::{Object as _, ObjectSection as _};

    use super::*;

    /// Opcode `BPF_JMP | BPF_CALL`. The instruction's second byte distinguishes calls by number from other calls.
    const CALL: u8 = 0x85;

    /// The probes must match the shipped object. A new map type or function must be added to the lists.
    #[test]
    fn every_map_type_and_function_of_the_shipped_program_is_tried_and_no_other() {
        let object = object::File::parse(crate::object::ELF).unwrap();
        let (mut called, mut kinds) = (BTreeSet::new(), BTreeSet::new());
        for section in object.sections() {
            let bytes = section.data().unwrap();
            if section.kind() == object::SectionKind::Text {
                for instruction in bytes.chunks_exact(8).filter(|of| of[0] == CALL && of[1] >> 4 == 0) {
                    called.insert(u32::from_ne_bytes(*instruction.last_chunk().unwrap()));
                }
            }
            if section.name() == Ok("maps") {
                // `struct bpf_map_def` has 28 bytes, and its first word is the type.
                kinds.extend(bytes.chunks_exact(28).map(|of| u32::from_ne_bytes(*of.first_chunk().unwrap())));
            }
        }
        assert_eq!(called, HELPERS.iter().map(|(_, id)| *id as u32).collect());
        assert_eq!(kinds, MAPS.iter().map(|(_, kind)| *kind as u32).collect());
    }
}
