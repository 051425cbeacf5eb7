//! `cargo xtask uninstall`: stops the service, detaches its filter and removes the installed files.
//!
//! Changed configurations and the state of commands are kept unless `--purge` is given. The group is always kept,
//! because files elsewhere may belong to it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use super::{Layout, Place, below, neighbours};
use crate::{run, workspace};

const UNIT: &str = "ratelimitd.service";
const PINS: &str = "/sys/fs/bpf/ratelimitd";
const RUNTIME: &str = "/run/ratelimitd";
const STATE: &str = "/var/lib/ratelimitd";

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    place: Place,
    /// Remove the configuration, even if it was changed, and the state: history, grants, tokens
    #[arg(long)]
    purge: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let (layout, root) = options.place.layout()?;
    let is_system = options.place.destdir.is_none();
    if is_system {
        end(&layout)?;
    }
    let mut paths = installed(&layout, root)?;
    for file in [super::config(&layout)?].into_iter().chain(neighbours::files(&layout)?).filter(|file| file.is_kept) {
        let path = below(root, &file.path);
        if options.purge || fs::read(&path).is_ok_and(|text| text == file.content) {
            paths.push(path);
        } else if path.exists() {
            println!("kept      {} (--purge removes it)", path.display());
        }
    }
    for state in [STATE].into_iter().chain(neighbours::STATES).map(|state| below(root, Path::new(state))) {
        if options.purge {
            paths.push(state);
        } else if state.exists() {
            println!("kept      {} (--purge removes it)", state.display());
        }
    }
    paths.retain(|path| path.symlink_metadata().is_ok());
    let is_ours = !is_system || workspace::is_root();
    if is_ours {
        remove(&paths, &layout, root)?
    } else {
        remove_as_root(&paths)?
    }
    if is_system {
        systemctl(&["daemon-reload"])?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the installed files and the directory of documents. Some may not exist.
fn installed(layout: &Layout, root: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = vec![layout.program(), layout.unit(), layout.sysusers(), layout.document("")];
    paths.extend(layout.completions().map(|(_, path)| path));
    paths.extend(neighbours::files(layout)?.into_iter().filter(|file| !file.is_kept).map(|file| file.path));
    let mut paths: Vec<_> = paths.iter().map(|path| below(root, path)).collect();
    for name in ["ratelimitd.1", "ratelimitd.toml.5"] {
        let dir = below(root, &layout.man_page(OsStr::new(name))).with_file_name("");
        for entry in fs::read_dir(&dir).into_iter().flatten() {
            let page = entry.with_context(|| format!("list {}", dir.display()))?.path();
            let name = page.file_name().unwrap_or_default().to_string_lossy();
            if ["ratelimitd.", "ratelimitd-"].iter().any(|start| name.starts_with(start)) {
                paths.push(page);
            }
        }
    }
    Ok(paths)
}

/// Stops the service, then detaches its filter. With `on_exit = "keep"` the filter would keep enforcing, without a
/// program left to detach it.
fn end(layout: &Layout) -> Result<()> {
    if layout.unit().exists() {
        systemctl(&["disable", "--now", "--quiet", UNIT])?;
    }
    for unit in neighbours::UNITS.into_iter().filter(|unit| layout.other_unit(unit).exists()) {
        // For a template unit, stops all instances. Disabling it removes their links.
        let running = unit.replace('@', "@*");
        systemctl(&["stop", "--quiet", &running])?;
        systemctl(&["disable", "--quiet", unit])?;
    }
    if Path::new(PINS).exists() {
        let program = layout.program().to_string_lossy().into_owned();
        match as_root(&program, &["detach"])?.status() {
            Ok(status) if status.success() => {}
            Ok(_) | Err(_) => eprintln!("uninstall: `ratelimitd detach` failed; removing {PINS} takes the filter off"),
        }
    }
    for dir in [PINS, RUNTIME].into_iter().filter(|dir| Path::new(dir).exists()) {
        run::answer(&mut as_root("rm", &["-r", "-f", "--", dir])?)?;
        println!("removed   {dir}");
    }
    Ok(())
}

fn systemctl(arguments: &[&str]) -> Result<()> {
    if !Path::new("/run/systemd/system").is_dir() {
        return Ok(());
    }
    run::answer(&mut as_root("systemctl", arguments)?).map(drop)
}

fn as_root(program: &str, arguments: &[&str]) -> Result<Command> {
    run::as_root(program, arguments).with_context(|| format!("not root, and there is no sudo for {program}"))
}

fn remove(paths: &[PathBuf], layout: &Layout, root: &Path) -> Result<()> {
    for path in paths {
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.with_context(|| format!("remove {}", path.display()))?;
        println!("removed   {}", path.display());
        let ancestors = path.ancestors().skip(1);
        for dir in ancestors.take_while(|dir| !is_shared(dir, layout, root)) {
            // Stops at the first directory that is not empty.
            if fs::remove_dir(dir).is_err() {
                break;
            }
        }
    }
    Ok(())
}

/// Returns true for directories that exist independently of an installation.
fn is_shared(dir: &Path, layout: &Layout, root: &Path) -> bool {
    let prefix = layout.bin_dir().with_file_name("");
    let inside = ["", "bin", "lib", "share", "share/man"].map(|name| below(root, &prefix.join(name)));
    inside.iter().any(|shared| dir == shared) || root.starts_with(dir) || dir.parent() == Some(root)
}

fn remove_as_root(paths: &[PathBuf]) -> Result<()> {
    if paths.is_empty() {
        return Ok(());
    }
    let paths: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
    let mut arguments = vec!["-r", "-f", "--"];
    arguments.extend(paths.iter().map(|path| &**path));
    run::answer(&mut as_root("rm", &arguments)?)?;
    for path in paths {
        println!("removed   {path}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::File;
    use super::*;

    /// Installs the same files as `install`, except those that the program generates.
    fn install(root: &Path, layout: &Layout, config: &str) {
        let mut files = vec![
            File::program(layout.program(), "program"),
            File::text(layout.unit(), "unit"),
            File::text(layout.sysusers(), "group"),
            File::text(layout.man_page(OsStr::new("ratelimitd.1")), "page"),
            File::text(layout.man_page(OsStr::new("ratelimitd-stats.1")), "page"),
            File::text(layout.man_page(OsStr::new("ratelimitd.toml.5")), "page"),
            File::kept(layout.config(), config.to_owned()),
        ];
        files.extend(layout.completions().map(|(_, path)| File::text(path, "completion")));
        files.extend(neighbours::files(layout).unwrap());
        files.extend(super::super::documents(layout).unwrap());
        super::super::write(&files, root).unwrap();
    }

    fn left(root: &Path) -> Vec<String> {
        let mut found = vec![root.to_owned()];
        let mut at = 0;
        while let Some(dir) = found.get(at).cloned() {
            at += 1;
            found.extend(fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path()));
        }
        let files = found.iter().filter(|path| path.is_file());
        files.map(|path| path.strip_prefix(root).unwrap().display().to_string()).collect()
    }

    fn uninstall(root: &Path, purge: bool) {
        let place = Place { destdir: Some(root.to_owned()), prefix: "/usr/local".into() };
        run(&Options { place, purge }).unwrap();
    }

    #[test]
    fn nothing_of_what_was_installed_is_left() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(Path::new("/usr/local"));
        let shipped = fs::read_to_string(workspace::root().join("dist/ratelimitd.toml")).unwrap();
        install(root.path(), &layout, &shipped);
        uninstall(root.path(), false);
        assert_eq!(left(root.path()), Vec::<String>::new());
        assert!(!root.path().join("usr/local/share/zsh").exists() && root.path().join("usr/local/share/man").exists());
        uninstall(root.path(), true);
    }

    #[test]
    fn user_files_stay_until_a_purge_and_files_of_others_always() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(Path::new("/usr/local"));
        install(root.path(), &layout, "mine");
        for (path, text) in [(STATE, "history.db"), ("/usr/local/share/man/man1", "other.1")] {
            let dir = below(root.path(), Path::new(path));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(text), "").unwrap();
        }
        let action = "etc/fail2ban/action.d/ratelimitd.conf";
        fs::write(root.path().join(action), "mine").unwrap();
        uninstall(root.path(), false);
        let mut kept = left(root.path());
        kept.sort();
        assert_eq!(
            kept,
            [
                action,
                "etc/ratelimitd/ratelimitd.toml",
                "usr/local/share/man/man1/other.1",
                "var/lib/ratelimitd/history.db"
            ]
        );
        uninstall(root.path(), true);
        assert_eq!(left(root.path()), ["usr/local/share/man/man1/other.1"]);
        assert!(!root.path().join("etc/ratelimitd").exists());
    }
}
