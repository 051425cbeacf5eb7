//! Generates documents from the table of keys: the tables of docs/CONFIG.md, and the manual page ratelimitd.toml(5),
//! which contains that chapter. Pure.

use clap_mangen::roff::{Inline, Roff, bold, roman};

use ratelimit_policy::config::keys::{Key, Reload, TABLES, Table, Value};

/// The chapter that the manual page is made of.
const CHAPTER: &str = include_str!("../../../docs/CONFIG.md");

/// Mark before a generated table. The table's prefix follows, without its last dot.
const BEGIN: &str = "<!-- keys: ";
const END: &str = "<!-- end -->";

/// Returns the manual page ratelimitd.toml(5).
pub(super) fn page() -> String {
    let mut roff = Roff::new();
    roff.control("TH", ["ratelimitd.toml", "5", "", concat!("ratelimitd ", env!("CARGO_PKG_VERSION"))]);
    roff.control("SH", ["NAME"]).text([roman("ratelimitd.toml - the configuration file of ratelimitd")]);
    roff.control("SH", ["DESCRIPTION"]);
    let mut lines = CHAPTER.lines().skip(1).peekable();
    while let Some(line) = lines.next() {
        if let Some(table) = named(line) {
            push_keys(&mut roff, table);
            lines.by_ref().find(|line| *line == END);
        } else if let Some(heading) = line.strip_prefix("## ") {
            roff.control("SH", [&*heading.to_uppercase()]);
        } else if line.starts_with("```") {
            roff.control("PP", []).control("nf", []);
            for code in lines.by_ref().take_while(|line| !line.starts_with("```")) {
                roff.text([roman(code)]);
            }
            roff.control("fi", []);
        } else if line.is_empty() {
            // A heading and the end of an example begin a paragraph anyway.
            if lines.peek().is_some_and(|next| next.starts_with(|first: char| first.is_alphanumeric() || first == '`'))
            {
                roff.control("PP", []);
            }
        } else if let Some(item) = line.strip_prefix("- ") {
            roff.control("IP", ["\\(bu", "2"]).text(inlines(item));
        } else {
            roff.text(inlines(line.trim_start()));
        }
    }
    roff.control("SH", ["SEE ALSO"]).text([
        bold("ratelimitd"),
        roman("(1), "),
        bold("ratelimitd-check-config"),
        roman("(1)"),
    ]);
    roff.render()
}

fn push_keys(roff: &mut Roff, table: &Table) {
    for key in table.keys {
        roff.control("TP", []).text([bold(format!("{}{}", table.prefix, key.name))]);
        let flag = key.flag.map_or_else(String::new, |flag| format!(" Flag: `{}`.", flag.name));
        let restart = if key.reload == Reload::NeedsRestart { " A change needs a restart." } else { "" };
        roff.text(inlines(&format!(
            "{}{restart} Value: {}. Default: {}.{flag}",
            meaning(key),
            value(key),
            default(key)
        )));
    }
}

/// Returns text with `code` in bold, and links replaced by their texts.
fn inlines(text: &str) -> Vec<Inline> {
    let pieces = without_links(text);
    let pieces = pieces.split('`').enumerate().filter(|(_, piece)| !piece.is_empty());
    pieces.map(|(at, piece)| if at % 2 == 1 { bold(piece) } else { roman(piece.replace("**", "")) }).collect()
}

fn without_links(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((of, (_, after))) = rest.split_once("](").and_then(|(of, link)| Some((of, link.split_once(')')?))) {
        let (before, of) = of.rsplit_once('[').unwrap_or(("", of));
        out.push_str(before);
        out.push_str(of);
        rest = after;
    }
    out + rest
}

/// Returns the key's help and further sentences.
fn meaning(key: &Key) -> String {
    if key.more.is_empty() { format!("{}.", key.help) } else { format!("{}. {}", key.help, key.more) }
}

fn value(key: &Key) -> String {
    match key.value {
        Value::Choice(words) => words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", "),
        Value::Integer(least, most) => format!("{least} to {most}"),
        Value::Boolean => "`true`, `false`".to_owned(),
        Value::Other(words) | Value::Text(words) | Value::List(words) | Value::Texts(words) => words.to_owned(),
    }
}

fn default(key: &Key) -> String {
    let is_written = ["\"", "[", "true", "false"].iter().any(|start| key.default.starts_with(start))
        || key.default.bytes().all(|byte| byte.is_ascii_digit());
    if is_written { format!("`{}`", key.default) } else { key.default.to_owned() }
}

fn named(line: &str) -> Option<&'static Table> {
    let name = line.strip_prefix(BEGIN)?.strip_suffix(" -->")?;
    TABLES.iter().find(|table| table.prefix.trim_end_matches('.') == name || (name == "top" && table.prefix.is_empty()))
}

/// Returns the chapter with newly generated tables.
#[cfg_attr(not(test), expect(dead_code, reason = "a test renews the chapter"))]
fn renewed(chapter: &str) -> String {
    let mut out = String::new();
    let mut lines = chapter.lines();
    while let Some(line) = lines.next() {
        out.push_str(line);
        out.push('\n');
        if let Some(table) = named(line) {
            out.push_str(&markdown(table));
            lines.by_ref().find(|line| *line == END);
            out.push_str(END);
            out.push('\n');
        }
    }
    out
}

fn markdown(table: &Table) -> String {
    let mut out = String::from("| key | flag | value | default | meaning |\n|---|---|---|---|---|\n");
    for key in table.keys {
        let flag = key.flag.map_or_else(|| "–".to_owned(), |flag| format!("`{}`", flag.name));
        let (name, value, default) = (format!("{}{}", table.prefix, key.name), value(key), default(key));
        out.push_str(&format!("| `{name}` | {flag} | {value} | {default} | {} |\n", meaning(key)));
    }
    let fixed: Vec<_> = table.keys.iter().filter(|key| key.reload == Reload::NeedsRestart).collect();
    if !fixed.is_empty() {
        let names: Vec<_> = fixed.iter().map(|key| format!("`{}`", key.name)).collect();
        let told = format!("A change of {} needs a restart; a reload refuses it.", names.join(", "));
        out.push_str(&format!("\n{}\n", wrapped(&told)));
    }
    out
}

/// Maximum number of columns in a document's line.
const COLUMNS_MAX: usize = 120;

/// Wraps a text into lines of a document.
fn wrapped(text: &str) -> String {
    let (mut out, mut columns) = (String::new(), 0);
    for word in text.split(' ') {
        let len = word.chars().count();
        if columns != 0 {
            let fits = columns + 1 + len <= COLUMNS_MAX;
            out.push(if fits { ' ' } else { '\n' });
            columns = if fits { columns + 1 } else { 0 };
        }
        out.push_str(word);
        columns += len;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that docs/CONFIG.md is up to date. `UPDATE_DOCS=1 cargo test --package ratelimit-userspace --lib manual`
    /// updates it.
    #[test]
    fn the_chapter_of_the_configuration_has_the_tables_that_the_keys_make() {
        let made = renewed(CHAPTER);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/CONFIG.md");
            std::fs::write(path, &made).expect("write docs/CONFIG.md");
            return;
        }
        assert!(made == CHAPTER, "docs/CONFIG.md is not what the keys make; UPDATE_DOCS=1 with this test renews it");
        let tables = CHAPTER.lines().filter(|line| line.starts_with(BEGIN)).count();
        assert_eq!(tables, TABLES.len(), "each table stands in it once");
    }

    #[test]
    fn a_row_that_differs_is_made_anew() {
        let chapter = "a\n<!-- keys: safety -->\nold\n<!-- end -->\nb\n";
        let made = renewed(chapter);
        assert!(!made.contains("old") && made.starts_with("a\n") && made.ends_with("<!-- end -->\nb\n"), "{made}");
        assert!(made.contains("| `safety.breaker` | – | `\"1%\"` to `\"99%\"`, or `\"off\"` | `\"off\"` |"), "{made}");
        assert_eq!(renewed(&made), made);
    }

    #[test]
    fn the_manual_page_has_every_key_and_no_markdown() {
        let page = page();
        for table in TABLES {
            for key in table.keys {
                let name = format!("{}{}", table.prefix, key.name);
                assert!(page.lines().any(|line| line == format!("\\fB{name}\\fR")), "{name}: {page}");
            }
        }
        for mark in ["`", "](", "|---", "<!--", "**", "```"] {
            assert!(!page.contains(mark), "{mark}: {page}");
        }
    }

    #[test]
    fn a_link_is_its_text_and_a_list_in_code_stays() {
        assert_eq!(without_links("a [b](c.md#d) e"), "a b e");
        assert_eq!(without_links("`[80, 443]` and [b](c)"), "`[80, 443]` and b");
    }
}
