//! Differences of two configurations outside the policy: `[safety]`, `[history]`, `[fleet]`, candidates and notes.
//! Pure.

use std::path::PathBuf;

use super::{Config, Safety, without_daemon};
use crate::config::fleet::Fleet;
use crate::config::history::History;
use crate::config::lists::bounds::ListBounds;
use crate::desired::Limit;
use crate::text::{amount, duration};

/// Returns one line for each difference, in the words of the file: `history kept for: 30 days -> 7 days`.
pub fn changes(old: &Config, new: &Config) -> Vec<String> {
    let parts = safety(old.safety).into_iter().chain(list_bounds(old.list_bounds)).chain(history(&old.history));
    let after = safety(new.safety).into_iter().chain(list_bounds(new.list_bounds)).chain(history(&new.history));
    let mut lines: Vec<String> =
        parts.zip(after).filter_map(|((what, from), (_, to))| changed(what, &from, &to)).collect();
    lines.extend(fleet(old.fleet.as_ref(), new.fleet.as_ref()));
    for rule in &new.policy.rules {
        let line = changed(&format!("note of rule {}", rule.name), &note(old, &rule.name), &note(new, &rule.name));
        lines.extend(line);
        let of = format!("candidates of rule {}", rule.name);
        let line = changed(&of, &candidates(old, &rule.name), &candidates(new, &rule.name));
        lines.extend(line.map(|line| line + ", counters reset"));
    }
    lines
}

fn changed(what: &str, from: &str, to: &str) -> Option<String> {
    (from != to).then(|| format!("{what}: {from} -> {to}"))
}

fn safety(of: Safety) -> [(&'static str, String); 5] {
    let word = |is_exempt: bool| if is_exempt { "allowed" } else { "NOT allowed" }.to_owned();
    let breaker = of.breaker.map_or_else(
        || "off".to_owned(),
        |percent| format!("more than {percent}% dropped for {}", duration::short(of.breaker_after_ns)),
    );
    [
        ("SSH peer", word(of.exempt_ssh_peer)),
        ("gateways", word(of.exempt_gateway)),
        ("name servers", word(of.exempt_resolvers)),
        ("breaker", breaker),
        ("without a daemon", without_daemon::words(of.without_daemon_ns)),
    ]
}

fn list_bounds(of: ListBounds) -> [(&'static str, String); 2] {
    let or_off = |text: Option<String>| text.unwrap_or_else(|| "off".to_owned());
    [
        ("maximum share of a `deny` list", or_off(of.share.map(|percent| format!("{percent}%")))),
        ("maximum growth of a `deny` list", or_off(of.growth.map(|factor| format!("{factor}x")))),
    ]
}

fn history(of: &History) -> [(&'static str, String); 6] {
    let path = of.path.as_ref().map_or_else(|| "in the state directory".to_owned(), |path| path.display().to_string());
    [
        ("history", if of.enabled { "on" } else { "off" }.to_owned()),
        ("history file", path),
        ("history kept for", of.keep_words()),
        ("history size", amount::rounded(of.bytes_max)),
        ("history of IPv4 addresses", format!("/{}", of.mask_ipv4)),
        ("history of IPv6 addresses", format!("/{}", of.mask_ipv6)),
    ]
}

fn fleet(old: Option<&Fleet>, new: Option<&Fleet>) -> Vec<String> {
    let words = |of: &Fleet| {
        let file =
            |of: &Option<PathBuf>| of.as_ref().map_or_else(|| "none".to_owned(), |path| path.display().to_string());
        [
            ("fleet", format!("{} by {}", of.name, of.store.urls.join(", "))),
            ("fleet secret", file(&of.secret_file)),
            ("fleet user", of.store.username.clone().unwrap_or_else(|| "default".to_owned())),
            ("fleet password", file(&of.store.password_file)),
            ("fleet CA", file(&of.store.ca_file)),
            ("fleet certificate", file(&of.store.cert_file)),
            ("fleet key", file(&of.store.key_file)),
            ("fleet interval", duration::short(u64::try_from(of.interval.as_nanos()).unwrap_or(u64::MAX))),
            ("fleet hosts", of.hosts.to_string()),
            ("fleet bans", if of.bans { "reach all hosts" } else { "stay on their host" }.to_owned()),
            ("fleet floor", format!("{}%", of.floor_percent)),
        ]
    };
    match (old.map(words), new.map(words)) {
        (None, None) => Vec::new(),
        (None, Some([(what, to), ..])) => changed(what, "none", &to).into_iter().collect(),
        (Some([(what, from), ..]), None) => changed(what, &from, "none").into_iter().collect(),
        (Some(from), Some(to)) => {
            from.into_iter().zip(to).filter_map(|((what, from), (_, to))| changed(what, &from, &to)).collect()
        }
    }
}

fn note(config: &Config, rule: &str) -> String {
    let note = config.notes.iter().find(|(name, _)| name == rule);
    note.map_or_else(|| "none".to_owned(), |(_, note)| note.clone())
}

fn candidates(config: &Config, rule: &str) -> String {
    let said = config.candidates.iter().find(|(name, _)| name == rule);
    let words = |limits: &[Limit]| limits.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    said.map_or_else(|| "the default ones".to_owned(), |(_, limits)| words(limits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::config;

    #[test]
    fn each_part_that_no_packet_is_judged_by_has_its_line() {
        let mut old = config(std::path::Path::new("/nonexistent"), 3);
        old.history = History::default();
        let of = |change: fn(&mut Config)| {
            let mut new = old.clone();
            change(&mut new);
            changes(&old, &new)
        };
        assert_eq!(of(|_| {}), [""; 0]);
        let (mut shared, fleet) = (old.clone(), Fleet::at("redis://192.0.2.1"));
        shared.fleet = Some(fleet.clone());
        assert_eq!(changes(&old, &shared), ["fleet: none -> default by redis://192.0.2.1"]);
        assert_eq!(changes(&shared, &old), ["fleet: default by redis://192.0.2.1 -> none"]);
        let changed = |change: fn(&mut Fleet)| {
            let mut new = shared.clone();
            new.fleet.iter_mut().for_each(change);
            changes(&shared, &new)
        };
        for (change, line) in [
            (
                (|of| of.store.urls.push("redis://192.0.2.2".into())) as fn(&mut Fleet),
                "fleet: default by redis://192.0.2.1 -> default by redis://192.0.2.1, redis://192.0.2.2",
            ),
            (|of| of.secret_file = Some("/f".into()), "fleet secret: none -> /f"),
            (|of| of.store.username = Some("rl".into()), "fleet user: default -> rl"),
            (|of| of.store.password_file = Some("/f".into()), "fleet password: none -> /f"),
            (|of| of.store.ca_file = Some("/f".into()), "fleet CA: none -> /f"),
            (|of| of.store.cert_file = Some("/f".into()), "fleet certificate: none -> /f"),
            (|of| of.store.key_file = Some("/f".into()), "fleet key: none -> /f"),
            (|of| of.interval *= 5, "fleet interval: 1s -> 5s"),
            (|of| of.hosts = 4, "fleet hosts: 8 -> 4"),
            (|of| of.bans = false, "fleet bans: reach all hosts -> stay on their host"),
            (|of| of.floor_percent = 10, "fleet floor: 0% -> 10%"),
        ] {
            assert_eq!(changed(change), [line]);
        }
        for (change, line) in [
            ((|of| of.safety.exempt_ssh_peer = false) as fn(&mut Config), "SSH peer: allowed -> NOT allowed"),
            (|of| of.safety.exempt_gateway = false, "gateways: allowed -> NOT allowed"),
            (|of| of.safety.exempt_resolvers = false, "name servers: allowed -> NOT allowed"),
            (|of| of.safety.breaker = Some(90), "breaker: off -> more than 90% dropped for 30s"),
            (
                |of| of.safety.without_daemon_ns = Some(3_600_000_000_000),
                "without a daemon: enforce -> dry-run after 1h",
            ),
            (|of| of.history.enabled = false, "history: on -> off"),
            (|of| of.history.path = Some("/srv/h.db".into()), "history file: in the state directory -> /srv/h.db"),
            (|of| of.history.keep_ns /= 30, "history kept for: 30 days -> 1 day"),
            (|of| of.history.bytes_max = 1_000_000, "history size: 256 MB -> 1 MB"),
            (|of| of.history.mask_ipv4 = 24, "history of IPv4 addresses: /32 -> /24"),
            (|of| of.history.mask_ipv6 = 48, "history of IPv6 addresses: /128 -> /48"),
            (
                |of| of.notes = vec![("default".into(), "for the web".into())],
                "note of rule default: none -> for the web",
            ),
        ] {
            assert_eq!(of(change), [line]);
        }
    }
}
