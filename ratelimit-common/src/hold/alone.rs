//! Window and ban for one thread alone: parts of a [`State`](super::State) in memory.

use core::cell::Cell;

use super::{Banned, Window};
use crate::ban::Ban;
use crate::refusals::Refusals;
use crate::time::{BucketIndex, Nanos};
use crate::window::{self, CELLS, Cells};

/// Window of a source that one thread alone uses.
#[derive(Clone, Debug, Default)]
pub struct Alone {
    /// Cells of the window, see [`window`].
    pub cells: [Cell<u64>; CELLS],
    /// Refusals by the window.
    pub refused: Cell<Refusals>,
}

impl Cells for &Alone {
    fn load(&self, index: usize) -> u64 {
        self.cells.load(index)
    }

    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> bool {
        self.cells.compare_exchange(index, current, new)
    }

    // Does nothing, like the kernel's.
    fn settle(&self, _: window::Limit, _: BucketIndex) -> Option<BucketIndex> {
        None
    }
}

impl Window for &Alone {
    fn refusals(&self) -> Refusals {
        self.refused.get()
    }

    fn count_refused(&self, bucket: BucketIndex) -> bool {
        let refused = self.refused.get();
        let is_first = refused.is_first_in(bucket);
        self.refused.set(if is_first { refused.and_one_in(bucket) } else { refused.and(1) });
        is_first
    }
}

impl Banned for &Cell<Ban> {
    fn until(&self) -> Nanos {
        Nanos(self.get().until_ns)
    }

    fn read(&self) -> Ban {
        self.get()
    }

    fn record_admitted(&self) {
        self.set(Ban { admitted: 1, ..self.get() });
    }

    fn count_dropped(&self, packets: u64) {
        self.set(Ban { dropped: self.get().dropped.saturating_add(packets), ..self.get() });
    }

    fn replace(&self, _: &Ban, next: &Ban) -> bool {
        self.set(*next);
        true
    }
}
