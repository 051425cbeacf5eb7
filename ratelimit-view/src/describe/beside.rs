//! Words for `[safety]`, `[history]` and `[fleet]`, and for limits that hosts share.

use std::path::PathBuf;

use ratelimit_policy::config::fleet::Fleet;
use ratelimit_policy::config::history::History;
use ratelimit_policy::config::{Config, Safety, amount, duration, without_daemon};
use ratelimit_policy::desired::Limit;
use ratelimit_policy::fleet::{Sum, acl_line};

/// Describes the history: place, duration, size, and the part of an address that is kept.
pub(super) fn history_words(history: &History) -> String {
    if !history.enabled {
        return "off: refusals are not recorded".to_owned();
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

/// Describes the fleet: its store, its hosts, and what they exchange.
pub(super) fn fleet_words(fleet: &Fleet) -> Vec<String> {
    let interval = duration::short(u64::try_from(fleet.interval.as_nanos()).unwrap_or(u64::MAX));
    let (name, urls, hosts) = (&fleet.name, fleet.store.urls.join(", "), fleet.hosts);
    let file = |what: &str, path: &Option<PathBuf>| Some(format!("{what} {}", path.as_ref()?.display()));
    let access = [
        file("secret", &fleet.secret_file).or_else(|| Some("no secret".to_owned())),
        Some(format!("user {}", fleet.store.username.as_deref().unwrap_or("default"))),
        file("password", &fleet.store.password_file),
        file("CA", &fleet.store.ca_file),
        file("certificate", &fleet.store.cert_file),
        file("key", &fleet.store.key_file),
    ];
    let mut lines = vec![
        format!("{name} by {urls}, at most {hosts} hosts, which exchange counts every {interval}, urgent ones at once"),
        access.into_iter().flatten().collect::<Vec<_>>().join(", "),
        if fleet.bans { "bans reach all hosts" } else { "bans stay on their host" }.to_owned(),
    ];
    if fleet.floor_percent > 0 {
        lines.push(format!("{}% of each limit is this host's, whatever the store says", fleet.floor_percent));
    }
    lines
}

/// Describes the bound of a shared limit, and what is not summed. None without a fleet.
pub(super) fn shared_words(config: &Config, limit: &Limit) -> Option<String> {
    let fleet = config.fleet.as_ref()?;
    let Some((shared, terms)) = limit.shared.zip(config.terms(limit)) else {
        return Some("not shared: each host applies it separately".to_owned());
    };
    let not_summed = match shared.sum {
        Sum::Verified => "unverified traffic is not summed: each host applies the limit to it separately",
        Sum::All => "all traffic is summed, including what can be forged",
    };
    let floor = match terms.floor(fleet.floor_percent) {
        0 => String::new(),
        floor => format!("; the floor adds up to {}x{floor}", terms.hosts - 1),
    };
    Some(format!("{terms}{floor}; {not_summed}"))
}

/// Returns the line for the store's ACL file that permits its user, with instructions. The line is pasted, so it is not
/// wrapped.
pub fn acl_words(fleet: &Fleet) -> String {
    let (user, line) = acl(fleet);
    let then = if fleet.store.username.is_some() {
        String::new()
    } else {
        format!(", with username = \"{user}\" and password_file in [fleet]")
    };
    format!("For the store's ACL file, with the password instead of PASSWORD{then}:\n{line}\n")
}

/// Returns the configured or default user, and the ACL line.
pub(super) fn acl(fleet: &Fleet) -> (&str, String) {
    let user = fleet.store.username.as_deref().unwrap_or("ratelimitd");
    (user, acl_line(user, &fleet.name))
}

pub(super) fn safety_words(safety: Safety) -> String {
    let is_exempt = |is_exempt: bool, who: &str| format!("{who} {}", if is_exempt { "allowed" } else { "NOT allowed" });
    let breaker = safety.breaker.map_or_else(
        || "no breaker".to_owned(),
        |share| {
            let after = duration::words(safety.breaker_after_ns);
            format!("a rule that drops more than {share}% of its packets for {after} switches to dry run")
        },
    );
    [
        is_exempt(safety.exempt_ssh_peer, "SSH peer"),
        is_exempt(safety.exempt_gateway, "gateways"),
        is_exempt(safety.exempt_resolvers, "name servers"),
        breaker,
        format!("without a daemon {}", without_daemon::words(safety.without_daemon_ns)),
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
        assert_eq!(history_words(&off), "off: refusals are not recorded");
    }
}
