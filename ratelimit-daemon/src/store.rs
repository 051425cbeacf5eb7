//! State files that survive the daemon, with changes that commands made. They are versioned JSON and are replaced
//! atomically.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use ratelimit_crash::{Point, reach};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use ratelimit_policy::files;

/// Default state directory, unless [`DIRECTORY_VARIABLE`] names another.
const DIRECTORY: &str = "/var/lib/ratelimitd";
/// Environment variable for the state directory, for tests and for several daemons on one host.
const DIRECTORY_VARIABLE: &str = "RATELIMITD_STATE_DIR";
/// Format version of every file.
const VERSION: u32 = 1;
/// Maximum size of a file in bytes. A trial that records the kernel's full capacity of prefixes twice needs half of
/// it.
const BYTES_MAX: u64 = 64 << 20;
/// Mode of files, independent of the umask. Whoever can write them decides what is allowed, so only root may.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Returns the directory of this host's state.
pub fn state_directory() -> PathBuf {
    Store::of_host().directory
}

/// Directory of small state files.
#[derive(Clone, Debug)]
pub(super) struct Store {
    directory: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    contents: T,
}

impl Store {
    /// Opens this host's state directory.
    pub(super) fn of_host() -> Self {
        let directory = std::env::var_os(DIRECTORY_VARIABLE).filter(|path| !path.is_empty());
        Self::at(directory.map_or_else(|| PathBuf::from(DIRECTORY), PathBuf::from))
    }

    /// Opens a state directory, which is created on the first write.
    pub(super) const fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Returns the path of a file.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Loads a file. A file that cannot be parsed is renamed with a warning and counts as missing.
    pub(super) fn load<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let path = self.path(name);
        // A killed process may have left an unfinished file.
        discard(&self.path(&unfinished(name)));
        let bytes = match files::read_own(&path, BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!("read {}: {error}; the file is ignored", path.display());
                return None;
            }
        };
        match understood(&bytes) {
            Ok(contents) => Some(contents),
            Err(why) => {
                set_aside(&path, &why);
                None
            }
        }
    }

    /// Reads a file. Fails if the file cannot be read or parsed.
    pub(super) fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<T> {
        understood(&files::read_own(&self.path(name), BYTES_MAX)?).map_err(io::Error::other)
    }

    /// Reads the text of a file that [`Self::save_text`] wrote.
    pub(super) fn read_text(&self, name: &str) -> io::Result<String> {
        String::from_utf8(files::read_own(&self.path(name), BYTES_MAX)?).map_err(io::Error::other)
    }

    /// Writes a file atomically: after a crash, the old or the new content is there.
    pub(super) fn save<T: Serialize>(&self, name: &str, contents: T) -> io::Result<()> {
        self.save_text(name, &serde_json::to_vec_pretty(&Versioned { version: VERSION, contents })?)
    }

    /// Writes a text verbatim and atomically.
    pub(super) fn save_text(&self, name: &str, text: &[u8]) -> io::Result<()> {
        let path = self.path(name);
        let new = self.path(&unfinished(name));
        let write = || {
            if text.len() as u64 > BYTES_MAX {
                return Err(io::Error::other(format!("it would be longer than {BYTES_MAX} bytes")));
            }
            DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(&self.directory)?;
            remove_if_there(&new)?;
            let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&new)?;
            file.write_all(text)?;
            reach(Point::StoreWritten);
            file.sync_all()?;
            reach(Point::StoreSynced);
            fs::rename(&new, &path)?;
            reach(Point::StoreRenamed);
            // The rename is on disk once the directory is synced.
            File::open(&self.directory)?.sync_all()?;
            reach(Point::StoreSaved);
            Ok(())
        };
        write().map_err(|error: io::Error| {
            // The unfinished file may be what fills the disk.
            discard(&new);
            io::Error::new(error.kind(), format!("write {}: {error}", path.display()))
        })
    }

    /// Removes a file. A missing file is not an error.
    pub(super) fn remove(&self, name: &str) {
        discard(&self.path(name));
        reach(Point::StoreRemoved);
    }
}

/// Returns the name under which a file is written before it is renamed.
fn unfinished(name: &str) -> String {
    format!("{name}.new")
}

fn discard(path: &Path) {
    if let Err(error) = remove_if_there(path) {
        tracing::warn!("remove {}: {error}", path.display());
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn understood<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match value.get("version").and_then(serde_json::Value::as_u64) {
        Some(version) if version == u64::from(VERSION) => {}
        Some(version) => return Err(format!("it is of version {version}, and this program writes {VERSION}")),
        None => return Err("it has no version".to_owned()),
    }
    serde_json::from_value(value).map_err(|error| error.to_string())
}

fn set_aside(path: &Path, why: &str) {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".broken");
    let aside = PathBuf::from(aside);
    match fs::rename(path, &aside) {
        Ok(()) => tracing::warn!("{}: {why}; the file is ignored and now called {}", path.display(), aside.display()),
        Err(error) => tracing::warn!("{}: {why}; the file is ignored; rename it: {error}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Words {
        words: Vec<String>,
    }

    #[test]
    fn saved_values_load_again_and_no_other_file_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().join("made/on/demand"));
        assert_eq!(store.load::<Words>("a.json"), None);
        let words = Words { words: vec!["one".into()] };
        store.save("a.json", &words).unwrap();
        store.save("a.json", &words).unwrap();
        assert_eq!(store.load("a.json"), Some(words));
        assert_eq!(fs::read_dir(directory.path().join("made/on/demand")).unwrap().count(), 1);
        store.remove("a.json");
        store.remove("a.json");
        assert_eq!(store.load::<Words>("a.json"), None);
    }

    #[test]
    fn a_half_written_file_is_removed_and_the_previous_one_holds() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().to_owned());
        let words = Words { words: vec!["one".into()] };
        store.save("a.json", &words).unwrap();
        fs::write(directory.path().join("a.json.new"), "{\"version\": 1, \"wor").unwrap();
        assert_eq!(store.load("a.json"), Some(words));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_broken_file_is_set_aside() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().to_owned());
        for broken in
            ["", "{", "[]", r#"{"words": []}"#, r#"{"version": 2, "words": []}"#, r#"{"version": 1, "words": 3}"#]
        {
            fs::write(directory.path().join("a.json"), broken).unwrap();
            assert_eq!(store.load::<Words>("a.json"), None, "{broken}");
            assert_eq!(fs::read_to_string(directory.path().join("a.json.broken")).unwrap(), broken);
            assert!(!directory.path().join("a.json").exists());
        }
    }

    #[test]
    fn a_file_that_is_none_or_too_long_is_left_where_it_is_and_counts_as_none() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().to_owned());
        let path = directory.path().join("a.json");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(store.load::<Words>("a.json"), None, "and a pipe is not waited for");
        assert!(path.exists());
        std::fs::remove_file(&path).unwrap();
        let elsewhere = directory.path().join("elsewhere");
        store.save("elsewhere", Words { words: vec!["one".into()] }).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert_eq!(store.load::<Words>("a.json"), None);
        store.save("a.json", Words { words: vec![] }).unwrap();
        assert_eq!(
            store.load("elsewhere"),
            Some(Words { words: vec!["one".into()] }),
            "nothing is written through a link"
        );
        assert_eq!(store.load("a.json"), Some(Words { words: vec![] }));
        File::options().write(true).open(&path).unwrap().set_len(BYTES_MAX + 1).unwrap();
        assert_eq!(store.load::<Words>("a.json"), None);
    }

    #[test]
    fn files_are_written_for_the_owner_only_and_never_through_a_link() {
        use std::os::unix::fs::MetadataExt as _;
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().join("state"));
        store.save("a.json", Words { words: vec![] }).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&store.path("")), mode(&store.path("a.json"))), (0o700, 0o600));
        let target = directory.path().join("target");
        fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, store.path("a.json.new")).unwrap();
        store.save("a.json", Words { words: vec!["two".into()] }).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
        assert_eq!(store.load("a.json"), Some(Words { words: vec!["two".into()] }));
    }

    #[test]
    fn a_write_failure_names_the_file() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "").unwrap();
        let error = Store::at(directory.path().join("file")).save("a.json", Words { words: vec![] }).unwrap_err();
        assert!(error.to_string().starts_with("write ") && error.to_string().contains("file/a.json"), "{error}");
    }
}
