//! Selectors of networks in a database, as users write them.

use std::fmt;
use std::str::FromStr;

/// An autonomous system or a country.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selector {
    /// Number of an autonomous system.
    Asn(u32),
    /// Code of a country, two capital letters.
    Country([u8; 2]),
}

impl Selector {
    /// Parses an autonomous system, for example `64496` or `AS64496`.
    ///
    /// # Errors
    /// Fails with a description if the text is no such number.
    pub fn asn(text: &str) -> Result<Self, String> {
        asn(text).map(Self::Asn).ok_or_else(|| "write the number of an autonomous system, as in 64496".to_owned())
    }

    /// Parses a country, for example `DE`.
    ///
    /// # Errors
    /// Fails with a description if the text is not two letters.
    pub fn country(text: &str) -> Result<Self, String> {
        country(text).map(Self::Country).ok_or_else(|| "write the two letters of a country, as in DE".to_owned())
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asn(number) => write!(f, "AS{number}"),
            Self::Country([first, second]) => write!(f, "{}{}", char::from(*first), char::from(*second)),
        }
    }
}

/// Parses the number of an autonomous system, with or without `AS` before it. 0 is not valid.
pub(super) fn asn(text: &str) -> Option<u32> {
    let digits = match text.get(..2) {
        Some(mark) if mark.eq_ignore_ascii_case("as") => &text[2..],
        Some(_) | None => text,
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    u32::from_str(digits).ok().filter(|number| is_number && *number != 0)
}

/// Returns a country's two letters as capitals.
pub(super) fn country(text: &str) -> Option<[u8; 2]> {
    let letters: [u8; 2] = text.as_bytes().try_into().ok()?;
    letters.iter().all(u8::is_ascii_alphabetic).then(|| letters.map(|letter| letter.to_ascii_uppercase()))
}

/// Returns the selectors in order, separated by commas.
pub(super) fn words(all: &[Selector]) -> String {
    let mut all = all.to_vec();
    all.sort_unstable();
    all.dedup();
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
