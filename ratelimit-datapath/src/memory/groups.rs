//! Groups of sources in memory.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};
use ratelimit_common::layout::Group;

/// All sources of a rule, in the form of the kernel's maps. No client is all addresses.
pub const LIST: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0));

/// Returns the prefix or list by which the group counts this client.
pub(super) fn holder(group: &Group, client: IpNet) -> IpNet {
    if group.is_list != 0 {
        return LIST;
    }
    let ones = match client.addr() {
        IpAddr::V4(_) => group.ipv4_mask.count_ones(),
        IpAddr::V6(_) => group.ipv6_mask.count_ones(),
    };
    // A mask has no more ones than an address of its family.
    u8::try_from(ones).ok().and_then(|length| IpNet::new(client.addr(), length).ok()).map_or(client, |net| net.trunc())
}
