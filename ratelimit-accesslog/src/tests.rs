//! Unit tests of this crate. They use files and times, and no daemon.

mod beyond;
mod follow;
mod lines;
mod peers;
mod reconcile;
mod resume;
mod sources;
mod written;

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use crate::{Follower, Limits, Polled, Position, Source, State};

const SECOND: u64 = 1_000_000_000;

/// Log in its own directory, with the server's open file, a follower and the lines that it read.
struct Log {
    directory: TempDir,
    server: File,
    follower: Follower,
    limits: Limits,
    lines: Vec<String>,
    now: u64,
}

impl Log {
    /// Follows an empty log.
    fn new() -> Self {
        Self::with("", Limits::default())
    }

    /// Follows a log that already contains `text`. The first poll is done.
    fn with(text: &str, limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        fs::write(&path, text).unwrap();
        let follower = Follower::new(Source::File(path.clone()), None, limits);
        let mut this = Self { server: append(path), directory, follower, limits, lines: Vec::new(), now: SECOND };
        assert_eq!(this.poll().state, State::Following);
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn log(&self) -> PathBuf {
        self.path("access.log")
    }

    /// Writes to the file that the server has open.
    fn write(&mut self, text: impl AsRef<[u8]>) {
        self.server.write_all(text.as_ref()).unwrap();
    }

    /// Makes the server open its log again.
    fn reopen(&mut self) {
        self.server = append(self.log());
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    fn poll(&mut self) -> Polled {
        let lines = &mut self.lines;
        self.follower.poll(self.now, &mut |line: &[u8]| lines.push(String::from_utf8_lossy(line).into_owned()))
    }

    /// Polls a second later and returns the lines read, joined by spaces.
    fn read(&mut self) -> String {
        self.now += SECOND;
        self.lines.clear();
        while self.poll().more {}
        self.lines.join(" ")
    }

    /// Replaces the follower by one that starts from the stored position, as after `kill -9`.
    fn restart(&mut self) {
        let stored = serde_json::to_string(&self.follower.position()).unwrap();
        let position: Option<Position> = serde_json::from_str(&stored).unwrap();
        self.follower = Follower::new(Source::File(self.log()), position, self.limits);
    }
}

/// Returns the CPU time of this thread, which is independent of other load.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// Opens a file as servers open their logs.
fn append(path: PathBuf) -> File {
    OpenOptions::new().append(true).create(true).open(path).unwrap()
}
