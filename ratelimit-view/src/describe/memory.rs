//! Kernel memory of the maps that are allocated at the start, before the first packet arrives.

use ratelimit_common::admission::CELLS_PER_SUMMARY;
use ratelimit_common::ban::Ban;
use ratelimit_common::conversation::Conversation;
use ratelimit_common::drop_cache::{CacheSet, DropCause, WAYS};
use ratelimit_common::flow::Flow;
use ratelimit_common::layout::{
    BANS_CAPACITY, CONVERSATIONS_CAPACITY, ConversationKeyV4, ConversationKeyV6, EVENTS_BYTES, FLOWS_CAPACITY,
    FlowKeyV4, FlowKeyV6, PREFIX_MISSES_PER_SET, SETS_PER_CONN_CELL, SETS_PER_WORD, STEPS_BYTES, Source, SourceKeyV4,
    SourceKeyV6, SourceKeyV6Wide,
};
use ratelimit_common::source::Family;
use ratelimit_policy::config::{Config, amount};
use ratelimit_policy::desired::drop_cache_sets;
use serde::Serialize;

/// Overhead of an element of a hash map, in bytes: `struct htab_elem` in kernel/bpf/hashtab.c, Linux 6.18.
const ELEMENT_OVERHEAD_BYTES: u64 = 48;
/// Bytes of `struct bucket` in that file. A map has one bucket for each possible element, rounded up to a power of two.
const BUCKET_BYTES: u64 = 16;

/// Returns the bytes of a hash map's element. Key and value are rounded up to 8 bytes each.
const fn element_bytes(key: usize, value: usize) -> u64 {
    ELEMENT_OVERHEAD_BYTES + (key.next_multiple_of(8) + value.next_multiple_of(8)) as u64
}

/// Returns the bytes of the buckets of a hash map.
const fn buckets_bytes(elements: u64) -> u64 {
    elements.next_power_of_two() * BUCKET_BYTES
}

/// Returns the bytes of a hash map with this number of elements.
const fn map_bytes<K, V>(elements: u32) -> u64 {
    let elements = elements as u64;
    elements * element_bytes(size_of::<K>(), size_of::<V>()) + buckets_bytes(elements)
}

/// Kernel memory for the sources of one address family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Name of the family: `ipv4` or `ipv6`.
    pub family: &'static str,
    /// Maximum number of tracked sources.
    pub sources: u64,
    /// Number of limits that count each source, see [`ratelimit_policy::desired::Policy::windows_per_source`].
    pub limits: u64,
    /// Bytes of one source in one limit, rounded up, with a share of the map's buckets.
    pub element_bytes: u64,
    /// Total bytes of the family.
    pub bytes: u64,
}

/// Returns the kernel memory for the sources, IPv4 first.
pub fn memory(config: &Config) -> [Memory; 2] {
    let limits = u64::from(config.policy.windows_per_source());
    let of = |family: &'static str, key: Family| {
        let key = match key {
            Family::V4 => size_of::<SourceKeyV4>(),
            Family::V6 => size_of::<SourceKeyV6>(),
            Family::V6Wide => size_of::<SourceKeyV6Wide>(),
        };
        let (sources, elements) = (u64::from(config.max_sources), u64::from(config.max_sources) * limits);
        // The map has room for a few more elements, so a power of two needs twice as many buckets.
        let buckets = buckets_bytes(elements + 1).div_ceil(elements.max(1));
        let element_bytes = element_bytes(key, size_of::<Source>()) + buckets;
        Memory { family, sources, limits, element_bytes, bytes: elements * element_bytes }
    };
    [of("ipv4", Family::V4), of("ipv6", Family::of_ipv6_prefix(config.policy.ipv6_prefix))]
}

/// Kernel memory of the caches beside the windows, for both families together: drop cache, known sources, prefix
/// misses, and the host's own connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CachesMemory {
    /// Number of cache sets, each for eight windows.
    pub lines: u64,
    /// Total bytes of the caches.
    pub bytes: u64,
    /// Bytes for each source that one family can track, rounded up.
    pub source_bytes: u64,
}

/// Returns the kernel memory of the caches beside the windows.
pub fn caches_memory(config: &Config) -> CachesMemory {
    let lines = drop_cache_sets(config.max_sources.saturating_mul(config.policy.windows_per_source()));
    let (line, word) = (size_of::<CacheSet>() as u64, size_of::<u64>() as u64);
    // Each set has drop-cache entries with their causes, known sources, connections and prefix misses. A word for
    // several sets says which of them have entries. Another cell says which have known sources.
    let (causes, cell, unlisted) =
        (size_of::<[DropCause; WAYS]>() as u64, 2 * word, u64::from(PREFIX_MISSES_PER_SET) * word);
    let connections = 2 * cell / u64::from(SETS_PER_CONN_CELL);
    let bytes = u64::from(lines) * (line + causes + cell + connections + unlisted)
        + u64::from(lines / SETS_PER_WORD) * word
        + u64::from(lines / CELLS_PER_SUMMARY) * cell;
    CachesMemory { lines: lines.into(), bytes, source_bytes: bytes.div_ceil(config.max_sources.max(1).into()) }
}

/// Returns the bytes of the maps of connections and flows, which have a fixed size.
const fn connections_bytes() -> u64 {
    map_bytes::<ConversationKeyV4, Conversation>(CONVERSATIONS_CAPACITY)
        + map_bytes::<ConversationKeyV6, Conversation>(CONVERSATIONS_CAPACITY)
        + map_bytes::<FlowKeyV4, Flow>(FLOWS_CAPACITY)
        + map_bytes::<FlowKeyV6, Flow>(FLOWS_CAPACITY)
}

/// Returns the bytes of the ban maps, which have a fixed size.
const fn bans_bytes() -> u64 {
    map_bytes::<SourceKeyV4, Ban>(BANS_CAPACITY)
        + map_bytes::<SourceKeyV6, Ban>(BANS_CAPACITY)
        + map_bytes::<SourceKeyV6Wide, Ban>(BANS_CAPACITY)
}

/// Returns all kernel memory in bytes that is allocated before the first packet arrives. Memory for each possible
/// processor is not included.
pub fn memory_bytes(config: &Config) -> u64 {
    let [ipv4, ipv6] = memory(config).map(|memory| memory.bytes);
    let rings = u64::from(EVENTS_BYTES) + u64::from(STEPS_BYTES);
    ipv4 + ipv6 + caches_memory(config).bytes + connections_bytes() + bans_bytes() + rings
}

/// Describes all kernel memory that is allocated before the first packet arrives, in a phrase.
pub fn memory_short(config: &Config) -> String {
    let bytes = memory_bytes(config);
    let of_one = memory(config).map(|memory| memory.element_bytes * memory.limits).into_iter().max().unwrap_or(0);
    format!("{} for {} sources of each family, up to {of_one} B each", amount::rounded(bytes), config.max_sources)
}

pub(super) fn of_sources_words(memory: &Memory) -> String {
    let family = if memory.family == "ipv4" { "IPv4" } else { "IPv6" };
    let limits = if memory.limits == 1 { String::new() } else { format!(" x {} windows", memory.limits) };
    let bytes = amount::rounded(memory.bytes);
    format!("{family}: {} sources x {} B{limits} = {bytes}", memory.sources, memory.element_bytes)
}

pub(super) fn of_caches_words(of: &CachesMemory) -> String {
    let bytes = amount::rounded(of.bytes);
    format!("drop cache and other caches: {} sets = {bytes}, {} B a source", of.lines, of.source_bytes)
}

pub(super) fn of_connections_words() -> String {
    let bytes = amount::rounded(connections_bytes());
    format!("{CONVERSATIONS_CAPACITY} connections and {FLOWS_CAPACITY} UDP flows of each = {bytes}")
}

pub(super) fn of_bans_words() -> String {
    format!("{BANS_CAPACITY} bans of each kind of source = {}", amount::rounded(bans_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_take_what_the_kernel_allocates_for_them() {
        let directory = std::path::Path::new("/run");
        let of = caches_memory(&ratelimit_report::fixture::config(directory, 10));
        assert_eq!((of.lines, of.bytes, of.source_bytes), (32_768, 8_437_760, 33));
    }

    #[test]
    fn an_element_takes_what_the_kernel_allocates() {
        let config = ratelimit_report::fixture::config(std::path::Path::new("/run"), 10);
        let [ipv4, ipv6] = memory(&config);
        // Values from the descriptors of maps of these and slightly larger sizes: two buckets for each element, of 16
        // bytes.
        assert_eq!((ipv4.element_bytes, ipv6.element_bytes), (128 + 32, 136 + 32));
        assert_eq!(map_bytes::<ConversationKeyV4, Conversation>(131_072), 17_825_792);
        assert_eq!(map_bytes::<FlowKeyV6, Flow>(65_536), 6_815_744);
        assert_eq!(map_bytes::<SourceKeyV6Wide, Ban>(65_536), 7_864_320);
        assert_eq!(map_bytes::<SourceKeyV4, Ban>(65_537), 65_537 * 88 + 131_072 * 16);
    }
}
