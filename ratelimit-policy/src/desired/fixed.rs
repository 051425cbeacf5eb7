//! What a daemon holds to from its start to its end. Pure.

use std::net::SocketAddr;
use std::path::PathBuf;

use ratelimit_common::source::Family;

use crate::labels;

/// What a running daemon cannot change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Where to attach.
    pub hook: HookChoice,
    /// How to attach there, of XDP.
    pub xdp_mode: XdpModeChoice,
    /// What happens to the filter when the daemon ends.
    pub on_exit: OnExit,
    /// How many sources of each family are remembered.
    pub max_sources: u32,
    /// Path of the control socket.
    pub socket: PathBuf,
    /// Where metrics, health and the read-only API are served over HTTP.
    pub listen: Option<SocketAddr>,
    /// What encrypts that.
    pub tls: Option<TlsFiles>,
    /// Whether the web page is served there also where it is no loopback address.
    pub insecure_web: bool,
    /// The keys of IPv6 sources: their map is made once.
    pub ipv6_family: Family,
}

/// Where a certificate and its private key are, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and what it is signed by.
    pub cert: PathBuf,
    /// The key of it.
    pub key: PathBuf,
}

/// Where to attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HookChoice {
    /// At XDP where that is free and frames have an Ethernet header, else at TCX ingress, said loudly.
    #[default]
    Auto,
    /// At XDP or not at all.
    Xdp,
    /// At TCX ingress.
    Tcx,
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

labels!(pub HookChoice { Auto => "auto", Xdp => "xdp", Tcx => "tcx" });

labels!(pub XdpModeChoice { Auto => "auto", Native => "native", Generic => "generic" });

labels!(pub OnExit { Detach => "detach", Keep => "keep" });
