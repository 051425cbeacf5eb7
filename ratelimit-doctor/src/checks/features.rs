//! Kernel features that the program needs, each with its purpose and the first mainline version that has it. Pure data.
//!
//! The version only selects the package that brings the feature. The probe tries whether the kernel has the feature.

use crate::distribution::Version;

/// A feature that [`ratelimit_kernel::probe`] tries.
pub(super) struct Feature {
    /// Name, as the probe gives it.
    pub(super) name: &'static str,
    /// First mainline version with the feature.
    pub(super) since: Version,
    /// Purpose of the feature in the program.
    pub(super) purpose: &'static str,
}

/// First mainline version with all required features.
pub(super) const SINCE_ALL: Version = (5, 18);
/// First mainline version with TCX.
pub(super) const TCX_SINCE: Version = (6, 6);

const fn feature(name: &'static str, since: Version, purpose: &'static str) -> Feature {
    Feature { name, since, purpose }
}

/// Every feature without which the program cannot be loaded.
pub(super) const FEATURES: [Feature; 24] = [
    feature("program type xdp", (4, 8), "judging packets before the network stack"),
    feature("XDP programs for frames of several buffers", SINCE_ALL, "large frames"),
    feature("BPF links on XDP", (5, 9), "an attachment that no other program replaces"),
    feature("map array", (3, 19), "the configuration"),
    feature("map hash", (3, 19), "bans and connections"),
    feature("map LPM trie", (4, 11), "lists of prefixes"),
    feature("map LRU hash", (4, 10), "the windows of sources"),
    feature("map per-CPU array", (4, 6), "counters"),
    feature("map ring buffer", (5, 8), "events"),
    feature("function bpf_map_lookup_elem", (3, 19), "every map"),
    feature("function bpf_map_update_elem", (3, 19), "every map"),
    feature("function bpf_ktime_get_ns", (4, 1), "the time"),
    feature("function bpf_jiffies64", (5, 6), "the time, at less cost"),
    feature("function bpf_skc_lookup_tcp", (5, 2), "verifying connections"),
    feature("function bpf_sk_release", (4, 20), "verifying connections"),
    feature("function bpf_tcp_check_syncookie", (5, 2), "verifying connections under a SYN flood"),
    feature("function bpf_skc_to_tcp_sock", (5, 9), "counting requests by the host's own sockets"),
    feature("function bpf_skc_to_tcp_request_sock", (5, 9), "verifying handshakes"),
    feature("function bpf_ringbuf_reserve", (5, 8), "events"),
    feature("function bpf_ringbuf_submit", (5, 8), "events"),
    feature("function bpf_ringbuf_query", (5, 8), "events"),
    feature("function bpf_loop", (5, 17), "reading packets of any length within the verifier's bounds"),
    feature("function bpf_xdp_get_buff_len", SINCE_ALL, "large frames"),
    feature("function bpf_xdp_adjust_tail", (4, 18), "answering refused clients"),
];

/// Returns the row of a feature by its name.
pub(super) fn feature_named(name: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|of| of.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ratelimit_kernel::probe::{HELPERS, MAPS};

    use super::*;

    #[test]
    fn the_table_has_exactly_the_probed_features() {
        let tried = MAPS.iter().map(|(name, _)| format!("map {name}"));
        let tried = tried.chain(HELPERS.iter().map(|(name, _)| format!("function {name}")));
        let others = ["program type xdp", "XDP programs for frames of several buffers", "BPF links on XDP"];
        let tried: BTreeSet<String> = tried.chain(others.map(str::to_owned)).collect();
        assert_eq!(tried, FEATURES.iter().map(|of| of.name.to_owned()).collect());
        assert_eq!(FEATURES.len(), tried.len(), "no feature is listed twice");
        assert_eq!(FEATURES.iter().map(|of| of.since).max(), Some(SINCE_ALL));
    }
}
