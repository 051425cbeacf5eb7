//! Small grammars of flags, files and messages: amounts, durations, port names and their common parts. Independent of
//! the configuration.

pub mod amount;
pub mod duration;
pub mod port;
pub mod syntax;
