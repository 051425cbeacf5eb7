//! Amounts: a plain number or a size in bytes, for example `1000`, `50MB`, `64KiB`. Pure.

use super::syntax::{Scanner, SyntaxError, near_miss};

/// The suffixes of sizes, ordered by factor.
const SIZES: [(&str, u64); 10] = [
    ("B", 1),
    // If two suffixes have the same factor, the later one is used for output.
    ("KB", 1_000),
    ("kB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("TB", 1_000_000_000_000),
    ("TiB", 1 << 40),
];

const SIZES_HELP: &str = "sizes end in B, kB or KB, MB, GB, TB, or by 1024 in KiB, MiB, GiB, TiB";

/// Help for a number beyond any possible limit, which cannot be meant.
const LARGE_HELP: &str = "it is more than can be counted in any window: write a smaller one";

/// An amount as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// A number without unit.
    Plain(u64),
    /// A number of bytes.
    Bytes(u64),
}

/// Parses a plain number or a size.
pub fn parse(text: &str) -> Result<Amount, SyntaxError> {
    let mut scanner = Scanner::new(text);
    let count = number(&mut scanner)?;
    let suffix_at = scanner.at();
    scanner.take_while(is_space);
    let suffix = scanner.take_while(|c| c.is_ascii_alphabetic());
    if let Some(c) = scanner.rest().chars().next() {
        return Err(
            SyntaxError::new(scanner.next_span(), format!("`{c}` does not belong in a number")).with_help(SIZES_HELP)
        );
    }
    if suffix.is_empty() {
        return Ok(Amount::Plain(count));
    }
    let span = scanner.at() - suffix.len()..scanner.at();
    let Some(bytes) = bytes(count, suffix) else { return Err(unknown_size(suffix, span)) };
    bytes.map(Amount::Bytes).map_err(|error| SyntaxError { span: 0..suffix_at + suffix.len(), ..error })
}

/// Returns true for characters that may separate groups of digits, and a number from its unit.
pub fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\u{a0}' | '\u{2009}' | '\u{202f}')
}

/// Reads a whole number. Digits may be grouped by three: `1000`, `1_000`, `1,000`, `1'000`, `1 000`. A point is
/// refused, because readers disagree whether it groups digits or begins a fraction.
pub fn number(scanner: &mut Scanner<'_>) -> Result<u64, SyntaxError> {
    let start = scanner.at();
    let is_digit = |c: char| c.is_ascii_digit();
    let mut digits = scanner.take_while(is_digit).to_owned();
    if digits.is_empty() {
        let error = match scanner.rest().chars().next() {
            None | Some('/') => SyntaxError::new(start..start, "the number is missing"),
            Some(c) => SyntaxError::new(scanner.next_span(), format!("`{c}` is not a digit")),
        };
        return Err(error.with_help("start with the amount, as in 1000/5m"));
    }
    let first_len = digits.len();
    let mut separator = None;
    while let Some(next) = scanner.rest().chars().next().filter(|c| matches!(c, ',' | '_' | '\'') || is_space(*c)) {
        if !scanner.rest().chars().nth(1).is_some_and(is_digit) {
            break;
        }
        let at = scanner.next_span();
        scanner.take(next);
        let group = scanner.take_while(is_digit);
        if group.len() != 3 || first_len > 3 || *separator.get_or_insert(next) != next {
            let problem = format!("`{next}` does not group the digits by three");
            return Err(SyntaxError::new(at, problem).with_help("write the digits without separators, or as in 1_000"));
        }
        digits.push_str(group);
    }
    if scanner.rest().starts_with('.') {
        let help = "whole numbers only: 1500kB rather than 1.5MB";
        return Err(SyntaxError::new(scanner.next_span(), "`.` does not belong in a number").with_help(help));
    }
    let too_large = || SyntaxError::new(scanner.span_from(start), "the number is too large").with_help(LARGE_HELP);
    digits.parse().map_err(|_| too_large())
}

/// Converts `count` of the unit `suffix` to bytes. Returns None for an unknown suffix, and an error on overflow.
pub fn bytes(count: u64, suffix: &str) -> Option<Result<u64, SyntaxError>> {
    let (_, factor) = SIZES.into_iter().find(|(name, _)| *name == suffix)?;
    let too_large = || SyntaxError::new(0..0, "the size is too large").with_help(LARGE_HELP);
    Some(count.checked_mul(factor).ok_or_else(too_large))
}

/// Returns the size suffix that a misspelled one most likely means.
pub fn near_size(suffix: &str) -> Option<&'static str> {
    let same = SIZES.into_iter().rev().map(|(name, _)| name).find(|name| name.eq_ignore_ascii_case(suffix));
    let longer = SIZES.into_iter().rev().map(|(name, _)| name).find(|name| {
        suffix.len() == 1 && name.len() == 2 && name.to_ascii_lowercase().starts_with(&suffix.to_ascii_lowercase())
    });
    same.or(longer)
}

/// Returns the error for a suffix that is not a size.
pub fn unknown_size(suffix: &str, span: std::ops::Range<usize>) -> SyntaxError {
    let meant =
        near_size(suffix).or_else(|| near_miss(suffix, SIZES.map(|(name, _)| name)).filter(|_| suffix.len() > 1));
    let help = meant.map(|name| format!("did you mean `{name}`? {SIZES_HELP}"));
    SyntaxError::new(span, format!("`{suffix}` is not a size")).with_help_if(help.or(Some(SIZES_HELP.into())))
}

/// Formats a size so that [`parse`] reads exactly this number of bytes, with the largest suffix that divides it.
pub fn size(bytes: u64) -> String {
    let exact = SIZES.into_iter().filter(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor));
    let (suffix, factor) = exact.max_by_key(|(_, factor)| *factor).unwrap_or(("B", 1));
    format!("{}{suffix}", bytes / factor)
}

/// Formats a size rounded for people: `34 MB`, `1.5 GB`.
pub fn rounded(bytes: u64) -> String {
    let mut decimal = SIZES.into_iter().rev().filter(|(name, _)| !name.contains('i'));
    let (suffix, factor) = decimal.find(|(_, factor)| bytes >= *factor).unwrap_or(("B", 1));
    let tenths = (u128::from(bytes) * 10 + u128::from(factor / 2)) / u128::from(factor);
    if factor > 1 && tenths < 100 && !tenths.is_multiple_of(10) {
        return format!("{}.{} {suffix}", tenths / 10, tenths % 10);
    }
    format!("{} {suffix}", bytes.saturating_add(factor / 2) / factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_decimal_or_binary_by_their_name() {
        for (text, amount) in [
            ("1000", Amount::Plain(1_000)),
            ("0", Amount::Plain(0)),
            ("500B", Amount::Bytes(500)),
            ("50MB", Amount::Bytes(50_000_000)),
            ("50kB", Amount::Bytes(50_000)),
            ("50KB", Amount::Bytes(50_000)),
            ("64KiB", Amount::Bytes(65_536)),
            ("1GB", Amount::Bytes(1_000_000_000)),
            ("1GiB", Amount::Bytes(1_073_741_824)),
            ("1_000", Amount::Plain(1_000)),
            ("1,000,000", Amount::Plain(1_000_000)),
            ("12'000", Amount::Plain(12_000)),
            ("1 000", Amount::Plain(1_000)),
            ("1\u{202f}000", Amount::Plain(1_000)),
            ("50 MB", Amount::Bytes(50_000_000)),
        ] {
            assert_eq!(parse(text), Ok(amount), "{text}");
        }
    }

    #[test]
    fn an_error_points_at_the_character() {
        for (text, span, problem) in [
            ("", 0..0, "the number is missing"),
            ("x", 0..1, "`x` is not a digit"),
            ("-1", 0..1, "`-` is not a digit"),
            ("1.5MB", 1..2, "`.` does not belong in a number"),
            ("10k", 2..3, "`k` is not a size"),
            ("10,00", 2..3, "`,` does not group the digits by three"),
            ("1000,000", 4..5, "`,` does not group the digits by three"),
            ("1,000_000", 5..6, "`_` does not group the digits by three"),
            ("1,", 1..2, "`,` does not belong in a number"),
            ("10mb", 2..4, "`mb` is not a size"),
            ("18446744073709551616", 0..20, "the number is too large"),
            ("18446744073709551615kB", 0..22, "the size is too large"),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!((error.span, error.problem.as_str()), (span, problem), "{text}");
        }
    }

    #[test]
    fn a_misspelt_size_is_told_the_right_one() {
        for (text, meant) in [("10k", "`kB`"), ("10M", "`MB`"), ("10mb", "`MB`"), ("10Kb", "`kB`"), ("10Mib", "`MiB`")]
        {
            let help = parse(text).expect_err(text).help.unwrap_or_default();
            assert!(help.contains(meant), "{text}: {help}");
        }
    }

    #[test]
    fn rounding_is_to_the_nearest() {
        assert_eq!(rounded(262_144 * 128), "34 MB");
        assert_eq!(rounded(999), "999 B");
        assert_eq!(rounded(1_540_000_000), "1.5 GB");
        assert_eq!(rounded(2_000_000), "2 MB");
        assert_eq!(rounded(0), "0 B");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,12}|[0-9kKMGiB]{0,24}") {
            if let Err(error) = parse(&text) {
                prop_assert!(text.get(error.span).is_some());
            }
        }

        #[test]
        fn printed_values_parse_back_to_the_same_value(bytes in any::<u64>(), shift in 0_u32..40) {
            let bytes = (bytes >> shift) << shift;
            prop_assert_eq!(parse(&size(bytes)), Ok(Amount::Bytes(bytes)));
        }
    }
}
