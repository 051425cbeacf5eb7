//! Finds and hides secrets beside words such as `password`. Pure.

use std::ops::Range;

use super::tokens::{is_made_up, is_path, without_made_up};
use super::{GoesOn, HIDDEN};

/// The author of a text, which decides where secrets may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Programs, with user comments behind a `#`. Sentences beside a secret's word stay.
    Ours,
    /// A configuration file: users wrote its comments and strings, but not its keys and values.
    Configuration,
    /// Users, for example reasons. Everything behind a secret's word is hidden.
    Users,
}

/// Words that precede a secret. A key that ends in `file` holds a path, which is no secret.
const WORDS: [&str; 29] = [
    "secret",
    "passw",
    "pass word",
    "pass-word",
    "passphrase",
    "pass phrase",
    "pass-phrase",
    "passcode",
    "kennwort",
    "pword",
    "token",
    "api_key",
    "api-key",
    "api key",
    "apikey",
    "private_key",
    "private-key",
    "private key",
    "access key",
    "authorization",
    "cookie",
    "credential",
    "requirepass",
    "pwd",
    "psk",
    "bearer",
    "akia",
    "setuser",
    "identified by",
];

/// Parts of names that hold a secret if a value is assigned to them: `pass=`, `REDISCLI_AUTH=`, `license_key:`.
const PARTS: [&str; 29] = [
    "pass",
    "pw",
    "pws",
    "auth",
    "key",
    "keys",
    "pin",
    "otp",
    "totp",
    "jwt",
    "sig",
    "signature",
    "salt",
    "pat",
    "cred",
    "creds",
    "dsn",
    "sid",
    "session",
    "sessionid",
    "login",
    "seed",
    "webhook",
    "serial",
    "sessid",
    "phpsessid",
    "privkey",
    "2fa",
    "mfa",
];

/// Names of [`PARTS`] that mean a secret in users' text even without an assignment.
const PLAIN: [&str; 12] =
    ["pw", "pws", "auth", "otp", "totp", "jwt", "cred", "creds", "sessionid", "privkey", "2fa", "mfa"];

/// Words that follow `secret` in a sentence. Such a sentence holds no secret.
const SENTENCE: &str = " a again all also an and any are as at be because been before begins behind below beside between bucket \
     buckets but by can cannot changed changes could did do does ends every expired expires file files for found \
     from gone had has have held here hides holds if in into invalid is isn't it its kept key keys list lists \
     made may me might missing must name names needed needs never no nobody none not now of off on once one only \
     or other others out over page pages please read reads refused required said same says set shall should shown \
     so stands stays such taken than that the them then there these they this those to too under until up used \
     value values was were what when where which while who will with without word words would wrong you your ";

/// Returns true if the value of this key is secret.
pub(super) fn names_a_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    WORDS.iter().any(|word| key.contains(word)) && !names_a_place(&key)
}

/// Returns true for names such as `secret_file` and `token_path`.
fn names_a_place(lower: &str) -> bool {
    ["file", "files", "path", "dir"].iter().any(|end| lower.ends_with(end))
}

/// Kind of text at a place in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Code,
    String,
    Comment,
}

/// Returns the line with hidden values, and whether a secret continues in the next lines.
pub(super) fn hide_line(line: &str, whose: Whose) -> (String, Option<GoesOn>) {
    let mut line = line.to_owned();
    let mut at = 0;
    // Each round hides one value and continues behind it.
    while let Some(name) = next_name(&line, at, whose) {
        at = match value_of(&line, &name, whose) {
            Value::None => name.key.end,
            Value::GoesOn(from, goes_on) => {
                if from < line.len() {
                    line.replace_range(from.., HIDDEN);
                }
                hide_before(&mut line, &name, whose);
                return (line, Some(goes_on));
            }
            Value::Hidden(range) => {
                let end = range.start + HIDDEN.len();
                line.replace_range(range, HIDDEN);
                end
            }
        };
        let len = line.len();
        hide_before(&mut line, &name, whose);
        at = (at + line.len()).saturating_sub(len);
    }
    (line, None)
}

/// Hides made-up tokens before the word in users' text: `X is the password`.
fn hide_before(line: &mut String, name: &Name, whose: Whose) {
    if name.is_word && is_of_users(name, whose) && name.text.start < name.key.start {
        let before = without_made_up(&line[name.text.start..name.key.start]);
        line.replace_range(name.text.start..name.key.start, &before);
    }
}

fn is_of_users(name: &Name, whose: Whose) -> bool {
    name.kind == Kind::Comment || (name.kind == Kind::String && whose == Whose::Configuration)
}

/// Name that a secret may follow.
struct Name {
    /// Byte range of the whole name.
    key: Range<usize>,
    /// True for one of [`WORDS`]; otherwise the name has one of [`PARTS`].
    is_word: bool,
    kind: Kind,
    /// Byte range of the text that contains the name.
    text: Range<usize>,
}

fn next_name(line: &str, from: usize, whose: Whose) -> Option<Name> {
    let lower = line.to_ascii_lowercase();
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let word = WORDS
        .into_iter()
        .filter_map(|word| lower.get(from..)?.find(word).map(|at| (from + at, from + at + word.len())))
        .min_by_key(|(at, end)| (*at, std::cmp::Reverse(*end)));
    let word = word.map(|(at, end)| {
        let rest = lower[end..].find(|c: char| !is_part(c)).unwrap_or(lower.len() - end);
        (at..end + rest, true)
    });
    let part = names(line, from).find(|key| has_part(&line[key.clone()])).map(|key| (key, false));
    let (key, is_word) = match (word, part) {
        (Some(word), Some(part)) => Some(if part.0.end <= word.0.start { part } else { word }),
        (word, part) => word.or(part),
    }?;
    let (kind, text) = kind_at(line, key.start, whose);
    Some(Name { key, is_word, kind, text })
}

/// Returns the byte ranges of the names in a line, from this offset on.
fn names(line: &str, from: usize) -> impl Iterator<Item = Range<usize>> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let mut at = from;
    std::iter::from_fn(move || {
        let start = at + line.get(at..)?.find(is_part)?;
        let rest = &line[start..];
        at = start + rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
        Some(start..at)
    })
}

/// Returns true if a part of the name is in [`PARTS`]. Parts end at `_` and `-`, and at capitals: `licenseKey`.
fn has_part(name: &str) -> bool {
    let is_one = |part: &str| {
        let part = part.trim_end_matches(|c: char| c.is_ascii_digit()).to_ascii_lowercase();
        PARTS.contains(&part.as_str())
    };
    name.split(['_', '-']).any(|part| {
        let begins = |(at, c): &(usize, char)| c.is_uppercase() && part[..*at].ends_with(char::is_lowercase);
        let mut from = 0;
        let mut humps = part.char_indices().filter(begins).map(|(at, _)| at).collect::<Vec<_>>();
        humps.push(part.len());
        is_one(part) || humps.into_iter().any(|at| is_one(&part[std::mem::replace(&mut from, at)..at]))
    })
}

enum Value {
    /// No value.
    None,
    /// A value from this offset on that continues in the next lines.
    GoesOn(usize, GoesOn),
    /// The value in this range.
    Hidden(Range<usize>),
}

fn value_of(line: &str, name: &Name, whose: Whose) -> Value {
    let key_end = name.key.end;
    if names_a_place(&line[name.key.clone()].to_ascii_lowercase()) {
        return Value::None;
    }
    let rest = &line[key_end..];
    let behind = rest.trim_start_matches(['"', '\'', '`', ' ', '\t', '\\', ']', ')', '*']);
    let sign = behind.len() - behind.trim_start_matches([':', '=', '>', '-', '~']).len();
    if behind.starts_with([':', '=']) || (behind.starts_with("->") && name.is_word) {
        let from = line.len() - behind.len() + sign;
        return given(line, from, name, whose);
    }
    let is_users = is_of_users(name, whose);
    let spaced = rest.trim_start_matches(['"', '\'', '`']);
    let is_plain = PLAIN.contains(&line[name.key.clone()].to_ascii_lowercase().as_str());
    let is_like_word = name.is_word || (is_users && is_plain);
    if !is_like_word {
        let first = spaced.trim_start();
        let start = line.len() - first.len();
        let token = first.split(char::is_whitespace).next().unwrap_or_default();
        return match token {
            _ if !is_users => Value::None,
            "is" | "was" => Value::Hidden(start + token.len()..name.text.end),
            _ if is_made_up(token) => Value::Hidden(start..start + token.len()),
            _ => Value::None,
        };
    }
    if is_users {
        let said = line.get(key_end..name.text.end).unwrap_or_default().trim();
        return match said {
            "" | "is" | "was" | "\"" | "'" if name.kind == Kind::Comment => {
                Value::GoesOn(line.len(), GoesOn::NextComment)
            }
            said if said.is_empty() || !said.contains(char::is_alphanumeric) => Value::None,
            _ => Value::Hidden(line.len() - line[key_end..].trim_start().len()..name.text.end),
        };
    }
    if !spaced.starts_with(char::is_whitespace) {
        return Value::None;
    }
    in_a_sentence(line, line.len() - spaced.len())
}

/// Returns the value behind a `:` or `=`.
fn given(line: &str, from: usize, name: &Name, whose: Whose) -> Value {
    let value = line[from..].trim_start();
    let start = line.len() - value.len();
    // A string's value ends with the string.
    let end = if name.kind == Kind::String && from < name.text.end { name.text.end } else { line.len() };
    if !name.is_word {
        let text = value.trim_matches(['"', '\'']);
        let is_plain = text.is_empty() || is_path(text) || matches!(text, "true" | "false" | "null");
        // A variable in an assignment: `Environment=REDISCLI_AUTH=X`.
        let is_variable = !line[name.key.clone()].contains(char::is_lowercase) && line[..from].ends_with('=');
        let is_ours = name.kind == Kind::Code && whose == Whose::Ours && !is_variable;
        let is_table = name.kind == Kind::Code && value.starts_with(['[', '{']);
        if is_plain || is_table || (is_ours && !is_made_up(value.split(char::is_whitespace).next().unwrap_or_default()))
        {
            return Value::None;
        }
    }
    for (opens, closes) in [("\"\"\"", "\"\"\""), ("'''", "'''")] {
        if value.starts_with(opens) && value.matches(opens).count() == 1 {
            return Value::GoesOn(start, GoesOn::Until(closes));
        }
    }
    match value.trim() {
        "[" => return Value::GoesOn(start, GoesOn::Until("]")),
        "(" => return Value::GoesOn(start, GoesOn::Until(")")),
        "{" => return Value::GoesOn(start, GoesOn::Until("}")),
        "" | "\\" | "|" | ">" | "|-" | ">-" => return Value::GoesOn(line.len(), GoesOn::Next),
        _ => {}
    }
    // Hide only the quoted value, if it is quoted; otherwise the rest.
    let quoted = value.strip_prefix('"').filter(|_| !value.starts_with("\"\"\"")).and_then(end_of_string);
    match quoted {
        Some(len) if name.kind != Kind::Comment => Value::Hidden(start + 1..start + 1 + len),
        Some(_) | None => Value::Hidden(start..end.max(start)),
    }
}

/// Returns the secret word in a sentence about a secret.
fn in_a_sentence(line: &str, from: usize) -> Value {
    let mut start = from;
    loop {
        let rest = &line[start..];
        start += rest.len() - rest.trim_start().len();
        let token = line[start..].split(char::is_whitespace).next().unwrap_or_default();
        if !matches!(token, "is" | "was" | "are" | "equals") {
            break;
        }
        start += token.len();
    }
    let rest = &line[start..];
    for quote in ['"', '\'', '`'] {
        if let Some(inner) = rest.strip_prefix(quote) {
            let len = inner.find(quote).unwrap_or(inner.len());
            return if inner.starts_with('/') { Value::None } else { Value::Hidden(start + 1..start + 1 + len) };
        }
    }
    let token = rest.split(char::is_whitespace).next().unwrap_or_default();
    let token = token.trim_end_matches([',', '.', ';', ':', ')', '"', '\'', '|', ']', '}']);
    let is_number = token.len() < 4 && token.bytes().all(|c| c.is_ascii_digit());
    let is_word = SENTENCE.contains(&format!(" {} ", token.to_ascii_lowercase()));
    if is_number
        || is_word
        || is_path(token)
        || !token.starts_with(|c: char| c.is_alphanumeric() || "$!+_%".contains(c))
    {
        return Value::None;
    }
    Value::Hidden(start..start + token.len())
}

/// Returns the kind of text at byte offset `place`, and the range that it covers.
fn kind_at(line: &str, place: usize, whose: Whose) -> (Kind, Range<usize>) {
    let whole = 0..line.len();
    if whose == Whose::Users || line.trim_start().starts_with(['#', ';']) {
        return (Kind::Comment, whole);
    }
    let mut quote: Option<(usize, char)> = None;
    let (mut before, mut is_escaped) = (' ', false);
    for (at, c) in line.char_indices() {
        match quote {
            Some((from, of)) if c == of && !is_escaped => {
                if at > place && whose == Whose::Configuration {
                    return (Kind::String, from + 1..at);
                }
                quote = None;
            }
            Some((_, of)) => is_escaped = of == '"' && c == '\\' && !is_escaped,
            None if at > place => return (Kind::Code, whole),
            None if c == '#' && before.is_whitespace() => return (Kind::Comment, at..line.len()),
            // An apostrophe is no quotation mark.
            None if c == '"' || (c == '\'' && !before.is_alphanumeric()) => quote = Some((at, c)),
            None => {}
        }
        before = c;
    }
    match quote {
        Some((from, _)) if whose == Whose::Configuration => (Kind::String, from + 1..line.len()),
        Some(_) | None => (Kind::Code, whole),
    }
}

/// Returns the offset of the quotation mark that ends a string.
fn end_of_string(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends.then_some(at)
    })
}
