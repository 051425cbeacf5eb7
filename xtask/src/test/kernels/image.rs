//! Debian kernels: finds the newest of each version, and unpacks it below the target directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::slice;

use anyhow::{Context, Result};

use crate::packages::Apt;
use crate::setup::{cross, machine};
use crate::{run, workspace};

const PACKAGE: &str = "linux-image-";
const FILE: &str = "vmlinuz-";

/// Source of kernels, and the directory that stores them.
pub(super) struct Source {
    flavour: &'static str,
    apt: Apt,
    dir: PathBuf,
    /// Required module files, below `kernel` in the modules' directory.
    modules: &'static [&'static str],
}

impl Source {
    /// Returns the kernels for x86_64 virtual machines. They contain everything that the tests need, without modules.
    pub(super) fn x86_64() -> Self {
        Self { flavour: "-cloud-amd64", apt: Apt::Host, dir: machine::dir(), modules: &[] }
    }

    /// Returns Debian's arm64 kernels with this name suffix.
    pub(super) fn aarch64(flavour: &'static str, modules: &'static [&'static str]) -> Self {
        Self { flavour, apt: cross::apt(), dir: cross::dir(), modules }
    }

    /// Returns the directory of a kernel's modules, which has no subdirectories.
    fn modules_of(&self, release: &str) -> PathBuf {
        self.dir.join(format!("modules-{release}{}", self.flavour))
    }

    fn file_of(&self, release: &str) -> String {
        format!("{FILE}{release}{}", self.flavour)
    }
}

#[derive(Debug)]
pub(super) struct Image {
    /// Release, such as `6.1.0-56`.
    pub(super) release: String,
    pub(super) file: PathBuf,
    /// Files of the required modules.
    pub(super) modules: Vec<PathBuf>,
}

/// Returns a kernel image for each version, or the reason why there is none.
pub(super) fn ensure(source: &Source, versions: &[[u32; 2]]) -> Result<Vec<Result<Image, String>>> {
    fs::create_dir_all(&source.dir).with_context(|| format!("make {}", source.dir.display()))?;
    let known = known(source);
    versions.iter().map(|version| newest_image(source, *version, &known)).collect()
}

/// Returns the newest image of a version. An image unpacked earlier is used if the newest is not available.
fn newest_image(source: &Source, version: [u32; 2], known: &[String]) -> Result<Result<Image, String>> {
    let image = |release: &str| Image {
        release: release.to_owned(),
        file: source.dir.join(source.file_of(release)),
        modules: files(&source.modules_of(release)),
    };
    let unpacked = unpacked(source)?;
    let before = newest(&unpacked, version).map(image);
    let [major, minor] = version;
    let Some(release) = newest(known, version) else {
        return Ok(before.ok_or_else(|| format!("apt knows no package {PACKAGE}{major}.{minor}.*{}", source.flavour)));
    };
    if unpacked.iter().any(|unpacked| unpacked == release) {
        return Ok(Ok(image(release)));
    }
    match download(source, release) {
        Ok(()) => Ok(Ok(image(release))),
        Err(error) => Ok(before.ok_or_else(|| format!("{error:#}"))),
    }
}

/// Returns the releases that apt can download.
fn known(source: &Source) -> Vec<String> {
    let search = || {
        let pattern = format!("^{PACKAGE}.*{}$", source.flavour);
        let answer = run::answer(source.apt.command("apt-cache").args(["search", "--names-only", &pattern]));
        answer.map_or_else(|_| Vec::new(), |list| releases(list.split_whitespace(), PACKAGE, source.flavour))
    };
    let known = search();
    if !known.is_empty() || workspace::program("apt-get").is_none() {
        return known;
    }
    // A new machine has no lists yet.
    source.apt.update("kernels").map_or_else(|_| Vec::new(), |()| search())
}

fn download(source: &Source, release: &str) -> Result<()> {
    let package = format!("{PACKAGE}{release}{}", source.flavour);
    let unpacked = source.dir.join(&package);
    let unpack = || source.apt.unpack("kernels", slice::from_ref(&package), &unpacked);
    // The lists may be older than the archive.
    unpack().or_else(|_| source.apt.update("kernels").and_then(|()| unpack()))?;
    keep_modules(source, release, &unpacked)?;
    let file = source.file_of(release);
    let (from, to) = (unpacked.join("boot").join(&file), source.dir.join(&file));
    // Moved last, so that its existence shows a complete download.
    fs::rename(&from, &to).with_context(|| format!("move {} to {}", from.display(), to.display()))?;
    fs::remove_dir_all(&unpacked).with_context(|| format!("remove {}", unpacked.display()))
}

/// Copies the required modules. A module may be compressed, with a matching file name.
fn keep_modules(source: &Source, release: &str, unpacked: &Path) -> Result<()> {
    let below = unpacked.join("lib/modules").join(format!("{release}{}", source.flavour)).join("kernel");
    let kept = source.modules_of(release);
    fs::create_dir_all(&kept).with_context(|| format!("make {}", kept.display()))?;
    for module in source.modules {
        let from = ["", ".xz"].map(|end| below.join(format!("{module}{end}"))).into_iter().find(|file| file.is_file());
        let from = from.with_context(|| format!("{} has no module {module}", unpacked.display()))?;
        let to = kept.join(from.file_name().context("a module has a name")?);
        fs::copy(&from, &to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    }
    Ok(())
}

fn unpacked(source: &Source) -> Result<Vec<String>> {
    let entries = fs::read_dir(&source.dir).with_context(|| format!("read {}", source.dir.display()))?;
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    Ok(releases(names.iter().map(String::as_str), FILE, source.flavour))
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// Extracts the releases from names like `linux-image-6.1.0-56-cloud-amd64`.
fn releases<'a>(names: impl Iterator<Item = &'a str>, prefix: &str, flavour: &str) -> Vec<String> {
    let release = |name: &'a str| name.strip_prefix(prefix)?.strip_suffix(flavour);
    names.filter_map(release).filter(|release| numbers(release).len() > 2).map(str::to_owned).collect()
}

fn newest(releases: &[String], version: [u32; 2]) -> Option<&str> {
    let of_version = releases.iter().filter(|release| numbers(release).starts_with(&version));
    of_version.max_by_key(|release| numbers(release)).map(String::as_str)
}

fn numbers(release: &str) -> Vec<u32> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_each_version_is_chosen_by_number() {
        let list = "linux-image-6.1.0-9-cloud-amd64 - Linux 6.1 (signed)\nlinux-image-6.1.0-56-cloud-amd64 - x\n\
            linux-image-6.1.0-57-cloud-amd64-dbg - symbols\nlinux-image-6.12.99+deb12-cloud-amd64 - x\n\
            linux-image-6.12.117+deb12-cloud-amd64 - x\nlinux-image-6.12-cloud-amd64 - no kernel itself\n\
            linux-image-cloud-amd64 - nor this\nlinux-image-6.10.11-cloud-amd64 - x\nlinux-image-6.1.0-99-amd64 - x";
        let known = releases(list.split_whitespace(), PACKAGE, "-cloud-amd64");
        assert_eq!(newest(&known, [6, 1]), Some("6.1.0-56"));
        assert_eq!(newest(&known, [6, 12]), Some("6.12.117+deb12"));
        assert_eq!(newest(&known, [6, 11]), None);
    }

    #[test]
    fn a_kernel_that_was_unpacked_before_is_used_where_apt_knows_none() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("vmlinuz-6.1.0-50-cloud-amd64"), "").unwrap();
        let source = Source { dir: dir.path().to_owned(), ..Source::x86_64() };
        let image = newest_image(&source, [6, 1], &[]).unwrap().unwrap();
        assert_eq!((image.release.as_str(), image.file.is_file()), ("6.1.0-50", true));
        let reason = newest_image(&source, [6, 12], &[]).unwrap().unwrap_err();
        assert_eq!(reason, "apt knows no package linux-image-6.12.*-cloud-amd64");
    }

    #[test]
    fn a_module_is_kept_by_the_name_that_it_has_and_a_missing_one_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let source = Source { dir: dir.path().to_owned(), ..Source::aarch64("-arm64-16k", &["drivers/net/veth.ko"]) };
        let drivers = dir.path().join("p/lib/modules/6.12.1-arm64-16k/kernel/drivers/net");
        fs::create_dir_all(&drivers).unwrap();
        let unpacked = dir.path().join("p");
        let error = keep_modules(&source, "6.12.1", &unpacked).unwrap_err();
        assert!(format!("{error:#}").contains("no module drivers/net/veth.ko"), "{error:#}");
        fs::write(drivers.join("veth.ko.xz"), "").unwrap();
        keep_modules(&source, "6.12.1", &unpacked).unwrap();
        assert_eq!(files(&source.modules_of("6.12.1")), [dir.path().join("modules-6.12.1-arm64-16k/veth.ko.xz")]);
    }
}
