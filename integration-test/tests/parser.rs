//! Tests of the parser on the host with named frames, with each of them cut short, and with arbitrary bytes. Results
//! for valid packets are compared with etherparse.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6FlowLabel, Ipv6FragmentHeader,
    Ipv6Header, Ipv6RawExtHeader, NetSlice, PacketBuilder, SlicedPacket, TransportSlice, VlanId,
};
use integration_test::{fixtures, frames};
use proptest::prelude::*;
use ratelimit_common::packet::{Frame, Head, Packet, Parsed, Segment, Target, parse, says, source_port};
use ratelimit_common::source::Address;

/// Parses bytes to the form of the table of named frames.
fn parse_bytes(bytes: &[u8]) -> Parsed {
    fixtures::without_payload(parse(&bytes))
}

#[test]
fn every_named_frame_is_what_its_row_says() {
    let mut wrong = Vec::new();
    for fixture in fixtures::all() {
        let parsed = parse_bytes(&fixture.frame);
        if parsed != fixture.parsed {
            wrong.push(format!("{}:\n  is       {parsed:?}\n  expected {:?}", fixture.name, fixture.parsed));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_named_segment_says_of_its_connection_what_its_row_says() {
    for row in fixtures::tcp_segments() {
        let Parsed::Ip(Packet { target: Target::Tcp { segment, .. }, .. }) = parse(&row.frame.as_slice()) else {
            panic!("{} is no TCP", row.name);
        };
        let payload_at = if segment.payload_bytes == 0 { 0 } else { segment.payload_at };
        assert_eq!(Segment { payload_at, ..segment }, row.segment, "{}", row.name);
    }
}

#[test]
fn every_named_datagram_has_as_much_payload_as_its_row_says() {
    for row in fixtures::datagrams() {
        let Parsed::Ip(Packet { target: Target::Udp { payload_bytes, .. }, .. }) = parse(&row.frame.as_slice()) else {
            panic!("{} is no UDP", row.name);
        };
        assert_eq!(payload_bytes, row.payload_bytes, "{}", row.name);
    }
}

#[test]
fn the_table_has_eighty_rows_or_more_each_with_a_name_of_its_own() {
    let mut names: Vec<_> = fixtures::all().iter().map(|fixture| fixture.name).collect();
    assert!(names.len() >= 80, "{} rows", names.len());
    names.sort_unstable();
    let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    assert_eq!(twice, Vec::<&str>::new());
}

/// Returns whether the result for a cut frame is acceptable: malformed, or equal to the whole frame's result. A packet
/// whose length is the frame's (an IPv6 payload length of 0) may get shorter.
fn is_no_less_strict(short: Parsed, whole: Parsed) -> bool {
    match (short, whole) {
        (Parsed::Malformed, _) => true,
        (Parsed::Ip(short), Parsed::Ip(whole)) => {
            short.source == whole.source && (short.target == whole.target || short.ip_bytes < whole.ip_bytes)
        }
        (short, whole) => short == whole,
    }
}

#[test]
fn a_frame_cut_short_at_any_length_is_malformed_or_what_it_was() {
    for fixture in fixtures::all() {
        for len in 0..fixture.frame.len() {
            let short = parse_bytes(&fixture.frame[..len]);
            assert!(is_no_less_strict(short, fixture.parsed), "{} cut to {len} bytes is {short:?}", fixture.name);
        }
    }
}

/// Returns whether the head and the source port, if present, agree with the parser. A head requires a source port.
fn is_read_at_a_glance_as_parsed(bytes: &[u8]) -> bool {
    let (head, parsed, port) = (Head::of(&bytes), parse(&bytes), source_port(&bytes));
    if let Parsed::Ip(Packet { target: Target::Tcp { opening: false, segment, .. }, .. }) = parsed
        && port != Some(segment.source_port)
        && (port.is_some() || head.is_some())
    {
        return false;
    }
    match (head, parsed) {
        (None, _) => true,
        (Some(head), Parsed::Ip(packet)) => head == Head::from(&packet),
        (Some(_), _) => false,
    }
}

#[test]
fn every_named_frame_is_read_at_a_glance_as_it_is_parsed_and_plain_ones_are() {
    let mut plain = 0;
    for fixture in fixtures::all() {
        for len in 0..=fixture.frame.len() {
            assert!(is_read_at_a_glance_as_parsed(&fixture.frame[..len]), "{} cut to {len} bytes", fixture.name);
        }
        plain += usize::from(Head::of(&fixture.frame.as_slice()).is_some());
    }
    assert!(plain >= 10, "{plain} frames are plain");
}

/// A frame in several buffers, of which only the first can be read.
struct Buffers<'a> {
    all: &'a [u8],
    first: usize,
}

impl Frame for Buffers<'_> {
    fn bytes<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        (&self.all[..self.first]).bytes(offset)
    }

    fn len(&self, _: usize) -> usize {
        self.all.len()
    }
}

#[test]
fn ports_behind_the_first_buffer_are_unparsable_and_never_malformed() {
    for fixture in fixtures::all() {
        let Parsed::Ip(whole) = fixture.parsed else { continue };
        let tags = usize::from(fixture.frame[12] == 0x81 || fixture.frame[12] == 0x88 || fixture.frame[12] == 0x91);
        let header = if matches!(whole.source, Address::V4(_)) { 20 } else { 40 };
        for first in 14 + 8 * tags + header..fixture.frame.len() {
            let Parsed::Ip(parsed) = fixtures::without_payload(parse(&Buffers { all: &fixture.frame, first })) else {
                panic!("{} of which {first} bytes can be read is no IP packet", fixture.name);
            };
            // A datagram that cannot be read may be a QUIC Initial, and counts as one.
            let targets = [whole.target, with_quic_initial(whole.target), Target::UnparsableHeaders];
            assert!(targets.contains(&parsed.target), "{} read to {first}: {parsed:?}", fixture.name);
            assert_eq!(Packet { target: whole.target, ..parsed }, whole, "{}", fixture.name);
        }
    }
}

fn with_quic_initial(target: Target) -> Target {
    match target {
        Target::Udp { port, source_port, payload_bytes, quic_short: _, quic_initial: _ } => {
            Target::Udp { port, source_port, payload_bytes, quic_short: false, quic_initial: true }
        }
        Target::Tcp { .. }
        | Target::Fragment { .. }
        | Target::UnparsableHeaders
        | Target::ControlTraffic
        | Target::Other => target,
    }
}

#[test]
fn one_tag_or_two_change_nothing() {
    for fixture in fixtures::all() {
        let is_untagged = fixture.frame.len() >= 14
            && ![frames::VLAN, frames::SERVICE_VLAN, frames::OLD_SERVICE_VLAN]
                .contains(&u16::from_be_bytes([fixture.frame[12], fixture.frame[13]]));
        if !is_untagged {
            continue;
        }
        for tags in [
            &[0x81, 0x00, 0x00, 0x05][..],
            &[0x81, 0x00, 0xe0, 0x00],
            &[0x88, 0xa8, 0x00, 0x05],
            &[0x91, 0x00, 0x00, 0x05],
            &[0x88, 0xa8, 0x00, 0x05, 0x81, 0x00, 0x00, 0x06],
            &[0x91, 0x00, 0x00, 0x05, 0x81, 0x00, 0x00, 0x06],
            &[0x81, 0x00, 0x00, 0x05, 0x81, 0x00, 0x00, 0x06],
        ] {
            let tagged = [&fixture.frame[..12], tags, &fixture.frame[12..]].concat();
            assert_eq!(parse_bytes(&tagged), fixture.parsed, "{} behind {tags:02x?}", fixture.name);
        }
    }
}

/// Returns named frames with a few bytes changed, to reach the depths of the parser.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let frames: Vec<_> = fixtures::all().into_iter().map(|fixture| fixture.frame).filter(|f| f.len() < 512).collect();
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (prop::sample::select(frames), changes, 0..64_usize).prop_map(|(mut frame, changes, more)| {
        for (index, byte) in changes {
            if !frame.is_empty() {
                let at = index.index(frame.len());
                frame[at] = byte;
            }
        }
        frame.resize(frame.len() + more / 8, 0x2c);
        frame
    })
}

/// Returns valid packets of every kind that etherparse can build.
fn sound() -> impl Strategy<Value = Vec<u8>> {
    let tags = proptest::collection::vec(0..4096_u16, 0..=2);
    let ip = prop_oneof![sound_v4(), sound_v6()];
    let transport = (0..4_u8, any::<u16>(), any::<u16>(), any::<u8>());
    let numbers = (any::<u32>(), any::<u32>(), 0..=10_usize);
    (tags, ip, transport, numbers, proptest::collection::vec(any::<u8>(), 0..40))
        .prop_filter_map("etherparse builds no ICMPv6 in IPv4", build)
}

fn sound_v4() -> impl Strategy<Value = IpHeaders> {
    (any::<[u8; 4]>(), 0..=10_usize, prop_oneof![3 => Just((0, false)), 1 => (0..8192_u16, any::<bool>())]).prop_map(
        |(source, words, (offset, more))| {
            let mut header = Ipv4Header::new(0, 64, IpNumber::TCP, source, [192, 0, 2, 1]).unwrap();
            header.options = vec![1; words * 4].as_slice().try_into().unwrap();
            header.fragment_offset = IpFragOffset::try_new(offset).unwrap();
            header.more_fragments = more;
            IpHeaders::Ipv4(header, Ipv4Extensions::default())
        },
    )
}

fn sound_v6() -> impl Strategy<Value = IpHeaders> {
    let options = || proptest::option::of(0..4_usize);
    let fragment = proptest::option::of((0..8192_u16, any::<bool>()));
    (any::<[u8; 16]>(), options(), options(), fragment).prop_map(|(source, hop_by_hop, destination, fragment)| {
        let raw = |units: usize| Ipv6RawExtHeader::new_raw(IpNumber::TCP, &vec![0; 6 + units * 8]).unwrap();
        let extensions = Ipv6Extensions {
            hop_by_hop_options: hop_by_hop.map(raw),
            destination_options: destination.map(raw),
            fragment: fragment.map(|(offset, more)| {
                Ipv6FragmentHeader::new(IpNumber::TCP, IpFragOffset::try_new(offset).unwrap(), more, 9)
            }),
            ..Ipv6Extensions::default()
        };
        let header = Ipv6Header {
            flow_label: Ipv6FlowLabel::ZERO,
            source,
            destination: [0xfd; 16],
            hop_limit: 64,
            ..Ipv6Header::default()
        };
        IpHeaders::Ipv6(header, extensions)
    })
}

/// Tags; IP header; kind of transport with its ports and flags; TCP sequence numbers and option words; data.
type Parts = (Vec<u16>, IpHeaders, (u8, u16, u16, u8), (u32, u32, usize), Vec<u8>);

fn build(
    (tags, ip, (kind, source_port, port, flags), (sequence, acknowledged, words), data): Parts,
) -> Option<Vec<u8>> {
    let id = |tag: u16| VlanId::try_new(tag).unwrap();
    let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let ip = match tags[..] {
        [] => ethernet.ip(ip),
        [tag] => ethernet.single_vlan(id(tag)).ip(ip),
        [outer, inner, ..] => ethernet.double_vlan(id(outer), id(inner)).ip(ip),
    };
    let mut bytes = Vec::new();
    let written = match kind {
        0 => {
            let mut header = etherparse::TcpHeader::new(source_port, port, sequence, 65_535);
            header.acknowledgment_number = acknowledged;
            header.set_options_raw(&vec![1; words * 4]).unwrap();
            header.syn = flags & 1 == 1;
            header.ack = flags & 2 == 2;
            header.fin = flags & 4 == 4;
            ip.tcp_header(header).write(&mut bytes, &data)
        }
        1 => ip.udp(source_port, port).write(&mut bytes, &data),
        2 => ip.icmpv4_raw(flags, 0, [0; 4]).write(&mut bytes, &data),
        _ => ip.icmpv6_raw(flags, 0, [0; 4]).write(&mut bytes, &data),
    };
    written.ok().map(|()| bytes)
}

/// Returns whether the claimed payload lies within the frame and within the IP packet.
fn has_its_payload_within(frame: &[u8]) -> bool {
    let Parsed::Ip(Packet { ip_bytes, target, .. }) = parse(&frame) else { return true };
    let (end, payload_bytes) = match target {
        Target::Tcp { segment: Segment { payload_bytes: 0, .. }, .. } => return true,
        Target::Tcp { segment: Segment { payload_at, payload_bytes, .. }, .. } => {
            (payload_at + payload_bytes, payload_bytes)
        }
        Target::Udp { payload_bytes, .. } => (0, payload_bytes.into()),
        Target::Fragment { .. } | Target::UnparsableHeaders | Target::ControlTraffic | Target::Other => return true,
    };
    end as usize <= frame.len() && payload_bytes < ip_bytes
}

/// Returns what etherparse's slices say about a packet, or `None` if they cannot tell.
fn by_etherparse(bytes: &[u8]) -> Option<Parsed> {
    let sliced = SlicedPacket::from_ethernet(bytes).ok()?;
    let (source, destination, ip_bytes, proto, payload) = match sliced.net.as_ref()? {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            (
                Address::v4(header.source()),
                Address::v4(header.destination()),
                u32::from(header.total_len()),
                header.protocol(),
                ip.payload(),
            )
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            (
                Address::v6(header.source()),
                Address::v6(header.destination()),
                40 + u32::from(header.payload_length()),
                ip.payload().ip_number,
                ip.payload(),
            )
        }
        NetSlice::Arp(_) => return None,
    };
    let is_v6 = matches!(source, Address::V6(_));
    let target = match sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => Target::Tcp {
            port: tcp.destination_port(),
            opening: tcp.syn() && !tcp.ack(),
            segment: Segment {
                source_port: tcp.source_port(),
                sequence: tcp.sequence_number().wrapping_add(tcp.syn().into()),
                acknowledged: if tcp.ack() { tcp.acknowledgment_number() } else { 0 },
                payload_at: u32::try_from(tcp.payload().as_ptr().addr() - bytes.as_ptr().addr()).unwrap(),
                payload_bytes: u32::try_from(tcp.payload().len()).unwrap(),
                says: if tcp.urg() { says::URGENT } else { 0 } | if tcp.fin() || tcp.rst() { says::CLOSES } else { 0 },
            },
            is_fragment: payload.fragmented,
        },
        Some(TransportSlice::Udp(udp)) => Target::Udp {
            port: udp.destination_port(),
            source_port: udp.source_port(),
            quic_initial: may_hold_initial(udp.payload(), payload.fragmented),
            quic_short: udp.payload().len() >= 6 && udp.payload()[0] < 0x80,
            payload_bytes: u16::try_from(udp.payload().len()).unwrap(),
        },
        Some(TransportSlice::Icmpv4(icmp)) if !is_v6 => essential(matches!(icmp.type_u8(), 3 | 11 | 12)),
        Some(TransportSlice::Icmpv6(icmp)) if is_v6 => essential(matches!(icmp.type_u8(), 1..=4 | 130..=137 | 143)),
        Some(TransportSlice::Icmpv4(_) | TransportSlice::Icmpv6(_) | TransportSlice::Igmp(_)) => Target::Other,
        // In IPv6 the header of a later fragment does not tell the protocol.
        None if payload_is_later_fragment(&sliced) => Target::Fragment { may_be_tcp: is_v6 || proto == IpNumber::TCP },
        None if payload.fragmented || proto == IpNumber::TCP || proto == IpNumber::UDP => return None,
        None => Target::Other,
    };
    Some(Parsed::Ip(Packet { source, destination, ip_bytes, target }))
}

fn essential(yes: bool) -> Target {
    if yes { Target::ControlTraffic } else { Target::Other }
}

/// Returns whether a datagram may contain a QUIC Initial. With `is_fragment`, the data is the first fragment's part.
fn may_hold_initial(data: &[u8], is_fragment: bool) -> bool {
    // A QUIC packet has at least the length of a connection ID behind its version.
    let Some((&[first, ref version @ ..], [_, ..])) = data.split_first_chunk::<5>() else { return false };
    let (is_long, kind) = (first >> 7 == 1, first >> 4 & 0b11);
    let may_be_long = is_fragment || data.len() >= 1200;
    match (is_long, u32::from_be_bytes(*version)) {
        (false, _) | (true, 0) => false,
        // Initial, 0-RTT, Handshake, Retry. In version 2 each number is one higher.
        (true, 1) => kind == 0 || may_be_long && kind != 3,
        (true, 0x6b33_43cf) => kind == 1 || may_be_long && kind != 0,
        (true, _) => true,
    }
}

fn payload_is_later_fragment(sliced: &SlicedPacket) -> bool {
    match sliced.net.as_ref() {
        Some(NetSlice::Ipv4(ip)) => ip.header().fragments_offset().value() > 0,
        Some(NetSlice::Ipv6(ip)) => ip.extensions().clone().into_iter().any(|extension| match extension {
            etherparse::Ipv6ExtensionSlice::Fragment(fragment) => fragment.fragment_offset().value() > 0,
            etherparse::Ipv6ExtensionSlice::HopByHop(_)
            | etherparse::Ipv6ExtensionSlice::Routing(_)
            | etherparse::Ipv6ExtensionSlice::DestinationOptions(_)
            | etherparse::Ipv6ExtensionSlice::Authentication(_) => false,
        }),
        Some(NetSlice::Arp(_)) | None => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(has_its_payload_within(&bytes));
    }

    #[test]
    fn a_sound_frame_with_a_few_bytes_changed_is_parsed_without_panic(bytes in mutated()) {
        let whole = parse_bytes(&bytes);
        prop_assert!(has_its_payload_within(&bytes));
        for len in 0..bytes.len() {
            prop_assert!(is_no_less_strict(parse_bytes(&bytes[..len]), whole), "cut to {len}");
        }
    }

    #[test]
    fn results_of_the_fast_parse_agree_with_the_parser(bytes in prop_oneof![mutated(), sound()]) {
        for len in 0..=bytes.len() {
            prop_assert!(is_read_at_a_glance_as_parsed(&bytes[..len]), "cut to {len}");
        }
    }

    #[test]
    fn a_sound_packet_is_what_etherparse_says_it_is(bytes in sound()) {
        if let Some(expected) = by_etherparse(&bytes) {
            prop_assert_eq!(parse(&bytes.as_slice()), expected);
        }
    }
}
