//! Removes the paths of the build machine from the object. The verifier's log names source files and the kernel keeps
//! those names, so paths are shortened instead of dropped.
//!
//! Cargo derives the names of symbols from the flags that it passes to the compiler, so flags with paths would change the
//! object. Therefore the build script, which cargo has already compiled, also wraps the compiler and adds the flags.

use std::env;
use std::fmt::Write as _;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// Environment variable that marks this program as the wrapper. Its value has one flag per line.
const FLAGS: &str = "RATELIMITD_REMAP_FLAGS";

/// If this program is the wrapper, replaces itself by the compiler in its first argument. Returns only on failure, with
/// the error. Returns none if it is not the wrapper.
pub(crate) fn wrapped_compiler() -> Option<io::Error> {
    let flags = env::var(FLAGS).ok()?;
    let mut arguments = env::args_os().skip(1);
    let mut compiler = Command::new(arguments.next()?);
    Some(compiler.args(arguments).args(flags.lines()).env_remove(FLAGS).exec())
}

/// Returns the variables that make cargo run the compiler through this program.
pub(crate) fn variables(workspace: &Path, cargo_home: &Path) -> Result<[(&'static str, String); 2]> {
    let program = env::current_exe().context("where this build script is")?;
    Ok([("RUSTC_WRAPPER", utf8(&program)?.to_owned()), (FLAGS, flags(workspace, cargo_home)?)])
}

/// Returns flags that shorten the workspace's files to their paths in the workspace. The linker resolves them against
/// its working directory to copy the source lines for the verifier's log. The last matching flag wins.
fn flags(workspace: &Path, cargo_home: &Path) -> Result<String> {
    let mut flags = format!("--remap-path-prefix={}=/cargo\n", utf8(cargo_home)?);
    for registry in registries(cargo_home) {
        writeln!(flags, "--remap-path-prefix={}=/cargo", utf8(&registry)?)?;
    }
    writeln!(flags, "--remap-path-prefix={}=", utf8(workspace)?)?;
    Ok(flags)
}

/// Returns the directories of registries, which are named after their host.
fn registries(cargo_home: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(cargo_home.join("registry/src")).into_iter().flatten().flatten();
    let mut registries: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    registries.sort();
    registries
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("the path {} is not UTF-8", path.display()))
}
