//! The keys of the configuration file, a row each: name, flag, value, default, meaning, and whether a reload changes it.
//!
//! Parser, `--help`, docs/CONFIG.md and ratelimitd.toml(5) are held to this table. Pure data.

/// A table of the file.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// What stands before its keys in their full names: `rule.`, or nothing at the top of the file.
    pub prefix: &'static str,
    /// As the file writes its heading; nothing at the top of the file.
    pub heading: &'static str,
    /// Its keys, in the order of the documents.
    pub keys: &'static [Key],
}

/// A key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name in its table.
    pub name: &'static str,
    /// The flag that sets the same, with its dashes.
    pub flag: Option<&'static str>,
    /// What its value may be.
    pub value: Value,
    /// What holds without it: a value as the file writes it, or words.
    pub default: &'static str,
    /// What it is for, in a clause; the flag's help.
    pub help: &'static str,
    /// Further sentences, for documents alone.
    pub more: &'static str,
    /// Whether a running daemon can change it.
    pub reload: Reload,
}

/// What may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number, both ends included.
    Integer(u64, u64),
    /// `true` or `false`.
    Boolean,
    /// Anything else, in words.
    Other(&'static str),
}

/// Whether a running daemon can change a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// `ratelimitd reload` and `apply` put it in force.
    Follows,
    /// They refuse a file that changes it.
    NeedsRestart,
}

const PREFIXES: Value = Value::Other("list of prefixes");
const LIMITS: Value = Value::Other("list of 1 to 4 limits");

/// A row that a reload follows and no flag sets.
const fn key(name: &'static str, value: Value, default: &'static str, help: &'static str) -> Key {
    Key { name, flag: None, value, default, help, more: "", reload: Reload::Follows }
}

impl Key {
    const fn flag(self, flag: &'static str) -> Self {
        Self { flag: Some(flag), ..self }
    }

    const fn more(self, more: &'static str) -> Self {
        Self { more, ..self }
    }

    const fn fixed(self) -> Self {
        Self { reload: Reload::NeedsRestart, ..self }
    }

    /// Its help with the default, as `--help` says it.
    pub fn flag_help(&self) -> String {
        let mut help = self.help.replace('`', "");
        if let Value::Integer(least, most) = self.value {
            help.push_str(&format!(", {least} to {most}"));
        }
        let is_list = self.default == "[]" || self.default == "required";
        if is_list { help } else { format!("{help} [default: {}]", self.default.trim_matches('"')) }
    }

    /// The words of a choice.
    pub const fn choices(&self) -> &'static [&'static str] {
        match self.value {
            Value::Choice(words) => words,
            Value::Integer(..) | Value::Boolean | Value::Other(_) => &[],
        }
    }
}

/// The names of keys, for the parser.
pub const fn names<const N: usize>(keys: &[Key]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = keys[at].name;
        at += 1;
    }
    names
}

/// The key that a flag sets. Every flag that limits has one, which a test holds.
pub fn of_flag(flag: &str) -> Option<&'static Key> {
    TABLES.iter().flat_map(|table| table.keys).find(|key| key.flag == Some(flag))
}

/// Every table, in the order of the documents.
pub const TABLES: &[Table] = &[
    Table { prefix: "", heading: "", keys: TOP },
    Table { prefix: "lists.", heading: "[lists]", keys: LISTS },
    Table { prefix: "rule.", heading: "[rule]", keys: RULE },
    Table { prefix: "rule.override.", heading: "[[rule.override]]", keys: OVERRIDE },
    Table { prefix: "safety.", heading: "[safety]", keys: SAFETY },
];

/// Above the first table.
pub const TOP: &[Key] = &[
    key("interfaces", Value::Other("list of 1 to 16 names"), "required", "Interface that clients come in by; repeatable")
        .flag("--iface")
        .more("All interfaces share one count."),
    key(
        "xdp_mode",
        Value::Choice(&["auto", "native", "generic"]),
        "\"auto\"",
        "Where the program runs: native, in the driver; generic, in the network stack, slower; auto, native where the driver can",
    )
    .flag("--xdp-mode")
    .more("With `auto` the log, `stats` and the metric `ratelimitd_attached` name the mode.")
    .fixed(),
    key(
        "on_exit",
        Value::Choice(&["detach", "keep"]),
        "\"detach\"",
        "What the end of the daemon leaves: detach, nothing; keep, the filter stays and enforces",
    )
    .flag("--on-exit")
    .fixed(),
    key("max_sources", Value::Integer(256, 16_777_216), "262144", "How many sources of each family are remembered")
        .flag("--max-sources")
        .more(
            "The start makes the maps, for as many limits as one source can meet then. A reload that adds limits \
             leaves room for fewer sources, and says so.",
        )
        .fixed(),
    key(
        "socket",
        Value::Other("path of at most 107 bytes"),
        "\"/run/ratelimitd/control.sock\"",
        "Path of the control socket",
    )
    .flag("--socket")
    .more("As a flag also `RATELIMITD_SOCKET`.")
    .fixed(),
    key(
        "listen",
        Value::Other("address and port"),
        "off",
        "Serve metrics, health and statistics over HTTP: 127.0.0.1:9464",
    )
    .flag("--listen")
    .more("See API.md for what is served there.")
    .fixed(),
    key("ipv4_prefix", Value::Integer(0, 32), "32", "Bits of an IPv4 address that make one source")
        .flag("--ipv4-prefix"),
    key("ipv6_prefix", Value::Integer(0, 128), "64", "Bits of an IPv6 address that make one source")
        .flag("--ipv6-prefix")
        .more("A change from at most 64 to more than 64, or back, needs a restart."),
    key("allow", PREFIXES, "[]", "Never limit this address or network: 192.0.2.0/24; repeatable").flag("--allow"),
    key("deny", PREFIXES, "[]", "Prefixes whose packets to the protected ports are dropped")
        .more("The longer prefix decides; at equal length `allow` does."),
    key("deny_everyone", Value::Boolean, "false", "Whether `deny` may hold all addresses of a family")
        .more("Without it such a file is an error."),
];

/// Under `[lists]`. The name is the user's.
pub const LISTS: &[Key] = &[key(
    "NAME",
    Value::Other("list of prefixes, or one `\"file:PATH\"`"),
    "none",
    "A list, used elsewhere as `@NAME`",
)];

/// Under `[rule]` and `[[rule]]`.
pub const RULE: &[Key] = &[
    key("name", Value::Other("letters, digits, `-` and `_`, at most 32"), "\"default\"", "Name of the rule in statistics and metrics")
        .flag("--name")
        .more("Each of several rules needs one. A reload finds the rule's counts by it."),
    key("from", PREFIXES, "all sources", "The sources that the rule is for"),
    key("to", Value::Other("list of addresses and prefixes"), "any", "The addresses of this host that the rule is for")
        .more("At most 4096 in all rules."),
    key(
        "ports",
        Value::Other("`\"80,443\"`, `\"8000-8100\"`, `\"53/udp\"`, `\"all\"`; or a list, `[80, 443]`"),
        "\"80,443\"",
        "Ports to protect: 80,443, 8000-8100, 53/udp, all",
    )
    .flag("--port")
    .more("A plain number is TCP and UDP."),
    key(
        "limits",
        LIMITS,
        "required",
        "At most N in any DUR, for each source: 1000/5m, 10/s, \"10/1m,60/1h\", 50MB/1m; repeatable, all must hold",
    )
    .flag("--limit")
    .more("See [Limits](#limits)."),
    key(
        "count",
        Value::Choice(&["requests", "connections", "packets", "bytes"]),
        "\"requests\"",
        "The unit of limits that name none",
    )
    .flag("--count")
    .more("[COUNTING.md](COUNTING.md) says what one of each is."),
    key(
        "algorithm",
        Value::Choice(&["buckets", "fixed", "gcra"]),
        "\"buckets\"",
        "How a window is counted: buckets, the sum of 5 to 7 buckets; fixed, one bucket as long as DUR; gcra, a bucket that drains N in DUR, evenly",
    )
    .more("`fixed` admits up to 2N where two windows meet."),
    key(
        "window",
        Value::Choice(&["strict", "lenient"]),
        "\"strict\"",
        "Form of the window: strict, never more than N in any DUR; lenient, up to 2N where two windows meet",
    )
    .flag("--window")
    .more("For `algorithm = \"buckets\"` alone."),
    key("burst", Value::Other("amount"), "N", "With buckets, the most in one bucket; with gcra, the most at once")
        .more("It holds for each limit of the rule."),
    key(
        "mode",
        Value::Choice(&["enforce", "dry-run"]),
        "\"enforce\"",
        "Whether packets over the limit are dropped: enforce; or only counted and reported: dry-run",
    )
    .flag("--dry-run"),
    key(
        "refuse",
        Value::Choice(&["excess", "all"]),
        "\"excess\"",
        "What is dropped of a source over a limit: excess, what is over it; all, every packet to these ports",
    )
    .flag("--refuse")
    .more("`all` lasts until the bucket after the last refusal, and then until the window has room."),
    key("guard", Value::Choice(&["auto", "off"]), "\"auto\"", "Whether a limit of requests also bounds what is no request")
        .more(
            "With `auto` and N requests: 2N connections without a request, and 64N segments that begin none (at least \
             16384). `off`, or `refuse = \"all\"`: requests alone. See [the guard](COUNTING.md#the-guard).",
        ),
    key(
        "block_for",
        Value::Other("time of 1s to 30d, or up to 4 growing ones"),
        "off",
        "Ban a source for DUR once it exceeds a limit; growing with each ban: 10m, \"1m,10m,1h\"",
    )
    .flag("--block-for")
    .more(
        "The first ban has the first length, the second the second, and all later ones the last. The next ban begins \
         with an excess after the source was admitted again, not while its window is still full.",
    ),
    key("forget_after", Value::Other("time of 1s to 30d"), "\"24h\"", "After so long without a ban the next one is the first again"),
    key("ban_unproven", Value::Boolean, "false", "Whether unverified traffic bans too: connection attempts and datagrams")
        .more("For a host that forwards to others, whose connections it does not have. See [bans](FLOODS.md#bans)."),
    key("shadow_limits", Value::Other("list of at most 8 limits"), "[]", "Limits that are counted in the same way and never enforced"),
    key("candidates", Value::Other("list of at most 8 limits"), "1/8 to 16 times each limit", "Other amounts of these limits that `ratelimitd suggest` tries")
        .more(
            "A candidate has window and unit of one of the rule's limits. It takes no room in the kernel. A reload \
             that changes it counts it anew and keeps everything else that was observed.",
        ),
    key("under_attack_ok", Value::Boolean, "false", "Whether the breaker leaves this rule alone"),
    key(
        "new_sources",
        Value::Other("amount and time of 1s to 1m"),
        "off",
        "Admit at most N new sources in DUR, 1s to 1m, and drop the packets of further ones",
    )
    .flag("--new-sources")
    .more("Known sources are served. The reason is `new_source_budget`. See [FLOODS.md](FLOODS.md#drop-the-flood)."),
    key(
        "quic_ports",
        Value::Other("`\"443,8443\"`, at most 8, or `\"none\"`"),
        "\"443\"",
        "Which of these UDP ports speak QUIC: 443,8443, at most 8, or none; on the others each datagram is a request",
    )
    .flag("--quic-ports")
    .more("On a QUIC port an Initial opens a connection, and the size of a datagram tells requests. On others the first datagram of a flow opens one."),
    key(
        "unparsable",
        Value::Choice(&["drop", "count"]),
        "\"drop\"",
        "What becomes of packets that cannot be parsed, as behind nine IPv6 extension headers: drop; count, each as a request that opens a connection",
    )
    .flag("--unparsable")
    .more("Their port is not known, so the first rule for their source decides. The reason is `too_many_headers`."),
];

/// Under `[[rule.override]]`.
pub const OVERRIDE: &[Key] = &[
    key("name", Value::Other("as of a rule"), "its place", "The end of its name, `RULE:NAME`"),
    key("from", PREFIXES, "required", "The sources that the override is for"),
    key("limits", LIMITS, "required", "Their limits"),
    key("algorithm", Value::Choice(&["buckets", "fixed", "gcra"]), "the rule's", "As of a rule"),
    key("window", Value::Choice(&["strict", "lenient"]), "the rule's", "As of a rule"),
    key("burst", Value::Other("amount"), "N", "As of a rule"),
    key("until", Value::Other("date, or time with an offset"), "never", "When it ends")
        .more("A date counts to its end in UTC. A time: `2027-03-31T18:00:00Z`."),
    key("note", Value::Other("line of at most 200 characters"), "none", "Why it is there, for people"),
];

/// Under `[safety]`.
pub const SAFETY: &[Key] = &[
    key(
        "exempt_ssh_peer",
        Value::Boolean,
        "true",
        "Whether the peer of the SSH session that started the daemon is allowed",
    ),
    key("exempt_gateway", Value::Boolean, "true", "Whether the default gateways are allowed"),
    key("exempt_resolvers", Value::Boolean, "true", "Whether the name servers of this host are allowed"),
    key(
        "breaker",
        Value::Other("`\"1%\"` to `\"99%\"`, or `\"off\"`"),
        "\"off\"",
        "A rule that drops more than this share of its packets goes over to dry run",
    ),
    key(
        "breaker_after",
        Value::Other("time of 5s to 1h"),
        "\"30s\"",
        "For how long, without a break, it must drop that share",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::config::{Config, file};
    use crate::error::Diagnostic;

    fn parse(text: &str) -> Result<Config, Diagnostic> {
        file::parse(Path::new("r.toml"), text, |_| Err("no list file belongs here".to_owned()))
    }

    /// A file with `line` in the table of this prefix, and what must be there around it.
    fn file_with(prefix: &str, line: &str) -> String {
        // A key that is always needed stands there once.
        let needed = |of: &str, name: &str, value: &str| {
            if of == prefix && line.starts_with(&format!("{name} =")) {
                String::new()
            } else {
                format!("{name} = {value}")
            }
        };
        let (top, lists, rule, of, safety) = match prefix {
            "" => (line, "", "", "", ""),
            "lists." => ("", line, "", "", ""),
            "rule." => ("", "", line, "", ""),
            "rule.override." => ("", "", "", line, ""),
            "safety." => ("", "", "", "", line),
            other => panic!("no table {other}"),
        };
        let interfaces = needed("", "interfaces", "[\"eth0\"]");
        let limits = needed("rule.", "limits", "[\"1000/5m\"]");
        let override_limits = needed("rule.override.", "limits", "[\"9/5m\"]");
        let from = needed("rule.override.", "from", "[\"192.0.2.1\"]");
        format!(
            "{interfaces}\n{top}\n[lists]\n{lists}\n[safety]\n{safety}\n[rule]\n{limits}\n{rule}\n[[rule.override]]\n\
             {override_limits}\n{from}\n{of}\n"
        )
    }

    fn every_key() -> impl Iterator<Item = (&'static Table, &'static Key)> {
        TABLES.iter().flat_map(|table| table.keys.iter().map(move |key| (table, key)))
    }

    /// The keys that the parser knows in a table, read off what it says of one that it does not know.
    fn accepted(prefix: &str) -> BTreeSet<String> {
        let text = file_with(prefix, "no_such_key_anywhere = 1");
        let message = file::unknown_key_message(&text).expect(prefix);
        let expected = message.split_once("expected one of").map_or("", |(_, keys)| keys);
        let keys: BTreeSet<String> = expected.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        assert!(!keys.is_empty(), "{message}");
        keys
    }

    #[test]
    fn the_table_has_every_key_that_the_parser_takes_and_no_other() {
        for table in TABLES.iter().filter(|table| table.prefix != "lists.") {
            let mut listed: BTreeSet<String> = table.keys.iter().map(|key| key.name.to_owned()).collect();
            match table.prefix {
                "" => listed.extend(["lists", "rule", "safety"].map(str::to_owned)),
                "rule." => listed.extend(["override".to_owned()]),
                _ => {}
            }
            assert_eq!(accepted(table.prefix), listed, "{}", table.heading);
        }
        assert!(parse(&file_with("lists.", "anything = [\"192.0.2.1\"]")).is_ok());
    }

    #[test]
    fn each_choice_is_taken_and_another_word_is_refused_with_all_of_them() {
        for (table, key) in every_key().filter(|(_, key)| !key.choices().is_empty()) {
            for word in key.choices() {
                let text = file_with(table.prefix, &format!("{} = \"{word}\"", key.name));
                assert!(parse(&text).is_ok(), "{text}: {:?}", parse(&text));
            }
            let text = file_with(table.prefix, &format!("{} = \"nosuchword\"", key.name));
            let help = parse(&text).expect_err(&text).help.join(" ");
            assert!(key.choices().iter().all(|word| help.contains(word)), "{text}: {help}");
        }
    }

    #[test]
    fn the_ends_of_a_number_are_taken_and_one_beyond_is_refused() {
        for (table, key) in every_key() {
            let Value::Integer(least, most) = key.value else { continue };
            let is_taken = |number: u64| parse(&file_with(table.prefix, &format!("{} = {number}", key.name))).is_ok();
            assert!(is_taken(least) && is_taken(most) && !is_taken(most + 1), "{}", key.name);
            assert!(least == 0 || !is_taken(least - 1), "{}", key.name);
        }
    }

    #[test]
    fn a_key_with_its_default_is_a_file_without_it() {
        let mut held = 0;
        for (table, key) in every_key() {
            if format!("x = {}", key.default).parse::<toml::Table>().is_err() {
                continue;
            }
            // What is of bans is an error without one.
            let bans = if ["forget_after", "ban_unproven"].contains(&key.name) { "block_for = \"1m\"\n" } else { "" };
            let text = file_with(table.prefix, &format!("{bans}{} = {}", key.name, key.default));
            assert_eq!(parse(&text), parse(&file_with(table.prefix, bans)), "{text}");
            assert!(parse(&text).is_ok(), "{text}");
            held += 1;
        }
        assert!(held >= 20, "{held}");
    }

    #[test]
    fn what_needs_a_restart_is_what_a_reload_refuses() {
        let needs: Vec<_> = TOP.iter().filter(|key| key.reload == Reload::NeedsRestart).map(|key| key.name).collect();
        let old = parse(&file_with("", "")).expect("a configuration");
        let new = "xdp_mode = \"native\"\non_exit = \"keep\"\nmax_sources = 1024\nsocket = \"s\"\nlisten = \"[::1]:1\"";
        let new = parse(&file_with("", new)).expect("a configuration");
        assert_eq!(crate::plan::restart_needed(&old, &new), needs);
    }
}
