//! Contents of the maps: names, capacities, keys and values, shared by the kernel program and the daemon.
//!
//! Keys hold addresses in network order; everything else is in host order. No type has hidden padding, and each size is
//! asserted beside its type. Any change of a layout raises [`VERSION`], which is part of the pin path. Pins of an
//! earlier version are read by their own layout. Pins of any other version are refused.

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

/// Version of the layout, as in `/sys/fs/bpf/ratelimitd/v13`.
pub const VERSION: u32 = 13;

/// Name of the XDP program.
pub const PROGRAM: &str = "ratelimitd";

/// Name of the program that charges a source without a packet. Only the daemon runs it.
pub const CHARGE_PROGRAM: &str = "charge_source";

/// Name of the read-only global that makes the program take its time from [`map::INJECTED_NOW`] (in
/// [`crate::time::Nanos`]).
pub const CLOCK_IS_INJECTED: &str = "CLOCK_IS_INJECTED";

/// Name of the read-only global that holds [`SocketFields`].
pub const SOCKET_FIELDS: &str = "SOCKET_FIELDS";

/// Offsets in bytes of the fields that the program reads from the kernel's socket structures. They come from the BTF of
/// the running kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SocketFields {
    /// 1 if the offsets are known. 0 if only a socket's state is read.
    pub are_known: u32,
    /// Offset of `tcp_sock.rcv_nxt`.
    pub received: u32,
    /// Offset of `tcp_sock.rcv_wup`.
    pub window_at: u32,
    /// Offset of `tcp_sock.rcv_wnd`.
    pub window: u32,
    /// Offset of `tcp_sock.write_seq`.
    pub said: u32,
    /// Offset of `tcp_sock.snd_una`.
    pub unacknowledged: u32,
    /// Offset of `tcp_sock.max_window`.
    pub peers_window_max: u32,
    /// Offset of `tcp_sock.bytes_received`.
    pub bytes_received: u32,
    /// Offset of `tcp_request_sock.rcv_nxt`.
    pub request_received: u32,
    /// Offset of `tcp_request_sock.snt_isn`.
    pub request_said: u32,
}

/// Name of the read-only global with the return code for packets that pass. The value is XDP_PASS, except in a
/// benchmark that measures the program without the network stack behind it.
pub const PASSED_ACTION: &str = "PASSED_ACTION";

/// Name of the read-only global that is 1 if frames have an Ethernet header. Only for the TCX program.
pub const HAS_LINK_HEADER: &str = "HAS_LINK_HEADER";

/// Name of the read-only global that is 1 if events are sent. It is 0 only where the benchmark measures the cost of
/// events.
pub const SENDS_EVENTS: &str = "SENDS_EVENTS";

/// Number of generations of the configuration: packets read one, and the daemon writes the other.
pub const GENERATIONS: u32 = 2;
/// Generation of the configuration by which [`CHARGE_PROGRAM`] charges. No packet is judged by it: its first rule has
/// one limit, which admits everything.
pub const CHARGE_GENERATION: u32 = 2;
/// Number of elements of [`map::CONFIG`]: a power of two.
pub const CONFIGS: u32 = 4;
/// Maximum number of interfaces that one daemon protects.
pub const INTERFACES_MAX: usize = 16;
/// Maximum number of rules in a configuration: a [`RuleSet`] has one bit for each.
pub const RULES_MAX: usize = 64;
/// Maximum number of limits of one rule.
pub const LIMITS_MAX: usize = 4;
/// Maximum number of shadow limits of one rule.
pub const SHADOWS_MAX: usize = 8;
/// Maximum number of UDP ports of one rule that speak QUIC.
pub const QUIC_PORTS_MAX: usize = 8;
/// Maximum number of ban lengths of one rule.
pub const BAN_STEPS_MAX: usize = crate::ban::STEPS_MAX;
/// Capacity of the ban maps, for each address family. It counts running bans, and ended bans that are still kept. 65536
/// x 96 B = 6 MB are allocated in advance.
pub const BANS_CAPACITY: u32 = 65_536;
/// Maximum number of source prefixes of each family in a configuration. The tries allocate memory as they are filled:
/// 1048576 x 216 B = 226 MB at most.
pub const PREFIXES_MAX: u32 = 1 << 20;
/// Capacity of the source prefix tries, for each family and generation. It leaves room for commands and safety prefixes
/// beside the largest configuration.
pub const PREFIXES_CAPACITY: u32 = PREFIXES_MAX + (1 << 16);
/// Maximum number of destination prefixes of each family and generation.
pub const TARGETS_MAX: u32 = 4_096;
/// Capacity of the UDP flow maps, which are used where connections are counted. 65536 x 72 B = 5 MB, 65536 x 88 B = 6
/// MB.
pub const FLOWS_CAPACITY: u32 = 65_536;
/// Capacity of the TCP connection maps of each family, which are used where requests are counted. 131072 x 120 B = 16
/// MB, 131072 x 144 B = 19 MB.
pub const CONVERSATIONS_CAPACITY: u32 = 131_072;
/// Default number of sets of [`map::DROP_CACHE`]: a power of two. 32768 x 64 B = 2 MB.
pub const CACHE_SETS: u32 = 32_768;
/// Number of bits of [`map::DROP_SUMMARY`] for each set of [`map::DROP_CACHE`]. The whole summary has 16 KB, so it fits
/// into the L1 cache.
pub const BITS_PER_SET: u32 = 4;
/// Number of sets of [`map::DROP_CACHE`] for each word of [`map::DROP_SUMMARY`].
pub const SETS_PER_WORD: u32 = 64 / BITS_PER_SET;
/// Number of sets of [`map::DROP_CACHE`] for each cell of [`map::CONN_FILTER`].
pub const SETS_PER_CONN_CELL: u32 = 2;
/// Number of words of [`map::PREFIX_MISSES`] for each set of [`map::DROP_CACHE`].
pub const PREFIX_MISSES_PER_SET: u32 = 4;
/// Default capacity of the source maps, for each family. 262144 x 128 B = 34 MB.
pub const SOURCES_CAPACITY: u32 = 262_144;
/// Maximum number of reasons that the counters can hold.
pub const REASONS_MAX: usize = 24;

const _: () = assert!(Reason::ALL.len() <= REASONS_MAX);

/// Class of a port that no rule protects.
pub const CLASS_NONE: u8 = 0;
/// Maximum number of port classes. All ports of one class are protected by the same rules.
pub const CLASSES_MAX: usize = 256;

/// Set of rules, one bit each: the lowest bit is the first rule.
pub type RuleSet = u64;

/// Limit of a rule, as the packet path reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Limit {
    /// Amount that is admitted in a window, in the limit's unit.
    pub amount: u64,
    /// Length of a bucket in nanoseconds.
    pub bucket_ns: u64,
    /// Number of the source's window that this limit counts in. It is part of the state's key, and stable over reloads
    /// and restarts.
    pub slot: u32,
    /// Code of a [`Unit`], or [`LOGGED_REQUESTS`].
    pub unit: u8,
    /// Number of full buckets before the current one that the sum includes. B for a strict window, B - 1 for a lenient
    /// one, 0 for a fixed one.
    pub full_buckets: u8,
    /// Set of the [`Side`]s whose steps are sent to other hosts: one bit for each code.
    pub told_sides: u8,
    /// 1 if the limit is a leaky bucket ([`crate::gcra`]), with `bucket_ns` as the whole window. 0 if it is a
    /// [`crate::window`].
    pub is_gcra: u8,
    /// Maximum amount in one bucket, see [`crate::window::BURST_ANY`]. With `is_gcra`: [`crate::gcra::Rate::burst_ns`].
    pub burst: u64,
    /// Value of [`crate::verification::guarded_segments`], for request limits.
    pub guarded_segments: u32,
    /// Composition of a cell's count, which all sides of the limit share.
    pub parts: window::Parts,
}

const _: () = assert!(size_of::<Limit>() == 40);

impl Limit {
    /// Returns the limit as that of a window on one of its sides. Only for limits that are no leaky bucket.
    #[inline(always)]
    pub const fn arithmetic(&self, side: Side) -> window::Limit {
        window::Limit {
            amount: self.amount_on(side),
            full_buckets: self.full_buckets,
            parts: self.parts,
            burst: if side.is_guard() { window::BURST_ANY } else { self.burst },
        }
    }

    /// Returns the limit as a leaky bucket on one of its sides. Only for limits with `is_gcra`.
    #[inline(always)]
    pub const fn rate(&self, side: Side) -> Rate {
        let burst_ns = if side.is_guard() { self.bucket_ns } else { self.burst };
        Rate { amount: self.amount_on(side), window_ns: self.bucket_ns, burst_ns }
    }

    /// Returns the amount that the limit admits on one of its sides.
    #[inline(always)]
    pub const fn amount_on(&self, side: Side) -> u64 {
        match side {
            Side::Segments | Side::Datagrams => self.guarded_segments as u64,
            // Nothing is charged to the last one, [`Side::Repeated`].
            Side::Unverified | Side::Verified | Side::Evidence | Side::Attempts | Side::Opened | Side::Repeated => {
                self.amount
            }
        }
    }
}

/// Unit of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Unit {
    /// TCP SYNs without ACK, and datagrams that open a UDP flow (see [`crate::flow`]).
    Connections = 1,
    /// IP packets, fragments included.
    Packets = 2,
    /// Bytes of IP packets, headers included.
    Bytes = 3,
    /// Turns of a client's conversation (see [`crate::conversation`]).
    Requests = 4,
}

/// Code, in place of a [`Unit`], of requests that an access log counts and packets do not.
pub const LOGGED_REQUESTS: u8 = 5;

impl Unit {
    /// Returns the unit of a map's code, if it has one.
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

/// Flags for what a rule does with refused packets, instead of dropping them: [`Rule::refuses`].
pub mod refuses {
    /// Pass refused packets as [`super::Reason::DryRun`]. No other flag is set then.
    pub const NOTHING: u8 = 1;
    /// Reset refused connections of verified clients.
    pub const BY_RESET: u8 = 2;
    /// Answer refused SYNs with a reset too. Requires that every interface is attached in native mode.
    pub const SYN_BY_RESET: u8 = 4;
    /// Answer refused clear-text HTTP/1 requests with a 429 page; reset other connections. Implies [`BY_RESET`].
    pub const BY_PAGE: u8 = 8;
}

/// Rule of a configuration, as the packet path reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Rule {
    /// Limits of the rule; the first `limits_len` of them are enforced together. The first `own_len` count the source,
    /// and each other one counts the group that contains the source. From [`LIMITS_MAX`] on, `shadows_len` shadow
    /// limits are counted and never enforced.
    pub limits: [Limit; LIMITS_MAX + SHADOWS_MAX],
    /// Number of enforced limits.
    pub limits_len: u8,
    /// Flags of [`refuses`]; 0 if refused packets are dropped.
    pub refuses: u8,
    /// 1 if everything of a source over a limit is dropped at this rule's ports, even if no limit counts it.
    pub refuse_all: u8,
    /// 1 if some limit counts connections, so UDP flows are looked up.
    pub counts_connections: u8,
    /// Row of the rule's counters, which the rule keeps when its position changes.
    pub row: u8,
    /// Number of shadow limits.
    pub shadows_len: u8,
    /// 1 if some limit counts requests, so TCP connections and UDP flows are looked up. 2 if also nothing else refuses,
    /// so a segment without the start of a request passes.
    pub counts_requests: u8,
    /// Evidence that the rule needs from its packets.
    pub evidence: EvidenceNeeds,
    /// Packets of which the rule first checks whether their source is known: flags of
    /// [`crate::admission::known_first`].
    pub known_first: u32,
    /// 1 if packets with unparsable headers are judged as a new connection with a request. 0 if they are dropped.
    pub counts_unparsable: u8,
    /// 1 if the request limits also bound connections, and segments that begin no request.
    pub guard: u8,
    /// 1 if the rule's one limit alone decides, see [`crate::hold::is_plain`].
    pub is_plain: u8,
    /// 1 if the rule ignores acknowledgements without payload, see [`crate::hold::ignores_acknowledgements`].
    pub ignores_acknowledgements: u8,
    /// UDP ports that speak QUIC, in host order; 0 is unused.
    pub quic_ports: [u16; QUIC_PORTS_MAX],
    /// Hash of the rule's name, by which the next configuration finds the rule's row.
    pub name: u64,
    /// Time at which the rule ends, in nanoseconds; the rules after it judge from then on. 0 is never.
    pub until_ns: u64,
    /// Maximum number of new sources that are admitted in [`Rule::new_sources_ns`]. Packets of further new sources are
    /// dropped. 0 is unlimited.
    pub new_sources: u64,
    /// Period of `new_sources`, in nanoseconds.
    pub new_sources_ns: u64,
    /// Bans of the rule.
    pub bans: crate::ban::Rule,
    /// Group of the limit at the same position, if the limit does not count the source itself.
    pub groups: [Group; LIMITS_MAX],
    /// Number of limits that count the source itself.
    pub own_len: u8,
    /// 1 if the rule's limits alone decide, see [`crate::hold::is_of_limits_alone`].
    pub is_of_limits_alone: u8,
    /// 1 if a server log is read for the rule, so turns under TLS and QUIC are charged by [`crate::multiplicity`].
    pub has_log: u8,
    /// Padding, always 0.
    pub reserved: [u8; 5],
}

const _: () = assert!(
    size_of::<Rule>()
        == 40 * (LIMITS_MAX + SHADOWS_MAX) + 8 + 8 + 2 * QUIC_PORTS_MAX + 8 + 8 + 16 + 48 + 16 * LIMITS_MAX + 8
);

impl Rule {
    /// Returns whether some of the rule's limits count groups.
    #[inline(always)]
    pub const fn has_groups(&self) -> bool {
        self.own_len != self.limits_len
    }

    /// Returns whether packets that would be dropped pass as [`Reason::DryRun`].
    #[inline(always)]
    pub const fn is_dry_run(&self) -> bool {
        self.refuses & refuses::NOTHING != 0
    }

    /// Returns whether refused packets of a verified client are answered by a reset.
    #[inline(always)]
    pub const fn refuses_by_reset(&self) -> bool {
        self.refuses & refuses::BY_RESET != 0
    }

    /// Returns whether the rule drops refused requests, so their clients retransmit them. A connection is then ended if
    /// its client gives up.
    #[inline(always)]
    pub const fn ends_abandoned(&self) -> bool {
        self.counts_requests != 0 && self.refuses == 0
    }

    /// Returns the time, in nanoseconds, until which segments of a connection with a refused request are dropped
    /// unseen. `full_until_ns` is the time at which the window frees. It is 0 if the window has space, but not for this
    /// amount; the connection is then judged again in a second. If the rule ends connections of waiting clients, it is
    /// judged again in half a second, however full the window is.
    #[inline(always)]
    pub const fn connection_drop_until_ns(&self, now: Nanos, full_until_ns: u64) -> u64 {
        let ends_abandoned = self.ends_abandoned();
        let again_ns = now.0.wrapping_add(if ends_abandoned { SECOND_NS / 2 } else { SECOND_NS });
        if full_until_ns == 0 || ends_abandoned && full_until_ns > again_ns { again_ns } else { full_until_ns }
    }

    /// Returns whether this UDP port of the rule speaks QUIC.
    #[inline(always)]
    pub fn speaks_quic(&self, port: u16) -> bool {
        port != 0 && self.quic_ports.contains(&port)
    }
}

/// One generation of the configuration, which every packet reads first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Config {
    /// Wall clock minus monotonic clock in nanoseconds, as of the start of this state. It includes the time that the
    /// machine was suspended since, when the monotonic clock stands still. Steps of the wall clock do not change it.
    pub wall_offset_ns: u64,
    /// Key of the hashes. It is secret, so that no sender chooses which sources share a place. It lives as long as the
    /// maps.
    pub seed: HashKey,
    /// Value of [`HashKey::of_places`].
    pub places: u64,
    /// Value of [`crate::source::ipv6_mask`] for the sources.
    pub ipv6_mask: [u64; 2],
    /// Value of [`crate::source::ipv4_mask`] for the sources.
    pub ipv4_mask: u32,
    /// Number of the last set of [`map::DROP_CACHE`], used as a mask.
    pub sets_mask: u32,
    /// Number of insertions of one CPU in a period of [`crate::admission`] before it samples.
    pub insertions_max: u32,
    /// Number of insertions of one CPU since the program was loaded that use no budget, since the maps were empty.
    pub insertions_free: u32,
    /// Seconds for which the machine was suspended since its boot, plus 1, as included in `wall_offset_ns`. 0 is
    /// unknown. Only the daemon reads it.
    pub suspended: u32,
    /// Value of [`crate::admission::generation_shift`] for the longest window.
    pub generation_shift: u32,
    /// Indexes of the protected interfaces; 0 is unused. The position is the interface's row in the counters.
    pub interfaces: [u32; INTERFACES_MAX],
    /// Generation of the source prefixes, which change less often than the rest of the configuration.
    pub prefixes_generation: u32,
    /// 0 if there are no prefixes of IPv4 sources, which saves the lookup. 1 if there are. 2 if some of them cover only
    /// a part of a client.
    pub has_prefixes_v4: u8,
    /// Value of `has_prefixes_v4` for IPv6 sources.
    pub has_prefixes_v6: u8,
    /// 1 if there are prefixes of destinations. 0 saves the lookup.
    pub has_targets: u8,
    /// 1 if IPv6 sources are in [`map::SOURCES_V6_WIDE`].
    pub ipv6_wide: u8,
    /// Time in nanoseconds from which packets read the other generation instead; 0 is never.
    pub until_ns: u64,
    /// Rules for packets whose ports cannot be read: later fragments, and header chains that are too long.
    pub portless_rules: RuleSet,
    /// Rules that count packets or bytes. The first of them judges later fragments, before any other rule.
    pub volume_rules: RuleSet,
    /// Rules for other protocols: ICMP, GRE, ESP.
    pub other_rules: RuleSet,
    /// Rules for packets from any source.
    pub from_any: RuleSet,
    /// Rules for packets to any address.
    pub to_any: RuleSet,
    /// Rules for the ports of each class.
    pub class_rules: [RuleSet; CLASSES_MAX],
    /// Rules in their order.
    pub rules: [Rule; RULES_MAX],
}

const _: () = assert!(
    size_of::<Config>()
        == 8 + 16 + 8 + 16 + 24 + 4 * INTERFACES_MAX + 8 + 8 * 6 + 8 * CLASSES_MAX + size_of::<[Rule; RULES_MAX]>()
);

/// Table of the class of each destination port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PortTable {
    /// Class by TCP port, host order.
    pub tcp: [u8; 65_536],
    /// Class by UDP port, host order.
    pub udp: [u8; 65_536],
}

const _: () = assert!(size_of::<PortTable>() == 131_072);

/// Totals of one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Tally {
    /// Number of packets.
    pub packets: u64,
    /// Bytes of their frames, including the Ethernet header, without the checksum.
    pub bytes: u64,
}

/// Counters of one interface and rule on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// Totals by [`Reason`] code.
    pub by_reason: [Tally; REASONS_MAX],
}

const _: () = assert!(size_of::<Counters>() == 384);

/// Maximum number of counter rows for rules: those that packets read, and those that will replace them.
pub const ROWS_MAX: usize = 2 * RULES_MAX;

/// Number of counter rows of one interface: those of rules, and one for packets that no rule judged.
pub const COUNTERS_PER_INTERFACE: usize = ROWS_MAX + 1;

/// Counter position of interfaces that the configuration does not list.
pub const INTERFACE_UNKNOWN: usize = INTERFACES_MAX;

/// Total number of counter rows.
pub const COUNTERS_LEN: usize = (INTERFACES_MAX + 1) * COUNTERS_PER_INTERFACE;

/// Returns the row of [`map::COUNTERS`] for an interface's position and a rule's row. Rows that do not exist map to the
/// interface's last row.
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
