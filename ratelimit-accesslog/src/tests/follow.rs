//! Tests of one log while the process runs: its start, all kinds of rotation, and long lines.

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{Log, SECOND, append, cpu_time};
use crate::{Event, Follower, Limits, Source, State};

#[test]
fn a_log_is_read_from_its_end() {
    let mut log = Log::with("old 1\nold 2\n", Limits::default());
    log.write("new 1\nnew 2\n");
    assert_eq!(log.read(), "new 1 new 2");
    assert_eq!(log.read(), "");
}

#[test]
fn a_log_that_ends_within_a_line_is_read_from_the_next_one() {
    let mut log = Log::with("old 1\nol", Limits::default());
    log.write("d 2\nnew 1\n");
    assert_eq!(log.read(), "new 1");
}

#[test]
fn a_log_of_10_gb_begins_at_once_at_its_end() {
    let mut log = Log::new();
    let file = append(log.path("large"));
    file.set_len(10_000_000_000).unwrap();
    log.follower = Follower::new(Source::File(log.path("large")), None, log.limits);
    let begin = Instant::now();
    let polled = log.poll();
    assert!(begin.elapsed() < Duration::from_millis(100), "{:?}", begin.elapsed());
    assert_eq!((polled.state, polled.lag, polled.bytes), (State::Following, Some(0), 0));
    log.server = append(log.path("large"));
    log.write("rest of a line\nnew 1\n");
    assert_eq!(log.read(), "new 1");
}

#[test]
fn an_unfinished_line_waits_for_its_newline() {
    let mut log = Log::new();
    log.write("a");
    assert_eq!(log.read(), "");
    log.write("b");
    assert_eq!(log.read(), "");
    log.write("c\nd");
    assert_eq!(log.read(), "abc");
    log.write("\n\n");
    assert_eq!(log.read(), "d ");
}

#[test]
fn lines_of_a_renamed_log_are_read_before_and_after_the_server_opens_the_new_one() {
    let mut log = Log::new();
    log.write("1\n");
    assert_eq!(log.read(), "1");
    log.write("2\n3");
    log.rename("access.log", "access.log.1");
    log.write("3\n");
    assert_eq!(log.read(), "2 33");
    assert_eq!(log.poll().state, State::Missing);
    let mut old = log.server.try_clone().unwrap();
    log.reopen();
    log.write("5\n");
    old.write_all(b"4\n").unwrap();
    assert_eq!(log.read(), "4 5");
    log.write("7\n");
    old.write_all(b"6\n").unwrap();
    assert_eq!(log.read(), "6 7");
    log.now += log.limits.linger_ns;
    assert_eq!(log.read(), "");
    assert_eq!(log.follower.position().unwrap().files.len(), 1);
}

#[test]
fn a_renamed_log_stays_open_until_the_server_uses_the_new_one() {
    let mut log = Log::new();
    log.rename("access.log", "access.log.1");
    append(log.log());
    assert_eq!(log.read(), "");
    log.now += 10 * log.limits.linger_ns;
    assert_eq!(log.read(), "");
    log.write("1\n");
    assert_eq!(log.read(), "1");
}

#[test]
fn compressing_a_renamed_log_loses_nothing() {
    let mut log = Log::new();
    log.write("1\n");
    log.rename("access.log", "access.log.1");
    fs::write(log.path("access.log.1.gz"), b"\x1f\x8b1\n").unwrap();
    fs::remove_file(log.path("access.log.1")).unwrap();
    log.write("2\n");
    log.reopen();
    log.write("3\n");
    assert_eq!(log.read(), "1 2 3");
}

#[test]
fn a_removed_log_is_read_to_its_end_and_its_successor_from_its_start() {
    let mut log = Log::new();
    log.write("1\n");
    fs::remove_file(log.log()).unwrap();
    log.write("2\n");
    assert_eq!(log.read(), "1 2");
    log.write("3\n");
    log.reopen();
    log.write("4\n");
    assert_eq!(log.read(), "3 4");
}

#[test]
fn a_truncated_log_is_read_from_its_start() {
    let mut log = Log::new();
    log.write("1 of the first file\n");
    assert_eq!(log.read(), "1 of the first file");
    log.server.set_len(0).unwrap();
    log.write("2\n");
    log.now += SECOND;
    assert_eq!(log.poll().events, [Event::Truncated]);
    assert_eq!(log.lines, ["1 of the first file", "2"]);
}

#[test]
fn a_truncated_log_that_grew_beyond_the_offset_is_read_from_its_start() {
    let mut log = Log::new();
    log.write("1\n");
    assert_eq!(log.read(), "1");
    log.server.set_len(0).unwrap();
    log.write("second\nthird\n");
    assert_eq!(log.read(), "second third");
}

#[test]
fn lines_that_were_not_read_before_the_truncation_are_read_from_the_copy() {
    let mut log = Log::new();
    log.write("1\n");
    assert_eq!(log.read(), "1");
    log.write("2\n3");
    assert_eq!(log.read(), "2");
    log.write("3\n4\n");
    fs::write(log.path("access.log.2"), "0\n2\n33\n4\n5\n").unwrap();
    fs::write(log.path("other.log"), "1\n2\n33\n4\n6\n").unwrap();
    fs::copy(log.log(), log.path("access.log.1")).unwrap();
    log.server.set_len(0).unwrap();
    log.write("7\n");
    log.now += SECOND;
    let polled = log.poll();
    assert_eq!((polled.events, polled.skipped_bytes), (vec![Event::CopiedAndTruncated], 0));
    assert_eq!(log.lines, ["2", "33", "4", "7"]);
    log.restart();
    assert_eq!(log.read(), "");
}

#[test]
fn a_log_that_loses_only_its_end_is_not_read_again() {
    let mut log = Log::new();
    let lines = "0123456789\n".repeat(100);
    log.write(&lines);
    assert_eq!(log.read().split(' ').count(), 100);
    log.server.set_len(1095).unwrap();
    assert_eq!(log.read(), "");
    log.write("cut\nnew\n");
    assert_eq!(log.read(), "new");
}

#[test]
fn zero_bytes_before_a_line_of_a_server_that_does_not_append_are_handed_on() {
    let mut log = Log::new();
    log.server = fs::File::create(log.log()).unwrap();
    log.write("first\n");
    assert_eq!(log.read(), "first");
    log.server.set_len(0).unwrap();
    log.server.seek(SeekFrom::Start(6)).unwrap();
    log.write("2\n3\n");
    assert_eq!(log.read(), "\0\0\0\0\0\x002 3");
}

#[test]
fn a_link_that_is_switched_and_switched_back_is_followed() {
    let mut log = Log::new();
    for (name, text) in [("a", "a1\n"), ("b", "b1\n")] {
        fs::write(log.path(name), text).unwrap();
    }
    let link = |log: &Log, to: &str| {
        symlink(to, log.path("new")).unwrap();
        log.rename("new", "access.log");
    };
    link(&log, "a");
    assert_eq!(log.read(), "a1");
    link(&log, "b");
    append(log.path("a")).write_all(b"a2\n").unwrap();
    assert_eq!(log.read(), "a2 b1");
    for _ in 0..2 {
        link(&log, "a");
        assert_eq!(log.read(), "");
        log.now += log.limits.linger_ns;
        assert_eq!(log.read(), "");
        link(&log, "b");
        assert_eq!(log.read(), "");
    }
    append(log.path("b")).write_all(b"b2\n").unwrap();
    assert_eq!(log.read(), "b2");
}

#[test]
fn more_rotations_than_files_are_kept_open_are_counted() {
    let mut log = Log::new();
    let mut skipped = 0;
    let limits = Limits { lines_per_poll: 1, ..log.limits };
    log.follower = Follower::new(Source::File(log.log()), None, limits);
    log.poll();
    for index in 0..6 {
        log.write("1\n2\n3\n4\n5\n6\n7\n8\n9\n");
        log.rename("access.log", &format!("access.log.{index}"));
        log.reopen();
        skipped += log.poll().skipped_bytes;
    }
    let all = 6 * 9;
    let first = log.lines.len();
    let rest = log.read().split(' ').count();
    assert_eq!(first + rest + usize::try_from(skipped).unwrap() / 2, all);
    assert!(skipped > 0);
}

#[test]
fn the_longest_line_is_read_and_a_longer_one_is_cut_and_counted() {
    let mut log = Log::new();
    let max = log.limits.line_max;
    log.write([&vec![b'x'; max][..], b"\n", &vec![b'y'; max + 1], b"\n3\n"].concat());
    let polled = log.poll();
    assert_eq!((polled.lines, polled.skipped_lines, polled.skipped_bytes), (2, 1, max as u64 + 2));
    assert_eq!(log.lines, ["x".repeat(max), "y".repeat(max), "3".into()]);
}

#[test]
fn a_long_line_is_skipped_while_it_is_written_and_takes_no_memory() {
    let mut log = Log::new();
    let mut skipped = (0, 0);
    for _ in 0..100 {
        log.write(vec![b'x'; 10_000]);
        let polled = log.poll();
        skipped = (skipped.0 + polled.skipped_lines, skipped.1 + polled.skipped_bytes);
    }
    assert_eq!(skipped, (1, 1_000_000));
    log.write("\nnext\n");
    assert_eq!(log.read(), "next");
}

#[test]
fn zero_bytes_and_bytes_that_are_no_text_are_handed_on() {
    let mut log = Log::new();
    log.write(b"a\0b\n\xff\xfe\x1b[2J\r\n");
    let mut lines = Vec::new();
    log.follower.poll(0, &mut |line: &[u8]| lines.push(line.to_vec()));
    assert_eq!(lines, [b"a\0b".to_vec(), b"\xff\xfe\x1b[2J\r".to_vec()]);
}

#[test]
fn a_follower_that_is_too_far_behind_jumps_to_a_line_near_the_end() {
    let limits = Limits { behind_max: 64_000, ..Limits::default() };
    let mut log = Log::with("", limits);
    let line = format!("{}\n", "x".repeat(98));
    log.write(line.repeat(640).as_bytes().split_last().unwrap().1);
    log.write("\n");
    assert_eq!(log.read().split(' ').count(), 640);
    log.write(line.repeat(1000));
    let polled = log.poll();
    let events = [Event::Jumped(98_000)];
    assert_eq!((polled.lines, polled.skipped_bytes, &polled.events[..]), (10, 98_010, &events[..]));
    assert_eq!(polled.lines * 99 + polled.skipped_bytes, 99_000);
}

#[test]
fn one_poll_reads_at_most_what_its_limits_allow() {
    let limits = Limits { lines_per_poll: 3, bytes_per_poll: 10, ..Limits::default() };
    let mut log = Log::with("", limits);
    log.write("1\n2\n3\n4\n1234567\n1234567\n");
    let polled = log.poll();
    assert_eq!((polled.lines, polled.lag, polled.more), (3, Some(18), true));
    let polled = log.poll();
    assert_eq!((polled.lines, polled.lag, polled.more), (2, Some(8), true));
    let polled = log.poll();
    assert_eq!((polled.lines, polled.lag, polled.more), (1, Some(0), false));
}

/// Prints the rate. An unoptimised build has to read 500 000 lines in 5 seconds of one CPU.
#[test]
fn half_a_million_lines_are_read_within_seconds() {
    let line = format!("203.0.113.7 - - [27/Nov/2026:17:51:39 +0000] \"GET / HTTP/2.0\" 200 {}\n", "x".repeat(130));
    let mut log = Log::with("", Limits { behind_max: 1 << 30, ..Limits::default() });
    log.write(line.repeat(500_000));
    let begin = cpu_time();
    let mut lines = 0;
    while log.follower.poll(0, &mut |_: &[u8]| lines += 1).more {}
    let taken = cpu_time() - begin;
    println!("{:.0} lines a second", f64::from(lines) / taken.as_secs_f64());
    assert_eq!(lines, 500_000);
    assert!(taken < Duration::from_secs(5), "{taken:?}");
}

/// Action of a server or of logrotate on a log.
#[derive(Clone, Copy, Debug)]
enum Act {
    Write,
    WritePart,
    WriteOld,
    Rename,
    Reopen,
    CopyAndTruncate,
    Poll,
    Restart,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn no_line_is_lost_or_read_twice(acts in proptest::collection::vec(prop_oneof![
        4 => Just(Act::Write), 1 => Just(Act::WritePart), 2 => Just(Act::WriteOld), 1 => Just(Act::Rename),
        1 => Just(Act::CopyAndTruncate),
        2 => Just(Act::Reopen), 4 => Just(Act::Poll), 2 => Just(Act::Restart),
    ], 1..60)) {
        let mut log = Log::new();
        let mut old = log.server.try_clone().unwrap();
        let (mut written, mut read) = (Vec::new(), Vec::new());
        let mut renamed = 0;
        let mut is_partial = false;
        // The current file is recognised by its name and its first bytes.
        let (mut is_seen, mut has_head) = (true, false);
        let line = |written: &mut Vec<String>| {
            written.push(format!("{:05}", written.len()));
            written.last().unwrap().clone()
        };
        for act in acts {
            match act {
                Act::Write => {
                    let text = if is_partial { String::new() } else { line(&mut written) };
                    is_partial = false;
                    log.write(format!("{text}\n"));
                }
                Act::WritePart if !is_partial => {
                    log.write(line(&mut written));
                    is_partial = true;
                }
                Act::WriteOld if renamed > 0 && !is_partial => writeln!(old, "{}", line(&mut written)).unwrap(),
                // A file renamed before it was ever seen is not found, nor is one beyond the maximum of open files.
                Act::Rename if renamed < 4 && is_seen && !is_partial => {
                    old = log.server.try_clone().unwrap();
                    log.rename("access.log", &format!("access.log.{renamed}"));
                    renamed += 1;
                    (is_seen, has_head) = (false, false);
                }
                // A file without any read bytes cannot be distinguished from its successor.
                Act::CopyAndTruncate if renamed < 4 && is_seen && has_head && !is_partial => {
                    fs::copy(log.log(), log.path(&format!("access.log.{renamed}"))).unwrap();
                    append(log.log()).set_len(0).unwrap();
                    renamed += 1;
                    (is_seen, has_head) = (false, false);
                }
                Act::Reopen if !is_partial => log.reopen(),
                Act::Restart => log.restart(),
                Act::Poll | Act::WritePart | Act::WriteOld | Act::Rename | Act::Reopen | Act::CopyAndTruncate => {
                    log.read().split_whitespace().for_each(|line| read.push(line.to_owned()));
                    is_seen = log.log().exists();
                    has_head = is_seen && !is_partial && fs::metadata(log.log()).unwrap().len() > 0;
                }
            }
        }
        if is_partial {
            log.write("\n");
        }
        log.reopen();
        log.read().split_whitespace().for_each(|line| read.push(line.to_owned()));
        read.sort();
        prop_assert_eq!(written, read);
    }
}
