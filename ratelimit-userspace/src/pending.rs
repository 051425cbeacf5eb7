//! Stands in for the daemon and its clients until they are here.

/// The daemon.
pub mod daemon {
    use std::path::PathBuf;

    use crate::config::Config;

    /// Where the configuration came from, and so what a reload reads again.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum ConfigSource {
        /// The command line: a reload changes nothing.
        Flags,
        /// This file.
        File(PathBuf),
    }

    /// Runs until it is told to stop.
    pub async fn run(config: Config, source: ConfigSource) -> anyhow::Result<()> {
        anyhow::bail!("no daemon in this build, for {source:?} on {}", config.interfaces.join(", "))
    }
}

/// What asks a running daemon.
pub mod client {
    use std::net::IpAddr;
    use std::path::Path;

    use crate::cli::{OutputFormat, Repeat};
    use crate::error::{Exit, NoDaemon};

    fn no_daemon(socket: &Path) -> anyhow::Error {
        NoDaemon { socket: socket.to_owned(), source: std::io::Error::other("this build has no client") }.into()
    }

    /// Prints what passes and what is blocked.
    pub async fn stats(socket: &Path, _format: OutputFormat, _repeat: Repeat) -> anyhow::Result<Exit> {
        Err(no_daemon(socket))
    }

    /// Prints the verdict for one source.
    pub async fn check(socket: &Path, _source: IpAddr, _format: OutputFormat) -> anyhow::Result<Exit> {
        Err(no_daemon(socket))
    }

    /// Takes the filter off one interface, or all.
    pub async fn detach(socket: &Path, _interface: Option<&str>) -> anyhow::Result<Exit> {
        Err(no_daemon(socket))
    }

    /// Makes the daemon read its file again.
    pub async fn reload(socket: &Path) -> anyhow::Result<Exit> {
        Err(no_daemon(socket))
    }
}
