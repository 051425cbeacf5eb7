//! Removes the debug information from a linked object. Nothing reads this part, which is four fifths of the object.
//!
//! The compiler must still generate it, because `.BTF` and `.BTF.ext` are made from it. Those stay, and the kernel
//! reads them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use object::build::elf::{Builder, SectionData};
use object::elf::SHT_STRTAB;

/// Rewrites the file without `.debug_*` sections and without their relocations and symbols.
pub(crate) fn debug_sections(file: &Path) -> Result<()> {
    let linked = fs::read(file).with_context(|| format!("read {}", file.display()))?;
    let stripped = stripped(&linked).with_context(|| format!("strip {}", file.display()))?;
    fs::write(file, stripped).with_context(|| format!("write {}", file.display()))
}

fn stripped(linked: &[u8]) -> Result<Vec<u8>> {
    let mut elf = Builder::read(linked).context("read it as ELF")?;
    for section in &mut elf.sections {
        let name: &[u8] = &section.name;
        section.delete = name.starts_with(b".debug_") || name.starts_with(b".rel.debug_");
    }
    ensure!(elf.sections.iter().any(|section| &*section.name == b".BTF"), "it has no section .BTF");
    elf.delete_orphans();
    // LLVM writes one table for the names of sections and symbols. The writer needs one for each.
    if !elf.sections.iter().any(|section| matches!(section.data, SectionData::SectionString)) {
        let names = elf.sections.add();
        names.name = b".shstrtab"[..].into();
        names.sh_type = SHT_STRTAB;
        names.data = SectionData::SectionString;
    }
    elf.set_section_sizes();
    let mut out = Vec::with_capacity(linked.len());
    elf.write(&mut out).context("write it as ELF")?;
    Ok(out)
}
