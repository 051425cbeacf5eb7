//! One tar.gz of texts, written to a file that nobody else can read and that was not there.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

/// The directory that all of it is in.
const ROOT: &str = "ratelimitd-report";
/// For its owner alone.
const FILE_MODE: u32 = 0o600;

/// A text of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path in the archive.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// A report's texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    /// In the order that they are listed in.
    pub entries: Vec<Entry>,
}

/// Why it was not written.
#[derive(Debug)]
pub enum BundleError {
    /// There is such a file, and it stays.
    Exists(PathBuf),
    /// It cannot be written.
    Io(PathBuf, io::Error),
}

impl Bundle {
    /// Adds a text.
    pub fn add(&mut self, name: &str, text: impl Into<String>) {
        self.entries.push(Entry { name: name.to_owned(), text: text.into() });
    }

    /// Writes it to a file that is not there yet; its size in bytes.
    ///
    /// # Errors
    /// Where it is there, and where it cannot be written: then nothing is left.
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
            // Half a report is none; it was made here.
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
    fn what_is_packed_is_unpacked_again_and_a_file_that_is_there_stays() {
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
