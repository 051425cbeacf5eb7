//! Tests over a wire with real servers. Fragments, long header chains and datagrams that look like QUIC reach a server
//! no more often than the limit allows.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use integration_test::frames::flag::{ACK, SYN};
use integration_test::frames::proto::{DEST_OPTIONS, FRAGMENT, TCP, UDP};
use integration_test::frames::{IPV4, IPV6, Segment, V4, V6, chain, fragment, frame, quic, udp_from};
use integration_test::lab::{CLIENTS, HANGS_AFTER, Lab, SERVER, number, packets};
use netlab::{Namespace, PacketSocket, UdpCounter, needs_root, nginx, without_offloads};
use nix::sys::signal::Signal;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
/// Addresses on the clients' link that no kernel has, so that only the test answers for them.
const RAW: [&str; 2] = ["10.9.0.77", "fd09:0:0:c::77"];
const LIMIT: u64 = 10;
/// Interval at which the counters are checked for a drop while nothing is received.
const LOOK: Duration = Duration::from_millis(50);

/// A client with the test's own TCP.
struct RawClient<'a> {
    lab: &'a Lab,
    sender: PacketSocket,
    listener: PacketSocket,
    ethernet: Vec<u8>,
    source: IpAddr,
    server: IpAddr,
    port: u16,
    source_port: u16,
    sequence: u32,
    acknowledged: u32,
    heard: Vec<u8>,
}

fn link_address(namespace: &Namespace, interface: &str) -> Vec<u8> {
    let shown = namespace.ip(&["-br", "link", "show", "dev", interface]).unwrap();
    let address = shown.split_whitespace().nth(2).unwrap().to_owned();
    address.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

impl<'a> RawClient<'a> {
    fn new(lab: &'a Lab, source: &str, port: u16) -> Self {
        let (client, server) = (link_address(&lab.client, "c0"), link_address(&lab.server, "s0"));
        let of_client = client.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
        lab.server.ip(&["neigh", "replace", source, "lladdr", &of_client, "dev", "s0", "nud", "permanent"]).unwrap();
        let source: IpAddr = source.parse().unwrap();
        Self {
            lab,
            sender: PacketSocket::sender(&lab.client, "c0").unwrap(),
            listener: PacketSocket::listener(&lab.client, "c0").unwrap(),
            ethernet: [server, client].concat(),
            source,
            server: SERVER[usize::from(source.is_ipv6())].parse().unwrap(),
            port,
            source_port: 40_000,
            sequence: 7,
            acknowledged: 0,
            heard: Vec::new(),
        }
    }

    /// Returns a segment with options and a valid checksum.
    fn segment(&self, flags: u8, data: &[u8]) -> Vec<u8> {
        let segment = Segment {
            source_port: self.source_port,
            port: self.port,
            sequence: self.sequence,
            acknowledged: self.acknowledged,
            data_offset: None,
            flags,
            options: &[1; 4],
            data,
        };
        let mut bytes = segment.bytes();
        let mut covered = match (self.source, self.server) {
            (IpAddr::V4(source), IpAddr::V4(server)) => [source.octets(), server.octets()].concat(),
            (IpAddr::V6(source), IpAddr::V6(server)) => [source.octets(), server.octets()].concat(),
            _ => unreachable!("both are of one family"),
        };
        covered.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
        covered.extend([0, 0, 0, TCP]);
        covered.extend(&bytes);
        bytes[16..18].copy_from_slice(&checksum(&covered).to_be_bytes());
        bytes
    }

    /// Sends an IP packet, given as IPv4's header and IPv6's next header.
    fn send(&self, v4: V4, v6: u8, payload: &[u8]) {
        let (ether_type, mut packet) = match self.source {
            IpAddr::V4(source) => (IPV4, V4 { source: source.octets(), ..v4 }.around(payload)),
            IpAddr::V6(source) => (IPV6, V6 { source: source.octets(), ..V6::of(v6) }.around(payload)),
        };
        match self.server {
            IpAddr::V4(server) => {
                packet[16..20].copy_from_slice(&server.octets());
                packet[10..12].fill(0);
                let sum = checksum(&packet[..20]);
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            IpAddr::V6(server) => packet[24..40].copy_from_slice(&server.octets()),
        }
        let mut frame = frame(ether_type, packet);
        frame[..12].copy_from_slice(&self.ethernet);
        self.sender.send(&frame).unwrap();
    }

    fn say(&self, flags: u8, data: &[u8]) {
        self.send(V4::of(TCP), TCP, &self.segment(flags, data));
    }

    /// Sends with `send`, and receives until `until` holds. Returns false if the limiter drops something.
    fn hears(&mut self, flags: u8, send: impl FnOnce(&Self), until: impl Fn(&Self) -> bool) -> bool {
        let dropped = |client: &Self| packets(&client.lab.stats())[2];
        let before = dropped(self);
        send(self);
        let (began, mut looked) = (Instant::now(), Instant::now());
        while began.elapsed() < HANGS_AFTER {
            let Some(frame) = self.listener.receive().unwrap() else {
                if looked.elapsed() > LOOK {
                    if dropped(self) > before {
                        return false;
                    }
                    looked = Instant::now();
                }
                thread::yield_now();
                continue;
            };
            let Some((sequence, is, data)) = self.segment_in(&frame) else { continue };
            if is & flags != flags {
                continue;
            }
            if is & SYN != 0 {
                self.acknowledged = sequence.wrapping_add(1);
            } else if !data.is_empty() && sequence == self.acknowledged {
                self.acknowledged = sequence.wrapping_add(u32::try_from(data.len()).unwrap());
                self.heard.extend(data);
                self.say(ACK, &[]);
            }
            if until(self) {
                return true;
            }
        }
        panic!("it is neither answered nor dropped");
    }

    /// Returns the sequence number, flags and payload of a segment to this client.
    fn segment_in(&self, frame: &[u8]) -> Option<(u32, u8, Vec<u8>)> {
        let is_v4 = self.source.is_ipv4();
        let (header, proto, to) = if is_v4 { (20, 23, 30..34) } else { (40, 20, 38..54) };
        let own = match self.source {
            IpAddr::V4(source) => source.octets().to_vec(),
            IpAddr::V6(source) => source.octets().to_vec(),
        };
        let ether_type = if is_v4 { IPV4 } else { IPV6 };
        let is_ours =
            frame.get(12..14)? == ether_type.to_be_bytes() && *frame.get(proto)? == TCP && frame.get(to)? == own;
        let segment = frame.get(14 + header..).filter(|_| is_ours)?;
        let length = if is_v4 {
            usize::from(u16::from_be_bytes([frame[16], frame[17]])) - 20
        } else {
            usize::from(u16::from_be_bytes([frame[18], frame[19]]))
        };
        let data_at = usize::from(*segment.get(12)? >> 4) * 4;
        let sequence = u32::from_be_bytes(segment.get(4..8)?.try_into().ok()?);
        (segment.get(2..4)? == self.source_port.to_be_bytes())
            .then(|| (sequence, segment[13], segment[data_at..length].to_vec()))
    }

    fn connect(&mut self) -> bool {
        if !self.hears(SYN | ACK, |client| client.say(SYN, &[]), |client| client.acknowledged != 0) {
            return false;
        }
        self.sequence += 1;
        self.say(ACK, &[]);
        true
    }

    /// Sends a request as a first fragment up to `cut_at` and a later one that claims the protocol `says`. Returns
    /// whether it is answered.
    fn asks_in_fragments(&mut self, cut_at: usize, says: u8) -> bool {
        let whole = self.segment(ACK, GET);
        let (first, rest) = whole.split_at(cut_at);
        let offset = u16::try_from(cut_at / 8).unwrap();
        let ident = u32::try_from(self.heard.len()).unwrap();
        let of_v6 = |proto, offset, more, part: &[u8]| {
            let mut header = fragment(proto, offset, more, part);
            header[4..8].copy_from_slice(&ident.to_be_bytes());
            header
        };
        let send = |client: &Self| {
            if client.source.is_ipv4() {
                client.send(V4::fragment(TCP, 0, true), FRAGMENT, first);
                client.send(V4::fragment(TCP, offset, false), FRAGMENT, rest);
            } else {
                client.send(V4::of(TCP), FRAGMENT, &of_v6(TCP, 0, true, first));
                client.send(V4::of(TCP), FRAGMENT, &of_v6(says, offset, false, rest));
            }
        };
        let before = self.answers();
        self.sequence += u32::try_from(GET.len()).unwrap();
        self.hears(ACK, send, |client| client.answers() > before)
    }

    fn answers(&self) -> usize {
        self.heard.windows(9).filter(|part| *part == b"HTTP/1.1 ").count()
    }
}

/// Returns the Internet checksum of RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap()
}

fn lab() -> Lab {
    let lab = Lab::new();
    without_offloads(&lab.client, "c0").unwrap();
    without_offloads(&lab.server, "s0").unwrap();
    lab
}

#[test]
fn requests_in_fragments_reach_the_web_server_no_more_often_than_the_limit_says() {
    needs_root!();
    let lab = lab();
    let at = |server: &str| SocketAddr::new(server.parse().unwrap(), 80);
    let _web = nginx(&lab.server, lab.directory(), &SERVER.map(at)).unwrap();
    let logged = |source: &str| {
        let log = fs::read_to_string(lab.directory().join("access.log")).unwrap();
        log.lines().filter(|line| line.starts_with(&format!("{source} "))).count() as u64
    };
    // The first fragment has only the ports, or the whole header. Over IPv6 the later one may claim UDP.
    for (source, cut_at, says) in [(RAW[0], 8, TCP), (RAW[0], 24, TCP), (RAW[1], 24, TCP), (RAW[1], 24, UDP)] {
        let daemon = lab.limit(&["--limit", &format!("{LIMIT}/1h"), "--count", "requests"]);
        let before = logged(source);
        let mut client = RawClient::new(&lab, source, 80);
        client.source_port += u16::try_from(cut_at).unwrap() + u16::from(says);
        assert!(client.connect(), "{source} has no connection");
        let answered = (0..3 * LIMIT).take_while(|_| client.asks_in_fragments(cut_at, says)).count() as u64;
        // Each request counts twice: for its first fragment and its later one.
        assert_eq!(answered, LIMIT / 2, "{source}, cut at {cut_at}");
        lab.stats_once(|_| logged(source) == before + answered);
        assert_eq!(daemon.end(Signal::SIGTERM), 0);
    }
}

#[test]
fn syns_behind_nine_extension_headers_reach_no_server() {
    needs_root!();
    let lab = lab();
    let _server = lab.server.inside(|| Ok(TcpListener::bind((SERVER[1], 22)).unwrap())).unwrap();
    let config = lab.directory().join("r.toml");
    let rules = "interfaces = [\"s0\"]\n[[rule]]\nname = \"web\"\nlimits = [\"1000/1h\"]\n[[rule]]\nname = \"ssh\"\nports = \"22/tcp\"\n\
                 limits = [\"5/1h connections\"]\n";
    let rules = format!("socket = \"{}\"\n{rules}", lab.socket().display());
    fs::write(&config, rules).unwrap();
    let _daemon = lab.start(&["run", "--config", config.to_str().unwrap()]);
    let mut opened = [0, 0];
    for (of, headers) in opened.iter_mut().zip([8, 9]) {
        for at in 0..12 {
            let mut client = RawClient::new(&lab, RAW[1], 22);
            client.source_port += headers * 100 + at;
            let syn = client.segment(SYN, &[]);
            let chain = chain(headers.into(), TCP, syn);
            let send = |client: &RawClient<'_>| client.send(V4::of(TCP), DEST_OPTIONS, &chain);
            *of += u32::from(client.hears(SYN | ACK, send, |client| client.acknowledged != 0));
        }
    }
    assert_eq!(opened, [5, 0]);
    let stats = lab.stats_once(|stats| number(stats, "/reasons/too_many_headers") >= 12);
    assert_eq!(number(&stats, "/rules/0/dropped"), 12, "by the first rule: {stats}");
}

#[test]
fn a_udp_service_gets_as_many_datagrams_as_the_limit_says_whatever_came_first() {
    needs_root!();
    let lab = lab();
    let at = SocketAddr::new(SERVER[0].parse().unwrap(), 53);
    let server = UdpCounter::start(&lab.server, at).unwrap();
    let _daemon = lab.limit(&["--limit", &format!("{LIMIT}/1h"), "--port", "53/udp"]);
    let initial = [quic(0xc0, 1), vec![0; 1200]].concat();
    let query = [&b"\x12\x34\x01\x00\x00\x01\0\0\0\0\0\0"[..], &[3; 20]].concat();
    for (client, first) in CLIENTS.into_iter().zip([query.clone(), initial, [vec![0xe0; 6], vec![1; 40]].concat()]) {
        let before = packets(&lab.stats())[0];
        let socket = lab.client.inside(|| Ok(UdpSocket::bind((client, 0)).unwrap())).unwrap();
        socket.send_to(&first, at).unwrap();
        for _ in 0..200 {
            socket.send_to(&query, at).unwrap();
        }
        lab.stats_once(|stats| packets(stats)[0] >= before + 201);
        let got = || Ok(server.datagrams().get(&client.parse()?).copied().unwrap_or(0));
        assert_eq!(netlab::settled(got).unwrap(), LIMIT, "{client}");
    }
}

#[test]
fn a_flood_of_datagrams_that_nothing_counts_shows_as_overload_and_makes_few_sources() {
    needs_root!();
    let lab = lab();
    let _daemon = lab.limit(&["--limit", "100/5m"]);
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    // Forged datagrams with the short header of an acknowledgement, each of another flow.
    let mut forged = frame(IPV4, V4::of(UDP).around(udp_from(1024, 443, [0x40; 40])));
    forged[30..34].copy_from_slice(&[10, 9, 0, 1]);
    let end = Instant::now() + HANGS_AFTER;
    let mut sent = 0_u32;
    let (mut is_overloaded, mut insertions) = (false, 0);
    while !is_overloaded && Instant::now() < end {
        for _ in 0..20_000 {
            sent += 1;
            forged[26..30].copy_from_slice(&(0x1100_0000 + sent).to_be_bytes());
            sender.send(&forged).unwrap();
        }
        let stats = lab.stats();
        (is_overloaded, insertions) =
            (stats["sources"]["overloaded_periods"] != 0, number(&stats, "/sources/insertions"));
    }
    assert!(is_overloaded, "{sent} flows of their own are no overload");
    // The guard counts one in 256 of them by chance: all or none of those within a tick of the clock.
    assert!(insertions <= u64::from(sent) / 10, "{insertions} of {sent} are counted");
}
