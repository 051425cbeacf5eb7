//! Tests of paths other than regular logs: directories, files without permission, FIFOs, devices and sockets.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::{Uid, mkfifo, setfsuid};

use super::{Log, append};
use crate::{Follower, Limits, Source, State};

/// Returns a log with a follower on the given path. Nothing is polled yet.
fn following(path: impl FnOnce(&Log) -> Source) -> Log {
    let mut log = Log::new();
    log.follower = Follower::new(path(&log), None, Limits::default());
    log
}

#[test]
fn a_log_that_comes_later_is_read_from_its_start() {
    let mut log = following(|log| Source::File(log.path("later/access.log")));
    assert_eq!(log.poll().state, State::Missing);
    fs::create_dir(log.path("later")).unwrap();
    assert_eq!(log.poll().state, State::Missing);
    append(log.path("later/access.log")).write_all(b"1\n").unwrap();
    assert_eq!(log.read(), "1");
    assert_eq!(log.poll().state, State::Following);
}

#[test]
fn a_directory_is_said_and_a_log_in_its_place_is_followed() {
    let mut log = following(|log| Source::File(log.path("directory")));
    fs::create_dir(log.path("directory")).unwrap();
    assert_eq!(log.poll().state, State::IsDirectory);
    fs::remove_dir(log.path("directory")).unwrap();
    assert_eq!(log.poll().state, State::Missing);
    append(log.path("directory")).write_all(b"1\n").unwrap();
    assert_eq!(log.read(), "1");
}

#[test]
fn devices_and_sockets_of_others_are_refused() {
    for path in ["/dev/null", "/dev/zero"] {
        let mut log = following(|_| Source::File(path.into()));
        assert_eq!(log.poll().state, State::Failing("is a device, not a log".into()));
    }
    let mut log = following(|log| Source::File(log.path("socket")));
    let _other = UnixListener::bind(log.path("socket")).unwrap();
    assert!(matches!(log.poll().state, State::Failing(why) if why.contains("unix:PATH")));
}

#[test]
fn a_log_without_permission_is_said_and_read_from_its_end_once_there_is() {
    // Without user 0 as its file system user, this thread has no right to read any file.
    let is_root = Uid::effective().is_root();
    let mut log = following(|log| Source::File(log.path("secret")));
    fs::set_permissions(log.directory.path(), Permissions::from_mode(0o755)).unwrap();
    let mut server = append(log.path("secret"));
    server.write_all(b"old\n").unwrap();
    fs::set_permissions(log.path("secret"), Permissions::from_mode(0o000)).unwrap();
    if is_root {
        setfsuid(Uid::from_raw(65_534));
    }
    let state = log.poll().state;
    if is_root {
        setfsuid(Uid::from_raw(0));
    }
    assert_eq!(state, State::NoPermission);
    fs::set_permissions(log.path("secret"), Permissions::from_mode(0o600)).unwrap();
    assert_eq!(log.read(), "");
    server.write_all(b"new\n").unwrap();
    assert_eq!(log.read(), "new");
}

#[test]
fn a_fifo_is_read_without_a_writer_with_one_and_with_the_next() {
    let mut log = following(|log| Source::File(log.path("fifo")));
    mkfifo(&log.path("fifo"), Mode::S_IRWXU).unwrap();
    let writer = || {
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(OFlag::O_NONBLOCK.bits());
        options
    };
    let begin = Instant::now();
    let polled = log.poll();
    assert_eq!((polled.state, polled.more, polled.lag), (State::Following, false, None));
    log.server = writer().open(log.path("fifo")).unwrap();
    assert!(!log.poll().more);
    log.write("1\n2");
    assert_eq!(log.read(), "1");
    log.write("2\ncut");
    assert_eq!(log.read(), "22");
    log.server = append(log.log());
    assert_eq!(log.read(), "");
    log.server = writer().open(log.path("fifo")).unwrap();
    log.write("3\n");
    assert_eq!(log.read(), "3");
    assert_eq!(log.follower.position(), None);
    assert!(begin.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_fifo_that_is_replaced_is_followed() {
    let mut log = following(|log| Source::File(log.path("fifo")));
    for line in ["1", "2", "3"] {
        fs::remove_file(log.path("fifo")).ok();
        mkfifo(&log.path("fifo"), Mode::S_IRWXU).unwrap();
        log.poll();
        let mut server = OpenOptions::new().write(true).open(log.path("fifo")).unwrap();
        writeln!(server, "{line}").unwrap();
        assert_eq!(log.read(), line);
    }
}

#[test]
fn each_datagram_of_a_socket_is_one_line() {
    let mut log = following(|log| Source::Socket { path: log.path("socket"), group: None });
    assert_eq!(log.poll().state, State::Following);
    assert!(log.follower.socket().is_some());
    assert_eq!(fs::metadata(log.path("socket")).unwrap().permissions().mode() & 0o777, 0o660);
    let server = UnixDatagram::unbound().unwrap();
    server.connect(log.path("socket")).unwrap();
    server.send(b"<190>Nov 27 17:51:39 host nginx: 1").unwrap();
    server.send(b"2\n").unwrap();
    assert_eq!(log.read(), "<190>Nov 27 17:51:39 host nginx: 1 2");
    server.send(&vec![b'x'; 16 << 10]).unwrap();
    server.send(&vec![b'x'; (16 << 10) + 1]).unwrap();
    server.send(&vec![b'x'; 100_000]).unwrap();
    server.send(b"two\nlines").unwrap();
    server.send(b"").unwrap();
    log.lines.clear();
    let polled = log.poll();
    assert_eq!((polled.lines, polled.skipped_lines, polled.lag), (2, 3, None));
    let longest = "x".repeat(16 << 10);
    assert_eq!(log.lines, [longest.clone(), longest.clone(), longest, String::new()]);
}

#[test]
fn a_socket_is_bound_again_when_it_is_removed_and_goes_with_its_follower() {
    let mut log = following(|log| Source::Socket { path: log.path("socket"), group: None });
    log.poll();
    fs::remove_file(log.path("socket")).unwrap();
    log.poll();
    UnixDatagram::unbound().unwrap().send_to(b"1", log.path("socket")).unwrap();
    assert_eq!(log.read(), "1");
    log.follower = Follower::new(Source::File(log.log()), None, Limits::default());
    assert!(!log.path("socket").exists());
}

#[test]
fn a_socket_of_a_killed_process_is_replaced_and_one_in_use_is_not() {
    let mut log = following(|log| Source::Socket { path: log.path("socket"), group: None });
    let other = UnixDatagram::bind(log.path("socket")).unwrap();
    assert_eq!(log.poll().state, State::Failing("is a socket that another process receives on".into()));
    drop(other);
    assert_eq!(log.poll().state, State::Following);
    let mut file = following(|log| Source::Socket { path: log.log(), group: None });
    assert!(matches!(file.poll().state, State::Failing(why) if why.contains("no socket")));
    assert!(file.log().exists());
}

#[test]
fn one_poll_of_a_socket_reads_at_most_what_its_limits_allow() {
    let mut log = following(|log| Source::Socket { path: log.path("socket"), group: None });
    let limits = Limits { lines_per_poll: 2, ..Limits::default() };
    log.follower = Follower::new(Source::Socket { path: log.path("socket"), group: None }, None, limits);
    log.poll();
    let server = UnixDatagram::unbound().unwrap();
    for line in ["1", "2", "3"] {
        server.send_to(line.as_bytes(), log.path("socket")).unwrap();
    }
    let polled = log.poll();
    assert_eq!((polled.lines, polled.more), (2, true));
    assert_eq!(log.read(), "3");
}
