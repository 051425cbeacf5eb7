//! Network interfaces and their XDP programs, as the kernel lists them over netlink. Nothing is changed here.

use std::io;

use netlink_packet_core::{DefaultNla, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkInfo, LinkLayerType, LinkMessage, LinkXdp, XdpAttached};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::path::Link;
use super::{Attachment, Hook, XdpMode, bpf, generic_netlink, netlink};

/// One network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    /// MTU in bytes.
    pub(super) mtu: u32,
    /// Hardware type (`ARPHRD_`), which says what precedes the IP packet.
    pub(super) link_layer: LinkLayerType,
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
            LinkLayerType::None
                | LinkLayerType::Ppp
                | LinkLayerType::Rawip
                | LinkLayerType::Tunnel
                | LinkLayerType::Tunnel6
                | LinkLayerType::Sit
                | LinkLayerType::Ipgre
                | LinkLayerType::Ip6gre
        )
    }

    /// Returns whether frames have an Ethernet header. The loopback interface has one of zeros.
    pub(super) fn has_ethernet_header(&self) -> bool {
        matches!(self.link_layer, LinkLayerType::Ether | LinkLayerType::Loopback)
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

/// `IFLA_TARGET_NETNSID` of linux/if_link.h.
const TARGET_NAMESPACE: u16 = 46;

/// Returns every interface of the network namespace with this number, or of our own, sorted by index.
fn all_of(namespace: Option<i32>) -> io::Result<Vec<Interface>> {
    let mut asked = LinkMessage::default();
    let number = namespace.map(|number| DefaultNla::new(TARGET_NAMESPACE, number.to_ne_bytes().to_vec()));
    asked.attributes.extend(number.map(LinkAttribute::Other));
    let mut interfaces = Vec::new();
    dump(RouteNetlinkMessage::GetLink(asked), &mut |message| {
        if let RouteNetlinkMessage::NewLink(link) = message {
            interfaces.extend(interface(link));
        }
    })?;
    interfaces.sort_by_key(|interface: &Interface| interface.index);
    Ok(interfaces)
}

/// Sends a dump request and passes every received object to `take`.
#[expect(clippy::wildcard_enum_match_arm, reason = "messages of other kinds come, and more are to come")]
pub(super) fn dump(asked: RouteNetlinkMessage, take: &mut dyn FnMut(RouteNetlinkMessage)) -> io::Result<()> {
    let socket = netlink::open(NETLINK_ROUTE)?;
    let mut request = NetlinkMessage::from(asked);
    request.header.flags = NLM_F_REQUEST | NLM_F_DUMP | NLM_F_ACK;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;

    loop {
        let (reply, _) = socket.recv_from_full()?;
        let mut rest = reply.as_slice();
        while !rest.is_empty() {
            let (message, len) = next(rest)?;
            match message.payload {
                NetlinkPayload::InnerMessage(message) => take(message),
                NetlinkPayload::Done(_) => return Ok(()),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                _ => {}
            }
            rest = &rest[len..];
        }
    }
}

/// Bytes of `struct nlmsghdr` and the `struct ifinfomsg` that follows.
const HEADERS: usize = 16 + 16;
/// `RTM_NEWLINK` of linux/rtnetlink.h.
const NEW_LINK: u16 = 16;
/// `IFLA_IFNAME`, `IFLA_MTU`, `IFLA_LINK`, `IFLA_MASTER`, `IFLA_LINKINFO`, `IFLA_LINK_NETNSID` and `IFLA_XDP` of
/// linux/if_link.h.
const NAME: u16 = 3;
const INFO: u16 = 18;
const READ: [u16; 7] = [NAME, 4, 5, 10, INFO, 37, 43];
/// `IFLA_INFO_KIND` within `IFLA_LINKINFO`.
const INFO_KIND: u16 = 1;
/// Mask that removes the flag bits from an attribute's kind.
const KIND: u16 = 0x3fff;

/// Returns the next message and its length including padding.
fn next(rest: &[u8]) -> io::Result<(NetlinkMessage<RouteNetlinkMessage>, usize)> {
    let length = rest.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes) as usize);
    let Some(bytes) = rest.get(..length).filter(|bytes| !bytes.is_empty()) else {
        return Err(io::Error::other(format!("a netlink message of {length} bytes, of which {} arrived", rest.len())));
    };
    let message = NetlinkMessage::deserialize(&lean(bytes)).map_err(io::Error::other)?;
    Ok((message, length.next_multiple_of(4).min(rest.len())))
}

/// Copies a message with only the attributes that are read. Names, aliases and port names need not be UTF-8, and anyone
/// who makes an interface chooses them. One such text must not hide all other interfaces.
fn lean(message: &[u8]) -> Vec<u8> {
    let kind = message.get(4..6).and_then(|bytes| bytes.first_chunk()).map(|bytes| u16::from_ne_bytes(*bytes));
    let Some(mut lean) = message.get(..HEADERS).filter(|_| kind == Some(NEW_LINK)).map(<[u8]>::to_vec) else {
        return message.to_vec();
    };
    for (kind, value) in attributes(&message[HEADERS..]).filter(|(kind, _)| READ.contains(&(kind & KIND))) {
        match kind & KIND {
            NAME => push(&mut lean, kind, String::from_utf8_lossy(value).as_bytes()),
            INFO => {
                let mut kept = Vec::new();
                for (kind, value) in attributes(value).filter(|(kind, _)| kind & KIND == INFO_KIND) {
                    push(&mut kept, kind, String::from_utf8_lossy(value).as_bytes());
                }
                push(&mut lean, kind, &kept);
            }
            _ => push(&mut lean, kind, value),
        }
    }
    let length = u32::try_from(lean.len()).unwrap_or(u32::MAX);
    lean[..4].copy_from_slice(&length.to_ne_bytes());
    lean
}

/// Returns kind and value of each attribute, up to the first that is cut off.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [a, b, c, d] = *rest.first_chunk()?;
        let (length, kind) = (usize::from(u16::from_ne_bytes([a, b])), u16::from_ne_bytes([c, d]));
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Appends one attribute, padded to four bytes.
fn push(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    bytes.extend(length.to_ne_bytes().into_iter().chain(kind.to_ne_bytes()).chain(value.iter().copied()));
    bytes.resize(bytes.len().next_multiple_of(4), 0);
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

#[expect(clippy::wildcard_enum_match_arm, reason = "seven of some sixty attributes matter")]
fn interface(link: LinkMessage) -> Option<Interface> {
    let mut name = None;
    let mut mtu = 0;
    let mut programs = Vec::new();
    let (mut kind, mut master, mut joined, mut namespace) = (None, None, None, None);
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(value) => name = Some(value),
            LinkAttribute::Mtu(value) => mtu = value,
            LinkAttribute::Xdp(xdp) => programs = attached(&xdp),
            LinkAttribute::Controller(index) => master = Some(index).filter(|index| *index != 0),
            LinkAttribute::Link(index) => joined = Some(index).filter(|index| *index != 0),
            LinkAttribute::LinkNetNsId(number) => namespace = Some(number),
            LinkAttribute::LinkInfo(infos) => {
                kind = infos.into_iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    let index = link.header.index;
    // Hardware names its own index as the lower interface.
    let lower = joined.filter(|lower| namespace.is_none() && *lower != index);
    let other_end = joined.map(|index| OtherEnd { index, namespace });
    let link_layer = link.header.link_layer_type;
    Some(Interface { name: name?, index, mtu, link_layer, programs, kind, master, lower, other_end })
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the kernel may say more than is asked")]
fn attached(xdp: &[LinkXdp]) -> Vec<(XdpMode, u32)> {
    let mut mode = None;
    let mut programs = Vec::new();
    for attribute in xdp {
        match attribute {
            LinkXdp::Attached(XdpAttached::Driver | XdpAttached::Hardware) => mode = Some(XdpMode::Native),
            LinkXdp::Attached(XdpAttached::SocketBuffer) => mode = Some(XdpMode::Generic),
            LinkXdp::DrvProgId(id) | LinkXdp::HwProgId(id) => programs.push((XdpMode::Native, *id)),
            LinkXdp::SkbProgId(id) => programs.push((XdpMode::Generic, *id)),
            _ => {}
        }
    }
    // For a single attached program, some kernels report only its id and its mode.
    if programs.is_empty()
        && let Some(mode) = mode
    {
        programs.extend(xdp.iter().filter_map(|attribute| match attribute {
            LinkXdp::ProgId(id) => Some((mode, *id)),
            _ => None,
        }));
    }
    programs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn link(index: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0; HEADERS];
        bytes.extend(attributes.concat());
        let length = u32::try_from(bytes.len()).unwrap();
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..6].copy_from_slice(&NEW_LINK.to_ne_bytes());
        // ARPHRD_ETHER and the index in `struct ifinfomsg`.
        bytes[18..20].copy_from_slice(&1_u16.to_ne_bytes());
        bytes[20..24].copy_from_slice(&index.to_ne_bytes());
        bytes
    }

    /// Returns the name, index and MTU of each interface.
    fn read(mut bytes: &[u8]) -> io::Result<Vec<(String, u32, u32)>> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let (message, len) = next(bytes)?;
            let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) = message.payload else {
                panic!("no link")
            };
            all.extend(interface(link).map(|of| (of.name, of.index, of.mtu)));
            bytes = &bytes[len..];
        }
        Ok(all)
    }

    #[test]
    fn non_utf8_text_in_one_interface_hides_no_other() {
        const ALIAS: u16 = 20;
        const PORT: u16 = 38;
        let mtu = attribute(4, &1500_u32.to_ne_bytes());
        let odd =
            [attribute(NAME, b"a\xff\xfeb\0"), attribute(ALIAS, b"\xff"), attribute(PORT, b"\xfe\0"), mtu.clone()];
        let plain = [attribute(NAME, b"eth0\0"), mtu, attribute(9999, b"?")];
        let bytes = [link(2, &odd), link(3, &plain)].concat();
        let expected = [("a\u{fffd}\u{fffd}b".to_owned(), 2, 1500), ("eth0".to_owned(), 3, 1500)];
        assert_eq!(read(&bytes).unwrap(), expected);
    }

    #[test]
    fn kind_port_and_lower_interface_are_read_and_an_index_of_another_namespace_is_not() {
        let info = |kind: &[u8]| attribute(INFO, &[attribute(INFO_KIND, kind), attribute(2, b"\xff")].concat());
        let number = |kind: u16, value: u32| attribute(kind, &value.to_ne_bytes());
        let name = attribute(NAME, b"x0\0");
        let joined = |attributes: &[Vec<u8>]| {
            let (message, _) = next(&link(7, attributes)).unwrap();
            let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) = message.payload else {
                panic!("no link")
            };
            let of = interface(link).unwrap();
            (of.kind, of.master, of.lower)
        };
        let vlan = [name.clone(), number(5, 2), number(10, 3), info(b"vlan\0")];
        assert_eq!(joined(&vlan), (Some("vlan".to_owned()), Some(3), Some(2)));
        let other_namespace = [name.clone(), number(5, 2), number(37, 0), info(b"veth\0")];
        assert_eq!(joined(&other_namespace), (Some("veth".to_owned()), None, None));
        assert_eq!(joined(&[name, number(5, 7), info(b"odd\xff\0")]), (Some("odd\u{fffd}".to_owned()), None, None));
    }

    #[test]
    fn truncated_link_messages_are_errors_and_never_panic() {
        let whole = link(3, &[attribute(NAME, b"eth0\0"), attribute(4, &1500_u32.to_ne_bytes())]);
        for len in 1..whole.len() {
            assert!(read(&whole[..len]).is_err(), "{len}");
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 3, 0xff] {
                let mut broken = whole.clone();
                broken[at] = byte;
                let _ = std::panic::catch_unwind(|| next(&broken).map(drop)).expect("no panic");
            }
        }
    }
}
