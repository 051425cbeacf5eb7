//! Names of the maps.

/// Array of one [`super::Active`]: the generation of the configuration that packets read, and the epoch.
pub const ACTIVE: &str = "ACTIVE";
/// Array of [`super::Config`]: one for each generation, and [`super::CHARGE_GENERATION`].
pub const CONFIG: &str = "CONFIG";
/// Array of [`super::PortTable`], one for each generation.
pub const PORTS: &str = "PORTS";
/// LPM trie of IPv4 sources: [`super::PrefixKeyV4`] to [`super::Prefix`].
pub const PREFIXES_V4: &str = "PREFIXES_V4";
/// LPM trie of IPv6 sources: [`super::PrefixKeyV6`] to [`super::Prefix`].
pub const PREFIXES_V6: &str = "PREFIXES_V6";
/// LPM trie of IPv4 destinations: [`super::PrefixKeyV4`] to the [`super::RuleSet`] that names them.
pub const TARGETS_V4: &str = "TARGETS_V4";
/// LPM trie of IPv6 destinations: [`super::PrefixKeyV6`] to the [`super::RuleSet`] that names them.
pub const TARGETS_V6: &str = "TARGETS_V6";
/// LRU hash of [`super::SourceKeyV4`] to [`super::Source`].
pub const SOURCES_V4: &str = "SOURCES_V4";
/// LRU hash of [`super::SourceKeyV6`] to [`super::Source`].
pub const SOURCES_V6: &str = "SOURCES_V6";
/// LRU hash of [`super::SourceKeyV6Wide`] to [`super::Source`].
pub const SOURCES_V6_WIDE: &str = "SOURCES_V6_WIDE";
/// Hash of [`super::SourceKeyV4`] to [`crate::ban::Ban`].
pub const BANS_V4: &str = "BANS_V4";
/// Hash of [`super::SourceKeyV6`] to [`crate::ban::Ban`].
pub const BANS_V6: &str = "BANS_V6";
/// Hash of [`super::SourceKeyV6Wide`] to [`crate::ban::Ban`].
pub const BANS_V6_WIDE: &str = "BANS_V6_WIDE";
/// LRU hash of [`super::FlowKeyV4`] to [`crate::flow::Flow`].
pub const FLOWS_V4: &str = "FLOWS_V4";
/// LRU hash of [`super::FlowKeyV6`] to [`crate::flow::Flow`].
pub const FLOWS_V6: &str = "FLOWS_V6";
/// LRU hash of [`super::ConversationKeyV4`] to [`crate::conversation::Conversation`].
pub const CONVERSATIONS_V4: &str = "CONVERSATIONS_V4";
/// LRU hash of [`super::ConversationKeyV6`] to [`crate::conversation::Conversation`].
pub const CONVERSATIONS_V6: &str = "CONVERSATIONS_V6";
/// Array of [`crate::drop_cache::CacheSet`], by [`crate::drop_cache::Key::place`]. The daemon maps its memory, so it
/// begins at a page, and each set is one cache line.
pub const DROP_CACHE: &str = "DROP_CACHE";
/// Array of the [`crate::drop_cache::DropCause`]s of each set of [`DROP_CACHE`]. The daemon maps its memory.
pub const DROP_CAUSES: &str = "DROP_CAUSES";
/// Array of [`super::BITS_PER_SET`] bits for each set of [`DROP_CACHE`]. A bit says whether the set may have an entry
/// with these further bits of the hash.
pub const DROP_SUMMARY: &str = "DROP_SUMMARY";
/// Bloom filter of known sources: array of cells of [`crate::admission::Fingerprint`], by their place.
pub const KNOWN_FILTER: &str = "KNOWN_FILTER";
/// Summary of [`KNOWN_FILTER`]: cells of [`crate::admission::Fingerprint::in_summary`], one for each
/// [`crate::admission::CELLS_PER_SUMMARY`] cells of the filter.
pub const KNOWN_SUMMARY: &str = "KNOWN_SUMMARY";
/// Bloom filters of connections that were found among the host's sockets, and of those that were not. The cells are
/// like those of [`KNOWN_FILTER`]: one of [`crate::verification::found`], then one of
/// [`crate::verification::not_found`].
pub const CONN_FILTER: &str = "CONN_FILTER";
/// Prefix-miss cache: array of `u64`, by a hash of the source. An entry says that no prefix of [`PREFIXES_V4`] or
/// [`PREFIXES_V6`] holds the source, see [`super::PrefixMiss`].
pub const PREFIX_MISSES: &str = "PREFIX_MISSES";
/// Array of [`super::PrefixFilter`], one for each generation of [`PREFIXES_V4`] and [`PREFIXES_V6`]. Each run of the
/// daemon rebuilds it from those tries, before packets read it.
pub const PREFIX_FILTER: &str = "PREFIX_FILTER";
/// Array of [`crate::multiplicity::Multiplicity`]: [`crate::multiplicity::SOURCE_PLACES`] of sources, by their places,
/// then one for the new sources of each row of rules.
pub const MULTIPLICITIES: &str = "MULTIPLICITIES";
/// Per-CPU array of one [`crate::admission::Admission`].
pub const ADMISSION: &str = "ADMISSION";
/// Array of one word of [`crate::gcra`] for each row of rules: the new sources that the row has admitted.
pub const NEW_SOURCES: &str = "NEW_SOURCES";
/// Per-CPU array of one parsed frame.
pub const PARSED: &str = "PARSED";
/// Per-CPU array of one deferred update: a segment and its connection, or a datagram and its flow. It holds their state
/// after the packet is admitted.
pub const DEFERRED: &str = "DEFERRED";
/// Per-CPU array of [`super::Counters`], by [`super::counters_index`].
pub const COUNTERS: &str = "COUNTERS";
/// Per-CPU array of `u64`, by [`super::Fault`], and [`super::NOT_CACHED`].
pub const FAULTS: &str = "FAULTS";
/// Per-CPU array of `u64`, by [`super::Rule::row`]: number of bans that the rule has begun.
pub const BANS_BEGUN: &str = "BANS_BEGUN";
/// Ring of [`super::Event`]s, [`super::EVENTS_BYTES`] long.
pub const EVENTS: &str = "EVENTS";
/// Per-CPU array of [`crate::events::EventTally`], [`super::EVENT_TALLIES`] of them.
pub const EVENT_TALLIES: &str = "EVENT_TALLIES";
/// Ring of [`super::Step`]s, [`super::STEPS_BYTES`] long.
pub const STEPS: &str = "STEPS";
/// Array of one [`super::ChargeOrder`].
pub const CHARGE_ORDER: &str = "CHARGE_ORDER";
/// Per-CPU array of one [`super::Source`], in which a new one is built.
pub const SCRATCH: &str = "SCRATCH";
/// Per-CPU array of the clock's last reading, which stays valid for a timer tick.
pub const CLOCK_CACHE: &str = "CLOCK_CACHE";
/// Array of one `u64`: the time in tests that inject the clock.
pub const INJECTED_NOW: &str = "INJECTED_NOW";
