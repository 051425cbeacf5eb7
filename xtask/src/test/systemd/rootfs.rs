//! The root file systems: Debian's packages and nothing else, from the sources of packages that this machine uses.
//!
//! Made once and kept below the target directory, until what they are made of changes here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::run;

/// What a server with a web server on it has, and `curl`, the client.
pub(super) const SERVER: [&str; 7] = ["systemd", "systemd-sysv", "dbus", "iproute2", "procps", "curl", "nginx-light"];
/// What it needs besides to boot by itself, on a virtual disk.
pub(super) const MACHINE: [&str; 5] = ["linux-image-cloud-amd64", "initramfs-tools", "zstd", "udev", "kmod"];

/// Of no use here and large, and what it has of this machine.
const SLIM: &str = r#"rm -rf "$1"/usr/share/locale/* "$1"/usr/share/doc/* "$1"/usr/share/man/* "$1"/etc/resolv.conf"#;
const SOURCES: [&str; 2] = ["/etc/apt/sources.list", "/etc/apt/sources.list.d"];
/// How this machine reaches its sources. Anything else of its configuration is its own.
const WAYS: [&str; 4] = ["Acquire::http", "Acquire::https", "Acquire::Check", "Acquire::Retries"];

pub(super) struct Rootfs {
    pub(super) archive: PathBuf,
    /// None where it was there.
    pub(super) made_in: Option<Duration>,
}

/// An archive of these packages and what they need.
pub(super) fn ensure(name: &str, packages: &[&str], dir: &Path) -> Result<Rootfs> {
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let (archive, record) = (dir.join(format!("{name}.tar")), dir.join(format!("{name}.recipe")));
    let recipe = format!("{}\n{SLIM}\n", packages.join(","));
    // Written last: that it is there says that the archive is whole.
    if archive.is_file() && fs::read_to_string(&record).is_ok_and(|made_of| made_of == recipe) {
        return Ok(Rootfs { archive, made_in: None });
    }
    let start = Instant::now();
    fs::remove_file(&record).ok();
    make(name, packages, &archive, dir)?;
    fs::write(&record, recipe).with_context(|| format!("write {}", record.display()))?;
    Ok(Rootfs { archive, made_in: Some(start.elapsed()) })
}

fn make(name: &str, packages: &[&str], archive: &Path, dir: &Path) -> Result<()> {
    let sources = sources()?;
    ensure!(!sources.is_empty(), "this machine's apt has no sources: neither {} nor {}", SOURCES[0], SOURCES[1]);
    let ways = dir.join("apt.conf");
    let dump = run::answer(Command::new("apt-config").arg("dump"))?;
    fs::write(&ways, ways_in(&dump)).with_context(|| format!("write {}", ways.display()))?;

    let mut command =
        run::as_root("mmdebstrap", &["--variant=minbase", "--mode=root"]).context("neither root nor sudo")?;
    command.arg(format!("--include={}", packages.join(","))).arg(format!("--aptopt={}", ways.display()));
    command.arg("--dpkgopt=force-unsafe-io").arg(format!("--customize-hook={SLIM}"));
    // Without a name of a release: the sources have theirs.
    command.arg("").arg(archive).args(sources);
    run::step(&format!("systemd: a root file system ({name})"), &mut command)
}

/// Lists and files of sources that apt would read.
fn sources() -> Result<Vec<PathBuf>> {
    let mut files: Vec<_> = fs::read_dir(SOURCES[1])
        .with_context(|| format!("list {}", SOURCES[1]))?
        .map(|entry| Ok(entry.with_context(|| format!("list {}", SOURCES[1]))?.path()))
        .collect::<Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|ending| ending == "list" || ending == "sources"));
    files.push(SOURCES[0].into());
    files.retain(|file| fs::read_to_string(file).is_ok_and(|text| has_packages(&text)));
    files.sort();
    Ok(files)
}

/// Says where packages are, and is not only comments.
fn has_packages(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .any(|line| line.starts_with("deb ") || line.starts_with("deb\t") || line.starts_with("URIs:"))
}

fn ways_in(dump: &str) -> String {
    let is_way = |line: &&str| WAYS.iter().any(|way| line.starts_with(way));
    dump.lines().filter(is_way).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_apts_configuration_only_the_way_to_its_sources_is_taken() {
        let dump = "APT::Architecture \"amd64\";\nAcquire::http::Proxy \"http://proxy:3128\";\nAcquire::Languages \"en\";\n\
            Acquire::Check-Valid-Until \"false\";\nDir::Cache \"var/cache/apt\";\n";
        assert_eq!(
            ways_in(dump),
            "Acquire::http::Proxy \"http://proxy:3128\";\nAcquire::Check-Valid-Until \"false\";\n"
        );
    }

    #[test]
    fn a_list_of_comments_is_no_source() {
        assert!(
            has_packages("# a\ndeb http://a.example b main\n") && has_packages("Types: deb\nURIs: http://a.example\n")
        );
        assert!(!has_packages("# deb http://a.example b main\n") && !has_packages(""));
    }
}
