//! The host's own connections.

use super::{FakeKernel, World};
use crate::{Connection, Ended};

impl FakeKernel {
    /// The host has these connections too.
    pub fn connect(&self, connections: impl IntoIterator<Item = Connection>) {
        self.world().connections.extend(connections);
    }

    /// How many connections the host has.
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
