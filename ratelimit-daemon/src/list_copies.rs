//! Copies of the last good version of each list file, and the versions that an administrator accepted. Both are in
//! the state directory. A start uses a copy if the file cannot be read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::store::Store;
use ratelimit_policy::config::lists::{self, ListFile};

/// Name of the directory of copies within the state directory.
const DIRECTORY: &str = "lists";
/// Name of the file with accepted versions.
const ACCEPTED: &str = "accepted_lists.json";
/// Suffix of a copy's file name.
const SUFFIX: &str = ".list";
/// Start of the line with the digest of all following lines.
const DIGEST_MARK: &str = "# sha256 ";
/// Maximum number of remembered accepted versions. A configuration names at most 32 files.
const ACCEPTED_MAX: usize = 256;

/// Number of looks, two seconds apart, until a failed copy is written again.
const RETRY_LOOKS: u32 = 30;

/// Digests of accepted versions by path.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Accepted {
    lists: BTreeMap<PathBuf, String>,
}

/// Copies of this host's list files.
#[derive(Debug)]
pub(super) struct ListCopies {
    state: Store,
    copies: Store,
    /// Versions that this run has written, by path.
    kept: BTreeMap<PathBuf, Arc<[IpNet]>>,
    /// Reason for each failed copy, and the looks until its retry. Each reason is logged once.
    trouble: BTreeMap<PathBuf, (String, u32)>,
}

impl ListCopies {
    /// Opens the copies within the state directory.
    pub(super) fn of(state: &Store) -> Self {
        let copies = Store::at(state.path(DIRECTORY));
        Self { state: state.clone(), copies, kept: BTreeMap::new(), trouble: BTreeMap::new() }
    }

    /// Returns the last good version of a list file. None if there is no copy or the copy is damaged.
    pub(super) fn last_good(&self, path: &Path) -> Option<Arc<[IpNet]>> {
        let text = match self.copies.read_text(&name(path)) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!("the copy of list file {} is not used: {error}", path.display());
                return None;
            }
        };
        let entries = text.split_once(DIGEST_MARK).filter(|(head, _)| head.starts_with('#')).and_then(|(_, rest)| {
            let (said, entries) = rest.split_once('\n')?;
            (said == digest(entries)).then_some(entries)
        });
        let good = entries.and_then(|entries| lists::parse(path, entries).ok()).map(Arc::from);
        if good.is_none() {
            tracing::warn!("the copy of list file {} is damaged and not used", path.display());
        }
        good
    }

    /// Writes copies of versions that are not saved yet. A failure is logged and retried later.
    pub(super) fn keep<'a>(&mut self, files: impl Iterator<Item = &'a ListFile>) {
        for file in files {
            if self.kept.get(&file.path).is_some_and(|kept| Arc::ptr_eq(kept, &file.prefixes)) {
                continue;
            }
            if let Some((_, looks)) = self.trouble.get_mut(&file.path).filter(|(_, looks)| *looks > 0) {
                *looks -= 1;
                continue;
            }
            match self.write(file) {
                Ok(()) => {
                    self.kept.insert(file.path.clone(), Arc::clone(&file.prefixes));
                    self.trouble.remove(&file.path);
                }
                Err(error) => {
                    let why = format!("{}: its copy cannot be written: {error}", file.path.display());
                    let again = (why.clone(), RETRY_LOOKS);
                    if self.trouble.insert(file.path.clone(), again).is_none_or(|(before, _)| before != why) {
                        tracing::warn!("{why}");
                    }
                }
            }
        }
    }

    /// Returns the reason of the first copy that could not be written.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.values().next().map(|(why, _)| why.as_str())
    }

    fn write(&self, file: &ListFile) -> std::io::Result<()> {
        let entries = text(&file.prefixes);
        let path = file.path.display().to_string().replace(['\n', '\r'], "?").replace(DIGEST_MARK, "?");
        let whole = format!(
            "# Last good version of {path}, written by ratelimitd.\n{DIGEST_MARK}{}\n{entries}",
            digest(&entries)
        );
        if self.copies.read_text(&name(&file.path)).is_ok_and(|kept| kept == whole) {
            return Ok(());
        }
        self.copies.save_text(&name(&file.path), whole.as_bytes())
    }

    /// Removes the copies of all other files.
    pub(super) fn retain(&mut self, files: &[ListFile]) {
        let named: BTreeSet<String> = files.iter().map(|file| name(&file.path)).collect();
        self.kept.retain(|path, _| named.contains(&name(path)));
        let Ok(entries) = fs::read_dir(self.copies.path("")) else { return };
        for entry in entries.flatten() {
            let other = entry.file_name().to_string_lossy().into_owned();
            if other.ends_with(SUFFIX) && !named.contains(&other) {
                self.copies.remove(&other);
            }
        }
    }

    /// Returns true if an administrator accepted this exact version.
    pub(super) fn is_accepted(&self, path: &Path, prefixes: &[IpNet]) -> bool {
        let accepted = self.state.read::<Accepted>(ACCEPTED).unwrap_or_default();
        accepted.lists.get(path).is_some_and(|accepted| *accepted == digest(&text(prefixes)))
    }

    /// Remembers a version as accepted.
    pub(super) fn accept(&self, path: &Path, prefixes: &[IpNet]) -> std::io::Result<()> {
        let mut accepted = self.state.read::<Accepted>(ACCEPTED).unwrap_or_default();
        while accepted.lists.len() >= ACCEPTED_MAX && !accepted.lists.contains_key(path) {
            accepted.lists.pop_first();
        }
        accepted.lists.insert(path.to_owned(), digest(&text(prefixes)));
        self.state.save(ACCEPTED, accepted)
    }
}

/// Returns the name of a version of a list file: 12 hexadecimal digits. An administrator accepts exactly this version
/// by it.
pub(super) fn version(prefixes: &[IpNet]) -> String {
    digest(&text(prefixes)).chars().take(12).collect()
}

fn text(prefixes: &[IpNet]) -> String {
    prefixes.iter().fold(String::new(), |text, prefix| text + &prefix.to_string() + "\n")
}

fn name(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let digest = hex(&Sha256::digest(path.as_os_str().as_bytes()));
    format!("{}{SUFFIX}", digest.get(..32).unwrap_or(&digest))
}

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _always_written = write!(text, "{byte:02x}");
        text
    })
}
