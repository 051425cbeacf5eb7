//! Events of one poll that an operator may want to know.

use std::fmt;

/// Something that happened to a log, beyond being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Another file took the log's place. The former file is read to its end.
    Rotated,
    /// The file was truncated in place. Lines written between the last read and the truncation are lost.
    Truncated,
    /// The file was truncated in place. Lines that were not read before it are read from its copy.
    CopiedAndTruncated,
    /// The log was further behind than the limit allows, so this many bytes were not read.
    Jumped(u64),
    /// After a restart, a file that was followed before is in none of its possible places.
    RestLost,
    /// After a restart, another file is in the log's place. Reading begins at its start.
    BeganAtStart,
    /// After a restart, an older file is in the log's place. Reading begins at its end.
    BeganAtEnd,
    /// Too many rotated files were read at once. The oldest was closed with this many bytes unread.
    Dropped(u64),
}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rotated => out.write_str("the log was rotated"),
            Self::Truncated => out.write_str("the log was truncated, lines that were not read yet are lost"),
            Self::CopiedAndTruncated => out.write_str("the log was truncated, its last lines are read from its copy"),
            Self::Jumped(bytes) => write!(out, "reading was too far behind, {bytes} bytes were skipped"),
            Self::RestLost => {
                out.write_str("a file that was followed before the restart is gone, its last lines may be lost")
            }
            Self::BeganAtStart => out.write_str("another file is in the log's place, it is read from its start"),
            Self::BeganAtEnd => out.write_str("an older file is in the log's place, it is read from its end"),
            Self::Dropped(bytes) => {
                write!(out, "too many rotated files at once, {bytes} bytes of the oldest were skipped")
            }
        }
    }
}
