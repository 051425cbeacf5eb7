//! The web page: its files and its access control. The crate knows requests, cookies and headers. It must not know
//! commands, the daemon or the datapath.
//!
//! Over TCP, a [`Login`] tells members from visitors. Over the control socket, the socket's permissions do, and
//! [`over_socket`] refuses pages of other sites.

#![forbid(unsafe_code)]

mod assets;
mod attempts;
mod gate;
mod place;
mod sessions;
mod tls;
mod token;

pub use assets::with_headers;
pub use gate::{Answer, Login, over_socket};
pub use sessions::SessionEnd;
pub use tls::{Tls, TlsError, TlsFile};
pub use token::{CODE_SECONDS_MAX, Token};

#[cfg(test)]
mod tests;
