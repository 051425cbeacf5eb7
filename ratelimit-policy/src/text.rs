//! The small grammars of flags, files and messages: amounts, durations, and what they share. Knows nothing of what is configured.

pub mod amount;
pub mod duration;
pub mod syntax;
