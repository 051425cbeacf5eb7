//! Table of forbidden patterns with reasons. Each entry is one rule with an example that breaks it.

/// Pattern that no line of certain files may match.
#[derive(Debug)]
pub(super) struct Rule {
    /// Paths that the rule covers: `dir/` with everything below, an ending `*.rs`, or a single file.
    pub(super) paths: &'static [&'static str],
    pub(super) except: &'static [&'static str],
    pub(super) part: Scope,
    /// Regular expression, applied to one line at a time.
    pub(super) forbidden: &'static str,
    pub(super) reason: &'static str,
    /// Lines that break the rule.
    #[cfg_attr(not(test), expect(dead_code, reason = "only the tests break a rule on purpose"))]
    pub(super) examples: &'static [&'static str],
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Scope {
    Everything,
    /// Text without comments and without the contents of strings.
    Code,
    /// Text like [`Scope::Code`], without test-only code.
    ShippedCode,
}

/// Directories of shipped code.
pub(super) const SHIPPED: &[&str] = &[
    "ratelimit-accesslog/src/",
    "ratelimit-common/src/",
    "ratelimit-control/src/",
    "ratelimit-daemon/src/",
    "ratelimit-datapath/src/",
    "ratelimit-doctor/src/",
    "ratelimit-ebpf/src/",
    "ratelimit-fleet/src/",
    "ratelimit-kernel/src/",
    "ratelimit-policy/src/",
    "ratelimit-report/src/",
    "ratelimit-top/src/",
    "ratelimit-userspace/src/",
    "ratelimit-view/src/",
    "ratelimit-web/src/",
];

/// Maximum number of lines in a shipped file, without the tests at its end.
pub(super) const SHIPPED_LINES_MAX: usize = 450;

/// Shipped files that may be longer, with the reason against splitting them.
pub(super) const LONG_FILES: &[(&str, &str)] = &[
    ("ratelimit-daemon/src/lib.rs", "the order of a start stands in one place"),
    (
        "ratelimit-common/src/conversation.rs",
        "one state, and every step that changes it: a reader has all of it at hand",
    ),
    ("ratelimit-common/src/layout.rs", "the keys, values and capacities of all maps, with their version"),
    ("ratelimit-ebpf/src/hook/skb.rs", "all that differs at TCX: its other half is hook/xdp.rs"),
    ("ratelimit-policy/src/config/settings.rs", "one configuration out of its tables, in their order"),
    ("ratelimit-common/src/hold.rs", "the order of checking, charging, refusing and banning is the promise"),
    ("ratelimit-common/src/packet.rs", "one walk over a frame: its bounds are checked from its beginning to its end"),
    ("ratelimit-common/src/window.rs", "one word, and the arithmetic that packs, reads and changes it"),
    ("ratelimit-datapath/src/fake.rs", "for tests alone: one method for each of the trait's"),
    (
        "ratelimit-kernel/src/pins.rs",
        "what outlives a daemon, of this layout and of earlier ones: who makes it and who removes it",
    ),
    ("ratelimit-ebpf/src/hold.rs", "one method for each of the trait's, and the function that it calls"),
    ("ratelimit-ebpf/src/maps/sources.rs", "what is unsafe about these maps is in one file"),
    ("ratelimit-report/src/snapshot/mod.rs", "one schema: the fields of `stats --json` and what fills them"),
    ("ratelimit-report/src/snapshot/sources.rs", "one count of all sources, and the ranks that come out of it"),
    ("ratelimit-userspace/src/cli/mod.rs", "one table: every command and flag with its help"),
];

pub(super) const RULES: &[Rule] = &[
    Rule {
        paths: &["ratelimit-common/src/"],
        except: &[],
        part: Scope::ShippedCode,
        forbidden: r"\b(std::time|Instant|SystemTime|f32|f64|HashMap|BTreeMap)\b",
        reason: "ratelimit-common decides: the time is an argument, and there are no floats and no maps",
        examples: &["use std::time::Duration;"],
    },
    Rule {
        paths: &[
            "ratelimit-policy/src/desired.rs",
            "ratelimit-policy/src/desired/",
            "ratelimit-policy/src/plan.rs",
            "ratelimit-policy/src/plan/",
        ],
        except: &[],
        part: Scope::ShippedCode,
        forbidden: r"\b(std::(fs|io|env|process|thread)|tokio|Instant|SystemTime|(Tcp|Udp|Unix)(Stream|Listener|Socket|Datagram))\b",
        reason: "the desired state and the plan are values: no input, no output, no clock",
        examples: &["let file = std::fs::read(path)?;"],
    },
    Rule {
        paths: &["ratelimit-report/src/observe.rs", "ratelimit-report/src/observe/"],
        except: &[],
        part: Scope::ShippedCode,
        forbidden: r"\b(std::(fs|io|env|process|thread)|tokio|Instant|SystemTime|(Tcp|Udp|Unix)(Stream|Listener|Socket|Datagram))\b",
        reason: "what is observed is a function of readings: no input, no output, and time is an argument",
        examples: &["let now = Instant::now();"],
    },
    Rule {
        paths: &[
            "ratelimit-fleet/src/acts.rs",
            "ratelimit-fleet/src/clock.rs",
            "ratelimit-fleet/src/core.rs",
            "ratelimit-fleet/src/core/",
            "ratelimit-fleet/src/hosts.rs",
            "ratelimit-fleet/src/names.rs",
            "ratelimit-fleet/src/store/pulse.rs",
            "ratelimit-fleet/src/tracked.rs",
            "ratelimit-fleet/src/wire.rs",
            "ratelimit-policy/src/fleet.rs",
        ],
        except: &[],
        part: Scope::ShippedCode,
        forbidden: r"\b(std::(fs|io|env|process|thread)|tokio|Instant|SystemTime|SystemRandom|(Tcp|Udp|Unix)(Stream|Listener|Socket|Datagram))\b",
        reason: "what a fleet reports is a function of what it is told: no input, no output; time and randomness are arguments",
        examples: &["let now = Instant::now();"],
    },
    Rule {
        paths: &["ratelimit-policy/src/plan.rs", "ratelimit-policy/src/plan/"],
        except: &[],
        part: Scope::ShippedCode,
        forbidden: r"\b(config|Config)\b",
        reason: "the plan compares desired states, and knows nothing of where they come from",
        examples: &["use crate::config::Config;"],
    },
    Rule {
        paths: &["ratelimit-report/src/export.rs", "ratelimit-report/src/export/"],
        except: &[],
        // Its tests build a snapshot like the daemon, with the fake datapath.
        part: Scope::ShippedCode,
        forbidden: r"datapath",
        reason: "what shows the state reads the snapshot, never the datapath",
        examples: &["use ratelimit_datapath::Datapath;"],
    },
    Rule {
        paths: &["ratelimit-control/src/"],
        except: &[],
        part: Scope::ShippedCode,
        forbidden: r"\blayout\b",
        reason: "no layout type crosses the control API: write its serde twin",
        examples: &[
            "use ratelimit_common::layout::Cell;",
            "use ratelimit_common::{layout, verdict};",
            "    unit: layout::Unit,",
        ],
    },
    Rule {
        paths: &["ratelimit-ebpf/src/"],
        except: &[
            "ratelimit-ebpf/src/packet.rs",
            "ratelimit-ebpf/src/hook/",
            "ratelimit-ebpf/src/classifier.rs",
            "ratelimit-ebpf/src/refusal.rs",
            "ratelimit-ebpf/src/generator.rs",
            "ratelimit-ebpf/src/maps.rs",
            "ratelimit-ebpf/src/maps/",
            "ratelimit-ebpf/src/clock.rs",
            "ratelimit-ebpf/src/main.rs",
        ],
        part: Scope::Code,
        // `#[unsafe(no_mangle)]` is allowed: a function that the verifier checks separately needs a name.
        forbidden: r"\bunsafe\s*(\{|fn\b|impl\b|extern\b|trait\b|$)",
        reason: "the BPF program is unsafe where it reads the packet and the maps, nowhere else; the benchmark's sender writes packets",
        examples: &["unsafe { read(pointer) }"],
    },
    Rule {
        paths: &["ratelimit-ebpf/src/clock.rs"],
        except: &[],
        part: Scope::Code,
        forbidden: r"\bunsafe\s*(fn\b|impl\b|extern\b|\{\s*([^b\s]|b[^p]|$))",
        reason: "in clock.rs, only the call of a clock helper (`unsafe { bpf_ktime_...() }`) is unsafe",
        examples: &["unsafe { read(pointer) }"],
    },
    Rule {
        paths: &["ratelimit-ebpf/src/main.rs", "ratelimit-ebpf/src/classifier.rs"],
        except: &[],
        part: Scope::Code,
        forbidden: r"\bunsafe\s*(\{|fn\b|impl\b|extern\b)",
        reason: "in main.rs and classifier.rs, only the attributes that place a symbol are unsafe",
        examples: &["unsafe { read(pointer) }"],
    },
    Rule {
        paths: &["ratelimit-common/src/"],
        except: &[],
        part: Scope::Code,
        forbidden: r"\bunsafe\s*(\{|fn\b|extern\b)",
        reason: "ratelimit-common may promise that a type is plain data, and is safe otherwise",
        examples: &["unsafe fn read() {}"],
    },
    Rule {
        paths: &["integration-test/tests/"],
        except: &[
            // This test needs real time: the kernel ends a trial without a daemon.
            "integration-test/tests/policy.rs",
            // This test needs real time: a client without an answer retries only after a while.
            "integration-test/tests/applications.rs",
            // This test paces its traffic, so that it lasts and admissions are spread over all buckets.
            "integration-test/tests/cpus.rs",
            // Events have a budget of real time.
            "integration-test/tests/events.rs",
            "integration-test/tests/events_told.rs",
            "integration-test/tests/flood.rs",
            "integration-test/tests/forged.rs",
            // These tests pace their traffic over a minute of real time.
            "integration-test/tests/fleet_cost.rs",
            "integration-test/tests/fleet_trouble.rs",
            "integration-test/tests/kept.rs",
            // These tests send packets while a program is swapped.
            "integration-test/tests/layouts.rs",
            "integration-test/tests/suggest.rs",
            "integration-test/tests/watch.rs",
            // These tests need the pace of clients that give up, of a flood, and of a failing store.
            "integration-test/tests/abandoned.rs",
            "integration-test/tests/after_flood.rs",
            "integration-test/tests/demand.rs",
            "integration-test/tests/fleet_slow.rs",
        ],
        part: Scope::Code,
        forbidden: r"\bsleep(_until)?\s*\(",
        reason: "a test waits for what happens (`lab::once`, `stats_once`, `wait_for_line`), not for a while",
        examples: &["    thread::sleep(Duration::from_secs(1));", "    sleep(MOMENT);"],
    },
    Rule {
        paths: &["*.rs"],
        except: &[],
        part: Scope::Code,
        forbidden: r"#!?\[allow\(",
        reason: "a lint is expected with its reason (`#[expect(lint, reason = \"...\")]`), never allowed",
        examples: &["#[allow(dead_code)]"],
    },
    Rule {
        paths: &["*.rs"],
        except: &["integration-test/"],
        part: Scope::ShippedCode,
        forbidden: r"\.unwrap\(\)",
        reason: "outside tests nothing is unwrapped: say what went wrong, and what to do",
        examples: &["let value = option.unwrap();"],
    },
    Rule {
        paths: &["*.rs", "*.toml", "*.md", "*.sh", "*.service", ".ci/"],
        except: &[],
        part: Scope::Everything,
        forbidden: r"\b(TO[D]O|FI[X]ME)\b",
        reason: "what is not done is an issue, not a comment",
        examples: &[concat!("// TO", "DO: more")],
    },
    Rule {
        paths: &["*"],
        except: &[],
        part: Scope::Everything,
        forbidden: r"(^|[^A-Za-z0-9_.])/(wor[k]|roo[t]|hom[e]/[a-z]+)/",
        reason: "no path of one machine is in the repository",
        examples: &[concat!("let dir = \"/ro", "ot/src\";")],
    },
];

impl Rule {
    pub(super) fn holds_for(&self, path: &str) -> bool {
        let matches = |patterns: &[&str]| patterns.iter().any(|pattern| is_match(pattern, path));
        matches(self.paths) && !matches(self.except)
    }
}

pub(super) fn is_match(pattern: &str, path: &str) -> bool {
    if let Some(ending) = pattern.strip_prefix('*') {
        return path.ends_with(ending);
    }
    if pattern.ends_with('/') {
        return path.starts_with(pattern);
    }
    path == pattern
}

/// Returns a path that the pattern matches.
#[cfg(test)]
pub(super) fn example_of(pattern: &str) -> String {
    if let Some(ending) = pattern.strip_prefix('*') {
        return format!("some/file{ending}");
    }
    if pattern.ends_with('/') {
        return format!("{pattern}file.rs");
    }
    pattern.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_directory_an_ending_or_a_file() {
        assert!(is_match("src/", "src/a/b.rs"));
        assert!(!is_match("src/", "other/src/b.rs"));
        assert!(is_match("*.rs", "a/b.rs"));
        assert!(!is_match("*.rs", "a/b.toml"));
        assert!(is_match("a/b.rs", "a/b.rs"));
        assert!(!is_match("a/b.rs", "a/b.rs.orig"));
    }
}
