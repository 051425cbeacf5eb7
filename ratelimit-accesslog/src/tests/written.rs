//! Tests of the descriptor that reports writes to a log.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::{Log, append};
use crate::{Follower, Limits, Source};

impl Log {
    /// Returns true if a write was reported since the last poll.
    fn is_written(&self) -> bool {
        let written = self.follower.written().expect("writes are reported");
        let mut descriptors = [PollFd::new(written, PollFlags::POLLIN)];
        poll(&mut descriptors, PollTimeout::ZERO).unwrap() == 1
    }
}

#[test]
fn a_write_is_reported_until_the_next_poll() {
    let mut log = Log::with("old\n", Limits::default());
    assert!(!log.is_written());
    log.write("1\n");
    assert!(log.is_written());
    log.write("2\n");
    assert_eq!(log.read(), "1 2");
    assert!(!log.is_written());
}

#[test]
fn writes_are_reported_after_rotation_to_the_old_file_and_to_the_new_one() {
    let mut log = Log::new();
    for rotation in 1..=6 {
        log.rename("access.log", &format!("access.log.{rotation}"));
        let mut old = log.server.try_clone().unwrap();
        log.reopen();
        log.read();
        log.write("new\n");
        assert!(log.is_written(), "rotation {rotation}");
        assert_eq!(log.read(), "new");
        std::io::Write::write_all(&mut old, b"old\n").unwrap();
        assert!(log.is_written(), "rotation {rotation}");
        assert_eq!(log.read(), "old");
    }
}

#[test]
fn a_log_that_comes_later_reports_its_writes() {
    let mut log = Log::new();
    log.follower = Follower::new(Source::File(log.path("later")), None, log.limits);
    log.poll();
    assert!(!log.is_written() && !log.follower.is_unreported());
    log.server = append(log.path("later"));
    log.read();
    log.write("1\n");
    assert!(log.is_written());
    assert_eq!(log.read(), "1");
}

#[test]
fn a_truncated_log_reports_its_writes() {
    let mut log = Log::with("1\n2\n", Limits::default());
    log.server.set_len(0).unwrap();
    assert!(log.is_written());
    log.read();
    log.write("3\n");
    assert!(log.is_written());
    assert_eq!(log.read(), "3");
}

#[test]
fn a_fifo_has_to_be_polled() {
    let mut log = Log::new();
    mkfifo(&log.path("fifo"), Mode::from_bits_truncate(0o600)).unwrap();
    log.follower = Follower::new(Source::File(log.path("fifo")), None, log.limits);
    log.poll();
    assert!(log.follower.is_unreported() && log.follower.written().is_none());
}
