//! Tests of failures: full disk, read-only disk, corruption, newer version, clock going back. The recorder reports
//! the problem and continues once it can.

use std::fs;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use proptest::test_runner::{RngAlgorithm, TestRng};
use rand_of_proptest::bytes_at;
use rusqlite::Connection;

use super::keeping::forget;
use super::*;

/// Random bytes from proptest's generator.
mod rand_of_proptest {
    use proptest::prelude::Rng as _;

    use super::{TestRng, fs};

    /// Overwrites `count` ranges of a file at random places.
    pub(super) fn bytes_at(path: &std::path::Path, count: usize, rng: &mut TestRng) {
        let mut contents = fs::read(path).unwrap();
        for _ in 0..count {
            let at = usize::try_from(rng.next_u64()).unwrap() % contents.len();
            let end = contents.len().min(at + 1 + usize::try_from(rng.next_u32()).unwrap() % 64);
            rng.fill_bytes(&mut contents[at..end]);
        }
        fs::write(path, contents).unwrap();
    }
}

const NO_FLAGS: MsFlags = MsFlags::empty();

/// Runs a test with a separate file system of `size` bytes on the site's directory, invisible to other processes.
fn with_own_disk(name: &str, size: u32, test: impl FnOnce(&Site) + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: {name}: mounting needs root");
        return;
    }
    let run = move || {
        let site = Site::new();
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount::<str, str, str, str>(None, "/", None, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None).unwrap();
        let options = format!("size={size}");
        mount(Some("tmpfs"), site.directory.path(), Some("tmpfs"), NO_FLAGS, Some(options.as_str())).unwrap();
        test(&site);
        nix::mount::umount2(site.directory.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
    };
    // The mount namespace belongs to this thread and the threads that it starts.
    std::thread::spawn(run).join().unwrap();
}

fn says(health: &Health, words: &str) -> bool {
    health.detail.as_deref().is_some_and(|detail| detail.contains(words))
}

#[test]
fn a_full_disk_is_said_and_what_waited_is_written_once_there_is_room() {
    with_own_disk("a_full_disk", 1 << 20, |site| {
        let recorder = site.recorder();
        recorder.record(site.event(EventKind::Refused, "192.0.2.1"));
        written(&recorder);
        let ballast = site.directory.path().join("ballast");
        // The file system is filled to the last byte.
        let full = fs::write(&ballast, vec![1; 2 << 20]).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        let mut number = 0_u32;
        let health = wait(&recorder, |health| {
            let source = std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string();
            number += 1;
            assert!(recorder.record(site.event(EventKind::Refused, &source)));
            health.state == HealthState::Failing
        });
        assert!(says(&health, "the disk is full; it resumes by itself once there is room"), "{health:?}");
        assert!(says(&health, "state/history.db"), "{health:?}");
        let why = forget(&recorder, "192.0.2.1").unwrap_err();
        assert!(why.contains("the disk is full; it resumes by itself once there is room; its records stay"), "{why}");
        fs::remove_file(&ballast).unwrap();
        written(&recorder);
        assert_eq!(recorder.health().detail, None);
        let rows = |reader: Reader| reader.worst(&Filter::default(), site.now()).unwrap();
        let worst = rows(site.reader());
        assert_eq!(worst.sources.len() as u64 + worst.omitted, u64::from(number) + 1);
        assert_eq!(recorder.health().lost, 0);
        close(recorder);
        assert!(is_whole(&site.path()));
    });
}

#[test]
fn a_disk_that_is_full_from_the_start_is_said_too() {
    with_own_disk("a_disk_full_from_the_start", 1 << 16, |site| {
        let ballast = site.directory.path().join("ballast");
        fs::create_dir(site.directory.path().join("state")).unwrap();
        assert!(fs::write(&ballast, vec![1; 1 << 17]).is_err());
        let recorder = site.recorder();
        recorder.record(site.event(EventKind::Refused, "192.0.2.1"));
        let health = wait(&recorder, |health| health.state == HealthState::Failing);
        assert!(says(&health, "history is not written"), "{health:?}");
        fs::remove_file(&ballast).unwrap();
        mount_again(site, NO_FLAGS, Some("size=1048576"));
        written(&recorder);
        assert_eq!(site.story("192.0.2.1").episodes.len(), 1);
        close(recorder);
    });
}

fn mount_again(site: &Site, flags: MsFlags, options: Option<&str>) {
    mount::<str, _, str, str>(None, site.directory.path(), None, MsFlags::MS_REMOUNT | flags, options).unwrap();
}

#[test]
fn a_directory_that_cannot_be_written_is_said_and_used_once_it_can() {
    with_own_disk("a_read_only_directory", 1 << 22, |site| {
        mount_again(site, MsFlags::MS_RDONLY, None);
        let recorder = site.recorder();
        assert!(recorder.record(site.event(EventKind::Refused, "192.0.2.1")));
        let health = wait(&recorder, |health| health.state == HealthState::Failing);
        assert!(says(&health, "cannot be written"), "{health:?}");
        mount_again(site, NO_FLAGS, None);
        written(&recorder);
        close(recorder);
        // A directory that already has a database behaves alike.
        mount_again(site, MsFlags::MS_RDONLY, None);
        let recorder = site.recorder();
        recorder.record(site.event(EventKind::Refused, "192.0.2.2"));
        let health = wait(&recorder, |health| health.state == HealthState::Failing);
        assert!(says(&health, "cannot be written"), "{health:?}");
        mount_again(site, NO_FLAGS, None);
        written(&recorder);
        assert_eq!(site.story("192.0.2.0/24").episodes.len(), 2);
        close(recorder);
    });
}

#[test]
fn a_database_of_a_newer_version_is_left_as_it_is_and_history_is_off() {
    let site = Site::new();
    let recorder = site.recorder();
    recorder.record(site.event(EventKind::Refused, "192.0.2.1"));
    close(recorder);
    Connection::open(site.path()).unwrap().pragma_update(None, "user_version", 7).unwrap();
    let before = fs::read(site.path()).unwrap();
    let recorder = site.recorder();
    recorder.record(site.event(EventKind::Refused, "192.0.2.1"));
    let health = wait(&recorder, |health| health.state == HealthState::Off);
    assert!(says(&health, "it is of version 7, which a newer program wrote"), "{health:?}");
    for source in ["192.0.2.2", "192.0.2.3"] {
        recorder.record(site.event(EventKind::Refused, source));
    }
    let health = wait(&recorder, |health| health.waiting == 0);
    assert_eq!(health.lost, 3, "what waited, and what comes");
    let why = forget(&recorder, "192.0.2.1").unwrap_err();
    assert!(why.contains("version 7") && why.contains("use the newer program, or move the file away"), "{why}");
    close(recorder);
    assert_eq!(fs::read(site.path()).unwrap(), before);
    assert!(matches!(Reader::open(&site.path()), Err(crate::QueryError::Version(7))));
}

#[test]
fn a_forget_request_is_answered_even_if_history_ends_first() {
    let site = Site::new();
    close(site.recorder());
    Connection::open(site.path()).unwrap().pragma_update(None, "user_version", 7).unwrap();
    for _ in 0..50 {
        // The request may be queued when the thread finds the newer version.
        let recorder = site.recorder();
        forget(&recorder, "192.0.2.1").unwrap_err();
        forget(&recorder, "192.0.2.1").unwrap_err();
        close(recorder);
    }
}

fn set_aside(site: &Site) -> Vec<String> {
    let names = fs::read_dir(site.path().parent().unwrap()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names
        .filter(|name| name.starts_with("history.db.corrupt-") && !name.ends_with("-wal") && !name.ends_with("-shm"))
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn a_file_that_is_no_database_is_set_aside_and_a_new_one_is_begun() {
    for contents in ["not a database, but a text that is long enough to be one".repeat(100), "short".to_owned()] {
        let site = Site::new();
        fs::create_dir(site.path().parent().unwrap()).unwrap();
        fs::write(site.path(), &contents).unwrap();
        let recorder = site.recorder();
        recorder.record(site.event(EventKind::Refused, "192.0.2.1"));
        written(&recorder);
        assert!(says(&recorder.health(), "a new one is created"), "{:?}", recorder.health());
        assert_eq!(set_aside(&site), ["history.db.corrupt-20260101T000000Z"]);
        assert_eq!(fs::read_to_string(site.path().with_file_name(&set_aside(&site)[0])).unwrap(), contents);
        assert_eq!(site.story("192.0.2.1").episodes.len(), 1);
        close(recorder);
    }
}

#[test]
fn a_database_that_this_program_cannot_have_written_is_set_aside() {
    let text_that_is_none = "UPDATE episodes SET rule = CAST(x'ff' AS TEXT)";
    let versions = ["PRAGMA user_version = 0", "PRAGMA user_version = -5", "PRAGMA user_version = 2"];
    for statement in versions.into_iter().chain(["DROP TABLE acts", text_that_is_none]) {
        let site = Site::new();
        let recorder = site.recorder();
        recorder.record(site.event(EventKind::Refused, "192.0.2.9"));
        close(recorder);
        Connection::open(site.path()).unwrap().execute_batch(statement).unwrap();
        let recorder = site.recorder();
        recorder.record(site.event(EventKind::Deny, "192.0.2.1"));
        written(&recorder);
        assert_eq!(set_aside(&site).len(), 1, "{statement}");
        close(recorder);
    }
}

#[test]
fn only_the_newest_broken_files_are_kept() {
    let site = Site::new();
    for _ in 0..5 {
        fs::create_dir_all(site.path().parent().unwrap()).unwrap();
        fs::write(site.path(), "broken").unwrap();
        fs::remove_file(site.path().with_file_name("history.db-wal")).ok();
        let recorder = site.recorder();
        written(&recorder);
        wait(&recorder, |health| health.detail.is_some());
        close(recorder);
        site.pass(1);
    }
    assert_eq!(set_aside(&site), ["history.db.corrupt-20260101T000003Z", "history.db.corrupt-20260101T000004Z"]);
}

#[test]
fn random_bytes_at_random_places_never_stop_it() {
    let mut aside = 0;
    for seed in 0..40_u8 {
        let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
        let site = Site::new();
        let recorder = site.recorder();
        for number in 0..400 {
            recorder.record(site.event(EventKind::Refused, &format!("10.0.{}.{}", number / 200, number % 200)));
            recorder.record(site.event(EventKind::Deny, "192.0.2.1"));
        }
        // Half of the files are damaged while they are open, as a failing disk would do.
        let recorder = if seed % 2 == 0 {
            close(recorder);
            bytes_at(&site.path(), 1 + usize::from(seed / 4), &mut rng);
            site.recorder()
        } else {
            written(&recorder);
            bytes_at(&site.path(), 1 + usize::from(seed / 4), &mut rng);
            recorder
        };
        for number in 0..200 {
            recorder.record(site.event(EventKind::Refused, &format!("10.1.0.{number}")));
        }
        let health = wait(&recorder, |health| {
            health.state == HealthState::Off || health.state == HealthState::Ok && health.waiting == 0
        });
        assert!(health.state == HealthState::Ok || says(&health, "newer"), "seed {seed}: {health:?}");
        close(recorder);
        // The next start detects damage that this one could not see.
        let recorder = site.recorder();
        recorder.record(site.event(EventKind::Refused, "10.2.0.1"));
        wait(&recorder, |health| {
            health.state == HealthState::Off || health.state == HealthState::Ok && health.waiting == 0
        });
        let is_off = recorder.health().state == HealthState::Off;
        close(recorder);
        assert!(is_off || site.story("10.2.0.1").episodes.len() == 1, "seed {seed}");
        aside += usize::from(!set_aside(&site).is_empty());
    }
    println!("{aside} of 40 files were set aside");
    // Damage in free space or in texts cannot be detected.
    assert!(aside >= 10, "{aside}");
}

#[test]
fn a_clock_that_goes_back_is_said_and_what_comes_after_is_kept() {
    let site = Site::new();
    let recorder = site.recorder();
    recorder.record(site.event(EventKind::Refused, "192.0.2.1"));
    written(&recorder);
    site.pass(-7_200);
    let health = wait(&recorder, |health| health.detail.is_some());
    assert!(
        says(&health, "the clock went back by 7200 s") || says(&health, "the clock went back by 7199 s"),
        "{health:?}"
    );
    assert_eq!(health.state, HealthState::Ok);
    recorder.record(site.event(EventKind::Refused, "192.0.2.2"));
    recorder.record(site.event(EventKind::Reset, "192.0.2.1"));
    close(recorder);
    let story = site.story("192.0.2.0/24");
    assert!(story.episodes.iter().all(|of| of.ended.is_none_or(|ended| of.began <= ended)), "{story:?}");
    assert_eq!((story.episodes.len(), story.acts.len()), (2, 1));
}

#[test]
fn a_database_that_is_removed_while_it_is_open_is_begun_again_with_what_is_open() {
    let site = Site::new();
    let recorder = site.recorder();
    recorder.record(site.event(EventKind::Refused, "192.0.2.1"));
    recorder.record(site.event(EventKind::Refused, "192.0.2.2"));
    written(&recorder);
    fs::remove_dir_all(site.path().parent().unwrap()).unwrap();
    let begin = Instant::now();
    while !site.path().exists() {
        assert!(begin.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(5));
    }
    recorder.progress(site.progress("192.0.2.1", 3));
    written(&recorder);
    wait(&recorder, |health| says(health, "was removed"));
    close(recorder);
    assert_eq!(site.story("192.0.2.1").episodes[0].packets, 3);
    assert_eq!(site.story("192.0.2.2").episodes.len(), 1);
}

#[test]
fn a_database_that_another_program_has_locked_is_tried_again() {
    let site = Site::new();
    let (recorder, lock) = locked(&site);
    let health = wait(&recorder, |health| health.state == HealthState::Failing);
    assert!(says(&health, "it is tried again"), "{health:?}");
    drop(lock);
    written(&recorder);
    assert_eq!(site.story("192.0.2.1").episodes.len(), 1);
    close(recorder);
}
