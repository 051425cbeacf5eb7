//! Two numbers about doc comments that may only fall: comments that begin with an inverted clause, and comments of at
//! most three words. Both are read from the first line of each doc comment.

use std::cmp::Ordering;

use anyhow::Result;
use regex_lite::Regex;

use super::{Breach, breach};

/// Number of doc comments that begin with an inverted clause, such as "What a source has used.".
const INVERTED: usize = 25;
/// Number of doc comments of at most three words.
const SHORT: usize = 322;

const THIS_FILE: &str = "xtask/src/tidy/comments.rs";
const MORE_INVERTED: &str = "a doc comment begins with a noun or a verb, not with an inverted clause";
const MORE_SHORT: &str = "a doc comment says more than a name: its unit, bound, source or reason; else it is deleted";
const FEWER: &str = "there are fewer than the constant says: lower it, so that the number cannot rise again";

const INVERTED_BEGINNING: &str = "^(Of|By|As|In|Where|What|Whom|Whose|Who|Some of|Such|So|How|Whether|Which|Likewise|\
     For whom|To whom|From whom|That|Those|It|Its|Beside|Behind|There|The same)([^0-9A-Za-z_]|$)";

/// First line of a doc comment.
struct Comment<'a> {
    /// Line number in the file, from 1.
    #[cfg_attr(not(test), expect(dead_code, reason = "only the tests ask where a comment is"))]
    line: usize,
    text: &'a str,
}

/// Returns the breaches in all files. `files` holds path and text of each repository file.
///
/// # Errors
/// If the pattern is wrong.
pub(super) fn breaches(files: &[(String, String)]) -> Result<Vec<Breach>> {
    let inverted = Regex::new(INVERTED_BEGINNING)?;
    let all: Vec<Comment<'_>> = files.iter().flat_map(|(path, text)| comments(path, text)).collect();
    let of_inverted = all.iter().filter(|comment| inverted.is_match(comment.text)).count();
    let of_short = all.iter().filter(|comment| comment.text.split_whitespace().count() <= 3).count();
    let breaches = [against(of_inverted, INVERTED, MORE_INVERTED), against(of_short, SHORT, MORE_SHORT)];
    Ok(breaches.into_iter().flatten().collect())
}

/// Compares a number with its constant.
fn against(number: usize, constant: usize, more: &'static str) -> Option<Breach> {
    let reason = match number.cmp(&constant) {
        Ordering::Greater => more,
        Ordering::Less => FEWER,
        Ordering::Equal => return None,
    };
    Some(breach(THIS_FILE, 1, &format!("{number}, not {constant}; `git diff` shows which comment is new"), reason))
}

fn comments<'a>(path: &'a str, text: &'a str) -> Vec<Comment<'a>> {
    if !path.ends_with(".rs") {
        return Vec::new();
    }
    let mut comments = Vec::new();
    let mut goes_on = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let said = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        if let Some(text) = said.map(|said| said.strip_prefix(' ').unwrap_or(said)).filter(|text| !text.is_empty())
            && !goes_on
        {
            comments.push(Comment { line: index + 1, text });
        }
        goes_on = said.is_some();
    }
    comments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(text: &str) -> Vec<(String, String)> {
        vec![("a.rs".to_owned(), text.to_owned()), ("a.md".to_owned(), "/// What is no code.\n".to_owned())]
    }

    #[test]
    fn one_comment_too_many_or_a_limit_too_high_is_a_breach() {
        let told =
            |text: String| breaches(&files(&text)).unwrap().into_iter().map(|breach| breach.reason).collect::<Vec<_>>();
        let inverted = "/// What a source has used of it.\nconst A: u8 = 0;\n";
        let short = "/// The rest.\nconst B: u8 = 0;\n";
        let at_most = inverted.repeat(INVERTED) + &short.repeat(SHORT);
        assert_eq!(told(at_most.clone()), [""; 0]);
        assert_eq!(told(at_most.clone() + inverted), [MORE_INVERTED]);
        assert_eq!(told(at_most + short), [MORE_SHORT]);
        assert_eq!(told(String::new()), [FEWER; 2]);
    }

    #[test]
    fn the_first_line_of_a_comment_counts_and_no_later_one() {
        let text = "//! Items of a list.\n//! What follows.\n\n/// It begins so.\n///\n/// Whose.\nconst A: u8 = 0;\n";
        let of = comments("a.rs", text);
        assert_eq!(
            of.iter().map(|comment| (comment.line, comment.text)).collect::<Vec<_>>(),
            [(1, "Items of a list."), (4, "It begins so.")]
        );
    }
}
