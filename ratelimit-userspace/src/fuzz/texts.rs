//! Files that are nearly right: the examples with lines moved, doubled, left out or put in, and values replaced by others that
//! make sense somewhere.

use super::Choices;

const SITE: &str = include_str!("../../../examples/site.toml");
const SERVICE: &str = include_str!("../../../dist/ratelimitd.toml");
const SMALL: &str = "interfaces = [\"eth0\"]\n[rule]\nlimits = [\"1000/5m\"]\n";
const DENY: &str = include_str!("../../../examples/deny.txt");
/// Changes to one file.
const EDITS_MAX: usize = 6;

/// Lines that make sense in some table.
const LINES: [&str; 43] = [
    "interfaces = [\"eth0\"]",
    "interfaces = [\"eth1\", \"eth0\"]",
    "on_exit = \"keep\"",
    "xdp_mode = \"native\"",
    "max_sources = 4096",
    "ipv4_prefix = 24",
    "ipv6_prefix = 56",
    "ipv6_prefix = 128",
    "listen = \"127.0.0.1:9464\"",
    "allow = [\"@premium\", \"192.0.2.0/24\"]",
    "deny = [\"file:x\", \"198.51.100.7\", \"::/1\"]",
    "deny_everyone = true",
    "[lists]",
    "more = [\"10.0.0.0/8\", \"file:x\"]",
    "[safety]",
    "breaker = \"80%\"",
    "exempt_ssh_peer = false",
    "[rule]",
    "[[rule]]",
    "[[rule]]\nname = \"a\"\nlimits = [\"10/1m\"]",
    "[[rule]]\nname = \"b\"\nfrom = [\"@premium\"]\nlimits = [\"10/1m packets\", \"1MB/s\"]",
    "name = \"c\"",
    "from = [\"@premium\", \"2001:db8::/32\"]",
    "to = [\"203.0.113.5\", \"2001:db8:2::80\"]",
    "ports = \"all\"",
    "ports = \"53/udp,8000-8100\"",
    "limits = [\"30/5m\", \"100/1h\"]",
    "count = \"packets\"",
    "algorithm = \"gcra\"",
    "algorithm = \"fixed\"",
    "window = \"lenient\"",
    "burst = 3",
    "mode = \"dry-run\"",
    "refuse = \"all\"",
    "block_for = [\"1m\", \"2m\"]",
    "forget_after = \"1h\"",
    "shadow_limits = [\"5/1m\", \"6/1m\"]",
    "under_attack_ok = true",
    "new_sources = \"20000/s\"",
    "quic_ports = \"443,8443\"",
    "unparsable = \"count\"",
    "[[rule.override]]\nfrom = [\"203.0.113.0/24\"]\nlimits = [\"9/1h\"]",
    "until = 2027-03-31",
];

/// Values, from the middle and from the edges of what there is.
const VALUES: [&str; 36] = [
    "0",
    "1",
    "-1",
    "32",
    "33",
    "64",
    "128",
    "129",
    "256",
    "16777216",
    "18446744073709551615",
    "99999999999999999999",
    "1.5",
    "true",
    "\"\"",
    "\"off\"",
    "\"eth0\"",
    "\"1/1s\"",
    "\"0/24h\"",
    "\"6/30s\"",
    "\"4294967295/1h\"",
    "\"18446744073709551615/24h\"",
    "\"50MB/1m bytes\"",
    "\"10/86401s\"",
    "\"0-65535\"",
    "\"65536\"",
    "\"0.0.0.0/0\"",
    "\"::/0\"",
    "\"::ffff:192.0.2.1/120\"",
    "\"192.0.2.1/24\"",
    "\"@premium\"",
    "\"@none\"",
    "\"file:x\"",
    "\"\\u0000\\t\\u202e\"",
    "9999-12-31T23:59:59Z",
    "1970-01-01",
];

/// A configuration file.
pub(crate) fn config_text(choices: &mut Choices<'_>) -> String {
    let base = choices.pick(&[SITE, SERVICE, SMALL]);
    let mut lines: Vec<String> = base.lines().map(str::to_owned).collect();
    for _ in 0..choices.below(EDITS_MAX + 1) {
        edit(&mut lines, choices);
    }
    let mut text = lines.join("\n");
    if choices.is_rare() {
        let mut bytes = text.into_bytes();
        let at = choices.below(bytes.len());
        if let Some(byte) = bytes.get_mut(at) {
            *byte = choices.byte();
        }
        text = String::from_utf8_lossy(&bytes).into_owned();
    }
    text
}

fn edit(lines: &mut Vec<String>, choices: &mut Choices<'_>) {
    let at = choices.below(lines.len());
    match choices.below(8) {
        0 if at < lines.len() => drop(lines.remove(at)),
        1 if at < lines.len() => lines.insert(at, lines[at].clone()),
        2 if at < lines.len() => {
            let line = lines.remove(at);
            lines.insert(choices.below(lines.len() + 1), line);
        }
        3 if at < lines.len() => lines[at] = with_value(&lines[at], choices),
        4 if at < lines.len() => lines[at] = with_part(&lines[at], choices),
        // A table again and again, up to more than there may be.
        5 if choices.is_rare() => {
            let count = choices.below(80);
            lines.extend((0..count).map(|at| format!("[[rule]]\nname = \"r{at}\"\nlimits = [\"{}/1m\"]", at + 1)));
        }
        _ => lines.insert(at, choices.pick(&LINES).to_owned()),
    }
}

/// The line with another value behind its `=`.
fn with_value(line: &str, choices: &mut Choices<'_>) -> String {
    let Some((key, _)) = line.split_once('=') else { return line.to_owned() };
    let value = choices.pick(&VALUES);
    match choices.below(3) {
        0 => format!("{key}= [{value}]"),
        1 => format!("{key}= [{value}, {}]", choices.pick(&VALUES)),
        _ => format!("{key}= {value}"),
    }
}

/// The line with one of its texts in quotes replaced, or put on.
fn with_part(line: &str, choices: &mut Choices<'_>) -> String {
    let mut parts: Vec<&str> = line.split('"').collect();
    let quoted = parts.len() / 2;
    if quoted == 0 {
        return line.to_owned();
    }
    let at = 2 * choices.below(quoted) + 1;
    let value = choices.pick(&VALUES).trim_matches('"');
    parts[at] = value;
    parts.join("\"")
}

/// A list file.
pub(crate) fn list_text(choices: &mut Choices<'_>) -> String {
    if choices.is_rare() {
        return String::from_utf8_lossy(choices.bytes(40)).into_owned();
    }
    let mut text = String::new();
    for _ in 0..choices.below(6) {
        let (a, b) = (choices.byte(), choices.byte());
        match choices.below(12) {
            0 => text += DENY,
            1 => text += "\u{feff}\r\n# none;\n",
            2 => text += &format!("2001:db8:{a:x}::{b:x}/{}\n", u16::from(b) % 132),
            3 => text += &format!("::ffff:192.0.{a}.{b}\r\n"),
            4 if choices.is_rare() => text += choices.pick(&VALUES),
            _ => text += &format!("10.{a}.{b}.0/{} ; so\n", 16 + b % 17),
        }
    }
    text
}
