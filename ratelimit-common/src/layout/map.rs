//! Map names.

/// Array of one [`super::Active`]: which generation of the configuration packets read, and in which epoch.
pub const ACTIVE: &str = "ACTIVE";
/// Array of [`super::Config`], one a generation; and [`super::CHARGE_GENERATION`].
pub const CONFIG: &str = "CONFIG";
/// Array of [`super::PortTable`], one a generation.
pub const PORTS: &str = "PORTS";
/// LPM trie of what is known of IPv4 sources, [`super::PrefixKeyV4`] to [`super::Prefix`].
pub const PREFIXES_V4: &str = "PREFIXES_V4";
/// LPM trie of what is known of IPv6 sources, [`super::PrefixKeyV6`] to [`super::Prefix`].
pub const PREFIXES_V6: &str = "PREFIXES_V6";
/// LPM trie of IPv4 destinations, [`super::PrefixKeyV4`] to the [`super::RuleSet`] that names them.
pub const TARGETS_V4: &str = "TARGETS_V4";
/// LPM trie of IPv6 destinations, [`super::PrefixKeyV6`] to the [`super::RuleSet`] that names them.
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
/// Array of [`crate::drop_cache::CacheSet`], by [`crate::drop_cache::Key::place`]. Memory that the daemon shares, so
/// that it begins at a page, and a set is a line of the processor's cache.
pub const DROP_CACHE: &str = "DROP_CACHE";
/// Array of the [`crate::drop_cache::DropCause`]s of each set of [`DROP_CACHE`]. Shared likewise.
pub const DROP_CAUSES: &str = "DROP_CAUSES";
/// Array of [`super::BITS_PER_SET`] bits for each set of [`DROP_CACHE`]: whether it may have an entry, by more of the
/// entry's hash.
pub const DROP_SUMMARY: &str = "DROP_SUMMARY";
/// Bloom filter of known sources: array of cells of [`crate::admission::Fingerprint`], by their place.
pub const KNOWN_FILTER: &str = "KNOWN_FILTER";
/// The same of [`crate::admission::Fingerprint::in_summary`], one for each [`crate::admission::CELLS_PER_SUMMARY`] of
/// [`KNOWN_FILTER`].
pub const KNOWN_SUMMARY: &str = "KNOWN_SUMMARY";
/// Bloom filters of connections that were found among the host's sockets, and of those that were not: cells as in
/// [`KNOWN_FILTER`], of [`crate::verification::found`] and then of [`crate::verification::not_found`].
pub const CONN_FILTER: &str = "CONN_FILTER";
/// The prefix-miss cache: array of `u64`, by a hash of the source. An entry says that no prefix of [`PREFIXES_V4`] or
/// [`PREFIXES_V6`] holds the source, see [`super::PrefixMiss`].
pub const PREFIX_MISSES: &str = "PREFIX_MISSES";
/// Array of [`super::PrefixFilter`], one a generation of [`PREFIXES_V4`] and [`PREFIXES_V6`]. Each run of the daemon makes
/// it anew from what those hold, before packets read it.
pub const PREFIX_FILTER: &str = "PREFIX_FILTER";
/// Array of [`crate::multiplicity::Multiplicity`]: [`crate::multiplicity::SOURCE_PLACES`] of sources, by their places, and
/// then one for new sources of each row of rules.
pub const MULTIPLICITIES: &str = "MULTIPLICITIES";
/// Per-CPU array of one [`crate::admission::Admission`].
pub const ADMISSION: &str = "ADMISSION";
/// Array of one word of [`crate::gcra`] for each row of rules: new sources that it has admitted.
pub const NEW_SOURCES: &str = "NEW_SOURCES";
/// Per-CPU array of one parsed frame.
pub const PARSED: &str = "PARSED";
/// Per-CPU array of one deferred update: a segment and its connection, or a datagram and its flow, as it will be if
/// the packet is admitted.
pub const DEFERRED: &str = "DEFERRED";
/// Per-CPU array of [`super::Counters`], by [`super::counters_index`].
pub const COUNTERS: &str = "COUNTERS";
/// Per-CPU array of `u64`, by [`super::Fault`], and [`super::NOT_CACHED`].
pub const FAULTS: &str = "FAULTS";
/// Per-CPU array of `u64`, by [`super::Rule::row`]: bans that the rule has begun.
pub const BANS_BEGUN: &str = "BANS_BEGUN";
/// Ring of [`super::Event`]s, [`super::EVENTS_BYTES`] long.
pub const EVENTS: &str = "EVENTS";
/// Per-CPU array of [`crate::events::EventTally`], [`super::EVENT_TALLIES`] of them.
pub const EVENT_TALLIES: &str = "EVENT_TALLIES";
/// Ring of [`super::Step`]s, [`super::STEPS_BYTES`] long.
pub const STEPS: &str = "STEPS";
/// Array of one [`super::ChargeOrder`].
pub const CHARGE_ORDER: &str = "CHARGE_ORDER";
/// Per-CPU array of one [`super::Source`], to build a new one in.
pub const SCRATCH: &str = "SCRATCH";
/// Per-CPU array of the clock's last reading, which a timer tick keeps.
pub const CLOCK_CACHE: &str = "CLOCK_CACHE";
/// Array of one `u64`: the time in tests that inject it.
pub const INJECTED_NOW: &str = "INJECTED_NOW";
