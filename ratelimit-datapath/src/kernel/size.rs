//! How large the loaded program is: all of it, and each of its functions, which are the paths that a packet may take.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd as _, BorrowedFd};

use anyhow::{Context as _, ensure};

use super::{Kernel, program};
use crate::{DatapathError, bpf};

/// How large the loaded program is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramSize {
    /// Instructions that the verifier looked at, of a million that it will; 0 before Linux 5.16, which does not tell.
    pub verified_instructions: u32,
    /// The program as the kernel rewrote it, 8 bytes an instruction.
    pub translated_bytes: u32,
    /// The machine's instructions that it became.
    pub jited_bytes: u32,
    /// The same of each of its functions.
    pub functions: BTreeMap<String, u32>,
}

/// `struct bpf_prog_info` up to what tells of functions (Linux 4.18); aya has nothing of it.
#[repr(C)]
#[derive(Default)]
struct Info {
    before: [u64; 13],
    addresses_len: u32,
    lens_len: u32,
    addresses: u64,
    lens: u64,
}

const _: () = assert!(size_of::<Info>() == 128);

impl Kernel {
    /// How large the program is, as this kernel took it.
    ///
    /// # Errors
    /// Where the kernel does not say, or hides its symbols.
    pub fn program_size(&mut self) -> Result<ProgramSize, DatapathError> {
        let program = program(&mut self.ebpf)?;
        let info = program.info().context("look at the program")?;
        Ok(ProgramSize {
            verified_instructions: info.verified_instruction_count().unwrap_or(0),
            translated_bytes: info.size_translated().unwrap_or(0),
            jited_bytes: info.size_jitted(),
            functions: functions(program.fd().context("the program is not loaded")?.as_fd())?,
        })
    }
}

/// The functions' names, and how many bytes the machine's code of each has.
fn functions(program: BorrowedFd<'_>) -> anyhow::Result<BTreeMap<String, u32>> {
    let mut info = Info::default();
    // SAFETY: it is integers alone, those that the kernel writes of a program, and points to nothing yet.
    unsafe { bpf::look_at(program, &mut info) }.context("look at the program's functions")?;
    ensure!(info.addresses_len == info.lens_len, "{} functions of {} lengths", info.addresses_len, info.lens_len);
    let (mut addresses, mut lens) = (vec![0_u64; info.lens_len as usize], vec![0_u32; info.lens_len as usize]);
    info = Info {
        addresses_len: info.addresses_len,
        lens_len: info.lens_len,
        addresses: addresses.as_mut_ptr() as u64,
        lens: lens.as_mut_ptr() as u64,
        ..Info::default()
    };
    // SAFETY: likewise, and there is room for as many as it says.
    unsafe { bpf::look_at(program, &mut info) }.context("look at the program's functions")?;
    let symbols = fs::read_to_string("/proc/kallsyms").context("read /proc/kallsyms")?;
    let names: BTreeMap<u64, &str> = symbols.lines().filter_map(name).collect();
    let named = addresses.iter().zip(lens).map(|(address, len)| {
        let name = names.get(address).context("a function has no name: is kernel.kptr_restrict 2?")?;
        Ok(((*name).to_owned(), len))
    });
    named.collect()
}

/// A BPF function's address and name, from a line `ffffffffc002b890 t bpf_prog_9a7628ffa30e49ba_name\t[bpf]`.
fn name(line: &str) -> Option<(u64, &str)> {
    let mut words = line.split_whitespace();
    let (address, symbol) = (words.next()?, words.nth(1)?);
    let (_tag, name) = symbol.strip_prefix("bpf_prog_")?.split_once('_')?;
    Some((u64::from_str_radix(address, 16).ok()?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_named_by_the_kernels_symbols() {
        let line = "ffffffffc002b890 t bpf_prog_9a7628ffa30e49ba_new_source_gate\t[bpf]";
        assert_eq!(name(line), Some((0xffff_ffff_c002_b890, "new_source_gate")));
        assert_eq!(name("ffffffff81000000 T _text"), None);
        assert_eq!(name(""), None);
    }
}
