//! Why the daemon did not start or did not end orderly, and what to do about it.

use std::io::ErrorKind;

use ratelimit_control::socket::SocketError;
use ratelimit_datapath::DatapathError;

/// Why the daemon did not start, or ended other than orderly.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The control socket could not be had.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The kernel side failed.
    #[error(transparent)]
    Datapath(#[from] DatapathError),
    /// The address of `--listen` could not be had.
    #[error("listen on {address}: {source}; give another --listen ADDR:PORT")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The file says what was tried and not confirmed, and what it said before cannot be had.
    #[error("{path} was tried and not confirmed, and what held before it cannot be read any more: {why}")]
    Refused {
        /// The file.
        path: String,
        /// What is wrong with the text of before.
        why: String,
        /// The file that remembers the trial.
        record: std::path::PathBuf,
    },
    /// The web page's token could not be read.
    #[error("{}: {source}", .path.display())]
    WebLink {
        /// Its file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        source: std::io::Error,
    },
    /// Something else of the system's.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A fault of our own, with its message already printed.
    #[error("internal error: the task that owns the datapath panicked")]
    Panicked,
}

impl DaemonError {
    /// Whether the kernel did not let this user.
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

    /// What to do, where the message does not say it.
    pub fn help(&self) -> Vec<String> {
        match self {
            Self::Socket(_) if self.is_for_want_of_privilege() => vec![
                "run it as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON and a --socket PATH that this user may make"
                    .to_owned(),
            ],
            Self::Refused { path, record, .. } => vec![
                format!(
                    "if a list file is gone, bring it back; or change {path}: a file that was changed since is a new one"
                ),
                format!("to start by what was refused all the same, remove {}", record.display()),
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
