//! Changes that `top` can request: allowing, denying or unblocking one source. Pure: builds the wording and the
//! equivalent command, and contacts no daemon.

use ratelimit_policy::config::duration;

const SECOND_NS: u64 = 1_000_000_000;

/// Words for an unlimited duration, as the commands accept them.
const PERMANENT: [&str; 2] = ["permanent", "forever"];

/// Action on a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Allows the source, like `ratelimitd allow`.
    Allow,
    /// Denies the source, like `ratelimitd deny`.
    Deny,
    /// Unblocks the source, like `ratelimitd unblock`.
    Unblock,
}

impl Verb {
    /// Returns the name of the equivalent `ratelimitd` command.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Unblock => "unblock",
        }
    }

    /// Returns the default duration of the command, or none if the command takes no duration.
    pub const fn lasts(self) -> Option<&'static str> {
        match self {
            Self::Allow => Some("1h"),
            Self::Deny => Some("4h"),
            Self::Unblock => None,
        }
    }
}

/// Duration of an allowance or a denial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lasts {
    /// Duration as the user typed it.
    pub text: String,
    /// Duration in seconds, rounded up. None means permanent.
    pub seconds: Option<u64>,
}

impl Lasts {
    /// Parses a duration in the syntax of `--for`. Fails with a sentence for the user if the text is invalid or the
    /// duration is below one second.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim().to_owned();
        if PERMANENT.contains(&text.as_str()) {
            return Ok(Self { text, seconds: None });
        }
        let hint = "write 10m, 12h, 7d or permanent";
        match duration::parse(&text) {
            Err(error) => Err(format!("{}: {hint}", error.problem)),
            Ok(length_ns) if length_ns < SECOND_NS => Err(format!("the time is too short: {hint}")),
            Ok(length_ns) => Ok(Self { text, seconds: Some(length_ns.div_ceil(SECOND_NS)) }),
        }
    }

    fn words(&self) -> String {
        match self.seconds {
            Some(_) => format!("for {}", self.text),
            None => "permanently".to_owned(),
        }
    }
}

/// Requested change of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Action to perform on the source.
    pub verb: Verb,
    /// Source, as the snapshot names it.
    pub source: String,
    /// Duration, or none if the action takes no duration.
    pub lasts: Option<Lasts>,
}

impl Order {
    /// Returns the confirmation question, which states exactly what will be done.
    pub fn question(&self) -> String {
        let source = &self.source;
        let lasts = self.lasts.as_ref().map_or_else(String::new, Lasts::words);
        match self.verb {
            Verb::Allow => format!("Allow {source} {lasts}: its packets pass, whatever the limits say?"),
            Verb::Deny => format!("Deny {source} {lasts}: all its packets to the protected ports are dropped?"),
            Verb::Unblock => {
                format!("Unblock {source}: lift its denials and bans, and reset its counters where it is over a limit?")
            }
        }
    }

    /// Returns the equivalent command line.
    pub fn command(&self) -> String {
        let lasts = self.lasts.as_ref().map_or_else(String::new, |lasts| format!(" --for {}", lasts.text));
        format!("ratelimitd {} {}{lasts}", self.verb.word(), self.source)
    }
}
