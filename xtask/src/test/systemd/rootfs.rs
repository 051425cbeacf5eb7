//! Root file systems: only Debian packages, from this machine's package sources.
//!
//! Each is made once and kept below the target directory until its recipe changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::run;

/// Packages of a server with a web server, and `curl` as the client.
pub(super) const SERVER: [&str; 7] = ["systemd", "systemd-sysv", "dbus", "iproute2", "procps", "curl", "nginx-light"];
/// Additional packages for booting from a virtual disk.
pub(super) const MACHINE: [&str; 5] = ["linux-image-cloud-amd64", "initramfs-tools", "zstd", "udev", "kmod"];

/// Hook that removes large unneeded files, and this machine's resolv.conf.
const SLIM: &str = r#"rm -rf "$1"/usr/share/locale/* "$1"/usr/share/doc/* "$1"/usr/share/man/* "$1"/etc/resolv.conf"#;
const SOURCES: [&str; 2] = ["/etc/apt/sources.list", "/etc/apt/sources.list.d"];
/// Prefixes of apt settings that describe this machine's access to its sources. Other settings are not taken.
const WAYS: [&str; 4] = ["Acquire::http", "Acquire::https", "Acquire::Check", "Acquire::Retries"];

pub(super) struct Rootfs {
    pub(super) archive: PathBuf,
    /// Time to make the archive. None if it existed.
    pub(super) made_in: Option<Duration>,
}

/// Returns an archive of these packages and their dependencies.
pub(super) fn ensure(name: &str, packages: &[&str], dir: &Path) -> Result<Rootfs> {
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let (archive, record) = (dir.join(format!("{name}.tar")), dir.join(format!("{name}.recipe")));
    let recipe = format!("{}\n{SLIM}\n", packages.join(","));
    // Written last, so that its existence shows a complete archive.
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
    // No release name is given, because the sources contain it.
    command.arg("").arg(archive).args(sources);
    run::step(&format!("systemd: a root file system ({name})"), &mut command)
}

/// Returns the source lists that apt would read.
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

/// Returns true if the list names a source and not only comments.
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
    fn only_the_source_access_of_apts_configuration_is_kept() {
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
