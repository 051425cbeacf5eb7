//! Map operations that may fail, each with a code and a counter.

use super::map;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $map:expr, $op:literal;)*) => {
        /// Map operation that failed in the packet path. Codes are stable and append-only: they index the counters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Fault { $($(#[$doc])* $name = $code,)* }

        impl Fault {
            /// Every fault, in the order of the codes.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the map and the operation, as in the metric `ratelimitd_map_errors_total`.
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
    /// No space to build a new source in.
    ScratchLookup = 9, map::SCRATCH, "lookup";
    /// No place for the clock's last reading: it is read again.
    ClockCacheLookup = 10, map::CLOCK_CACHE, "lookup";
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
    /// No space for a segment and its connection: the requests are not counted.
    DeferredLookup = 17, map::DEFERRED, "lookup";
    /// No space for a parsed packet: it passes unjudged.
    ParsedLookup = 18, map::PARSED, "lookup";
    /// No cache set for a refused source: its window judges it.
    DropCacheLookup = 19, map::DROP_CACHE, "lookup";
    /// No cell for a source in the filter: it counts as known.
    KnownFilterLookup = 20, map::KNOWN_FILTER, "lookup";
    /// No admission state for new sources: they are admitted.
    AdmissionLookup = 21, map::ADMISSION, "lookup";
    /// No word for a rule's new sources: they are admitted.
    NewSourcesLookup = 22, map::NEW_SOURCES, "lookup";
    /// No cell for a connection in the filter: its socket is looked up.
    ConnFilterLookup = 23, map::CONN_FILTER, "lookup";
    /// No cell of the filter's summary: its sources count as known, unless the filter itself rules them out.
    KnownSummaryLookup = 24, map::KNOWN_SUMMARY, "lookup";
    /// No tally of events: a new event is neither sent nor counted.
    EventTalliesLookup = 25, map::EVENT_TALLIES, "lookup";
    /// The ring of steps is full: other hosts are told of this source at its next step.
    StepsReserve = 26, map::STEPS, "reserve";
}

/// Number of cells of [`map::FAULTS`].
pub const FAULTS_MAX: u32 = 32;

/// Cell of [`map::FAULTS`] that counts no fault: the last one. It counts refusals that found no place in
/// [`map::DROP_CACHE`], whose sources are judged by their windows. A flood of sources over their limit causes them.
pub const NOT_CACHED: u32 = FAULTS_MAX - 1;

const _: () = assert!(Fault::ALL.len() <= NOT_CACHED as usize);
