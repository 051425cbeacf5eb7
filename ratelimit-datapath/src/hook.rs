//! Where and how the program is attached to an interface.

use ratelimit_policy::labels;
use serde::{Deserialize, Serialize};

/// How an XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum XdpMode {
    /// In the driver, before a socket buffer exists.
    Native,
    /// In the network stack, on a socket buffer: works everywhere, costs several times as much.
    Generic,
}

labels!(pub XdpMode { Native => "native", Generic => "generic" });

/// Where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hook {
    /// Before the network stack has made a buffer, or where it would be.
    Xdp,
    /// On the way in, once there is one: beside programs of others, and on interfaces without an Ethernet header.
    Tcx,
}

labels!(pub Hook { Xdp => "xdp", Tcx => "tcx" });

/// Where and how the program is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// At XDP.
    Xdp(XdpMode),
    /// At TCX ingress.
    Tcx,
}

impl Attachment {
    /// Where.
    pub const fn hook(self) -> Hook {
        match self {
            Self::Xdp(_) => Hook::Xdp,
            Self::Tcx => Hook::Tcx,
        }
    }

    /// The mode of XDP, or that it is elsewhere.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Xdp(mode) => mode.label(),
            Self::Tcx => Hook::Tcx.label(),
        }
    }

    /// How, of XDP.
    pub const fn xdp_mode(self) -> Option<XdpMode> {
        match self {
            Self::Xdp(mode) => Some(mode),
            Self::Tcx => None,
        }
    }
}

impl From<XdpMode> for Attachment {
    fn from(mode: XdpMode) -> Self {
        Self::Xdp(mode)
    }
}
