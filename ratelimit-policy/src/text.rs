//! The small grammars of flags, files and messages: amounts, durations, names of ports, and what they share. Knows nothing of what is configured.

pub mod amount;
pub mod duration;
pub mod port;
pub mod syntax;
