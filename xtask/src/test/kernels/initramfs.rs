//! What the machine finds at its start: a shell, the tests, the libraries of both, and a script that runs them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::console;
use super::cpio::Archive;
use crate::run;
use crate::setup::machine::{self, SHELL};

/// Where the kernel has it, and what the script expects.
const DIRECTORIES: [&str; 4] = ["dev", "proc", "sys", "tmp"];

/// Not compressed: the machine would take longer to unpack it than to read it.
pub(super) fn write(test: &Path, filter: Option<&str>) -> Result<PathBuf> {
    let shell = SHELL.file().with_context(|| format!("there is no {}", SHELL.name))?;
    let mut files = BTreeMap::from([("bin/busybox".to_owned(), shell.clone()), ("bin/tests".to_owned(), test.into())]);
    // A static one has none, and ldd fails for it.
    let of_shell = run::answer(Command::new("ldd").arg(&shell)).unwrap_or_default();
    let of_test = run::answer(Command::new("ldd").arg(test))?;
    for library in libraries(&of_shell).chain(libraries(&of_test)) {
        ensure!(Path::new(library).is_file(), "{library}, which {} needs, is no file", test.display());
        files.insert(library.trim_start_matches('/').to_owned(), library.into());
    }

    fs::create_dir_all(machine::dir()).with_context(|| format!("make {}", machine::dir().display()))?;
    let path = machine::dir().join("initramfs.cpio");
    let written = File::create(&path).map_err(anyhow::Error::from).and_then(|file| fill(file, &files, filter));
    written.with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

fn fill(file: File, files: &BTreeMap<String, PathBuf>, filter: Option<&str>) -> Result<()> {
    let mut archive = Archive::new(BufWriter::new(file));
    for directory in directories(files.keys().map(String::as_str)) {
        archive.directory(directory)?;
    }
    archive.executable("init", script(filter).as_bytes())?;
    for (path, source) in files {
        let bytes = fs::read(source).with_context(|| format!("read {}", source.display()))?;
        archive.executable(path, &bytes)?;
    }
    archive.finish()?;
    Ok(())
}

/// Each before what is in it.
fn directories<'a>(files: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let parents = |path: &'a str| path.match_indices('/').map(move |(at, _)| &path[..at]);
    files.flat_map(parents).chain(DIRECTORIES).collect()
}

/// `libc.so.6 => /lib/libc.so.6 (0x7f00)`, `/lib64/ld-linux-x86-64.so.2 (0x7f00)`; the vDSO has no path.
fn libraries(ldd: &str) -> impl Iterator<Item = &str> {
    ldd.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
}

fn script(filter: Option<&str>) -> String {
    let filter = filter.map_or_else(String::new, |filter| format!(" '{}'", filter.replace('\'', r"'\''")));
    format!(
        "#!/bin/busybox sh\n\
        b=/bin/busybox\n\
        $b mount -t proc proc /proc\n\
        $b mount -t sysfs sysfs /sys\n\
        $b mount -t devtmpfs devtmpfs /dev\n\
        $b mount -t bpf bpf /sys/fs/bpf\n\
        $b ip link set lo up\n\
        /bin/tests --test-threads=1 --show-output{filter}\n\
        echo \"{}$?\"\n\
        $b poweroff -f\n",
        console::ENDED
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_ldd() {
        let text = "\tlinux-vdso.so.1 (0x7ffc)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f1)\n\
            \tlibodd.so => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x7f2)\n";
        let found: Vec<_> = libraries(text).collect();
        assert_eq!(found, ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
    }

    #[test]
    fn every_directory_comes_before_what_is_in_it() {
        let found: Vec<_> = directories(["lib/x/libc.so.6", "bin/sh"].into_iter()).into_iter().collect();
        assert_eq!(found, ["bin", "dev", "lib", "lib/x", "proc", "sys", "tmp"]);
    }

    #[test]
    fn a_filter_is_one_word_to_the_shell() {
        assert!(script(Some("a b'$c")).contains(r" --show-output 'a b'\''$c'"));
        assert!(script(None).contains(" --show-output\n"));
    }
}
