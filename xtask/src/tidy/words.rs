//! Check that no document, comment, string or identifier contains a word of words.txt, in code and in tests.
//!
//! A phrase is also found across line ends, and in `snake_case` and `CamelCase`. Code in documents quotes names, which
//! are checked in the sources.

use super::documents::prose;
use super::{Breach, breach, rules};

const WORDS: &str = include_str!("words.txt");

const OTHER_WORD: &str = "xtask/src/tidy/words.txt has another word for this";

/// Files without the check: the word list itself, and records with the names of their time.
const EXCEPT: [&str; 3] = ["xtask/src/tidy/words.txt", "xtask/src/tidy/words.rs", "docs/performance.json"];
const FIXTURES: &str = "integration-test/fixtures/layout-";

/// Places where a listed word is allowed: files, the text that contains the word, and the reason.
const LAWFUL: &[(&[&str], &str, &str)] = &[
    (&["*.rs", "*.snap"], "ban_unproven", "a key of the file"),
    (&["*.rs"], "forgotten_ns", "a field of a map's value, which the BPF program names"),
    (&["*.rs"], r#""unproven""#, "a value of `budget` in JSON"),
    (&["*.rs"], r#""proven""#, "a value of `budget` in JSON"),
    (
        &["ratelimit-web/assets/source.js"],
        "{ proven: ' of established connections', unproven: ' ",
        "values of `budget` in JSON",
    ),
    (&["*.rs"], r#""forever""#, "a field of JSON, and a value that `--for` takes"),
    (&["ratelimit-web/assets/"], "'forever' ? { forever: true }", "a field of JSON"),
    (&["ratelimit-web/assets/index.html"], r#"value="forever""#, "a value of the form, for the field of JSON"),
    (&["integration-test/tests/newcomer.rs", "*.snap"], "--for ever", "what a user types by mistake"),
    (&["*.py"], "serve_forever", "a method of Python's"),
    (&["*.rs"], r#""dominant""#, "a field of JSON"),
    (&["*.rs", "*.json"], r#""pressure""#, "a field of JSON, and a kind of event"),
    (&["*.rs", "*.json"], r#""pressed_periods""#, "a field of JSON"),
    (&["*.rs", "*.snap"], "tests/newcomer.rs", "a file of tests, about people who are new"),
];

/// Word in lower case.
struct Word {
    /// Line number, counted from 0.
    line: usize,
    /// Text of the word. Empty for punctuation, which separates phrases.
    text: String,
    /// True if the previous word belongs to the same identifier.
    is_joined: bool,
}

/// Returns the breaches in all files. `files` holds path and text of each repository file.
pub(super) fn breaches(files: &[(String, String)]) -> Vec<Breach> {
    let phrases = phrases();
    files.iter().flat_map(|(path, text)| breaches_in(path, text, &phrases)).collect()
}

fn breaches_in(path: &str, text: &str, phrases: &[Vec<&str>]) -> Vec<Breach> {
    if EXCEPT.contains(&path) || path.starts_with(FIXTURES) {
        return Vec::new();
    }
    let lines: Vec<&str> = text.lines().collect();
    let mut text = if path.ends_with(".md") { prose(text) } else { text.to_owned() };
    for (_, lawful, _) in LAWFUL.iter().filter(|(paths, ..)| paths.iter().any(|of| rules::is_match(of, path))) {
        text = text.replace(lawful, ".");
    }
    let words: Vec<Word> = words(&text).collect();
    let starts =
        (0..words.len()).filter_map(|at| words.get(at..)).filter(|rest| phrases.iter().any(|of| begins(rest, of)));
    let found = starts.filter_map(|rest| rest.first().map(|word| word.line));
    found.map(|line| breach(path, line + 1, lines.get(line).unwrap_or(&""), OTHER_WORD)).collect()
}

/// Returns true if the words begin with the phrase, in prose or within one identifier. `let in_force` does not.
fn begins(words: &[Word], phrase: &[&str]) -> bool {
    let Some((of, rest)) = words.split_at_checked(phrase.len()) else { return false };
    let is_name = of.iter().skip(1).any(|word| word.is_joined);
    let goes_on = rest.first().is_some_and(|word| word.is_joined);
    of.iter().map(|word| word.text.as_str()).eq(phrase.iter().copied()) && (phrase.len() == 1 || is_name || !goes_on)
}

fn phrases() -> Vec<Vec<&'static str>> {
    let rows = WORDS.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" = "));
    rows.flat_map(|(phrases, _)| phrases.split(" | ")).map(|phrase| phrase.split(' ').collect()).collect()
}

fn words(text: &str) -> impl Iterator<Item = Word> {
    text.lines().enumerate().flat_map(|(at, line)| {
        // Comment markers and string continuations do not separate the words of a sentence.
        let line = line.trim().trim_start_matches(['/', '!', '#', ';', '*']).trim_end_matches('\\');
        let mut words = Vec::new();
        let (mut text, mut is_joined, mut is_small) = (String::new(), false, false);
        for character in line.chars().chain([' ']) {
            let is_letter = character.is_alphanumeric() || character == '\'';
            let is_hump = is_letter && is_small && character.is_uppercase();
            if !text.is_empty() && (!is_letter || is_hump) {
                words.push(Word { line: at, text: std::mem::take(&mut text), is_joined });
                is_joined = is_hump || character == '_';
            }
            if is_letter {
                text.extend(character.to_lowercase());
            } else if character != '_' {
                is_joined = false;
                if !character.is_whitespace() {
                    words.push(Word { line: at, text: String::new(), is_joined });
                }
            }
            is_small = character.is_lowercase();
        }
        words
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_in_breach(path: &str, text: &str) -> Vec<usize> {
        let lines = breaches(&[(path.to_owned(), text.to_owned())]);
        lines.iter().inspect(|breach| assert_eq!(breach.reason, OTHER_WORD)).map(|breach| breach.line).collect()
    }

    #[test]
    fn each_phrase_is_found_in_a_document_a_comment_a_string_and_a_name() {
        assert!(phrases().len() > 60);
        for words in phrases() {
            let (phrase, snake) = (words.join(" "), words.join("_"));
            let camel: String = words.iter().map(|word| word[..1].to_uppercase() + &word[1..]).collect();
            assert_eq!(lines_in_breach("docs/X.md", &format!("Then {phrase}, it is.\n")), [1], "{phrase}");
            assert!(
                lines_in_breach("docs/X.md", &format!("`{phrase}`\n\n    {phrase}\n\n```\n{phrase}\n```\n")).is_empty()
            );
            for text in [
                format!("/// It {phrase} so"),
                format!("a(\"It {phrase}\")"),
                format!("fn x_{snake}()"),
                format!("a{camel}"),
                snake.to_uppercase(),
            ] {
                assert_eq!(lines_in_breach("a/src/b.rs", &format!("x\n{text}\n")), [2], "{text}");
                assert_eq!(lines_in_breach("a/assets/b.js", &text), [1], "{text}");
            }
        }
    }

    #[test]
    fn a_phrase_goes_on_in_the_next_line_and_not_over_a_sentence_or_in_a_longer_word() {
        assert_eq!(lines_in_breach("a.rs", "//! A\n/// kept\n/// out by\n"), [2]);
        assert_eq!(lines_in_breach("a.rs", "a(\"kept \\\n    out\")\n"), [1]);
        assert_eq!(lines_in_breach("docs/X.md", "Nobody is Let\n\nKept out\n"), [3]);
        for text in ["It is kept. Out it goes.", "improvening, outlet in", "let (in)", "kept: out", "let in_force"] {
            assert!(lines_in_breach("a.rs", text).is_empty(), "{text}");
        }
    }

    #[test]
    fn every_exception_has_a_reason_and_some_text_that_needs_it() {
        let files = super::super::tracked_files().unwrap();
        for (paths, lawful, reason) in LAWFUL {
            assert!(!reason.is_empty());
            assert!(!breaches_in("else", lawful, &phrases()).is_empty(), "{lawful} is lawful anyhow");
            for pattern in *paths {
                let has = |path: &&String| {
                    rules::is_match(pattern, path)
                        && std::fs::read_to_string(crate::workspace::root().join(path))
                            .is_ok_and(|text| text.contains(lawful))
                };
                assert!(files.iter().any(|path| has(&path)), "{pattern} has no {lawful}");
            }
        }
    }
}
