//! Detection of files of other kinds in place of a list. Each causes one error. Pure.

use super::published;

/// Reason why a file is not a list of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Foreign {
    /// Kind of the file, in words.
    pub(super) problem: String,
    /// Advice for the user.
    pub(super) help: &'static str,
}

/// Number of characters from the start of a file that are examined.
const LOOKED_AT: usize = 4096;
const FETCH_AGAIN: &str = "fetch the list again, and check the server's answer";
const UNPACK: &str = "unpack it; only gzip files are read without unpacking";

/// First bytes of packed and other binary files, with problem and help. Bytes that are not UTF-8 appear as U+FFFD.
const MAGIC: [(&str, &str, &str); 6] = [
    ("PK\u{3}\u{4}", "it is a zip archive", UNPACK),
    ("BZh", "it is packed by bzip2", UNPACK),
    ("\u{fffd}7zXZ", "it is packed by xz", UNPACK),
    ("(\u{fffd}/\u{fffd}", "it is packed by zstd", UNPACK),
    ("%PDF-", "it is a PDF document", FETCH_AGAIN),
    ("\u{7f}ELF", "it is a program", FETCH_AGAIN),
];

/// Returns the kind of a file that is not a list of addresses. Bytes that are not UTF-8 appear as U+FFFD in
/// `contents`.
pub(super) fn foreign(contents: &str) -> Option<Foreign> {
    let foreign = |problem: &str, help| Some(Foreign { problem: format!("{problem}, not a list of addresses"), help });
    let looked_at = || contents.chars().take(LOOKED_AT);
    let zeros = looked_at().filter(|c| *c == '\0').count();
    if zeros * 4 >= looked_at().count() && zeros > 0 {
        return foreign("it is UTF-16 text", "save it as UTF-8");
    }
    if let Some((_, problem, help)) = MAGIC.iter().find(|(magic, ..)| contents.starts_with(magic)) {
        return foreign(problem, help);
    }
    if zeros > 0 {
        return foreign("it is a binary file", FETCH_AGAIN);
    }
    let text = without_mark(contents);
    match text.chars().next()? {
        '<' => {
            let start: String = text.chars().take(64).collect::<String>().to_ascii_lowercase();
            let is_xml = start.starts_with("<?xml") && !start.contains("html");
            foreign(if is_xml { "it is an XML document" } else { "it is an HTML page" }, FETCH_AGAIN)
        }
        '[' => foreign("it is a JSON document", published::KNOWN),
        '{' if !is_json_lines(text) => foreign("it is a JSON document", published::KNOWN),
        _ => None,
    }
}

/// Returns true if the first line may be a whole object. A single line that is cut off counts too.
fn is_json_lines(text: &str) -> bool {
    let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
    ends_first_line_with_object(text) || rest.trim().is_empty()
}

/// Returns true if the first line ends with the closing brace of an object.
pub(super) fn ends_first_line_with_object(text: &str) -> bool {
    text.lines().next().is_some_and(|line| line.trim_end().ends_with('}'))
}

/// Returns the text without a byte order mark and blanks at its start.
pub(super) fn without_mark(contents: &str) -> &str {
    contents.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}')
}
