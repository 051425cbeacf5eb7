//! Stands in for the registry's aya-build, in the build scripts of aya-ebpf, aya-ebpf-bindings and aya-ebpf-cty.
//!
//! These scripts call one function. The registry's package has some twenty dependencies for another function, which
//! builds BPF programs and which they do not call. Compiling those took half the time for the libraries of the BPF
//! program. `ratelimit-kernel/build/bpf.rs` builds the program itself.

use std::env;

/// Result of a build script. The error is a text for the developer.
pub type Result<T> = std::result::Result<T, String>;

/// Architectures for which aya-ebpf has bindings.
const ARCHITECTURES: [&str; 9] =
    ["aarch64", "arm", "loongarch64", "mips", "mips64", "powerpc64", "riscv64", "s390x", "x86_64"];

/// Declares the cfg `bpf_target_arch` to cargo. Sets it to the build machine's architecture unless the flags of the
/// compiler set it, as `ratelimit-kernel/build/bpf.rs` does. Fails outside a build script.
pub fn emit_bpf_target_arch_cfg() -> Result<()> {
    let values = ARCHITECTURES.map(|architecture| format!("\"{architecture}\"")).join(", ");
    println!("cargo::rustc-check-cfg=cfg(bpf_target_arch, values({values}))");
    println!("cargo::rerun-if-env-changed=CARGO_CFG_BPF_TARGET_ARCH");
    if env::var_os("CARGO_CFG_BPF_TARGET_ARCH").is_none() {
        let host = env::var("HOST").map_err(|error| format!("cargo sets HOST: {error}"))?;
        println!("cargo::rustc-cfg=bpf_target_arch=\"{}\"", architecture_of(&host));
    }
    Ok(())
}

/// Returns the architecture in a target triple, without the extensions that RISC-V names.
fn architecture_of(triple: &str) -> &str {
    let architecture = triple.split('-').next().unwrap_or(triple);
    if architecture.starts_with("riscv64") { "riscv64" } else { architecture }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_architecture_is_the_first_part_of_a_triple() {
        for (triple, expected) in [
            ("x86_64-unknown-linux-gnu", "x86_64"),
            ("aarch64-unknown-linux-musl", "aarch64"),
            ("riscv64gc-unknown-linux-gnu", "riscv64"),
        ] {
            assert_eq!(architecture_of(triple), expected);
            assert!(ARCHITECTURES.contains(&expected));
        }
    }
}
