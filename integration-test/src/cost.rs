//! What the program alone costs a packet: the rows, and what goes before the packet that is timed.

pub mod conversations;
pub mod rows;
pub mod runs;
