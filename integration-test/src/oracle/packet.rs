//! A packet, and what becomes of it.

use std::net::IpAddr;

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Who sent it.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
    /// Length of the IP packet.
    pub bytes: u64,
    /// What it is.
    pub kind: Kind,
    /// What is behind the headers of TCP or UDP.
    pub payload: Vec<u8>,
    /// It is one of TCP or UDP, whole, and nothing is before that but an address header of the usual length: no tag,
    /// option or extension.
    pub is_plain: bool,
    /// True for a segment with FIN or RST.
    pub closes: bool,
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A TCP segment, which opens a connection or does not.
    Tcp {
        /// Source port.
        source_port: u16,
        /// Destination port.
        port: u16,
        /// SYN without ACK.
        opens: bool,
        /// Number of the payload's first byte.
        sequence: u32,
        /// How much its sender says to have heard; 0 where it says nothing of that.
        acknowledged: u32,
        /// The rest of the segment is in other packets.
        is_fragment: bool,
    },
    /// A UDP datagram.
    Udp {
        /// Source port.
        source_port: u16,
        /// Destination port.
        port: u16,
        /// Whether it begins with a QUIC Initial.
        quic_initial: bool,
    },
    /// A fragment without ports.
    Fragment {
        /// It may bring requests.
        may_be_tcp: bool,
    },
    /// What may be anything, to any port.
    Unparsable,
    /// Neighbour discovery and ICMP errors.
    ControlTraffic,
    /// Other protocols.
    Other,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// Passed: no rule is for it.
    NotProtected,
    /// Passed: no limit counts it.
    NotCounted,
    /// Passed and charged.
    WithinLimit,
    /// Passed: exempt.
    Exempt,
    /// Passed, but would have been dropped.
    DryRun,
    /// Dropped.
    OverLimit,
    /// Dropped.
    Banned,
    /// Dropped.
    Denied,
    /// Dropped: it cannot be told what it is.
    TooManyHeaders,
}

impl Outcome {
    /// The word for it in the project's list of reasons.
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

    /// Whether the packet passes.
    pub const fn passes(self) -> bool {
        match self {
            Self::NotProtected | Self::NotCounted | Self::WithinLimit | Self::Exempt | Self::DryRun => true,
            Self::OverLimit | Self::Banned | Self::Denied | Self::TooManyHeaders => false,
        }
    }
}
