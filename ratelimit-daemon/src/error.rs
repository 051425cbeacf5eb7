//! Failures of the daemon's start and end, and their remedies.

use std::io::ErrorKind;

use ratelimit_control::socket::SocketError;
use ratelimit_datapath::DatapathError;

/// Failure of the daemon's start, or reason of an abnormal end.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The control socket could not be opened.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The kernel side failed.
    #[error(transparent)]
    Datapath(#[from] DatapathError),
    /// The daemon could not listen on the address of `--listen`.
    #[error("listen on {address}: {source}; give another --listen ADDR:PORT")]
    Listen {
        /// Address to listen on.
        address: std::net::SocketAddr,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The configuration file holds what was tried and not confirmed, and the previous configuration is unavailable.
    #[error("{path} was tried and not confirmed, and the configuration before it cannot be read: {why}")]
    Refused {
        /// Path of the configuration file.
        path: String,
        /// Problem with the previous configuration.
        why: String,
        /// File that records the trial.
        record: std::path::PathBuf,
    },
    /// The web page's token could not be read.
    #[error("{}: {source}", .path.display())]
    WebLink {
        /// File that holds the token.
        path: std::path::PathBuf,
        /// Error of reading the file.
        source: std::io::Error,
    },
    /// Another system call failed.
    #[error("{what}: {source}")]
    System {
        /// Action that failed.
        what: &'static str,
        /// Error of the system.
        source: std::io::Error,
    },
    /// Internal error. The panic message was already printed.
    #[error("internal error: the task that owns the datapath panicked")]
    Panicked,
}

impl DaemonError {
    /// Returns true if this user lacked a privilege.
    pub fn is_for_want_of_privilege(&self) -> bool {
        match self {
            Self::Socket(SocketError::Io { source, .. }) | Self::WebLink { source, .. } => {
                source.kind() == ErrorKind::PermissionDenied
            }
            Self::Datapath(DatapathError::NotPrivileged { .. } | DatapathError::Forbidden { .. }) => true,
            Self::Socket(_)
            | Self::Datapath(_)
            | Self::Listen { .. }
            | Self::Refused { .. }
            | Self::System { .. }
            | Self::Panicked => false,
        }
    }

    /// Returns remedies that the message does not contain.
    pub fn help(&self) -> Vec<String> {
        match self {
            Self::Socket(_) if self.is_for_want_of_privilege() => vec![
                "run it as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON and a --socket PATH that this user may make"
                    .to_owned(),
            ],
            Self::Refused { path, record, .. } => vec![
                format!(
                    "if a list file is gone, restore it; or change {path}: a changed file is read as a new one"
                ),
                format!("to start with the unconfirmed file anyway, remove {}", record.display()),
            ],
            Self::WebLink { source, .. } if source.kind() == ErrorKind::NotFound => vec![
                "the web page needs a running daemon that listens on a loopback address, or by TLS: --listen 127.0.0.1:9464"
                    .to_owned(),
            ],
            Self::WebLink { .. } | Self::Socket(_) | Self::Datapath(_) | Self::Listen { .. } | Self::System { .. } | Self::Panicked => {
                Vec::new()
            }
        }
    }
}
