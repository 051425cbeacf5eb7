//! Hook and mode of the program on an interface.

use ratelimit_policy::labels;
use serde::{Deserialize, Serialize};

/// Mode of an attached XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum XdpMode {
    /// The program runs in the driver, before a socket buffer exists.
    Native,
    /// The program runs in the network stack on a socket buffer. This works everywhere, but costs several times as
    /// much.
    Generic,
}

labels!(pub XdpMode { Native => "native", Generic => "generic" });

/// Hook that a program is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hook {
    /// XDP: before the network stack handles the packet.
    Xdp,
    /// TCX ingress: once a socket buffer exists. Works next to programs of others, and on interfaces without an
    /// Ethernet header.
    Tcx,
}

labels!(pub Hook { Xdp => "xdp", Tcx => "tcx" });

/// Hook and mode of an attached program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// The program is attached at XDP in this mode.
    Xdp(XdpMode),
    /// The program is attached at TCX ingress.
    Tcx,
}

impl Attachment {
    /// Returns the hook.
    pub const fn hook(self) -> Hook {
        match self {
            Self::Xdp(_) => Hook::Xdp,
            Self::Tcx => Hook::Tcx,
        }
    }

    /// Returns the label of the XDP mode, or of TCX.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Xdp(mode) => mode.label(),
            Self::Tcx => Hook::Tcx.label(),
        }
    }

    /// Returns the XDP mode. None for TCX.
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
