//! The access log of a web server in the common or combined format, as nginx and Apache write it: a line is a request, at the
//! second that it names.

use std::io::{self, BufRead, Read as _};
use std::net::IpAddr;

use jiff::fmt::strtime;
use ratelimit_common::time::Nanos;

use super::{Read, Replay};

/// A line is not longer than this: servers refuse requests long before.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Lines that are named where they cannot be read; of more, only how many.
const NAMED_MAX: u64 = 5;

/// A line of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Who asked.
    pub source: IpAddr,
    /// When, by the server's clock.
    pub at: Nanos,
}

/// Reads times. Those of neighbouring lines are mostly the same.
#[derive(Debug, Default)]
pub struct Parser {
    text: Vec<u8>,
    at: Option<Nanos>,
}

impl Parser {
    /// Reads one line; else what is wrong with it, a clause.
    pub fn line(&mut self, line: &[u8]) -> Result<Line, String> {
        let (host, rest) = split(line, b' ').ok_or("it has no blank")?;
        let host = std::str::from_utf8(host).map_err(|_| "it begins with no address")?;
        let source = host.parse().map_err(|_| match host.chars().all(|c| c.is_ascii_graphic()) && host.len() < 64 {
            true => format!("`{host}` is no address (log addresses, not names: HostnameLookups Off)"),
            false => "it begins with no address".to_owned(),
        })?;
        // A user's name may hold blanks and brackets. What is behind the time is the request.
        let end = find(rest, b"] \"").ok_or("it has no time in brackets with a request behind it")?;
        let begin = rest[..end].iter().rposition(|byte| *byte == b'[').ok_or("its time has no bracket before it")? + 1;
        Ok(Line { source: canonical(source), at: self.time(&rest[begin..end])? })
    }

    fn time(&mut self, text: &[u8]) -> Result<Nanos, String> {
        if let Some(at) = self.at.filter(|_| self.text == text) {
            return Ok(at);
        }
        let wrong = || "its time is not as in 10/Oct/2000:13:55:36 -0700".to_owned();
        let time = strtime::parse("%d/%b/%Y:%H:%M:%S %z", text).map_err(|_| wrong())?;
        let time = time.to_timestamp().map_err(|_| wrong())?;
        let at = Nanos(u64::try_from(time.as_nanosecond()).map_err(|_| "its time is before 1970")?);
        self.at = Some(at);
        self.text = text.to_vec();
        Ok(at)
    }
}

/// `::ffff:192.0.2.7`, as a server on a socket of both families logs it, is 192.0.2.7 on the wire.
fn canonical(source: IpAddr) -> IpAddr {
    source.to_canonical()
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == at)?;
    Some((&text[..at], &text[at + 1..]))
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// What was read, and the first line that could not be, if none could.
pub(super) struct Lines {
    pub(super) read: Read,
    pub(super) first_wrong: Option<String>,
}

/// Replays a log to its end.
pub(super) fn replay(mut log: impl BufRead, replay: &mut Replay) -> io::Result<Lines> {
    let (mut read, mut named, mut number) = (Read::default(), Vec::new(), 0_u64);
    let (mut parser, mut line) = (Parser::default(), Vec::new());
    while next_line(&mut log, &mut line)? != 0 {
        number += 1;
        let text = line.trim_ascii();
        if text.is_empty() {
            continue;
        }
        read.items += 1;
        match parser.line(text) {
            Ok(Line { source, at }) => replay.request(at, source),
            Err(problem) => {
                read.unreadable += 1;
                if read.unreadable <= NAMED_MAX {
                    named.push(format!("line {number}: {problem}"));
                }
            }
        }
    }
    let more = read.unreadable.saturating_sub(NAMED_MAX);
    let first_wrong = named.first().filter(|_| read.unreadable == read.items).cloned();
    if !named.is_empty() {
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let what = if read.unreadable == 1 { "1 line is".to_owned() } else { format!("{} lines are", read.unreadable) };
        read.warnings
            .push(format!("{what} not in the common or combined format, and left out: {}{more}", named.join("; ")));
    }
    Ok(Lines { read, first_wrong })
}

/// The next line, of which no more than [`LINE_BYTES_MAX`] is kept; 0 at the end.
fn next_line(log: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<u64> {
    line.clear();
    let mut len = log.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', line)? as u64;
    let mut rest = Vec::new();
    while len >= LINE_BYTES_MAX && !line.ends_with(b"\n") && !rest.ends_with(b"\n") {
        rest.clear();
        match log.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut rest)? as u64 {
            0 => break,
            more => len = len.saturating_add(more),
        }
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(text: &str) -> Result<Line, String> {
        Parser::default().line(text.as_bytes())
    }

    #[test]
    fn both_formats_are_read_to_the_second_in_any_zone() {
        let at = Nanos(971_211_336_000_000_000);
        for text in [
            r#"192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 2326"#,
            r#"192.0.2.7 - frank [10/Oct/2000:20:55:36 +0000] "GET /[1] HTTP/1.1" 200 5 "http://a/" "b [c]""#,
            r#"192.0.2.7 - "a b" [x] [10/Oct/2000:22:25:36 +0130] "" 400 0 "-" "-""#,
            r#"::ffff:192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "\x16\x03" 400 157 "-" "-""#,
        ] {
            assert_eq!(line(text), Ok(Line { source: "192.0.2.7".parse().expect("an address"), at }), "{text}");
        }
        let v6 = line(r#"2001:db8::7 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 1"#);
        assert_eq!(v6.map(|line| line.source.to_string()), Ok("2001:db8::7".to_owned()));
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        for (text, part) in [
            ("x", "no blank"),
            (r#"crawler.example - - [10/Oct/2000:13:55:36 -0700] "GET /""#, "`crawler.example` is no address"),
            ("192.0.2.7 - - 10/Oct/2000", "no time in brackets"),
            (r#"192.0.2.7 - - [2000-10-10T13:55:36Z] "GET /""#, "its time is not as in"),
            (r#"192.0.2.7 - - [10/Oct/1960:13:55:36 -0700] "GET /""#, "before 1970"),
        ] {
            let problem = line(text).expect_err(text);
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }

    #[test]
    fn a_line_without_end_is_one_line_and_takes_no_memory() {
        let mut long = vec![b'a'; 5 << 20];
        long.extend_from_slice(b"\nnext\n");
        let (mut log, mut line) = (io::Cursor::new(long), Vec::new());
        assert_eq!(next_line(&mut log, &mut line).expect("read"), (5 << 20) + 1);
        assert!(line.len() <= 1 << 20);
        assert_eq!(next_line(&mut log, &mut line).expect("read"), 5);
        assert_eq!(line, b"next\n");
        assert_eq!(next_line(&mut log, &mut line).expect("read"), 0);
    }

    proptest! {
        #[test]
        fn no_line_panics(
            text in proptest::collection::vec(any::<u8>(), 0..80),
            time in "[0-9]{0,2}/[A-Za-z]{0,4}/[0-9]{0,5}:[0-9:]{0,8} [-+][0-9]{0,5}",
        ) {
            let _any = Parser::default().line(&text);
            let _any = Parser::default().line(format!("192.0.2.7 - - [{time}] \"").as_bytes());
        }
    }
}
