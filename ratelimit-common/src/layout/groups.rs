//! What contains a source, where a limit is of that.

/// The client that a limit holds in place of the source: a prefix that contains it, or all sources of the rule. Its
/// windows lie among those of sources, under the limit's own slot, by the prefix with zeros behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Group {
    /// [`crate::source::ipv4_mask`] of its length: no longer than a source.
    pub ipv4_mask: u32,
    /// 1: all sources of the rule are one client, of both families. Its windows are those of 0.0.0.0.
    pub is_list: u32,
    /// The first word of [`crate::source::ipv6_mask`] of its length: no longer than a source, nor than 64 bits.
    pub ipv6_mask: u64,
}

const _: () = assert!(size_of::<Group>() == 16);
