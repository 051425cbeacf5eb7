//! What the BPF linker must be told; on the host this is a crate like any other.

fn main() {
    // cmpxchg and the fetching atomics are BPF v3 (Linux 5.12). XDP data is read at the offsets where
    // the headers lie, so words straddle their natural alignment; every kernel that this runs on takes that.
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("bpf") {
        println!("cargo:rustc-link-arg-bins=--cpu-features=+alu32,+allows-misaligned-mem-access");
    }
}
