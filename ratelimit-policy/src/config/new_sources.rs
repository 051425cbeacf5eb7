//! Budget of a rule's new sources: `20000/s`. Pure.

use ratelimit_common::time::SECOND_NS;

use super::limit::{Said, read, separate};
use super::syntax::SyntaxError;
use crate::desired::{NewSources, Per};

/// Minimum time of a budget, in nanoseconds: 1 s.
pub const WINDOW_NS_MIN: u64 = SECOND_NS;
/// Maximum time of a budget, in nanoseconds: 1 min. New sources wait for the window's end once the budget is spent.
pub const WINDOW_NS_MAX: u64 = 60 * SECOND_NS;
/// Maximum number per second. // a leaky bucket rounds the time of one up to a nanosecond: an error of at most 1 in
/// 1000
const PER_SECOND_MAX: u64 = 1_000_000;

const HELP: &str = "a budget is N/DUR, as in 20000/s";

/// Parses a budget like `20000/s`.
pub fn parse(text: &str) -> Result<NewSources, SyntaxError> {
    if let Some((at, _)) = separate(text).skip(1).flatten().next() {
        return Err(SyntaxError::new(at..text.len(), "a rule has one budget of new sources").with_help(HELP));
    }
    let Said { amount, amount_span, unit, window_ns, window_span, per, per_at } = read(text)?;
    if per != Per::Source {
        let error = SyntaxError::new(per_at..text.len(), "a budget of new sources applies to the whole rule");
        return Err(error.with_help(HELP));
    }
    if unit.is_some() {
        let error = SyntaxError::new(0..text.len(), "a budget of new sources has no unit");
        return Err(error.with_help(HELP));
    }
    if !(WINDOW_NS_MIN..=WINDOW_NS_MAX).contains(&window_ns) {
        let which = if window_ns < WINDOW_NS_MIN { "short" } else { "long" };
        let error = SyntaxError::new(window_span, format!("the time is too {which}"));
        return Err(error.with_help("a budget of new sources is for 1s to 1m"));
    }
    check_amount(amount, window_ns).map_err(|error| SyntaxError { span: amount_span, ..error })?;
    Ok(NewSources { amount, window_ns })
}

fn check_amount(amount: u64, window_ns: u64) -> Result<(), SyntaxError> {
    if amount == 0 {
        return Err(SyntaxError::new(0..0, "a budget of 0 would drop every new source")
            .with_help("the smallest budget is 1; without the option there is none"));
    }
    let most = window_ns / (SECOND_NS / PER_SECOND_MAX);
    if amount > most {
        return Err(SyntaxError::new(0..0, "no host gets this many new sources")
            .with_help(format!("the most for this time is {most}; without the option there is no budget")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_budget_reads_as_documented() {
        for (text, amount, seconds) in [
            ("20000/s", 20_000, 1),
            ("1/1m", 1, 60),
            ("60000000/1m", 60_000_000, 60),
            ("20,000 per second", 20_000, 1),
            ("500/1s500ms", 500, 0),
        ] {
            let window_ns = if seconds == 0 { SECOND_NS * 3 / 2 } else { seconds * SECOND_NS };
            assert_eq!(parse(text), Ok(NewSources { amount, window_ns }), "{text}");
        }
    }

    #[test]
    fn an_error_points_at_the_character() {
        for (text, span, problem) in [
            ("", 0..0, "the number is missing"),
            ("20000", 5..5, "the window is missing"),
            ("many/s", 0..1, "`m` is not a digit"),
            ("20000/", 6..6, "the time is missing"),
            ("20000/5x", 7..8, "`x` is not a unit of time"),
            ("20000/s connections", 0..19, "a budget of new sources has no unit"),
            ("20MB/s", 0..6, "a budget of new sources has no unit"),
            ("1/s,2/1m", 4..8, "a rule has one budget of new sources"),
            ("10/999ms", 3..8, "the time is too short"),
            ("10/61s", 3..6, "the time is too long"),
            ("0/s", 0..1, "a budget of 0 would drop every new source"),
            ("1000001/s", 0..7, "no host gets this many new sources"),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!((error.span, error.problem.as_str()), (span, problem), "{text}");
        }
    }

    #[test]
    fn the_largest_budget_is_the_last_that_is_taken() {
        assert!(parse("1000000/s").is_ok());
        assert!(parse("1000001/s").is_err());
        assert!(parse("60000001/1m").is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,16}|[0-9a-zA-Z/, ]{0,24}|[0-9]{1,4}[kMG]?i?B?/[0-9]{0,3}[smhd]?( [a-z]{0,11})?") {
            if let Err(error) = parse(&text) {
                prop_assert!(text.get(error.span).is_some());
            }
        }

        #[test]
        fn printed_values_parse_back_to_the_same_value(amount in 1_u64..=1_000_000, seconds in 1_u64..=60) {
            let budget = NewSources { amount, window_ns: seconds * SECOND_NS };
            prop_assert_eq!(parse(&budget.to_string()), Ok(budget));
        }
    }
}
