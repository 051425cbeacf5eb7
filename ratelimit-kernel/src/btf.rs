//! Field offsets in the kernel's structures, read from its type information (BTF, Documentation/bpf/btf.rst). Does not
//! know what the fields are for. Pure except [`of_kernel`].

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};

/// File in which the kernel shows its type information, if it has any.
const OF_KERNEL: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
const TYPE_BYTES: usize = 12;
const MEMBER_BYTES: usize = 12;

const KIND_STRUCT: u32 = 4;

/// Types of a kernel, by their number from 1 on.
pub(super) struct Btf<'a> {
    types: Vec<&'a [u8]>,
    strings: &'a [u8],
}

/// Reads the type information of the running kernel.
///
/// # Errors
/// Fails if the kernel has none, or if it cannot be read.
pub(super) fn of_kernel() -> Result<Vec<u8>> {
    fs::read(OF_KERNEL).with_context(|| format!("read {OF_KERNEL}"))
}

impl<'a> Btf<'a> {
    /// Parses type information.
    ///
    /// # Errors
    /// Fails if the bytes end too early or contain an unknown kind of type.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self> {
        ensure!(word16(bytes, 0)? == MAGIC, "it is no type information of this machine's byte order");
        let at = |word: usize| -> Result<usize> { Ok(word32(bytes, word)? as usize) };
        let header = at(4)?;
        ensure!(header >= HEADER_BYTES, "its header has {header} bytes");
        let section = |start: usize, len: usize| {
            let start = header.checked_add(start)?;
            bytes.get(start..start.checked_add(len)?)
        };
        let mut rest = section(at(8)?, at(12)?).context("its types end too early")?;
        let strings = section(at(16)?, at(20)?).context("its strings end too early")?;
        let mut types = Vec::new();
        while !rest.is_empty() {
            let len = TYPE_BYTES + behind(word32(rest, 4)?)?;
            let of = rest.get(..len).context("a type ends too early")?;
            types.push(of);
            rest = &rest[len..];
        }
        Ok(Self { types, strings })
    }

    /// Returns the offset of a structure's field in bytes.
    ///
    /// # Errors
    /// Fails if the structure or the field does not exist, or if the field does not start on a byte boundary.
    pub(super) fn offset(&self, structure: &str, field: &str) -> Result<u32> {
        let of = self.structure(structure).with_context(|| format!("no struct {structure}"))?;
        let bits = self.member(of, field)?.with_context(|| format!("struct {structure} has no {field}"))?;
        ensure!(bits.is_multiple_of(8), "{structure}.{field} begins within a byte");
        Ok(bits / 8)
    }

    /// Returns whether there is a structure with this name.
    pub(super) fn has_structure(&self, name: &str) -> bool {
        self.structure(name).is_some()
    }

    fn structure(&self, name: &str) -> Option<&'a [u8]> {
        let is_it = |of: &&&[u8]| kind(of) == Some(KIND_STRUCT) && self.name(of, 0) == Some(name.as_bytes());
        self.types.iter().find(is_it).copied()
    }

    /// Returns the offset of a structure's field in bits.
    fn member(&self, of: &[u8], name: &str) -> Result<Option<u32>> {
        let has_widths = word32(of, 4)? >> 31 != 0;
        for member in of[TYPE_BYTES..].chunks_exact(MEMBER_BYTES) {
            if self.name(member, 0) == Some(name.as_bytes()) {
                let offset = word32(member, 8)?;
                return Ok(Some(if has_widths { offset & 0xff_ffff } else { offset }));
            }
        }
        Ok(None)
    }

    /// Returns the name that this word of a type or member refers to.
    fn name(&self, of: &[u8], word: usize) -> Option<&'a [u8]> {
        let start = usize::try_from(word32(of, word).ok()?).ok()?;
        self.strings.get(start..)?.split(|byte| *byte == 0).next()
    }
}

fn kind(of: &[u8]) -> Option<u32> {
    word32(of, 4).ok().map(kind_of)
}

const fn kind_of(info: u32) -> u32 {
    info >> 24 & 0x1f
}

/// Returns the number of bytes that follow the common part of a type (include/uapi/linux/btf.h, Linux 6.18).
fn behind(info: u32) -> Result<usize> {
    let len = (info & 0xffff) as usize;
    Ok(match kind_of(info) {
        // Pointer, forward declaration, typedef, volatile, const, restrict, function, float, type tag.
        2 | 7..=12 | 16 | 18 => 0,
        // Integer, variable, declaration tag.
        1 | 14 | 17 => 4,
        // Array.
        3 => 12,
        // Enumeration, function prototype.
        6 | 13 => 8 * len,
        // Structure, union, section, enumeration of 64 bits.
        4 | 5 | 15 | 19 => 12 * len,
        other => bail!("a kind of type that is not known here: {other}"),
    })
}

fn word16(bytes: &[u8], at: usize) -> Result<u16> {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk).context("it ends too early")?;
    Ok(u16::from_ne_bytes(*word))
}

fn word32(bytes: &[u8], at: usize) -> Result<u32> {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk).context("it ends too early")?;
    Ok(u32::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Builds `int`, `struct inner { int a; int b; }`, `struct outer { int x; struct inner inner; }`.
    fn small() -> Vec<u8> {
        let strings = b"\0int\0inner\0a\0b\0outer\0x\0";
        let name = |text: &str| {
            let at = strings.windows(text.len() + 1).position(|part| part == [text.as_bytes(), &[0]].concat());
            u32::try_from(at.unwrap()).unwrap()
        };
        let (int, structure) = (1 << 24, KIND_STRUCT << 24 | 2);
        let types = [
            words(&[name("int"), int, 4, 32]),
            words(&[name("inner"), structure, 8, name("a"), 1, 0, name("b"), 1, 32]),
            words(&[name("outer"), structure, 12, name("x"), 1, 0, name("inner"), 2, 32]),
        ]
        .concat();
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap();
        let header = [
            u32::from(MAGIC) | 1 << 16,
            u32::try_from(HEADER_BYTES).unwrap(),
            0,
            len(&types),
            len(&types),
            len(strings),
        ];
        [words(&header), types, strings.to_vec()].concat()
    }

    #[test]
    fn a_field_is_found_where_it_is() {
        let bytes = small();
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.offset("outer", "inner").unwrap(), 4);
        assert_eq!(btf.offset("inner", "b").unwrap(), 4);
        for (structure, field, why) in [("none", "a", "no struct none"), ("inner", "c", "struct inner has no c")] {
            assert_eq!(btf.offset(structure, field).unwrap_err().to_string(), why);
        }
    }

    #[test]
    fn truncated_or_invalid_btf_is_an_error_without_a_panic() {
        let bytes = small();
        for len in 0..bytes.len() {
            assert!(Btf::parse(&bytes[..len]).is_err(), "{len}");
        }
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 0xff;
            if let Ok(btf) = Btf::parse(&broken) {
                let _whatever = btf.offset("outer", "inner");
            }
        }
    }
}
