//! The file that keeps how far each log was read.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::position::Position;

/// Largest file that is read or written, in bytes.
const BYTES_MAX: u64 = 1 << 20;
const VERSION: u32 = 1;
const MODE: u32 = 0o600;

/// Keeps positions in one JSON document, by the name of their log.
///
/// The caller writes the document after it charged the lines before the positions. After a kill in between, those lines
/// are read again; [`Reconciler`](crate::Reconciler) then matches them with their own charges. A kill during a write
/// leaves the former document.
#[derive(Clone, Debug)]
pub struct Positions {
    path: PathBuf,
}

/// Reason for which positions cannot be read or written.
#[derive(Debug, Error)]
pub enum PositionsError {
    /// The file or its directory cannot be read or written.
    #[error("{path}: {error}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The document is damaged, from another version, or longer than 1 MiB.
    #[error("{path} is damaged: {why}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Defect of the document.
        why: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    positions: BTreeMap<String, Position>,
}

impl Positions {
    /// Returns a keeper of the document at `path`. Touches no file.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Reads all positions. A file that does not exist holds none.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is damaged. The caller says so and goes on without positions.
    pub fn load(&self) -> Result<BTreeMap<String, Position>, PositionsError> {
        let mut text = Vec::new();
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY;
        match OpenOptions::new().read(true).custom_flags(flags.bits()).open(&self.path) {
            Ok(file) => file.take(BYTES_MAX + 1).read_to_end(&mut text).map_err(|error| self.failed(error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(error) => return Err(self.failed(error)),
        };
        let damaged = |why| PositionsError::Damaged { path: self.path.clone(), why };
        if text.len() as u64 > BYTES_MAX {
            return Err(damaged(format!("longer than {BYTES_MAX} bytes")));
        }
        let document: Document = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        if document.version != VERSION {
            return Err(damaged(format!("version {} instead of {VERSION}", document.version)));
        }
        Ok(document.positions)
    }

    /// Replaces the document: writes a new file beside it, synchronises and renames it.
    ///
    /// # Errors
    /// Fails if the file cannot be written, such as on a full disk. The former document then stays.
    pub fn save(&self, positions: BTreeMap<String, Position>) -> Result<(), PositionsError> {
        let mut new = self.path.clone().into_os_string();
        new.push(".new");
        let new = PathBuf::from(new);
        self.replace(&new, positions).map_err(|error| {
            // The unfinished file may be what fills the disk.
            fs::remove_file(&new).ok();
            self.failed(error)
        })
    }

    fn replace(&self, new: &Path, positions: BTreeMap<String, Position>) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(&Document { version: VERSION, positions })?;
        if text.len() as u64 > BYTES_MAX {
            return Err(io::Error::other(format!("longer than {BYTES_MAX} bytes")));
        }
        match fs::remove_file(new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(new)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(new, &self.path)?;
        // The rename is on the disk once the directory is.
        match self.path.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => File::open(directory)?.sync_all(),
            _ => Ok(()),
        }
    }

    fn failed(&self, error: io::Error) -> PositionsError {
        PositionsError::Io { path: self.path.clone(), error }
    }
}
