//! Other programs at the receiving end, given as `--receiver NAME='COMMAND'`.

use std::str::FromStr;

use anyhow::{Error, Result, bail, ensure};

/// Names of the built-in receivers, which others cannot take.
const OURS: [&str; 7] = ["bare", "limiter", "limiter_tcx", "nft_drop", "nft_meter", "iptables_drop", "hashlimit"];

/// Receiver given by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Receiver {
    pub(super) name: String,
    pub(super) command: String,
}

impl FromStr for Receiver {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((name, command)) = text.split_once('=') else {
            bail!("`{text}` has no command: NAME='COMMAND', where {{iface}} stands for the interface")
        };
        let (name, command) = (name.trim(), command.trim());
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        ensure!(
            !name.is_empty() && name.chars().all(is_word),
            "`{name}` is no name: letters, digits, `-`, `_` and `.`"
        );
        ensure!(!OURS.contains(&name), "{name} is measured anyway: it takes another name");
        ensure!(!command.is_empty(), "{name} has no command");
        Ok(Self { name: name.to_owned(), command: command.to_owned() })
    }
}

/// Fails if two receivers have the same name.
pub(super) fn ensure_distinct(receivers: &[Receiver]) -> Result<()> {
    for (at, receiver) in receivers.iter().enumerate() {
        ensure!(receivers[..at].iter().all(|other| other.name != receiver.name), "two receivers are {}", receiver.name);
    }
    Ok(())
}

/// Returns the arguments that make integration-test's `flood` measure these receivers.
pub(super) fn arguments(receivers: &[Receiver]) -> impl Iterator<Item = &str> {
    receivers.iter().flat_map(|receiver| ["--receiver", receiver.name.as_str(), receiver.command.as_str()])
}

/// Returns true if a receiver of a row is not built in.
pub(super) fn is_other(id: &str) -> bool {
    !OURS.contains(&id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_is_a_name_and_the_whole_of_the_rest() {
        let parsed: Receiver = "my-filter=env A=1 ./filter --iface {iface}".parse().unwrap();
        assert_eq!((parsed.name.as_str(), parsed.command.as_str()), ("my-filter", "env A=1 ./filter --iface {iface}"));
    }

    #[test]
    fn invalid_receivers_are_refused_with_the_expected_form() {
        for (text, says) in [
            ("filter", "NAME='COMMAND'"),
            ("=./filter", "no name"),
            ("my filter=./filter", "no name"),
            ("filter= ", "no command"),
            ("hashlimit=./filter", "another name"),
        ] {
            let refused = text.parse::<Receiver>().unwrap_err().to_string();
            assert!(refused.contains(says), "{text}: {refused}");
        }
    }

    #[test]
    fn two_of_one_name_are_refused() {
        let receivers = ["a=x", "b=x", "a=y"].map(|text| text.parse().unwrap());
        assert!(ensure_distinct(&receivers[..2]).is_ok());
        assert!(ensure_distinct(&receivers).is_err());
        assert_eq!(arguments(&receivers[1..2]).collect::<Vec<_>>(), ["--receiver", "b", "x"]);
    }
}
