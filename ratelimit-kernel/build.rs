//! Builds the BPF object into `OUT_DIR/ratelimit-ebpf`, and the benchmark's objects `bare` and `generator`. No other
//! place builds them.
//!
//! `cargo xtask setup` has found and tried a compiler and linker, and recorded them. This script only reads the record.
//!
//! The resulting files hold no debug information and no path of this machine, so the same sources give the same bytes.

#[path = "build/bpf.rs"]
mod bpf;
#[path = "build/remap.rs"]
mod remap;
#[path = "build/strip.rs"]
mod strip;

use std::env;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};

use bpf::Build;

/// Files that determine the object, except the BPF crate itself, relative to the workspace.
const INPUTS: [&str; 5] =
    ["bpf-toolchain.toml", "Cargo.toml", "Cargo.lock", "ratelimit-common/Cargo.toml", "ratelimit-common/src"];

/// Record left by `cargo xtask setup`, written by xtask/src/setup/record.rs.
struct Record {
    toolchain: String,
    linker: String,
    llvm_dir: String,
}

fn main() {
    if let Some(error) = remap::wrapped_compiler() {
        eprintln!("error: the compiler for the BPF program does not start: {error}");
        std::process::exit(1);
    }
    if let Err(error) = build() {
        // Cargo fails on this line. A failing exit code would also print the script's whole output.
        println!("cargo::error={error:#}");
    }
}

fn build() -> Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("this package lies in a workspace")?;
    for input in INPUTS {
        println!("cargo::rerun-if-changed={}", workspace.join(input).display());
    }
    let pins = table(&workspace.join("bpf-toolchain.toml"))?;
    let cargo_home = cargo_home()?;
    let record_file = record_file(&cargo_home, &pins)?;
    println!("cargo::rerun-if-changed={}", record_file.display());
    wait_for_setup(&record_file)?;
    let record = read_record(&record_file).map_err(|reason| {
        anyhow!("the compiler and linker for the BPF program are not set up ({reason:#}): run `cargo xtask setup`")
    })?;

    // The child cargo inherits these.
    set_env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &record.linker);
    set_env("CARGO_TARGET_BPFEB_UNKNOWN_NONE_LINKER", &record.linker);
    set_env("LD_LIBRARY_PATH", &llvm_first(&record.llvm_dir));
    set_env("RUSTC_BOOTSTRAP", &strings(&pins, "unstable_crates")?.join(","));
    // Cargo would report its progress as warnings of this package.
    set_env("CARGO_TERM_QUIET", "true");
    for (name, value) in remap::variables(workspace, &cargo_home)? {
        set_env(name, &value);
    }

    let out_dir = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    let feature = env::var_os("CARGO_FEATURE_TRACE").map(|_| "trace");
    let build = Build { crate_dir: &workspace.join("ratelimit-ebpf"), toolchain: &record.toolchain, feature };
    let objects = build
        .run(&out_dir)
        .context("building the BPF program failed; if the lines above do not explain it, run `cargo xtask setup`")?;
    objects.iter().try_for_each(|object| strip::debug_sections(object))
}

fn cargo_home() -> Result<PathBuf> {
    println!("cargo::rerun-if-env-changed=CARGO_HOME");
    match (env::var_os("CARGO_HOME"), env::var_os("HOME")) {
        (Some(cargo_home), _) => Ok(PathBuf::from(cargo_home)),
        (None, Some(home)) => Ok(PathBuf::from(home).join(".cargo")),
        (None, None) => Err(anyhow!("neither CARGO_HOME nor HOME is set: set one")),
    }
}

/// Returns `$CARGO_HOME/ratelimitd/bpf-linker-VERSION/record.toml`.
fn record_file(cargo_home: &Path, pins: &toml::Table) -> Result<PathBuf> {
    Ok(cargo_home.join("ratelimitd").join(format!("bpf-linker-{}", string(pins, "bpf_linker")?)).join("record.toml"))
}

/// Waits for the end of a set-up that has begun. `cargo xtask demo` builds the daemon's other parts meanwhile.
fn wait_for_setup(record_file: &Path) -> Result<()> {
    match File::open(record_file.with_file_name("setup.lock")) {
        Ok(lock) => lock.lock_shared().context("wait for `cargo xtask setup`, which is running"),
        // Then no set-up has begun yet.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).context("open the lock of `cargo xtask setup`"),
    }
}

fn read_record(file: &Path) -> Result<Record> {
    if !file.exists() {
        return Err(anyhow!("nothing is recorded"));
    }
    let record = table(file)?;
    for path in strings(&record, "needs")? {
        if !Path::new(path).exists() {
            return Err(anyhow!("{path} is gone"));
        }
    }
    Ok(Record {
        toolchain: string(&record, "toolchain")?.to_owned(),
        linker: string(&record, "linker")?.to_owned(),
        llvm_dir: string(&record, "llvm_dir")?.to_owned(),
    })
}

/// Returns a library path that starts with `llvm_dir`. bpf-linker loads the first libLLVM on this path.
fn llvm_first(llvm_dir: &str) -> String {
    match env::var("LD_LIBRARY_PATH") {
        Ok(rest) if !rest.is_empty() => format!("{llvm_dir}:{rest}"),
        Ok(_) | Err(_) => llvm_dir.to_owned(),
    }
}

fn set_env(name: &str, value: &str) {
    // SAFETY: only main calls this, before anything could have started a second thread.
    unsafe { env::set_var(name, value) }
}

fn table(file: &Path) -> Result<toml::Table> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    text.parse().with_context(|| format!("parse {}", file.display()))
}

fn string<'a>(table: &'a toml::Table, key: &str) -> Result<&'a str> {
    table.get(key).and_then(toml::Value::as_str).with_context(|| format!("`{key}` is missing"))
}

fn strings<'a>(table: &'a toml::Table, key: &str) -> Result<Vec<&'a str>> {
    let list = table.get(key).and_then(toml::Value::as_array).with_context(|| format!("`{key}` is missing"))?;
    list.iter()
        .map(|item| item.as_str().with_context(|| format!("`{key}` holds something that is no string")))
        .collect()
}
