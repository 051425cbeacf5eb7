//! What a [`Config`] means that its author may not have meant. Pure; nothing here makes a configuration wrong.

use ratelimit_common::layout::Unit;

use super::Config;
use super::duration;
use crate::desired::{Limit, Mode, Rule};

/// A full packet of Ethernet.
const FULL_PACKET_BYTES: u64 = 1500;

/// Warnings, a sentence each without a full stop, in a fixed order.
pub fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    for rule in &config.policy.rules {
        if rule.mode == Mode::DryRun {
            warnings.push(format!("rule {}: DRY RUN: nothing is dropped, only counted as what would be", rule.name));
        }
        warnings.extend(implied(rule));
        warnings.extend(too_small(rule));
        if rule.ports.other_protocols {
            warnings.push(format!("rule {}: every port and protocol is limited, SSH and ICMP included", rule.name));
        } else if rule.ports.tcp.iter().any(|(first, last)| (*first..=*last).contains(&22)) {
            warnings.push(format!("rule {}: port 22 is limited: mind your own SSH connections", rule.name));
        }
    }
    if config.policy.ipv4_prefix == 0 {
        warnings.push("IPv4 clients are told apart by 0 bits: all of them together are one client".to_owned());
    }
    if config.policy.ipv6_prefix == 0 {
        warnings.push("IPv6 clients are told apart by 0 bits: all of them together are one client".to_owned());
    }
    if config.policy.ipv6_prefix > 64 {
        warnings.push(format!(
            "IPv6 clients are told apart by /{}: most hosts own a whole /64 and can be as many clients as they like",
            config.policy.ipv6_prefix
        ));
    }
    for prefix in config.policy.exempt.iter().filter(|prefix| prefix.prefix_len() == 0) {
        warnings.push(format!("{prefix} is exempt: no client of that family is limited"));
    }
    warnings
}

/// Limits of a rule that another limit of it makes idle.
///
/// A limit of N with `behind` full buckets admits at most N in any time of `behind * bucket_ns`, in either form, as such a time
/// lies in one of its sums. The other limit's sums span `(behind + 1) * bucket_ns`.
fn implied(rule: &Rule) -> Vec<String> {
    let implies = |by: &Limit, limit: &Limit| {
        let span_ns = (u64::from(limit.behind()) + 1) * limit.bucket_ns;
        let spans = span_ns.div_ceil((u64::from(by.behind()) * by.bucket_ns).max(1));
        by.unit == limit.unit && by.slot != limit.slot && spans.saturating_mul(by.amount) <= limit.amount
    };
    let idle = |limit: &Limit| {
        let by = rule.limits.iter().find(|by| implies(by, limit))?;
        let window = duration::words(limit.window_ns);
        Some(format!(
            "rule {}: {limit} never holds anything back: {} lets no more than that into {window} already",
            rule.name,
            by.rate()
        ))
    };
    rule.limits.iter().filter_map(idle).collect()
}

/// Limits that one full packet is over. No source gets a window by a packet that fits none, so `check` knows nothing of it.
fn too_small(rule: &Rule) -> impl Iterator<Item = String> {
    let is_small = |limit: &&Limit| limit.unit == Unit::Bytes && limit.amount < FULL_PACKET_BYTES;
    rule.limits.iter().filter(is_small).map(|limit| {
        format!(
            "rule {}: {limit} refuses every full packet, which has {FULL_PACKET_BYTES} bytes, and `check` does not show it",
            rule.name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::{Origin, Settings, Written};

    fn limited(limits: &str) -> Config {
        let written = |flag, text: &str| Written { text: text.into(), origin: Origin::Flag(flag) };
        let settings = Settings {
            interfaces: vec![written("--iface", "eth0")],
            limits: vec![written("--limit", limits)],
            ..Settings::default()
        };
        settings.config().expect("well-formed")
    }

    #[test]
    fn a_limit_is_idle_only_where_another_is_always_reached_first() {
        for (limits, idle) in [
            ("1000/1m,1000/5m", 1),
            ("999/1m,1000/5m", 0),
            ("10/1m,60/1h", 0),
            ("1/1s,70/1m", 1),
            ("1/1s,69/1m", 0),
            ("1000/1m packets,1000/5m", 0),
        ] {
            assert_eq!(warnings(&limited(limits)).len(), idle, "{limits}");
        }
    }

    #[test]
    fn a_limit_of_bytes_that_no_full_packet_fits_is_said() {
        for (limits, said) in
            [("1499/1m bytes", 1), ("1500/1m bytes", 0), ("1kB/1m,20kB/1h", 1), ("2/1m packets", 0), ("2/1m", 0)]
        {
            let found = warnings(&limited(limits));
            assert_eq!(found.len(), said, "{limits}: {found:?}");
            assert!(found.iter().all(|warning| warning.contains("1500 bytes")), "{found:?}");
        }
    }

    #[test]
    fn what_reaches_further_than_web_ports_is_said() {
        let mut config = limited("1000/5m");
        assert!(warnings(&config).is_empty());
        config.policy.rules[0].ports.tcp.push((20, 30));
        config.policy.ipv6_prefix = 128;
        config.policy.rules[0].mode = Mode::DryRun;
        let found = warnings(&config).join("\n");
        for part in ["port 22", "/128", "DRY RUN"] {
            assert!(found.contains(part), "{part}: {found}");
        }
    }
}
