//! Default gateways from the kernel's routes, over netlink (include/uapi/linux/rtnetlink.h). Read only.
//! /proc/net/route shows one next hop of each route, but a default route may have many.

use std::io;
use std::net::IpAddr;

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::netlink;

/// Bytes of `struct rtmsg`, and the offsets of its fields.
const ROUTE_BYTES: usize = 12;
const DESTINATION_BITS_AT: usize = 1;
const SOURCE_BITS_AT: usize = 2;
const TABLE_AT: usize = 4;
const TYPE_AT: usize = 7;

/// Bytes of `struct rtnexthop`, which its attributes follow. It begins with the length of both.
const HOP_BYTES: usize = 8;

/// Returns the default gateways of this thread's network namespace, sorted: main table, both families, every next hop.
///
/// # Errors
/// Fails if the kernel does not list the routes.
pub fn default_gateways() -> io::Result<Vec<IpAddr>> {
    let socket = netlink::open(NETLINK_ROUTE)?;
    let mut gateways = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut asked = [0; ROUTE_BYTES];
        asked[0] = u8::try_from(family).unwrap_or(0);
        netlink::dump(&socket, libc::RTM_GETROUTE, &asked, &mut |kind, route| {
            if kind == libc::RTM_NEWROUTE
                && let Some((header, attributes)) = route.split_first_chunk()
                && is_default(header)
            {
                gateways_of(attributes, &mut gateways);
            }
        })?;
    }
    gateways.sort_unstable();
    gateways.dedup();
    Ok(gateways)
}

fn is_default(header: &[u8; ROUTE_BYTES]) -> bool {
    header[DESTINATION_BITS_AT] == 0
        && header[SOURCE_BITS_AT] == 0
        && header[TABLE_AT] == libc::RT_TABLE_MAIN
        && header[TYPE_AT] == libc::RTN_UNICAST
}

/// Collects the gateways in a route's attributes, or in those of one of its next hops.
fn gateways_of(attributes: &[u8], gateways: &mut Vec<IpAddr>) {
    for (kind, value) in netlink::attributes(attributes) {
        let gateway = match kind {
            libc::RTA_GATEWAY => address(value),
            // `struct rtvia`: the family, and an address of another family than the route's.
            libc::RTA_VIA => value.get(2..).and_then(address),
            libc::RTA_MULTIPATH => {
                hops(value).for_each(|attributes| gateways_of(attributes, gateways));
                None
            }
            _ => None,
        };
        gateways.extend(gateway.filter(|address| !address.is_unspecified()));
    }
}

/// Returns the attributes of each next hop, up to the first that is cut off.
fn hops(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let attributes = rest.get(HOP_BYTES..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(attributes)
    })
}

/// Returns the address with these bytes. None unless they are 4 or 16.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;

    fn hop(attributes: &[u8]) -> Vec<u8> {
        let len = u16::try_from(HOP_BYTES + attributes.len()).unwrap();
        [&len.to_ne_bytes()[..], &[0; HOP_BYTES - 2], attributes].concat()
    }

    #[test]
    fn gateways_of_every_hop_and_of_another_family_are_found() {
        let six = [0x20; 16];
        let via = [&10_u16.to_ne_bytes()[..], &six].concat();
        let hops = [
            hop(&attribute(libc::RTA_GATEWAY, &[192, 0, 2, 1])),
            hop(&[]),
            hop(&attribute(libc::RTA_VIA, &via)),
            hop(&attribute(libc::RTA_GATEWAY, &[192, 0, 2, 2])),
        ];
        let route = [
            attribute(15, &254_u32.to_ne_bytes()),
            attribute(libc::RTA_MULTIPATH, &hops.concat()),
            attribute(libc::RTA_GATEWAY, &[0; 4]),
            attribute(libc::RTA_GATEWAY, &[192, 0, 2, 3]),
        ]
        .concat();
        let mut gateways = Vec::new();
        gateways_of(&route, &mut gateways);
        let expected = ["192.0.2.1", "2020:2020:2020:2020:2020:2020:2020:2020", "192.0.2.2", "192.0.2.3"];
        assert_eq!(gateways, expected.map(|address| address.parse::<IpAddr>().unwrap()));
        for len in 0..route.len() {
            let mut fewer = Vec::new();
            gateways_of(&route[..len], &mut fewer);
            assert!(fewer.len() < gateways.len(), "{len}");
        }
    }

    #[test]
    fn the_default_route_is_unicast_of_the_main_table_to_and_from_everywhere() {
        let header: [u8; ROUTE_BYTES] = [2, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
        assert!(is_default(&header));
        for (at, other) in [(DESTINATION_BITS_AT, 8), (SOURCE_BITS_AT, 8), (TABLE_AT, 255), (TYPE_AT, 6)] {
            let mut header = header;
            header[at] = other;
            assert!(!is_default(&header), "{at}");
        }
    }
}
