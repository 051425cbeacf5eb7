//! TCP connections of the fake host.

use super::{FakeKernel, World};
use crate::{Connection, Ended};

impl FakeKernel {
    /// Adds connections to the host.
    pub fn connect(&self, connections: impl IntoIterator<Item = Connection>) {
        self.world().connections.extend(connections);
    }

    /// Returns the number of the host's connections.
    pub fn connections(&self) -> usize {
        self.world().connections.len()
    }
}

impl World {
    pub(super) fn end_connections(&mut self, wanted: &mut dyn FnMut(&Connection) -> bool, most: usize) -> Ended {
        let mut of = Ended::default();
        self.connections.retain(|connection| {
            if !wanted(connection) {
                return true;
            }
            let is_left = of.ended == most as u64;
            *(if is_left { &mut of.left } else { &mut of.ended }) += 1;
            is_left
        });
        of
    }
}
