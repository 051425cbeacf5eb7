//! A tar.gz archive of texts, written to a new file that only its owner can read.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

/// Directory in the archive that contains all texts.
const ROOT: &str = "ratelimitd-report";
/// Mode of the file: only its owner may use it.
const FILE_MODE: u32 = 0o600;

/// One text of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Path in the archive.
    pub name: String,
    /// Content of the text.
    pub text: String,
}

/// The texts of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    /// The texts, in the order in which they are listed.
    pub entries: Vec<Entry>,
}

/// Reason why a report was not written.
#[derive(Debug)]
pub enum BundleError {
    /// The file exists already, and is left as it is.
    Exists(PathBuf),
    /// The file cannot be written.
    Io(PathBuf, io::Error),
}

impl Bundle {
    /// Adds a text with this path in the archive.
    pub fn add(&mut self, name: &str, text: impl Into<String>) {
        self.entries.push(Entry { name: name.to_owned(), text: text.into() });
    }

    /// Writes the archive to a new file. Returns its size in bytes. `seconds` is the Unix time of all entries.
    ///
    /// # Errors
    /// Fails if the file exists, or if it cannot be written. No file is left in the second case.
    pub fn write(&self, path: &Path, seconds: u64) -> Result<u64, BundleError> {
        let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path);
        let file = file.map_err(|error| {
            if error.kind() == ErrorKind::AlreadyExists {
                BundleError::Exists(path.to_owned())
            } else {
                BundleError::Io(path.to_owned(), error)
            }
        })?;
        self.pack(&file, seconds).and_then(|()| Ok(file.metadata()?.len())).map_err(|error| {
            // A partial report is useless, and this call created the file.
            let _gone = std::fs::remove_file(path);
            BundleError::Io(path.to_owned(), error)
        })
    }

    fn pack(&self, file: &File, seconds: u64) -> io::Result<()> {
        let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        for entry in &self.entries {
            let mut header = tar::Header::new_gnu();
            header.set_size(u64::try_from(entry.text.len()).map_err(io::Error::other)?);
            header.set_mode(FILE_MODE);
            header.set_mtime(seconds);
            archive.append_data(&mut header, format!("{ROOT}/{}", entry.name), entry.text.as_bytes())?;
        }
        archive.into_inner()?.finish()?.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn a_bundle_unpacks_to_its_entries_and_never_overwrites_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.tar.gz");
        let mut bundle = Bundle::default();
        bundle.add("doctor.txt", "all well\n");
        bundle.add("config/ratelimitd.toml", "x".repeat(100_000));
        let size = bundle.write(&path, 1_700_000_000).unwrap();
        assert!((100..10_000).contains(&size), "{size}");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut archive = tar::Archive::new(GzDecoder::new(File::open(&path).unwrap()));
        let unpacked: Vec<Entry> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                let (name, mut text) = (entry.path().unwrap().display().to_string(), String::new());
                entry.read_to_string(&mut text).unwrap();
                Entry { name: name.strip_prefix("ratelimitd-report/").unwrap().to_owned(), text }
            })
            .collect();
        assert_eq!(unpacked, bundle.entries);
        assert!(matches!(bundle.write(&path, 0), Err(BundleError::Exists(_))));
        let link = dir.path().join("link");
        symlink(dir.path().join("elsewhere"), &link).unwrap();
        assert!(matches!(bundle.write(&link, 0), Err(BundleError::Exists(_))), "nor through a link");
        assert!(matches!(bundle.write(&dir.path().join("none/x"), 0), Err(BundleError::Io(..))));
    }
}
