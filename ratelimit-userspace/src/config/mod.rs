//! What the user asked for, parsed: a [`Config`] cannot hold a value that does not work. Flags and file make the same one.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::desired::Policy;

/// The configuration of one daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Interfaces to protect: sorted, each once, at least one.
    pub interfaces: Vec<String>,
    /// How to attach.
    pub xdp_mode: XdpModeChoice,
    /// What happens to the filter when the daemon ends.
    pub on_exit: OnExit,
    /// How many sources of each family are remembered, 256 to 16 777 216.
    pub max_sources: u32,
    /// Path of the control socket.
    pub socket: PathBuf,
    /// Where metrics, health and the read-only API are served over HTTP.
    pub listen: Option<SocketAddr>,
    /// What packets are judged by.
    pub policy: Policy,
}

/// How to attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpModeChoice {
    /// Native, else generic, said loudly.
    #[default]
    Auto,
    /// Native or not at all.
    Native,
    /// Generic.
    Generic,
}

/// What happens to the filter when the daemon ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExit {
    /// It ends too.
    #[default]
    Detach,
    /// Link and maps stay pinned and go on enforcing.
    Keep,
}
