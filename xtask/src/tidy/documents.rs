//! Checks of documents: line lengths, and the existence of every file, link, name and command that they mention.
//!
//! `ratelimit-userspace/tests/docs.rs` checks statements about `ratelimitd` itself: commands, flags, keys and example
//! files. This crate must build before that one can.

use std::collections::BTreeSet;

use anyhow::Result;
use clap::CommandFactory as _;
use regex_lite::Regex;

use super::{Breach, breach};
use crate::dist::VERSION;
use crate::markdown::joined;

const COLUMNS_MAX: usize = 120;
const README_LINES_MAX: usize = 150;
const README_WORDS_MAX: usize = 1500;
const ARCHITECTURE_LINES_MAX: usize = 200;

/// Documents written by `cargo xtask bench`, `accuracy` and `test --write`. Some of their lines are output of machines.
const GENERATED: [&str; 3] = ["docs/PERFORMANCE.md", "docs/ACCURACY.md", "docs/SYSTEMD-TRANSCRIPT.md"];

/// Documents that name earlier versions: the history, and sizes of the packages that were measured last.
const OF_OTHER_VERSIONS: [&str; 2] = ["CHANGELOG.md", "docs/TESTING.md"];

/// Names from other projects that no source here contains.
const FOREIGN: [&str; 4] = ["limit_req", "tcp_rmem", "close_notify", "BPF_F_NO_COMMON_LRU"];

const LONG_LINE: &str = "a document's lines have at most 120 columns; only rows of tables may be longer";
const LONG_README: &str = "README.md has at most 150 lines and 1500 words: the rest belongs into a chapter of docs/";
const LONG_ARCHITECTURE: &str = "ARCHITECTURE.md has at most 200 lines: how things work belongs into docs/INTERNALS.md";
const NO_FILE: &str = "a document names a file that is not there";
const NO_LINK: &str = "a link leads to a file or heading that is not there";
const NO_NAME: &str = "a document names something that no source has";
const NO_LINE: &str = "a document shows words in capitals that no source prints";
const OTHER_VERSION: &str = "a document names another version than Cargo.toml";
const NO_COMMAND: &str = "there is no such command or flag of `cargo xtask`";

/// Returns the breaches in all documents. `files` holds path and text of each repository file.
pub(super) fn breaches(files: &[(String, String)]) -> Result<Vec<Breach>> {
    let world = World::of(files)?;
    let documents = files.iter().filter(|(path, _)| is_document(path));
    let mut breaches = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| is_example(path)) {
        breaches.extend(lengths(path, text));
    }
    for (path, text) in documents {
        if !GENERATED.contains(&path.as_str()) {
            breaches.extend(lengths(path, text));
        }
        breaches.extend(world.links(path, text));
        breaches.extend(world.names(path, text));
        if !GENERATED.contains(&path.as_str()) && !OF_OTHER_VERSIONS.contains(&path.as_str()) {
            breaches.extend(world.versions(path, text));
        }
    }
    Ok(breaches)
}

fn is_document(path: &str) -> bool {
    let is_chapter = path.strip_prefix("docs/").is_some_and(|name| name.ends_with(".md"));
    let others =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md"];
    is_chapter || others.contains(&path) || path == "examples/README.md" || path == ".github/PULL_REQUEST_TEMPLATE.md"
}

/// Returns true for a shipped configuration, which has the same line limit as documents.
fn is_example(path: &str) -> bool {
    path == "dist/ratelimitd.toml" || path.starts_with("examples/") && path.ends_with(".toml")
}

fn lengths(path: &str, text: &str) -> Vec<Breach> {
    let is_long = |line: &str| line.chars().count() > COLUMNS_MAX && !line.starts_with('|');
    let lines = text.lines().enumerate().filter(|(_, line)| is_long(line));
    let mut breaches: Vec<_> = lines.map(|(index, line)| breach(path, index + 1, line, LONG_LINE)).collect();
    let (count, words) = (text.lines().count(), text.split_whitespace().count());
    let found = format!("{count} lines, {words} words");
    if path == "README.md" && (count > README_LINES_MAX || words > README_WORDS_MAX) {
        breaches.push(breach(path, count, &found, LONG_README));
    }
    if path == "ARCHITECTURE.md" && count > ARCHITECTURE_LINES_MAX {
        breaches.push(breach(path, count, &found, LONG_ARCHITECTURE));
    }
    breaches
}

/// Names that documents may mention.
struct World<'a> {
    files: &'a [(String, String)],
    /// Names with an underscore in the sources.
    names: BTreeSet<&'a str>,
    commands: clap::Command,
    name: Regex,
    link: Regex,
    /// Pattern of capitalised words, which lines that need attention contain.
    capitals: Regex,
    version: Regex,
}

impl<'a> World<'a> {
    fn of(files: &'a [(String, String)]) -> Result<Self> {
        let name = Regex::new(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)+")?;
        let is_source = |path: &str| !path.ends_with(".md") && !path.ends_with(".snap");
        let sources = files.iter().filter(|(path, _)| is_source(path));
        let names = sources.flat_map(|(_, text)| name.find_iter(text).map(|found| found.as_str()));
        let names = names.chain(FOREIGN).collect();
        let link = Regex::new(r"\]\(([^)\s]+)\)")?;
        let capitals = Regex::new(r"\b[A-Z]{2,}( [A-Z]{2,})+\b")?;
        let version = Regex::new(r"\b(?:ratelimitd[:_-]|Version )(\d+\.\d+(?:\.\d+)?)")?;
        Ok(Self { files, names, commands: crate::Cli::command(), name, link, capitals, version })
    }

    fn has(&self, path: &str) -> bool {
        let is_below =
            |of: &str| of.strip_prefix(path).is_some_and(|rest| path.ends_with('/') || rest.starts_with('/'));
        self.files.iter().any(|(of, _)| of == path || is_below(of))
    }

    /// Returns true if the path of a file ends with `path`, such as `daemon/store.rs`.
    fn has_ending(&self, path: &str) -> bool {
        self.has(path) || self.files.iter().any(|(of, _)| of.strip_suffix(path).is_some_and(|rest| rest.ends_with('/')))
    }

    fn links(&self, path: &str, text: &str) -> Vec<Breach> {
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        let is_dead = |target: &str| {
            if target.contains("://") {
                return false;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { path.to_owned() } else { joined(directory, file) };
            let headings =
                || self.files.iter().find(|(of, _)| *of == file).is_some_and(|(_, text)| has_heading(text, heading));
            !self.has(&file) || (!heading.is_empty() && !headings())
        };
        let lines = text.lines().enumerate();
        let targets = lines.flat_map(|(at, line)| self.link.captures_iter(line).map(move |found| (at, found)));
        let targets = targets.filter_map(|(at, found)| Some((at, found.get(1)?.as_str())));
        targets
            .filter(|(_, target)| is_dead(target))
            .map(|(at, target)| breach(path, at + 1, target, NO_LINK))
            .collect()
    }

    /// Checks the versions in names of packages and images. A version may lack its last number.
    fn versions(&self, path: &str, text: &str) -> Vec<Breach> {
        let is_other = |version: &str| !format!("{VERSION}.").starts_with(&format!("{version}."));
        let lines = text.lines().enumerate();
        let found = lines.flat_map(|(at, line)| self.version.captures_iter(line).map(move |found| (at, line, found)));
        found
            .filter(|(.., found)| found.get(1).is_some_and(|version| is_other(version.as_str())))
            .map(|(at, line, _)| breach(path, at + 1, line, OTHER_VERSION))
            .collect()
    }

    /// Checks files, names and `cargo xtask` commands in code spans and code blocks.
    fn names(&self, path: &str, text: &str) -> Vec<Breach> {
        let mut breaches = Vec::new();
        for (at, code) in codes(text) {
            let mut found = |text: &str, reason| breaches.push(breach(path, at + 1, text, reason));
            let first = code.split_whitespace().next().unwrap_or_default();
            for file in alternatives(first).iter().filter(|file| is_own_path(file)) {
                if !self.has_ending(file) {
                    found(file, NO_FILE);
                }
            }
            if !first.contains(['/', '=']) && code == first {
                for name in self.name.find_iter(&code).filter(|name| !self.names.contains(name.as_str())) {
                    found(name.as_str(), NO_NAME);
                }
            }
            if !GENERATED.contains(&path) {
                for words in self.capitals.find_iter(&code).filter(|words| !self.prints(words.as_str())) {
                    found(words.as_str(), NO_LINE);
                }
            }
            if path == "CONTRIBUTING.md" && first.starts_with("--") && !self.commands_have(first) {
                found(first, NO_COMMAND);
            }
            if let Some((_, rest)) = code.split_once("cargo xtask ").filter(|_| !code.starts_with('#')) {
                let rest = rest.split(" #").next().unwrap_or_default();
                if !self.has_command(rest) {
                    found(rest, NO_COMMAND);
                }
            }
        }
        breaches
    }

    fn prints(&self, words: &str) -> bool {
        self.files.iter().any(|(path, text)| path.ends_with(".rs") && text.contains(words))
    }

    fn commands_have(&self, flag: &str) -> bool {
        let mut flags = self.commands.get_subcommands().flat_map(clap::Command::get_arguments);
        flags.any(|argument| argument.get_long() == flag.strip_prefix("--"))
    }

    fn has_command(&self, line: &str) -> bool {
        let mut words = line.split_whitespace();
        let Some(command) = words.next().and_then(|name| self.commands.find_subcommand(name)) else { return false };
        let has = |flag: &str| command.get_arguments().any(|argument| argument.get_long() == Some(flag));
        // Quoted words are arguments of another program.
        let words = words.take_while(|word| !word.contains('\''));
        words.filter_map(|word| word.strip_prefix("--")).all(|flag| has(flag.split('=').next().unwrap_or(flag)))
    }
}

/// Returns code spans and lines of code blocks, with their line numbers from 0.
fn codes(text: &str) -> Vec<(usize, String)> {
    let mut codes = Vec::new();
    let mut is_fenced = false;
    for (at, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced || is_block(line) {
            codes.push((at, line.trim().to_owned()));
        } else {
            codes.extend(line.split('`').skip(1).step_by(2).map(|code| (at, code.trim().to_owned())));
        }
    }
    codes
}

fn is_block(line: &str) -> bool {
    line.starts_with("    ")
}

/// Expands `a/{b,c}.rs` into two paths.
fn alternatives(path: &str) -> Vec<String> {
    let parts = path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    let Some((before, (middle, after))) = parts else { return vec![path.to_owned()] };
    middle.split(',').map(|middle| format!("{before}{middle}{after}")).collect()
}

/// Returns true for a path in this repository's style: relative, with a plain name and a known ending.
fn is_own_path(path: &str) -> bool {
    const ENDINGS: [&str; 8] = [".rs", ".md", ".toml", ".py", ".php", ".json", ".svg", ".txt"];
    let is_plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c)) && !path.starts_with('/');
    is_plain && path.contains('/') && ENDINGS.iter().any(|ending| path.ends_with(ending))
}

/// Returns true if a heading has this anchor by GitHub's rules.
fn has_heading(text: &str, anchor: &str) -> bool {
    let headings =
        text.lines().filter_map(|line| line.strip_prefix('#')).map(|line| line.trim_start_matches('#').trim());
    headings.into_iter().any(|heading| {
        let kept = heading.to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>() == anchor
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "fn charge_at_once() {}\nconst DROP_CACHE: &str = \"{x} is NOT PROTECTED: y\";\n";

    /// Returns the line, text and reason of each breach in a document.
    fn found(path: &str, text: &str) -> Vec<(usize, String, &'static str)> {
        let other = "# Other\n\n## Two words, here\n";
        let files = [(path, text), ("docs/OTHER.md", other), ("a/src/b.rs", SOURCE), ("a/src/c/d.rs", "")];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let breaches = breaches(&files).unwrap().into_iter();
        breaches.map(|breach| (breach.line, breach.text, breach.reason)).collect()
    }

    fn reasons(path: &str, text: &str) -> Vec<&'static str> {
        found(path, text).into_iter().map(|(_, _, reason)| reason).collect()
    }

    #[test]
    fn a_line_of_121_columns_is_too_long_unless_it_is_a_row_or_generated() {
        let line = |length: usize| format!("{}\n", "é".repeat(length));
        assert!(reasons("README.md", &line(120)).is_empty());
        assert_eq!(reasons("README.md", &line(121)), [LONG_LINE]);
        assert!(reasons("README.md", &format!("|{}", line(200))).is_empty());
        assert!(reasons("docs/PERFORMANCE.md", &line(200)).is_empty());
        assert_eq!(reasons("dist/ratelimitd.toml", &line(121)), [LONG_LINE]);
        assert!(reasons("notes.md", &line(200)).is_empty(), "it is no document");
    }

    #[test]
    fn a_line_or_a_word_too_many_is_too_long_a_readme() {
        assert!(reasons("README.md", &"a\n".repeat(150)).is_empty());
        assert_eq!(reasons("README.md", &"a\n".repeat(151)), [LONG_README]);
        let words = |count: usize| "a b c d e f g h i j\n".repeat(count / 10);
        assert!(reasons("README.md", &words(1500)).is_empty());
        assert_eq!(reasons("README.md", &format!("{}a\n", words(1500))), [LONG_README]);
        assert!(reasons("ARCHITECTURE.md", &"a\n".repeat(200)).is_empty());
        assert_eq!(reasons("ARCHITECTURE.md", &"a\n".repeat(201)), [LONG_ARCHITECTURE]);
    }

    #[test]
    fn a_link_leads_somewhere() {
        for good in ["OTHER.md", "OTHER.md#two-words-here", "#here", "../a/src/b.rs", "../a/src", "https://a.example/x"]
        {
            assert!(reasons("docs/X.md", &format!("# Here\n[x]({good})\n")).is_empty(), "{good}");
        }
        for dead in ["NONE.md", "OTHER.md#three", "#there", "../b.rs"] {
            let expected = [(2, dead.to_owned(), NO_LINK)];
            assert_eq!(found("docs/X.md", &format!("# Here\n[x]({dead})\n")), expected);
        }
    }

    #[test]
    fn a_file_a_name_and_a_command_exist() {
        let good = [
            "`a/src/b.rs`",
            "`c/d.rs`",
            "`src/{b,c/d}.rs`",
            "`charge_at_once`",
            "`DROP_CACHE`",
            "`/etc/x.toml`",
            "`cargo xtask install --destdir DIR`",
            "`cargo xtask test`",
            "`no_such = 1`",
            "`... NOT PROTECTED ...`",
        ];
        for code in good {
            assert!(found("docs/X.md", &format!("{code}\n")).is_empty(), "{code}: {:?}", found("docs/X.md", code));
        }
        for (code, text, reason) in [
            ("`a/src/x.rs`", "a/src/x.rs", NO_FILE),
            ("`src/{b,x}.rs`", "src/x.rs", NO_FILE),
            ("`charge_twice`", "charge_twice", NO_NAME),
            ("`REFUSED_CACHE`", "REFUSED_CACHE", NO_NAME),
            ("`... NOT SAFE ...`", "NOT SAFE", NO_LINE),
            ("`cargo xtask tset`", "tset", NO_COMMAND),
            ("    cargo xtask install --dest x   # there", "install --dest x  ", NO_COMMAND),
            ("```\ncargo xtask tset\n```", "tset", NO_COMMAND),
        ] {
            let found = found("docs/X.md", &format!("{code}\n"));
            assert_eq!(found.iter().map(|of| (of.1.as_str(), of.2)).collect::<Vec<_>>(), [(text, reason)], "{code}");
        }
    }

    #[test]
    fn a_version_is_that_of_the_workspace() {
        let short = VERSION.rsplit_once('.').unwrap().0;
        for good in
            [format!("ratelimitd:{VERSION}"), format!("ratelimitd-{VERSION}-x86_64.tar"), format!("Version {short};")]
        {
            assert!(reasons("docs/X.md", &format!("{good}\n")).is_empty(), "{good}");
        }
        for bad in ["localhost/ratelimitd:0.0.9", "ratelimitd_0.0.9_amd64.deb", "Version 0.0; see"] {
            assert_eq!(reasons("docs/X.md", &format!("{bad}\n")), [OTHER_VERSION], "{bad}");
            assert!(reasons("CHANGELOG.md", &format!("{bad}\n")).is_empty(), "{bad}");
        }
    }

    #[test]
    fn a_flag_alone_in_the_contributors_document_is_one_of_xtask() {
        assert!(reasons("CONTRIBUTING.md", "`--growth`, `--receiver`\n").is_empty());
        assert_eq!(reasons("CONTRIBUTING.md", "`--grow`\n"), [NO_COMMAND]);
        assert!(reasons("docs/X.md", "`--limit`\n").is_empty(), "it is of ratelimitd");
    }
}
