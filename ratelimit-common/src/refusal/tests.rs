//! Tests against etherparse, which builds headers and checksums on its own.

use etherparse::{NetHeaders, PacketBuilder, PacketHeaders, TransportHeader};
use proptest::prelude::*;

use super::*;

/// Segment as a client may send it.
#[derive(Clone, Debug)]
struct Sent {
    tags: u8,
    source: [u8; 16],
    destination: [u8; 16],
    ports: (u16, u16),
    sequence: u32,
    acknowledged: u32,
    hops: u8,
    payload: Vec<u8>,
}

fn segments() -> impl Strategy<Value = Sent> {
    let addresses = (any::<[u8; 16]>(), any::<[u8; 16]>());
    let numbers = (any::<(u16, u16)>(), any::<u32>(), any::<u32>(), any::<u8>());
    (0_u8..3, addresses, numbers, prop::collection::vec(any::<u8>(), 0..64)).prop_map(
        |(tags, (source, destination), (ports, sequence, acknowledged, hops), payload)| Sent {
            tags,
            source,
            destination,
            ports,
            sequence,
            acknowledged,
            hops,
            payload,
        },
    )
}

impl Sent {
    fn frame(&self, is_v6: bool, is_syn: bool) -> Vec<u8> {
        let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let short = |address: &[u8; 16]| [address[0], address[1], address[2], address[3]];
        let id = |of: u8| u16::from(of).try_into().unwrap();
        macro_rules! with_ip {
            ($link:expr) => {
                if is_v6 {
                    $link.ipv6(self.source, self.destination, self.hops)
                } else {
                    $link.ipv4(short(&self.source), short(&self.destination), self.hops)
                }
            };
        }
        let ip = match self.tags {
            0 => with_ip!(ethernet),
            1 => with_ip!(ethernet.single_vlan(id(7))),
            _ => with_ip!(ethernet.double_vlan(id(8), id(7))),
        };
        let options = [etherparse::TcpOptionElement::MaximumSegmentSize(1460)];
        let tcp = ip.tcp(self.ports.0, self.ports.1, self.sequence, 29_200);
        let tcp = if is_syn { tcp.syn().options(&options).unwrap() } else { tcp.ack(self.acknowledged).psh() };
        let mut frame = Vec::new();
        tcp.write(&mut frame, &self.payload).unwrap();
        frame
    }
}

/// Returns the frame that the kernel sends: the link's headers, and the new packet.
fn becomes(frame: &[u8], way: Way) -> Option<Vec<u8>> {
    fn words<const N: usize>(frame: &[u8], at: usize) -> [u32; N] {
        std::array::from_fn(|word| u32::from_ne_bytes(frame[at + 4 * word..][..4].try_into().unwrap()))
    }
    let (at, packet) = match place(&frame)? {
        Place::V4(at) => (at, v4(words(frame, at), words(frame, at + 20), way).to_vec()),
        Place::V6(at) => (at, v6(words(frame, at), words(frame, at + 40), way).to_vec()),
    };
    Some([&frame[..at], &packet.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<u8>>()].concat())
}

proptest! {
    #[test]
    fn a_segment_becomes_its_clients_reset_and_a_syn_its_answer(sent in segments(), is_v6: bool, is_syn: bool) {
        let frame = sent.frame(is_v6, is_syn);
        let way = if is_syn { Way::Back } else { Way::On };
        let reset = becomes(&frame, way).expect("a plain segment");
        prop_assert!(reset.len() <= frame.len());
        let (was, is) =
            (PacketHeaders::from_ethernet_slice(&frame).unwrap(), PacketHeaders::from_ethernet_slice(&reset).unwrap());
        prop_assert_eq!(&is.link, &was.link, "what is of the link is swapped where it is sent");
        prop_assert_eq!(&is.link_exts, &was.link_exts);
        let (Some(TransportHeader::Tcp(before)), Some(TransportHeader::Tcp(after))) = (was.transport, is.transport) else {
            panic!("no segment")
        };
        let (ports, numbers) = match way {
            Way::On => (sent.ports, (sent.sequence, sent.acknowledged)),
            Way::Back => ((sent.ports.1, sent.ports.0), (0, sent.sequence.wrapping_add(1))),
        };
        prop_assert_eq!((after.source_port, after.destination_port), ports);
        prop_assert_eq!((after.sequence_number, after.acknowledgment_number), numbers);
        prop_assert!(after.rst && after.ack && !after.syn && !after.fin && !after.psh && !after.urg);
        prop_assert_eq!((after.window_size, after.urgent_pointer, after.data_offset()), (0, 0, 5));
        prop_assert!(is.payload.slice().is_empty());
        prop_assert_eq!(before.syn, is_syn);
        match (was.net.unwrap(), is.net.unwrap()) {
            (NetHeaders::Ipv4(before, _), NetHeaders::Ipv4(after_ip, _)) => {
                prop_assert_eq!(after_ip.header_checksum, after_ip.calc_header_checksum());
                prop_assert_eq!(after_ip.total_len, 40);
                let there = (before.source, before.destination);
                let back = (before.destination, before.source);
                prop_assert_eq!((after_ip.source, after_ip.destination), if is_syn { back } else { there });
                prop_assert_eq!(after_ip.time_to_live, if is_syn { 64 } else { sent.hops });
                prop_assert_eq!(after.checksum, after.calc_checksum_ipv4(&after_ip, &[]).unwrap());
            }
            (NetHeaders::Ipv6(before, _), NetHeaders::Ipv6(after_ip, _)) => {
                prop_assert_eq!(after_ip.payload_length, 20);
                let there = (before.source, before.destination);
                let back = (before.destination, before.source);
                prop_assert_eq!((after_ip.source, after_ip.destination), if is_syn { back } else { there });
                prop_assert_eq!(after_ip.hop_limit, if is_syn { 64 } else { sent.hops });
                prop_assert_eq!(after.checksum, after.calc_checksum_ipv6(&after_ip, &[]).unwrap());
            }
            other => panic!("another family: {other:?}"),
        }
    }

    #[test]
    fn no_bytes_make_it_read_past_their_end(frame in prop::collection::vec(any::<u8>(), 0..80)) {
        let _any = place(&&*frame);
    }
}

#[test]
fn frames_with_anything_beside_plain_headers_have_no_place() {
    let sent = Sent {
        tags: 0,
        source: [1; 16],
        destination: [2; 16],
        ports: (40_000, 80),
        sequence: 1,
        acknowledged: 2,
        hops: 64,
        payload: vec![0; 40],
    };
    let (v4, v6) = (sent.frame(false, false), sent.frame(true, false));
    assert_eq!((place(&&*v4), place(&&*v6)), (Some(Place::V4(14)), Some(Place::V6(14))));
    let with = |frame: &[u8], at: usize, byte: u8| {
        let mut frame = frame.to_vec();
        frame[at] = byte;
        place(&&*frame)
    };
    assert_eq!(with(&v4, 14, 0x46), None, "options");
    assert_eq!(with(&v4, 20, 0x20), None, "a first fragment");
    assert_eq!(with(&v4, 21, 1), None, "a later one");
    assert_eq!(with(&v4, 20, 0x40), Some(Place::V4(14)), "one that is not to be cut");
    assert_eq!(with(&v4, 23, 17), None, "UDP");
    assert_eq!(with(&v6, 20, 44), None, "a fragment");
    assert_eq!(with(&v6, 20, 17), None, "UDP");
    assert_eq!(with(&v6, 13, 0x06), None, "ARP");
}

#[test]
fn a_syn_that_no_host_would_answer_is_not_answered_here() {
    let sent = |source: [u8; 16], destination: [u8; 16], tags| Sent {
        tags,
        source,
        destination,
        ports: (40_000, 80),
        sequence: 1,
        acknowledged: 0,
        hops: 64,
        payload: Vec::new(),
    };
    let v4 = |address: [u8; 4]| std::array::from_fn(|at| if at < 4 { address[at] } else { 0 });
    let v6 = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let answered = |frame: &[u8]| is_answered(&frame, place(&frame).unwrap());
    let (host, other) = (v4([198, 51, 100, 7]), v4([192, 0, 2, 1]));
    for tags in 0..3 {
        let plain = sent(host, other, tags).frame(false, true);
        assert_eq!(answered(&plain), Some(true), "{tags} tags");
        let tcp_at = plain.len() - 24;
        // Group addresses as destination and source, RST, FIN, both, and a header of four words.
        for (at, byte) in [
            (0, 0xff),
            (0, 0x33),
            (6, 0x01),
            (tcp_at + 13, 0x06),
            (tcp_at + 13, 0x03),
            (tcp_at + 13, 0x07),
            (tcp_at + 12, 0x40),
        ] {
            let mut frame = plain.clone();
            frame[at] = byte;
            assert_eq!(answered(&frame), Some(false), "byte {at} is {byte:#x}");
        }
        assert_eq!(answered(&plain[..tcp_at + 12]), None, "cut off");
        // The ECN bits do not matter for a plain SYN.
        let mut of_ecn = plain;
        of_ecn[tcp_at + 13] |= 0xc0;
        assert_eq!(answered(&of_ecn), Some(true));
    }
    for no_host in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [255, 255, 255, 255], [240, 1, 2, 3]] {
        for (source, destination) in [(v4(no_host), other), (host, v4(no_host))] {
            assert_eq!(answered(&sent(source, destination, 0).frame(false, true)), Some(false), "{no_host:?}");
        }
    }
    let (host, other) = (v6("2001:db8::7"), v6("fe80::1"));
    assert_eq!(answered(&sent(host, other, 1).frame(true, true)), Some(true));
    for no_host in ["::", "::1", "ff02::1", "::ffff:192.0.2.1"] {
        for (source, destination) in [(v6(no_host), other), (host, v6(no_host))] {
            assert_eq!(answered(&sent(source, destination, 0).frame(true, true)), Some(false), "{no_host}");
        }
    }
}
