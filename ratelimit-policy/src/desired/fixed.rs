//! Types of settings that stay fixed from a daemon's start to its end. Pure.

use std::path::PathBuf;

use crate::labels;

/// Paths of a certificate and its private key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Path of the certificate and the chain that signed it.
    pub cert: PathBuf,
    /// Path of the certificate's private key.
    pub key: PathBuf,
}

/// Hook that the program is attached to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HookChoice {
    /// XDP if it is free and frames have an Ethernet header, otherwise TCX ingress, which is reported.
    #[default]
    Auto,
    /// XDP only. Starting fails otherwise.
    Xdp,
    /// TCX ingress only.
    Tcx,
}

/// XDP mode in which the program is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpModeChoice {
    /// Native mode, otherwise generic mode, which is reported.
    #[default]
    Auto,
    /// Native mode only. Starting fails otherwise.
    Native,
    /// Generic mode only.
    Generic,
}

/// Fate of the filter when the daemon ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExit {
    /// The filter is detached.
    #[default]
    Detach,
    /// Link and maps stay pinned and continue to enforce.
    Keep,
}

labels!(pub HookChoice { Auto => "auto", Xdp => "xdp", Tcx => "tcx" });

labels!(pub XdpModeChoice { Auto => "auto", Native => "native", Generic => "generic" });

labels!(pub OnExit { Detach => "detach", Keep => "keep" });
