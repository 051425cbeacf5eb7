//! Tests of the parser's assumption with the real network stack. Malformed frames and frames without IP reach no
//! socket, so passing them is no way around a limit.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::net::SocketAddr;

use integration_test::frames::proto::UDP;
use integration_test::frames::{DESTINATION_V4, IPV4, SERVICE_VLAN, V4, VLAN, cut, frame, tagged, udp};
use integration_test::lab::once;
use netlab::{End, Namespace, PacketSocket, UdpCounter, needs_root, veth};
use ratelimit_common::packet::{Parsed, parse};

/// A real server for datagrams. Each datagram has its own source address, by which the server identifies it.
struct Stack {
    client: PacketSocket,
    server: UdpCounter,
    server_link: Vec<u8>,
    _namespaces: (Namespace, Namespace),
}

impl Stack {
    fn new() -> Self {
        let (client, server) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        veth(
            End { namespace: &client, interface: "c0", addresses: &["198.51.100.1/24"] },
            End { namespace: &server, interface: "s0", addresses: &["192.0.2.1/24"] },
        )
        .unwrap();
        server.ip(&["route", "add", "198.51.0.0/16", "dev", "s0"]).unwrap();
        let shown = server.ip(&["-br", "link", "show", "dev", "s0"]).unwrap();
        let server_link = shown.split_whitespace().nth(2).unwrap();
        Self {
            client: PacketSocket::sender(&client, "c0").unwrap(),
            server: UdpCounter::start(&server, SocketAddr::from((DESTINATION_V4, 443))).unwrap(),
            server_link: server_link.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect(),
            _namespaces: (client, server),
        }
    }

    /// Returns the names of the frames that reach the server.
    fn reached(&self, frames: &[(&str, Vec<u8>)]) -> Vec<String> {
        for (_, frame) in frames {
            let mut frame = frame.clone();
            frame[..6].copy_from_slice(&self.server_link);
            self.client.send(&frame).unwrap();
        }
        // The arrival of a valid frame, sent last, shows that all others have been processed.
        let mut last = frame(IPV4, V4 { source: source(LAST), ..V4::of(UDP) }.around(udp(443, [0; 4])));
        last[..6].copy_from_slice(&self.server_link);
        self.client.send(&last).unwrap();
        // A valid datagram reaches the server.
        once(|| self.server.datagrams().contains_key(&source(LAST).into()).then_some(())).unwrap();
        let seen = self.server.datagrams();
        let reached = (0..frames.len()).filter(|row| seen.contains_key(&source(*row).into()));
        reached.map(|row| frames[row].0.to_owned()).collect()
    }
}

const LAST: usize = 250;

/// Returns the source address of a row.
fn source(row: usize) -> [u8; 4] {
    [198, 51, 101, u8::try_from(row).unwrap()]
}

type Row = (&'static str, fn(V4) -> Vec<u8>);

/// Shapes of a datagram to UDP 443, with the row's own source address.
const SHAPES: &[Row] = &[
    ("sound", |ip| frame(IPV4, ip.around(datagram()))),
    ("one priority tag", |ip| tagged(&[(VLAN, 0)], IPV4, ip.around(datagram()))),
    ("two priority tags", |ip| tagged(&[(VLAN, 0); 2], IPV4, ip.around(datagram()))),
    ("three priority tags", |ip| tagged(&[(VLAN, 0); 3], IPV4, ip.around(datagram()))),
    ("nine priority tags", |ip| tagged(&[(VLAN, 0); 9], IPV4, ip.around(datagram()))),
    ("three priority tags, the first of a service VLAN", |ip| {
        tagged(&[(SERVICE_VLAN, 0), (VLAN, 0), (VLAN, 0)], IPV4, ip.around(datagram()))
    }),
    ("three tags of VLANs", |ip| tagged(&[(VLAN, 5), (VLAN, 6), (VLAN, 7)], IPV4, ip.around(datagram()))),
    ("SNAP", |ip| frame(44, [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &ip.around(datagram())].concat())),
    ("an old service tag", |ip| tagged(&[(0x9100, 0)], IPV4, ip.around(datagram()))),
    ("header length 4", |ip| frame(IPV4, V4 { ihl: 4, ..ip }.around(datagram()))),
    ("header length over the packet", |ip| frame(IPV4, V4 { ihl: 15, ..ip }.around(datagram()))),
    ("IP version 5", |ip| frame(IPV4, V4 { version: 5, ..ip }.around(datagram()))),
    ("total length 0", |ip| frame(IPV4, V4 { total_len: Some(0), ..ip }.around(datagram()))),
    ("total length below the header", |ip| frame(IPV4, V4 { total_len: Some(19), ..ip }.around(datagram()))),
    ("total length over the frame", |ip| frame(IPV4, V4 { total_len: Some(33), ..ip }.around(datagram()))),
    ("total length that cuts the UDP header", |ip| frame(IPV4, V4 { total_len: Some(27), ..ip }.around(datagram()))),
    ("frame cut inside the UDP header", |ip| cut(frame(IPV4, ip.around(datagram())), 14 + 27)),
    ("first fragment inside the UDP header", |ip| {
        frame(IPV4, V4 { more_fragments: true, ..ip }.around(cut(datagram(), 7)))
    }),
];

fn datagram() -> Vec<u8> {
    udp(443, [0; 4])
}

fn rows() -> Vec<(&'static str, Vec<u8>)> {
    let build = |(row, (name, shape)): (usize, &Row)| (*name, shape(V4 { source: source(row), ..V4::of(UDP) }));
    SHAPES.iter().enumerate().map(build).collect()
}

#[test]
fn malformed_and_non_ip_frames_reach_no_socket() {
    needs_root!();
    let rows = rows();
    let reached = Stack::new().reached(&rows);
    let around: Vec<_> = rows
        .iter()
        .filter(|(_, frame)| matches!(parse(&frame.as_slice()), Parsed::Malformed | Parsed::NotIp))
        .filter(|(name, _)| reached.iter().any(|reached| reached == name))
        .map(|(name, _)| *name)
        .collect();
    assert_eq!(around, Vec::<&str>::new(), "these pass uncounted and reach the server all the same");
    assert!(reached.iter().any(|name| name == "sound"));
}
