//! Kernel memory for source prefixes: lists, allowed and denied prefixes, and prefixes of rules. Unlike other maps,
//! tries allocate memory as they are filled.

use ipnet::IpNet;
use ratelimit_common::layout::{GENERATIONS, Prefix, PrefixKeyV4, PrefixKeyV6};
use ratelimit_policy::config::{Config, amount};
use serde::Serialize;

/// Minimum number of prefixes for which the memory is reported.
const SAID_FROM: usize = 1024;
/// Bytes before the data of a node: `struct lpm_trie_node` in kernel/bpf/lpm_trie.c with its `rcu_head`, Linux 5.18.
/// Since 6.13, 8 bytes fewer.
const NODE_BYTES: usize = 40;
/// Maximum number of nodes for a prefix: its own, and one at which two prefixes branch.
const NODES_PER_PREFIX: u64 = 2;
/// Sizes of the kernel's allocations in bytes.
const SLABS: [usize; 4] = [64, 96, 128, 192];
/// Additional bytes of an allocation: its memory owner, and a share of the unused part of a page. On Linux 6.18,
/// 1048576 separate prefixes took 107 B per node.
const BESIDE_BYTES: usize = 12;

/// Numbers of source prefixes, and their kernel memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PrefixesMemory {
    /// Number of IPv4 prefixes.
    pub ipv4: usize,
    /// Number of IPv6 prefixes.
    pub ipv6: usize,
    /// Maximum number of bytes when the prefixes are loaded.
    pub bytes: u64,
    /// Maximum number of bytes after a change: the generation that packets read, and the one written next.
    pub bytes_changed: u64,
}

/// Returns the numbers of source prefixes, and their kernel memory.
pub fn prefixes_memory(config: &Config) -> PrefixesMemory {
    let of_rules = config.policy.rules.iter().flat_map(|rule| rule.from.iter().copied());
    let mut all: Vec<IpNet> = config.policy.access.iter().map(|access| access.prefix).chain(of_rules).collect();
    all.sort_unstable();
    all.dedup();
    let ipv4 = all.iter().filter(|prefix| prefix.addr().is_ipv4()).count();
    of_so_many(ipv4, all.len() - ipv4)
}

fn of_so_many(ipv4: usize, ipv6: usize) -> PrefixesMemory {
    let bytes =
        ipv4 as u64 * prefix_bytes(size_of::<PrefixKeyV4>()) + ipv6 as u64 * prefix_bytes(size_of::<PrefixKeyV6>());
    PrefixesMemory { ipv4, ipv6, bytes, bytes_changed: u64::from(GENERATIONS) * bytes }
}

/// Returns the bytes of one prefix. `key` is the length of its key in bytes after the prefix length.
fn prefix_bytes(key: usize) -> u64 {
    let node = NODE_BYTES + key + size_of::<Prefix>();
    let object = SLABS.into_iter().find(|slab| *slab >= node).unwrap_or(node.next_power_of_two());
    (object + BESIDE_BYTES) as u64 * NODES_PER_PREFIX
}

/// Describes the memory of many prefixes: `1048576 prefixes of IPv4 and 0 of IPv6 take up to 226 MB of kernel memory,
/// and 453 MB once they change`. None if there are few.
pub fn prefixes_words(of: &PrefixesMemory) -> Option<String> {
    let PrefixesMemory { ipv4, ipv6, bytes, bytes_changed } = of;
    (ipv4 + ipv6 >= SAID_FROM).then(|| {
        format!(
            "{ipv4} prefixes of IPv4 and {ipv6} of IPv6 take up to {} of kernel memory, and {} once they change",
            amount::rounded(*bytes),
            amount::rounded(*bytes_changed)
        )
    })
}

/// Warns if the prefixes need more memory than the `available` bytes.
pub fn prefixes_warning(of: &PrefixesMemory, available: u64) -> Option<String> {
    let words = prefixes_words(of).filter(|_| of.bytes_changed > available)?;
    let what = if of.bytes > available { "will not be loaded" } else { "may not be changed while it runs" };
    let free = amount::rounded(available);
    Some(format!("{words}; {free} are available, so they {what}: name fewer, or shorter ones"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_take_two_nodes_each_and_twice_that_once_they_change() {
        let of = of_so_many(1_000_000, 10);
        assert_eq!(of, PrefixesMemory { ipv4: 1_000_000, ipv6: 10, bytes: 216_002_160, bytes_changed: 432_004_320 });
        assert_eq!(
            prefixes_words(&of).unwrap(),
            format!(
                "1000000 prefixes of IPv4 and 10 of IPv6 take up to {} of kernel memory, and {} once they change",
                amount::rounded(216_002_160),
                amount::rounded(432_004_320)
            )
        );
        assert_eq!(
            (prefixes_words(&of_so_many(1023, 0)), prefixes_words(&of_so_many(0, 1024)).is_some()),
            (None, true)
        );
    }

    #[test]
    fn memory_that_is_not_there_is_warned_of() {
        let of = of_so_many(1_000_000, 0);
        let said = |available| prefixes_warning(&of, available).unwrap_or_default();
        assert_eq!(said(of.bytes_changed), "");
        assert!(said(of.bytes_changed - 1).contains("may not be changed while it runs"), "{}", said(0));
        assert!(said(of.bytes).contains("may not be changed while it runs"));
        assert!(said(of.bytes - 1).contains("will not be loaded"));
        assert_eq!(prefixes_warning(&of_so_many(1000, 0), 0), None);
    }
}
