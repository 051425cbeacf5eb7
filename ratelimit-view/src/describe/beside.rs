//! `[safety]` and `[history]` in words: what no packet is judged by.

use ratelimit_policy::config::history::History;
use ratelimit_policy::config::{Safety, amount, duration};

/// Where, for how long, how large, and how much of an address.
pub(super) fn history_words(history: &History) -> String {
    if !history.enabled {
        return "off: nothing is remembered of who was refused".to_owned();
    }
    let place = history
        .path
        .as_ref()
        .map_or_else(|| "history.db in /var/lib/ratelimitd".to_owned(), |path| path.display().to_string());
    let (ipv4, ipv6) = (history.mask_ipv4, history.mask_ipv6);
    let addresses = match (ipv4, ipv6) {
        (32, 128) => "whole addresses".to_owned(),
        _ => format!("IPv4 addresses by /{ipv4}, IPv6 by /{ipv6}"),
    };
    let (keep, size) = (history.keep_words(), amount::rounded(history.bytes_max));
    format!("{place}, for {keep}, at most {size}, {addresses}")
}

pub(super) fn safety_words(safety: Safety) -> String {
    let is_exempt = |is_exempt: bool, who: &str| format!("{who} {}", if is_exempt { "allowed" } else { "NOT allowed" });
    let breaker = safety.breaker.map_or_else(
        || "no breaker".to_owned(),
        |share| {
            let after = duration::words(safety.breaker_after_ns);
            format!("a rule that drops more than {share}% of its packets for {after} goes over to dry run")
        },
    );
    [
        is_exempt(safety.exempt_ssh_peer, "SSH peer"),
        is_exempt(safety.exempt_gateway, "gateways"),
        is_exempt(safety.exempt_resolvers, "name servers"),
        breaker,
    ]
    .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_says_where_it_is_how_long_how_large_and_of_whom() {
        let default = History::default();
        let kept = "history.db in /var/lib/ratelimitd, for 30 days, at most 256 MB, whole addresses";
        assert_eq!(history_words(&default), kept);
        let other = History {
            path: Some("/srv/h.db".into()),
            keep_ns: default.keep_ns / 30,
            bytes_max: 1_000_000,
            mask_ipv4: 24,
            mask_ipv6: 48,
            ..default.clone()
        };
        let kept = "/srv/h.db, for 1 day, at most 1 MB, IPv4 addresses by /24, IPv6 by /48";
        assert_eq!(history_words(&other), kept);
        let off = History { enabled: false, ..default };
        assert_eq!(history_words(&off), "off: nothing is remembered of who was refused");
    }
}
