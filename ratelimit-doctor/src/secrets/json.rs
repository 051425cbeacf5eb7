//! Changes strings of JSON in place and nothing else, so that the text stays valid JSON. Pure.

use super::HIDDEN;

/// Context of a value.
#[derive(Clone, Debug, Default)]
struct Around {
    key: Option<String>,
    is_secret: bool,
}

/// Passes every string through `change`, which also gets the string's key. Hides values whose key is secret. Returns
/// the changed text.
pub(super) fn changed(
    text: &str,
    is_secret: impl Fn(&str) -> bool,
    change: impl Fn(Option<&str>, &str) -> String,
) -> String {
    let mut out = String::with_capacity(text.len());
    let mut outer: Vec<Around> = Vec::new();
    let mut around = Around::default();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '"' => string_len(rest),
            _ if is_scalar(first) => rest.find(|c: char| !is_scalar(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (part, after) = rest.split_at(len);
        rest = after;
        let hides = around.is_secret || around.key.as_deref().is_some_and(&is_secret);
        match first {
            '"' => {
                let plain = serde_json::from_str(part).unwrap_or_else(|_| part.trim_matches('"').to_owned());
                if after.trim_start().starts_with(':') {
                    out.push_str(&quoted(&change(None, &plain)));
                    around.key = Some(plain);
                } else if hides {
                    out.push_str(&quoted(HIDDEN));
                } else {
                    out.push_str(&quoted(&change(around.key.as_deref(), &plain)));
                }
            }
            '{' | '[' => {
                out.push(first);
                outer.push(around.clone());
                // Values in a list belong to the list's key.
                around.is_secret = hides;
            }
            '}' | ']' => {
                out.push(first);
                around = outer.pop().unwrap_or_default();
            }
            _ if is_scalar(first) => {
                let is_word = matches!(part, "true" | "false" | "null");
                // A number may be the content of a secret file.
                let is_known = !is_word && change(None, part).contains(HIDDEN);
                if !is_word && (hides || is_known) { out.push_str(&quoted(HIDDEN)) } else { out.push_str(part) }
            }
            _ => out.push_str(part),
        }
    }
    out
}

const fn is_scalar(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')
}

/// Returns the length of the string at the start, with both quotation marks. Without a second one, it extends to the
/// end.
fn string_len(text: &str) -> usize {
    let mut is_escaped = true;
    for (at, c) in text.char_indices() {
        if c == '"' && !is_escaped {
            return at + 1;
        }
        // The first quotation mark does not end the string.
        is_escaped = c == '\\' && !is_escaped;
    }
    text.len()
}

fn quoted(text: &str) -> String {
    // Serialising a string cannot fail.
    serde_json::to_string(text).unwrap_or_default()
}
