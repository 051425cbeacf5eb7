//! Groups of sources that a limit may count instead of single sources.

/// Group that a limit counts as one client: a prefix that contains the source, or all sources of the rule. Its windows
/// are stored among those of sources, under the limit's own slot and the zero-padded prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Group {
    /// Value of [`crate::source::ipv4_mask`] for the group's length, which is no longer than a source's.
    pub ipv4_mask: u32,
    /// 1 if all sources of the rule are one client, for both families. The windows are then those of 0.0.0.0.
    pub is_list: u32,
    /// First word of [`crate::source::ipv6_mask`] for the group's length, which is at most 64 and no longer than a
    /// source's.
    pub ipv6_mask: u64,
}

const _: () = assert!(size_of::<Group>() == 16);
