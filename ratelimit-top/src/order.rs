//! What may be changed from here: one source allowed, denied or freed. Pure: knows the words of the commands that do the
//! same, and asks no daemon.

use ratelimit_policy::config::duration;

const SECOND_NS: u64 = 1_000_000_000;

/// Words that stand for no end, as the commands have them.
const PERMANENT: [&str; 2] = ["permanent", "forever"];

/// What is done with a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// As `ratelimitd allow`.
    Allow,
    /// As `ratelimitd deny`.
    Deny,
    /// As `ratelimitd unblock`.
    Unblock,
}

impl Verb {
    /// The command.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Unblock => "unblock",
        }
    }

    /// How long it lasts unless something else is said, as of the command; none where it has no duration.
    pub const fn lasts(self) -> Option<&'static str> {
        match self {
            Self::Allow => Some("1h"),
            Self::Deny => Some("4h"),
            Self::Unblock => None,
        }
    }
}

/// For how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lasts {
    /// As it was typed.
    pub text: String,
    /// None is permanent.
    pub seconds: Option<u64>,
}

impl Lasts {
    /// Reads what `--for` takes; what is wrong is said in a sentence.
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

/// One change that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// What.
    pub verb: Verb,
    /// Which source, as the reading names it.
    pub source: String,
    /// For how long; none where the verb has no duration.
    pub lasts: Option<Lasts>,
}

impl Order {
    /// The question: exactly what will be done.
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

    /// The command that does the same.
    pub fn command(&self) -> String {
        let lasts = self.lasts.as_ref().map_or_else(String::new, |lasts| format!(" --for {}", lasts.text));
        format!("ratelimitd {} {}{lasts}", self.verb.word(), self.source)
    }
}
