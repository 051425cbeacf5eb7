//! Further flags of a connection: [`super::Conversation::also`].

/// TLS 1.3: the server sends at most one more session ticket. It showed no certificate, or has sent one of two tickets.
pub(super) const ONE_TICKET: u8 = 1;
/// The fast path took the one segment in [`super::ACCOUNTED_BYTES`]. The guard counts the next segment that takes the
/// slow path.
pub(super) const UNACCOUNTED: u8 = 2;
/// The server has sent data since the connection began, and has not closed. A clear-text server closes a connection
/// that begins like TLS.
pub(super) const ANSWERED: u8 = 4;
/// Some fragments came, whose payload is not read. From then on, everything that the socket receives is in doubt.
pub(super) const IN_FRAGMENTS: u8 = 8;
/// Nothing but fragments was seen of the connection.
pub(super) const UNREAD: u8 = 16;
/// HTTP/1 in the clear: the client sent a request before the server had said anything to the one before.
pub(super) const ASKED_AHEAD: u8 = 32;
/// The state is that of a connection which a 429 page has ended.
pub(super) const PAGED: u8 = 64;
/// A request of the connection was refused and may not have reached the server. `ended` holds where the request begins.
pub(super) const REFUSED: u8 = 128;
