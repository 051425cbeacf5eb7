//! Where the configuration comes from, and so whether it can be read anew.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::config::Config;

/// A configuration, and the text that it was parsed from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it means.
    pub config: Config,
    /// All of the file.
    pub text: String,
}

type Load = Box<dyn Fn(&Path) -> anyhow::Result<Loaded> + Send>;
type Parse = Box<dyn Fn(&Path, &str) -> anyhow::Result<Config> + Send>;

/// Where the configuration came from, and so whether it can be read anew.
pub enum ConfigSource {
    /// The command line: it stays as it is.
    Flags,
    /// A file.
    File(ConfigFile),
}

/// A configuration file, and what reads it.
pub struct ConfigFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
    pub(super) load: Load,
    pub(super) parse: Parse,
}

impl ConfigSource {
    /// The file at `path`, which said `text` at the start. `load` reads and parses one; `parse` parses a text that once stood
    /// in the file at a path.
    pub fn file(
        path: PathBuf,
        text: String,
        load: impl Fn(&Path) -> anyhow::Result<Loaded> + Send + 'static,
        parse: impl Fn(&Path, &str) -> anyhow::Result<Config> + Send + 'static,
    ) -> Self {
        Self::File(ConfigFile { path, text, load: Box::new(load), parse: Box::new(parse) })
    }
}

impl fmt::Debug for ConfigSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flags => out.write_str("Flags"),
            Self::File(file) => out.debug_tuple("File").field(&file.path).finish(),
        }
    }
}
