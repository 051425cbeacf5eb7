//! `cargo xtask install`: installs the release binary and the files that make it a service.
//!
//! The build and staging run as the user; only the copy into the system runs as root. An existing configuration is
//! kept.

mod layout;
mod neighbours;
pub(crate) mod remove;
mod unit;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{cargo, run, setup, shipped, workspace};
pub(crate) use layout::{File, Layout};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    place: Place,
}

/// Where the program is installed.
#[derive(Args)]
pub(crate) struct Place {
    /// Install below this directory instead of into the running system, whose service is not touched
    #[arg(long, value_name = "DIR")]
    destdir: Option<PathBuf>,
    /// Where the program is found
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
}

impl Place {
    /// Returns the file layout and the root directory. Fails if the prefix is relative.
    fn layout(&self) -> Result<(Layout, &Path)> {
        ensure!(self.prefix.is_absolute(), "--prefix {} is no absolute path", self.prefix.display());
        Ok((Layout::below(&self.prefix), self.destdir.as_deref().unwrap_or(Path::new("/"))))
    }
}

pub(crate) fn run(Options { place }: &Options) -> Result<ExitCode> {
    let (layout, root) = place.layout()?;
    setup::ensure(setup::Tier::Build)?;
    let artifacts = cargo::build(&["--release", "--package", "ratelimit-userspace", "--bin", "ratelimitd"])?;
    let binary = &cargo::binary(&artifacts, "ratelimitd")?.executable;
    shipped::refuse_crash_points(binary)?;
    let files = files(binary, &layout)?;

    if place.destdir.is_some() || workspace::is_root() {
        write(&files, root)?;
    } else {
        copy_as_root(&files, binary)?;
    }
    match &place.destdir {
        Some(destdir) => println!("installed below {}", destdir.display()),
        None => println!("{}", how_to_start()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the example configuration, which is in dry run.
fn config(layout: &Layout) -> Result<File> {
    Ok(File::kept(layout.config(), read(&workspace::root().join("dist/ratelimitd.toml"))?))
}

/// Returns all files to install. `binary` must run on this machine, because it generates its own manual pages and
/// completions.
pub(crate) fn files(binary: &Path, layout: &Layout) -> Result<Vec<File>> {
    let dist = workspace::root().join("dist");
    let mut files = vec![
        File::program(layout.program(), read(binary)?),
        File::text(layout.unit(), unit::render(&layout.bin_dir())?),
        File::text(layout.sysusers(), read(&dist.join("systemd/ratelimitd.sysusers"))?),
        config(layout)?,
    ];
    files.extend(neighbours::files(layout)?);
    for (shell, path) in layout.completions() {
        let text = run::answer(Command::new(binary).args(["completions", shell]))?;
        ensure!(!text.is_empty(), "`ratelimitd completions {shell}` printed nothing");
        files.push(File::text(path, text + "\n"));
    }
    files.extend(man_pages(binary, layout)?);
    files.extend(documents(layout)?);
    Ok(files)
}

/// Returns the documents that messages and manual pages refer to.
fn documents(layout: &Layout) -> Result<Vec<File>> {
    let root = workspace::root();
    let mut documents = vec![File::text(layout.document("README.md"), read(&root.join("README.md"))?)];
    let directories = ["docs", "examples", "dist/grafana", "dist/kubernetes", "dist/prometheus"];
    let mut directories = directories.map(PathBuf::from).to_vec();
    while let Some(directory) = directories.pop() {
        let path = root.join(&directory);
        for entry in fs::read_dir(&path).with_context(|| format!("list {}", path.display()))? {
            let entry = entry.with_context(|| format!("list {}", path.display()))?;
            let name = directory.join(entry.file_name());
            if entry.path().is_file() {
                documents.push(File::text(layout.document(name), read(&entry.path())?));
            } else {
                directories.push(name);
            }
        }
    }
    documents.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(documents)
}

fn man_pages(binary: &Path, layout: &Layout) -> Result<Vec<File>> {
    let dir = staging(binary)?.join("man");
    start_empty(&dir)?;
    run::answer(Command::new(binary).arg("man").arg("--dir").arg(&dir))?;
    let mut pages = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
        let page = entry.with_context(|| format!("list {}", dir.display()))?;
        pages.push(File::text(layout.man_page(&page.file_name()), read(&page.path())?));
    }
    ensure!(!pages.is_empty(), "`ratelimitd man --dir` wrote no page");
    pages.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(pages)
}

fn write(files: &[File], root: &Path) -> Result<()> {
    for file in files {
        let path = below(root, &file.path);
        if file.is_kept && path.exists() {
            println!("kept      {}", path.display());
            continue;
        }
        place(file, &path).with_context(|| format!("write {}", path.display()))?;
        println!("installed {}", path.display());
    }
    Ok(())
}

/// Writes a file and renames it into place. A running program can be replaced, and no reader ever sees a partial file.
pub(crate) fn place(file: &File, path: &Path) -> Result<()> {
    let dir = path.parent().context("it has no directory")?;
    fs::create_dir_all(dir)?;
    let new = dir.join(".ratelimitd-install");
    fs::write(&new, &file.content)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(file.mode))?;
    Ok(fs::rename(&new, path)?)
}

fn copy_as_root(files: &[File], binary: &Path) -> Result<()> {
    let staged = staging(binary)?.join("root");
    start_empty(&staged)?;
    let news: Vec<File> = files.iter().filter(|file| !(file.is_kept && file.path.exists())).cloned().collect();
    write(&news, &staged)?;
    let from = format!("{}/.", staged.display());
    let arguments = ["--recursive", "--preserve=mode", "--remove-destination", "--no-target-directory", &from, "/"];
    let by_hand = format!("as root: cp {}", arguments.join(" "));
    let mut copy = run::as_root("cp", &arguments)
        .with_context(|| format!("not root, and there is no sudo, so nothing was installed; {by_hand}"))?;
    eprintln!("install: sudo cp is about to copy {} to /; it may ask for your password", staged.display());
    let status = copy.status().context("start sudo")?;
    ensure!(status.success(), "the copy failed ({status}); {by_hand}");
    Ok(())
}

/// Returns the staging directory beside the binary in the target directory.
fn staging(binary: &Path) -> Result<PathBuf> {
    Ok(binary.parent().context("the binary lies in a directory")?.join("install"))
}

pub(crate) fn start_empty(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("empty {}", dir.display()))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))
}

pub(crate) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("read {}", path.display()))
}

fn how_to_start() -> &'static str {
    "\nIt drops nothing until the configuration says so. To start it, as root:\n  \
     systemd-sysusers                          the group whose members may read the statistics\n  \
     $EDITOR /etc/ratelimitd/ratelimitd.toml   at least `interfaces`\n  \
     ratelimitd check-config\n  \
     systemctl daemon-reload\n  \
     systemctl enable --now ratelimitd\n\
     Then `ratelimitd stats` shows what would be dropped; mode = \"enforce\" in the file and\n\
     `systemctl reload ratelimitd` make it so."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_is_there_stays_and_the_rest_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let files = |text: &str| {
            vec![File::kept("/etc/a.toml".into(), text.to_owned()), File::program("/bin/a".into(), text.to_owned())]
        };
        write(&files("old"), root.path()).unwrap();
        write(&files("new"), root.path()).unwrap();
        assert_eq!(fs::read_to_string(root.path().join("etc/a.toml")).unwrap(), "old");
        assert_eq!(fs::read_to_string(root.path().join("bin/a")).unwrap(), "new");
        let mode = |path: &str| fs::metadata(root.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("etc/a.toml"), mode("bin/a")), (0o644, 0o755));
    }

    #[test]
    fn the_documents_that_messages_cite_are_installed() {
        let documents = documents(&Layout::below(Path::new("/usr"))).unwrap();
        for name in [
            "README.md",
            "docs/ACCURACY.md",
            "docs/OPERATIONS.md",
            "docs/pictures/top.png",
            "docs/ratelimitd.schema.json",
            "examples/site.toml",
            "examples/php/ratelimitd.php",
            "dist/grafana/ratelimitd.json",
            "dist/kubernetes/ratelimitd.yaml",
        ] {
            let path = Path::new("/usr/share/doc/ratelimitd").join(name);
            assert!(documents.iter().any(|file| file.path == path && !file.content.is_empty()), "{name}");
        }
    }

    #[test]
    fn the_configuration_that_is_shipped_drops_nothing() {
        let text = fs::read_to_string(workspace::root().join("dist/ratelimitd.toml")).unwrap();
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["rule"]["mode"].as_str(), Some("dry-run"));
    }
}
