//! Fuzz targets for files: configurations, lists, access logs and captures.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use ratelimit_common::layout::{LIMITS_MAX, RULES_MAX, Unit};
use ratelimit_policy::config::lists::{LIST_ENTRIES_MAX, parse};
use ratelimit_policy::config::{Config, file};
use ratelimit_policy::desired::DesiredState;
use ratelimit_policy::diagnostic::Diagnostics;
use ratelimit_policy::fixture::{Choices, config_text, limit, list_text, policy};
use ratelimit_policy::plan::{apply, changes, diff};
use ratelimit_report::replay::{Asked, Clock, Ports, log, read};

use crate::WORKS;

/// Parses a configuration file and a list file, separated by a line `---`.
pub(crate) fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (file, list) = text.split_once("\n---\n").unwrap_or((&text, "192.0.2.0/24\n"));
    understood(file, list);
}

/// Builds two partly valid configurations, and checks that applying their difference to the first yields the second.
pub(crate) fn config_mix(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let list = list_text(&mut choices);
    let states = [config_text(&mut choices), config_text(&mut choices)].map(|text| understood(&text, &list));
    let [Some(from), Some(to)] = states else { return };
    assert_eq!(&apply(&from, &diff(&from, &to)), &to);
    assert_eq!(changes(&from, &to).is_empty(), from == to, "a change is told, and only a change");
}

fn understood(text: &str, list: &str) -> Option<DesiredState> {
    let config: Result<Config, Diagnostics> = file::parse(Path::new("ratelimitd.toml"), text, |_| Ok(list.to_owned()));
    match config {
        Ok(config) => {
            assert!((1..=RULES_MAX).contains(&config.policy.rules.len()));
            assert!(config.policy.rules.iter().all(|rule| (1..=LIMITS_MAX).contains(&rule.limits.len())));
            let state = DesiredState::from(&config);
            assert!(diff(&state, &state).is_empty());
            Some(state)
        }
        Err(errors) => {
            assert!(errors.iter().all(|error| !error.problem.is_empty()), "{errors:?}");
            None
        }
    }
}

/// Parses a list file.
pub(crate) fn list(bytes: &[u8]) {
    if let Ok(prefixes) = parse(Path::new("list"), &String::from_utf8_lossy(bytes)) {
        assert!(prefixes.len() <= LIST_ENTRIES_MAX && prefixes.is_sorted());
        assert!(prefixes.iter().all(|prefix| *prefix == prefix.trunc()));
    }
}

pub(crate) fn clock() -> Clock {
    Clock { zone: jiff::tz::TimeZone::UTC, now: jiff::Timestamp::UNIX_EPOCH }
}

/// Parses an access log line by line, then replays it.
pub(crate) fn log(bytes: &[u8]) {
    let mut parser = log::Parser::new(clock());
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Err(why) = parser.line(line) {
            assert!(!why.is_empty());
        }
    }
    replay(bytes);
}

/// Passes the bytes to `replay` as a capture or any other file.
pub(crate) fn capture(bytes: &[u8]) {
    replay(bytes);
}

fn replay(bytes: &[u8]) {
    // On /dev/shm, which is in memory, if the host has it.
    static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
        let shared = Path::new("/dev/shm");
        let directory = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        directory.join(format!("ratelimit-fuzz-{}", std::process::id()))
    });
    let policy = policy(vec![limit(3, Unit::Requests)]);
    fs::write(&*FILE, bytes).expect(WORKS);
    let outcome = read(
        std::slice::from_ref(&FILE),
        &Asked { policy: &policy, ports: Ports::Default, clock: clock(), lists: &[] },
    );
    fs::remove_file(&*FILE).expect(WORKS);
    if let Err(error) = outcome {
        assert!(!error.to_string().is_empty());
    }
}
