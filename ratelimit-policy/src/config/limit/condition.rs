//! Parser of the conditions that follow a limit: `status=401,403 path=/login method=POST`. Pure.

use arrayvec::ArrayString;

use crate::config::syntax::{SyntaxError, near_miss};
use crate::desired::{Condition, PathPattern, STATUS_MAX, STATUS_MIN, Statuses};

const KEYS: [&str; 3] = ["status", "path", "method"];
const HELP: &str = "a condition is status=401,403 or status=4xx, path=/login or path=/api/*, method=POST";

/// Returns the offset at which the conditions of a limit begin, misspelled ones included. Without conditions it is
/// the end.
pub(super) fn begin(text: &str) -> usize {
    let is_key = |key: &str| KEYS.contains(&key) || near_miss(key, KEYS).is_some();
    let word = |at: usize| text[at + 1..].split_once('=').is_some_and(|(key, _)| is_key(key.trim()));
    text.match_indices([' ', '\t']).map(|(at, _)| at).find(|at| word(*at)).unwrap_or(text.len())
}

/// Returns true if a comma between these two parts separates statuses instead of limits.
pub(super) fn joins(before: &str, after: &str) -> bool {
    let Some(at) = before.rfind("status=") else { return false };
    let is_code = |word: &str| word.len() == 3 && word.chars().all(|c| c.is_ascii_digit() || matches!(c, 'x' | 'X'));
    let codes = &before[at + "status=".len()..];
    let next = after.trim_start().split([',', ' ', '\t']).next().unwrap_or_default();
    codes.split(',').all(|code| is_code(code.trim())) && is_code(next)
}

/// Parses the conditions in `text`. Returns None if the text is blank. Spans in errors refer to `text`.
pub(super) fn read(text: &str) -> Result<Option<Condition>, SyntaxError> {
    let mut condition = Condition::default();
    let mut at = 0;
    // Blanks may surround the commas between statuses.
    let joined = text.split(',').map(str::trim).collect::<Vec<_>>().join(",");
    let text = if text.contains(',') { &joined } else { text };
    for word in text.split_whitespace() {
        let begin = at + text[at..].find(word).unwrap_or_default();
        at = begin + word.len();
        let span = begin..at;
        let wrong = |problem: String| SyntaxError::new(span.clone(), problem).with_help(HELP);
        let Some((key, value)) = word.split_once('=') else {
            let meant = near_miss(word, KEYS).map(|meant| format!("did you mean {meant}=…?"));
            return Err(wrong(format!("`{word}` is no condition")).with_help_if(meant));
        };
        let is_second = match key {
            "status" => condition.statuses.replace(statuses(value).map_err(wrong)?).is_some(),
            "path" => {
                let pattern = PathPattern::new(value);
                let pattern = pattern.ok_or_else(|| wrong(format!("`{value}` is no path that can be matched")))?;
                condition.path.replace(pattern).is_some()
            }
            "method" => condition.method.replace(method(value).map_err(wrong)?).is_some(),
            _ => {
                let meant = near_miss(key, KEYS).map(|meant| format!("did you mean {meant}=…?"));
                return Err(wrong(format!("there is no condition `{key}`")).with_help_if(meant));
            }
        };
        if is_second {
            return Err(wrong(format!("{key} is given twice")));
        }
    }
    Ok((condition != Condition::default()).then_some(condition))
}

fn statuses(text: &str) -> Result<Statuses, String> {
    let mut statuses = Statuses::default();
    for word in text.split(',') {
        let class = word.strip_suffix("xx").or_else(|| word.strip_suffix("XX"));
        let codes = match (class, word.parse::<u16>()) {
            (Some(class), _) => {
                class.parse::<u16>().ok().filter(|_| class.len() == 1).map(|of| of * 100..=of * 100 + 99)
            }
            (None, Ok(code)) if word.len() == 3 => Some(code..=code),
            (None, _) => None,
        };
        let is_there = |code: u16| (STATUS_MIN..=STATUS_MAX).contains(&code);
        let codes = codes.filter(|codes| is_there(*codes.start())).ok_or_else(|| format!("`{word}` is no status"))?;
        codes.for_each(|code| statuses.add(code));
    }
    Ok(statuses)
}

fn method(text: &str) -> Result<ArrayString<{ crate::desired::METHOD_BYTES_MAX }>, String> {
    let is_name = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphabetic() || matches!(c, '-' | '_'));
    let name = ArrayString::from(&text.to_ascii_uppercase()).ok().filter(|_| is_name);
    name.ok_or_else(|| format!("`{text}` is no method"))
}

#[cfg(test)]
mod tests {
    use ratelimit_common::layout::Unit;

    use super::super::parse;
    use super::*;

    #[test]
    fn conditions_stand_behind_a_limit_and_are_printed_as_they_are_read() {
        for (text, said) in [
            ("20/10m status=401,403,404", "status=401,403,404"),
            ("20/10m status=4xx", "status=4xx"),
            ("20/10m requests status=404, 410", "status=404,410"),
            ("20/10m status=404 ,\t410", "status=404,410"),
            ("5/1m path=/login method=post", "path=/login method=POST"),
            ("1000/1h method=GET path=/api/*", "path=/api/* method=GET"),
        ] {
            let rates = parse(text, Unit::Requests).expect(text);
            let conditions: Vec<_> = rates.iter().map(|(_, rate)| rate.condition.unwrap().to_string()).collect();
            assert_eq!(conditions, [said], "{text}");
            assert_eq!(read(said).unwrap(), rates[0].1.condition);
        }
        let rates = parse("300/1m, 20/10m status=401,403, 5/1m path=/a", Unit::Requests).unwrap();
        let said: Vec<_> = rates.iter().map(|(_, rate)| rate.condition.map(|of| of.to_string())).collect();
        assert_eq!(said, [None, Some("status=401,403".to_owned()), Some("path=/a".to_owned())]);
        assert_eq!(parse("1/1m status=404,500/1m", Unit::Requests).unwrap().len(), 2);
    }

    #[test]
    fn errors_in_a_condition_are_reported_at_their_place() {
        for (text, part) in [
            ("20/1m status=", "`` is no status"),
            ("20/1m status=40", "`40` is no status"),
            ("20/1m status=600", "`600` is no status"),
            ("20/1m status=9xx", "`9xx` is no status"),
            ("20/1m status=401 status=403", "status is given twice"),
            ("20/1m path=login", "`login` is no path"),
            ("20/1m path=/a method=G/T", "`G/T` is no method"),
            ("20/1m path=/a agent=x", "there is no condition `agent`"),
            ("20/1m path=/a now", "`now` is no condition"),
            ("20/1m staus=401", "there is no condition `staus`"),
            ("20/1m requests pth=/login", "there is no condition `pth`"),
        ] {
            let error = parse(text, Unit::Requests).expect_err(text);
            assert!(error.problem.contains(part), "{text}: {}", error.problem);
            assert!(error.span.start >= 6 && error.span.end <= text.len(), "{text}: {:?}", error.span);
        }
        let of_bytes = parse("20MB/1m status=404", Unit::Requests).expect_err("a log has no bytes");
        assert!(of_bytes.problem.contains("requests"), "{}", of_bytes.problem);
    }
}
