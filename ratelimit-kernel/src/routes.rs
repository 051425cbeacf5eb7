//! Default gateways from the kernel's routes, over netlink. Read only. /proc/net/route shows one next hop of each
//! route, but a default route may have many.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType, RouteVia};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::interface;

/// Returns the default gateways of this thread's network namespace, sorted: main table, both families, every next hop.
///
/// # Errors
/// Fails if the kernel does not list the routes.
#[expect(clippy::wildcard_enum_match_arm, reason = "messages of other kinds come, and more are to come")]
pub fn default_gateways() -> io::Result<Vec<IpAddr>> {
    let mut gateways = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut asked = RouteMessage::default();
        asked.header.address_family = family;
        interface::dump(RouteNetlinkMessage::GetRoute(asked), &mut |message| match message {
            RouteNetlinkMessage::NewRoute(route) if is_default(&route) => gateways_of(&route.attributes, &mut gateways),
            _ => {}
        })?;
    }
    gateways.sort_unstable();
    gateways.dedup();
    Ok(gateways)
}

fn is_default(route: &RouteMessage) -> bool {
    let header = &route.header;
    header.destination_prefix_length == 0
        && header.source_prefix_length == 0
        && header.table == RouteHeader::RT_TABLE_MAIN
        && header.kind == RouteType::Unicast
}

#[expect(clippy::wildcard_enum_match_arm, reason = "three of some thirty attributes matter")]
fn gateways_of(attributes: &[RouteAttribute], gateways: &mut Vec<IpAddr>) {
    for attribute in attributes {
        let gateway = match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(address)) => IpAddr::V4(*address),
            RouteAttribute::Gateway(RouteAddress::Inet6(address)) => IpAddr::V6(*address),
            RouteAttribute::Via(RouteVia::Inet(address)) => IpAddr::V4(*address),
            RouteAttribute::Via(RouteVia::Inet6(address)) => IpAddr::V6(*address),
            RouteAttribute::MultiPath(hops) => {
                hops.iter().for_each(|hop| gateways_of(&hop.attributes, gateways));
                continue;
            }
            _ => continue,
        };
        if !gateway.is_unspecified() {
            gateways.push(gateway);
        }
    }
}
