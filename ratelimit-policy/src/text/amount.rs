//! Amounts: a plain number, or a size in bytes: `1000`, `50MB`, `64KiB`. Pure.

use super::syntax::{Scanner, SyntaxError, near_miss};

/// The suffixes of sizes, by factor.
const SIZES: [(&str, u64); 9] = [
    ("B", 1),
    ("kB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("TB", 1_000_000_000_000),
    ("TiB", 1 << 40),
];

const SIZES_HELP: &str = "sizes are B, kB, MB, GB, TB (by 1000) and KiB, MiB, GiB, TiB (by 1024), as in 50MB";

/// What no cell comes near cannot be meant.
const LARGE_HELP: &str = "it is more than can be counted in any window: write a smaller one";

/// An amount as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// A number of whatever is counted.
    Plain(u64),
    /// A number of bytes.
    Bytes(u64),
}

/// Parses an amount.
pub fn parse(text: &str) -> Result<Amount, SyntaxError> {
    let mut scanner = Scanner::new(text);
    let digits = scanner.take_while(|c| c.is_ascii_digit());
    let suffix_at = scanner.at();
    if digits.is_empty() {
        let error = match scanner.rest().chars().next() {
            None => SyntaxError::new(0..0, "the number is missing"),
            Some(c) => SyntaxError::new(scanner.next_span(), format!("`{c}` is not a digit")),
        };
        return Err(error.with_help("start with how many are let in, as in 1000/5m"));
    }
    let count = digits
        .parse::<u64>()
        .map_err(|_| SyntaxError::new(0..suffix_at, "the number is too large").with_help(LARGE_HELP))?;
    let suffix = scanner.take_while(|c| c.is_ascii_alphabetic());
    let suffix_span = scanner.span_from(suffix_at);
    if let Some(c) = scanner.rest().chars().next() {
        let help = match c {
            '.' => "whole numbers only: 1500kB rather than 1.5MB",
            '_' | '\'' => "write the digits without separators",
            _ => SIZES_HELP,
        };
        return Err(SyntaxError::new(scanner.next_span(), format!("`{c}` does not belong in a number")).with_help(help));
    }
    if suffix.is_empty() {
        return Ok(Amount::Plain(count));
    }
    let size = SIZES.into_iter().find(|(name, _)| *name == suffix);
    let Some((_, factor)) = size else {
        return Err(unknown_size(suffix, suffix_span));
    };
    let bytes = count
        .checked_mul(factor)
        .ok_or_else(|| SyntaxError::new(0..suffix_span.end, "the size is too large").with_help(LARGE_HELP))?;
    Ok(Amount::Bytes(bytes))
}

fn unknown_size(suffix: &str, span: std::ops::Range<usize>) -> SyntaxError {
    let same = SIZES.into_iter().map(|(name, _)| name).find(|name| name.eq_ignore_ascii_case(suffix));
    let longer = SIZES.into_iter().map(|(name, _)| name).find(|name| {
        suffix.len() == 1 && name.len() == 2 && name.to_ascii_lowercase().starts_with(&suffix.to_ascii_lowercase())
    });
    let meant = same.or(longer).or_else(|| near_miss(suffix, SIZES.map(|(name, _)| name)));
    let help = meant.map(|name| format!("did you mean `{name}`? {SIZES_HELP}"));
    SyntaxError::new(span, format!("`{suffix}` is not a size")).with_help_if(help.or(Some(SIZES_HELP.into())))
}

/// A size as [`parse`] reads it: exact, with the suffix that leaves the smallest number.
pub fn size(bytes: u64) -> String {
    let exact = SIZES.into_iter().filter(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor));
    let (suffix, factor) = exact.max_by_key(|(_, factor)| *factor).unwrap_or(("B", 1));
    format!("{}{suffix}", bytes / factor)
}

/// A size rounded to what a person wants to read: `34 MB`, `1.5 GB`.
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
            ("64KiB", Amount::Bytes(65_536)),
            ("1GB", Amount::Bytes(1_000_000_000)),
            ("1GiB", Amount::Bytes(1_073_741_824)),
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
        for (text, meant) in [("10k", "`kB`"), ("10M", "`MB`"), ("10mb", "`MB`"), ("10KB", "`kB`"), ("10Mib", "`MiB`")]
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
        fn what_is_printed_is_read_again(bytes in any::<u64>(), shift in 0_u32..40) {
            let bytes = (bytes >> shift) << shift;
            prop_assert_eq!(parse(&size(bytes)), Ok(Amount::Bytes(bytes)));
        }
    }
}
