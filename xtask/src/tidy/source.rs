//! Rust source prepared for text search: without comments, without the contents of strings, and without tests.
//!
//! A simple scanner instead of a parser. It handles nested comments, strings and braces, and preserves all line
//! numbers.

/// Two variants of one file with equal line numbers.
pub(super) struct Source {
    /// Text with comments and the contents of strings blanked.
    pub(super) code: String,
    /// Same text as `code`, with test-only items blanked too.
    pub(super) shipped_code: String,
}

impl Source {
    pub(super) fn of(text: &str) -> Self {
        let code = blank_comments_and_strings(text);
        let shipped_code = blank_tests(&code);
        Self { code, shipped_code }
    }
}

fn blank_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (length, is_kept) = match first {
            '/' if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), false),
            '/' if rest.starts_with("/*") => (block_comment(rest), false),
            '"' => (string(rest), false),
            'r' if is_raw_string(rest) && !ends_in_word(&code) => (raw_string(rest), false),
            '\'' => (character(rest), true),
            other => (other.len_utf8(), true),
        };
        let (token, after) = rest.split_at(length);
        if is_kept {
            code.push_str(token);
        } else {
            code.extend(token.chars().map(blank));
        }
        rest = after;
    }
    code
}

fn blank_tests(code: &str) -> String {
    const MARKS: [&str; 2] = ["#[cfg(test)]", "#[cfg(any(test,"];
    let mut shipped = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(start) = MARKS.iter().filter_map(|mark| rest.find(mark)).min() {
        let (before, test) = rest.split_at(start);
        shipped.push_str(before);
        let (item, after) = test.split_at(item_end(test));
        shipped.extend(item.chars().map(blank));
        rest = after;
    }
    shipped + rest
}

/// Returns the end of the item at the start of the text: its closing brace, or a semicolon before any brace.
fn item_end(code: &str) -> usize {
    let mut depth = 0usize;
    for (index, character) in code.char_indices() {
        match character {
            ';' if depth == 0 => return index + 1,
            '{' => depth += 1,
            '}' if depth <= 1 => return index + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0usize;
    let mut index = 0;
    while let Some(rest) = text.get(index..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with("/*") {
            depth += 1;
            index += 2;
        } else if rest.starts_with("*/") {
            depth = depth.saturating_sub(1);
            index += 2;
            if depth == 0 {
                return index;
            }
        } else {
            index += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

fn string(text: &str) -> usize {
    let mut is_escaped = false;
    for (index, character) in text.char_indices().skip(1) {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return index + 1,
            _ => {}
        }
    }
    text.len()
}

fn is_raw_string(text: &str) -> bool {
    text.trim_start_matches('r').trim_start_matches('#').starts_with('"') && !text.starts_with("rr")
}

fn raw_string(text: &str) -> usize {
    let hashes = text[1..].chars().take_while(|character| *character == '#').count();
    let end = format!("\"{}", "#".repeat(hashes));
    let body = hashes + 2;
    text[body..].find(&end).map_or(text.len(), |index| body + index + end.len())
}

/// Returns the length of a character literal, so that `'"'` opens no string. Of a lifetime only the quote counts.
fn character(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1);
    let (Some((_, first)), Some((second_index, second))) = (characters.next(), characters.next()) else {
        return 1;
    };
    if first == '\\' {
        return text[second_index + second.len_utf8()..]
            .find('\'')
            .map_or(1, |index| second_index + second.len_utf8() + index + 1);
    }
    if second == '\'' { second_index + 1 } else { 1 }
}

fn ends_in_word(code: &str) -> bool {
    code.chars().next_back().is_some_and(|last| last.is_alphanumeric() || last == '_')
}

fn blank(character: char) -> char {
    if character == '\n' { '\n' } else { ' ' }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_blanked_and_code_is_kept() {
        for (text, kept, gone) in [
            ("a(); // b", "a();", "b"),
            ("/* b /* b */ b */ a();", "a();", "b"),
            (r#"a("b // b"); c()"#, "c()", "b"),
            (r##"a(r#"b " b"#); c()"##, "c()", "b"),
            (r#"a('"'); c(); d("b")"#, "c()", "b"),
            (r"a('\''); c() // b", "c()", "b"),
            ("fn a<'x>(c: &'x str) {} // b", "fn a<'x>(c: &'x str) {}", "b"),
            (r#"for "b" c()"#, "c()", "b"),
        ] {
            let code = Source::of(text).code;
            assert!(code.contains(kept) && !code.contains(gone), "{text} became {code}");
        }
    }

    #[test]
    fn a_test_module_is_blanked_and_what_follows_it_is_kept() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { \"}\"; }\n}\nfn c() {}\n#[cfg(test)]\nuse b;\nfn d() {}\n";
        let shipped = Source::of(text).shipped_code;
        assert!(["fn a", "fn c", "fn d"].iter().all(|kept| shipped.contains(kept)), "{shipped}");
        assert!(!shipped.contains('b'), "{shipped}");
        assert_eq!(shipped.lines().count(), text.lines().count());
    }
}
