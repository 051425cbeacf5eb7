//! Replays of small captures and logs that are built here, compared with a naive limiter.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use etherparse::PacketBuilder;
use proptest::prelude::*;
use ratelimit_common::hold::Charges;
use ratelimit_common::layout::Unit;
use ratelimit_common::time::SECOND_NS;

use super::capture::Captured;
use super::input::{Named, play};
use super::*;
use crate::fixture::{MINUTE_NS, limit, policy};
use ratelimit_policy::desired::{QuicPorts, Unparsable, WindowForm};

mod busy;
mod conditions;
mod groups;
mod order;
mod published;

/// Start of a bucket of one minute.
const START: u64 = 1_800_000_000 * SECOND_NS;
const SERVER: &str = "192.0.2.1:80";
const CLIENT: &str = "198.51.100.7:40000";

fn replayed(contents: &[u8], policy: &Policy) -> Result<Report, InputError> {
    replayed_all(&[contents], policy)
}

/// Replays several files. A single file is named `it`, others by their index.
fn replayed_all(files: &[&[u8]], policy: &Policy) -> Result<Report, InputError> {
    let name = |at: usize| if files.len() == 1 { "it".to_owned() } else { format!("file {at}") };
    let inputs = files
        .iter()
        .enumerate()
        .map(|(at, contents)| Named { name: name(at), input: Box::new(std::io::Cursor::new(contents.to_vec())) });
    let (replay, read, files) = play(inputs.collect(), &asked(policy), |kind| Replay::new(policy, kind))?;
    Ok(replay.finish(read, files, &[]))
}

fn asked(policy: &Policy) -> Asked<'_> {
    let now = jiff::Timestamp::from_second((START / SECOND_NS) as i64).unwrap();
    Asked { policy, ports: Ports::Default, clock: Clock { zone: jiff::tz::TimeZone::UTC, now }, lists: &[] }
}

/// Returns an Ethernet frame with a TCP segment and this payload.
fn tcp(from: &str, to: &str, sequence: u32, acknowledged: u32, payload: &[u8]) -> Vec<u8> {
    let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let builder = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => builder.ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => builder.ipv6(from.octets(), to.octets(), 64),
        _ => unreachable!("one family"),
    };
    let builder = builder.tcp(from.port(), to.port(), sequence, 64_000).ack(acknowledged);
    let mut frame = Vec::new();
    builder.write(&mut frame, payload).unwrap();
    frame
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Returns the frames of requests on one connection, a second apart, each answered.
fn asking(from: &str, to: &str, requests: u32) -> Vec<(u64, Vec<u8>)> {
    let len = u32::try_from(GET.len()).unwrap();
    let ask = |at: u32| {
        let second = START + u64::from(at) * SECOND_NS;
        let asked = tcp(from, to, 1 + at * len, 1 + at * 500, GET);
        let answer = tcp(to, from, 1 + at * 500, 1 + (at + 1) * len, &[b'a'; 500]);
        let acknowledgement = tcp(from, to, 1 + (at + 1) * len, 1 + (at + 1) * 500, b"");
        [(second, asked), (second + 1_000_000, answer), (second + 2_000_000, acknowledgement)]
    };
    (0..requests).flat_map(ask).collect()
}

/// Builds a little-endian pcap file with times in microseconds.
fn pcap(link: u32, frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, link] {
        out.extend_from_slice(&u32::to_le_bytes(word));
    }
    for (at, frame) in frames {
        let len = u32::try_from(frame.len()).unwrap();
        for word in [u32::try_from(at / SECOND_NS).unwrap(), (at % SECOND_NS / 1000) as u32, len, len] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(frame);
    }
    out
}

/// Builds a big-endian pcap file with times in nanoseconds.
fn pcap_big(frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [0xa1b2_3c4d, 0x0002_0004, 0, 0, 262_144, 1] {
        out.extend_from_slice(&u32::to_be_bytes(word));
    }
    for (at, frame) in frames {
        let len = u32::try_from(frame.len()).unwrap();
        for word in [u32::try_from(at / SECOND_NS).unwrap(), (at % SECOND_NS) as u32, len, len] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out.extend_from_slice(frame);
    }
    out
}

/// Builds a little-endian pcapng file with times in nanoseconds, on the second of two interfaces.
fn pcapng(frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let block = |kind: u32, body: &[u8]| {
        let len = u32::try_from(12 + body.len()).unwrap().to_le_bytes();
        [&kind.to_le_bytes(), &len, body, &len].concat()
    };
    let interface = |link: u16, options: &[u8]| {
        block(1, &[link.to_le_bytes().as_slice(), &[0, 0], &262_144_u32.to_le_bytes(), options].concat())
    };
    let section = [0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255];
    let mut out = block(0x0a0d_0d0a, &section);
    out.extend(interface(999, &[]));
    out.extend(interface(1, &[9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]));
    for (at, frame) in frames {
        let (high, low) = ((at >> 32) as u32, (at & 0xffff_ffff) as u32);
        let len = u32::try_from(frame.len()).unwrap();
        let mut body = [1, high, low, len, len].map(u32::to_le_bytes).concat();
        body.extend_from_slice(frame);
        body.resize(body.len().next_multiple_of(4), 0);
        out.extend(block(6, &body));
    }
    out
}

fn log(lines: &[(u64, &str)]) -> Vec<u8> {
    let line = |(second, source): &(u64, &str)| {
        let at = jiff::Timestamp::from_second(i64::try_from(START / SECOND_NS + second).unwrap()).unwrap();
        format!("{source} - - [{}] \"GET / HTTP/1.1\" 200 5\n", at.strftime("%d/%b/%Y:%H:%M:%S +0000"))
    };
    lines.iter().map(line).collect::<String>().into_bytes()
}

fn numbers(of: &LimitReport) -> (u64, u64, u64) {
    (of.admitted, of.refused, of.sources_limited)
}

fn after(seconds: f64) -> jiff::Timestamp {
    crate::snapshot::timestamp(Nanos(START)) + jiff::SignedDuration::from_secs_f64(seconds)
}

#[test]
fn a_log_tells_who_when_and_by_how_much_worst_first() {
    let mut lines: Vec<(u64, &str)> = (0..12).map(|second| (second, "198.51.100.7")).collect();
    lines.extend((12..26).map(|second| (second, "2001:db8::7")));
    lines.push((400, "198.51.100.7"));
    lines.extend([(401, "2001:db8::8"), (402, "192.0.2.9")]);
    let report = replayed(&log(&lines), &policy(vec![limit(10, Unit::Requests)])).unwrap();
    let [of] = report.limits.as_slice() else { panic!("one limit") };
    assert_eq!((report.input.read, report.input.judged, report.sources), (29, 29, 3));
    assert_eq!(numbers(of), (23, 6, 2));
    let limited: Vec<_> = of.limited.iter().map(|of| (of.source.as_str(), of.admitted, of.refused)).collect();
    assert_eq!(limited, [("2001:db8::/64", 11, 4), ("198.51.100.7", 11, 2)]);
    assert_eq!((of.limited[1].first_refused, of.limited[1].last_refused), (after(10.0), after(11.0)));
    assert_eq!((report.input.from, report.input.until), (Some(after(0.0)), Some(after(402.0))));
}

#[test]
fn a_capture_is_the_same_in_every_format_and_on_every_link() {
    let frames = asking(CLIENT, SERVER, 12);
    let ip: Vec<_> = frames.iter().map(|(at, frame)| (*at, frame[14..].to_vec())).collect();
    let with = |before: &[u8]| -> Vec<_> { ip.iter().map(|(at, of)| (*at, [before, of].concat())).collect() };
    let cooked = with(&[&[0; 14], [8, 0].as_slice()].concat());
    let cooked2 = with(&[[8, 0].as_slice(), &[0; 18]].concat());
    let tagged: Vec<_> =
        frames.iter().map(|(at, of)| (*at, [&of[..12], &[0x81, 0, 0, 7], &of[12..]].concat())).collect();
    for (what, capture) in [
        ("pcap", pcap(1, &frames)),
        ("VLAN", pcap(1, &tagged)),
        ("nanoseconds, big endian", pcap_big(&frames)),
        ("pcapng", pcapng(&frames)),
        ("raw IP", pcap(101, &ip)),
        ("cooked", pcap(113, &cooked)),
        ("cooked 2", pcap(276, &cooked2)),
    ] {
        let report = replayed(&capture, &policy(vec![limit(10, Unit::Requests)])).expect(what);
        let of = &report.limits[0];
        assert_eq!((report.input.read, report.input.judged, numbers(of)), (36, 24, (10, 2, 1)), "{what}");
        let limited = &of.limited[0];
        assert_eq!((limited.source.as_str(), limited.first_refused), ("198.51.100.7", after(10.0)), "{what}");
        assert_eq!(report.warnings, Vec::<String>::new(), "{what}");
    }
}

#[test]
fn packets_to_other_ports_or_without_a_request_are_not_charged() {
    let frames = [asking(CLIENT, "192.0.2.1:8080", 3), asking("[2001:db8::7]:5", "[2001:db8::1]:443", 2)].concat();
    let of = policy(vec![limit(10, Unit::Requests), limit(100, Unit::Packets), limit(9, Unit::Connections)]);
    let report = replayed(&pcap(1, &frames), &of).unwrap();
    let counted: Vec<_> = report.limits.iter().map(numbers).collect();
    assert_eq!(counted, [(2, 0, 0), (4, 0, 0), (0, 0, 0)]);
    assert_eq!(report.sources, 1);
    assert_eq!(report.counting.len(), 3);
}

#[test]
fn a_request_refused_by_one_limit_is_not_charged_to_the_others() {
    let frames = asking(CLIENT, SERVER, 5);
    let of = policy(vec![limit(3, Unit::Requests), limit(7, Unit::Packets)]);
    let report = replayed(&pcap(1, &frames), &of).unwrap();
    // The packets are six of the first three requests, and an acknowledgement of the fourth.
    assert_eq!(report.limits.iter().map(numbers).collect::<Vec<_>>(), [(3, 2, 1), (7, 1, 1)]);
}

#[test]
fn a_capture_that_is_cut_short_is_judged_as_far_as_it_goes() {
    let whole = pcap(1, &asking(CLIENT, SERVER, 4));
    let of = policy(vec![limit(10, Unit::Requests)]);
    let report = replayed(&whole[..whole.len() - 3], &of).unwrap();
    assert_eq!((report.input.read, report.limits[0].admitted), (11, 4));
    assert_eq!(report.warnings, ["the capture cannot be read behind packet 11: it ends in the middle of a packet"]);
    let whole = pcapng(&asking(CLIENT, SERVER, 4));
    let report = replayed(&whole[..whole.len() - 3], &of).unwrap();
    assert_eq!((report.input.read, report.warnings.len()), (11, 1), "{:?}", report.warnings);
}

#[test]
fn a_packet_that_is_not_all_there_is_judged_by_what_is_and_said() {
    let mut capture = pcap(1, &[]);
    for (at, frame) in asking(CLIENT, SERVER, 3) {
        let (len, kept) = (u32::try_from(frame.len()).unwrap(), 60.min(frame.len()));
        let second = u32::try_from(at / SECOND_NS).unwrap();
        for word in [second, (at % SECOND_NS / 1000) as u32, u32::try_from(kept).unwrap(), len] {
            capture.extend_from_slice(&word.to_le_bytes());
        }
        capture.extend_from_slice(&frame[..kept]);
    }
    let report = replayed(&capture, &policy(vec![limit(10, Unit::Requests)])).unwrap();
    assert_eq!((report.input.cut_off, report.limits[0].admitted), (6, 3));
    assert!(report.warnings[0].contains("tcpdump -s 0"), "{:?}", report.warnings);
}

/// Returns the frame of a segment over IPv4 with these fragment bits and offset, and this protocol.
fn fragment(bits_and_offset: u16, proto: u8) -> Vec<u8> {
    let mut frame = tcp(CLIENT, SERVER, 1, 1, GET);
    frame[20..22].copy_from_slice(&bits_and_offset.to_be_bytes());
    frame[23] = proto;
    frame
}

#[test]
fn tcp_fragments_are_a_request_each_and_unparsable_frames_drop_or_count() {
    const MORE: u16 = 0x2000;
    let mut before_its_ports = fragment(MORE, 6);
    before_its_ports[16..18].copy_from_slice(&27_u16.to_be_bytes());
    let frames = [fragment(MORE, 6), fragment(MORE, 6), fragment(3, 6), fragment(3, 17), before_its_ports];
    let frames: Vec<_> = frames.into_iter().map(|frame| (START, frame)).collect();
    let mut of = policy(vec![limit(9, Unit::Requests)]);
    for (unparsable, admitted, malformed) in [(Unparsable::Drop, 3, 1), (Unparsable::Count, 4, 0)] {
        of.rules[0].unparsable = unparsable;
        let report = replayed(&pcap(1, &frames), &of).unwrap();
        assert_eq!((report.limits[0].admitted, report.input.malformed), (admitted, malformed), "{unparsable:?}");
    }
}

#[test]
fn quic_lookalikes_are_judged_as_quic_only_on_the_rules_quic_ports() {
    let datagram = |payload: &[u8]| {
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([198, 51, 100, 7], [192, 0, 2, 1], 64);
        let mut frame = Vec::new();
        builder.udp(40_000, 80).write(&mut frame, payload).unwrap();
        (START, frame)
    };
    let frames = [datagram(&[0xc0, 0, 0, 0, 1, 8, 0, 0]), datagram(&[0x40; 33]), datagram(&[0x40; 33])];
    let mut of = policy(vec![limit(9, Unit::Requests)]);
    for (ports, admitted) in [(QuicPorts::DEFAULT, 3), (QuicPorts::new(&[80]).unwrap(), 1)] {
        of.rules[0].quic_ports = ports;
        assert_eq!(replayed(&pcap(1, &frames), &of).unwrap().limits[0].admitted, admitted, "QUIC on {ports}");
    }
}

#[test]
fn time_of_packets_that_goes_back_stands_still_and_is_counted() {
    let mut frames = asking(CLIENT, SERVER, 3);
    frames[3].0 -= SECOND_NS;
    let report = replayed(&pcap(1, &frames), &policy(vec![limit(2, Unit::Requests)])).unwrap();
    assert_eq!((report.input.out_of_order, numbers(&report.limits[0])), (1, (2, 1, 1)));
    assert!(report.warnings[0].contains("several interfaces"), "{:?}", report.warnings);
}

#[test]
fn an_input_that_cannot_be_replayed_is_refused_with_a_remedy() {
    let of = policy(vec![limit(2, Unit::Requests)]);
    let connections = policy(vec![limit(2, Unit::Connections)]);
    let no_header = pcap(1, &[])[..20].to_vec();
    for (contents, of, part) in [
        (b"".as_slice(), &of, "it is empty"),
        (b"\n\n", &of, "it is empty"),
        (b"\x1f\x8b\x08\x00", &of, "its gzip data is cut off"),
        (b"\xfd7zXZ\0\0", &of, "it is compressed (xz)"),
        (b"\x7fELF\x02\x01\x01\x00\x00", &of, "neither a capture nor an access log"),
        (&no_header, &of, "header is damaged or cut off"),
        (&pcap(127, &[]), &of, "link of type 127"),
        (b"hello\nworld\n", &of, "no line of it is a request of an access log; line 1: it is"),
        (&log(&[(0, "192.0.2.7")]), &connections, "an access log has only requests"),
    ] {
        match replayed(contents, of) {
            Err(error @ InputError::Unusable { .. }) => assert!(error.to_string().contains(part), "{part}: {error}"),
            other => panic!("{part}: {other:?}"),
        }
    }
}

#[test]
fn gzip_members_without_content_are_refused_after_a_bounded_number() {
    let gzip = |contents: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, contents).unwrap();
        encoder.finish().unwrap()
    };
    let of = policy(vec![limit(9, Unit::Requests)]);
    let line = log(&[(0, "192.0.2.7")]);
    let (empty, began) = (gzip(b"").repeat(300_000), std::time::Instant::now());
    let error = replayed(&empty, &of).unwrap_err().to_string();
    assert!(error.starts_with("it: its gzip data has more members than content: unpack it with zcat"), "{error}");
    assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
    let behind = replayed(&[gzip(&line), empty].concat(), &of).unwrap();
    assert!(behind.input.judged == 1 && behind.warnings[0].contains("more members than content"), "{behind:?}");
    let many = replayed(&gzip(&line.repeat(5)).repeat(12_000), &of).unwrap();
    assert_eq!(many.input.judged, 60_000, "what tools append is read: {:?}", many.warnings);
}

#[test]
fn lines_that_cannot_be_read_are_left_out_and_named_by_their_number() {
    let mut contents = log(&[(0, "192.0.2.7"), (1, "192.0.2.7")]);
    contents.extend_from_slice(b"\nbroken\n");
    contents.extend(log(&[(2, "crawler.example")]));
    let report = replayed(&contents, &policy(vec![limit(9, Unit::Requests)])).unwrap();
    assert_eq!((report.input.read, report.input.unreadable, report.input.judged), (4, 2, 2));
    let [warning] = report.warnings.as_slice() else { panic!("{:?}", report.warnings) };
    assert!(warning.starts_with("2 lines cannot be read and are left out; the first is line 4: "), "{warning}");
    assert!(warning.ends_with(": `broken`"), "{warning}");
}

#[test]
fn text_that_clients_can_write_makes_no_log_unreadable() {
    let of = policy(vec![limit(9, Unit::Requests)]);
    let lines = log(&[(0, "192.0.2.7"), (1, "192.0.2.8")]);
    let after = |before: &[u8]| [before, &lines].concat();
    let with_nul = String::from_utf8(lines.clone()).unwrap().replacen("GET /", "GET /\0\0", 1);
    let tar = format!("192.0.2.9 {:247}ustar\n", "");
    for (what, contents, unreadable) in [
        ("a NUL in a request", with_nul.into_bytes(), 0),
        ("a NUL in a line alone", after(b"a\0b\n"), 1),
        ("blank lines", after(&b" \n".repeat(200_000)), 0),
        ("holes among blank lines", after(&b"\n\0".repeat(200_000)), 0),
        ("the name of a host", after(b"BZh.example\n"), 1),
        ("the letters of an archive", after(tar.as_bytes()), 1),
    ] {
        let report = replayed(&contents, &of).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!((report.input.judged, report.input.unreadable), (2, unreadable), "{what}");
    }
    let broken = [&b"\n".repeat(200_000)[..], b"br\x1b\xc2\x9boken\n", &lines].concat();
    let [warning] = &replayed(&broken, &of).unwrap().warnings[..] else { panic!("one warning") };
    assert!(
        warning.contains("the first is line 200001: ") && warning.ends_with("`br\u{fffd}\u{fffd}oken`"),
        "{warning}"
    );
}

#[test]
fn sources_for_which_there_is_no_place_are_said() {
    let of = policy(vec![limit(1, Unit::Requests)]);
    let mut judge = Judge::new(&of).unwrap().with_room_for(2);
    let charges = Charges { requests: 1, ..Charges::default() };
    for (source, expected) in [
        ("192.0.2.1", Reason::WithinLimit),
        ("192.0.2.2", Reason::WithinLimit),
        ("192.0.2.3", Reason::NotAdmitted),
        ("192.0.2.1", Reason::OverLimit),
    ] {
        assert_eq!(judge.charge(Nanos(START), source.parse().unwrap(), charges), expected, "{source}");
    }
    assert_eq!((judge.sources.len(), judge.unplaced), (2, 1));
}

/// Returns the reasons of a replay for these frames, sent a millisecond apart.
fn said(of: &Policy, frames: &[Vec<u8>]) -> Vec<Reason> {
    let mut replay = Replay::new(of, Kind::Capture).unwrap();
    let at = |number: usize| Nanos(START + number as u64 * 1_000_000);
    frames.iter().enumerate().map(|(number, frame)| replay.frame(at(number), &frame.as_slice())).collect()
}

#[test]
fn each_request_that_comes_with_a_syn_counts_and_what_follows_is_not_known_by_it() {
    let syn = |mut frame: Vec<u8>| {
        // The flags after the Ethernet and IPv4 headers: SYN only.
        frame[14 + 20 + 13] = 0x02;
        frame
    };
    let with_syn = syn(tcp(CLIENT, SERVER, 1, 0, &[GET, GET].concat()));
    let again = tcp(CLIENT, SERVER, 2, 1, GET);
    let frames = [with_syn.clone(), with_syn, again.clone(), again];
    let of = policy(vec![limit(5, Unit::Requests)]);
    let (counted, none) = (Reason::WithinLimit, Reason::NotCounted);
    // Both SYN frames carry two requests. The third frame carries one that repeats none of them, and its repetition
    // counts as none.
    assert_eq!(said(&of, &frames), [counted, counted, counted, none]);
    assert_eq!(said(&policy(vec![limit(4, Unit::Requests)]), &frames)[2], Reason::DryRun);
}

#[test]
fn refuse_all_refuses_uncounted_packets_too() {
    let len = u32::try_from(GET.len()).unwrap();
    let of = |sequence, acknowledged, payload: &[u8]| tcp(CLIENT, SERVER, sequence, acknowledged, payload);
    let frames = [of(1, 1, GET), of(1 + len, 501, GET), of(1 + 2 * len, 501, b"")];
    let mut of = policy(vec![limit(1, Unit::Requests)]);
    assert_eq!(said(&of, &frames), [Reason::WithinLimit, Reason::DryRun, Reason::NotCounted]);
    of.rules[0].refuse = ratelimit_policy::desired::Refuse::All;
    assert_eq!(said(&of, &frames), [Reason::WithinLimit, Reason::DryRun, Reason::DryRun]);
}

#[test]
fn packets_dropped_by_a_new_source_budget_are_not_admitted() {
    let mut of = policy(vec![limit(5, Unit::Requests)]);
    of.rules[0].new_sources = Some(ratelimit_policy::desired::NewSources { amount: 1, window_ns: 60 * SECOND_NS });
    let mut judge = Judge::new(&of).unwrap();
    let charges = Charges { requests: 1, ..Charges::default() };
    let judged = ["192.0.2.1", "192.0.2.2"].map(|source| judge.charge(Nanos(START), source.parse().unwrap(), charges));
    assert_eq!(judged, [Reason::WithinLimit, Reason::NewSourceBudget]);
    let admitted: u64 = judge.sources.values().map(|fared| fared.limits[0].admitted).sum();
    assert_eq!(admitted, 1);
}

#[test]
fn a_capture_as_json() {
    let frames = [asking(CLIENT, SERVER, 12), asking("[2001:db8::7]:5", "[2001:db8::1]:443", 2)].concat();
    let of = policy(vec![limit(10, Unit::Requests), limit(9, Unit::Connections)]);
    insta::assert_json_snapshot!(replayed(&pcap(1, &frames), &of).unwrap());
}

/// Small log in every format.
const LOGS: [&[u8]; 18] = [
    include_bytes!("../../../ratelimit-userspace/tests/logs/nginx-combined.log"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/apache-vhost-combined.log"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/apache-forwarded-first.log"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/nginx-forwarded-alone.log"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/nginx-json.log"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/caddy.log"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/traefik.log"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/syslog-3164.log"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/syslog-5424.log"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/journal-short-iso.log"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/journal-json.log"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/journal-export.bin"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/haproxy.log"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/iis-w3c.log"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/cloudfront.log"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/aws-alb.log"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/docker-json-file.log"),
    include_bytes!("../../../ratelimit-userspace/tests/logs/kubernetes-cri.log"),
];

/// Limiter written from the README's text: at most `amount` in the current minute and the full ones before it.
#[derive(Default)]
struct Naive(BTreeMap<(u8, u64), u64>);

impl Naive {
    fn admits(&mut self, source: u8, at: u64, amount: u64, behind: u64) -> bool {
        let bucket = at / MINUTE_NS;
        let used: u64 = self.0.range((source, bucket - behind)..=(source, bucket)).map(|(_, count)| count).sum();
        if used < amount {
            *self.0.entry((source, bucket)).or_default() += 1;
        }
        used < amount
    }
}

proptest! {
    #[test]
    fn a_naive_limiter_admits_the_same_and_no_window_holds_more(
        steps in proptest::collection::vec((0_u64..150, 0_u8..3), 1..400),
        amount in 1_u64..20,
        is_lenient in any::<bool>(),
    ) {
        let (form, behind) = if is_lenient { (WindowForm::Lenient, 4) } else { (WindowForm::Strict, 5) };
        let of = policy(vec![ratelimit_policy::desired::Limit { form, ..limit(amount, Unit::Requests) }]);
        let mut judge = Judge::new(&of).unwrap();
        let (mut naive, mut at, mut admitted) = (Naive::default(), START, Vec::new());
        for (seconds, source) in steps {
            at += seconds * SECOND_NS / 4;
            let address = IpAddr::from([192, 0, 2, source]);
            let reason = judge.charge(Nanos(at), address, Charges { requests: 1, ..Charges::default() });
            let is_admitted = reason == Reason::WithinLimit;
            prop_assert_eq!(is_admitted, naive.admits(source, at, amount, behind));
            if is_admitted {
                admitted.push((source, at));
            }
        }
        if !is_lenient {
            for &(source, from) in &admitted {
                let window = admitted.iter().filter(|(of, at)| *of == source && (from..=from + 5 * MINUTE_NS).contains(at));
                prop_assert!(window.count() as u64 <= amount);
            }
        }
    }

    #[test]
    fn predicted_refusals_of_another_limit_match_its_replay(
        steps in proptest::collection::vec((0_u64..900, 0_u8..3), 1..200),
        is_lenient in any::<bool>(),
        gap in 0_u64..100_000,
    ) {
        let form = if is_lenient { WindowForm::Lenient } else { WindowForm::Strict };
        let of = |amount| policy(vec![ratelimit_policy::desired::Limit { form, ..limit(amount, Unit::Requests) }]);
        let mut lines = Vec::new();
        let mut at = 0;
        for (position, (step, source)) in steps.iter().enumerate() {
            at += step / 8 + if position == steps.len() / 2 { gap } else { 0 };
            lines.push((at, format!("192.0.2.{source}")));
        }
        let lines: Vec<(u64, &str)> = lines.iter().map(|(at, source)| (*at, source.as_str())).collect();
        let contents = log(&lines);
        let policy = of(8);
        let input = Named { name: "it".to_owned(), input: Box::new(std::io::Cursor::new(contents.clone())) };
        let begin = |kind| Replay::observing(&policy, kind, Present::Said);
        let (replay, read, files) = play(vec![input], &asked(&policy), begin).unwrap();
        let suggested = replay.suggest(read, files, &[]).unwrap();
        let observed = suggested.report.rules[0].limits[0].observed.clone().unwrap();
        prop_assert_eq!((observed.wanted, observed.missed_buckets), (lines.len() as u64, 0));
        for candidate in observed.candidates {
            let report = replayed(&contents, &of(candidate.amount)).unwrap();
            let (_, refused, limited) = numbers(&report.limits[0]);
            prop_assert_eq!((candidate.blocked, candidate.sources_blocked), (refused, limited), "{}", candidate.limit);
        }
    }

    #[test]
    fn every_line_of_a_damaged_log_is_judged_or_left_out(
        picked in proptest::collection::vec((0..LOGS.len(), any::<prop::sample::Index>(), any::<u8>(), 0_u8..5), 1..4),
        bytes in proptest::collection::vec(any::<u8>(), 0..40),
        is_packed in any::<bool>(),
    ) {
        let of = policy(vec![limit(2, Unit::Requests)]);
        let mut files: Vec<Vec<u8>> = Vec::new();
        for (log, at, byte, change) in picked {
            let mut contents = LOGS[log].to_vec();
            let at = at.index(contents.len());
            match change {
                0 => contents[at] = byte,
                1 => contents.truncate(at),
                2 => drop(contents.splice(at..at, bytes.iter().copied())),
                3 => drop(contents.splice(0..0, std::iter::repeat_n(0, byte.into()))),
                // Inserts lines of one format among those of another.
                _ => contents.extend(LOGS[usize::from(byte) % LOGS.len()]),
            }
            files.push(contents);
        }
        if is_packed {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            std::io::Write::write_all(&mut encoder, &files[0]).unwrap();
            let mut packed = encoder.finish().unwrap();
            if let [first, ..] = bytes.as_slice() {
                let at = usize::from(*first) % packed.len();
                packed[at] ^= 1;
            }
            files.push(packed);
        }
        let files: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
        if let Ok(Report { input, .. }) = replayed_all(&files, &of) {
            prop_assert_eq!(input.judged + input.unreadable, input.read);
            prop_assert_eq!(input.files.iter().map(|file| file.read).sum::<u64>(), input.read);
        }
    }

    #[test]
    fn no_input_panics(
        mut contents in proptest::collection::vec(any::<u8>(), 0..200),
        at in any::<usize>(),
        byte in any::<u8>(),
        is_ng in any::<bool>(),
    ) {
        let of = policy(vec![limit(2, Unit::Requests), limit(2, Unit::Bytes)]);
        let _any = replayed(&contents, &of);
        let frames = asking(CLIENT, SERVER, 2);
        let good = if is_ng { pcapng(&frames) } else { pcap(1, &frames) };
        let mut broken = good.clone();
        let len = broken.len();
        broken[at % len] = byte;
        let _any = replayed(&broken, &of);
        contents.splice(0..0, good[..at % len].iter().copied());
        let _any = replayed(&contents, &of);
        let frame = Captured { header: [0; 14], packet: &contents, len: contents.len() };
        let _any = packet::parse(&frame);
    }
}
