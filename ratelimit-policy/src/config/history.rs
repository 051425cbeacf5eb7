//! Settings of the history of blocked sources: `[history]`. Pure.

use std::path::PathBuf;

use ratelimit_common::time::SECOND_NS;

use super::amount::{self, Amount};
use super::duration;
use super::network::parse_number;
use super::syntax::SyntaxError;
use super::values::Values;
use super::written::Source;
use crate::diagnostic::Found;

const DAY_NS: u64 = 86_400 * SECOND_NS;
const KEEP_NS_MIN: u64 = 3_600 * SECOND_NS;
const KEEP_NS_MAX: u64 = 3_660 * DAY_NS;
/// An empty database has 60 kB, so 1 MB is a safe minimum.
const BYTES_MAX_MIN: u64 = 1_000_000;
const BYTES_MAX_MAX: u64 = 1_000_000_000_000;

/// Settings of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Set if history is recorded.
    pub enabled: bool,
    /// Path of the database. None for `history.db` in the state directory.
    pub path: Option<PathBuf>,
    /// Time for which finished records are kept, in nanoseconds, 1 h to 3660 d.
    pub keep_ns: u64,
    /// Maximum size of the database in bytes, 1 MB to 1 TB.
    pub bytes_max: u64,
    /// Number of bits of an IPv4 address that are stored, 0 to 32.
    pub mask_ipv4: u8,
    /// Number of bits of an IPv6 address that are stored, 0 to 128.
    pub mask_ipv6: u8,
}

impl Default for History {
    fn default() -> Self {
        Self { enabled: true, path: None, keep_ns: 30 * DAY_NS, bytes_max: 256_000_000, mask_ipv4: 32, mask_ipv6: 128 }
    }
}

impl History {
    /// Returns `keep_ns` in words, whole days as days: `30 days`.
    pub fn keep_words(&self) -> String {
        let (days, rest_ns) = (self.keep_ns / DAY_NS, self.keep_ns % DAY_NS);
        match (days, rest_ns) {
            (1, 0) => "1 day".to_owned(),
            (2.., 0) => format!("{days} days"),
            (..=u64::MAX, _) => duration::words(self.keep_ns),
        }
    }
}

/// Returns the settings of `[history]` with defaults filled in. Errors are added to `found`.
pub(super) fn history(values: &Values, source: &Source, found: &mut Found) -> History {
    let default = History::default();
    let mut bits = |key: &str, most: u8| {
        let parsed = source.read_if(values.one(key), |text| parse_number(text, 0, most.into()));
        found.keep(parsed).flatten().and_then(|bits| u8::try_from(bits).ok()).unwrap_or(most)
    };
    let (mask_ipv4, mask_ipv6) = (bits("mask_ipv4", default.mask_ipv4), bits("mask_ipv6", default.mask_ipv6));
    let max_size = found.keep(source.read_if(values.one("max_size"), parse_size)).flatten();
    History {
        enabled: found.keep(source.is_set(values.one("enabled"), default.enabled)).unwrap_or(default.enabled),
        path: found.keep(source.read_if(values.one("path"), parse_path)).flatten(),
        keep_ns: found.keep(source.read_if(values.one("keep"), parse_keep)).flatten().unwrap_or(default.keep_ns),
        bytes_max: max_size.unwrap_or(default.bytes_max),
        mask_ipv4,
        mask_ipv6,
    }
}

fn parse_path(text: &str) -> Result<PathBuf, SyntaxError> {
    // Only absolute paths are clear: a daemon runs in `/`, and a command in its caller's directory.
    if !text.starts_with('/') || text.ends_with('/') || text.contains('\0') {
        let error = SyntaxError::new(0..text.len(), "it is not an absolute path of a file");
        return Err(error.with_help("begin it with `/`, as in /var/lib/ratelimitd/history.db"));
    }
    Ok(PathBuf::from(text))
}

fn parse_keep(text: &str) -> Result<u64, SyntaxError> {
    let keep_ns = duration::parse(text)?;
    if (KEEP_NS_MIN..=KEEP_NS_MAX).contains(&keep_ns) {
        return Ok(keep_ns);
    }
    Err(SyntaxError::new(0..text.len(), "history is kept from 1h to 3660d").with_help("30d is usual"))
}

fn parse_size(text: &str) -> Result<u64, SyntaxError> {
    match amount::parse(text)? {
        Amount::Bytes(bytes) if (BYTES_MAX_MIN..=BYTES_MAX_MAX).contains(&bytes) => Ok(bytes),
        Amount::Bytes(_) => Err(SyntaxError::new(0..text.len(), "the size is 1MB to 1TB").with_help("256MB is usual")),
        Amount::Plain(_) => Err(SyntaxError::new(0..text.len(), "the size has no unit").with_help("256MB is usual")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{file, keys};

    fn parsed(line: &str) -> Result<History, String> {
        let text = format!("interfaces = [\"eth0\"]\n[history]\n{line}\n[rule]\nlimits = [\"1000/5m\"]\n");
        let config = file::parse(Path::new("r.toml"), &text, |_| Err(String::new()));
        config.map(|config| config.history).map_err(|errors| {
            let first = errors.first();
            format!("{}; {}", first.problem, first.help.join(" "))
        })
    }

    #[test]
    fn every_key_reads_as_documented() {
        let default = History::default;
        for (line, history) in [
            ("", default()),
            ("enabled = false", History { enabled: false, ..default() }),
            ("path = \"/srv/h.db\"", History { path: Some("/srv/h.db".into()), ..default() }),
            ("keep = \"1h\"", History { keep_ns: 3_600 * SECOND_NS, ..default() }),
            ("keep = \"3660d\"", History { keep_ns: KEEP_NS_MAX, ..default() }),
            ("max_size = \"1MB\"", History { bytes_max: 1_000_000, ..default() }),
            ("max_size = \"1TB\"", History { bytes_max: 1_000_000_000_000, ..default() }),
            ("mask_ipv4 = 24\nmask_ipv6 = 48", History { mask_ipv4: 24, mask_ipv6: 48, ..default() }),
        ] {
            assert_eq!(parsed(line), Ok(history), "{line}");
        }
    }

    #[test]
    fn invalid_settings_are_refused_with_a_hint_at_valid_ones() {
        for (line, words) in [
            ("keep = \"59m\"", "history is kept from 1h to 3660d"),
            ("keep = \"3661d\"", "history is kept from 1h to 3660d"),
            ("max_size = \"999kB\"", "the size is 1MB to 1TB"),
            ("max_size = 256", "the size has no unit; 256MB is usual"),
            ("path = \"history.db\"", "begin it with `/`"),
            ("path = \"/var/lib/\"", "it is not an absolute path of a file"),
            ("path = 5", "put it in quotes"),
            ("mask_ipv4 = 33", "a whole number from 0 to 32"),
            ("mask_ip4 = 24", "did you mean `mask_ipv4`?"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }

    #[test]
    fn whole_days_are_said_as_days() {
        let words = |keep_ns| History { keep_ns, ..History::default() }.keep_words();
        assert_eq!([30 * DAY_NS, DAY_NS, 90_000 * SECOND_NS].map(words), ["30 days", "1 day", "25 hours"]);
    }

    #[test]
    fn the_table_says_the_defaults() {
        let default = |name: &str| keys::HISTORY.iter().find(|key| key.name == name).unwrap().default.trim_matches('"');
        let history = History::default();
        assert_eq!(duration::parse(default("keep")), Ok(history.keep_ns));
        assert_eq!(parse_size(default("max_size")), Ok(history.bytes_max));
    }
}
