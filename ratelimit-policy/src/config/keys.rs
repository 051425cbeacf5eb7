//! The keys of the configuration file, a row each: name, flag, value, default, meaning, and whether a reload
//! changes it.
//!
//! Parser, flags, `--help`, docs/CONFIG.md and ratelimitd.toml(5) are made from this table. Pure data.

mod key;

use self::key::key;
pub use self::key::{Flag, Key, Reload, Table, Takes, Value};

const PREFIXES: Value = Value::List("list of prefixes");
const LIMITS: Value = Value::List("list of 1 to 4 limits");

/// The key that a flag sets, and its table.
pub fn of_flag(flag: &str) -> Option<(&'static Table, &'static Key)> {
    let mut all = TABLES.iter().flat_map(|table| table.keys.iter().map(move |key| (table, key)));
    all.find(|(_, key)| key.flag.is_some_and(|of| of.name == flag))
}

/// Every table, in the order of the documents.
pub const TABLES: &[Table] = &[
    Table { prefix: "", keys: TOP },
    Table { prefix: "lists.", keys: LISTS },
    Table { prefix: "rule.", keys: RULE },
    Table { prefix: "rule.override.", keys: OVERRIDE },
    Table { prefix: "safety.", keys: SAFETY },
    Table { prefix: "history.", keys: HISTORY },
    Table { prefix: "fleet.", keys: FLEET },
];

/// Above the first table.
pub const TOP: &[Key] = &[
    key(
        "interfaces",
        Value::Texts("list of 1 to 16 names"),
        "required",
        "Interface that clients come in by; repeatable",
    )
    .flags("--iface", "IF")
    .more("All interfaces share one count."),
    key(
        "hook",
        Value::Choice(&["auto", "xdp", "tcx"]),
        "\"auto\"",
        "Hook of the program: xdp; tcx, after the stack's buffer, 350 ns a packet more; auto, xdp or, if that is \
         taken, tcx",
    )
    .flag("--hook", "HOOK")
    .more("`auto` also takes `tcx` where packets have no Ethernet header. It needs Linux 6.6.")
    .fixed(),
    key(
        "xdp_mode",
        Value::Choice(&["auto", "native", "generic"]),
        "\"auto\"",
        "XDP mode: native, in the driver; generic, in the network stack, slower; auto, native if the driver supports \
         it",
    )
    .flag("--xdp-mode", "MODE")
    .more("With `auto` the log, `stats` and the metric `ratelimitd_attached` name the mode.")
    .fixed(),
    key(
        "on_exit",
        Value::Choice(&["detach", "keep"]),
        "\"detach\"",
        "When the daemon stops: detach, remove the filter; keep, leave the filter in force",
    )
    .flag("--on-exit", "WHAT")
    .fixed(),
    key(
        "max_sources",
        Value::Integer(256, 16_777_216),
        "262144",
        "Maximum number of sources in memory for each address family",
    )
    .flag("--max-sources", "N")
    .more(
        "The start creates the maps, for the limits that one source can meet then. A reload that adds limits \
             leaves room for fewer sources, and says so.",
    )
    .fixed(),
    key(
        "socket",
        Value::Text("path of at most 107 bytes"),
        "\"/run/ratelimitd/control.sock\"",
        "Path of the control socket",
    )
    .flag("--socket", "PATH")
    .more("The environment variable `RATELIMITD_SOCKET` replaces the flag.")
    .fixed(),
    key(
        "listen",
        Value::Other("address and port"),
        "off",
        "Serve metrics, health and statistics over HTTP: 127.0.0.1:9464",
    )
    .flag("--listen", "ADDR:PORT")
    .more("On a loopback address, or with TLS, it serves the web page too, which `ratelimitd web-token` opens.")
    .fixed(),
    key(
        "tls_cert_file",
        Value::Text("path of a PEM file"),
        "none",
        "Serve listen only by TLS, with this certificate and its chain",
    )
    .flag("--tls-cert-file", "PATH")
    .more("The server's certificate comes first. A relative path starts at the file that names it. A reload reads it.")
    .fixed(),
    key("tls_key_file", Value::Text("path of a PEM file"), "tls_cert_file", "The private key of tls_cert_file")
        .flag("--tls-key-file", "PATH")
        .more("It must have no password, and only root should be able to read it.")
        .fixed(),
    key(
        "insecure_web",
        Value::Boolean,
        "false",
        "Serve the web page unencrypted even if listen is not a loopback address",
    )
    .switch("--insecure-web", "true", None)
    .more("Who can read the traffic can take a session over. TLS, or an SSH tunnel to a loopback address, is safer.")
    .fixed(),
    key("ipv4_prefix", Value::Integer(0, 32), "32", "Bits of an IPv4 address that make one source")
        .flag("--ipv4-prefix", "BITS"),
    key("ipv6_prefix", Value::Integer(0, 128), "64", "Bits of an IPv6 address that make one source")
        .flag("--ipv6-prefix", "BITS")
        .more("A change from at most 64 to more than 64, or back, needs a restart."),
    key("allow", PREFIXES, "[]", "Never limit this address or network: 192.0.2.0/24; repeatable")
        .flags("--allow", "CIDR"),
    key("deny", PREFIXES, "[]", "Prefixes whose packets to the protected ports are dropped")
        .more("The longer prefix decides; at equal length `allow` does."),
    key("deny_everyone", Value::Boolean, "false", "Whether `deny` may hold all addresses of a family")
        .more("Without it such a file is an error."),
    key(
        "bogons",
        Value::Choice(&["pass", "drop", "drop-private"]),
        "\"pass\"",
        "Impossible sources, such as 127.0.0.1 and multicast: pass, like any other; drop, deny them; drop-private, \
         deny private networks too",
    )
    .more(
        "They are a list of `deny` with the name `bogons`; every entry of `allow` overrides it. Link-local, 6to4 and \
         NAT64 addresses may be real, so neither choice contains them.",
    ),
];

/// Under `[lists]`. The name is the user's.
pub const LISTS: &[Key] = &[key(
    "NAME",
    Value::List("list of prefixes, or one `\"file:PATH\"`"),
    "none",
    "A list, used elsewhere as `@NAME`",
)];

/// Under `[rule]` and `[[rule]]`.
pub const RULE: &[Key] = &[
    key(
        "name",
        Value::Other("letters, digits, `-` and `_`, at most 32"),
        "\"default\"",
        "Name of the rule in statistics and metrics",
    )
    .flag("--name", "NAME")
    .more("Each of several rules needs one. A reload finds the rule's counts by it."),
    key("from", PREFIXES, "all sources", "The sources that the rule is for"),
    key("to", Value::List("list of addresses and prefixes"), "any", "The addresses of this host that the rule is for")
        .more("At most 4096 in all rules."),
    key(
        "ports",
        Value::List("`\"80,443\"`, `\"8000-8100\"`, `\"ssh\"`, `\"53/udp\"`, `\"all\"`; or a list, `[80, 443]`"),
        "\"80,443\"",
        "Ports to protect: 80,443, ssh, 8000-8100, 53/udp, all",
    )
    .flag("--port", "LIST")
    .more("A plain number is TCP and UDP."),
    key(
        "limits",
        LIMITS,
        "required",
        "At most N in any DUR, for each source: 1000/5m, 10/s, \"10/1m,60/1h\", 50MB/1m; or for all of a prefix \
        together: \"5000/1m per /24,/56\"; repeatable, all must hold",
    )
    .flags("--limit", "N/DUR")
    .more(
        "`per list` counts all sources of the list in `from` together. With an access_log a limit can count only some \
         requests: `\"20/10m status=401,403\"`, `\"5/1m path=/login method=POST\"`. See [Limits](#limits), \
         [GROUPS.md](GROUPS.md), [ACCESS-LOG.md](ACCESS-LOG.md#limits-by-status-path-and-method).",
    ),
    key(
        "count",
        Value::Choice(&["requests", "connections", "packets", "bytes"]),
        "\"requests\"",
        "The unit of limits that name none",
    )
    .flag("--count", "UNIT")
    .more("[COUNTING.md](COUNTING.md) says what one of each is."),
    key(
        "algorithm",
        Value::Choice(&["buckets", "fixed", "gcra"]),
        "\"buckets\"",
        "How a window is counted: buckets, the sum of 5 to 7 buckets; fixed, one bucket as long as DUR; gcra, a \
        bucket that drains N in DUR, evenly",
    )
    .more("`fixed` admits up to 2N where two windows meet."),
    key(
        "window",
        Value::Choice(&["strict", "lenient"]),
        "\"strict\"",
        "Form of the window: strict, never more than N in any DUR; lenient, up to 2N where two windows meet",
    )
    .flag("--window", "FORM")
    .more("Only for `algorithm = \"buckets\"`."),
    key("burst", Value::Other("amount"), "N", "With buckets, the most in one bucket; with gcra, the most at once")
        .more("It holds for each limit of the rule."),
    key(
        "mode",
        Value::Choice(&["enforce", "dry-run"]),
        "\"enforce\"",
        "Whether packets over the limit are dropped: enforce; or only counted and reported: dry-run",
    )
    .switch("--dry-run", "dry-run", Some("Count and report what would be dropped, and drop nothing")),
    key(
        "refuse",
        Value::Choice(&["excess", "all"]),
        "\"excess\"",
        "What to drop once a source is over a limit: excess, only what exceeds it; all, every packet to these ports",
    )
    .flag("--refuse", "WHAT")
    .more("`all` lasts until the bucket after the last refusal, and then until the window frees."),
    key(
        "refuse_with",
        Value::Choice(&["drop", "reset", "429"]),
        "\"drop\"",
        "How a client learns that it is refused: drop, it waits, and is reset within two seconds; reset, its \
         connection is reset, and a connection over a limit of connections is refused; 429, as with reset, but a \
         clear-text HTTP/1 request gets a page",
    )
    .more(
        "`reset` and `429` apply to verified TCP; UDP, fragments and unverified packets are dropped. SYNs and \
         requests are answered only in native mode. See [what clients see](OPERATIONS.md#what-a-refused-client-sees).",
    ),
    key(
        "access_log",
        Value::List("list of at most 8 paths, or `\"unix:/PATH group=NAME\"`"),
        "none",
        "The server's access log: a path, or unix:/PATH for a socket. Its requests that the kernel did not count are \
         charged",
    )
    .flags("--access-log", "PATH")
    .more(
        "So a limit of requests holds for HTTP/2 and HTTP/3 too, as soon as the log is read. See \
         [ACCESS-LOG.md](ACCESS-LOG.md).",
    ),
    key(
        "guard",
        Value::Choice(&["auto", "off"]),
        "\"auto\"",
        "Whether a limit of requests also bounds traffic without requests",
    )
    .more(
        "With `auto` and N requests: 2N connections without a request, 64N segments that begin no request (at least \
         16384), and 16384N QUIC datagrams that are no request (at least 4194304). `off`, or `refuse = \"all\"`: only \
         requests. See [the guard](COUNTING.md#the-guard).",
    ),
    key(
        "block_for",
        Value::List("time of 1s to 30d, or up to 4 growing ones"),
        "off",
        "Ban a source for DUR once it exceeds a limit; growing with each ban: 10m, \"1m,10m,1h\"",
    )
    .flag("--block-for", "DUR")
    .more(
        "The first ban has the first length, the second the second, and all later ones the last. The next ban begins \
         with an excess after the source was admitted again, not while its window is still full.",
    ),
    key(
        "forget_after",
        Value::Other("time of 1s to 30d"),
        "\"24h\"",
        "Time without a ban after which the next ban is the first again",
    ),
    key(
        "block_prefix_after",
        Value::Integer(2, 256),
        "off",
        "Deny a /24 or /56 once this many of its sources are banned, for as long as a ban of the rule",
    )
    .more(
        "A ban counts until `forget_after` is over. The denial is an entry of `ratelimitd/RULE`, which `list` shows \
         and `unblock` removes; a file without the key leaves it until its end. A prefix is never denied if it \
         overlaps an allowed prefix, or contains a gateway, a resolver or a login that systemd-logind knows. Bans \
         that begin during a trial, or that a start finds, do not count. A /24 of a cloud or a mobile network has many \
         customers: choose the number by `stats`.",
    ),
    key(
        "ban_unverified",
        Value::Boolean,
        "false",
        "Whether unverified traffic bans too: connection attempts and datagrams",
    )
    .more("For a host that forwards to others and does not have their connections. See [bans](FLOODS.md#bans)."),
    key("block_kill", Value::Boolean, "false", "Whether a ban ends the source's open connections to these ports").more(
        "At most 1000 a second. Others stay open, but their packets are dropped. See \
         [closing](OPERATIONS.md#end-open-connections).",
    ),
    key(
        "shadow_limits",
        Value::List("list of at most 8 limits"),
        "[]",
        "Limits that are counted in the same way and never enforced",
    ),
    key(
        "candidates",
        Value::List("list of at most 8 limits"),
        "1/8 to 16 times each limit",
        "Other amounts of these limits that `ratelimitd suggest` tries",
    )
    .more(
        "A candidate has the window and unit of one of the rule's limits. It needs no memory in the kernel. A reload \
         that changes it resets its counts and keeps all other observations.",
    ),
    key("under_attack_ok", Value::Boolean, "false", "Whether the breaker ignores this rule"),
    key(
        "new_sources",
        Value::Other("amount and time of 1s to 1m"),
        "off",
        "Admit at most N new sources in DUR, 1s to 1m, and drop the packets of further ones",
    )
    .flag("--new-sources", "N/DUR")
    .more("Known sources are served. The reason is `new_source_budget`. See [FLOODS.md](FLOODS.md#drop-the-flood)."),
    key(
        "quic_ports",
        Value::List("`\"443,8443\"`, at most 8, or `\"none\"`"),
        "\"443\"",
        "Which of these UDP ports speak QUIC: 443,8443, at most 8, or none; on the others each datagram is a request",
    )
    .flag("--quic-ports", "LIST")
    .more(
        "On a QUIC port an Initial opens a connection, and requests are recognized by the size of a datagram. On \
         other ports the first datagram of a flow opens a connection.",
    ),
    key(
        "unparsable",
        Value::Choice(&["drop", "count"]),
        "\"drop\"",
        "What to do with packets that cannot be parsed, such as after nine IPv6 extension headers: drop; count, each \
         as a request that opens a connection",
    )
    .flag("--unparsable", "WHAT")
    .more("Their port is not known, so the first rule for their source decides. The reason is `too_many_headers`."),
    key("fleet", Value::Boolean, "`true` if there is `[fleet]`", "Whether the hosts of the fleet share its limits")
        .more("Not with `algorithm = \"gcra\"`. See [FLEET.md](FLEET.md)."),
    key(
        "fleet_sum",
        Value::Choice(&["verified", "all"]),
        "\"verified\"",
        "Which traffic of other hosts counts here: verified, only of established connections; all, also unverified \
         traffic",
    )
    .more("With `all` one forged flood uses up its victim's limit on all hosts."),
];

/// Under `[[rule.override]]`.
pub const OVERRIDE: &[Key] = &[
    key("name", Value::Other("as of a rule"), "its place", "Last part of its name, `RULE:NAME`"),
    key("from", PREFIXES, "required", "The sources that the override is for"),
    key("limits", LIMITS, "required", "Their limits"),
    key("algorithm", Value::Choice(&["buckets", "fixed", "gcra"]), "the rule's", "As of a rule"),
    key("window", Value::Choice(&["strict", "lenient"]), "the rule's", "As of a rule"),
    key("burst", Value::Other("amount"), "N", "As of a rule"),
    key("until", Value::Other("date, or time with an offset"), "never", "When it ends")
        .more("A date counts to its end in UTC. A time: `2027-03-31T18:00:00Z`."),
    key("note", Value::Other("line of at most 200 characters"), "none", "Comment for people"),
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
        "A rule that drops more than this share of its packets falls back to dry run",
    ),
    key(
        "breaker_after",
        Value::Other("time of 5s to 1h"),
        "\"30s\"",
        "How long it must drop that share without a break",
    ),
    key(
        "without_daemon",
        Value::Other("`\"enforce\"`, or `\"dry-run after DUR\"` of 2s to 30d"),
        "\"enforce\"",
        "What a filter does while its daemon is gone or hangs: enforce, without end; or drop nothing once that lasts \
         DUR",
    )
    .more(
        "For `on_exit = \"keep\"`. The packet path counts what it would drop, and bans nobody. It enforces again at \
         once when a daemon is back.",
    ),
    key(
        "deny_list_share",
        Value::Other("`\"1%\"` to `\"100%\"`, or `\"off\"`"),
        "\"5%\"",
        "Maximum share of IPv4 unicast, and of 2000::/3, that one list file of `deny` may cover",
    )
    .more("A version that covers more is not put in force until `ratelimitd lists accept FILE`."),
    key(
        "deny_list_growth",
        Value::Other("`\"2x\"` to `\"1000x\"`, or `\"off\"`"),
        "\"2x\"",
        "Maximum factor by which the addresses of such a list may grow from one version to the next",
    )
    .more("A list that covers no more than a /16 of IPv4 and a /32 of IPv6 may grow by any factor."),
];

/// Under `[history]`.
pub const HISTORY: &[Key] = &[
    key("enabled", Value::Boolean, "true", "Whether refusals, bans and commands are recorded"),
    key(
        "path",
        Value::Text("absolute path"),
        "`history.db` in `/var/lib/ratelimitd`",
        "The database, an SQLite file that only root can read",
    )
    .more("The environment variable `RATELIMITD_STATE_DIR` names another directory."),
    key("keep", Value::Other("time of 1h to 3660d"), "\"30d\"", "How long ended records are kept")
        .more("Totals of each hour are kept for 31 days at least, those of each day for two years."),
    key("max_size", Value::Other("size of 1MB to 1TB"), "\"256MB\"", "Maximum size of the database")
        .more("The table below says what is removed first."),
    key("mask_ipv4", Value::Integer(0, 32), "32", "Number of bits of an IPv4 address that are kept")
        .more("With 24 the history records `192.0.2.0/24` as one source for all of its addresses."),
    key("mask_ipv6", Value::Integer(0, 128), "128", "Number of bits of an IPv6 address that are kept"),
];

mod fleet;
#[cfg(test)]
mod tests;

pub use fleet::FLEET;
