//! Map keys of sources, flows, connections and prefixes, and the map values of sources and prefixes.

use super::RuleSet;
use crate::access;
use crate::refusals::Refusals;
use crate::window::CELLS;

/// Key of an IPv4 source in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SourceKeyV4 {
    /// Address cut to the prefix, network order.
    pub prefix: [u8; 4],
    /// Value of [`Limit::slot`](super::Limit::slot).
    pub slot: u32,
}

const _: () = assert!(size_of::<SourceKeyV4>() == 8);

/// Key of an IPv6 source of at most 64 bits in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SourceKeyV6 {
    /// Upper half of the address cut to the prefix, network order.
    pub prefix: [u8; 8],
    /// Value of [`Limit::slot`](super::Limit::slot).
    pub slot: u32,
}

const _: () = assert!(size_of::<SourceKeyV6>() == 12);

/// Key of an IPv6 source of more than 64 bits in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SourceKeyV6Wide {
    /// Address cut to the prefix, network order.
    pub prefix: [[u8; 8]; 2],
    /// Value of [`Limit::slot`](super::Limit::slot).
    pub slot: u32,
}

const _: () = assert!(size_of::<SourceKeyV6Wide>() == 20);

/// Window of one source.
///
/// The kernel puts 48 bytes of its own and the key before the value. With an 8-byte key, an element is 128 bytes, two
/// cache lines, and the cells are the whole second line (`struct htab_elem`, kernel/bpf/hashtab.c, Linux 6.18).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Source {
    /// Number of packets that this window refused, dry run included, and the bucket of the newest refusal.
    pub refused: Refusals,
    /// Cells of the window, see [`crate::window`].
    pub cells: [u64; CELLS],
}

const _: () = assert!(size_of::<Source>() == 72);

/// Key of a UDP flow over IPv4. Addresses are whole, whatever the prefix of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C, align(4))]
pub struct FlowKeyV4 {
    /// Source address, network order.
    pub address: [u8; 4],
    /// Source port, host order.
    pub source_port: u16,
    /// Destination port, host order.
    pub port: u16,
}

const _: () = assert!(size_of::<FlowKeyV4>() == 8);

/// Key of a UDP flow over IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C, align(4))]
pub struct FlowKeyV6 {
    /// Source address, network order.
    pub address: [[u8; 8]; 2],
    /// Source port, host order.
    pub source_port: u16,
    /// Destination port, host order.
    pub port: u16,
}

const _: () = assert!(size_of::<FlowKeyV6>() == 20);

/// Key of a TCP connection over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C, align(4))]
pub struct ConversationKeyV4 {
    /// Source address, network order.
    pub source: [u8; 4],
    /// Destination address, network order.
    pub destination: [u8; 4],
    /// Source port, host order.
    pub source_port: u16,
    /// Destination port, host order.
    pub port: u16,
}

const _: () = assert!(size_of::<ConversationKeyV4>() == 12);

/// Key of a TCP connection over IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C, align(4))]
pub struct ConversationKeyV6 {
    /// Source address, network order.
    pub source: [[u8; 8]; 2],
    /// Destination address, network order.
    pub destination: [[u8; 8]; 2],
    /// Source port, host order.
    pub source_port: u16,
    /// Destination port, host order.
    pub port: u16,
}

const _: () = assert!(size_of::<ConversationKeyV6>() == 36);

/// Bits of a prefix's key before its address: the generation, as a word.
pub const GENERATION_BITS: u32 = 32;

/// Data of an IPv4 prefix, after the trie's own length: the generation, then the address in network order. A prefix of
/// n bits has length [`GENERATION_BITS`] + n.
pub type PrefixKeyV4 = [u32; 2];

/// Data of an IPv6 prefix, in the format of [`PrefixKeyV4`].
pub type PrefixKeyV6 = [u32; 5];

/// Facts about the sources that are in one prefix and in no longer one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Prefix {
    /// Rules for the packets of these sources, in addition to those for all sources.
    pub rules: RuleSet,
    /// Grants and denials that override the limits for these sources.
    pub access: [access::Step; access::STEPS],
}

const _: () = assert!(size_of::<Prefix>() == 8 + 8 * access::STEPS);
