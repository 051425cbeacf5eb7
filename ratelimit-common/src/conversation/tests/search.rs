//! Tests of the search for versions and names: its results, compared with a naive search, and the bytes that it reads.

use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Returns how many places of a payload of `bytes` bytes may be tested: one in eight bytes, and those near the start,
/// whose names may have begun before it.
fn asks(bytes: usize) -> usize {
    bytes / 8 + 4
}

/// Frame that counts the bytes read from it, and the calls.
struct Counting<'a> {
    frame: &'a [u8],
    read: Cell<usize>,
    steps: Cell<usize>,
    asked: Cell<usize>,
}

impl<'a> Counting<'a> {
    fn new(frame: &'a [u8]) -> Self {
        Self { frame, read: Cell::new(0), steps: Cell::new(0), asked: Cell::new(0) }
    }
}

impl Frame for Counting<'_> {
    fn bytes<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.read.set(self.read.get() + N);
        self.frame.bytes(offset)
    }

    fn len(&self, at_least: usize) -> usize {
        Frame::len(&self.frame, at_least)
    }
}

impl Walk for Counting<'_> {
    fn repeat<S: Step>(&self, most: u32, mut steps: S) -> S {
        for _ in 0..most {
            self.steps.set(self.steps.get() + 1);
            if !steps.step(self) {
                break;
            }
        }
        steps
    }

    fn what_is_at(&self, sought: Sought, start: u32, next: u32, end: u32) -> Hit {
        self.asked.set(self.asked.get() + 1);
        sought.at(self, start, next, end)
    }
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const NAMES: [&[u8]; 3] = [b"RTSP", b" ICE", b"\tICE"];

fn is_name(known: &[u8]) -> bool {
    let is_http = b"HTTP".iter().rev().zip(known.iter().rev()).all(|(one, other)| one.eq_ignore_ascii_case(other));
    is_http || NAMES.iter().any(|name| name.ends_with(known))
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x0b | 0x0c | 0x1c..=0x1f | 0x85 | 0xa0)
}

/// Returns whether a version's number and the end of its line begin here, within eight bytes and the payload.
fn is_number(rest: &[u8]) -> bool {
    let mut rest = rest[..rest.len().min(8)].iter().copied().peekable();
    let mut digits = 0;
    while rest.next_if(u8::is_ascii_digit).is_some() {
        digits += 1;
    }
    match rest.next() {
        None => return true,
        Some(b'.') if digits != 0 => {}
        Some(_) => return false,
    }
    while rest.next_if(u8::is_ascii_digit).is_some() {}
    while rest.next_if(|&byte| is_blank(byte)).is_some() {}
    matches!(rest.next(), None | Some(b'\r' | b'\n'))
}

/// Returns the number of versions in a payload, read byte by byte, and where HTTP/2's preface goes on.
fn naive(payload: &[u8], to_preface: bool) -> (u32, Option<usize>) {
    let mut found = 0;
    for at in (0..payload.len()).filter(|&at| payload[at] == b'/') {
        let name = &payload[at.saturating_sub(4)..at];
        if !is_name(name) {
            continue;
        }
        let is_protocol = at > 4 && payload[at - 5] == 8;
        if is_protocol || !is_number(&payload[at + 1..]) {
            continue;
        }
        found += 1;
        let (begins, known) = if at >= 10 { (at - 10, 0) } else { (0, 10 - at) };
        let is_preface = PREFACE[known..].iter().zip(&payload[begins..]).all(|(one, other)| one == other);
        if to_preface && is_preface {
            return (found, Some(at + 1));
        }
    }
    (found, None)
}

fn is_http2(payload: &[u8]) -> bool {
    payload.windows(3).any(|bytes| bytes == b"\x02h2")
}

/// Texts that an adversary fills a payload with.
const TEXTS: [&[u8]; 32] = [
    b"/",
    b"///////",
    b"tp/",
    b"ttp/",
    b"e/",
    b"ce/",
    b" ICE/",
    b"\tICE/1.1\n",
    b"HTTP/",
    b"hTtP/1.1\r",
    b"HTTP/1.\n",
    b" ICE/1.\r",
    b"HTTP/1.1x",
    b"HTTP/1.1 x",
    b"HTTP/1.1\r\n",
    b"HTTP/1111",
    b"HTTP/2.0\r",
    b" HTTP/2.0\r",
    b" * HTTP/2.0\r\n",
    PREFACE,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\nx",
    b"RTSP/1.0 \t\n",
    b"\x08http/1.1\r",
    b"\x02h",
    b"\x02h2",
    b"h",
    b"1",
    b".",
    b"\r",
    b" ",
    b"x",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
];

/// Returns payloads of few texts, each repeated often: the worst case.
fn payloads() -> impl Strategy<Value = Vec<u8>> {
    let text =
        || prop_oneof![4 => prop::sample::select(&TEXTS[..]).prop_map(<[u8]>::to_vec), 1 => vec(any::<u8>(), 0..40)];
    let runs = vec((vec(text(), 1..4), 1..150_usize), 1..6);
    (runs, 1..3_000_usize).prop_map(|(runs, most)| {
        let mut payload: Vec<u8> = runs.into_iter().flat_map(|(texts, times)| texts.concat().repeat(times)).collect();
        payload.truncate(most);
        payload
    })
}

fn framed(payload: &[u8]) -> (Vec<u8>, u32, u32) {
    let start = u32::try_from(HEADERS).unwrap();
    ([&[b'p'; HEADERS], payload].concat(), start, start + u32::try_from(payload.len()).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_search_finds_what_a_naive_one_finds(payload in payloads(), to_preface: bool) {
        let (frame, start, end) = framed(&payload);
        let sought = if to_preface { Sought::VersionToPreface } else { Sought::Version };
        let found = frame.as_slice().found(start, end, sought);
        let (versions, preface) = naive(&payload, to_preface);
        let preface_at = preface.map_or(0, |at| start + u32::try_from(at).unwrap());
        prop_assert_eq!(found.taken(), preface_at, "no preface is hidden");
        prop_assert_eq!(found.count(), versions);
        let names = frame.as_slice().found(start, end, Sought::Http2).count();
        prop_assert_eq!(names != 0, is_http2(&payload));
    }

    #[test]
    fn a_search_reads_each_byte_a_few_times_whatever_it_is(payload in payloads()) {
        let (frame, start, end) = framed(&payload);
        for sought in [Sought::Version, Sought::VersionToPreface, Sought::Http2] {
            let counting = Counting::new(&frame);
            counting.found(start, end, sought);
            let asked = asks(payload.len());
            prop_assert!(counting.asked.get() <= asked, "{} of {asked} asked", counting.asked.get());
            // Bytes of the block and around it, and for each tested place the bytes on both sides.
            let read = 32 + payload.len() * 5 / 2 + 64 + asked * 48;
            prop_assert!(counting.read.get() <= read, "{} of {read} bytes read", counting.read.get());
            let steps = payload.len() / 32 + 2 + asked;
            prop_assert!(counting.steps.get() <= steps, "{} of {steps} steps", counting.steps.get());
        }
    }

    #[test]
    fn a_number_ends_a_line_where_a_naive_reader_says_so(
        number in vec(prop::sample::select(&b"0127./ \t\r\n\x0a\x0b\x0c\x0d\x1b\x1c\x1f\x20\x84\x85\x86\x9f\xa0\xa1\0x:\xff"[..]), 0..10)
    ) {
        let payload = [b"HTTP/".as_slice(), &number].concat();
        let (frame, start, end) = framed(&payload);
        let is_version = clear::is_version(&frame.as_slice(), start, start + 5, end);
        prop_assert_eq!(is_version, is_number(&number));
    }
}

#[test]
fn a_full_segment_of_requests_is_counted_exactly() {
    for request in
        ["A / ICE/1.\n\n", "A / ICE/1.1\n\n", "A / HTTP/1.1\r\n\r\n", "GET / HTTP/1.0\nHost: example.org\n\n"]
    {
        let payload = request.repeat(1_448 / request.len());
        let (frame, start, end) = framed(payload.as_bytes());
        let found = frame.as_slice().found(start, end, Sought::VersionToPreface).count();
        assert_eq!(found as usize, 1_448 / request.len(), "{request:?}");
    }
}

#[test]
fn logs_and_dumps_of_http_are_no_requests() {
    for line in [
        "1.2.3.4 - - [01/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n",
        "{\"v\":\"HTTP/1.1\"},",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nServer: a\r\nConnection: close\r\n\r\n",
    ] {
        let payload = line.repeat(1_448 / line.len());
        let (frame, start, end) = framed(payload.as_bytes());
        assert_eq!(frame.as_slice().found(start, end, Sought::VersionToPreface).count(), 0, "{line:?}");
    }
}
