//! Finds and hides secrets that are known by their own form, or by the program that receives them. Pure.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::HIDDEN;
use super::words::Whose;

/// Prefixes of the tokens of well-known services, and the minimum number of characters behind each.
const PREFIXES: [(&str, usize); 39] = [
    ("ghp_", 8),
    ("gho_", 8),
    ("ghu_", 8),
    ("ghs_", 8),
    ("ghr_", 8),
    ("github_pat_", 8),
    ("glpat-", 8),
    ("gldt-", 8),
    ("glrt-", 8),
    ("xoxa-", 8),
    ("xoxb-", 8),
    ("xoxp-", 8),
    ("xoxs-", 8),
    ("xapp-", 8),
    ("sk-", 16),
    ("sk_live_", 8),
    ("sk_test_", 8),
    ("rk_live_", 8),
    ("pk_live_", 8),
    ("whsec_", 8),
    ("AKIA", 12),
    ("ASIA", 12),
    ("AIza", 16),
    ("ya29.", 8),
    ("eyJ", 16),
    ("npm_", 16),
    ("pypi-", 16),
    ("dop_v1_", 8),
    ("hvs.", 8),
    ("hf_", 16),
    ("shpat_", 8),
    ("dckr_pat_", 8),
    ("glsa_", 8),
    ("tskey-", 8),
    ("AGE-SECRET-KEY-", 8),
    ("SG.", 16),
    ("$2", 20),
    ("$argon2", 8),
    ("$6$", 8),
];

/// Programs that accept passwords as arguments.
const PROGRAMS: [&str; 34] = [
    "sshpass",
    "redis-cli",
    "valkey-cli",
    "keydb-cli",
    "curl",
    "wget",
    "http",
    "https",
    "mysql",
    "mysqldump",
    "mysqladmin",
    "mariadb",
    "mariadb-dump",
    "mongosh",
    "mongo",
    "mongodump",
    "psql",
    "ldapsearch",
    "ldapadd",
    "ldapmodify",
    "smbclient",
    "mosquitto_pub",
    "mosquitto_sub",
    "htpasswd",
    "rabbitmqadmin",
    "etcdctl",
    "influx",
    "docker",
    "podman",
    "skopeo",
    "helm",
    "kubectl",
    "gh",
    "lftp",
];
/// Short options of those programs that take a password.
const OPTIONS: [char; 7] = ['a', 'b', 'p', 'P', 'u', 'U', 'w'];
/// Long options that take a user and a password, of these and other programs.
const LONG: [&str; 8] =
    ["--user", "--userpwd", "--proxy-user", "--auth", "--pass", "--login", "--credentials", "--askpass"];

/// Minimum length of a token with its prefix.
const PREFIXED_MIN: usize = 11;
/// Minimum lengths of a token without a known prefix that is hidden for its characters.
const MADE_UP_MIN: usize = 6;
const MIXED_MIN: usize = 16;
const HEX_MIN: usize = 32;
/// Maximum depth of percent encodings, as a URL may be in a URL.
const ENCODED_DEPTH: usize = 3;

/// Returns the line without secrets that are known by their form.
pub(super) fn hide(line: &str, whose: Whose) -> String {
    let line = hide_urls(line);
    let is_comment = whose == Whose::Users || line.trim_start().starts_with(['#', ';']);
    let mut out = String::with_capacity(line.len());
    let (mut is_of_program, mut is_next, mut before) = (false, false, "");
    for piece in line.split_inclusive(char::is_whitespace) {
        let token = piece.trim_end();
        let space = &piece[token.len()..];
        let start = token.len() - token.trim_start_matches(['"', '\'', '`', '(', '[', '{', '<', ',']).len();
        let core = token[start..].trim_end_matches(['"', '\'', '`', ')', ']', '}', ',', ';', '.']);
        let (head, tail) = (&token[..start], &token[start + core.len()..]);
        out.push_str(head);
        let is_basic = before.eq_ignore_ascii_case("basic") || before.eq_ignore_ascii_case("digest");
        if core.is_empty() || core.contains(HIDDEN) && !is_next {
            out.push_str(&by_form(core, is_comment));
        } else if is_next || (is_basic && (is_made_up(core) || core.len() >= MIXED_MIN)) {
            out.push_str(HIDDEN);
            is_next = false;
        } else {
            let (shown, next) = of_option(core, is_of_program);
            is_next = next;
            match shown {
                Some(shown) => out.push_str(&shown),
                None => out.push_str(&by_form(core, is_comment)),
            }
        }
        is_of_program |= core.rsplit('/').next().is_some_and(|name| PROGRAMS.contains(&name));
        before = if core.is_empty() { before } else { core };
        out.push_str(tail);
        out.push_str(space);
    }
    out
}

/// Returns what is shown of an option with its value, and whether the next token is its value.
fn of_option(core: &str, is_of_program: bool) -> (Option<String>, bool) {
    let (option, value) = core.split_once('=').map_or((core, None), |(option, value)| (option, Some(value)));
    if LONG.contains(&option) {
        let shown = value.map(|_| format!("{option}={HIDDEN}"));
        return (shown, value.is_none());
    }
    let Some(letters) = core.strip_prefix('-').filter(|_| !core.starts_with("--")) else { return (None, false) };
    if core == "-u" && !is_of_program {
        return (None, false);
    }
    let is_one = letters.starts_with(OPTIONS) && is_of_program;
    match letters.chars().count() {
        1 => (None, is_one),
        // A group of options that ends in `u`: `-fsu user:X`.
        _ if is_of_program && letters.ends_with('u') && letters.chars().all(char::is_alphabetic) => (None, true),
        _ if is_one && letters.chars().skip(1).any(|c| !c.is_ascii_digit()) => {
            (Some(format!("-{}{HIDDEN}", letters.chars().next().unwrap_or_default())), false)
        }
        _ => (None, false),
    }
}

/// Returns a token without the parts that its form shows to be secret.
fn by_form(core: &str, is_comment: bool) -> String {
    if let Some(decoded) = decoded(core) {
        let hidden = without_user(&hide_urls(&decoded));
        if hidden != decoded {
            return hidden;
        }
    }
    let text = without_prefixed(&without_user(core));
    let is_mixed = text.len() >= MIXED_MIN && {
        let has = |is: fn(&char) -> bool| text.chars().any(|c| is(&c));
        has(char::is_ascii_uppercase) && has(char::is_ascii_lowercase) && has(char::is_ascii_digit) && is_made_up(&text)
    };
    let is_hex = text.len() >= HEX_MIN && text.bytes().all(|c| c.is_ascii_hexdigit());
    if is_comment && (is_mixed || is_hex) && !text.contains(HIDDEN) {
        // The name before the `=` or `:` stays.
        let from = text.rfind(['=', ':']).filter(|at| at + 1 < text.len()).map_or(0, |at| at + 1);
        let from = text.find('=').filter(|at| at + 1 < text.len()).map_or(from, |at| at + 1);
        return format!("{}{HIDDEN}", &text[..from]);
    }
    text
}

/// Hides the user part of `user:X@host` and `//user:X@host`: URLs without a scheme, and with escaped slashes.
fn without_user(core: &str) -> String {
    let Some((user, host)) = core.rsplit_once('@') else { return core.to_owned() };
    let from = user.rfind("//").or_else(|| user.rfind("\\/\\/").map(|at| at + 2)).map_or(0, |at| at + 2);
    let from = if from == 0 { user.find('=').map_or(0, |at| at + 1) } else { from };
    let (before, user) = user.split_at(from);
    let has_password = user.find(':').is_some_and(|at| at + 1 < user.len());
    if user == HIDDEN || host.is_empty() || !(has_password || before.ends_with('/')) {
        return core.to_owned();
    }
    format!("{before}{HIDDEN}@{host}")
}

fn without_prefixed(core: &str) -> String {
    let mut out = core.to_owned();
    if core.len() < PREFIXED_MIN {
        return out;
    }
    for (prefix, least) in PREFIXES {
        let mut from = 0;
        while let Some(at) = out.get(from..).and_then(|rest| rest.find(prefix)).map(|at| from + at) {
            let is_word = out[..at].ends_with(|c: char| c.is_alphanumeric());
            let rest = &out[at + prefix.len()..];
            let len = rest.find(|c: char| !(c.is_alphanumeric() || "_-.+/=$,".contains(c))).unwrap_or(rest.len());
            if !is_word && len >= least {
                out.replace_range(at..at + prefix.len() + len, HIDDEN);
                from = at + HIDDEN.len();
            } else {
                from = at + prefix.len();
            }
        }
    }
    out
}

/// Returns the percent-decoded text, decoded up to [`ENCODED_DEPTH`] times; `None` if nothing was encoded.
fn decoded(core: &str) -> Option<String> {
    let mut text = core.to_owned();
    for _ in 0..ENCODED_DEPTH {
        let next = decoded_once(&text);
        if next == text {
            break;
        }
        text = next;
    }
    (text != core).then_some(text)
}

fn decoded_once(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).filter(|_| *first == b'%').and_then(|of| std::str::from_utf8(of).ok());
        let byte = digits.filter(|of| of.bytes().all(|c| c.is_ascii_hexdigit()));
        match byte.and_then(|of| u8::from_str_radix(of, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns true if a token is no word of a language: letters with digits or signs, and neither a path, an address nor a
/// date.
pub(super) fn is_made_up(token: &str) -> bool {
    let token = token.trim_matches(['"', '\'', '`', '(', ')', '[', ']', '{', '}', ',', ';', '.', ':']);
    let is_address =
        token.parse::<IpAddr>().is_ok() || token.parse::<IpNet>().is_ok() || token.parse::<SocketAddr>().is_ok();
    let is_date = token.as_bytes().get(..5).is_some_and(|of| of[..4].iter().all(u8::is_ascii_digit) && of[4] == b'-');
    let has = |is: fn(char) -> bool| token.chars().any(is);
    token.len() >= MADE_UP_MIN
        && !(is_address || is_date || is_path(token) || token.contains(HIDDEN) || token.contains("://"))
        && has(char::is_alphabetic)
        && has(|c| c.is_ascii_digit() || "!$%^&*+=~#?@".contains(c))
}

/// Returns true for paths such as `/etc/x.key`. Base64 has no dots, and often a `+` or `=`.
pub(super) fn is_path(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '@');
    let rest = ["~/", "./", "../", "/"].iter().find_map(|start| text.strip_prefix(start));
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()) && rest.contains(['/', '.']))
        && text.chars().skip(1).all(is_part)
}

/// Returns the text with its made-up tokens hidden.
pub(super) fn without_made_up(text: &str) -> String {
    let shown = |piece: &str| {
        let token = piece.trim_end();
        if is_made_up(token) { format!("{HIDDEN}{}", &piece[token.len()..]) } else { piece.to_owned() }
    };
    text.split_inclusive(char::is_whitespace).map(shown).collect()
}

/// Hides what stands before the `@` of URLs, where an unescaped slash is possible. Also hides their paths and queries,
/// as webhooks and feeds have their keys there.
///
/// Two parts are not hidden: a local path without a host, except for its query, and the number of a store's database.
fn hide_urls(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("://") {
        out.push_str(before);
        out.push_str("://");
        let len =
            after.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`')).unwrap_or(after.len());
        let (url, further) = after.split_at(len);
        let url = match url.rsplit_once('@') {
            Some((_, host)) => {
                out.push_str(HIDDEN);
                out.push('@');
                host
            }
            None => url,
        };
        let is_local = url.starts_with('/');
        let shown = url.find(|c: char| matches!(c, '?' | '#') || (c == '/' && !is_local)).unwrap_or(url.len());
        let (host, behind) = url.split_at(shown);
        out.push_str(host);
        let plain = behind.trim_end_matches([')', ']', ',', '.', ';', ':', '}', '|']);
        let is_database =
            plain.strip_prefix('/').is_some_and(|of| of.len() <= 2 && of.bytes().all(|c| c.is_ascii_digit()));
        if is_database || plain.is_empty() {
            out.push_str(behind);
        } else {
            out.push_str(plain.get(..1).unwrap_or_default());
            out.push_str(HIDDEN);
            out.push_str(&behind[plain.len()..]);
        }
        rest = further;
    }
    out.push_str(rest);
    out
}
