//! Tests of access logs as files: whatever happens to a file, each line is charged once, and counting goes on without
//! it.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use integration_test::lab::{CLIENTS, Daemon, SERVER, once};
use integration_test::logged::{CLIENT, Site, used};
use netlab::needs_root;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// Starts the daemon with this log, and waits until it follows the log. Lines written before are not read.
fn limit(site: &Site, log: &Path) -> Daemon {
    let daemon = site.lab.limit(&["--limit", "1000/1h", "--access-log", log.to_str().unwrap()]);
    assert!(once(|| (site.report()["state"] == "is followed").then_some(())).is_some(), "{:#}", site.report());
    daemon
}

/// Returns a log line of the client with the current time.
fn line() -> String {
    let time = jiff::Timestamp::now().strftime("%d/%b/%Y:%H:%M:%S +0000");
    format!("{CLIENT} - - [{time}] \"GET / HTTP/2.0\" 200 3 \"-\" \"-\"\n")
}

fn append(path: &Path, lines: usize) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(line().repeat(lines).as_bytes()).unwrap();
}

/// Runs logrotate at once, with the site's own state file.
fn rotate(site: &Site, how: &str) {
    let (directory, log) = (site.lab.directory(), site.log());
    let config = directory.join("logrotate.conf");
    let text = format!("{} {{\n  size 1\n  rotate 3\n  su root root\n  {how}\n}}\n", log.display());
    fs::write(&config, text).unwrap();
    let (state, config) = (directory.join("logrotate.state"), config.to_str().unwrap());
    site.lab.server.run(&["logrotate", "--force", "--state", state.to_str().unwrap(), config]).unwrap();
}

#[test]
fn logrotate_by_name_by_copy_and_with_compression_has_each_line_charged_once() {
    needs_root!();
    let site = Site::new();
    let _daemon = site.limit("1000000/1h");
    let reopen = format!(
        "create 0640\n  compress\n  delaycompress\n  postrotate\n    kill -USR1 $(cat {}/nginx.pid)\n  endscript",
        site.lab.directory().display()
    );
    let mut all = 0;
    for (round, how) in [&*reopen, &reopen, "copytruncate", "copytruncate\n  compress", &reopen].into_iter().enumerate()
    {
        site.load(500, 2, 50);
        all += 500;
        // Some of it may not have been read yet. A copy is read after the rotation, unless it is compressed at once.
        if how.starts_with("copytruncate") && how.ends_with("compress") {
            assert!(once(|| (site.used() == all).then_some(())).is_some(), "round {round}: {:#}", site.report());
        }
        rotate(&site, how);
        site.load(300, 1, 30);
        all += 300;
        let charged = once(|| (site.used() == all).then_some(()));
        assert!(charged.is_some(), "round {round}: {} of {all}: {:#}", site.used(), site.report());
    }
}

#[test]
fn a_log_of_ten_gigabytes_is_read_from_its_end_at_once() {
    needs_root!();
    let site = Site::new();
    let path = site.lab.directory().join("large.log");
    File::create(&path).unwrap().set_len(10 << 30).unwrap();
    // Terminates the last line that existed before.
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"\n").unwrap();
    let begun = Instant::now();
    let _daemon = limit(&site, &path);
    site.load(1, 1, 1);
    append(&path, 5);
    assert!(once(|| (site.used() == 5).then_some(())).is_some(), "{}: {:#}", site.used(), site.report());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(site.report()["skipped_bytes"], 0, "a log begins at its end");
}

#[test]
fn a_fifo_is_read_though_its_writers_come_and_go() {
    needs_root!();
    let site = Site::new();
    let path = site.lab.directory().join("fifo.log");
    mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let _daemon = limit(&site, &path);
    site.load(1, 1, 1);
    for all in [4, 7, 10] {
        let lines = if all == 4 { 4 } else { 3 };
        // The write waits until the daemon reads.
        OpenOptions::new().write(true).open(&path).unwrap().write_all(line().repeat(lines).as_bytes()).unwrap();
        assert!(once(|| (site.used() == all).then_some(())).is_some(), "{}: {:#}", site.used(), site.report());
    }
}

#[test]
fn a_log_on_a_full_disk_stops_and_is_charged_again_once_there_is_room() {
    needs_root!();
    let site = Site::new();
    let directory = site.lab.directory().join("small");
    fs::create_dir(&directory).unwrap();
    mount(Some("tmpfs"), &directory, Some("tmpfs"), MsFlags::empty(), Some("size=65536")).unwrap();
    let mounted = Mounted(&directory);
    let log = directory.join("access.log");
    fs::write(&log, "").unwrap();
    let daemon = limit(&site, &log);
    site.load(1, 1, 1);
    append(&log, 3);
    assert!(once(|| (site.used() == 3).then_some(())).is_some(), "{}", site.used());
    let mut file = OpenOptions::new().append(true).open(&log).unwrap();
    while file.write_all(b"filled\n").is_ok() {}
    let _cut = file.write(line().as_bytes());
    assert!(once(|| (site.report()["behind_bytes"] == 0).then_some(())).is_some(), "{:#}", site.report());
    site.load(20, 1, 1);
    assert!(once(|| (site.used() == 23).then_some(())).is_some(), "packets are counted: {}", site.used());
    file.set_len(0).unwrap();
    append(&log, 30);
    // 21 of 33 lines were counted, and 2 were charged.
    assert!(once(|| (site.used() == 33).then_some(())).is_some(), "{}: {:#}", site.used(), site.report());
    drop((daemon, mounted));
}

/// A file system that is unmounted on drop.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _gone = umount2(self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_million_addresses_charge_nobody_and_take_a_bounded_memory() {
    needs_root!();
    const ADDRESSES: u32 = 1_000_000;
    const MEMORY_MAX_KB: u64 = 64 * 1024;
    let site = Site::new();
    let path = site.lab.directory().join("many.log");
    fs::write(&path, "").unwrap();
    let daemon = limit(&site, &path);
    site.load(5, 1, 1);
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().trim().to_owned();
        line.trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = resident();
    let time = jiff::Timestamp::now().strftime("%d/%b/%Y:%H:%M:%S +0000").to_string();
    let mut text = String::new();
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    let mut most = before;
    for number in 0..ADDRESSES {
        let address = std::net::Ipv4Addr::from(0x0b00_0000 + number);
        text += &format!("{address} - - [{time}] \"GET / HTTP/2.0\" 200 3 \"-\" \"-\"\n");
        if number % 10_000 == 9_999 {
            file.write_all(text.as_bytes()).unwrap();
            text.clear();
            most = most.max(resident());
        }
    }
    let read = || {
        let report = site.report();
        let of = |outcome: &str| report["lines"][outcome].as_u64().unwrap();
        (of("not_a_peer") + of("proxied") + report["skipped_bytes"].as_u64().unwrap() / 70
            > u64::from(ADDRESSES) * 9 / 10)
            .then_some(())
    };
    assert!(once(read).is_some(), "{:#}", site.report());
    most = most.max(resident());
    println!("{before} kB before, {most} kB at most");
    assert!(most < before + MEMORY_MAX_KB, "{before} kB, then {most} kB");
    assert_eq!((site.used(), used(&site.lab, CLIENTS[1]), used(&site.lab, SERVER[0])), (5, 0, 0));
    // Clients that connect directly are charged again once most lines are theirs.
    file.write_all(line().repeat(3_000).as_bytes()).unwrap();
    assert!(once(|| (site.used() > 1_000).then_some(())).is_some(), "{:#}", site.report());
}
