//! The operations on maps that may fail: each has a code, and a count.

use super::map;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $map:expr, $op:literal;)*) => {
        /// A map operation that failed in the packet path. Codes are stable and append-only: they index the counters.
        /// So are labels: some are a map's first name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Fault { $($(#[$doc])* $name = $code,)* }

        impl Fault {
            /// Every fault, by code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The map and the operation, as in the metric `ratelimitd_map_errors_total`.
            pub const fn labels(self) -> (&'static str, &'static str) {
                match self { $(Self::$name => ($map, $op),)* }
            }
        }
    };
}

faults! {
    /// No active generation.
    ActiveLookup = 0, map::ACTIVE, "lookup";
    /// No configuration of the active generation.
    ConfigLookup = 1, map::CONFIG, "lookup";
    /// No port table of the active generation.
    PortsLookup = 2, map::PORTS, "lookup";
    /// No row for the interface and rule.
    CountersLookup = 3, map::COUNTERS, "lookup";
    /// A new IPv4 source was refused.
    SourcesV4Insert = 4, map::SOURCES_V4, "insert";
    /// A new IPv6 source was refused.
    SourcesV6Insert = 5, map::SOURCES_V6, "insert";
    /// A new IPv6 source by a long prefix was refused.
    SourcesV6WideInsert = 6, map::SOURCES_V6_WIDE, "insert";
    /// A new UDP flow over IPv4 was refused: its next datagram counts again.
    FlowsV4Insert = 7, map::FLOWS_V4, "insert";
    /// A new UDP flow over IPv6 was refused: its next datagram counts again.
    FlowsV6Insert = 8, map::FLOWS_V6, "insert";
    /// No room to build a new source in.
    ScratchLookup = 9, map::SCRATCH, "lookup";
    /// No place for the clock's last reading: it is read again.
    ClockCacheLookup = 10, "READ_IN_TICK", "lookup";
    /// A new ban of an IPv4 source was refused: it is limited, and not banned.
    BansV4Insert = 11, map::BANS_V4, "insert";
    /// A new ban of an IPv6 source was refused: it is limited, and not banned.
    BansV6Insert = 12, map::BANS_V6, "insert";
    /// A new ban of an IPv6 source by a long prefix was refused: it is limited, and not banned.
    BansV6WideInsert = 13, map::BANS_V6_WIDE, "insert";
    /// No cell for a rule's bans: the ban holds, and is not counted.
    BansBegunLookup = 14, map::BANS_BEGUN, "lookup";
    /// A new TCP connection over IPv4 was refused: its next segment is its first again.
    ConversationsV4Insert = 15, map::CONVERSATIONS_V4, "insert";
    /// A new TCP connection over IPv6 was refused: its next segment is its first again.
    ConversationsV6Insert = 16, map::CONVERSATIONS_V6, "insert";
    /// No room for a segment and its connection: its requests are not counted.
    DeferredLookup = 17, "PENDING", "lookup";
    /// No room for a parsed packet: it passes unjudged.
    ParsedLookup = 18, "SEEN", "lookup";
    /// No set for a source that is refused: its window judges it.
    DropCacheLookup = 19, "REFUSED", "lookup";
    /// No cell for a source in the filter: it counts as known.
    KnownFilterLookup = 20, "KNOWN", "lookup";
    /// No state of the admission of new sources: they are admitted.
    AdmissionLookup = 21, map::ADMISSION, "lookup";
    /// No word for a rule's new sources: they are admitted.
    NewSourcesLookup = 22, map::NEW_SOURCES, "lookup";
    /// No cell for a connection in the filter: its socket is looked up.
    ConnFilterLookup = 23, "CONNECTIONS", "lookup";
    /// No cell of the filter's summary: its sources count as known, as far as this tells.
    KnownSummaryLookup = 24, "KNOWN_SUMMARY", "lookup";
    /// No count of events: one that began is neither sent nor counted.
    EventTalliesLookup = 25, map::EVENT_TALLIES, "lookup";
    /// The ring of steps is full: other hosts are told of this source at its next step.
    StepsReserve = 26, map::STEPS, "reserve";
}

/// Cells of [`map::FAULTS`].
pub const FAULTS_MAX: u32 = 32;

/// The last of them counts no fault: refusals that found no place in [`map::DROP_CACHE`], whose sources are judged by
/// their windows. A flood of sources that are over their limit makes them.
pub const NOT_CACHED: u32 = FAULTS_MAX - 1;

const _: () = assert!(Fault::ALL.len() <= NOT_CACHED as usize);
