//! Network interfaces and their XDP programs, as the kernel lists them over netlink. Nothing is changed here.

use std::io;

use netlink_sys::protocols::NETLINK_ROUTE;

use super::path::Link;
use super::{Attachment, Hook, XdpMode, bpf, generic_netlink};
use crate::netlink::{self, attribute, find};

/// One network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    /// MTU in bytes.
    pub(super) mtu: u32,
    /// Hardware type (`ARPHRD_`), which says what precedes the IP packet.
    link_layer: u16,
    /// Attached XDP programs, at most one for each mode, with their ids.
    pub(super) programs: Vec<(XdpMode, u32)>,
    /// Kind of a virtual interface, such as `vlan` or `bridge`. None for hardware.
    pub(super) kind: Option<String>,
    /// Index of the bridge, bond or other interface that this one is a port of.
    pub(super) master: Option<u32>,
    /// Index of the interface below, or of a veth's other end, in the same network namespace.
    pub(super) lower: Option<u32>,
    /// Other end of a veth pair, in whichever namespace.
    other_end: Option<OtherEnd>,
}

/// The other end of a veth pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OtherEnd {
    /// Index in its own network namespace.
    index: u32,
    /// Number of its namespace, counted by ours (`IFLA_LINK_NETNSID`). None for our own namespace.
    namespace: Option<i32>,
}

/// `NETDEV_XDP_ACT_NDO_XMIT`, include/uapi/linux/netdev.h.
const NDO_XMIT: u64 = 1 << 2;

/// Hardware types of include/uapi/linux/if_arp.h that libc lacks.
const RAWIP: u16 = 519;
const IP6GRE: u16 = 823;

/// Bytes of `struct ifinfomsg`, and the offsets of the hardware type and the index in it.
const INFO_BYTES: usize = 16;
const LINK_LAYER_AT: usize = 2;
const INDEX_AT: usize = 4;

/// Attributes within `IFLA_XDP` of include/uapi/linux/if_link.h.
const XDP_ATTACHED: u16 = 2;
const XDP_PROGRAM: u16 = 4;
const XDP_DRIVER_PROGRAM: u16 = 5;
const XDP_GENERIC_PROGRAM: u16 = 6;
const XDP_HARDWARE_PROGRAM: u16 = 7;
/// Values of `XDP_ATTACHED` for a single program.
const ATTACHED_DRIVER: u8 = 1;
const ATTACHED_GENERIC: u8 = 2;
const ATTACHED_HARDWARE: u8 = 3;

impl From<Interface> for Link {
    fn from(of: Interface) -> Self {
        Self { name: of.name, index: of.index, kind: of.kind, master: of.master, lower: of.lower }
    }
}

impl Interface {
    /// Returns the mode in which `program` is attached at `hook`, or none.
    pub(super) fn attachment(&self, hook: Hook, program: u32) -> Option<Attachment> {
        match hook {
            Hook::Xdp => self.programs.iter().find(|(_, id)| *id == program).map(|(mode, _)| Attachment::Xdp(*mode)),
            Hook::Tcx => bpf::tcx_programs(self.index)
                .is_ok_and(|programs| programs.contains(&program))
                .then_some(Attachment::Tcx),
        }
    }

    /// Returns whether XDP can send a frame back the way it came (`XDP_TX`). A veth forwards the frame at once only if
    /// its other end has an XDP program. With GRO alone, the frame waits for the next packet (`veth_xdp_flush`,
    /// drivers/net/veth.c, Linux 6.18). With neither, the frame is lost, which the kernel reports from Linux 6.3 on.
    /// Whatever the kernel does not report counts as able.
    pub(super) fn sends_back(&self) -> bool {
        self.kind.as_deref() != Some("veth")
            || generic_netlink::xdp_features(self.index).map_or(true, |features| features & NDO_XMIT != 0)
                && self.other_end.is_none_or(|end| end.has_program().unwrap_or(true))
    }

    /// Returns whether frames start with the IP header, as on tunnels, WireGuard and PPP.
    pub(super) fn is_headless(&self) -> bool {
        matches!(
            self.link_layer,
            libc::ARPHRD_NONE
                | libc::ARPHRD_PPP
                | RAWIP
                | libc::ARPHRD_TUNNEL
                | libc::ARPHRD_TUNNEL6
                | libc::ARPHRD_SIT
                | libc::ARPHRD_IPGRE
                | IP6GRE
        )
    }

    /// Returns whether frames have an Ethernet header. The loopback interface has one of zeros.
    pub(super) fn has_ethernet_header(&self) -> bool {
        matches!(self.link_layer, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK)
    }
}

impl OtherEnd {
    /// Returns whether this end has an XDP program.
    ///
    /// # Errors
    /// Fails if the kernel does not show the interface, for example to a process without rights in that namespace.
    fn has_program(self) -> io::Result<bool> {
        let ends = all_of(self.namespace)?;
        let end = ends.iter().find(|end| end.index == self.index).ok_or(io::ErrorKind::NotFound)?;
        Ok(!end.programs.is_empty())
    }
}

/// Returns every interface of this network namespace, sorted by index.
pub(super) fn all() -> io::Result<Vec<Interface>> {
    all_of(None)
}

/// Returns every interface of the network namespace with this number, or of our own, sorted by index.
fn all_of(namespace: Option<i32>) -> io::Result<Vec<Interface>> {
    let mut asked = vec![0; INFO_BYTES];
    asked.extend(namespace.into_iter().flat_map(|id| attribute(libc::IFLA_TARGET_NETNSID, &id.to_ne_bytes())));
    let mut interfaces = Vec::new();
    netlink::dump(&netlink::open(NETLINK_ROUTE)?, libc::RTM_GETLINK, &asked, &mut |kind, link| {
        interfaces.extend(interface(link).filter(|_| kind == libc::RTM_NEWLINK));
    })?;
    interfaces.sort_by_key(|interface: &Interface| interface.index);
    Ok(interfaces)
}

/// Returns every interface of this thread's network namespace, with the interfaces that it is joined to.
///
/// # Errors
/// Fails if the kernel does not list them.
pub fn links() -> io::Result<Vec<Link>> {
    Ok(all()?.into_iter().map(Link::from).collect())
}

/// Returns the names of all interfaces of this thread's network namespace.
pub fn names() -> io::Result<Vec<String>> {
    Ok(all()?.into_iter().map(|interface| interface.name).collect())
}

/// Returns whether the named interface is known to lose frames that XDP sends back.
pub fn loses_answers(name: &str) -> bool {
    named(name).is_ok_and(|found| found.is_some_and(|found| !found.sends_back()))
}

/// Returns the interface with this name, or none.
pub(super) fn named(name: &str) -> io::Result<Option<Interface>> {
    Ok(all()?.into_iter().find(|interface| interface.name == name))
}

/// Parses a `struct ifinfomsg` and its attributes. Returns none if the message is cut off before the name.
///
/// Names need not be UTF-8, because anyone who makes an interface chooses them.
fn interface(link: &[u8]) -> Option<Interface> {
    let (header, attributes) = link.split_at_checked(INFO_BYTES)?;
    let link_layer = u16::from_ne_bytes(*header.get(LINK_LAYER_AT..)?.first_chunk()?);
    let index = u32::from_ne_bytes(*header.get(INDEX_AT..)?.first_chunk()?);
    let number = |kind| netlink::find_u32(attributes, kind);
    let name = find(attributes, libc::IFLA_IFNAME).map(netlink::text)?;
    let kind = find(attributes, libc::IFLA_LINKINFO).and_then(|info| find(info, libc::IFLA_INFO_KIND));
    let joined = number(libc::IFLA_LINK).filter(|index| *index != 0);
    let namespace = number(libc::IFLA_LINK_NETNSID).map(u32::cast_signed);
    Some(Interface {
        name,
        index,
        mtu: number(libc::IFLA_MTU).unwrap_or(0),
        link_layer,
        programs: find(attributes, libc::IFLA_XDP).map(attached).unwrap_or_default(),
        kind: kind.map(netlink::text),
        master: number(libc::IFLA_MASTER).filter(|index| *index != 0),
        // Hardware names its own index as the lower interface.
        lower: joined.filter(|lower| namespace.is_none() && *lower != index),
        other_end: joined.map(|index| OtherEnd { index, namespace }),
    })
}

/// Returns the programs in the attributes of `IFLA_XDP`.
fn attached(xdp: &[u8]) -> Vec<(XdpMode, u32)> {
    let modes = [
        (XDP_GENERIC_PROGRAM, XdpMode::Generic),
        (XDP_DRIVER_PROGRAM, XdpMode::Native),
        (XDP_HARDWARE_PROGRAM, XdpMode::Native),
    ];
    let programs: Vec<_> =
        modes.into_iter().filter_map(|(kind, mode)| Some((mode, netlink::find_u32(xdp, kind)?))).collect();
    if !programs.is_empty() {
        return programs;
    }
    // For a single attached program, some kernels report only its id and its mode.
    let mode = match find(xdp, XDP_ATTACHED).and_then(<[u8]>::first) {
        Some(&(ATTACHED_DRIVER | ATTACHED_HARDWARE)) => XdpMode::Native,
        Some(&ATTACHED_GENERIC) => XdpMode::Generic,
        _ => return programs,
    };
    netlink::find_u32(xdp, XDP_PROGRAM).map(|id| (mode, id)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(kind: u16, value: u32) -> Vec<u8> {
        attribute(kind, &value.to_ne_bytes())
    }

    /// Builds the message of an Ethernet interface.
    fn link(index: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0; INFO_BYTES];
        bytes[LINK_LAYER_AT..][..2].copy_from_slice(&libc::ARPHRD_ETHER.to_ne_bytes());
        bytes[INDEX_AT..][..4].copy_from_slice(&index.to_ne_bytes());
        bytes.extend(attributes.concat());
        bytes
    }

    #[test]
    fn non_utf8_text_hides_no_interface() {
        const ALIAS: u16 = 20;
        const PORT: u16 = 38;
        let mtu = number(libc::IFLA_MTU, 1500);
        let odd = [
            attribute(ALIAS, b"\xff"),
            attribute(libc::IFLA_IFNAME, b"a\xff\xfeb\0"),
            attribute(PORT, b"\xfe\0"),
            mtu.clone(),
        ];
        let plain = [attribute(libc::IFLA_IFNAME, b"eth0\0"), mtu, attribute(9999, b"?")];
        let read = |index, attributes: &[Vec<u8>]| {
            let of = interface(&link(index, attributes)).unwrap();
            (of.name.clone(), of.index, of.mtu, of.has_ethernet_header(), of.is_headless())
        };
        assert_eq!(read(2, &odd), ("a\u{fffd}\u{fffd}b".to_owned(), 2, 1500, true, false));
        assert_eq!(read(3, &plain), ("eth0".to_owned(), 3, 1500, true, false));
    }

    #[test]
    fn kind_port_and_lower_interface_are_read_and_an_index_of_another_namespace_is_not() {
        let info = |kind: &[u8]| {
            let attributes = [attribute(libc::IFLA_INFO_KIND, kind), attribute(2, b"\xff")].concat();
            attribute(libc::IFLA_LINKINFO, &attributes)
        };
        let name = attribute(libc::IFLA_IFNAME, b"x0\0");
        let joined = |attributes: &[Vec<u8>]| {
            let of = interface(&link(7, attributes)).unwrap();
            (of.kind, of.master, of.lower)
        };
        let vlan = [name.clone(), number(5, 2), number(10, 3), info(b"vlan\0")];
        assert_eq!(joined(&vlan), (Some("vlan".to_owned()), Some(3), Some(2)));
        let other_namespace = [name.clone(), number(5, 2), number(37, 0), info(b"veth\0")];
        assert_eq!(joined(&other_namespace), (Some("veth".to_owned()), None, None));
        assert_eq!(joined(&[name, number(5, 7), info(b"odd\xff\0")]), (Some("odd\u{fffd}".to_owned()), None, None));
    }

    #[test]
    fn programs_are_read_with_their_mode() {
        let native = [attribute(2, &[1]), number(4, 7), number(5, 7)].concat();
        assert_eq!(attached(&native), [(XdpMode::Native, 7)]);
        let several = [attribute(2, &[4]), number(6, 8), number(7, 9)].concat();
        assert_eq!(attached(&several), [(XdpMode::Generic, 8), (XdpMode::Native, 9)]);
        // For a single program, without the attribute of its mode.
        let single = |mode| attached(&[attribute(2, &[mode]), number(4, 7)].concat());
        assert_eq!([1, 2, 3].map(single), [XdpMode::Native, XdpMode::Generic, XdpMode::Native].map(|of| vec![(of, 7)]));
        assert_eq!(single(0), []);
    }

    #[test]
    fn links_that_are_cut_off_or_broken_never_panic() {
        let name = attribute(libc::IFLA_IFNAME, b"eth0\0");
        let whole = link(3, &[name.clone(), number(libc::IFLA_MTU, 1500), attribute(libc::IFLA_XDP, &number(5, 7))]);
        assert!(interface(&whole).is_some_and(|of| of.programs == [(XdpMode::Native, 7)]));
        for len in 0..whole.len() {
            assert_eq!(interface(&whole[..len]).is_some(), len >= INFO_BYTES + name.len() - 3, "{len}");
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 3, 0xff] {
                let mut broken = whole.clone();
                broken[at] = byte;
                let _ = std::panic::catch_unwind(|| interface(&broken).map(drop)).expect("no panic");
            }
        }
    }
}
