//! Colours in output for people: table heads, states, verdicts, and words in capitals. Knows words and not their
//! meaning: the text is the same without colours.

use clap::builder::styling::{AnsiColor, Style};

const HEAD: Style = Style::new().bold();
const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default();
const HALF: Style = AnsiColor::Yellow.on_default();
const LOUD: Style = AnsiColor::Yellow.on_default().bold();
const TALK: Style = AnsiColor::Cyan.on_default().bold();

/// Words that fill or begin a table's cell.
const CELLS: [(&str, Style); 8] = [
    ("ok", GOOD),
    ("allowed", GOOD),
    ("exempt", GOOD),
    ("over the limit", HALF),
    ("over a limit", HALF),
    ("banned", BAD),
    ("denied", BAD),
    ("would be banned", HALF),
];

/// Phrases about a source or a packet, in a sentence.
const PHRASES: [(&str, Style); 13] = [
    ("is blocked", BAD),
    ("is banned", BAD),
    ("is denied", BAD),
    ("is allowed", GOOD),
    ("is no longer denied", GOOD),
    ("is no longer banned", GOOD),
    ("-> dropped", BAD),
    ("-> passes", GOOD),
    ("passes, but only", HALF),
    ("passes", GOOD),
    ("dropped:", BAD),
    ("blocked", BAD),
    ("note:", TALK),
];

/// Words in capitals that are names and stay plain.
const NAMES: [&str; 12] = ["XDP", "TCP", "UDP", "QUIC", "SYN", "UTC", "IP", "HTTP", "TLS", "CIDR", "JSON", "CPU"];

/// Returns the text with colour codes for a terminal.
pub(super) fn paint(text: &str) -> String {
    text.split_inclusive('\n').map(paint_line).collect()
}

fn paint_line(line: &str) -> String {
    let (text, end) = line.strip_suffix('\n').map_or((line, ""), |text| (text, "\n"));
    if is_head(text) {
        return format!("{HEAD}{text}{HEAD:#}{end}");
    }
    let mut out = String::with_capacity(text.len() + 32);
    let mut at = 0;
    while at < text.len() {
        let Some((length, style)) = styled(text, at) else {
            let next = text[at..].chars().next().map_or(1, char::len_utf8);
            out += &text[at..at + next];
            at += next;
            continue;
        };
        out += &format!("{style}{}{style:#}", &text[at..at + length]);
        at += length;
    }
    out + end
}

/// Returns the length in bytes and the style of the word that begins at this offset; `None` if it stays plain.
fn styled(text: &str, at: usize) -> Option<(usize, Style)> {
    let (before, rest) = text.split_at_checked(at)?;
    if before.chars().next_back().is_some_and(|c| !c.is_whitespace()) {
        return None;
    }
    let is_cell = before.is_empty() || before.ends_with("  ");
    let ends = |word: &str| {
        rest.strip_prefix(word).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    let cell = CELLS.iter().filter(|_| is_cell).find(|(word, _)| {
        rest.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with("  ") || rest.starts_with(" ("))
    });
    let phrase = || PHRASES.iter().find(|(word, _)| ends(word));
    let known = cell.or_else(phrase).map(|(word, style)| (word.len(), *style));
    known.or_else(|| capitals(rest).map(|length| (length, LOUD)))
}

/// Returns the length in bytes of the emphasised capitals here: at least two words, or one that is no name and longer
/// than an abbreviation.
fn capitals(rest: &str) -> Option<usize> {
    let is_loud = |word: &str| word.len() >= 2 && word.bytes().all(|byte| byte.is_ascii_uppercase()) || word == "A";
    let mut words = Vec::new();
    for part in rest.split(' ') {
        let word = part.trim_end_matches([':', ',', ';', '.']);
        if !is_loud(word) {
            break;
        }
        words.push(word);
        if word.len() < part.len() {
            break;
        }
    }
    let length = words.iter().map(|word| word.len() + 1).sum::<usize>().saturating_sub(1);
    let names = words.iter().filter(|word| NAMES.contains(word)).count();
    let is_alone = words.len() == 1 && words.iter().any(|word| word.len() > 4);
    (names < words.len() && (words.len() > 1 || is_alone)).then_some(length)
}

/// Returns true for the head of a table: several columns, all in capitals.
fn is_head(text: &str) -> bool {
    let columns: Vec<&str> = text.split("  ").map(str::trim).filter(|column| !column.is_empty()).collect();
    let is_name = |column: &&str| {
        column.bytes().any(|byte| byte.is_ascii_uppercase())
            && column.bytes().all(|byte| byte.is_ascii_uppercase() || matches!(byte, b' ' | b'/' | b'%'))
    };
    columns.len() > 1 && columns.iter().all(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the painted pieces of a text.
    fn painted(text: &str) -> Vec<String> {
        let out = paint(text);
        assert_eq!(anstream::adapter::strip_str(&out).to_string(), text, "the words are the same");
        let mut pieces = Vec::new();
        let mut piece: Option<String> = None;
        let mut rest = out.as_str();
        while let Some((code, after)) = rest.find("\x1b[").and_then(|at| {
            if let Some(piece) = &mut piece {
                piece.push_str(&rest[..at]);
            }
            let (code, after) = rest[at + 2..].split_once('m')?;
            Some((code, after))
        }) {
            match (code, piece.take()) {
                ("0", Some(done)) => pieces.push(done),
                (_, before) => piece = Some(before.unwrap_or_default()),
            }
            rest = after;
        }
        pieces
    }

    #[test]
    fn heads_states_verdicts_and_capitals_are_painted_and_nothing_else() {
        for (text, pieces) in [
            ("SOURCE        RULE     WOULD DROP\n", &["SOURCE        RULE     WOULD DROP"][..]),
            ("198.51.100.7  default  banned          in 5m\n", &["banned"]),
            ("192.0.2.0/24  denied (another entry goes before it)\n", &["denied"]),
            ("198.51.100.7 is blocked: it is over a limit.\n", &["is blocked"]),
            ("198.51.100.7 passes: it is within every limit.\n", &["passes"]),
            ("  4. limit  9 of 9 -> dropped\n", &["-> dropped"]),
            ("PANIC by root since 2026-01-01 10:00:00 UTC\n", &["PANIC"]),
            ("RULE web FELL BACK TO DRY RUN, as it dropped more\n", &["FELL BACK TO DRY RUN"]),
            ("A FILE IS ON TRIAL: it is rolled back\n", &["A FILE IS ON TRIAL"]),
            ("eth0  NOT ATTACHED: not protected  7\n", &["NOT ATTACHED"]),
            ("note: it stays denied\nand is no unbanned source over TCP or UDP\n", &["note:"]),
            ("Rule default (enforced) on ports 80,443\n  dropped      5 packets\n", &[]),
            ("héllo, \u{e9}\u{e9} 1,000 connections in 5m\n", &[]),
        ] {
            assert_eq!(painted(text), pieces, "{text}");
        }
    }
}
