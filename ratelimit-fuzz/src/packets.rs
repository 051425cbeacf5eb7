//! Fuzz targets for packets: a single frame, and a conversation.

use ratelimit_common::layout::Unit;
use ratelimit_common::packet::{Packet, Parsed, Target, parse};
use ratelimit_common::source::Address;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_common::verdict::{Action, Reason};
use ratelimit_policy::fixture::{limit, policy};
use ratelimit_report::replay::{Kind, Replay};

use crate::WORKS;

/// Limit of the test policy, in requests or connections.
const MAX: u64 = 3;

/// Parses a frame. Checks that the packet lies within the frame, and that padding after the packet changes nothing.
pub(crate) fn frame(bytes: &[u8]) {
    let parsed = parse(&bytes);
    if let Parsed::Ip(Packet { target: Target::Tcp { segment, .. }, .. }) = parsed {
        assert!(segment.payload_bytes <= 0xffff, "{segment:?}");
    }
    // Bytes after the packet's length are padding.
    if let Parsed::Ip(packet) = parsed {
        assert!(packet.ip_bytes as usize <= bytes.len(), "{packet:?} of {} bytes", bytes.len());
        let mut longer = bytes.to_vec();
        longer.extend([0x5a; 7]);
        let Parsed::Ip(again) = parse(&longer.as_slice()) else { panic!("{packet:?} is none with padding behind it") };
        assert_eq!((again.source, again.destination), (packet.source, packet.destination));
        // A jumbogram has no length field, so the whole frame belongs to it.
        let is_jumbogram = matches!(packet.source, Address::V6(_)) && again.ip_bytes == packet.ip_bytes + 7;
        assert!(again.ip_bytes == packet.ip_bytes || is_jumbogram, "{packet:?}, with padding {again:?}");
    }
}

/// Decodes the bytes as segments between a client and a server, reordered and repeated. A connection limit must never
/// admit more connections than its amount. A request limit must not panic.
pub(crate) fn conversation(bytes: &[u8]) {
    for unit in [Unit::Connections, Unit::Requests] {
        let mut replay = Replay::new(&policy(vec![limit(MAX, unit)]), Kind::Capture).expect(WORKS);
        let mut bytes = bytes;
        let mut opened = 0;
        let (mut at, mut sequences) = (Nanos(1_800_000_000 * SECOND_NS), [1_000_u32, 9_000]);
        while let Some((step, rest)) = bytes.split_first_chunk::<6>() {
            bytes = rest;
            let [kind, flags, back, ahead, len, pause] = *step;
            let of_client = kind & 1 == 0;
            let payload;
            (payload, bytes) = bytes.split_at(usize::from(len).min(bytes.len()));
            let (from, to) = if of_client { (0, 1) } else { (1, 0) };
            let sequence = sequences[from].wrapping_sub(u32::from(back)).wrapping_add(u32::from(ahead) << 2);
            let segment = Segment {
                of_client,
                port: 40_000 + u16::from(kind >> 6),
                sequence,
                acknowledged: sequences[to],
                flags,
            };
            let frame = segment.around(payload);
            at = Nanos(at.0 + u64::from(pause) * 1_000_000);
            let reason = replay.frame(at, &frame.as_slice());
            let passes = reason.action() == Action::Pass;
            // A replay drops nothing: a packet over the limit passes with the reason DryRun.
            opened += u64::from(of_client && flags & 0x12 == 0x02 && passes && reason != Reason::DryRun);
            if passes && back == 0 {
                let of_syn = u32::from(flags & 0x03 != 0);
                sequences[from] = sequence.wrapping_add(u32::try_from(payload.len()).unwrap_or(0)).wrapping_add(of_syn);
            }
        }
        // The window never expires: 4096 bytes, the maximum for a target, are 682 steps of 255 ms, so 174 s of five
        // minutes.
        assert!(unit != Unit::Connections || opened <= MAX, "{opened} connections of {MAX}");
    }
}

struct Segment {
    of_client: bool,
    port: u16,
    sequence: u32,
    acknowledged: u32,
    flags: u8,
}

impl Segment {
    fn around(&self, payload: &[u8]) -> Vec<u8> {
        let (client, server) = (([198, 51, 100, 7], self.port), ([192, 0, 2, 1], 80));
        let (from, to) = if self.of_client { (client, server) } else { (server, client) };
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let len = u16::try_from(40 + payload.len()).unwrap_or(u16::MAX);
        frame.extend([0x45, 0]);
        frame.extend(len.to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        frame.extend(from.0);
        frame.extend(to.0);
        frame.extend(from.1.to_be_bytes());
        frame.extend(to.1.to_be_bytes());
        frame.extend(self.sequence.to_be_bytes());
        frame.extend(self.acknowledged.to_be_bytes());
        frame.extend([0x50, self.flags, 0xfa, 0xf0, 0, 0, 0, 0]);
        frame.extend(payload);
        frame
    }
}
