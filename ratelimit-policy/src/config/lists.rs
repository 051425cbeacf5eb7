//! Lists of prefixes: those in a list file, and what `from`, `allow` and `deny` name. Pure: the caller has read
//! the files.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use ratelimit_common::layout::PREFIXES_MAX;

use super::network::{CIDR_HELP, parse_cidr, parse_cidr_of_any_bits, parse_source};
use super::rule::check_name;
use super::syntax::{SyntaxError, near_miss};
use super::written::{Source, Written};
use crate::diagnostic::{Diagnostic, Diagnostics, Excerpt, Found, Place};

/// The most entries of a list file: as many of each family as the kernel has room for. // 2097152 x 18 B = 38 MB
pub const LIST_ENTRIES_MAX: usize = 2 * PREFIXES_MAX as usize;
/// The longest list file, unpacked: so many of common prefixes, a comment behind each.
pub const LIST_BYTES_MAX: u64 = 64 << 20;
/// All list files together, while they are read.
pub const LISTS_BYTES_MAX: u64 = 256 << 20;
/// List files in a configuration.
pub const LIST_FILES_MAX: usize = 32;

/// Prefixes of all named lists together, each list counted. // 2097152 x 30 B = 63 MB
pub const LISTED_MAX: usize = 1 << 21;

/// How a list file is named where a prefix may stand.
const FILE_MARK: &str = "file:";
/// How a named list is.
const LIST_MARK: char = '@';

/// List files by the path that [`path`] gives.
pub type ListFiles = BTreeMap<PathBuf, Named>;

/// List files whose prefixes are known already, by path: sorted, each once.
pub type KnownLists = BTreeMap<PathBuf, Arc<[IpNet]>>;

/// A list file that a configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// What names it: `list partners`, `deny`. The first of several.
    pub by: String,
    /// What it holds.
    pub contents: Contents,
}

/// What a list file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Its text, or why it cannot be read.
    Read(Result<String, String>),
    /// What its text came to when it was read.
    Known(Arc<[IpNet]>),
}

/// A list file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFile {
    /// Where it is.
    pub path: PathBuf,
    /// [`Named::by`].
    pub named_by: String,
    /// Its prefixes: sorted, each once.
    pub prefixes: Arc<[IpNet]>,
}

/// A named list, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListSettings {
    /// Its name, without the `@`.
    pub name: Written,
    /// Prefixes and list files.
    pub entries: Vec<Written>,
}

/// The path of the list file that `entry` names, if it names one; relative ones are so to the configuration's directory.
pub fn path(entry: &str, source: &Source) -> Option<PathBuf> {
    let name = Path::new(entry.strip_prefix(FILE_MARK)?);
    Some(match source {
        Source::File { path, .. } => path.parent().unwrap_or(Path::new("")).join(name),
        Source::CommandLine => name.to_owned(),
    })
}

/// Keys that hold the prefix in a line of JSON: those of Spamhaus, AbuseIPDB, CrowdSec and others.
const PREFIX_KEYS: [&str; 9] =
    ["cidr", "ip", "ipAddress", "ip_address", "prefix", "network", "range", "value", "address"];
/// A line of JSON takes some twenty times as much memory while it is read.
const JSON_BYTES_MAX: usize = 64 << 10;
/// Lines of JSON with this type tell of the list.
const METADATA: &str = "metadata";

/// Parses a list file: one address or prefix a line, with `#` or `;` before a comment; what follows after a space is not read.
/// A line may be a JSON object that has one under a key such as `cidr` or `ipAddress`; one of the type `metadata` has none.
///
/// Bits beyond a prefix's length are cut off, as published sets have them. Sorted, each once. What is wrong is said without the text:
/// the reader of the error may not be allowed to read the file.
pub fn parse(path: &Path, contents: &str) -> Result<Vec<IpNet>, Diagnostics> {
    let wrong = |line: usize, column: usize, problem: &str, help: &str| {
        let excerpt = Excerpt { line, column, text: None, span: 0..0 };
        Diagnostic {
            problem: format!("bad line in a list file: {problem}"),
            place: Place::File { path: path.to_owned(), excerpt: Some(Box::new(excerpt)) },
            help: vec![help.to_owned()],
        }
    };
    let mut found = Found::default();
    let mut prefixes = Vec::new();
    if let Some(line) = lone_return(contents) {
        let problem = "a carriage return stands in it, and ends no line";
        found.push(wrong(line, 1, problem, "end lines as Unix does, or Windows"));
    }
    for Line { number, column, entry, .. } in lines(contents) {
        if prefixes.len() == LIST_ENTRIES_MAX {
            let problem = format!("there are more than {LIST_ENTRIES_MAX} entries");
            found.push(wrong(number, column, &problem, "join neighbouring prefixes"));
            break;
        }
        // A file of another kind has as many errors as lines.
        if found.is_full() {
            break;
        }
        let entry = match prefix_text(entry) {
            Ok(Some(text)) => text,
            Ok(None) => continue,
            Err(problem) => {
                let help = "a line of JSON is an object with the prefix under `cidr` or `ip`";
                found.push(wrong(number, column, problem, help));
                continue;
            }
        };
        let prefix = parse_cidr_of_any_bits(&entry).map_err(|error| match error.span.start {
            0 => wrong(number, column, "this is no address, and no prefix", CIDR_HELP),
            start => {
                let help = "lengths are 0 to 32 in IPv4, and 0 to 128 in IPv6";
                wrong(number, column + start, "this is not a prefix length", help)
            }
        });
        prefixes.extend(found.keep(prefix));
    }
    prefixes.sort_unstable();
    prefixes.dedup();
    if let Some(family) = too_many_of(prefixes.iter()) {
        found.push(Diagnostic {
            problem: format!("there are more than {PREFIXES_MAX} prefixes of {family} in this list file"),
            place: Place::File { path: path.to_owned(), excerpt: None },
            help: vec!["join neighbouring prefixes".to_owned()],
        });
    }
    found.into_result(prefixes)
}

/// The first line with a carriage return that is not at its end.
fn lone_return(contents: &str) -> Option<usize> {
    let is_within = |line: &str| line.trim_end_matches('\r').contains('\r');
    contents.split('\n').position(is_within).map(|before| before + 1)
}

/// The family of which there are more prefixes than the kernel has room for.
fn too_many_of<'a>(prefixes: impl ExactSizeIterator<Item = &'a IpNet>) -> Option<&'static str> {
    let all = prefixes.len();
    let ipv4 = prefixes.filter(|prefix| prefix.addr().is_ipv4()).count();
    let is_too_many = |count: usize| count > PREFIXES_MAX as usize;
    if is_too_many(ipv4) { Some("IPv4") } else { is_too_many(all - ipv4).then_some("IPv6") }
}

/// The text of an entry's prefix, which a line of JSON has within; none where that tells of the list.
///
/// # Errors
/// What is wrong with it, in words.
pub fn prefix_text(entry: &str) -> Result<Option<Cow<'_, str>>, &'static str> {
    if !entry.starts_with('{') {
        return Ok(Some(Cow::Borrowed(entry)));
    }
    if entry.len() > JSON_BYTES_MAX {
        return Err("this line of JSON is longer than 65536 bytes");
    }
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(entry).map_err(|_| "this is no JSON object")?;
    if object.get("type").and_then(serde_json::Value::as_str) == Some(METADATA) {
        return Ok(None);
    }
    let prefix = PREFIX_KEYS.iter().find_map(|key| object.get(*key)?.as_str());
    prefix.map(|prefix| Some(Cow::Owned(prefix.trim().to_owned()))).ok_or("this JSON object has no prefix")
}

/// A line of a list file that has an entry.
pub(super) struct Line<'a> {
    /// From 1.
    pub(super) number: usize,
    /// Where the entry begins in it, in characters from 1.
    column: usize,
    /// The entry.
    pub(super) entry: &'a str,
    /// What follows it, without the mark before it.
    pub(super) comment: &'a str,
}

/// The lines of a list file that have an entry.
pub(super) fn lines(contents: &str) -> impl Iterator<Item = Line<'_>> {
    let is_blank = |c: char| c.is_whitespace() || c == '\u{feff}';
    contents.split('\n').zip(1..).filter_map(move |(line, number)| {
        let text = line.trim_start_matches(is_blank);
        let column = line[..line.len() - text.len()].chars().count() + 1;
        if text.starts_with('{') {
            // JSON has its own spaces and marks.
            return Some(Line { number, column, entry: text.trim_end(), comment: text.trim_end() });
        }
        let end = text.find(|c: char| c.is_whitespace() || c == '#' || c == ';').unwrap_or(text.len());
        let (entry, rest) = text.split_at(end);
        let comment = rest.trim_start_matches(|c: char| is_blank(c) || c == '#' || c == ';').trim_end();
        (!entry.is_empty()).then_some(Line { number, column, entry, comment })
    })
}

/// What the words for prefixes mean.
#[derive(Debug)]
pub(super) struct Lists<'a> {
    source: &'a Source,
    named: BTreeMap<&'a str, BTreeSet<IpNet>>,
    files: BTreeMap<&'a Path, Result<Arc<[IpNet]>, Unread<'a>>>,
    /// Nothing is wrong in the named lists.
    pub(super) are_whole: bool,
}

#[derive(Debug)]
enum Unread<'a> {
    /// Why it cannot be read.
    Unreadable(&'a str),
    /// What is wrong in it.
    Wrong(Diagnostics),
}

impl<'a> Lists<'a> {
    pub(super) fn new(source: &'a Source, named: &'a [ListSettings], files: &'a ListFiles, found: &mut Found) -> Self {
        let parsed = |path: &Path, contents: &'a Contents| match contents {
            Contents::Known(prefixes) => Ok(Arc::clone(prefixes)),
            Contents::Read(Ok(contents)) => parse(path, contents).map(Arc::from).map_err(Unread::Wrong),
            Contents::Read(Err(reason)) => Err(Unread::Unreadable(reason)),
        };
        let files = files.iter().map(|(path, named)| (path.as_path(), parsed(path, &named.contents))).collect();
        let mut lists = Self { source, named: BTreeMap::new(), files, are_whole: true };
        let before = found.count();
        let mut listed = 0;
        for ListSettings { name, entries } in named {
            found.keep(source.read(name, check_name));
            let prefixes = lists.prefixes(entries, found);
            listed += prefixes.len();
            if listed > LISTED_MAX {
                let problem = format!("with this list the lists have more than {LISTED_MAX} prefixes together");
                let error = SyntaxError::new(0..name.text.len(), problem);
                let help = "name one file in one list, and use that list in several places";
                found.push(source.wrong(name, error.with_help(help)));
                break;
            }
            lists.named.insert(&name.text, prefixes);
        }
        lists.are_whole = found.count() == before;
        lists
    }

    /// The prefixes that `entries` name: addresses, prefixes, list files and named lists.
    pub(super) fn prefixes(&self, entries: &[Written], found: &mut Found) -> BTreeSet<IpNet> {
        self.prefixes_by(entries, found, parse_cidr)
    }

    /// The same, where an IPv6 address that is an entry by itself means its source.
    pub(super) fn sources(&self, entries: &[Written], ipv6_prefix: u8, found: &mut Found) -> BTreeSet<IpNet> {
        self.prefixes_by(entries, found, |text| parse_source(text, ipv6_prefix))
    }

    fn prefixes_by(
        &self,
        entries: &[Written],
        found: &mut Found,
        parse: impl Fn(&str) -> Result<IpNet, SyntaxError>,
    ) -> BTreeSet<IpNet> {
        let mut prefixes = BTreeSet::new();
        let mut seen = BTreeSet::new();
        for entry in entries.iter().filter(|entry| seen.insert(&entry.text)) {
            if let Some(name) = entry.text.strip_prefix(LIST_MARK) {
                prefixes.extend(found.keep(self.list(entry, name)).into_iter().flatten());
            } else if entry.text.starts_with(FILE_MARK) {
                prefixes.extend(found.keep(self.file(entry)).into_iter().flatten());
            } else {
                prefixes.extend(found.keep(self.source.read(entry, &parse)));
            }
        }
        if let Some(last) = entries.last() {
            found.keep(self.check_number(last, &prefixes));
        }
        prefixes
    }

    /// The named lists and how many prefixes each has, by name.
    pub(super) fn counts(&self) -> Vec<(String, usize)> {
        self.named.iter().map(|(name, prefixes)| ((*name).to_owned(), prefixes.len())).collect()
    }

    /// The prefixes of a list file, where it is one that was read.
    pub(super) fn known(&self, path: &Path) -> Option<Arc<[IpNet]>> {
        self.files.get(path)?.as_ref().ok().map(Arc::clone)
    }

    /// That the kernel has room for these. `last` is what is pointed at if not.
    pub(super) fn check_number(&self, last: &Written, prefixes: &BTreeSet<IpNet>) -> Result<(), Diagnostic> {
        if too_many_of(prefixes.iter()).is_none() {
            return Ok(());
        }
        let problem = format!("there are more than {PREFIXES_MAX} prefixes of one family");
        let error = SyntaxError::new(0..last.text.len(), problem);
        Err(self.source.wrong(last, error.with_help("join neighbouring prefixes into shorter ones")))
    }

    fn list(&self, entry: &Written, name: &str) -> Result<&BTreeSet<IpNet>, Diagnostic> {
        self.named.get(name).ok_or_else(|| {
            let error = SyntaxError::new(1..entry.text.len(), format!("there is no list `{name}`"));
            let help = match near_miss(name, self.named.keys().copied()) {
                Some(meant) => format!("did you mean `@{meant}`?"),
                None => format!("write it under [lists]: {name} = [\"192.0.2.0/24\"]"),
            };
            self.source.wrong(entry, error.with_help(help))
        })
    }

    fn file(&self, entry: &Written) -> Result<&[IpNet], Diagnostics> {
        let path = path(&entry.text, self.source).unwrap_or_default();
        let unreadable = |reason: &str| {
            let problem = format!("cannot read {}: {reason}", path.display());
            self.source.wrong(
                entry,
                SyntaxError::new(FILE_MARK.len()..entry.text.len(), problem)
                    .with_help("paths are relative to the directory of the configuration file"),
            )
        };
        match self.files.get(path.as_path()) {
            Some(Ok(prefixes)) => Ok(prefixes),
            Some(Err(Unread::Wrong(wrong))) => Err(wrong.clone()),
            Some(Err(Unread::Unreadable(reason))) => Err(unreadable(reason).into()),
            None => Err(unreadable("it was not looked for").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(contents: &str) -> Vec<String> {
        let prefixes = parse(Path::new("list"), contents).expect(contents);
        prefixes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn published_sets_load_as_they_are() {
        let drop = "; Spamhaus DROP List 2026/07/01\r\n; Expires: Wed\r\n1.10.16.0/20 ; SBL256894\r\n1.19.0.0/16 ; SBL434604\r\n";
        assert_eq!(parsed(drop), ["1.10.16.0/20", "1.19.0.0/16"]);
        let netset = "#\n# firehol_level1\n#\n0.0.0.0/8\n10.0.0.0/8\n192.0.2.1\n\n";
        assert_eq!(parsed(netset), ["0.0.0.0/8", "10.0.0.0/8", "192.0.2.1/32"]);
        let other = "\u{feff}2001:db8::/32# ours\n\t 192.0.2.7/24 partner, since May\n192.0.2.0/24;\n";
        assert_eq!(parsed(other), ["192.0.2.0/24", "2001:db8::/32"]);
        assert!(parsed("").is_empty());
    }

    #[test]
    fn an_error_in_a_list_file_names_file_line_and_column() {
        let error = parse(Path::new("drop.txt"), "# ok\n192.0.2.0/24\n  192.0.2.300 x\n").expect_err("no address");
        assert_eq!(error.first().problem, "bad line in a list file: this is no address, and no prefix");
        let Place::File { path, excerpt: Some(excerpt) } = &error.first().place else { panic!("not in the file") };
        assert_eq!((path.as_path(), excerpt.line, excerpt.column), (Path::new("drop.txt"), 3, 3));
        let error = parse(Path::new("drop.txt"), "192.0.2.0/24\n192.0.2.0/33\n").expect_err("no length");
        assert_eq!(
            error.to_string().split(" (").next(),
            Some("drop.txt:2:11: bad line in a list file: this is not a prefix length")
        );
    }

    #[test]
    fn as_many_entries_as_documented_and_no_more() {
        let lines = |count| (0..count).map(|at| format!("{}\n", std::net::Ipv4Addr::from_bits(at)));
        let both =
            |count| lines(count).chain((0..count).map(|at| format!("2001:db8::{:x}:{:x}\n", at >> 16, at & 0xffff)));
        assert_eq!(parsed(&both(1_048_576).collect::<String>()).len(), LIST_ENTRIES_MAX);
        let error = parse(Path::new("list"), &lines(2_097_153).collect::<String>()).expect_err("too many");
        assert!(error.first().problem.contains("more than 2097152 entries"), "{error}");
        let error = parse(Path::new("list"), &lines(1_048_577).collect::<String>()).expect_err("of one family");
        assert!(error.first().problem.contains("more than 1048576 prefixes of IPv4"), "{error}");
        assert_eq!(parse(Path::new("list"), &lines(1_048_576).collect::<String>()).unwrap().len(), 1_048_576);
    }

    #[test]
    fn a_file_of_another_kind_is_refused_at_once_however_long_it_is() {
        let began = std::time::Instant::now();
        for line in ["x\n", "{}\n", "{\"a\":1}\n", "192.0.2.1/33\n"] {
            let error = parse(Path::new("list"), &line.repeat((4 << 20) / line.len())).expect_err("no list");
            assert_eq!(error.iter().count(), 64, "{line:?}");
        }
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
    }

    #[test]
    fn a_line_of_json_has_a_bound_and_lone_carriage_returns_are_said() {
        let object = |zeros: usize| format!("{{\"a\":\"{}\",\"ip\":\"192.0.2.1\"}}\n", "0".repeat(zeros));
        assert_eq!(parse(Path::new("list"), &object(60_000)).unwrap().len(), 1);
        let error = parse(Path::new("list"), &object(70_000)).expect_err("too long");
        assert!(error.first().problem.contains("longer than 65536 bytes"), "{error}");
        for text in ["192.0.2.1\r192.0.2.2\r", "# of one\r192.0.2.1\r192.0.2.2"] {
            let error = parse(Path::new("list"), text).expect_err("one line");
            assert!(error.first().problem.contains("carriage return"), "{error}");
        }
        assert_eq!(parse(Path::new("list"), "192.0.2.1 # of one\r\n192.0.2.2\r\n").unwrap().len(), 2);
    }

    #[test]
    fn a_feed_may_be_as_long_as_a_list_file() {
        let script = include_str!("../../../dist/feeds/ratelimitd-feed");
        assert!(script.contains(&format!("--max-filesize {LIST_BYTES_MAX} ")), "{script}");
        // In blocks of 512 bytes, and room for the answer's head.
        let most: u64 = script.split_once("\nulimit -f ").unwrap().1.split('\n').next().unwrap().parse().unwrap();
        assert!(most * 512 > LIST_BYTES_MAX, "{most}");
    }

    #[test]
    fn lists_of_one_large_file_are_bounded_together() {
        let file: String = (0..131_072).map(|at| format!("{}\n", std::net::Ipv4Addr::from_bits(at))).collect();
        let load = |lists: usize| {
            let named: String = (0..lists).map(|at| format!("l{at:02} = \"file:x\"\n")).collect();
            let text = format!("interfaces = [\"eth0\"]\n[rule]\nlimits = [\"1/1s\"]\n[lists]\n{named}");
            crate::config::file::parse(Path::new("r.toml"), &text, |_| Ok(file.clone()))
        };
        assert!(load(16).is_ok());
        let error = load(17).expect_err("too many");
        let Place::File { excerpt: Some(excerpt), .. } = &error.first().place else { panic!("not in the file") };
        assert!(error.first().problem.contains("more than 2097152 prefixes together") && excerpt.line == 21, "{error}");
    }

    #[test]
    fn published_lists_read_as_they_are() {
        let read = |text: &str| {
            let prefixes = parse(Path::new("list"), text).map_err(|error| error.to_string())?;
            Ok::<_, String>(prefixes.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let spamhaus = "; a list, a date\n192.0.2.0/24 ; SBL1\n203.0.113.0/25 ; SBL2\n";
        assert_eq!(read(spamhaus).unwrap(), ["192.0.2.0/24", "203.0.113.0/25"]);
        let lines = "{\"cidr\":\"192.0.2.0/24\",\"sblid\":\"SBL1\",\"rir\":\"a # b\"}\r\n{\"cidr\": \"2001:db8::/32\" }\n\
            {\"type\":\"metadata\",\"timestamp\":1,\"records\":2}\n";
        assert_eq!(read(lines).unwrap(), ["192.0.2.0/24", "2001:db8::/32"]);
        let netset = "#\n# a_level1\n#\n192.0.2.1\n198.51.100.0/24\n";
        assert_eq!(read(netset).unwrap(), ["192.0.2.1/32", "198.51.100.0/24"]);
        assert_eq!(read("198.51.100.7\n2001:db8::7\n").unwrap(), ["198.51.100.7/32", "2001:db8::7/128"]);
        let abuse = "{\"ipAddress\":\"198.51.100.7\",\"abuseConfidenceScore\":100}\n{\"ip\":\"198.51.100.8\"}\n";
        assert_eq!(read(abuse).unwrap(), ["198.51.100.7/32", "198.51.100.8/32"]);
        for (text, said) in [
            ("{\"cidr\":\"192.0.2.0/24\"", "no JSON object"),
            ("{\"asn\":7}", "has no prefix"),
            ("{\"cidr\":7}", "has no prefix"),
            ("{\"cidr\":\"here\"}", "no address"),
            ("<html>", "no address"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(said) && !error.contains("here") && !error.contains("asn"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_wrong_in_a_list_file_is_said_without_its_text(
            before in "([0-9]{1,3}\n){0,3}",
            address in "(192\\.0\\.2\\.0/|2001:db8::/)?",
            secret in "[a-z:$./]{0,6}qzx[ -~]{0,40}",
        ) {
            let good = before.replace('\n', ".0.0.1\n");
            let contents = format!("{good}{address}{secret}\n");
            if let Err(error) = parse(Path::new("list"), &contents) {
                let shown = format!("{error} {error:?}");
                prop_assert!(!shown.contains("qzx"), "{shown}");
            }
        }

        #[test]
        fn no_list_file_panics(contents in "(\\PC|\n|\r|\t){0,60}|([0-9a-f.:/]{0,20}[ ;#\r]{0,2}\n){0,6}") {
            if let Ok(prefixes) = parse(Path::new("list"), &contents) {
                prop_assert!(prefixes.is_sorted());
                prop_assert!(prefixes.iter().all(|prefix| *prefix == prefix.trunc()));
            }
        }
    }
}
