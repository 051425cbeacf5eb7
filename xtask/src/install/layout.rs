//! Paths of the installed files. systemd, man and the shells search /usr/local like /usr.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Directories below a prefix.
pub(crate) struct Layout {
    prefix: PathBuf,
    /// Directory of additional zsh functions, below `share/zsh`.
    zsh: &'static str,
}

/// File to install, with its path in the running system.
#[derive(Clone)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) mode: u32,
    pub(crate) content: Vec<u8>,
    /// True if an existing file belongs to the user and is kept.
    pub(crate) is_kept: bool,
}

impl Layout {
    pub(crate) fn below(prefix: &Path) -> Self {
        Self { prefix: prefix.to_owned(), zsh: "site-functions" }
    }

    /// Returns the layout of Debian packages.
    pub(crate) fn debian() -> Self {
        Self { prefix: "/usr".into(), zsh: "vendor-completions" }
    }

    pub(crate) fn bin_dir(&self) -> PathBuf {
        self.prefix.join("bin")
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.bin_dir().join("ratelimitd")
    }

    pub(crate) fn unit(&self) -> PathBuf {
        self.prefix.join("lib/systemd/system/ratelimitd.service")
    }

    /// Returns the path of a unit other than the daemon's.
    pub(crate) fn other_unit(&self, name: &str) -> PathBuf {
        self.prefix.join("lib/systemd/system").join(name)
    }

    /// Returns the directory of programs that only units run.
    pub(crate) fn libexec_dir(&self) -> PathBuf {
        self.prefix.join("libexec/ratelimitd")
    }

    pub(crate) fn sysusers(&self) -> PathBuf {
        self.prefix.join("lib/sysusers.d/ratelimitd.conf")
    }

    /// Returns the path of the configuration. It is independent of the prefix, because the unit names it.
    pub(crate) fn config(&self) -> PathBuf {
        PathBuf::from("/etc/ratelimitd/ratelimitd.toml")
    }

    /// Returns the path of a manual page. Its section is the end of its name: `ratelimitd.toml.5` is in section 5.
    pub(crate) fn man_page(&self, name: &OsStr) -> PathBuf {
        let section = Path::new(name).extension().unwrap_or(OsStr::new("1")).to_string_lossy();
        self.prefix.join(format!("share/man/man{section}")).join(name)
    }

    pub(crate) fn document(&self, name: impl AsRef<Path>) -> PathBuf {
        self.prefix.join("share/doc/ratelimitd").join(name)
    }

    /// Returns each shell with the path of its completion file.
    pub(crate) fn completions(&self) -> [(&'static str, PathBuf); 3] {
        let share = self.prefix.join("share");
        [
            ("bash", share.join("bash-completion/completions/ratelimitd")),
            ("zsh", share.join("zsh").join(self.zsh).join("_ratelimitd")),
            ("fish", share.join("fish/vendor_completions.d/ratelimitd.fish")),
        ]
    }
}

impl File {
    pub(crate) fn program(path: PathBuf, content: impl Into<Vec<u8>>) -> Self {
        Self { path, mode: 0o755, content: content.into(), is_kept: false }
    }

    pub(crate) fn text(path: PathBuf, content: impl Into<Vec<u8>>) -> Self {
        Self { path, mode: 0o644, content: content.into(), is_kept: false }
    }

    pub(crate) fn kept(path: PathBuf, content: impl Into<Vec<u8>>) -> Self {
        Self { path, mode: 0o644, content: content.into(), is_kept: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_page_is_in_the_directory_of_its_section() {
        let page = |name: &str| Layout::below(Path::new("/usr/local")).man_page(OsStr::new(name));
        assert_eq!(page("ratelimitd-stats.1"), Path::new("/usr/local/share/man/man1/ratelimitd-stats.1"));
        assert_eq!(page("ratelimitd.toml.5"), Path::new("/usr/local/share/man/man5/ratelimitd.toml.5"));
    }
}
