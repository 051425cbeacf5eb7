//! Tests on another architecture: the tests of the BPF program, and the daemon with a client that it limits, on
//! Debian's arm64 kernels.
//!
//! One of the kernels has 16 kB pages, so code that assumes 4 kB pages fails there.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

use super::image::{self, Source};
use super::machine::{self, Machine};
use super::{initramfs, run_at_once};
use crate::cargo;
use crate::setup::{self, cross};
use crate::test::cross::{TESTS, build};
use crate::test::harness::Tally;
use crate::test::summary::Tier;
use crate::test::tiers::PRIVILEGED;

/// Debian's name suffixes of the kernels, and their versions.
const KERNELS: [(&str, [u32; 2]); 2] = [("-cloud-arm64", [6, 1]), ("-arm64-16k", [6, 12])];
/// Kernel module of veth, without which the tests have no network.
const MODULES: [&str; 1] = ["drivers/net/veth.ko"];
/// Tests that start the daemon and need no program that the machine lacks, by file.
const OF_DAEMON: [(&str, &[&str]); 1] = [(
    "traffic",
    &[
        "a_port_like_that_of_ssh_stays_open_while_its_neighbour_is_blocked",
        "packets_are_counted_one_by_one",
        "every_frame_that_was_sent_is_counted_once",
    ],
)];
/// File of the figures, below the aarch64 directory.
const FIGURES: &str = "figures.json";

/// Figures for docs/TESTING.md.
#[derive(Serialize)]
struct Figures {
    schema: u32,
    rust_library: &'static str,
    build_seconds: f64,
    daemon_bytes: u64,
    machines: Vec<OfMachine>,
}

#[derive(Serialize)]
struct OfMachine {
    kernel: String,
    passed: usize,
    failed: usize,
    skipped: usize,
    seconds: f64,
}

pub(in crate::test) fn aarch64(filter: Option<&str>) -> Result<Tier> {
    let start = Instant::now();
    let (mut tally, mut of_machines) = (Tally::default(), Vec::new());
    let cross = cross::ensure()?;
    let guest = setup::ensure_aarch64_machine()?;
    let building = Instant::now();
    let artifacts = build(&cross)?;
    let build_seconds = building.elapsed().as_secs_f64();

    let daemon = &cargo::binary(&artifacts, "ratelimitd")?.executable;
    let mut files = guest.files()?;
    files.insert("bin/ratelimitd".to_owned(), daemon.clone());
    let mut commands = Vec::new();
    for test in TESTS {
        let built = artifacts.iter().find(|artifact| artifact.is_test_in(PRIVILEGED) && artifact.target == test);
        let built = built.with_context(|| format!("cargo built no tests {test}"))?;
        files.insert(format!("bin/{test}"), built.executable.clone());
        commands.push(initramfs::tests(test, &filters(test, filter)));
    }

    let mut images = Vec::new();
    for (flavour, version) in KERNELS {
        let mut files = files.clone();
        let image = image::ensure(&Source::aarch64(flavour, &MODULES), &[version])?.remove(0);
        let image = match image {
            Ok(image) => image,
            Err(reason) => {
                tally.skip(&format!("Linux {}.{}{flavour}", version[0], version[1]), &reason);
                continue;
            }
        };
        let mut before = BEFORE.to_owned();
        for module in image.modules {
            let name = module.file_name().context("a module has a name")?.to_string_lossy().into_owned();
            before += &insertion(&name);
            files.insert(name, module);
        }
        let archive = cross::dir().join(format!("initramfs{flavour}.cpio"));
        initramfs::archive(&archive, &files, &initramfs::script(&before, &commands))?;
        let name = format!("Linux {}{flavour}", image.release);
        eprintln!("     Running {} on {name}", TESTS.join(", "));
        images.push((name, image.file, archive));
    }
    let machines: Vec<_> = images
        .iter()
        .map(|(name, kernel, initramfs)| Machine {
            kind: &machine::AARCH64,
            name: name.clone(),
            kernel: kernel.clone(),
            initramfs,
        })
        .collect();
    for (machine, outcome) in machines.iter().zip(run_at_once(&machines)) {
        let (of_machine, took) = outcome?;
        of_machines.push(OfMachine {
            kernel: machine.name.clone(),
            passed: of_machine.passed(),
            failed: of_machine.failed.len(),
            skipped: of_machine.skipped.len(),
            seconds: took.as_secs_f64(),
        });
        tally.add(&machine.name, of_machine);
    }
    // Figures of some tests could be mistaken for those of all tests.
    if filter.is_none() {
        let daemon_bytes = fs::metadata(daemon).map_or(0, |file| file.len());
        let rust_library = cross.library();
        write(&Figures { schema: 1, rust_library, build_seconds, daemon_bytes, machines: of_machines })?;
    }
    Ok(Tier { name: "aarch64", tally, took: start.elapsed() })
}

/// Shell script that runs before the tests: mounts for namespaces and temporary files, and environment variables.
const BEFORE: &str = "$b mkdir -p /run /var /root\n\
    $b ln -s /run /var/run\n\
    $b mount -t tmpfs tmpfs /run\n\
    $b mount -t tmpfs tmpfs /tmp\n\
    export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root RATELIMITD_BIN=/bin/ratelimitd\n\
    $b grep -m 1 KernelPageSize /proc/self/smaps\n";

/// Returns the commands that load a module. The module may be compressed.
fn insertion(name: &str) -> String {
    match name.strip_suffix(".xz") {
        Some(plain) => format!("$b unxz /{name}\n$b insmod /{plain}\n"),
        None => format!("$b insmod /{name}\n"),
    }
}

/// Returns the filters for a test file: the user's, or the tests that can run on the machine.
fn filters<'a>(test: &str, filter: Option<&'a str>) -> Vec<&'a str> {
    match filter {
        Some(filter) => vec![filter],
        None => OF_DAEMON.iter().filter(|(of, _)| *of == test).flat_map(|(_, names)| names.iter().copied()).collect(),
    }
}

fn write(figures: &Figures) -> Result<()> {
    let path = cross::dir().join(FIGURES);
    let text = serde_json::to_string_pretty(figures).context("figures as JSON")?;
    fs::write(&path, text + "\n").with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::workspace;

    #[test]
    fn the_daemons_tests_that_run_there_exist() {
        for (file, names) in OF_DAEMON {
            let path = Path::new(PRIVILEGED).join("tests").join(format!("{file}.rs"));
            let text = fs::read_to_string(workspace::root().join(path)).unwrap();
            for name in names {
                assert!(TESTS.contains(&file) && text.contains(&format!("fn {name}()")), "{file}: {name}");
            }
        }
    }

    #[test]
    fn a_filter_of_the_users_takes_the_place_of_ours() {
        assert_eq!(filters("traffic", Some("x")), ["x"]);
        assert_eq!((filters("traffic", None).len(), filters("program", None).len()), (OF_DAEMON[0].1.len(), 0));
    }

    #[test]
    fn a_module_that_is_compressed_is_unpacked_first() {
        assert_eq!(insertion("veth.ko"), "$b insmod /veth.ko\n");
        assert_eq!(insertion("veth.ko.xz"), "$b unxz /veth.ko.xz\n$b insmod /veth.ko\n");
    }
}
