//! Log output: to the journal if standard error is connected to it, else to standard error.

use std::os::unix::fs::MetadataExt as _;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use ratelimit_policy::config::syntax::printable_lines;

/// Environment variable with the log filter in `tracing`'s syntax, which overrides the flags.
pub const VARIABLE: &str = "RATELIMITD_LOG";

/// Prefix of fields in the journal: `RATELIMITD_SOURCE=198.51.100.7`.
const FIELD_PREFIX: &str = "RATELIMITD";

/// Returns the log level: one step up from `usual` for each `-v`, and one down for each `-q`.
pub fn level(usual: LevelFilter, verbose: u8, quiet: u8) -> LevelFilter {
    const LEVELS: [LevelFilter; 6] = [
        LevelFilter::OFF,
        LevelFilter::ERROR,
        LevelFilter::WARN,
        LevelFilter::INFO,
        LevelFilter::DEBUG,
        LevelFilter::TRACE,
    ];
    let usual = LEVELS.iter().position(|level| *level == usual).unwrap_or(0);
    // Errors are always logged.
    let wanted = (usual + usize::from(verbose)).saturating_sub(usize::from(quiet)).clamp(1, LEVELS.len() - 1);
    LEVELS[wanted]
}

/// Returns the log filter for a level.
fn directives(level: LevelFilter) -> String {
    // The loader logs each relocation at debug level: hundreds of lines before our first one.
    let loader = level.min(LevelFilter::INFO);
    // The client of the fleet's store logs each failed connection, many times a second. The fleet's own code reports it
    // once.
    let store = if level > LevelFilter::INFO { level } else { LevelFilter::OFF };
    format!("{level},aya={loader},aya_obj={loader},redis={store}")
}

/// Starts logging at `level`. A second call changes nothing.
pub fn start(level: LevelFilter) {
    let from_flags = || EnvFilter::new(directives(level));
    let filter = std::env::var(VARIABLE).ok().and_then(|text| EnvFilter::try_new(text).ok()).unwrap_or_else(from_flags);
    let journal = if is_journal() { tracing_journald::layer().ok() } else { None };
    let journal = journal.map(|journal| journal.with_field_prefix(Some(FIELD_PREFIX.to_owned())));
    let layer = match journal {
        Some(journal) => journal.boxed(),
        None => {
            let is_coloured = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
            let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
            // If standard error is a terminal that is gone, an internal error message would panic.
            let lines = lines.log_internal_errors(false);
            lines.with_ansi(is_coloured).fmt_fields(words_alone()).boxed()
        }
    };
    // This fails only if there is a subscriber already, as in tests.
    let _second = tracing_subscriber::registry().with(filter).with(layer).try_init();
}

/// Formats only the message of an event. Its fields repeat the message for programs, and the journal has them.
fn words_alone() -> impl for<'a> FormatFields<'a> + 'static {
    debug_fn(
        |out, field, value| {
            if field.name() == "message" { out.write_str(&words(&format!("{value:?}"))) } else { Ok(()) }
        },
    )
}

/// Makes a message safe for a log. A file name may contain anything, and must neither control the terminal nor start a
/// line.
fn words(message: &str) -> String {
    printable_lines(message.trim_end_matches('\n')).replace('\n', "\n    ")
}

/// Returns true if standard error is the journal's stream: `$JOURNAL_STREAM` has its device and inode
/// (systemd.exec(5)). The variable alone is not enough, because all children of a service inherit it.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(own) = std::fs::metadata("/proc/self/fd/2") else { return false };
    stream == format!("{}:{}", own.dev(), own.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_makes_no_line_that_looks_like_another() {
        assert_eq!(words("read a\n2026 WARN \u{1b}[2Jall\u{9b}\n"), "read a\n    2026 WARN \u{fffd}[2Jall\u{fffd}");
    }

    #[test]
    fn the_client_of_the_store_is_heard_with_debug_lines_alone() {
        for (level, store) in [(LevelFilter::INFO, "off"), (LevelFilter::ERROR, "off"), (LevelFilter::DEBUG, "debug")] {
            assert!(directives(level).ends_with(&format!(",redis={store}")), "{}", directives(level));
        }
    }

    #[test]
    fn each_flag_is_one_step() {
        for (verbose, quiet, expected) in [
            (0, 0, LevelFilter::INFO),
            (1, 0, LevelFilter::DEBUG),
            (2, 0, LevelFilter::TRACE),
            (9, 0, LevelFilter::TRACE),
            (0, 1, LevelFilter::WARN),
            (0, 2, LevelFilter::ERROR),
            (0, 9, LevelFilter::ERROR),
            (1, 1, LevelFilter::INFO),
        ] {
            assert_eq!(level(LevelFilter::INFO, verbose, quiet), expected, "-v x {verbose}, -q x {quiet}");
        }
    }
}
