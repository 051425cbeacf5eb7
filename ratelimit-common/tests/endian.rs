//! Test that the compiler refuses each big-endian target that it knows, in one sentence. It compiles only the file with
//! that check.
#![expect(clippy::expect_used, reason = "test code: where it cannot go on, the test fails")]

use std::path::Path;
use std::process::Command;

/// Setting that the compiler takes as if the target had it. For most targets, there is no `core` here to build with.
const BIG: &str = "target_endian=\"big\"";

fn rustc(args: &[&str]) -> (bool, String) {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler).args(args).output().expect("a compiler");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn compiled(more: &[&str]) -> (bool, String) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/endian.rs");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("endian-{}.rmeta", more.len()));
    let (file, out) = (file.to_string_lossy().into_owned(), out.to_string_lossy().into_owned());
    let args = ["--crate-type=lib", "--edition=2024", "--emit=metadata", "-o", &out, &file];
    rustc(&[&args, more].concat())
}

#[test]
fn a_big_endian_machine_is_refused_with_the_reason_and_what_to_build_for() {
    let (is_built, said) = compiled(&[]);
    assert!(is_built, "{said}");
    let (is_built, said) = compiled(&["--cfg", BIG, "-Aexplicit_builtin_cfgs_in_flags"]);
    assert!(!is_built, "{said}");
    let errors = said.lines().filter(|line| line.starts_with("error: ") && !line.contains("aborting"));
    assert_eq!(errors.count(), 1, "{said}");
    for word in ["little-endian machines", "maps", "aarch64", "build it for"] {
        assert!(said.contains(word), "no {word:?} in: {said}");
    }
}

#[test]
fn machines_are_told_apart_as_that_file_does() {
    let of = |target| rustc(&["--print", "cfg", "--target", target]).1;
    for big in ["bpfeb-unknown-none", "s390x-unknown-linux-gnu", "powerpc64-unknown-linux-gnu"] {
        assert!(of(big).lines().any(|line| line == BIG), "{big}: {}", of(big));
    }
    for little in ["bpfel-unknown-none", "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
        assert!(!of(little).lines().any(|line| line == BIG), "{little}: {}", of(little));
    }
}
