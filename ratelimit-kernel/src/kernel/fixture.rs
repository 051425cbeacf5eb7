//! Extra access for tests and measurements: runs on made-up frames, the program's size, and traffic generators. No
//! daemon uses it.

mod advance;
mod beside;
mod generator;
mod held_maps;
mod hostile;
mod pinned;
mod raw;
mod size;
mod skb;
mod testing;

pub use self::advance::{Advance, Steps};
pub use self::beside::Beside;
pub use self::generator::{Flood, Generator, OpenConnection, OpenConnections, Order, Sources};
pub use self::held_maps::held_maps;
pub use self::hostile::read_hostile;
pub use self::pinned::{Contents, Entries, dump, linked, restore};
pub use self::size::ProgramSize;
pub use self::skb::{Link, Merged};
pub use self::testing::{Bare, TestRun, classifier_object, object};
