//! Record of set-up's results, which ratelimit-kernel/build.rs reads.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Tools;
use super::compiler::Compiler;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Name under which rustup runs the compiler.
    pub(super) toolchain: String,
    pub(super) linker: PathBuf,
    /// Directory that contains only the libLLVM for the linker.
    pub(super) llvm_dir: PathBuf,
    /// Files without which the record is invalid.
    pub(super) needs: Vec<PathBuf>,
}

impl Record {
    pub(super) fn of(compiler: &Compiler, linker: &Path, tools: &Tools) -> Self {
        let mut needs = vec![linker.to_owned(), compiler.llvm.clone()];
        needs.extend(compiler.needs.iter().cloned());
        Self { toolchain: compiler.toolchain.clone(), linker: linker.to_owned(), llvm_dir: tools.llvm_dir(), needs }
    }

    /// Reads the record. `None` if it is missing or invalid.
    pub(super) fn read(file: &Path) -> Option<Self> {
        toml::from_str(&fs::read_to_string(file).ok()?).ok()
    }

    /// Writes the record. An unchanged file keeps its time stamp, which would otherwise make cargo rebuild the object.
    pub(super) fn write(&self, file: &Path) -> Result<()> {
        if Self::read(file).as_ref() == Some(self) {
            return Ok(());
        }
        let text = toml::to_string(self).context("write the record as TOML")?;
        fs::write(file, text).with_context(|| format!("write {}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            toolchain: "a-toolchain".into(),
            linker: "/bin/linker".into(),
            llvm_dir: "/lib/llvm".into(),
            needs: vec!["/bin/linker".into()],
        }
    }

    #[test]
    fn a_written_record_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("record.toml");
        assert_eq!(Record::read(&file), None);
        record().write(&file).unwrap();
        assert_eq!(Record::read(&file), Some(record()));
    }

    #[test]
    fn writing_the_same_again_leaves_the_time_stamp() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("record.toml");
        record().write(&file).unwrap();
        let written = fs::metadata(&file).unwrap().modified().unwrap();
        record().write(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), written);
    }
}
