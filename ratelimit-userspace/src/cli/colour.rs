//! Decides whether colours are printed.

use std::ffi::OsString;

use clap::ValueEnum as _;

use super::Color;

/// Returns the value of `--color` before the command line is parsed, because help and usage errors are printed during
/// that. An invalid value is refused later.
pub(super) fn asked(arguments: impl IntoIterator<Item = OsString>) -> Color {
    let mut words = arguments.into_iter().map_while(|word| word.into_string().ok()).take_while(|word| word != "--");
    let mut asked = Color::Auto;
    while let Some(word) = words.next() {
        let value = match word.strip_prefix("--color") {
            Some("") => words.next(),
            Some(value) => value.strip_prefix('=').map(str::to_owned),
            None => None,
        };
        asked = value.and_then(|value| Color::from_str(&value, false).ok()).unwrap_or(asked);
    }
    asked
}

/// Applies the choice to everything that is printed from now on, and returns it in clap's type.
pub(super) fn follow(color: Color) -> clap::ColorChoice {
    match color {
        Color::Auto => clap::ColorChoice::Auto,
        Color::Always => {
            anstream::ColorChoice::Always.write_global();
            clap::ColorChoice::Always
        }
        Color::Never => {
            anstream::ColorChoice::Never.write_global();
            clap::ColorChoice::Never
        }
    }
}
