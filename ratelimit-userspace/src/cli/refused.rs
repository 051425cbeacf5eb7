//! Turns clap's errors into the wording and style of all other errors. Pure.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::definition;
use crate::error::{Diagnostic, Place};

/// Returns what is wrong with these arguments and what to do; `None` if clap has something to print instead, as for
/// `--help`.
pub(super) fn diagnostic(error: &clap::Error, arguments: &[OsString]) -> Option<Diagnostic> {
    let all = |kind| error.get(kind).map_or_else(Vec::new, words);
    let one = |kind| all(kind).into_iter().next().unwrap_or_default();
    let argument = || name(&one(ContextKind::InvalidArg));
    let mut help = Vec::new();
    #[expect(clippy::wildcard_enum_match_arm, reason = "the enum of clap may grow")]
    let problem = match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::MissingSubcommand => return None,
        ErrorKind::MissingRequiredArgument => {
            let missing: Vec<String> = all(ContextKind::InvalidArg).iter().map(|of| name(of)).collect();
            format!("{} is missing", missing.join(" and "))
        }
        ErrorKind::InvalidValue if one(ContextKind::InvalidValue).is_empty() => {
            format!("{} needs a value", argument())
        }
        ErrorKind::InvalidValue => {
            let meant = all(ContextKind::SuggestedValue).into_iter().next();
            let meant = meant.map_or_else(|| "the".to_owned(), |meant| format!("did you mean `{meant}`? The"));
            help.push(format!("{meant} choice is {}", all(ContextKind::ValidValue).join(" or ")));
            if argument() == "MODE" {
                help.push("to pass everything at once: ratelimitd panic".to_owned());
            }
            format!("bad value for {}: `{}` is not one of them", argument(), one(ContextKind::InvalidValue))
        }
        ErrorKind::UnknownArgument => {
            help.extend(did_you_mean(&all(ContextKind::SuggestedArg)));
            format!("there is no {} here", argument())
        }
        ErrorKind::InvalidSubcommand => {
            help.extend(did_you_mean(&all(ContextKind::SuggestedSubcommand)));
            format!("there is no command `{}`", one(ContextKind::InvalidSubcommand))
        }
        ErrorKind::ArgumentConflict => {
            let others: Vec<String> = all(ContextKind::PriorArg).iter().map(|of| name(of)).collect();
            if others.contains(&argument()) {
                format!("{} is given twice", argument())
            } else {
                format!("{} and {} exclude each other", argument(), others.join(", "))
            }
        }
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.strip_prefix("error: ").unwrap_or(line).to_owned()
        }
    };
    let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
    // The usage also contains options that the environment sets.
    let usage = usage.trim_start_matches("Usage:").lines().next().unwrap_or_default().replace("--socket <PATH> ", "");
    let usage = usage.trim();
    let command: Vec<&str> = usage.split(' ').take_while(|word| word.starts_with(|c: char| c.is_lowercase())).collect();
    if command.len() > 1 {
        help.push(format!("usage: {usage}"));
    }
    if !command.is_empty() || help.is_empty() {
        let command = if command.is_empty() { typed(arguments) } else { command.join(" ") };
        help.push(format!("`{command} --help` lists all options"));
    }
    Some(Diagnostic { problem, place: Place::CommandLine, help })
}

/// Returns the typed command without its arguments, because clap does not say which command a bad value belongs to.
fn typed(arguments: &[OsString]) -> String {
    let (mut all, mut at) = ("ratelimitd".to_owned(), &definition());
    for word in arguments.iter().skip(1) {
        if let Some(inner) = at.find_subcommand(word) {
            (all, at) = (format!("{all} {}", inner.get_name()), inner);
        }
    }
    all
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the enum of clap may grow")]
fn words(value: &ContextValue) -> Vec<String> {
    match value {
        ContextValue::Strings(all) => all.clone(),
        ContextValue::String(one) => vec![one.clone()],
        _ => Vec::new(),
    }
}

/// Returns the plain name of an argument: CIDR for `<CIDR>...`, --color for `--color <WHEN>`.
fn name(argument: &str) -> String {
    argument.split(' ').next().unwrap_or_default().trim_end_matches("...").trim_matches(['<', '>', '[', ']']).to_owned()
}

fn did_you_mean(all: &[String]) -> Option<String> {
    let all: Vec<String> = all.iter().map(|of| format!("`{of}`")).collect();
    (!all.is_empty()).then(|| format!("did you mean {}?", all.join(" or ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(arguments: &[&str]) -> (String, String) {
        let arguments: Vec<OsString> = ["ratelimitd"].iter().chain(arguments).map(Into::into).collect();
        let of = diagnostic(&definition().try_get_matches_from(&arguments).unwrap_err(), &arguments).unwrap();
        (of.problem, of.help.join("\n"))
    }

    #[test]
    fn a_missing_argument_is_named_with_the_commands_form() {
        let (problem, help) = said(&["unban"]);
        assert_eq!(problem, "CIDR is missing");
        assert_eq!(help, "usage: ratelimitd unblock <CIDR>...\n`ratelimitd unblock --help` lists all options");
        assert_eq!(said(&["--iface", "lo", "--limit"]).0, "--limit needs a value");
    }

    #[test]
    fn a_mode_that_is_none_is_told_what_passes_everything() {
        let (problem, help) = said(&["mode", "off"]);
        assert_eq!(problem, "bad value for MODE: `off` is not one of them");
        assert!(
            help.contains("the choice is dry-run or enforce\nto pass everything at once: ratelimitd panic"),
            "{help}"
        );
    }

    #[test]
    fn a_near_miss_is_named() {
        let (problem, help) = said(&["--limti", "1/1m"]);
        assert_eq!(
            (problem.as_str(), help.lines().next()),
            ("there is no --limti here", Some("did you mean `--limit`?"))
        );
        let (problem, help) = said(&["stat"]);
        assert_eq!(problem, "there is no command `stat`");
        assert!(help.starts_with("did you mean ") && help.contains("`stats`"), "{help}");
        let (problem, help) = said(&["--color", "alway", "stats"]);
        assert_eq!(problem, "bad value for --color: `alway` is not one of them");
        assert!(help.starts_with("did you mean `always`? The choice is auto or always or never"), "{help}");
    }

    #[test]
    fn arguments_that_exclude_each_other_are_named() {
        assert_eq!(said(&["unblock", "--all", "192.0.2.1"]).0, "--all and CIDR exclude each other");
    }

    #[test]
    fn a_bad_value_leads_to_the_page_of_its_own_command() {
        for (arguments, command) in [
            (&["lists", "from-mmdb", "f", "--country", "XXX"][..], "ratelimitd lists from-mmdb"),
            (&["crowdsec", "--ipv6-prefix", "129"], "ratelimitd crowdsec"),
        ] {
            let (problem, help) = said(arguments);
            assert!(help.ends_with(&format!("`{command} --help` lists all options")), "{problem}: {help}");
        }
        assert_eq!(said(&["crowdsec", "--key-file", "a", "--key-file", "b"]).0, "--key-file is given twice");
    }

    #[test]
    fn help_is_no_mistake() {
        let help = definition().try_get_matches_from(["ratelimitd", "stats", "--help"]).unwrap_err();
        assert!(diagnostic(&help, &[]).is_none());
    }
}
