//! The benchmark's floods: frames of many sources, made in the kernel and sent over an interface (`BPF_PROG_TEST_RUN`
//! with live frames).

use std::net::IpAddr;

use anyhow::{Context as _, ensure};
use aya::maps::Array;
use aya::programs::Xdp;
use aya::{Ebpf, EbpfLoader, TestRun as _, TestRunAttrs, TestRunOptions};

use super::interface;
use crate::DatapathError;

/// Frames that the kernel sends at once: its own default, spelled out since the receiver's queue is 4 of them.
const BATCH: u32 = 64;
const NAME: &str = "generator";
const PICKS: &str = "PICKS";
const CONNECTIONS: &str = "CONNECTIONS";
/// Connections that there is room for; likewise.
const CONNECTIONS_MAX: usize = 1024;
/// Entries of the table that sources may be picked from; ratelimit-ebpf/src/generator.rs has it too.
const PICKS_LEN: u32 = 65_536;

const ETHERNET_LEN: usize = 14;
const IPV6: [u8; 2] = [0x86, 0xdd];
const UDP: u8 = 17;

/// Who sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// The first address.
    pub first: IpAddr,
    /// How many there are: two to the power of this.
    pub bits: u8,
    /// Whose turn it is.
    pub order: Order,
    /// How many bits of an IPv6 address are one source's: 0 where each address is another, 64 where each /64 is.
    pub host_bits: u8,
}

/// Whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each source once before any comes again, shuffled.
    InTurn,
    /// Those of this table, one entry after the other, shuffled; as many as a power of two up to 65 536.
    Picked(Vec<u32>),
}

/// An open connection, as its client has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenConnection {
    /// The client's port.
    pub source_port: u16,
    /// The sequence number of its next segment.
    pub sequence: u32,
    /// What it acknowledges.
    pub acknowledged: u32,
}

/// Open connections of one client over IPv4, each of which sends the next segment in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenConnections {
    /// A power of two, up to 1024.
    pub all: Vec<OpenConnection>,
    /// By how much a connection's sequence number is more in its next segment; 0 where it sends the same again.
    pub step: u32,
}

/// What is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flood {
    /// What every frame says: Ethernet, IPv4 or IPv6 without options, TCP or UDP. Its source's address and port and its
    /// checksums are written anew.
    pub frame: Vec<u8>,
    /// Its sources.
    pub sources: Sources,
    /// Others, that send every other frame, in turn.
    pub others: Option<Sources>,
    /// Whose segments all of it is, if it is of open connections: then the first source alone is the client.
    pub connections: Option<OpenConnections>,
}

/// A flood, loaded.
pub struct Generator {
    ebpf: Ebpf,
    frame: Vec<u8>,
}

impl Generator {
    /// Loads it, to send over an interface of the calling thread's namespace.
    ///
    /// # Errors
    /// Where there is no such interface, privileges are missing, or the frame is none that it knows.
    pub fn load(flood: &Flood, interface: &str) -> Result<Self, DatapathError> {
        let found = interface::named(interface).context("list the network interfaces")?;
        let index = found.with_context(|| format!("no interface {interface}"))?.index;
        let sums = Sums::of(&flood.frame, flood.connections.is_some())?;
        let (high, low) = words(flood.sources.first);
        let (others_high, others_low) = flood.others.as_ref().map_or((0, 0), |others| words(others.first));
        let (sources_mask, half_bits) = (mask(&flood.sources), u32::from(flood.sources.bits / 2).max(1));
        let others_mask = flood.others.as_ref().map_or(0, mask);
        let is_ipv6 = u8::from(sums.is_ipv6);
        let is_udp = u8::from(sums.is_udp);
        let is_picked = u8::from(matches!(flood.sources.order, Order::Picked(_)));
        let is_of_prefixes = u8::from(flood.sources.host_bits == 64);
        let is_mixed = u8::from(flood.others.is_some());
        let is_of_connections = u8::from(flood.connections.is_some());
        let open = flood.connections.as_ref().map_or(&[][..], |connections| &connections.all);
        let connections_bits = connections_bits(open)?;
        let sources_mask = if open.is_empty() { sources_mask } else { (1 << connections_bits) - 1 };
        let step = flood.connections.as_ref().map_or(0, |connections| connections.step);
        let mut loader = EbpfLoader::new();
        loader
            .override_global("INTERFACE", &index, true)
            .override_global("IS_IPV6", &is_ipv6, true)
            .override_global("IS_UDP", &is_udp, true)
            .override_global("IS_PICKED", &is_picked, true)
            .override_global("HEADER_SUM", &sums.header, true)
            .override_global("PAYLOAD_SUM", &sums.payload, true)
            .override_global("BASE_HIGH", &high, true)
            .override_global("BASE_LOW", &low, true)
            .override_global("MASK", &sources_mask, true)
            .override_global("HALF_BITS", &half_bits, true)
            .override_global("IS_OF_PREFIXES", &is_of_prefixes, true)
            .override_global("IS_MIXED", &is_mixed, true)
            .override_global("OTHERS_BASE_HIGH", &others_high, true)
            .override_global("OTHERS_BASE_LOW", &others_low, true)
            .override_global("OTHERS_MASK", &others_mask, true)
            .override_global("IS_OF_CONNECTIONS", &is_of_connections, true)
            .override_global("CONNECTIONS_BITS", &connections_bits, true)
            .override_global("STEP", &step, true);
        let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/generator"));
        let ebpf = loader.load(object).context("read the generator")?;
        let mut generator = Self { ebpf, frame: flood.frame.clone() };
        if let Order::Picked(picks) = &flood.sources.order {
            generator.write(picks)?;
        }
        generator.write_connections(open)?;
        generator.program()?.load().context("load the generator")?;
        Ok(generator)
    }

    /// Sends so many frames, on this thread's CPU, and returns when all are on their way. The thread is in the
    /// namespace of the interface.
    ///
    /// # Errors
    /// Where the kernel does not send live frames (before Linux 5.18).
    pub fn send(&mut self, frames: u32) -> Result<(), DatapathError> {
        let frame = std::mem::take(&mut self.frame);
        let options = TestRunOptions {
            data_in: Some(&frame),
            repeat: frames,
            attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
            ..TestRunOptions::default()
        };
        let sent = self.program().and_then(|program| Ok(program.test_run(options).context("send live frames")?));
        self.frame = frame;
        sent.map(|_| ())
    }

    fn write(&mut self, picks: &[u32]) -> Result<(), DatapathError> {
        let map = self.ebpf.map_mut(PICKS).with_context(|| format!("the object has no map {PICKS}"))?;
        let mut map: Array<_, u32> = Array::try_from(map).with_context(|| format!("open {PICKS}"))?;
        for (at, pick) in (0..PICKS_LEN).zip(picks.iter().cycle()) {
            map.set(at, pick, 0).with_context(|| format!("write {PICKS}"))?;
        }
        Ok(())
    }

    fn write_connections(&mut self, open: &[OpenConnection]) -> Result<(), DatapathError> {
        let map = self.ebpf.map_mut(CONNECTIONS).with_context(|| format!("the object has no map {CONNECTIONS}"))?;
        let mut map: Array<_, [u32; 3]> = Array::try_from(map).with_context(|| format!("open {CONNECTIONS}"))?;
        for (at, one) in (0..).zip(open) {
            let words = [one.source_port.into(), one.sequence, one.acknowledged];
            map.set(at, words, 0).with_context(|| format!("write {CONNECTIONS}"))?;
        }
        Ok(())
    }

    fn program(&mut self) -> Result<&mut Xdp, DatapathError> {
        let program = self.ebpf.program_mut(NAME).with_context(|| format!("find program {NAME}"))?;
        Ok(program.try_into().context("the generator is no XDP program")?)
    }
}

fn connections_bits(open: &[OpenConnection]) -> Result<u32, DatapathError> {
    let check = || {
        let is_power = open.is_empty() || open.len().is_power_of_two();
        ensure!(is_power && open.len() <= CONNECTIONS_MAX, "{} connections are not in turn", open.len());
        Ok(open.len().max(1).trailing_zeros())
    };
    Ok(check()?)
}

fn mask(sources: &Sources) -> u32 {
    u32::try_from((1_u64 << sources.bits.min(32)) - 1).unwrap_or(u32::MAX)
}

/// An address's halves in host order; of IPv4 the high one is 0.
fn words(address: IpAddr) -> (u64, u64) {
    match address {
        IpAddr::V4(address) => (0, u32::from(address).into()),
        IpAddr::V6(address) => {
            let bytes = address.octets();
            let half = |at: usize| bytes[at..at + 8].iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
            (half(0), half(8))
        }
    }
}

/// What a frame's checksums are made of, without what a source says.
#[derive(Debug, PartialEq, Eq)]
struct Sums {
    is_ipv6: bool,
    is_udp: bool,
    /// Of the IPv4 header.
    header: u32,
    /// Of the segment or datagram and the pseudo-header.
    payload: u32,
}

impl Sums {
    /// `is_of_connections`: its numbers are written anew as well.
    fn of(frame: &[u8], is_of_connections: bool) -> Result<Self, DatapathError> {
        let ether_type = frame.get(12..14).context("a frame has an Ethernet header")?;
        let is_ipv6 = ether_type == IPV6;
        let (header_len, proto_at, destination) = if is_ipv6 { (40, 6, 24..40) } else { (20, 9, 16..20) };
        let packet = &frame[ETHERNET_LEN..];
        ensure_len(packet, header_len + 20)?;
        let (header, rest) = packet.split_at(header_len);
        let len_at = if is_ipv6 { 4 } else { 2 };
        let said = usize::from(u16::from_be_bytes([header[len_at], header[len_at + 1]]));
        let payload_len = if is_ipv6 { said } else { said - header_len };
        ensure_len(rest, payload_len)?;
        let (proto, mut payload) = (header[proto_at], rest[..payload_len].to_vec());
        let is_udp = proto == UDP;
        payload[..2].fill(0);
        if is_of_connections {
            payload[4..12].fill(0);
        }
        let checksum_at = if is_udp { 6 } else { 16 };
        payload[checksum_at..checksum_at + 2].fill(0);
        let mut without_source = header.to_vec();
        if !is_ipv6 {
            without_source[10..16].fill(0);
        }
        let pseudo = [&[0, proto], (u16::try_from(payload_len).unwrap_or(0)).to_be_bytes().as_slice()].concat();
        let payload = sum(&payload) + sum(&pseudo) + sum(&header[destination]);
        Ok(Self { is_ipv6, is_udp, header: sum(&without_source), payload })
    }
}

fn ensure_len(bytes: &[u8], len: usize) -> Result<(), DatapathError> {
    let check = || {
        ensure!(bytes.len() >= len, "the frame is too short");
        Ok(())
    };
    Ok(check()?)
}

/// Of 16-bit words as this machine reads them: a checksum so summed is written likewise (RFC 1071, 2 B).
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(u16::from_ne_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A SYN from 198.51.100.7:40000 to 192.0.2.1:80, its checksums written.
    const SYN: [u8; 54] = [
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, // Ethernet
        0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0x8c, 0x93, 198, 51, 100, 7, 192, 0, 2, 1, // IPv4
        0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0, // TCP
    ];

    fn folded(mut sum: u32) -> u16 {
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !u16::try_from(sum).unwrap()
    }

    #[test]
    fn a_sum_and_what_the_source_adds_are_the_checksum_of_the_header() {
        let sums = Sums::of(&SYN, false).unwrap();
        let source = sum(&SYN[26..30]);
        let header: u32 = sum(&SYN[14..24]) + sum(&SYN[26..34]);
        assert_eq!(folded(sums.header + source), folded(header));
        assert!(!sums.is_ipv6 && !sums.is_udp);
    }

    #[test]
    fn a_segments_sum_leaves_out_its_source_port_and_checksum() {
        let sums = Sums::of(&SYN, false).unwrap();
        let with_other = |at: usize, byte: u8| {
            let mut frame = SYN;
            frame[at] ^= byte;
            Sums::of(&frame, false).unwrap()
        };
        assert_eq!(sums, with_other(34, 1));
        assert_eq!(sums, with_other(50, 1));
        assert_eq!(sums, with_other(29, 1));
        assert_ne!(sums, with_other(37, 1));
        assert_ne!(sums, with_other(33, 1));
    }

    #[test]
    fn a_connections_numbers_are_in_its_segments_sum_unless_they_are_written_anew() {
        for at in [38, 41, 42, 45] {
            let mut frame = SYN;
            frame[at] ^= 1;
            let sums = |is_of_connections| [SYN, frame].map(|frame| Sums::of(&frame, is_of_connections).unwrap());
            let ([before, after], [same, again]) = (sums(false), sums(true));
            assert_ne!(before, after, "byte {at}");
            assert_eq!(same, again, "byte {at}");
        }
    }

    #[test]
    fn connections_are_a_power_of_two_and_no_more_than_the_capacity() {
        let open = |count| vec![OpenConnection { source_port: 1, sequence: 2, acknowledged: 3 }; count];
        assert_eq!([0, 1, 64, 1024].map(|count| connections_bits(&open(count)).unwrap()), [0, 0, 6, 10]);
        assert!([3, 63, 2048].into_iter().all(|count| connections_bits(&open(count)).is_err()));
    }

    #[test]
    fn addresses_are_words_in_host_order() {
        assert_eq!(words("10.0.0.1".parse().unwrap()), (0, 0x0a00_0001));
        assert_eq!(words("2001:db8:1:2::7".parse().unwrap()), (0x2001_0db8_0001_0002, 7));
    }

    #[test]
    fn a_frame_that_is_cut_off_is_refused() {
        assert!(Sums::of(&SYN[..53], false).is_err());
        assert!(Sums::of(&[0; 10], false).is_err());
    }
}
