//! Tables of the figures in documents: where each comes from, and which ones nobody measures.

use super::sources::Source;
use super::{Chosen, Quoted};

const LIMITER: &str = "limiter";
const METER: &str = "nft_meter";
const ADMISSION: &str = "ratelimit-common/src/admission.rs";
const LAYOUT: &str = "ratelimit-common/src/layout.rs";
const VERIFICATION: &str = "ratelimit-common/src/verification.rs";
const ACCOUNTED: &str = "ratelimit-common/src/conversation/accounted.rs";
const TLS_DATA: &str = "ratelimit-common/src/conversation/tls/data.rs";
const BOUNDED: &str = "ratelimit-fleet/src/store/bounded.rs";
const EVENT: &str = "ratelimit-common/src/layout/event.rs";
const SERVER: &str = "ratelimit-control/src/server.rs";
const PAST: &str = "ratelimit-daemon/src/past.rs";

const DEMO: &str = "xtask/src/demo/build.rs";
const CHECK_CONFIG: &str = "ratelimit-userspace/tests/snapshots/cli__check_config_of_flags.snap";
const ACCURACY: &str = "docs/ACCURACY.md";
/// Rows of what accuracy measures, with what each promises.
const PROMISES: &str = "xtask/src/accuracy/rows.rs";
const PROMISES_TO_CLIENTS: &str = "xtask/src/accuracy/rows/traffic.rs";
/// Memory of the maps by default, in MB.
const MAPS: Source = Source::Said(CHECK_CONFIG, "together # MB, allocated");
const MAPS_PARTS: [Source; 5] = [
    Source::Said(CHECK_CONFIG, "x 160 B x 2 windows = # MB"),
    Source::Said(CHECK_CONFIG, "x 168 B x 2 windows = # MB"),
    Source::Said(CHECK_CONFIG, "sets = # MB, 65 B"),
    Source::Said(CHECK_CONFIG, "UDP flows of each = # MB"),
    Source::Said(CHECK_CONFIG, "bans of each kind of source = # MB"),
];
/// Nanoseconds that a packet costs more at TCX than at XDP, in the flood's row with the largest difference.
const TCX_MORE: Source =
    Source::Rounded(&Source::Less(&Source::Above("data", "limiter_tcx"), &Source::Above("data", LIMITER)), 10);

pub(super) const QUOTED: &[Quoted] = &[
    Quoted {
        document: "README.md",
        phrase: "One packet over the limit costs # ns more than a bare `XDP_DROP`; nftables' meter costs # and hashlimit # ns more",
        sources: &[
            Source::Above("one_source", LIMITER),
            Source::Above("one_source", METER),
            Source::Above("one_source", "hashlimit"),
        ],
    },
    Quoted {
        document: "README.md",
        phrase: "Memory: # MB with the default of # sources and one limit",
        sources: &[MAPS, Source::Constant(LAYOUT, "SOURCES_CAPACITY", 1)],
    },
    Quoted {
        document: "README.md",
        phrase: "The first demo takes [# minutes and # GB of disk]",
        sources: &[Source::Said(DEMO, "about # minutes on 2 CPUs"), Source::Said(DEMO, "and # GB of disk")],
    },
    Quoted {
        document: "docs/FAQ.md",
        phrase: "# MB for the maps with the defaults: one limit of requests, and room for # sources",
        sources: &[MAPS, Source::Constant(LAYOUT, "SOURCES_CAPACITY", 1)],
    },
    Quoted {
        document: "docs/FAQ.md",
        phrase: "There nginx answered # % to # % fewer requests",
        sources: &[
            Source::Less(
                &Source::Plain(100.0),
                &Source::Measured("/servers/rows/wrk_tls/receivers/limiter/percent_of_pass/median"),
            ),
            Source::Less(
                &Source::Plain(100.0),
                &Source::Measured("/servers/rows/wrk_clear/receivers/limiter/percent_of_pass/median"),
            ),
        ],
    },
    Quoted { document: "docs/FAQ.md", phrase: "a packet costs up to # ns more", sources: &[TCX_MORE] },
    Quoted { document: "docs/OPERATIONS.md", phrase: "TCX program; up to # ns a packet more", sources: &[TCX_MORE] },
    Quoted { document: "docs/CONFIG.md", phrase: "after the stack's buffer, # ns a packet more", sources: &[TCX_MORE] },
    Quoted {
        document: "docs/FLOODS.md",
        phrase: "one source over its limit costs # ns a packet, 65 536 sources # ns, and 16.7 million forged ones # ns. nftables' meter costs #, # and # ns there",
        sources: &[
            Source::Above("one_source", LIMITER),
            Source::Above("sources_65536", LIMITER),
            Source::Above("forged", LIMITER),
            Source::Above("one_source", METER),
            Source::Above("sources_65536", METER),
            Source::Above("forged", METER),
        ],
    },
    Quoted {
        document: "docs/FLOODS.md",
        phrase: "insertions have a budget: # in 134 ms on each CPU",
        sources: &[Source::Constant(ADMISSION, "BUDGET", 1)],
    },
    Quoted {
        document: "docs/GROUPS.md",
        phrase: "within both its source's limit and its /24's takes # ns above a bare drop, after # within its source's alone",
        sources: &[Source::Above("within_group", LIMITER), Source::Above("within", LIMITER)],
    },
    Quoted {
        document: "docs/COUNTING.md",
        phrase: "**Segments that begin no request**: #N in the window, and at least #. A segment of less than # bytes",
        sources: &[
            Source::Constant(VERIFICATION, "GUARDED_SEGMENTS_PER_REQUEST", 1),
            Source::Constant(VERIFICATION, "GUARDED_SEGMENTS_MIN", 1),
            Source::Constant(ACCOUNTED, "SHORT_BYTES", 1),
        ],
    },
    Quoted {
        document: "docs/COUNTING.md",
        phrase: "and of a body under TLS, one in # KB counts",
        sources: &[Source::Power(ACCOUNTED, "ACCOUNTED_SHIFT", 1 << 10)],
    },
    Quoted {
        document: "docs/COUNTING.md",
        phrase: "sent less than # bytes (# behind a connection's first request) plus 1/# of what",
        sources: &[
            Source::Constant(TLS_DATA, "HEARD_IN_BODY_MAX", 1),
            Source::Constant(TLS_DATA, "HEARD_AT_FIRST_MAX", 1),
            Source::Constant(TLS_DATA, "BODY_BYTES_PER_HEARD", 1),
        ],
    },
    Quoted {
        document: "docs/COUNTING.md",
        phrase: "N MB in the window, at least # MB. Only",
        sources: &[Source::Product([(VERIFICATION, "GUARDED_SEGMENTS_MIN"), (ACCOUNTED, "ACCOUNTED_BYTES")], 1 << 20)],
    },
    Quoted {
        document: "docs/OPERATIONS.md",
        phrase: "the maps count as the pod's: # MB by default, which `ratelimitd check-config` prints, and some # MB for",
        sources: &[
            MAPS,
            Source::Rounded(
                &Source::Per(
                    &Source::Cell { document: "docs/TESTING.md", row: &["peak rss kilobytes"], column: "value" },
                    1000.0,
                ),
                10,
            ),
        ],
    },
    Quoted {
        document: "docs/OPERATIONS.md",
        phrase: "Each source and window takes # bytes for IPv4 and # for IPv6, plus # bytes of filters and caches.",
        sources: &[
            Source::Said(CHECK_CONFIG, "IPv4: 262144 sources x # B"),
            Source::Said(CHECK_CONFIG, "IPv6: 262144 sources x # B"),
            Source::Said(CHECK_CONFIG, "MB, # B a source"),
        ],
    },
    Quoted {
        document: "docs/OPERATIONS.md",
        phrase: "the default of # sources and one limit of requests that is # MB, # MB and # MB. Connections take # MB and bans take # MB.",
        sources: &[
            Source::Constant(LAYOUT, "SOURCES_CAPACITY", 1),
            MAPS_PARTS[0],
            MAPS_PARTS[1],
            MAPS_PARTS[2],
            MAPS_PARTS[3],
            MAPS_PARTS[4],
        ],
    },
    Quoted {
        document: "docs/OPERATIONS.md",
        phrase: "Each further million of `max_sources` takes some # MB of maps for one limit of requests",
        sources: &[Source::Rounded(
            &Source::Per(&Source::Sum(&[MAPS_PARTS[0], MAPS_PARTS[1], MAPS_PARTS[2]]), 0.262_144),
            10,
        )],
    },
    Quoted {
        document: "docs/CONFIG.md",
        phrase: "All # take up to # MB, and more",
        sources: &[
            Source::Constant(LAYOUT, "PREFIXES_MAX", 1),
            Source::Said("ratelimit-view/src/describe/prefixes.rs", "and # MB once they change`"),
        ],
    },
    Quoted {
        document: "docs/COUNTING.md",
        phrase: "with N = 10 it got # times N, once",
        sources: &[Source::Cell {
            document: ACCURACY,
            row: &["aioquic, one by one"],
            column: "with a log, first window",
        }],
    },
    Quoted {
        document: "docs/COUNTING.md",
        phrase: "for which it sends # times as many bytes",
        sources: &[Source::Constant(TLS_DATA, "BODY_BYTES_PER_HEARD", 1)],
    },
    Quoted {
        document: "docs/COUNTING.md",
        phrase: "with lost and reordered packets | within # %",
        sources: &[Source::Said(PROMISES_TO_CLIENTS, "bound: Bound::Within(#), ..of(100")],
    },
    Quoted {
        document: "docs/COUNTING.md",
        phrase: "many requests at once | at most # % too many (a browser's page: # %)",
        sources: &[
            Source::Said(PROMISES, "\"at most +# %\""),
            Source::Said(PROMISES_TO_CLIENTS, "of(Bound::Within(#), 60, \"a page of 60 resources\""),
        ],
    },
    Quoted {
        document: "docs/COUNTING.md",
        phrase: "puts ten into a record (counted: # of # in the worst run), and Node up to ten (# of #)",
        sources: &[
            Source::Lowest { document: ACCURACY, row: &["10 streams at once", "h2load -m 10 "], column: "counted" },
            Source::Lowest {
                document: ACCURACY,
                row: &["10 streams at once, /", "h2load -m 10 "],
                column: "in the log",
            },
            Source::Lowest { document: ACCURACY, row: &["10 streams at once", "Node "], column: "counted" },
            Source::Lowest { document: ACCURACY, row: &["10 streams at once", "Node "], column: "in the log" },
        ],
    },
    Quoted {
        document: "docs/COUNTING.md",
        phrase: "about 8N MB in a window, at least # GB",
        sources: &[Source::Product([(VERIFICATION, "GUARDED_SEGMENTS_MIN"), (ACCOUNTED, "ACCOUNTED_BYTES")], 1 << 30)],
    },
    Quoted {
        document: "docs/ACCESS-LOG.md",
        phrase: "the daemon reads at most every # ms. A FIFO reports no writes, so the daemon polls it every # ms. Lines of \
                 a source within its limit are charged every # s",
        sources: &[
            Source::Constant("ratelimit-daemon/src/access_log/reader.rs", "PAUSE_MAX", 1),
            Source::Constant("ratelimit-daemon/src/access_log/reader.rs", "POLLED_EVERY", 1),
            Source::Constant("ratelimit-daemon/src/access_log.rs", "LOGS_EVERY", 1),
        ],
    },
    Quoted {
        document: "docs/ACCESS-LOG.md",
        phrase: "for a full socket, with up to # MiB in memory",
        sources: &[Source::Constant("ratelimit-userspace/src/cli/pipe.rs", "QUEUE_BYTES_MAX", 1 << 20)],
    },
    Quoted {
        document: "docs/ACCESS-LOG.md",
        phrase: "If a log is more than # MB behind",
        sources: &[Source::Said("ratelimit-accesslog/src/follower.rs", "behind_max: # << 20")],
    },
    Quoted {
        document: "docs/GUIDE.md",
        phrase: "The reorder window is # requests",
        sources: &[Source::Constant("ratelimit-report/src/replay/order.rs", "HELD_MAX", 1)],
    },
    Quoted {
        document: "docs/FLEET.md",
        phrase: "the connection is closed at # MB, # elements or # s",
        sources: &[
            Source::Constant(BOUNDED, "ANSWER_BYTES_MAX", 1 << 20),
            Source::Constant(BOUNDED, "ELEMENTS_MAX", 1),
            Source::Constant(BOUNDED, "ANSWER_TAKES_MAX", 1),
        ],
    },
    Quoted {
        document: "docs/FLEET.md",
        phrase: "memory may grow by # MB at most",
        sources: &[Source::Constant("ratelimit-fleet/tests/hostile.rs", "GROWTH_KB_MAX", 1 << 10)],
    },
    Quoted {
        document: "docs/INTERNALS.md",
        phrase: "| `EVENTS` | ring of # MiB |",
        sources: &[Source::Constant(EVENT, "EVENTS_BYTES", 1 << 20)],
    },
    Quoted {
        document: "docs/INTERNALS.md",
        phrase: "| `STEPS` | ring of # MiB |",
        sources: &[Source::Constant(EVENT, "STEPS_BYTES", 1 << 20)],
    },
    Quoted {
        document: "docs/NEIGHBOURS.md",
        phrase: "fetches the list if it has changed, at most # MiB",
        sources: &[Source::Constant("ratelimit-policy/src/config/lists.rs", "LIST_BYTES_MAX", 1 << 20)],
    },
    Quoted {
        document: "docs/OPERATIONS.md",
        phrase: "`forget` has an answer within # seconds",
        sources: &[Source::Constant(PAST, "FORGET_WITHIN", 1)],
    },
    Quoted {
        document: "docs/OPERATIONS.md",
        phrase: "read in turn for # sources every 2 seconds",
        sources: &[Source::Constant("ratelimit-daemon/src/begun.rs", "LOOKED_UP_MAX", 1)],
    },
    Quoted {
        document: "docs/API.md",
        phrase: "connection, a body of at most # bytes",
        sources: &[Source::Constant(SERVER, "BODY_BYTES_MAX", 1)],
    },
    Quoted {
        document: "docs/API.md",
        phrase: "A user has at most # connections, all users together #, and root",
        sources: &[
            Source::Constant(SERVER, "CONNECTIONS_EACH", 1),
            Source::Constant(SERVER, "SOCKET_CONNECTIONS_KEPT", 1),
        ],
    },
    Quoted {
        document: "docs/API.md",
        phrase: "Over TCP an address (of IPv6 a /64) has # of #.",
        sources: &[Source::Constant(SERVER, "CONNECTIONS_EACH", 1), Source::Constant(SERVER, "TCP_CONNECTIONS_MAX", 1)],
    },
    Quoted {
        document: "docs/API.md",
        phrase: "There are at most # sessions: a further login ends the oldest. At most # streams",
        sources: &[
            Source::Constant("ratelimit-web/src/sessions.rs", "SESSIONS_MAX", 1),
            Source::Constant("ratelimit-control/src/follow.rs", "FOLLOWERS_MAX", 1),
        ],
    },
    Quoted {
        document: "docs/API.md",
        phrase: "A reader that is more than # events behind",
        sources: &[Source::Constant("ratelimit-control/src/feed.rs", "BEHIND_MAX", 1)],
    },
    Quoted {
        document: "docs/API.md",
        phrase: "A source's history has at most # episodes and # acts",
        sources: &[
            Source::Constant("ratelimit-history/src/query.rs", "ROWS_DEFAULT", 1),
            Source::Constant("ratelimit-history/src/query.rs", "ROWS_DEFAULT", 1),
        ],
    },
    Quoted {
        document: "docs/API.md",
        phrase: r#""ssh_peer"}`: at most # denials"#,
        sources: &[Source::Constant("ratelimit-control/src/import.rs", "ROWS_MAX", 1)],
    },
    Quoted {
        document: "docs/METRICS.md",
        phrase: "beyond the budget of # a second",
        sources: &[Source::Constant("ratelimit-daemon/src/closer.rs", "EACH_SECOND", 1)],
    },
    Quoted {
        document: "docs/OPERATIONS.md",
        phrase: "At most # connections end in a second",
        sources: &[Source::Constant("ratelimit-daemon/src/closer.rs", "EACH_SECOND", 1)],
    },
    Quoted {
        document: "docs/INTERNALS.md",
        phrase: "gives up after a million instructions; ours has about #.",
        sources: &[Source::Rounded(&Source::Measured("/program/verified_instructions"), 10_000)],
    },
];

/// Figures that are not measured. A phrase may be in several documents.
pub(super) const CHOSEN: &[Chosen] = &[
    Chosen { phrase: "within about 0.1 s", reason: "the daemon's intervals, several times" },
    Chosen { phrase: "plus those within 0.1 s", reason: "the daemon's intervals, several times" },
    Chosen { phrase: "0.2 s, 0.4 s, 0.8 s and so on", reason: "Linux's retransmissions" },
    Chosen { phrase: "(6 MB, or the distribution's value)", reason: "Linux's default" },
    Chosen { phrase: "A download of 10 GB takes", reason: "computed from the datagrams that the guard allows" },
    Chosen { phrase: "an upload of 10 GB up to", reason: "computed from the datagrams that the guard allows" },
    Chosen { phrase: "over HTTP/3 up to some 10 GB", reason: "computed from the datagrams that the guard allows" },
    Chosen { phrase: "The files take 200 to 350 MB", reason: "ratelimit-userspace/tests/docs.rs holds it" },
    Chosen { phrase: "bounds them at about 48 GB", reason: "computed from the recipe's limit" },
    Chosen { phrase: "Answers of more than 4 GB.", reason: "the sequence numbers of TCP" },
    Chosen { phrase: "requests (64 MB)", reason: "computed from the size of a waiting request" },
    Chosen { phrase: "If the sum exceeds 3 GB", reason: "advice, below the unit's MemoryMax" },
    Chosen {
        phrase: "0.08 s plus four round trips to the store, at least 0.1 s",
        reason: "computed from the intervals",
    },
    Chosen { phrase: "prints the bound for 0.1 s", reason: "the least delay" },
    Chosen { phrase: "(0.54 to 0.8 s)", reason: "two to three units of the time of refusals" },
    Chosen { phrase: "in units of 0.27 s", reason: "a power of two of nanoseconds" },
    Chosen { phrase: "fill the ring in 1.3 s at the earliest", reason: "computed from the ring and the budget" },
];
