//! Debian's kernels: which there are, and the newest of each version unpacked below the target directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;

use anyhow::{Context, Result};

use crate::setup::machine;
use crate::{packages, run, workspace};

/// Built for virtual machines: what the tests need is in the image itself, not in modules.
const FLAVOUR: &str = "-cloud-amd64";
const PACKAGE: &str = "linux-image-";
const FILE: &str = "vmlinuz-";

#[derive(Debug)]
pub(super) struct Image {
    /// `6.1.0-56`
    pub(super) release: String,
    pub(super) file: PathBuf,
}

/// One for each version; where there is none, the reason.
pub(super) fn ensure(versions: &[[u32; 2]]) -> Result<Vec<Result<Image, String>>> {
    let dir = machine::dir();
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let known = known();
    versions.iter().map(|version| newest_image(&dir, *version, &known)).collect()
}

/// One that was unpacked before will do where the newest cannot be had now.
fn newest_image(dir: &Path, version: [u32; 2], known: &[String]) -> Result<Result<Image, String>> {
    let image = |release: &str| Image { release: release.to_owned(), file: dir.join(file_of(release)) };
    let unpacked = unpacked(dir)?;
    let before = newest(&unpacked, version).map(image);
    let [major, minor] = version;
    let Some(release) = newest(known, version) else {
        return Ok(before.ok_or_else(|| format!("apt knows no package {PACKAGE}{major}.{minor}.*{FLAVOUR}")));
    };
    if unpacked.iter().any(|unpacked| unpacked == release) {
        return Ok(Ok(image(release)));
    }
    match download(dir, release) {
        Ok(()) => Ok(Ok(image(release))),
        Err(error) => Ok(before.ok_or_else(|| format!("{error:#}"))),
    }
}

/// The releases that apt can download.
fn known() -> Vec<String> {
    let search = || {
        let pattern = format!("^{PACKAGE}.*{FLAVOUR}$");
        let answer = run::answer(Command::new("apt-cache").args(["search", "--names-only", &pattern]));
        answer.map_or_else(|_| Vec::new(), |list| releases(list.split_whitespace(), PACKAGE))
    };
    let known = search();
    if !known.is_empty() || workspace::program("apt-get").is_none() {
        return known;
    }
    // A machine that was made a moment ago has no lists yet.
    packages::update("kernels").map_or_else(|_| Vec::new(), |()| search())
}

fn download(dir: &Path, release: &str) -> Result<()> {
    let package = format!("{PACKAGE}{release}{FLAVOUR}");
    let unpacked = dir.join(&package);
    let unpack = || packages::unpack("kernels", slice::from_ref(&package), &unpacked);
    // The lists may be older than the archive.
    unpack().or_else(|_| packages::update("kernels").and_then(|()| unpack()))?;
    let (from, to) = (unpacked.join("boot").join(file_of(release)), dir.join(file_of(release)));
    fs::rename(&from, &to).with_context(|| format!("move {} to {}", from.display(), to.display()))?;
    fs::remove_dir_all(&unpacked).with_context(|| format!("remove {}", unpacked.display()))
}

fn unpacked(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?;
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    Ok(releases(names.iter().map(String::as_str), FILE))
}

fn file_of(release: &str) -> String {
    format!("{FILE}{release}{FLAVOUR}")
}

/// Of names like `linux-image-6.1.0-56-cloud-amd64`, the part that tells one from another.
fn releases<'a>(names: impl Iterator<Item = &'a str>, prefix: &str) -> Vec<String> {
    let release = |name: &'a str| name.strip_prefix(prefix)?.strip_suffix(FLAVOUR);
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
        let known = releases(list.split_whitespace(), PACKAGE);
        assert_eq!(newest(&known, [6, 1]), Some("6.1.0-56"));
        assert_eq!(newest(&known, [6, 12]), Some("6.12.117+deb12"));
        assert_eq!(newest(&known, [6, 11]), None);
    }

    #[test]
    fn a_kernel_that_was_unpacked_before_is_used_where_apt_knows_none() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("vmlinuz-6.1.0-50-cloud-amd64"), "").unwrap();
        let image = newest_image(dir.path(), [6, 1], &[]).unwrap().unwrap();
        assert_eq!((image.release.as_str(), image.file.is_file()), ("6.1.0-50", true));
        let reason = newest_image(dir.path(), [6, 12], &[]).unwrap().unwrap_err();
        assert_eq!(reason, "apt knows no package linux-image-6.12.*-cloud-amd64");
    }
}
