//! Differences between two builds of one package: the files, the positions and the bytes.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{read_text, tree};
use crate::{install, run};

/// Maximum number of reported files per package, and number of bytes shown on each side of the first difference.
const FILES_MAX: usize = 10;
const BYTES_AROUND: usize = 24;

/// Compares each file listed in `sums` between `ours` and `theirs`. Returns the number of files.
///
/// # Errors
/// Fails with a description if a file differs. The differing files of `theirs` are kept in `ours/.differs`.
pub(super) fn compare(ours: &Path, theirs: &Path, sums: &str) -> Result<usize> {
    let [our_sums, their_sums] = [ours, theirs].map(|dir| read_text(&dir.join(sums)));
    let (our_sums, their_sums) = (our_sums?, their_sums?);
    let names = |text: &str| text.lines().filter_map(|line| Some(line.split_once("  ")?.1.to_owned())).collect();
    let all: BTreeSet<String> =
        [&our_sums, &their_sums].into_iter().flat_map(|text| -> Vec<_> { names(text) }).collect();
    let line =
        |text: &str, name: &str| text.lines().find(|line| line.ends_with(&format!("  {name}"))).map(str::to_owned);
    let differ: Vec<_> = all.iter().filter(|name| line(&our_sums, name) != line(&their_sums, name)).collect();
    if differ.is_empty() {
        return Ok(all.len());
    }
    let kept = ours.join(".differs");
    install::start_empty(&kept)?;
    let mut said = String::new();
    for name in differ {
        let (one, other) = (ours.join(name), theirs.join(name));
        match (one.is_file(), other.is_file()) {
            (true, true) => write!(said, "\n{name}: {}", packages(&one, &other, &kept.join(".unpacked"))?)?,
            (is_here, _) => write!(said, "\n{name}: only the {} has it", if is_here { "first" } else { "second" })?,
        }
        if other.is_file() {
            fs::copy(&other, kept.join(name)).with_context(|| format!("keep {}", other.display()))?;
        }
    }
    bail!("these files differ when built in another directory; the second build's are in {}:{said}", kept.display())
}

/// Describes the differences between the contents of two packages, one per line.
fn packages(one: &Path, other: &Path, scratch: &Path) -> Result<String> {
    let dirs = ["first", "second"].map(|name| scratch.join(name));
    for (dir, package) in dirs.iter().zip([one, other]) {
        install::start_empty(dir)?;
        unpack(package, dir)?;
    }
    let found = directories(&dirs[0], &dirs[1])?;
    fs::remove_dir_all(scratch).with_context(|| format!("remove {}", scratch.display()))?;
    let said = match found.as_slice() {
        [] => {
            "all files in it are the same, so its own headers differ: names, times, or how it is compressed".to_owned()
        }
        all => all.iter().take(FILES_MAX).map(|line| format!("\n  {line}")).collect(),
    };
    let more = found.len().saturating_sub(FILES_MAX);
    Ok(if more > 0 { format!("{said}\n  and {more} more") } else { said })
}

/// Unpacks a package, including the layers of an image. Any other file is copied as it is.
fn unpack(package: &Path, dir: &Path) -> Result<()> {
    let name = package.file_name().unwrap_or_default().to_string_lossy();
    let mut command;
    if name.ends_with(".deb") {
        command = Command::new("dpkg-deb");
        command.arg("--raw-extract").arg(package).arg(dir);
    } else if [".tar", ".tar.gz"].iter().any(|end| name.ends_with(end)) {
        command = Command::new("tar");
        command.arg("--extract").arg("--file").arg(package).arg("--directory").arg(dir);
    } else {
        let inside = dir.join("content");
        return fs::copy(package, &inside).map(drop).with_context(|| format!("copy {}", package.display()));
    }
    run::answer(&mut command).map(drop)?;
    unpack_layers(dir)
}

/// Renames and unpacks the blobs of an image. Blobs are named after their hash, so differing layers need a common name
/// for the comparison.
fn unpack_layers(dir: &Path) -> Result<()> {
    let blobs = dir.join("blobs/sha256");
    if !blobs.is_dir() {
        return Ok(());
    }
    let (mut layers, mut documents) = (0, Vec::new());
    for blob in tree::walk(&blobs)?.into_iter().filter(|path| path.is_file()) {
        let is_json = fs::read(&blob).with_context(|| format!("read {}", blob.display()))?.starts_with(b"{");
        if is_json {
            documents.push(blob);
            continue;
        }
        layers += 1;
        let root = dir.join(format!("layer-{layers}"));
        install::start_empty(&root)?;
        run::answer(Command::new("tar").arg("--extract").arg("--file").arg(&blob).arg("--directory").arg(&root))?;
        fs::remove_file(&blob).with_context(|| format!("remove {}", blob.display()))?;
    }
    // Only the configuration has `rootfs`, which distinguishes it from the manifest.
    for document in documents {
        let text = read_text(&document)?;
        let name = if text.contains("\"rootfs\"") { "config.json" } else { "image-manifest.json" };
        fs::rename(&document, dir.join(name)).with_context(|| format!("move {}", document.display()))?;
    }
    Ok(())
}

/// Returns one line per file that differs between two directories.
fn directories(one: &Path, other: &Path) -> Result<Vec<String>> {
    let names = |dir: &Path| -> Result<BTreeSet<PathBuf>> {
        let all = tree::walk(dir)?;
        Ok(all.iter().filter_map(|path| Some(path.strip_prefix(dir).ok()?.to_owned())).collect())
    };
    let (ours, theirs) = (names(one)?, names(other)?);
    let mut found = Vec::new();
    for name in ours.union(&theirs) {
        let shown = name.display();
        if !ours.contains(name) {
            found.push(format!("{shown}: only the second has it"));
        } else if !theirs.contains(name) {
            found.push(format!("{shown}: only the first has it"));
        } else if let Some(why) = entries(&one.join(name), &other.join(name))? {
            found.push(format!("{shown}: {why}"));
        }
    }
    Ok(found)
}

/// Returns the reason why two files with one name differ. None if they are equal.
fn entries(one: &Path, other: &Path) -> Result<Option<String>> {
    let of = |path: &Path| fs::symlink_metadata(path).with_context(|| format!("look at {}", path.display()));
    let (ours, theirs) = (of(one)?, of(other)?);
    let (mode, their_mode) = (ours.permissions().mode(), theirs.permissions().mode());
    if mode != their_mode {
        return Ok(Some(format!("mode {mode:o} and {their_mode:o}")));
    }
    if !ours.is_file() {
        return Ok(None);
    }
    let read = |path: &Path| fs::read(path).with_context(|| format!("read {}", path.display()));
    Ok(contents(&read(one)?, &read(other)?))
}

/// Describes the first difference between two contents. None if they are equal.
fn contents(one: &[u8], other: &[u8]) -> Option<String> {
    let common = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    if common == one.len() && common == other.len() {
        return None;
    }
    let bytes = one.iter().zip(other).filter(|(a, b)| a != b).count() + one.len().abs_diff(other.len());
    let around = |bytes: &[u8]| {
        let start = common.saturating_sub(BYTES_AROUND).min(bytes.len());
        let end = (common + BYTES_AROUND).min(bytes.len());
        bytes[start..end].escape_ascii().to_string()
    };
    let line = one[..common].iter().filter(|byte| **byte == b'\n').count() + 1;
    Some(format!(
        "{bytes} bytes differ, of {} and {}; the first is byte {common}, line {line}: \"{}\" and \"{}\"",
        one.len(),
        other.len(),
        around(one),
        around(other)
    ))
}

#[cfg(test)]
mod tests {
    use super::super::image;
    use super::*;

    /// Creates two directories. Each has an archive `a.tar` with a file of the given contents, and a list of sums.
    fn builds(contents: [&str; 2]) -> [tempfile::TempDir; 2] {
        contents.map(|text| {
            let dir = tempfile::tempdir().unwrap();
            let inside = dir.path().join("inside");
            fs::create_dir(&inside).unwrap();
            fs::write(inside.join("same"), "same").unwrap();
            fs::write(inside.join("file"), text).unwrap();
            let archive = dir.path().join("a.tar");
            let mut tar = Command::new("tar");
            tar.args(["--create", "--sort=name", "--mtime=@1", "--owner=0", "--group=0", "--file"]).arg(&archive);
            run::answer(tar.arg("-C").arg(&inside).args(["same", "file"])).unwrap();
            fs::write(dir.path().join("SUMS"), tree::sums("sha256sum", dir.path(), &[archive]).unwrap()).unwrap();
            dir
        })
    }

    #[test]
    fn differing_builds_are_reported_with_file_place_and_bytes() {
        let [ours, theirs] = builds(["one\ntwo 2\n", "one\ntwo 3\n"]);
        let error = compare(ours.path(), theirs.path(), "SUMS").unwrap_err().to_string();
        assert!(error.contains("a.tar: \n  file: 1 bytes differ, of 10 and 10"), "{error}");
        assert!(error.contains("byte 8, line 2: \"one\\ntwo 2\\n\" and \"one\\ntwo 3\\n\""), "{error}");
        assert!(!error.contains("same"), "{error}");
        assert!(ours.path().join(".differs/a.tar").is_file());
    }

    #[test]
    fn builds_that_are_the_same_are_counted() {
        let [ours, theirs] = builds(["text", "text"]);
        assert_eq!(compare(ours.path(), theirs.path(), "SUMS").unwrap(), 1);
        fs::write(theirs.path().join("SUMS"), "").unwrap();
        let error = compare(ours.path(), theirs.path(), "SUMS").unwrap_err().to_string();
        assert!(error.contains("a.tar: all files in it are the same"), "{error}");
    }

    #[test]
    fn a_file_within_the_layer_of_an_image_is_named() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [one, other] = [("one", &dirs[0]), ("two", &dirs[1])].map(|(licences, dir)| {
            image::build(Path::new("/bin/true"), licences, dir.path(), 1, image::Layer::Compressed).unwrap()
        });
        let said = packages(&one, &other, &dirs[0].path().join("scratch")).unwrap();
        assert!(said.contains("layer-1/usr/share/doc/ratelimitd/THIRD-PARTY-LICENSES: 3 bytes differ"), "{said}");
    }
}
