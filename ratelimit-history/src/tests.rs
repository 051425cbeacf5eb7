//! Tests of the history on real files: storing, erasing, and failures of file or disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use jiff::Timestamp;
use ratelimit_report::event::{Event, EventKind};
use ratelimit_report::history::{Health, HealthState, HistoryReport};

use crate::writer::Pace;
use crate::{Filter, Progress, Reader, Recorder, Settings};

mod faults;
mod keeping;
mod kill;
mod losses;
mod queue;
mod stories;

/// Time at which each test starts: 2026-01-01.
const START: i64 = 1_767_225_600_000;

/// A directory, a clock that is set by hand, and a pace that needs no waiting.
struct Site {
    directory: tempfile::TempDir,
    clock: Arc<AtomicI64>,
}

impl Site {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), clock: Arc::new(AtomicI64::new(START)) }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("state/history.db")
    }

    fn settings(&self) -> Settings {
        Settings::at(self.path())
    }

    fn pace(&self) -> Pace {
        let clock = self.clock.clone();
        Pace {
            batch: Duration::from_millis(5),
            retry: Duration::from_millis(20),
            upkeep: Duration::from_millis(20),
            clock: Arc::new(move || Timestamp::from_millisecond(clock.load(Ordering::Relaxed)).unwrap()),
        }
    }

    fn recorder(&self) -> Recorder {
        self.recorder_with(self.settings())
    }

    fn recorder_with(&self, settings: Settings) -> Recorder {
        Recorder::off().replaced_at(Some(settings), self.pace())
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millisecond(self.clock.load(Ordering::Relaxed)).unwrap()
    }

    fn pass(&self, seconds: i64) {
        self.clock.fetch_add(seconds * 1_000, Ordering::Relaxed);
    }

    fn event(&self, kind: EventKind, source: &str) -> Event {
        let mut event = Event::new(self.now(), kind, format!("about {source}"));
        event.source = Some(source.to_owned());
        event.rule = Some("web".to_owned());
        event.limit = Some("1000/5m requests".to_owned());
        event.reason = Some("over_limit".to_owned());
        event.used = Some(1_000);
        event
    }

    fn progress(&self, source: &str, packets: u64) -> Progress {
        Progress {
            time: self.now(),
            source: net(source),
            rule: "web".to_owned(),
            limit: "1000/5m requests".to_owned(),
            would: false,
            packets,
            bytes: packets * 60,
            used: 1_000,
        }
    }

    fn reader(&self) -> Reader {
        Reader::open(&self.path()).unwrap()
    }

    fn story(&self, of: &str) -> HistoryReport {
        self.reader().history(net(of), &Filter::default()).unwrap()
    }
}

fn net(text: &str) -> IpNet {
    crate::mask::parse(text).unwrap()
}

/// Waits until all sent records are in the database.
fn written(recorder: &Recorder) {
    wait(recorder, |health| health.bytes > 0 && health.waiting == 0 && health.state == HealthState::Ok);
}

/// Returns a recorder that cannot write an event of 192.0.2.1 while the returned connection lives.
fn locked(site: &Site) -> (Recorder, rusqlite::Connection) {
    let recorder = site.recorder();
    written(&recorder);
    let lock = rusqlite::Connection::open(site.path()).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    recorder.record(site.event(EventKind::Refused, "192.0.2.1"));
    (recorder, lock)
}

/// Waits until the health meets a condition, and returns it.
fn wait(recorder: &Recorder, mut is_so: impl FnMut(&Health) -> bool) -> Health {
    let begin = Instant::now();
    loop {
        let health = recorder.health();
        if is_so(&health) {
            return health;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{health:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn close(recorder: Recorder) {
    assert!(recorder.close(Duration::from_secs(60)));
}

/// Returns true if SQLite finds the file intact.
fn is_whole(path: &Path) -> bool {
    let connection = rusqlite::Connection::open(path).unwrap();
    let said: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    said == "ok"
}
