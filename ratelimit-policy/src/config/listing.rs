//! Places at which the prefixes of `allow` and `deny` are written: list, file, line and comment. Pure. The caller
//! reads list files again, because their comments are not kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use ipnet::IpNet;

use super::bogons;
use super::lists::{ListFile, ListSettings, lines, path, read_line};
use super::network::{parse_cidr, parse_source};
use super::syntax::{printable, shortened};
use super::written::{Origin, Source, Written};
use crate::desired::Grant;

/// Mark before the name of a named list.
const LIST_MARK: char = '@';

/// An entry of `allow` or `deny`, direct or through a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Exemption for `allow`, denial for `deny`.
    pub grant: Grant,
    /// Named list that contains the entry. The outermost one, if lists contain lists.
    pub list: Option<String>,
    /// List file or prefix that the entry names.
    pub names: Names,
}

/// List file or prefix that an entry names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// A list file, by path.
    File(PathBuf),
    /// A prefix, with its path and line in the configuration file, if there is one.
    Prefix(IpNet, Option<(PathBuf, usize)>),
}

/// Place at which a prefix is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenAt {
    /// Exemption for `allow`, denial for `deny`.
    pub grant: Grant,
    /// Named list that contains the prefix.
    pub list: Option<String>,
    /// List file or configuration file. None for a flag.
    pub file: Option<PathBuf>,
    /// Line in the file, from 1. None if the file has changed since it was read.
    pub line: Option<usize>,
    /// Comment next to the prefix in the list file.
    pub comment: Option<String>,
}

/// First place of each prefix, by prefix and grant.
pub type Places = BTreeMap<(IpNet, Grant), WrittenAt>;

/// Function that reads a list file's text.
pub type ReadList<'a> = &'a dyn Fn(&Path) -> Result<String, String>;

impl WrittenAt {
    /// Returns the instruction for removing a prefix from this place.
    pub fn edit(&self, prefix: &str) -> String {
        match &self.file {
            Some(file) => format!("take {prefix} out of {}{}", file.display(), self.line_words()),
            None => format!("start the daemon without {} {prefix}", self.flag()),
        }
    }

    /// Returns the name of the list, or of the file if there is no list.
    pub fn name(&self) -> Option<String> {
        let file = || self.file.as_ref().and_then(|file| file.file_name());
        self.list.clone().or_else(|| file().map(|name| printable(&name.to_string_lossy())))
    }

    const fn flag(&self) -> &'static str {
        match self.grant {
            Grant::Exempt => "--allow",
            Grant::Denied => "--deny",
        }
    }

    fn line_words(&self) -> String {
        self.line.map_or_else(String::new, |line| format!(" line {line}"))
    }
}

impl fmt::Display for WrittenAt {
    /// Writes the place: `list bad (/etc/ratelimitd/bad.txt line 7: SBL256894)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(file) = &self.file else { return f.write_str(self.flag()) };
        let comment = self.comment.as_ref().map_or_else(String::new, |comment| format!(": {comment}"));
        let place = format!("{}{}{comment}", file.display(), self.line_words());
        match &self.list {
            Some(list) => write!(f, "list {list} ({place})"),
            None => f.write_str(&place),
        }
    }
}

/// Returns the entries of `allow` and `deny` in order, then the denied bogons. Invalid entries are left out, because
/// reading the configuration reports them.
pub(super) fn listings(
    source: &Source,
    lists: &[ListSettings],
    access: [(Grant, &[Written]); 2],
    ipv6_prefix: u8,
    (asked, denied): (Option<&Written>, &[IpNet]),
) -> Vec<Listing> {
    let mut of = Listings { source, lists, newlines: newlines(source), found: Vec::new() };
    for (grant, entries) in access {
        let mut seen = BTreeSet::new();
        of.add(grant, None, entries, &mut seen, &|text| parse_source(text, ipv6_prefix).ok());
    }
    let place = asked.and_then(|asked| of.place(asked));
    of.found.extend(denied.iter().map(|prefix| Listing {
        grant: Grant::Denied,
        list: Some(bogons::LIST.to_owned()),
        names: Names::Prefix(*prefix, place.clone()),
    }));
    of.found
}

struct Listings<'a> {
    source: &'a Source,
    lists: &'a [ListSettings],
    newlines: Vec<usize>,
    found: Vec<Listing>,
}

impl<'a> Listings<'a> {
    /// Adds the entries, and those of the lists that they name. Each list is visited only once.
    fn add(
        &mut self,
        grant: Grant,
        list: Option<&str>,
        entries: &'a [Written],
        seen: &mut BTreeSet<&'a str>,
        parse: &dyn Fn(&str) -> Option<IpNet>,
    ) {
        for entry in entries {
            if let Some(name) = entry.text.strip_prefix(LIST_MARK) {
                let lists = self.lists;
                if let Some(named) = lists.iter().find(|of| of.name.text == name).filter(|_| seen.insert(name)) {
                    self.add(grant, list.or(Some(name)), &named.entries, seen, &|text| parse_cidr(text).ok());
                }
                continue;
            }
            let names = match path(&entry.text, self.source) {
                Some(path) => Some(Names::File(path)),
                None => parse(&entry.text).map(|prefix| Names::Prefix(prefix, self.place(entry))),
            };
            let list = list.map(str::to_owned);
            self.found.extend(names.map(|names| Listing { grant, list, names }));
        }
    }

    fn place(&self, entry: &Written) -> Option<(PathBuf, usize)> {
        match (&entry.origin, self.source) {
            (Origin::Key { span, .. }, Source::File { path, .. }) => {
                Some((path.clone(), self.newlines.partition_point(|at| *at < span.start) + 1))
            }
            (Origin::Key { .. } | Origin::Flag(_), _) => None,
        }
    }
}

fn newlines(source: &Source) -> Vec<usize> {
    match source {
        Source::File { contents, .. } => contents.match_indices('\n').map(|(at, _)| at).collect(),
        Source::CommandLine => Vec::new(),
    }
}

/// Returns every place at which a prefix is written with this grant. Only list files that contain it are read.
pub fn places_of(
    listings: &[Listing],
    files: &[ListFile],
    (prefix, grant): (IpNet, Grant),
    read: ReadList<'_>,
) -> Vec<WrittenAt> {
    let mut places = Vec::new();
    for listing in listings.iter().filter(|of| of.grant == grant) {
        match &listing.names {
            Names::Prefix(other, at) if *other == prefix => places.push(listing.at(at.clone())),
            Names::Prefix(..) => {}
            Names::File(path) if holds(files, path, prefix) => {
                let contents = read(path).unwrap_or_default();
                let line = commented(&contents).find(|(other, ..)| *other == prefix);
                places.push(listing.on(path, line.map(|(_, line, comment)| (line, comment))));
            }
            Names::File(_) => {}
        }
    }
    places
}

/// Returns the first place of each prefix. Reads every list file that `allow` and `deny` name.
pub fn places(listings: &[Listing], files: &[ListFile], read: ReadList<'_>) -> Places {
    let mut places = Places::new();
    for listing in listings {
        match &listing.names {
            Names::Prefix(prefix, at) => {
                places.entry((*prefix, listing.grant)).or_insert_with(|| listing.at(at.clone()));
            }
            Names::File(path) => {
                let contents = read(path).unwrap_or_default();
                for (prefix, line, comment) in commented(&contents) {
                    let at = places.entry((prefix, listing.grant));
                    at.or_insert_with(|| listing.on(path, Some((line, comment))));
                }
                let known = files.iter().filter(|file| file.path == *path).flat_map(|file| file.prefixes.iter());
                for prefix in known {
                    places.entry((*prefix, listing.grant)).or_insert_with(|| listing.on(path, None));
                }
            }
        }
    }
    places
}

impl Listing {
    fn at(&self, place: Option<(PathBuf, usize)>) -> WrittenAt {
        let (file, line) = place.unzip();
        WrittenAt { grant: self.grant, list: self.list.clone(), file, line, comment: None }
    }

    fn on(&self, file: &Path, line: Option<(usize, Option<String>)>) -> WrittenAt {
        let (line, comment) = line.unzip();
        let (list, file) = (self.list.clone(), Some(file.to_owned()));
        WrittenAt { grant: self.grant, list, file, line, comment: comment.flatten() }
    }
}

fn holds(files: &[ListFile], path: &Path, prefix: IpNet) -> bool {
    files.iter().any(|file| file.path == path && file.prefixes.binary_search(&prefix).is_ok())
}

/// Yields the prefixes of a list file, each with its line and comment. Invalid lines are skipped.
fn commented(contents: &str) -> impl Iterator<Item = (IpNet, usize, Option<String>)> {
    lines(contents).flat_map(|line| {
        let comment = (!line.comment.is_empty()).then(|| printable(&shortened(line.comment.to_owned())));
        let prefixes = read_line(line.text).unwrap_or_default();
        prefixes.into_iter().map(move |prefix| (prefix, line.number, comment.clone()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file;

    const FILE: &str = r#"interfaces = ["eth0"]
deny = ["@bad", "192.0.2.7", "fd88::5",
  "file:drop.txt"]
allow = ["@office"]
[lists]
a_set = ["203.0.113.0/24"]
bad = ["file:bad.txt", "@a_set"]
office = ["198.51.100.0/24"]
[rule]
limits = ["1/1s"]
"#;
    const BAD: &str = "; a feed\n1.10.16.0/20 ; SBL256894\n\n1.19.0.0/16 # a scan\u{7}ner\n";
    const DROP: &str = "# own\n1.10.16.0/20\n10.0.0.0/8 the old network\n";

    fn read(path: &Path) -> Result<String, String> {
        Ok(if path.ends_with("bad.txt") { BAD } else { DROP }.to_owned())
    }

    fn written(prefix: &str, grant: Grant) -> Vec<String> {
        let config = file::parse(Path::new("/etc/r.toml"), FILE, read).unwrap();
        let prefix = prefix.parse().unwrap();
        let places = places_of(&config.listings, &config.list_files, (prefix, grant), &read);
        let first = self::places(&config.listings, &config.list_files, &read).remove(&(prefix, grant));
        assert_eq!(first.as_ref(), places.first());
        places.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_prefix_is_found_where_it_is_written_with_its_comment() {
        let denied = |prefix: &str| written(prefix, Grant::Denied);
        assert_eq!(denied("1.10.16.0/20"), ["list bad (/etc/bad.txt line 2: SBL256894)", "/etc/drop.txt line 2"]);
        assert_eq!(denied("1.19.0.0/16"), ["list bad (/etc/bad.txt line 4: a scan\u{fffd}ner)"]);
        assert_eq!(denied("10.0.0.0/8"), ["/etc/drop.txt line 3: the old network"]);
        assert_eq!(denied("203.0.113.0/24"), ["list bad (/etc/r.toml line 6)"]);
        assert_eq!(denied("192.0.2.7/32"), ["/etc/r.toml line 2"]);
        assert_eq!(denied("fd88::/64"), ["/etc/r.toml line 2"], "an IPv6 address means its source");
        assert!(denied("198.51.100.0/24").is_empty());
        assert_eq!(written("198.51.100.0/24", Grant::Exempt), ["list office (/etc/r.toml line 8)"]);
    }

    #[test]
    fn a_file_that_has_lost_a_prefix_since_is_still_named() {
        let config = file::parse(Path::new("/etc/r.toml"), FILE, read).unwrap();
        let gone = |_: &Path| Err("gone".to_owned());
        let of = ("1.19.0.0/16".parse().unwrap(), Grant::Denied);
        let places = places_of(&config.listings, &config.list_files, of, &gone);
        assert_eq!(places[0].edit("1.19.0.0/16"), "take 1.19.0.0/16 out of /etc/bad.txt");
        assert_eq!(self::places(&config.listings, &config.list_files, &gone).get(&of), places.first());
    }
}
