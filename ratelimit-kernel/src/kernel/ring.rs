//! Reader of a ring that packets write layout types into.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use anyhow::{Context as _, anyhow};
use aya::Ebpf;
use aya::maps::{MapData, RingBuf};

use super::plain::Plain;
use crate::DatapathError;

/// Reader of the ring in a map. The next reader continues where this one ends.
pub(super) struct Ring<T> {
    map: &'static str,
    ring: RingBuf<MapData>,
    of: PhantomData<T>,
}

impl<T> Ring<T>
where
    Plain<T>: aya::Pod,
{
    /// Takes the ring out of a loaded object.
    pub(super) fn take(ebpf: &mut Ebpf, map: &'static str) -> Result<Self, DatapathError> {
        let ring = ebpf.take_map(map).with_context(|| format!("the object has no map {map}"))?;
        Ok(Self { map, ring: RingBuf::try_from(ring).with_context(|| format!("open {map}"))?, of: PhantomData })
    }

    /// Returns the descriptor of the map.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring keeps the descriptor open as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    /// Returns the next entry, or none if the ring is empty.
    pub(super) fn next(&mut self) -> Result<Option<T>, DatapathError> {
        let Some(item) = self.ring.next() else { return Ok(None) };
        if item.len() != size_of::<T>() {
            return Err(anyhow!("{} has an entry of {} bytes", self.map, item.len()).into());
        }
        // SAFETY: the item has the size of `T`, and `Plain` types are valid for any bytes.
        Ok(Some(unsafe { item.as_ptr().cast::<Plain<T>>().read_unaligned() }.0))
    }
}
