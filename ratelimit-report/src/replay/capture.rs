//! Captures in pcap and pcapng, read as a stream of frames with times, in bounded memory.

use std::io::Read as IoRead;

use pcap_parser::traits::{PcapNGPacketBlock as _, PcapReaderIterator};
use pcap_parser::{Block, LegacyPcapReader, Linktype, PcapBlockOwned, PcapError, PcapHeader, PcapNGReader};
use ratelimit_common::conversation::Walk;
use ratelimit_common::packet::Frame;
use ratelimit_common::time::{Nanos, SECOND_NS};

use super::Read;

/// Size of the read buffer in bytes. It grows for longer blocks.
const BUFFER_BYTES: usize = 1 << 20;

/// Maximum length of a block in bytes. A longer one means that the file is damaged.
const BLOCK_BYTES_MAX: usize = 1 << 26;

/// Length of an Ethernet header, which the parser expects and which is added to raw IP frames.
const ETHERNET_HEADER_LEN: usize = 14;

/// Length of the header of a Linux cooked capture, version 1.
const LINUX_COOKED_LEN: usize = 16;
const LINUX_COOKED_2_LEN: usize = 20;

/// Format of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The older format, pcap.
    Legacy,
    /// The newer format, pcapng.
    NextGeneration,
}

impl Format {
    /// Recognizes the format from the first bytes of a file.
    pub fn of(start: &[u8]) -> Option<Self> {
        match start.first_chunk()? {
            [0x0a, 0x0d, 0x0d, 0x0a] => Some(Self::NextGeneration),
            [0xa1, 0xb2, 0xc3, 0xd4]
            | [0xd4, 0xc3, 0xb2, 0xa1]
            | [0xa1, 0xb2, 0x3c, 0x4d]
            | [0x4d, 0x3c, 0xb2, 0xa1] => Some(Self::Legacy),
            _ => None,
        }
    }
}

/// Reason why nothing of a capture can be replayed.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The header of the file is incomplete or invalid.
    #[error("its header is damaged or cut off")]
    Header,
    /// The link type of the capture is not supported.
    #[error("it was captured on a link of type {0}, and only Ethernet, raw IP and Linux cooked captures can be read")]
    Link(i32),
    /// Reading the input failed.
    #[error("it cannot be read")]
    Read,
}

/// Frame format of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Ethernet,
    Ip,
    /// Linux cooked, version 1.
    Cooked,
    Cooked2,
    Other(i32),
}

impl Link {
    /// Maps a link type of <https://www.tcpdump.org/linktypes.html>. Some systems write their own numbers 12 and 14 for
    /// raw IP.
    const fn of(linktype: Linktype) -> Self {
        match linktype.0 {
            1 => Self::Ethernet,
            12 | 14 | 101 | 228 | 229 => Self::Ip,
            113 => Self::Cooked,
            276 => Self::Cooked2,
            other => Self::Other(other),
        }
    }
}

/// Interface of the capture.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: Link,
    /// Units of a timestamp per second.
    resolution: u64,
    /// Seconds to add to a timestamp.
    offset: i64,
}

/// Frame in the form that the parser expects: from an Ethernet header on, with its length on the wire.
pub(super) struct Captured<'a> {
    pub(super) header: [u8; ETHERNET_HEADER_LEN],
    pub(super) packet: &'a [u8],
    /// Length of header and packet on the wire, which may exceed the captured bytes.
    pub(super) len: usize,
}

impl Walk for Captured<'_> {}

impl Frame for Captured<'_> {
    fn bytes<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for (at, byte) in (offset..).zip(&mut bytes) {
            *byte = match at.checked_sub(ETHERNET_HEADER_LEN) {
                None => *self.header.get(at)?,
                Some(at) => *self.packet.get(at)?,
            };
        }
        Some(bytes)
    }

    fn len(&self, _: usize) -> usize {
        self.len
    }
}

impl<'a> Captured<'a> {
    /// Creates a frame of `wire_len` bytes on the link, of which `data` was captured. Fails if a header is incomplete.
    fn new(link: Link, data: &'a [u8], wire_len: usize) -> Option<Self> {
        let ethernet = |ether_type: [u8; 2]| {
            let mut header = [0; ETHERNET_HEADER_LEN];
            header[12..].copy_from_slice(&ether_type);
            header
        };
        let (header, skipped) = match link {
            Link::Ethernet => (*data.first_chunk()?, ETHERNET_HEADER_LEN),
            Link::Ip => match data.first()? >> 4 {
                4 => (ethernet([0x08, 0x00]), 0),
                6 => (ethernet([0x86, 0xdd]), 0),
                _ => return None,
            },
            Link::Cooked => (ethernet(*data.get(14..)?.first_chunk()?), LINUX_COOKED_LEN),
            Link::Cooked2 => (ethernet(*data.first_chunk()?), LINUX_COOKED_2_LEN),
            Link::Other(_) => return None,
        };
        let packet = data.get(skipped..)?;
        Some(Self { header, packet, len: ETHERNET_HEADER_LEN + wire_len.checked_sub(skipped)? })
    }
}

/// Capture that is being read, with its next frame.
pub(super) struct CaptureStream {
    reader: Box<dyn PcapReaderIterator + Send>,
    buffer_bytes: usize,
    reading: Reading,
    /// Reason why the rest of the capture cannot be read.
    why: Option<&'static str>,
}

impl CaptureStream {
    /// Creates a stream over a file in this format, from its beginning.
    pub(super) fn new(format: Format, input: Box<dyn IoRead + Send>) -> Result<Self, CaptureError> {
        let reader: Box<dyn PcapReaderIterator + Send> = match format {
            Format::Legacy => Box::new(LegacyPcapReader::new(BUFFER_BYTES, input).map_err(|error| beginning(&error))?),
            Format::NextGeneration => {
                Box::new(PcapNGReader::new(BUFFER_BYTES, input).map_err(|error| beginning(&error))?)
            }
        };
        Ok(Self { reader, buffer_bytes: BUFFER_BYTES, reading: Reading::default(), why: None })
    }

    /// Returns the next frame and its time, if [`Self::advance`] has found one.
    pub(super) fn next(&self) -> Option<(Nanos, Captured<'_>)> {
        let next = &self.reading.next;
        Some((next.at?, Captured { header: next.header, packet: &next.packet, len: next.len }))
    }

    /// Reads on to the next frame and skips everything else.
    pub(super) fn advance(&mut self) -> Result<(), CaptureError> {
        self.reading.next.at = None;
        while self.reading.next.at.is_none() && self.why.is_none() {
            match self.reader.next() {
                Ok((len, block)) => {
                    self.reading.block(&block)?;
                    self.reader.consume(len);
                    continue;
                }
                Err(PcapError::Incomplete(_)) => {}
                Err(PcapError::BufferTooSmall) if self.buffer_bytes < BLOCK_BYTES_MAX => {
                    self.buffer_bytes *= 2;
                    if !self.reader.grow(self.buffer_bytes) {
                        self.why = Some("a packet in it is too long");
                        continue;
                    }
                }
                Err(PcapError::Eof) => return Ok(()),
                Err(PcapError::ReadError) => return Err(CaptureError::Read),
                Err(PcapError::UnexpectedEof) => {
                    self.why = Some("it ends in the middle of a packet");
                    continue;
                }
                Err(_) => {
                    self.why = Some("the rest of it is damaged");
                    continue;
                }
            }
            self.reader.refill().map_err(|_| CaptureError::Read)?;
        }
        Ok(())
    }

    /// Returns counts and warnings about what was read.
    pub(super) fn finish(self) -> Result<Read, CaptureError> {
        self.reading.finish(self.why)
    }
}

fn beginning(error: &PcapError<&[u8]>) -> CaptureError {
    if matches!(error, PcapError::ReadError) { CaptureError::Read } else { CaptureError::Header }
}

/// State of a capture as far as it was read.
#[derive(Default)]
struct Reading {
    read: Read,
    interfaces: Vec<Interface>,
    /// Link types that cannot be read, each once.
    other_links: Vec<i32>,
    /// Number of packets without a time.
    untimed: u64,
    next: Next,
}

/// Next frame; there is none if `at` is none.
#[derive(Default)]
struct Next {
    at: Option<Nanos>,
    header: [u8; ETHERNET_HEADER_LEN],
    packet: Vec<u8>,
    len: usize,
}

impl Reading {
    fn block(&mut self, block: &PcapBlockOwned<'_>) -> Result<(), CaptureError> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                let interface = of_header(header);
                if let Link::Other(link) = interface.link {
                    return Err(CaptureError::Link(link));
                }
                self.interfaces = vec![interface];
            }
            PcapBlockOwned::Legacy(packet) => {
                let fraction = u64::from(packet.ts_usec);
                let resolution = self.interfaces.first().map_or(1_000_000, |of| of.resolution);
                let ticks = u64::from(packet.ts_sec).saturating_mul(resolution).saturating_add(fraction);
                self.packet(0, Some(ticks), packet.data, packet.origlen);
            }
            // Each section has its own interfaces.
            PcapBlockOwned::NG(Block::SectionHeader(_)) => self.interfaces.clear(),
            PcapBlockOwned::NG(Block::InterfaceDescription(of)) => {
                let resolution = of.ts_resolution().filter(|resolution| *resolution > 0).unwrap_or(1_000_000);
                self.interfaces.push(Interface { link: Link::of(of.linktype), resolution, offset: of.ts_offset() });
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                let ticks = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                self.packet(packet.if_id as usize, Some(ticks), packet.packet_data(), packet.origlen);
            }
            PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
                self.packet(0, None, packet.packet_data(), packet.origlen)
            }
            PcapBlockOwned::NG(_) => {}
        }
        Ok(())
    }

    fn packet(&mut self, interface: usize, ticks: Option<u64>, data: &[u8], wire_len: u32) {
        self.read.items += 1;
        let Some(&interface) = self.interfaces.get(interface) else {
            self.read.unreadable += 1;
            return;
        };
        if let Link::Other(link) = interface.link {
            self.read.unreadable += 1;
            if !self.other_links.contains(&link) {
                self.other_links.push(link);
            }
            return;
        }
        let Some(ticks) = ticks else {
            self.read.unreadable += 1;
            self.untimed += 1;
            return;
        };
        // Some writers omit the length on the wire.
        let wire_len = (wire_len as usize).max(data.len());
        if wire_len > data.len() {
            self.read.cut_off += 1;
        }
        match Captured::new(interface.link, data, wire_len) {
            Some(Captured { header, packet, len }) => {
                let next = &mut self.next;
                next.packet.clear();
                next.packet.extend_from_slice(packet);
                (next.at, next.header, next.len) = (Some(interface.time(ticks)), header, len);
            }
            None => self.read.unreadable += 1,
        }
    }

    fn finish(mut self, why: Option<&str>) -> Result<Read, CaptureError> {
        if let Some(&link) = self.other_links.first()
            && self.read.unreadable == self.read.items
        {
            return Err(CaptureError::Link(link));
        }
        if let Some(why) = why {
            self.read.warnings.push(format!("the capture cannot be read behind packet {}: {why}", self.read.items));
        }
        if !self.other_links.is_empty() {
            let links: Vec<String> = self.other_links.iter().map(ToString::to_string).collect();
            self.read.warnings.push(format!("packets of links of type {} are left out", links.join(", ")));
        }
        if self.untimed > 0 {
            self.read.warnings.push(format!("{} packets without a time are left out", self.untimed));
        }
        self.read.formats = vec!["capture".to_owned()];
        Ok(self.read)
    }
}

fn of_header(header: &PcapHeader) -> Interface {
    let resolution = if header.is_nanosecond_precision() { SECOND_NS } else { 1_000_000 };
    // The upper four bits describe the frame check sequence.
    let link = Link::of(Linktype(header.network.0 & 0x0fff_ffff));
    Interface { link, resolution, offset: 0 }
}

impl Interface {
    fn time(self, ticks: u64) -> Nanos {
        let nanos = i128::from(ticks) * i128::from(SECOND_NS) / i128::from(self.resolution);
        let nanos = nanos + i128::from(self.offset) * i128::from(SECOND_NS);
        Nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_in_any_resolution() {
        let of = |resolution, offset| Interface { link: Link::Ethernet, resolution, offset };
        assert_eq!(of(1_000_000, 0).time(1_800_000_000_000_001), Nanos(1_800_000_000_000_001_000));
        assert_eq!(of(SECOND_NS, 0).time(1_800_000_000_000_000_001), Nanos(1_800_000_000_000_000_001));
        assert_eq!(of(1 << 10, 2).time(1 << 9), Nanos(2_500_000_000));
        assert_eq!(of(1, -5).time(3), Nanos(0));
    }

    #[test]
    fn frames_of_every_link_read_as_ethernet() {
        let ip = [0x45_u8, 1, 2, 3];
        let of = |link, data: &[u8]| {
            let frame = Captured::new(link, data, data.len()).expect("whole");
            (frame.bytes::<2>(12).expect("there"), frame.bytes::<4>(14).expect("there"), Frame::len(&frame, 0))
        };
        let cooked = [[0; 14].as_slice(), &[8, 0], &ip].concat();
        let cooked2 = [[8, 0].as_slice(), &[0; 18], &ip].concat();
        let ethernet = [[0; 12].as_slice(), &[8, 0], &ip].concat();
        for (link, data) in
            [(Link::Ip, ip.as_slice()), (Link::Cooked, &cooked), (Link::Cooked2, &cooked2), (Link::Ethernet, &ethernet)]
        {
            assert_eq!(of(link, data), ([8, 0], ip, 18), "{link:?}");
        }
        assert!(Captured::new(Link::Cooked, &cooked[..15], 15).is_none());
        assert!(Captured::new(Link::Ip, &[0x10], 1).is_none());
    }
}
