//! More that is known of a connection.

/// TLS 1.3: the server sends at most one more session ticket: it showed no certificate, or has sent one of two.
pub(super) const ONE_TICKET: u8 = 1;
/// The one segment in [`super::ACCOUNTED_BYTES`] went on by itself: the guard counts the next one asked about.
pub(super) const UNACCOUNTED: u8 = 2;
/// Its socket has said something behind its beginning, and goes on: in the clear it ends what begins like TLS.
pub(super) const ANSWERED: u8 = 4;
/// Some of it came in fragments, which are not read: all that its socket takes is doubted from then on.
pub(super) const IN_FRAGMENTS: u8 = 8;
/// Nothing of it was seen but those.
pub(super) const UNREAD: u8 = 16;
/// HTTP/1 in the clear: a request was asked before the server had said anything to the one before.
pub(super) const ASKED_AHEAD: u8 = 32;
/// What a page has left of a connection.
pub(super) const PAGED: u8 = 64;
/// A request of it was refused that the server may not have yet: `ended` says where that begins.
pub(super) const REFUSED: u8 = 128;
