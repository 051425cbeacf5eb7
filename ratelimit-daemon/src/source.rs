//! Where the configuration comes from, and so whether it can be read anew.

use std::fmt;
use std::path::{Path, PathBuf};

use super::list_start::Fallbacks;
use ratelimit_datapath::{Absent, path};
use ratelimit_policy::config::Config;
use ratelimit_policy::config::lists::KnownLists;

/// A configuration, and the text that it was parsed from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it means.
    pub config: Config,
    /// All of the file.
    pub text: String,
}

type Load = Box<dyn Fn(&Path) -> anyhow::Result<Loaded> + Send>;
type Parse = Box<dyn Fn(&Path, &str, &KnownLists) -> anyhow::Result<Config> + Send>;
type Relist = Box<dyn Fn(&KnownLists) -> anyhow::Result<Config> + Send>;

/// Where the configuration came from, and so whether it can be read anew.
pub enum ConfigSource {
    /// The command line: it stays as it is.
    Flags,
    /// The same, which names list files.
    FlagsWithLists(FlagsWithLists),
    /// A file.
    File(ConfigFile),
}

/// Flags that name list files.
pub struct FlagsWithLists {
    /// What the flags mean with these in the list files.
    pub(super) relist: Relist,
    /// List files that the start could not take as they stood.
    pub(super) fallbacks: Fallbacks,
}

/// A configuration file, and what reads it.
pub struct ConfigFile {
    /// List files that the start could not take as they stood.
    pub(super) fallbacks: Fallbacks,
    pub(super) path: PathBuf,
    /// What is in force.
    pub(super) text: String,
    /// Where that stood: list files are relative to it.
    pub(super) text_path: PathBuf,
    pub(super) load: Load,
    pub(super) parse: Parse,
}

impl ConfigSource {
    /// The file at `path`, which said `text` at the start. `load` reads and parses one; `parse` parses a text that once stood
    /// in the file at a path, and reads the list files that are not known. `fallbacks` are those of the start.
    pub fn file(
        path: PathBuf,
        text: String,
        fallbacks: Fallbacks,
        load: impl Fn(&Path) -> anyhow::Result<Loaded> + Send + 'static,
        parse: impl Fn(&Path, &str, &KnownLists) -> anyhow::Result<Config> + Send + 'static,
    ) -> Self {
        let text_path = path.clone();
        Self::File(ConfigFile { fallbacks, path, text, text_path, load: Box::new(load), parse: Box::new(parse) })
    }

    /// Flags that name list files. `relist` says what they mean with others in them.
    pub fn flags_with_lists(
        fallbacks: Fallbacks,
        relist: impl Fn(&KnownLists) -> anyhow::Result<Config> + Send + 'static,
    ) -> Self {
        Self::FlagsWithLists(FlagsWithLists { relist: Box::new(relist), fallbacks })
    }

    /// The list files that the start could not take as they stood. Taken once.
    pub(super) fn take_fallbacks(&mut self) -> Fallbacks {
        match self {
            Self::Flags => Fallbacks::new(),
            Self::FlagsWithLists(flags) => std::mem::take(&mut flags.fallbacks),
            Self::File(file) => std::mem::take(&mut file.fallbacks),
        }
    }

    /// The text that is in force; flags have none.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Flags | Self::FlagsWithLists(_) => "",
            Self::File(file) => &file.text,
        }
    }

    /// Where that stood.
    pub(super) fn text_path(&self) -> PathBuf {
        match self {
            Self::Flags | Self::FlagsWithLists(_) => PathBuf::new(),
            Self::File(file) => file.text_path.clone(),
        }
    }

    /// Another text is in force.
    pub(super) fn set_text(&mut self, text: String, path: PathBuf) {
        match self {
            Self::Flags | Self::FlagsWithLists(_) => {}
            Self::File(file) => (file.text, file.text_path) = (text, path),
        }
    }

    /// Returns what writes interfaces where the configuration has them.
    pub(super) const fn writes_interfaces(&self) -> fn(&[String]) -> String {
        match self {
            Self::Flags | Self::FlagsWithLists(_) => path::as_flags,
            Self::File(_) => path::as_key,
        }
    }

    /// Whether a start waits for an interface that is not there: a service does, which runs by a file.
    pub const fn absent(&self) -> Absent {
        match self {
            Self::Flags | Self::FlagsWithLists(_) => Absent::Refused,
            Self::File(_) => Absent::Awaited,
        }
    }

    /// What is in force, with these in its list files.
    pub(super) fn with_lists(&self, known: &KnownLists) -> Option<anyhow::Result<Config>> {
        match self {
            Self::Flags => None,
            Self::FlagsWithLists(flags) => Some((flags.relist)(known)),
            Self::File(file) => Some((file.parse)(&file.text_path, &file.text, known)),
        }
    }
}

impl fmt::Debug for ConfigSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flags | Self::FlagsWithLists(_) => out.write_str("Flags"),
            Self::File(file) => out.debug_tuple("File").field(&file.path).finish(),
        }
    }
}
