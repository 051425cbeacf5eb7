//! The BPF objects that this program carries and loads, made by the build script.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// ELF file of the XDP program, aligned for reading its headers.
pub(crate) const ELF: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/ratelimit-ebpf"));

/// ELF file of the TCX program, aligned for reading its headers.
pub(crate) const CLASSIFIER: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/classifier"));

/// Returns the SHA-256 of the object in hexadecimal, which identifies the filter independently of the version.
#[must_use]
pub fn sha256() -> String {
    Sha256::digest(ELF).iter().fold(String::new(), |mut hex, byte| {
        // Writing to a String cannot fail.
        write!(hex, "{byte:02x}").ok();
        hex
    })
}

#[cfg(test)]
mod tests {
    use object::{Object as _, ObjectSection as _};

    use super::*;

    fn sections() -> Vec<String> {
        let elf = object::File::parse(ELF).unwrap();
        elf.sections().map(|section| section.name().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_object_keeps_what_the_kernel_reads_and_no_debug_information() {
        let sections = sections();
        for kept in [".BTF", ".BTF.ext", "license", "maps", "xdp", "xdp.frags"] {
            assert!(sections.iter().any(|name| name == kept), "{kept} is missing of {sections:?}");
        }
        assert!(!sections.iter().any(|name| name.contains("debug")), "{sections:?}");
    }

    #[test]
    fn no_path_of_the_machine_that_built_it_is_in_the_object() {
        let workspace = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let workspace = std::fs::canonicalize(workspace).unwrap().to_str().unwrap().to_owned();
        let homes = ["HOME", "CARGO_HOME", "RUSTUP_HOME"].into_iter().filter_map(|name| std::env::var(name).ok());
        for path in homes.chain([workspace, env!("OUT_DIR").to_owned(), "/registry/".to_owned()]) {
            let found = ELF.windows(path.len()).filter(|part| *part == path.as_bytes()).count();
            assert_eq!(found, 0, "{path} is in it");
        }
    }

    #[test]
    fn the_verifiers_log_can_still_name_our_files_and_show_their_lines() {
        for text in ["ratelimit-ebpf/src/decide.rs", "ratelimit-common/src/gcra.rs", "    let "] {
            assert!(ELF.windows(text.len()).any(|part| part == text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn the_hash_is_64_digits() {
        let hash = sha256();
        assert_eq!((hash.len(), hash.chars().all(|c| c.is_ascii_hexdigit())), (64, true), "{hash}");
    }
}
