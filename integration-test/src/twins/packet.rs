//! Random packets for the program and the oracle.

use std::net::IpAddr;

use super::PORTS;
use crate::clients::{Clients, Sent};
use crate::frames::flag::{ACK, FIN, RST, SYN};
use crate::frames::proto::{DEST_OPTIONS, FRAGMENT, GRE, ICMP, ICMPV6, NONE, TCP, UDP};
use crate::frames::{IPV4, IPV6, Segment, V4, V6, chain, fragment, icmp, quic, tagged, udp_from};
use crate::oracle::{Kind, Packet};
use crate::random::Random;

/// TCP timestamp option, which most segments have.
const TIMESTAMP: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 9];

/// Returns a random packet, as a frame and as the oracle sees it.
pub fn random_packet(random: &mut Random, clients: &mut Clients) -> (Vec<u8>, Packet) {
    let port = random.of(&PORTS);
    let at_most = random.of(&[300, 300, 1300]);
    let data = vec![0; random.index(at_most)];
    let source_port = 40_000 + u16::try_from(random.below(4)).expect("a few");
    let is_v4 = random.one_in(2);
    let (source, destination) = random_ends(random, is_v4);
    let more = random.one_in(2);
    let offset = 1 + u16::try_from(random.below(100)).expect("a few");
    // The kind; what carries it over IPv4 and over IPv6; its payload, and the part of it behind the ports.
    let what = random.below(12);
    let mut closes = false;
    let (kind, (v4, v6), transport, payload) = match what {
        0..=3 | 10 => {
            let is_fragment = what == 10;
            let sent = clients.next((source, destination, source_port, port), random);
            let Sent { sequence, acknowledged, flags, data } = &sent;
            closes = flags & (FIN | RST) != 0;
            let segment = Segment {
                source_port,
                sequence: *sequence,
                acknowledged: *acknowledged,
                data,
                options: random.of(&[&[][..], &TIMESTAMP]),
                ..Segment::to(port, *flags)
            };
            let kind = Kind::Tcp {
                source_port,
                port,
                opens: flags & (SYN | ACK) == SYN,
                sequence: if flags & SYN == 0 { *sequence } else { sequence.wrapping_add(1) },
                acknowledged: if flags & ACK == 0 { 0 } else { *acknowledged },
                is_fragment,
            };
            let bytes = segment.bytes();
            match (is_fragment, is_v4) {
                (false, _) => (kind, (V4::of(TCP), TCP), bytes, sent.data),
                (true, true) => (kind, (V4::fragment(TCP, 0, true), TCP), bytes, sent.data),
                (true, false) => (kind, (V4::of(TCP), FRAGMENT), fragment(TCP, 0, true, bytes), sent.data),
            }
        }
        4..=5 => {
            let kind = Kind::Udp { source_port, port, quic_initial: false };
            (kind, (V4::of(UDP), UDP), udp_from(source_port, port, &data), data)
        }
        6 => {
            // Mostly an Initial, otherwise a Handshake.
            let first = random.of(&[0xc0, 0xc0, 0xc0, 0xe0]);
            let (kind, long) = (Kind::Udp { source_port, port, quic_initial: first == 0xc0 }, quic(first, 1));
            (kind, (V4::of(UDP), UDP), udp_from(source_port, port, &long), long)
        }
        7 => {
            let of = random.of(&[UDP, TCP]);
            let (v4, v6) = (V4::fragment(of, offset, more), fragment(of, offset, more, &data));
            // IPv6 does not tell the protocol.
            let kind = Kind::Fragment { may_be_tcp: of == TCP || !is_v4 };
            (kind, (v4, FRAGMENT), if is_v4 { data } else { v6 }, Vec::new())
        }
        11 if is_v4 => (Kind::Unparsable, (V4::fragment(TCP, 0, true), NONE), vec![0; 7], Vec::new()),
        11 => (Kind::Unparsable, (V4::of(TCP), DEST_OPTIONS), chain(9, TCP, data), Vec::new()),
        8 if random.one_in(2) => (Kind::ControlTraffic, (V4::of(ICMP), ICMPV6), icmp(3, 4), Vec::new()),
        8 => (Kind::Other, (V4::of(ICMP), ICMPV6), icmp(if is_v4 { 8 } else { 128 }, 0), Vec::new()),
        _ => (Kind::Other, (V4::of(GRE), GRE), data, Vec::new()),
    };
    let (ether_type, mut packet) = match source {
        IpAddr::V4(source) => (IPV4, V4 { source: source.octets(), ..v4 }.around(transport)),
        IpAddr::V6(source) => (IPV6, V6 { source: source.octets(), ..V6::of(v6) }.around(transport)),
    };
    match destination {
        IpAddr::V4(to) => packet[16..20].copy_from_slice(&to.octets()),
        IpAddr::V6(to) => packet[24..40].copy_from_slice(&to.octets()),
    }
    let tags = [(0x88a8, 5), (0x8100, 6)];
    let first_tag = random.of(&[0, 1, 2, 2, 2]);
    let bytes = packet.len() as u64;
    let is_plain = first_tag == tags.len() && matches!(kind, Kind::Tcp { is_fragment: false, .. } | Kind::Udp { .. });
    (
        tagged(&tags[first_tag..], ether_type, packet),
        Packet { source, destination, bytes, kind, payload, is_plain, closes },
    )
}

fn random_ends(random: &mut Random, is_v4: bool) -> (IpAddr, IpAddr) {
    let (sources, destinations) = if is_v4 {
        (["198.51.100.1", "198.51.100.2", "203.0.113.1"], ["192.0.2.1", "192.0.2.2"])
    } else {
        // Two /64 prefixes, one of them with two addresses.
        (["2001:db8:0:1::1", "2001:db8:0:1::2", "2001:db8:0:2::1"], ["2001:db8:ff::1", "2001:db8:ff::2"])
    };
    let address = |text: &str| text.parse().expect("an address");
    (address(random.of(&sources)), address(random.of(&destinations)))
}
