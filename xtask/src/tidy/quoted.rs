//! Compares the numbers quoted in documents with their source: a measurement in docs/performance.json, or a constant.
//!
//! [`QUOTED`] lists each phrase with the sources of its numbers. A missing phrase or a number that differs is a breach.
//! A cost in nanoseconds in README.md, FLOODS.md or GROUPS.md that no phrase covers is a breach too.

use std::ops::Range;

use anyhow::{Context, Result};
use regex_lite::Regex;
use serde_json::Value;

use super::{Breach, breach};

const PERFORMANCE: &str = "docs/performance.json";
/// Documents in which each cost needs a source.
const COSTS_IN: [&str; 3] = ["README.md", "docs/FLOODS.md", "docs/GROUPS.md"];

const DIFFERS: &str = "a document quotes a number that its source does not have: see QUOTED in tidy/quoted.rs";
const GONE: &str = "a phrase of QUOTED in tidy/quoted.rs is not in its document any more: change that row with it";
const NO_SOURCE: &str = "a cost without a source: name the measurement in QUOTED of tidy/quoted.rs";
const NO_NUMBER: &str = "a row of QUOTED in tidy/quoted.rs names a measurement or constant that is not there";

/// Source of a number.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// Median nanoseconds above a bare `XDP_DROP`, rounded: the flood's row and the receiver.
    Above(&'static str, &'static str),
    /// Number of the program alone, as a JSON pointer, rounded to a multiple.
    Program(&'static str, u64),
    /// Constant of a file, divided by a unit.
    Constant(&'static str, &'static str, u64),
    /// Product of two constants, divided by a unit.
    Product([(&'static str, &'static str); 2], u64),
}

/// Phrase of a document, with `#` for each number.
struct Quoted {
    document: &'static str,
    phrase: &'static str,
    sources: &'static [Source],
}

const LIMITER: &str = "limiter";
const METER: &str = "nft_meter";
const ADMISSION: &str = "ratelimit-common/src/admission.rs";
const LAYOUT: &str = "ratelimit-common/src/layout.rs";
const VERIFICATION: &str = "ratelimit-common/src/verification.rs";
const ACCOUNTED: &str = "ratelimit-common/src/conversation/accounted.rs";
const TLS_DATA: &str = "ratelimit-common/src/conversation/tls/data.rs";
const SERVER: &str = "ratelimit-control/src/server.rs";
const PAST: &str = "ratelimit-daemon/src/past.rs";

const QUOTED: &[Quoted] = &[
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
        phrase: "with the default of # sources and one limit",
        sources: &[Source::Constant(LAYOUT, "SOURCES_CAPACITY", 1)],
    },
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
        sources: &[Source::Constant(ACCOUNTED, "ACCOUNTED_SHIFT", 0)],
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
        phrase: "the default of # sources and one limit of requests",
        sources: &[Source::Constant(LAYOUT, "SOURCES_CAPACITY", 1)],
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
        sources: &[Source::Program("/program/verified_instructions", 10_000)],
    },
];

/// Checks every quoted number. `files` holds path and text of each repository file.
pub(super) fn breaches(files: &[(String, String)]) -> Result<Vec<Breach>> {
    breaches_of(QUOTED, files)
}

fn breaches_of(rows: &[Quoted], files: &[(String, String)]) -> Result<Vec<Breach>> {
    let text_of = |path: &str| files.iter().find(|(of, _)| of == path).map(|(_, text)| text.as_str());
    let performance: Value = serde_json::from_str(text_of(PERFORMANCE).unwrap_or("null")).context(PERFORMANCE)?;
    let world = World { files, performance };
    let mut breaches = Vec::new();
    let mut sourced: Vec<(&str, Range<usize>)> = Vec::new();
    for row in rows {
        let Some(text) = text_of(row.document) else { continue };
        let Some(found) = numbers_in(text, row.phrase) else {
            breaches.push(breach(row.document, 1, row.phrase, GONE));
            continue;
        };
        for (at, source) in row.sources.iter().enumerate() {
            let Some(number) = found.get(at) else { continue };
            sourced.push((row.document, number.clone()));
            let line = 1 + text[..number.start].matches('\n').count();
            let digits: String = text[number.clone()].chars().filter(char::is_ascii_digit).collect();
            let said: u64 = digits.parse()?;
            match world.number(*source) {
                None => breaches.push(breach(row.document, line, &format!("{source:?}"), NO_NUMBER)),
                Some(is) if is != said => {
                    let words = format!("{said}, and {source:?} is {is}: {}", row.phrase);
                    breaches.push(breach(row.document, line, &words, DIFFERS));
                }
                Some(_) => {}
            }
        }
    }
    for document in COSTS_IN {
        let Some(text) = text_of(document) else { continue };
        let cost = Regex::new(r"(\d[\d.]*)\s+(ns|µs|us|nanoseconds|microseconds)\b")?;
        for found in cost.captures_iter(text).filter_map(|found| found.get(1)) {
            let has_source = |(of, range): &(&str, Range<usize>)| *of == document && range.end == found.end();
            if !sourced.iter().any(has_source) {
                let at = text[..found.start()].matches('\n').count();
                breaches.push(breach(document, at + 1, text.lines().nth(at).unwrap_or_default(), NO_SOURCE));
            }
        }
    }
    Ok(breaches)
}

/// Returns the positions of a phrase's numbers in a text, where lines may break at any space. None if the phrase is
/// missing.
fn numbers_in(text: &str, phrase: &str) -> Option<Vec<Range<usize>>> {
    let mut words = String::new();
    let mut places = Vec::new();
    for (at, c) in text.char_indices() {
        let c = if c.is_whitespace() { ' ' } else { c };
        if c != ' ' || !words.ends_with(' ') {
            words.push(c);
            places.resize(words.len(), at);
        }
    }
    let parts: Vec<&str> = phrase.split('#').collect();
    let first = parts.first()?;
    words.match_indices(first).find_map(|(at, _)| {
        let mut end = at + first.len();
        let mut numbers = Vec::new();
        for part in parts.get(1..)? {
            let len = number_len(&words[end..]);
            let last = (end + len).checked_sub(1).filter(|_| len > 0)?;
            numbers.push(*places.get(end)?..*places.get(last)? + 1);
            words[end + len..].starts_with(part).then_some(())?;
            end += len + part.len();
        }
        Some(numbers)
    })
}

/// Returns the length of the number at the start of a text. Its digits may be grouped by spaces: `16 384`.
fn number_len(text: &str) -> usize {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut len = digits(text);
    while len > 0 && text[len..].strip_prefix(' ').is_some_and(|rest| digits(rest) == 3) {
        len += 4;
    }
    len
}

struct World<'a> {
    files: &'a [(String, String)],
    performance: Value,
}

impl World<'_> {
    fn number(&self, source: Source) -> Option<u64> {
        match source {
            Source::Above(row, receiver) => {
                let rows = self.performance.pointer("/floods/rows")?.as_array()?;
                let is = |of: &&Value, id: &str| of.get("id").and_then(Value::as_str) == Some(id);
                let row = rows.iter().find(|of| is(of, row))?;
                let receiver = row.get("receivers")?.as_array()?.iter().find(|of| is(of, receiver))?;
                let floor = if row.get("floor")?.as_str()? == "bare" { "above_bare_ns" } else { "above_floor_ns" };
                whole(receiver.get(floor)?.get("median")?.as_f64()?)
            }
            Source::Program(pointer, multiple) => {
                let number = self.performance.pointer(pointer)?.as_u64()?;
                Some((number + multiple / 2) / multiple * multiple)
            }
            // The constant is a power of two in bytes, and the document quotes KiB.
            Source::Constant(file, name, 0) => Some((1 << self.constant(file, name)?) >> 10),
            Source::Constant(file, name, unit) => Some(self.constant(file, name)? / unit),
            Source::Product([(file, name), (other_file, other)], unit) => {
                Some(self.constant(file, name)? * self.constant(other_file, other)? / unit)
            }
        }
    }

    /// Returns the value of `const NAME: TYPE = VALUE;`: a number, a shifted number, or a duration in seconds.
    fn constant(&self, path: &str, name: &str) -> Option<u64> {
        let (_, text) = self.files.iter().find(|(of, _)| of == path)?;
        let (_, rest) = text.split_once(&format!("const {name}: "))?;
        let (_, rest) = rest.split_once('=')?;
        let (value, _) = rest.split_once(';')?;
        let value = value.trim().trim_start_matches("Duration::from_secs(").trim_end_matches(')').to_owned();
        match value.split_once("<<") {
            Some((one, by)) => Some(self.value(path, one)? << self.value(path, by)?),
            None => self.value(path, &value),
        }
    }

    /// Returns the value of a number or of another constant in the file.
    fn value(&self, path: &str, text: &str) -> Option<u64> {
        let text = text.trim();
        text.replace('_', "").parse().ok().or_else(|| self.constant(path, text))
    }
}

/// Rounds a measurement as documents do.
fn whole(number: f64) -> Option<u64> {
    format!("{number:.0}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &[Quoted] = &[
        Quoted {
            document: "README.md",
            phrase: "one packet costs # ns more, the meter's #",
            sources: &[Source::Above("one_source", LIMITER), Source::Above("one_source", METER)],
        },
        Quoted {
            document: "docs/COUNTING.md",
            phrase: "one in # KB, and # MB in all, of # sources",
            sources: &[
                Source::Constant("a.rs", "SHIFT", 0),
                Source::Product([("a.rs", "SEGMENTS"), ("a.rs", "BYTES")], 1 << 20),
                Source::Constant("a.rs", "SOURCES", 1),
            ],
        },
    ];

    /// Returns the reasons of the breaches in these texts.
    fn said(readme: &str, counting: &str) -> Vec<&'static str> {
        let performance = r#"{"floods": {"rows": [{"id": "one_source", "floor": "bare", "receivers": [
            {"id": "limiter", "above_bare_ns": {"median": 36.1}}, {"id": "nft_meter", "above_bare_ns": {"median": 496.6}}]}]}}"#;
        let code = "pub const SHIFT: u32 = 14;\npub const BYTES: u32 = 1 << SHIFT;\nconst SEGMENTS: u64 = 16_384;\n\
                    const SOURCES: u32 = 262_144;";
        let files = [("README.md", readme), ("docs/COUNTING.md", counting), ("a.rs", code), (PERFORMANCE, performance)];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        breaches_of(ROWS, &files).unwrap().into_iter().map(|breach| breach.reason).collect()
    }

    const README: &str = "Here one packet\n  costs 36 ns more, the meter's 497.";
    const COUNTING: &str = "one in 16 KB, and 256\nMB in all, of 262 144 sources";

    #[test]
    fn a_number_that_its_source_does_not_have_is_found_on_either_side() {
        assert_eq!(said(README, COUNTING), [""; 0]);
        assert_eq!(said("one packet costs 24 ns more, the meter's 497", COUNTING), [DIFFERS]);
        assert_eq!(said("one packet costs 36 ns more, the meter's 190", COUNTING), [DIFFERS]);
        assert_eq!(said(README, "one in 8 KB, and 255 MB in all, of 262 145 sources"), [DIFFERS; 3]);
    }

    #[test]
    fn a_phrase_that_is_gone_and_a_cost_without_a_source_are_found() {
        assert_eq!(said(README, "nothing of that"), [GONE]);
        assert_eq!(said(&format!("{README} Another costs 55 ns."), COUNTING), [NO_SOURCE]);
        assert_eq!(said(&format!("{README} Another costs 1.5 µs."), COUNTING), [NO_SOURCE]);
    }

    #[test]
    fn each_row_has_a_source_for_each_of_its_numbers() {
        for row in QUOTED {
            assert_eq!(row.phrase.matches('#').count(), row.sources.len(), "{}", row.phrase);
        }
    }
}
