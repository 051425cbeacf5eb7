//! Dead man's switch: the behaviour of a filter after no daemon has run for some time.

use ratelimit_common::time::SECOND_NS;

use super::duration;
use super::syntax::{SyntaxError, near_miss};

/// Minimum time without a daemon. A busy daemon must not be mistaken for a dead one.
const AFTER_MIN_NS: u64 = 2 * SECOND_NS;
/// Maximum time without a daemon. The packet path could measure nine years.
const AFTER_MAX_NS: u64 = 30 * 86_400 * SECOND_NS;

const ENFORCE: &str = "enforce";
const DRY_RUN_AFTER: &str = "dry-run after ";
const HELP: &str = "write \"enforce\", or a time as in \"dry-run after 1h\"";

/// Parses `enforce`, which is None, or `dry-run after 1h`, which is a time in nanoseconds.
///
/// # Errors
/// Fails for any other text, and for times outside 2 s to 30 d.
pub(super) fn parse(text: &str) -> Result<Option<u64>, SyntaxError> {
    if text == ENFORCE {
        return Ok(None);
    }
    let whole = || 0..text.len();
    let Some(after) = text.strip_prefix(DRY_RUN_AFTER) else {
        let help = near_miss(text, [ENFORCE]).map(|meant| format!("did you mean `{meant}`?"));
        let error = SyntaxError::new(whole(), format!("`{text}` is not a choice here"));
        return Err(error.with_help(HELP).with_help_if(help));
    };
    let Ok(after_ns) = duration::parse(after) else {
        return Err(
            SyntaxError::new(DRY_RUN_AFTER.len()..text.len(), format!("`{after}` is not a time")).with_help(HELP)
        );
    };
    if (AFTER_MIN_NS..=AFTER_MAX_NS).contains(&after_ns) {
        return Ok(Some(after_ns));
    }
    Err(SyntaxError::new(DRY_RUN_AFTER.len()..text.len(), "the filter waits for a daemon from 2s to 30d")
        .with_help("1h is usual: a restart takes seconds"))
}

/// Formats the setting as [`parse`] reads it.
#[must_use]
pub fn words(without_daemon_ns: Option<u64>) -> String {
    without_daemon_ns.map_or_else(|| ENFORCE.to_owned(), |after| format!("{DRY_RUN_AFTER}{}", duration::short(after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enforcement_without_a_daemon_is_permanent_or_2_seconds_to_30_days() {
        assert_eq!(parse("enforce").unwrap(), None);
        for (text, seconds) in [("2s", 2), ("90s", 90), ("1h", 3_600), ("30d", 30 * 86_400)] {
            let read = parse(&format!("dry-run after {text}")).unwrap();
            assert_eq!(read, Some(seconds * SECOND_NS), "{text}");
            assert_eq!(parse(&words(read)).unwrap(), read, "{text}");
        }
        assert_eq!(words(None), "enforce");
        for bad in ["", "enforced", "dry-run", "dry-run after", "dry-run after 1s", "dry-run after 31d", "1h", "off"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
