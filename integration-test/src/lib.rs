//! What the tests share: frames as bytes, the table of named frames, and the naive oracle.
#![expect(clippy::expect_used, reason = "all of this is test code: where it cannot go on, the test fails")]

pub mod fixtures;
pub mod frames;
pub mod oracle;
