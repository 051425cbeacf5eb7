//! Packets as the oracle sees them, and their outcomes.

use std::net::IpAddr;

/// Packet as the oracle sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source address of the packet.
    pub source: IpAddr,
    /// Destination address of the packet.
    pub destination: IpAddr,
    /// Length of the IP packet in bytes.
    pub bytes: u64,
    /// Protocol and ports.
    pub kind: Kind,
    /// Payload behind the TCP or UDP header.
    pub payload: Vec<u8>,
    /// True for a whole TCP or UDP packet with only an address header of the usual length before it: no tag, option or
    /// extension.
    pub is_plain: bool,
    /// True for a segment with FIN or RST.
    pub closes: bool,
}

/// Protocol and ports of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A TCP segment, whether it opens a connection or not.
    Tcp {
        /// Source port of the segment.
        source_port: u16,
        /// Destination port of the segment.
        port: u16,
        /// SYN without ACK.
        opens: bool,
        /// Sequence number of the payload's first byte.
        sequence: u32,
        /// Acknowledgement number, or 0 without one.
        acknowledged: u32,
        /// The rest of the segment is in other packets.
        is_fragment: bool,
    },
    /// A whole UDP datagram.
    Udp {
        /// Source port of the datagram.
        source_port: u16,
        /// Destination port of the datagram.
        port: u16,
        /// The datagram begins with a QUIC Initial.
        quic_initial: bool,
    },
    /// A fragment without ports.
    Fragment {
        /// The fragment may carry requests.
        may_be_tcp: bool,
    },
    /// A packet of unknown protocol, to any port.
    Unparsable,
    /// Neighbour discovery and ICMP errors.
    ControlTraffic,
    /// Any other protocol.
    Other,
}

/// Treatment of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// Passed because no rule applies.
    NotProtected,
    /// Passed because no limit counts it.
    NotCounted,
    /// Passed and charged to a limit.
    WithinLimit,
    /// Passed because its source is exempt.
    Exempt,
    /// Passed, but would have been dropped.
    DryRun,
    /// Dropped because its source is over a limit.
    OverLimit,
    /// Dropped because its source is banned.
    Banned,
    /// Dropped because its source is denied.
    Denied,
    /// Dropped because its protocol cannot be determined.
    TooManyHeaders,
}

impl Outcome {
    /// Returns the outcome's label in the project's list of reasons.
    pub const fn word(self) -> &'static str {
        match self {
            Self::NotProtected => "not_protected",
            Self::NotCounted => "not_counted",
            Self::WithinLimit => "within_limit",
            Self::Exempt => "exempt",
            Self::DryRun => "dry_run",
            Self::OverLimit => "over_limit",
            Self::Banned => "banned",
            Self::Denied => "denied",
            Self::TooManyHeaders => "too_many_headers",
        }
    }

    /// Returns whether the packet passes.
    pub const fn passes(self) -> bool {
        match self {
            Self::NotProtected | Self::NotCounted | Self::WithinLimit | Self::Exempt | Self::DryRun => true,
            Self::OverLimit | Self::Banned | Self::Denied | Self::TooManyHeaders => false,
        }
    }
}
