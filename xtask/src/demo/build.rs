//! Build of the demo's daemon, at the same time as the set-up that its BPF program needs.
//!
//! The daemon is built without optimisation, in cargo's dev profile like this program, so that both share most of their
//! libraries. The BPF program, which judges each packet, is optimised in every profile.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow};

use super::Server;
use crate::setup::{self, Setup};
use crate::{cargo, progress, workspace};

/// Duration and size of a first run, measured as docs/TESTING.md says.
const FIRST_RUN: &str = "the first run builds all that it needs: about 5 minutes on 2 CPUs, and 2.3 GB of disk";
const LATER_RUN: &str = "about a minute, and longer if sources have changed";

/// Daemon and web server of the demo.
pub(super) struct Prepared {
    pub(super) binary: PathBuf,
    pub(super) server: Server,
}

/// Sets up what is missing and builds the daemon. Says first how long that takes.
pub(super) fn prepare() -> Result<Prepared> {
    let setup = Setup::begin()?;
    let is_first = !setup.has_record() || !workspace::target_dir().join("debug/ratelimitd").is_file();
    progress::say(&format!("demo: {}", if is_first { FIRST_RUN } else { LATER_RUN }));
    authenticate();
    let arguments = arguments()?;
    thread::scope(|scope| {
        let compiler = scope.spawn(|| setup.download_compiler());
        // Before the daemon, because cargo builds one thing at a time in a directory.
        let linker = setup.ensure_linker()?;
        // The build script of ratelimit-kernel waits for the end of the set-up. Then it builds the BPF program.
        let build = scope.spawn(|| cargo::build_step("demo: building the daemon", &arguments, "ratelimitd"));
        compiler.join().map_err(|_| anyhow!("the thread of the compiler's download panicked"))?;
        let server = setup.finish(linker).and_then(|()| setup::ensure_demo_programs());
        let build = build.join().map_err(|_| anyhow!("the thread of the build panicked"))?;
        // A failed set-up fails the build too, so its reason comes first.
        let server = if server? { Server::Nginx } else { Server::Own };
        Ok(Prepared { binary: build?, server })
    })
}

/// Lets sudo ask for the password before the long part, which then needs nobody. The demo goes on if that fails.
fn authenticate() {
    if let (false, Some(sudo)) = (workspace::is_root(), workspace::program("sudo")) {
        progress::say("demo: network namespaces need root: sudo may ask for your password");
        Command::new(sudo).arg("--validate").status().ok();
    }
}

/// Returns the arguments of `cargo build`.
fn arguments() -> Result<Vec<String>> {
    let file = workspace::root().join("Cargo.toml");
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let manifest = text.parse().with_context(|| format!("parse {}", file.display()))?;
    let mut arguments = setup::linker::PACKAGES.map(str::to_owned).to_vec();
    arguments.extend(["--bin", "ratelimitd"].map(str::to_owned));
    for setting in settings(&manifest) {
        arguments.extend(["--config".to_owned(), setting]);
    }
    Ok(arguments)
}

/// Returns settings of the dev profile for a short build. They concern no package that this program is built of.
fn settings(manifest: &toml::Table) -> Vec<String> {
    // The daemon is built once, so nothing is kept for a next time.
    let mut settings = ["debug=false", "incremental=false"].map(|setting| format!("profile.dev.{setting}")).to_vec();
    let packages = || manifest.get("profile")?.get("dev")?.get("package")?.as_table();
    for (package, _) in packages().into_iter().flatten().filter(|(_, profile)| profile.get("opt-level").is_some()) {
        settings.push(format!("profile.dev.package.{package}.opt-level=0"));
    }
    settings
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::run;

    #[test]
    fn no_package_of_the_demo_is_optimised() {
        let manifest = r#"
            [profile.dev.package."*"]
            debug = false
            [profile.dev.package.a-package]
            opt-level = 2
        "#;
        let settings = settings(&manifest.parse().unwrap());
        assert_eq!(settings.last().unwrap(), "profile.dev.package.a-package.opt-level=0");
        assert_eq!(settings.len(), 3, "{settings:?}");
        // The repository's own manifest has several.
        assert!(arguments().unwrap().iter().any(|argument| argument.ends_with("libsqlite3-sys.opt-level=0")));
    }

    /// Returns the packages that a build with these arguments compiles, each with its features.
    fn compiled(arguments: &[&str]) -> BTreeSet<String> {
        let mut tree = Command::new(workspace::cargo());
        tree.current_dir(workspace::root()).args(["tree", "--offline", "--prefix", "none"]).args(arguments);
        let tree = run::answer(tree.args(["--edges", "normal,build", "--format", "{p} {f}"])).unwrap();
        tree.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
    }

    #[test]
    fn the_demo_compiles_no_library_of_this_program_again() {
        let (ours, demos) = (compiled(&["--package", "xtask"]), compiled(&setup::linker::PACKAGES));
        // The feature of this package is the linker, of which its code is no part.
        let again: Vec<_> = ours.difference(&demos).filter(|package| !package.starts_with("xtask ")).collect();
        assert!(again.is_empty(), "other features than in the demo's build, see xtask/Cargo.toml: {again:#?}");
        assert!(ours.len() > 30, "{ours:?}");
    }
}
