//! Lists of prefixes: list files, named lists, and the entries of `from`, `allow` and `deny`. Pure: the caller reads
//! the files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use ratelimit_common::layout::PREFIXES_MAX;

use super::network::{parse_cidr, parse_source};
use super::rule::check_name;
use super::syntax::{SyntaxError, near_miss};
use super::written::{Source, Written};
use crate::diagnostic::{Diagnostic, Diagnostics, Found};

pub mod bounds;
mod entry;
mod json;
mod kind;
mod published;
mod reading;

pub(super) use entry::read as read_line;
pub use json::prefix_text;
pub(super) use reading::lines;
pub use reading::{LEFT_OUT_PERCENT, Tolerated, parse, parse_tolerant};

/// Maximum number of entries in a list file: the kernel's capacity for both families. // 2097152 x 18 B = 38 MB
pub const LIST_ENTRIES_MAX: usize = 2 * PREFIXES_MAX as usize;
/// Maximum length of an unpacked list file in bytes. It allows [`LIST_ENTRIES_MAX`] usual prefixes, each with a
/// comment.
pub const LIST_BYTES_MAX: u64 = 64 << 20;
/// Maximum length of all list files together, in bytes.
pub const LISTS_BYTES_MAX: u64 = 256 << 20;
/// Maximum number of list files in a configuration.
pub const LIST_FILES_MAX: usize = 32;

/// Maximum number of prefixes in all named lists together. Duplicates in several lists count. // 2097152 x 30 B = 63
/// MB
pub const LISTED_MAX: usize = 1 << 21;

/// Mark before the path of a list file.
const FILE_MARK: &str = "file:";
/// Mark before the name of a named list.
const LIST_MARK: char = '@';

/// List files by path, as [`path`] returns it.
pub type ListFiles = BTreeMap<PathBuf, Named>;

/// Already known prefixes of list files, by path: sorted, without duplicates.
pub type KnownLists = BTreeMap<PathBuf, Arc<[IpNet]>>;

/// A list file that a configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Owner of the first entry that names the file: `list partners`, `deny`.
    pub by: String,
    /// Contents of the file.
    pub contents: Contents,
}

/// Contents of a list file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Text of the file, or the reason why it cannot be read.
    Read(Result<String, String>),
    /// Prefixes from an earlier reading of the file. Empty if a start left the list out.
    Known(Arc<[IpNet]>),
}

/// A list file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Owner of the first entry that names the file: [`Named::by`].
    pub named_by: String,
    /// Prefixes of the file: sorted, without duplicates.
    pub prefixes: Arc<[IpNet]>,
}

/// Returns warnings for list files that users other than their owner may replace. Such a user decides which sources
/// are allowed or denied.
pub fn written_by_others(files: &[ListFile]) -> Vec<String> {
    let of = |file: &ListFile| {
        let why = crate::files::others_may_write(&file.path)?;
        Some(format!("{} ({}): {why}", file.named_by, file.path.display()))
    };
    files.iter().filter_map(of).collect()
}

/// A named list, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListSettings {
    /// Name of the list, without the `@`.
    pub name: Written,
    /// Entries of the list: prefixes, list files and other lists.
    pub entries: Vec<Written>,
}

/// Returns the path of the list file that `entry` names. None if it names none. Relative paths start at the
/// configuration's directory.
pub fn path(entry: &str, source: &Source) -> Option<PathBuf> {
    let name = Path::new(entry.strip_prefix(FILE_MARK)?);
    Some(match source {
        Source::File { path, .. } => path.parent().unwrap_or(Path::new("")).join(name),
        Source::CommandLine => name.to_owned(),
    })
}

/// Returns the family with more prefixes than the kernel can hold.
fn too_many_of<'a>(prefixes: impl ExactSizeIterator<Item = &'a IpNet>) -> Option<&'static str> {
    let all = prefixes.len();
    let ipv4 = prefixes.filter(|prefix| prefix.addr().is_ipv4()).count();
    let is_too_many = |count: usize| count > PREFIXES_MAX as usize;
    if is_too_many(ipv4) { Some("IPv4") } else { is_too_many(all - ipv4).then_some("IPv6") }
}

/// Named lists and list files of a configuration, with their prefixes.
#[derive(Debug)]
pub(super) struct Lists<'a> {
    source: &'a Source,
    named: BTreeMap<&'a str, BTreeSet<IpNet>>,
    files: BTreeMap<&'a Path, Result<Arc<[IpNet]>, Unread<'a>>>,
    /// Set if all named lists are valid.
    pub(super) are_whole: bool,
    /// List files that a start left out.
    left_out: BTreeSet<&'a Path>,
    /// Named lists with an entry that a start left out.
    left_out_named: BTreeSet<&'a str>,
}

#[derive(Debug)]
enum Unread<'a> {
    /// The file cannot be read, for this reason.
    Unreadable(&'a str),
    /// The file has these errors.
    Wrong(Diagnostics),
}

impl<'a> Lists<'a> {
    pub(super) fn new(source: &'a Source, named: &'a [ListSettings], files: &'a ListFiles, found: &mut Found) -> Self {
        let is_left_out = |named: &Named| matches!(&named.contents, Contents::Known(of) if of.is_empty());
        let left_out = files.iter().filter(|(_, named)| is_left_out(named)).map(|(path, _)| path.as_path()).collect();
        let parsed = |path: &Path, contents: &'a Contents| match contents {
            Contents::Known(prefixes) => Ok(Arc::clone(prefixes)),
            Contents::Read(Ok(contents)) => parse(path, contents).map(Arc::from).map_err(Unread::Wrong),
            Contents::Read(Err(reason)) => Err(Unread::Unreadable(reason)),
        };
        let files = files.iter().map(|(path, named)| (path.as_path(), parsed(path, &named.contents))).collect();
        let left_out_named = BTreeSet::new();
        let mut lists = Self { source, named: BTreeMap::new(), files, are_whole: true, left_out, left_out_named };
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
            if lists.have_left_out(entries) {
                lists.left_out_named.insert(&name.text);
            }
            lists.named.insert(&name.text, prefixes);
        }
        lists.are_whole = found.count() == before;
        lists
    }

    /// Returns the prefixes that `entries` name: addresses, prefixes, list files and named lists.
    pub(super) fn prefixes(&self, entries: &[Written], found: &mut Found) -> BTreeSet<IpNet> {
        self.prefixes_by(entries, found, parse_cidr)
    }

    /// Returns the prefixes that `entries` name. A plain IPv6 address stands for its source.
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

    /// Returns the named lists with their number of prefixes, by name.
    pub(super) fn counts(&self) -> Vec<(String, usize)> {
        self.named.iter().map(|(name, prefixes)| ((*name).to_owned(), prefixes.len())).collect()
    }

    /// Returns true if an entry names a list file that a start left out, directly or through a named list.
    pub(super) fn have_left_out(&self, entries: &[Written]) -> bool {
        entries.iter().any(|entry| match entry.text.strip_prefix(LIST_MARK) {
            Some(name) => self.left_out_named.contains(name),
            None => path(&entry.text, self.source).is_some_and(|path| self.left_out.contains(path.as_path())),
        })
    }

    /// Returns the prefixes of a list file. None if it was not read.
    pub(super) fn known(&self, path: &Path) -> Option<Arc<[IpNet]>> {
        self.files.get(path)?.as_ref().ok().map(Arc::clone)
    }

    /// Checks that the kernel can hold these prefixes. An error points to `last`.
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
            None => Err(unreadable("it was not read").into()),
        }
    }
}

#[cfg(test)]
mod tests;
