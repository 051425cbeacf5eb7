//! Rows of the cost benchmark for the program alone, and what is sent before the packet that is timed.

pub mod conversations;
pub mod rows;
pub mod runs;
