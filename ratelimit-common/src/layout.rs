//! What lies in the maps: names, capacities, keys and values, shared by both sides of the kernel boundary.
//!
//! Keys hold addresses in network order; counters and everything else are in host order. Nothing here has
//! hidden padding, and each size is asserted beside its type. A change of any layout raises [`VERSION`], which
//! is part of the pin path: pins of an earlier version are read as what they were, those of any other refused.

use crate::gcra::Rate;
use crate::hash::HashKey;
use crate::time::{Nanos, SECOND_NS};
use crate::verdict::Reason;
use crate::verification::{EvidenceNeeds, Side};
use crate::window;

mod active;
mod event;
mod faults;
mod groups;
mod keys;
pub mod map;
mod order;
mod prefix_filter;

pub use active::{Active, PrefixMiss};
pub use event::{EVENT_TALLIES, EVENTS_BYTES, EVENTS_MAX, EVENTS_OF_REFUSALS_BYTES, Event, STEPS_BYTES, Step};
pub use faults::{FAULTS_MAX, Fault, NOT_CACHED};
pub use groups::Group;
pub use keys::{
    ConversationKeyV4, ConversationKeyV6, FlowKeyV4, FlowKeyV6, GENERATION_BITS, Prefix, PrefixKeyV4, PrefixKeyV6,
    Source, SourceKeyV4, SourceKeyV6, SourceKeyV6Wide,
};
pub use order::ChargeOrder;
pub use prefix_filter::{PrefixFilter, shares_bits};

/// The layout's version, as in `/sys/fs/bpf/ratelimitd/v11`.
pub const VERSION: u32 = 13;

/// The XDP program's name.
pub const PROGRAM: &str = "ratelimitd";

/// The name of the program that charges a source without a packet, run by the daemon alone.
pub const CHARGE_PROGRAM: &str = "charge_source";

/// The read-only global that makes the program take its time from [`map::INJECTED_NOW`] (in [`crate::time::Nanos`]).
pub const CLOCK_IS_INJECTED: &str = "CLOCK_IS_INJECTED";

/// The read-only global of [`SocketFields`].
pub const SOCKET_FIELDS: &str = "SOCKET_FIELDS";

/// Where the fields of the kernel's own structures are that the program reads of a socket: bytes from their
/// beginnings, as the BTF of the kernel that runs says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SocketFields {
    /// 1: they are known. 0: nothing but a socket's state is read.
    pub are_known: u32,
    /// `tcp_sock.rcv_nxt`
    pub received: u32,
    /// `tcp_sock.rcv_wup`
    pub window_at: u32,
    /// `tcp_sock.rcv_wnd`
    pub window: u32,
    /// `tcp_sock.write_seq`
    pub said: u32,
    /// `tcp_sock.snd_una`
    pub unacknowledged: u32,
    /// `tcp_sock.max_window`
    pub peers_window_max: u32,
    /// `tcp_sock.bytes_received`
    pub bytes_received: u32,
    /// `tcp_request_sock.rcv_nxt`
    pub request_received: u32,
    /// `tcp_request_sock.snt_isn`
    pub request_said: u32,
}

/// The read-only global that is returned for a packet that passes: XDP_PASS, but where the benchmark measures the
/// program and not the network stack behind it.
pub const PASSED_ACTION: &str = "PASSED_ACTION";

/// The read-only global that is 1 where frames have an Ethernet header, of the program for TCX alone.
pub const HAS_LINK_HEADER: &str = "HAS_LINK_HEADER";

/// The read-only global that is 1 where events are sent: always, but where the benchmark measures what they cost.
pub const SENDS_EVENTS: &str = "SENDS_EVENTS";

/// Generations of the configuration: one that packets read, one that the daemon writes.
pub const GENERATIONS: u32 = 2;
/// The configuration by which [`CHARGE_PROGRAM`] charges, and no packet is judged: its first rule has one limit,
/// which admits everything.
pub const CHARGE_GENERATION: u32 = 2;
/// Elements of [`map::CONFIG`]: a power of two.
pub const CONFIGS: u32 = 4;
/// Interfaces that one daemon can protect.
pub const INTERFACES_MAX: usize = 16;
/// Rules in a configuration: as many as a [`RuleSet`] has bits.
pub const RULES_MAX: usize = 64;
/// Limits on one rule.
pub const LIMITS_MAX: usize = 4;
/// Shadow limits on one rule.
pub const SHADOWS_MAX: usize = 8;
/// UDP ports of one rule that speak QUIC.
pub const QUIC_PORTS_MAX: usize = 8;
/// Bans of growing length on one rule.
pub const BAN_STEPS_MAX: usize = crate::ban::STEPS_MAX;
/// Bans of each family: running, or ended and still kept. // 65536 x 96 B = 6 MB, in use or not
pub const BANS_CAPACITY: u32 = 65_536;
/// Prefixes of sources of each family in a configuration, where there is memory: the tries take it as they are filled.
/// // 1048576 x 216 B = 226 MB at the very most
pub const PREFIXES_MAX: u32 = 1 << 20;
/// Those of each family and generation in the tries: commands and safety have room beside the largest configuration.
pub const PREFIXES_CAPACITY: u32 = PREFIXES_MAX + (1 << 16);
/// Prefixes of destinations of each family and generation.
pub const TARGETS_MAX: u32 = 4_096;
/// UDP flows remembered where connections are counted. // 65536 x 72 B = 5 MB, 65536 x 88 B = 6 MB
pub const FLOWS_CAPACITY: u32 = 65_536;
/// TCP connections remembered of each family where requests are counted. // 131072 x 120 B = 16 MB, 131072 x 144 B =
/// 19 MB
pub const CONVERSATIONS_CAPACITY: u32 = 131_072;
/// Sets of [`map::DROP_CACHE`] unless the daemon says otherwise: a power of two. // 32768 x 64 B = 2 MB
pub const CACHE_SETS: u32 = 32_768;
/// Bits of [`map::DROP_SUMMARY`] for each set of [`map::DROP_CACHE`]. // 16 KB, so that it is in the nearest cache
pub const BITS_PER_SET: u32 = 4;
/// Sets of [`map::DROP_CACHE`] for each word of [`map::DROP_SUMMARY`].
pub const SETS_PER_WORD: u32 = 64 / BITS_PER_SET;
/// Sets of [`map::DROP_CACHE`] for each cell of [`map::CONN_FILTER`].
pub const SETS_PER_CONN_CELL: u32 = 2;
/// Words of [`map::PREFIX_MISSES`] for each set of [`map::DROP_CACHE`].
pub const PREFIX_MISSES_PER_SET: u32 = 4;
/// Sources remembered of each family unless the daemon says otherwise. // 262144 x 128 B = 34 MB
pub const SOURCES_CAPACITY: u32 = 262_144;
/// Reasons that the counters can hold.
pub const REASONS_MAX: usize = 24;

const _: () = assert!(Reason::ALL.len() <= REASONS_MAX);

/// Class of a port that no rule protects.
pub const CLASS_NONE: u8 = 0;
/// Classes of ports: ports of one class are protected by the same rules.
pub const CLASSES_MAX: usize = 256;

/// Rules, a bit each: the lowest is the first.
pub type RuleSet = u64;

/// One limit, as the packet path reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Limit {
    /// Admitted in a window, in the limit's unit.
    pub amount: u64,
    /// Length of a bucket in nanoseconds.
    pub bucket_ns: u64,
    /// Which window of a source this limit counts in; part of the state's key, stable over reloads and restarts.
    pub slot: u32,
    /// A [`Unit`] code.
    pub unit: u8,
    /// Full buckets before the current one that the sum takes in: B for the strict window, B - 1 for the lenient, 0
    /// for a fixed one.
    pub full_buckets: u8,
    /// The [`Side`]s whose steps are told to other hosts, a bit each, by code.
    pub told_sides: u8,
    /// 1: by [`crate::gcra`], with `bucket_ns` as the whole window. 0: by [`crate::window`].
    pub is_gcra: u8,
    /// At most so much in one bucket, see [`crate::window::BURST_ANY`]. With `is_gcra`:
    /// [`crate::gcra::Rate::burst_ns`].
    pub burst: u64,
    /// Of requests: [`crate::verification::guarded_segments`].
    pub guarded_segments: u32,
    /// What a cell's count is made of, which is the same on all sides.
    pub parts: window::Parts,
}

const _: () = assert!(size_of::<Limit>() == 40);

impl Limit {
    /// It as a window's on one of its sides, unless it is a leaky bucket.
    #[inline(always)]
    pub const fn arithmetic(&self, side: Side) -> window::Limit {
        window::Limit {
            amount: self.amount_on(side),
            full_buckets: self.full_buckets,
            parts: self.parts,
            burst: if side.is_guard() { window::BURST_ANY } else { self.burst },
        }
    }

    /// It as a leaky bucket on one of its sides, if it is one.
    #[inline(always)]
    pub const fn rate(&self, side: Side) -> Rate {
        let burst_ns = if side.is_guard() { self.bucket_ns } else { self.burst };
        Rate { amount: self.amount_on(side), window_ns: self.bucket_ns, burst_ns }
    }

    /// What it admits on one of its sides.
    #[inline(always)]
    pub const fn amount_on(&self, side: Side) -> u64 {
        match side {
            Side::Segments | Side::Datagrams => self.guarded_segments as u64,
            // Nothing is charged to the last one.
            Side::Unverified | Side::Verified | Side::Evidence | Side::Attempts | Side::Opened | Side::Repeated => {
                self.amount
            }
        }
    }
}

/// What one of a limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Unit {
    /// A TCP SYN without ACK, or what opens a UDP flow (see [`crate::flow`]).
    Connections = 1,
    /// An IP packet, fragments included.
    Packets = 2,
    /// A byte of an IP packet, headers included.
    Bytes = 3,
    /// What begins a new turn of a client's conversation (see [`crate::conversation`]).
    Requests = 4,
}

/// Code of requests that an access log counts and packets do not, in place of a [`Unit`].
pub const LOGGED_REQUESTS: u8 = 5;

impl Unit {
    /// The unit of a map's code.
    #[inline(always)]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Connections),
            2 => Some(Self::Packets),
            3 => Some(Self::Bytes),
            4 => Some(Self::Requests),
            _ => None,
        }
    }
}

/// What a rule does with what it refuses, other than to drop it: [`Rule::refuses`].
pub mod refuses {
    /// It passes as [`super::Reason::DryRun`]. No other is set then.
    pub const NOTHING: u8 = 1;
    /// By a reset, where its client is verified.
    pub const BY_RESET: u8 = 2;
    /// By a reset where it is a SYN, too: every interface is attached in native mode.
    pub const SYN_BY_RESET: u8 = 4;
    /// By a page where it is a request of HTTP/1 in the clear, else as [`BY_RESET`] has it, which is set too: likewise.
    pub const BY_PAGE: u8 = 8;
}

/// One rule, as the packet path reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Rule {
    /// The first `limits_len` of them hold, all at once: the first `own_len` the source, the others each the group
    /// that contains it. From [`LIMITS_MAX`] on, the first `shadows_len` are counted
    /// beside and never enforced.
    pub limits: [Limit; LIMITS_MAX + SHADOWS_MAX],
    /// How many limits there are.
    pub limits_len: u8,
    /// Some of [`refuses`]; 0: what it refuses is dropped.
    pub refuses: u8,
    /// 1: once over a limit, everything of the source to this rule's ports is dropped, counted or not.
    pub refuse_all: u8,
    /// 1: some limit counts connections, so UDP flows are looked up.
    pub counts_connections: u8,
    /// Its row of counters, which it keeps while its place among the rules changes.
    pub row: u8,
    /// How many shadow limits there are.
    pub shadows_len: u8,
    /// 1: some limit counts requests, so TCP connections and UDP flows are looked up. 2: and nothing else refuses, so
    /// a segment in which none begins passes.
    pub counts_requests: u8,
    /// What evidence it needs of its packets.
    pub evidence: EvidenceNeeds,
    /// Of which packets it checks first of all whether their source is known: some of
    /// [`crate::admission::known_first`].
    pub known_first: u32,
    /// 1: what cannot be parsed is judged as what opens a connection and asks for something. 0: it is dropped.
    pub counts_unparsable: u8,
    /// 1: its limits of requests hold connections too, and segments that begin none.
    pub guard: u8,
    /// 1: its one limit alone decides, see [`crate::hold::is_plain`].
    pub is_plain: u8,
    /// 1: an acknowledgement without payload is nothing to it, see [`crate::hold::ignores_acknowledgements`].
    pub ignores_acknowledgements: u8,
    /// UDP ports that speak QUIC, in host order; 0 is none.
    pub quic_ports: [u16; QUIC_PORTS_MAX],
    /// A hash of its name, by which the next configuration finds its row.
    pub name: u64,
    /// When it ends, and the rules after it judge instead; 0 is never.
    pub until_ns: u64,
    /// New sources that are admitted in a [`Rule::new_sources_ns`]; what they send beyond that is dropped. 0: any
    /// number.
    pub new_sources: u64,
    /// Nanoseconds.
    pub new_sources_ns: u64,
    /// How it bans.
    pub bans: crate::ban::Rule,
    /// Of the limit at the same position, where that is not of the source itself.
    pub groups: [Group; LIMITS_MAX],
    /// How many of its limits are of the source itself.
    pub own_len: u8,
    /// 1: its limits alone decide, see [`crate::hold::is_of_limits_alone`].
    pub is_of_limits_alone: u8,
    /// 1: a log of its server is read, so turns under TLS and QUIC are charged by [`crate::multiplicity`].
    pub has_log: u8,
    /// Zero.
    pub reserved: [u8; 5],
}

const _: () = assert!(
    size_of::<Rule>()
        == 40 * (LIMITS_MAX + SHADOWS_MAX) + 8 + 8 + 2 * QUIC_PORTS_MAX + 8 + 8 + 16 + 48 + 16 * LIMITS_MAX + 8
);

impl Rule {
    /// Whether some of its limits are of groups.
    #[inline(always)]
    pub const fn has_groups(&self) -> bool {
        self.own_len != self.limits_len
    }

    /// Whether what would be dropped passes as [`Reason::DryRun`].
    #[inline(always)]
    pub const fn is_dry_run(&self) -> bool {
        self.refuses & refuses::NOTHING != 0
    }

    /// Whether what is refused of a verified client is answered by a reset.
    #[inline(always)]
    pub const fn refuses_by_reset(&self) -> bool {
        self.refuses & refuses::BY_RESET != 0
    }

    /// Whether it drops the requests that it refuses, so that their clients send them again: a connection whose client
    /// gives up then is ended.
    #[inline(always)]
    pub const fn ends_abandoned(&self) -> bool {
        self.counts_requests != 0 && self.refuses == 0
    }

    /// Returns until when segments of a connection are dropped unseen whose request the rule has refused, in nanoseconds.
    /// `full_until_ns` is when the window frees; 0 if it has room, but not for so much. Then the connection is judged again
    /// in a second, and in half a second, however full the window is, if the rule ends connections whose clients wait.
    #[inline(always)]
    pub const fn shuts_until_ns(&self, now: Nanos, full_until_ns: u64) -> u64 {
        let ends_abandoned = self.ends_abandoned();
        let again_ns = now.0.wrapping_add(if ends_abandoned { SECOND_NS / 2 } else { SECOND_NS });
        if full_until_ns == 0 || ends_abandoned && full_until_ns > again_ns { again_ns } else { full_until_ns }
    }

    /// Whether its UDP port speaks QUIC.
    #[inline(always)]
    pub fn speaks_quic(&self, port: u16) -> bool {
        port != 0 && self.quic_ports.contains(&port)
    }
}

/// One generation of what every packet reads first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Config {
    /// Wall clock minus monotonic clock, nanoseconds, as it was when this state began, and what the machine was suspended
    /// since: the monotonic clock stands still then. It never follows a step of the wall clock.
    pub wall_offset_ns: u64,
    /// Of the hashes: secret, so that no sender chooses what shares a place. It stays as long as the maps do.
    pub seed: HashKey,
    /// [`HashKey::of_places`].
    pub places: u64,
    /// [`crate::source::ipv6_mask`].
    pub ipv6_mask: [u64; 2],
    /// [`crate::source::ipv4_mask`].
    pub ipv4_mask: u32,
    /// The number of the last set of [`map::DROP_CACHE`].
    pub sets_mask: u32,
    /// Insertions of one CPU in a period of [`crate::admission`] before it samples.
    pub insertions_max: u32,
    /// Insertions of one CPU, since the program was loaded, that are on no budget: the maps were empty.
    pub insertions_free: u32,
    /// For the daemon: one more than the seconds that the machine had been suspended since it booted, as `wall_offset_ns`
    /// has them; 0 is not known. Packets do not read it.
    pub suspended: u32,
    /// [`crate::admission::generation_shift`] of the longest window.
    pub generation_shift: u32,
    /// Indexes of the protected interfaces; 0 is unused. The position is the row of an interface in the counters.
    pub interfaces: [u32; INTERFACES_MAX],
    /// Which generation the prefixes of sources have: they change more seldom than the rest.
    pub prefixes_generation: u32,
    /// 0: there are no prefixes of IPv4 sources, which saves the look-up. 1: there are. 2: there are some that are
    /// part of a client.
    pub has_prefixes_v4: u8,
    /// Likewise of IPv6.
    pub has_prefixes_v6: u8,
    /// 1: there are prefixes of destinations; 0 saves the look-up.
    pub has_targets: u8,
    /// 1: IPv6 sources are in [`map::SOURCES_V6_WIDE`].
    pub ipv6_wide: u8,
    /// After this time packets read the other generation instead; 0 is never.
    pub until_ns: u64,
    /// Rules for what has no port to read: fragments after the first, and header chains too long to walk.
    pub portless_rules: RuleSet,
    /// Rules that count packets or bytes: what has no port and opens nothing is judged by the first of these before
    /// any other.
    pub volume_rules: RuleSet,
    /// Rules for other protocols: ICMP, GRE, ESP.
    pub other_rules: RuleSet,
    /// Rules for everyone's packets.
    pub from_any: RuleSet,
    /// Rules for packets to any address.
    pub to_any: RuleSet,
    /// Rules for the ports of each class.
    pub class_rules: [RuleSet; CLASSES_MAX],
    /// The rules.
    pub rules: [Rule; RULES_MAX],
}

const _: () = assert!(
    size_of::<Config>()
        == 8 + 16 + 8 + 16 + 24 + 4 * INTERFACES_MAX + 8 + 8 * 6 + 8 * CLASSES_MAX + size_of::<[Rule; RULES_MAX]>()
);

/// The class of each destination port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PortTable {
    /// By TCP port, host order.
    pub tcp: [u8; 65_536],
    /// By UDP port, host order.
    pub udp: [u8; 65_536],
}

const _: () = assert!(size_of::<PortTable>() == 131_072);

/// What one reason has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Bytes of their frames, from the Ethernet header on, without the checksum.
    pub bytes: u64,
}

/// The counters of one interface and rule on one CPU, by [`Reason`] code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// By reason.
    pub by_reason: [Tally; REASONS_MAX],
}

const _: () = assert!(size_of::<Counters>() == 384);

/// Rows of counters that rules can have: enough for those that packets read and those that take their place.
pub const ROWS_MAX: usize = 2 * RULES_MAX;

/// Rows of counters of one interface: those of rules, and one for what no rule judged.
pub const COUNTERS_PER_INTERFACE: usize = ROWS_MAX + 1;

/// The row of interfaces that the configuration does not list.
pub const INTERFACE_UNKNOWN: usize = INTERFACES_MAX;

/// Rows of counters in all.
pub const COUNTERS_LEN: usize = (INTERFACES_MAX + 1) * COUNTERS_PER_INTERFACE;

/// The row of [`map::COUNTERS`] for an interface's position and a rule's row; any that is none has the last.
#[inline(always)]
pub const fn counters_index(interface: usize, rule: u8) -> u32 {
    let row = if (rule as usize) < ROWS_MAX { rule as usize } else { ROWS_MAX };
    #[expect(clippy::cast_possible_truncation, reason = "17 x 129 rows")]
    let index = (interface * COUNTERS_PER_INTERFACE + row) as u32;
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interface_and_rule_has_a_row_of_its_own() {
        let rules = || (0..u8::try_from(ROWS_MAX).unwrap()).chain([u8::MAX]);
        let mut rows: Vec<_> = (0..=INTERFACE_UNKNOWN)
            .flat_map(|interface| rules().map(move |rule| counters_index(interface, rule)))
            .collect();
        assert!(rows.iter().all(|&row| (row as usize) < COUNTERS_LEN));
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), COUNTERS_LEN);
    }

    #[test]
    fn fault_codes_are_the_positions_in_the_list() {
        for (position, fault) in Fault::ALL.iter().enumerate() {
            assert_eq!(*fault as usize, position);
        }
    }

    #[test]
    fn a_unit_survives_its_code() {
        for unit in [Unit::Connections, Unit::Packets, Unit::Bytes, Unit::Requests] {
            assert_eq!(Unit::from_code(unit as u8), Some(unit));
        }
        assert_eq!(Unit::from_code(0), None);
        assert_eq!(Unit::from_code(LOGGED_REQUESTS), None);
    }
}
