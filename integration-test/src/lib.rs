//! What the tests share: frames as bytes, the table of named frames, and the naive oracle.

pub mod fixtures;
pub mod frames;
