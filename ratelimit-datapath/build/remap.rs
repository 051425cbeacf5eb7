//! No path of the machine that builds it is in the object. The verifier's log names its source files, and the kernel keeps
//! those names, so they are shortened rather than left out.
//!
//! aya-build sets the flags of the compiler itself. So the build script, which cargo has compiled already, is also the
//! compiler's wrapper, and adds its own.

use std::env;
use std::fmt::Write as _;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// Set where this program is the wrapper; its flags, one a line.
const FLAGS: &str = "RATELIMITD_REMAP_FLAGS";

/// As the wrapper, becomes the compiler that the first argument names, and returns only why it could not.
pub(crate) fn wrapped_compiler() -> Option<io::Error> {
    let flags = env::var(FLAGS).ok()?;
    let mut arguments = env::args_os().skip(1);
    let mut compiler = Command::new(arguments.next()?);
    Some(compiler.args(arguments).args(flags.lines()).env_remove(FLAGS).exec())
}

/// The variables by which cargo runs the compiler through this program.
pub(crate) fn variables(workspace: &Path, cargo_home: &Path) -> Result<[(&'static str, String); 2]> {
    let program = env::current_exe().context("where this build script is")?;
    Ok([("RUSTC_WRAPPER", utf8(&program)?.to_owned()), (FLAGS, flags(workspace, cargo_home)?)])
}

/// The workspace's files by their paths in it: relative to the directory that the linker runs in, which copies the lines
/// that the verifier's log shows. The last flag that fits is taken.
fn flags(workspace: &Path, cargo_home: &Path) -> Result<String> {
    let mut flags = format!("--remap-path-prefix={}=/cargo\n", utf8(cargo_home)?);
    for registry in registries(cargo_home) {
        writeln!(flags, "--remap-path-prefix={}=/cargo", utf8(&registry)?)?;
    }
    writeln!(flags, "--remap-path-prefix={}=", utf8(workspace)?)?;
    Ok(flags)
}

/// Their directories are named by the host that they come from.
fn registries(cargo_home: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(cargo_home.join("registry/src")).into_iter().flatten().flatten();
    let mut registries: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    registries.sort();
    registries
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("the path {} is not UTF-8", path.display()))
}
