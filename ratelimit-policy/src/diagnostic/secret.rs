//! Detection of lines that may hold a password or a key written there by mistake, so that they are not shown. Pure.
//! Works on text, because a file with invalid TOML has lines too.

use std::net::Ipv6Addr;

/// Keys under `[fleet]` with values that are never secret, not even invalid ones.
const OPEN: [&str; 11] = [
    "name",
    "interval",
    "hosts",
    "bans",
    "floor",
    "username",
    "secret_file",
    "password_file",
    "ca_file",
    "cert_file",
    "key_file",
];

/// Parts of a key's name that mark its value as a secret.
const SECRET: [&str; 5] = ["password", "passwd", "secret", "token", "auth"];

/// Returns true if a line may hold a secret. `before` is the text above the line.
pub(super) fn may_hold_one(before: &str, line: &str) -> bool {
    let key = line.split_once('=').map(|(key, _)| key.trim().trim_matches(['"', '\'']).to_lowercase());
    let key = key.as_deref().map(|key| key.rsplit('.').next().unwrap_or(key));
    let is_named = key.is_some_and(|key| SECRET.iter().any(|part| key.contains(part)) && !key.ends_with("_file"));
    let has_user = line.split("://").skip(1).any(in_address);
    if is_named || has_user {
        return true;
    }
    let is_of_fleet = header_above(before) == Some("fleet") || is_fleet_key(line);
    let is_open = key.is_some_and(|key| OPEN.contains(&key) && !line.contains('@') && !is_fleet_table(line));
    let is_plain_address = key == Some("url") && line.contains("://") && !has_more_than_texts(line);
    is_of_fleet && header(line).is_none() && !is_open && !is_plain_address
}

/// Returns true if an address may hold a password: it has more than a host and a port. `rest` begins behind the
/// scheme.
pub(crate) fn in_address(rest: &str) -> bool {
    let rest = rest.split(['"', '\'', ',']).next().unwrap_or(rest);
    let behind_brackets = rest.rsplit(']').next().unwrap_or(rest);
    let port = behind_brackets.split_once(':').map(|(_, port)| port.trim_end_matches('/'));
    let is_bare = rest.trim_end_matches('/').parse::<Ipv6Addr>().is_ok();
    rest.contains(['@', '?', '%'])
        || !is_bare && port.is_some_and(|port| !port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns true if the value of a line has anything besides quoted texts.
fn has_more_than_texts(line: &str) -> bool {
    let value = line.split_once('=').map_or(line, |(_, value)| value);
    value
        .split('"')
        .step_by(2)
        .any(|outside| outside.contains(|c: char| !c.is_whitespace() && !matches!(c, '[' | ']' | ',')))
}

/// Returns the name of the table from the last header above the line.
fn header_above(before: &str) -> Option<&str> {
    before.lines().rev().find_map(header)
}

/// Returns the first part of the name in a table header.
fn header(line: &str) -> Option<&str> {
    let name = line.trim().strip_prefix('[')?.trim_start_matches('[');
    let name = name.split([']', '.']).next()?.trim().trim_matches(['"', '\'']);
    // Anything else in brackets is a value of a list that spans several lines.
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')).then_some(name)
}

fn is_fleet_key(line: &str) -> bool {
    line.trim_start().strip_prefix("fleet").is_some_and(|rest| rest.trim_start().starts_with(['.', '=']))
}

fn is_fleet_table(line: &str) -> bool {
    is_fleet_key(line) && line.contains('{')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_may_hold_a_password_are_not_repeated() {
        for (before, line) in [
            ("", "url = \"redis://:hunter2@192.0.2.1"),
            ("[fleet]\n", "url = [\"redis://192.0.2.1\", \"redis://:hunter2@192.0.2.1\"]"),
            ("[fleet]\nurl = [\n", "  \"redis://rl:hunter2@192.0.2.1\""),
            ("[fleet]\n", "url = \"redis://192.0.2.1?password=hunter2"),
            ("[fleet]\n", "url = \"redis://rl:hunter2\""),
            ("[fleet]\n", "url = \"redis://:hunter2%40192.0.2.1\""),
            ("[fleet]\n", "url = \"redis://192.0.2.1\" hunter2"),
            ("[fleet]\n", "url = [\"redis://192.0.2.1\"] # hunter2"),
            ("[fleet]\n", "url = hunter2"),
            ("[fleet]\n", "pass = hunter2"),
            ("[fleet]\n", "hunter2"),
            ("[fleet]\n", "  hunter2 # mine"),
            ("[fleet]\n", "username = \"rl:hunter2@\""),
            ("[ \"fleet\" ]\n", "key = \"hunter2\""),
            ("[fleet.store]\n", "x = \"hunter2\""),
            ("", "fleet.pass = \"hunter2"),
            ("", "fleet = { pass = \"hunter2\", name = \"web\" "),
            ("", "password = \"hunter2\""),
            ("[[rule]]\n", "secret = hunter2"),
        ] {
            assert!(may_hold_one(before, line), "{before}{line}");
        }
    }

    #[test]
    fn lines_without_a_password_are_shown() {
        for (before, line) in [
            ("[fleet]\n", "hosts = 4x"),
            ("[fleet]\n", "interval = 1s"),
            ("[fleet]\n", "secret_file = fleet.secret"),
            ("[fleet]\n", "url = \"redi://192.0.2.1:6379\""),
            ("[fleet]\n", "url = [\"redis://[2001:db8::1]:6379\", \"redis://store/\"]"),
            ("", "[fleet"),
            ("[fleet]\nhosts = 4\n[[rule]]\n", "limit = [\"1000/5m\""),
            ("", "listen = 127.0.0.1:9464"),
            ("", "limits = [\"1000/5m\" # fleet"),
        ] {
            assert!(!may_hold_one(before, line), "{before}{line}");
        }
    }
}
