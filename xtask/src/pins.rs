//! Pinned versions of the tools that build the BPF object, from `bpf-toolchain.toml`.

use std::fs;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::workspace;

/// Contents of the file. The file explains each field.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pins {
    pub(crate) bpf_linker: String,
    pub(crate) llvm_major: u32,
    pub(crate) linked_toolchain: String,
    pub(crate) debian_packages: Vec<String>,
    pub(crate) debian_clippy: String,
    pub(crate) nightly: String,
    pub(crate) unstable_crates: Vec<String>,
}

impl Pins {
    pub(crate) fn read() -> Result<Self> {
        let file = workspace::root().join("bpf-toolchain.toml");
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        toml::from_str(&text).with_context(|| format!("parse {}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_in_the_repository_can_be_read() {
        let pins = Pins::read().unwrap();
        assert!(pins.bpf_linker.split('.').count() == 3, "the linker is pinned to the patch level");
        assert!(pins.unstable_crates.contains(&"ratelimit_ebpf".to_owned()));
    }
}
