//! Origin of the configuration, which decides whether it can be read again.

use std::fmt;
use std::path::{Path, PathBuf};

use super::list_start::Fallbacks;
use ratelimit_datapath::{Absent, path};
use ratelimit_policy::config::Config;
use ratelimit_policy::config::lists::KnownLists;

/// Configuration and the text that it was parsed from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Parsed configuration.
    pub config: Config,
    /// Whole text of the file.
    pub text: String,
}

type Load = Box<dyn Fn(&Path) -> anyhow::Result<Loaded> + Send>;
type Parse = Box<dyn Fn(&Path, &str, &KnownLists) -> anyhow::Result<Config> + Send>;
type Relist = Box<dyn Fn(&KnownLists) -> anyhow::Result<Config> + Send>;

/// Origin of the configuration, which decides whether it can be read again.
pub enum ConfigSource {
    /// Command line without list files. It never changes.
    Flags,
    /// Command line that names list files.
    FlagsWithLists(FlagsWithLists),
    /// Configuration file.
    File(ConfigFile),
}

/// Command line that names list files.
pub struct FlagsWithLists {
    /// Builds the configuration of the flags with the given list contents.
    pub(super) relist: Relist,
    /// Fallbacks for list files that the start could not take unchanged.
    pub(super) fallbacks: Fallbacks,
}

/// Configuration file and the functions that read it.
pub struct ConfigFile {
    /// Fallbacks for list files that the start could not take unchanged.
    pub(super) fallbacks: Fallbacks,
    pub(super) path: PathBuf,
    /// Text in force.
    pub(super) text: String,
    /// Path of the text in force. List files are relative to it.
    pub(super) text_path: PathBuf,
    pub(super) load: Load,
    pub(super) parse: Parse,
}

impl ConfigSource {
    /// Creates the source for the file at `path`, which held `text` at the start. `load` reads and parses a file.
    /// `parse` parses a text as if it stood at a path, and reads the list files with unknown contents. `fallbacks`
    /// are those of the start.
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

    /// Creates the source for flags that name list files. `relist` builds the configuration with given list contents.
    pub fn flags_with_lists(
        fallbacks: Fallbacks,
        relist: impl Fn(&KnownLists) -> anyhow::Result<Config> + Send + 'static,
    ) -> Self {
        Self::FlagsWithLists(FlagsWithLists { relist: Box::new(relist), fallbacks })
    }

    /// Takes the fallbacks of the start. Later calls return none.
    pub(super) fn take_fallbacks(&mut self) -> Fallbacks {
        match self {
            Self::Flags => Fallbacks::new(),
            Self::FlagsWithLists(flags) => std::mem::take(&mut flags.fallbacks),
            Self::File(file) => std::mem::take(&mut file.fallbacks),
        }
    }

    /// Returns the text in force. Empty for flags.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Flags | Self::FlagsWithLists(_) => "",
            Self::File(file) => &file.text,
        }
    }

    /// Returns the path of the text in force. Empty for flags.
    pub(super) fn text_path(&self) -> PathBuf {
        match self {
            Self::Flags | Self::FlagsWithLists(_) => PathBuf::new(),
            Self::File(file) => file.text_path.clone(),
        }
    }

    /// Records another text as in force.
    pub(super) fn set_text(&mut self, text: String, path: PathBuf) {
        match self {
            Self::Flags | Self::FlagsWithLists(_) => {}
            Self::File(file) => (file.text, file.text_path) = (text, path),
        }
    }

    /// Returns the function that formats interfaces in the syntax of the configuration.
    pub(super) const fn writes_interfaces(&self) -> fn(&[String]) -> String {
        match self {
            Self::Flags | Self::FlagsWithLists(_) => path::as_flags,
            Self::File(_) => path::as_key,
        }
    }

    /// Returns how to treat an absent interface at the start. A service, which runs from a file, waits for it.
    pub const fn absent(&self) -> Absent {
        match self {
            Self::Flags | Self::FlagsWithLists(_) => Absent::Refused,
            Self::File(_) => Absent::Awaited,
        }
    }

    /// Rebuilds the configuration in force with the given list contents. None if there are no list files.
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
