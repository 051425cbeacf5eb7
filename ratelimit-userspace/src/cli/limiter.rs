//! The flags that say what to limit, each from a row of the table of keys. Their values stay texts here, so that errors
//! are shown alike for flags and file.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, ValueHint};

use crate::error::SOCKET_VARIABLE;
use ratelimit_policy::config::keys::{self, Takes};
use ratelimit_policy::config::settings::Settings;

/// Flags in the order of the help. A test checks that these are the flags that keys have.
const SHOWN: [(&str, &[&str]); 3] = [
    (
        "What to limit",
        &[
            "--iface",
            "--limit",
            "--count",
            "--port",
            "--quic-ports",
            "--access-log",
            "--allow",
            "--ipv4-prefix",
            "--ipv6-prefix",
            "--name",
        ],
    ),
    (
        "What happens over the limit",
        &["--dry-run", "--refuse", "--block-for", "--new-sources", "--unparsable", "--window"],
    ),
    (
        "How it runs",
        &[
            "--hook",
            "--xdp-mode",
            "--max-sources",
            "--socket",
            "--listen",
            "--tls-cert-file",
            "--tls-key-file",
            "--insecure-web",
            "--fleet",
            "--fleet-secret-file",
            "--on-exit",
        ],
    ),
];

/// The flags that say what to limit and how, as typed, each with its value or its meaning.
#[derive(Clone, Debug, Default)]
pub struct Limiter(Vec<(&'static str, String)>);

impl Limiter {
    /// Returns true if nothing to limit was given. The socket does not count, because the environment may set it.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|(flag, _)| *flag == "--socket")
    }

    /// Returns the typed flags as settings, with their places.
    pub fn settings(&self) -> Settings {
        Settings::of_flags(self.0.iter().map(|(flag, text)| (*flag, text.as_str())))
    }

    /// Returns what was typed for these flags.
    pub(super) fn of(flags: impl IntoIterator<Item = &'static str>, matches: &ArgMatches) -> Self {
        Self(flags.into_iter().flat_map(|flag| typed(flag, matches)).collect())
    }

    /// Returns the value of a flag, if it was given.
    pub(super) fn text(&self, flag: &str) -> Option<&str> {
        self.0.iter().find(|(of, _)| *of == flag).map(|(_, text)| text.as_str())
    }

    /// Adds one more flag.
    #[must_use]
    pub(super) fn with(mut self, flag: &'static str, text: &str) -> Self {
        self.0.push((flag, text.to_owned()));
        self
    }
}

impl Args for Limiter {
    fn augment_args(command: clap::Command) -> clap::Command {
        let headed = SHOWN.iter().flat_map(|(heading, flags)| arguments(flags).map(|of| of.help_heading(*heading)));
        command.args(headed)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Limiter {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self::of(SHOWN.iter().flat_map(|(_, flags)| flags.iter().copied()), matches))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns the clap arguments of these flags, from the table of keys.
pub(super) fn arguments(flags: &'static [&'static str]) -> impl Iterator<Item = Arg> {
    flags.iter().filter_map(|flag| argument(flag))
}

fn argument(flag: &'static str) -> Option<Arg> {
    let (_, key) = keys::of_flag(flag)?;
    let argument = Arg::new(flag).long(flag.trim_start_matches('-')).help(key.flag_help());
    let (action, value) = match key.flag?.takes {
        Takes::One(value) => (ArgAction::Set, value),
        Takes::Many(value) => (ArgAction::Append, value),
        Takes::Nothing { .. } => return Some(argument.action(ArgAction::SetTrue)),
    };
    let hint = if value == "PATH" { ValueHint::FilePath } else { ValueHint::Unknown };
    let argument = argument.action(action).value_name(value).value_hint(hint).value_parser(Suggested(key.choices()));
    Some(if flag == "--socket" { argument.env(SOCKET_VARIABLE).hide_env_values(true) } else { argument })
}

fn typed(flag: &'static str, matches: &ArgMatches) -> Vec<(&'static str, String)> {
    match keys::of_flag(flag).and_then(|(_, key)| key.flag) {
        Some(keys::Flag { takes: Takes::Nothing { means, .. }, .. }) => {
            matches.get_flag(flag).then(|| (flag, means.to_owned())).into_iter().collect()
        }
        Some(_) | None => {
            let texts = matches.get_many::<String>(flag).into_iter().flatten();
            texts.map(|text| (flag, text.clone())).collect()
        }
    }
}

/// Parser that accepts any text, and lists the valid words for help and completions. [`Settings::config`] refuses other
/// words.
#[derive(Clone, Copy)]
struct Suggested(&'static [&'static str]);

impl TypedValueParser for Suggested {
    type Value = String;

    fn parse_ref(&self, command: &clap::Command, argument: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        clap::builder::StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let words = self.0.iter().map(PossibleValue::new);
        (!self.0.is_empty()).then(|| Box::new(words) as Box<dyn Iterator<Item = PossibleValue>>)
    }
}
