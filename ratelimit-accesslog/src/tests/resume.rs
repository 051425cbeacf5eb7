//! Tests of a log across restarts of the process.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use super::{Log, append};
use crate::{Event, FilePosition, Follower, Limits, Position, Source};

#[test]
fn a_restart_continues_at_the_next_line() {
    let mut log = Log::with("0\n", Limits::default());
    log.write("1\n2\n3");
    assert_eq!(log.read(), "1 2");
    log.restart();
    log.write("3\n4\n");
    assert_eq!(log.read(), "33 4");
    log.restart();
    log.restart();
    assert_eq!(log.read(), "");
}

#[test]
fn a_restart_within_a_line_that_is_skipped_skips_its_rest() {
    let mut log = Log::new();
    log.write(vec![b'x'; 20_000]);
    assert_eq!(log.read(), "x".repeat(16 << 10));
    log.restart();
    log.write("rest\nnext\n");
    assert_eq!(log.read(), "next");
}

#[test]
fn a_log_that_was_rotated_meanwhile_is_read_to_its_end_first() {
    let mut log = Log::new();
    log.write("1\n");
    assert_eq!(log.read(), "1");
    log.write("2\n");
    log.rename("access.log", "access.log.1");
    fs::write(log.path("access.log.2.gz"), "1\nno\n").unwrap();
    log.write("3\n");
    let new = append(log.log());
    let mut old = std::mem::replace(&mut log.server, new);
    log.write("4\n");
    log.restart();
    assert_eq!(log.read(), "2 3 4");
    std::io::Write::write_all(&mut old, b"5\n").unwrap();
    log.restart();
    log.write("6\n");
    assert_eq!(log.read(), "5 6");
}

#[test]
fn a_restart_between_rename_and_the_new_log_loses_nothing() {
    let mut log = Log::new();
    log.write("1\n");
    assert_eq!(log.read(), "1");
    log.rename("access.log", "access.log.1");
    log.restart();
    log.write("2\n");
    assert_eq!(log.read(), "");
    log.restart();
    log.reopen();
    log.write("3\n");
    assert_eq!(log.read(), "2 3");
}

#[test]
fn a_new_log_whose_former_file_is_compressed_is_read_from_its_start() {
    let mut log = Log::new();
    log.write("1\n");
    assert_eq!(log.read(), "1");
    log.rename("access.log", "access.log.1");
    fs::write(log.path("access.log.1.gz"), "1\n").unwrap();
    fs::remove_file(log.path("access.log.1")).unwrap();
    log.reopen();
    log.write("2\n");
    log.restart();
    assert_eq!(log.poll().events, [Event::RestLost, Event::BeganAtStart]);
    assert_eq!(log.lines, ["1", "2"]);
}

#[test]
fn an_older_file_in_the_logs_place_is_read_from_its_end() {
    let mut log = Log::new();
    log.write("1\n");
    assert_eq!(log.read(), "1");
    let file = append(log.path("restored"));
    std::io::Write::write_all(&mut &file, b"old\n").unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    log.rename("restored", "access.log");
    log.restart();
    assert_eq!(log.poll().events, [Event::RestLost, Event::BeganAtEnd]);
    log.reopen();
    log.write("2\n");
    assert_eq!(log.read(), "2");
}

#[test]
fn a_reused_inode_is_told_by_the_first_bytes() {
    let mut log = Log::new();
    log.write("first\n");
    assert_eq!(log.read(), "first");
    log.server.set_len(0).unwrap();
    log.write("other\nmore\n");
    log.restart();
    assert_eq!(log.read(), "other more");
}

#[test]
fn a_log_that_was_truncated_meanwhile_is_read_from_its_start() {
    let mut log = Log::new();
    log.write("first\n");
    assert_eq!(log.read(), "first");
    log.server.set_len(0).unwrap();
    log.restart();
    assert_eq!(log.read(), "");
    log.write("2\n");
    assert_eq!(log.read(), "2");
}

#[test]
fn a_log_that_was_copied_and_truncated_meanwhile_is_read_from_the_copy_first() {
    let mut log = Log::new();
    log.write("1\n");
    assert_eq!(log.read(), "1");
    log.write("2\n");
    fs::copy(log.log(), log.path("access.log.1")).unwrap();
    log.server.set_len(0).unwrap();
    log.write("3\n");
    log.restart();
    assert_eq!(log.read(), "2 3");
}

#[test]
fn a_log_that_did_not_exist_before_the_restart_is_read_from_its_start() {
    let mut log = Log::new();
    fs::remove_file(log.log()).unwrap();
    log.follower = Follower::new(Source::File(log.log()), None, log.limits);
    log.poll();
    log.restart();
    log.reopen();
    log.write("1\n");
    assert_eq!(log.read(), "1");
}

#[test]
fn another_device_number_is_accepted_where_the_first_bytes_agree() {
    let mut log = Log::new();
    log.write("1\n");
    assert_eq!(log.read(), "1");
    let position = log.follower.position().unwrap();
    let files = position.files.iter().map(|file| FilePosition { device: file.device + 1, ..*file }).collect();
    log.follower = Follower::new(Source::File(log.log()), Some(Position { files, ..position }), log.limits);
    log.write("2\n");
    assert_eq!(log.read(), "2");
    assert_eq!(log.follower.position().unwrap().files[0].device, fs::metadata(log.log()).unwrap().dev());
}

#[test]
fn a_position_beyond_any_file_does_no_harm() {
    let mut log = Log::new();
    log.write("1\n");
    assert_eq!(log.read(), "1");
    let mut position = log.follower.position().unwrap();
    position.files[0].offset = u64::MAX;
    position.files[0].head_len = 0;
    position.files[0].head_hash = crate::position::hash(b"");
    log.follower = Follower::new(Source::File(log.log()), Some(position), log.limits);
    assert_eq!(log.poll().events, [Event::Truncated]);
    log.write("2\n");
    assert_eq!(log.read(), "2");
}
