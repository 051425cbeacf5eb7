//! The reading end of a ring that packets write layout types into.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use anyhow::{Context as _, anyhow};
use aya::Ebpf;
use aya::maps::{MapData, RingBuf};

use super::plain::Plain;
use crate::DatapathError;

/// The reading end of the ring in a map. The next reader goes on where this one ends.
pub(super) struct Ring<T> {
    map: &'static str,
    ring: RingBuf<MapData>,
    of: PhantomData<T>,
}

impl<T> Ring<T>
where
    Plain<T>: aya::Pod,
{
    /// Takes it out of what was loaded.
    pub(super) fn take(ebpf: &mut Ebpf, map: &'static str) -> Result<Self, DatapathError> {
        let ring = ebpf.take_map(map).with_context(|| format!("the object has no map {map}"))?;
        Ok(Self { map, ring: RingBuf::try_from(ring).with_context(|| format!("open {map}"))?, of: PhantomData })
    }

    /// The map.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring has it open for as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    /// The next one that was written, if there is one.
    pub(super) fn next(&mut self) -> Result<Option<T>, DatapathError> {
        let Some(item) = self.ring.next() else { return Ok(None) };
        if item.len() != size_of::<T>() {
            return Err(anyhow!("{} has an entry of {} bytes", self.map, item.len()).into());
        }
        // SAFETY: so many bytes, of a layout type whose bytes are all there is to it.
        Ok(Some(unsafe { item.as_ptr().cast::<Plain<T>>().read_unaligned() }.0))
    }
}
