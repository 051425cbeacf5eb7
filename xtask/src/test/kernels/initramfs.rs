//! Initial file system of a machine: a shell, the tests, their libraries, and a script that runs them.

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

/// Mount points that the kernel and the script need.
const DIRECTORIES: [&str; 4] = ["dev", "proc", "sys", "tmp"];
/// Path of the shell.
pub(super) const SHELL_FILE: &str = "bin/busybox";

/// Writes the file system. It is not compressed, because the emulated machine reads it faster than it would unpack it.
pub(super) fn write(test: &Path, filter: &[&str]) -> Result<PathBuf> {
    let shell = SHELL.file().with_context(|| format!("there is no {}", SHELL.name))?;
    let mut files = BTreeMap::from([(SHELL_FILE.to_owned(), shell.clone()), ("bin/tests".to_owned(), test.into())]);
    // ldd fails for a static shell, which needs no libraries.
    let of_shell = run::answer(Command::new("ldd").arg(&shell)).unwrap_or_default();
    let of_test = run::answer(Command::new("ldd").arg(test))?;
    for library in libraries(&of_shell).chain(libraries(&of_test)) {
        ensure!(Path::new(library).is_file(), "{library}, which {} needs, is no file", test.display());
        files.insert(library.trim_start_matches('/').to_owned(), library.into());
    }

    fs::create_dir_all(machine::dir()).with_context(|| format!("make {}", machine::dir().display()))?;
    let path = machine::dir().join("initramfs.cpio");
    archive(&path, &files, &script("", &[tests("tests", filter)]))?;
    Ok(path)
}

/// Writes an archive of these files, by their paths in the machine, and the init script.
pub(super) fn archive(path: &Path, files: &BTreeMap<String, PathBuf>, script: &str) -> Result<()> {
    let written = File::create(path).map_err(anyhow::Error::from).and_then(|file| fill(file, files, script));
    written.with_context(|| format!("write {}", path.display()))
}

fn fill(file: File, files: &BTreeMap<String, PathBuf>, script: &str) -> Result<()> {
    let mut archive = Archive::new(BufWriter::new(file));
    for directory in directories(files.keys().map(String::as_str)) {
        archive.directory(directory)?;
    }
    archive.executable("init", script.as_bytes())?;
    for (path, source) in files {
        let bytes = fs::read(source).with_context(|| format!("read {}", source.display()))?;
        archive.executable(path, &bytes)?;
    }
    archive.finish()?;
    Ok(())
}

/// Returns all directories of the files. Each precedes its contents.
fn directories<'a>(files: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let parents = |path: &'a str| path.match_indices('/').map(move |(at, _)| &path[..at]);
    files.flat_map(parents).chain(DIRECTORIES).collect()
}

/// Parses lines like `libc.so.6 => /lib/libc.so.6 (0x7f00)` or `/lib64/ld-linux-x86-64.so.2 (0x7f00)`. The vDSO has no
/// path.
fn libraries(ldd: &str) -> impl Iterator<Item = &str> {
    ldd.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
}

/// Returns the command that runs a test program in /bin. It runs the tests with names that contain one of the filters,
/// or all tests.
pub(super) fn tests(program: &str, filters: &[&str]) -> String {
    let quoted = filters.iter().map(|filter| format!(" '{}'", filter.replace('\'', r"'\''")));
    format!("/bin/{program} --test-threads=1 --show-output{}", quoted.collect::<String>())
}

/// Returns the init script. It runs the commands in order and prints the exit code of the last failed one, or 0.
pub(super) fn script(before: &str, commands: &[String]) -> String {
    let commands: String = commands.iter().map(|command| format!("{command} || code=$?\n")).collect();
    format!(
        "#!/bin/busybox sh\n\
        b=/bin/busybox\n\
        $b mount -t proc proc /proc\n\
        $b mount -t sysfs sysfs /sys\n\
        $b mount -t devtmpfs devtmpfs /dev\n\
        $b mount -t bpf bpf /sys/fs/bpf\n\
        {before}\
        $b ip link set lo up\n\
        code=0\n\
        {commands}\
        echo \"{}$code\"\n\
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
        assert!(tests("t", &["a b'$c", "d"]).ends_with(r" --show-output 'a b'\''$c' 'd'"));
        assert!(tests("t", &[]).ends_with("/bin/t --test-threads=1 --show-output"));
    }

    #[test]
    fn an_early_failure_is_reported_even_if_a_later_program_succeeds() {
        let script = script("", &["(exit 3)".to_owned(), "true".to_owned()]);
        let tail = script.split_once("code=0\n").unwrap().1.replace("$b poweroff -f", "");
        let said = run::answer(Command::new("sh").arg("-c").arg(format!("code=0\n{tail}"))).unwrap();
        assert_eq!(said, format!("{}3", console::ENDED));
    }
}
