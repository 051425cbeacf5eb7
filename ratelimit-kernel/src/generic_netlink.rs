//! Facts that drivers report beyond routing netlink, from the generic netlink families `ethtool` and `netdev`
//! (Documentation/netlink/specs, Linux 6.18). Nothing is changed here. Messages are nested attributes. No maintained
//! library has both families.

use std::io;

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_GENERIC;

use crate::netlink::{self, Message, attribute, attributes, find};

/// Values of include/uapi/linux/genetlink.h: the controller, its query for a family, and the family's id and name.
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// `NLM_F_REQUEST`, and the flag of an attribute that holds attributes.
const REQUEST: u16 = 1;
const NESTED: u16 = 1 << 15;

/// Bytes of `struct genlmsghdr`.
const HEADER_BYTES: usize = 4;

/// Values of include/uapi/linux/netdev.h.
const DEV_GET: u8 = 1;
const DEV_IFINDEX: u16 = 1;
const DEV_XDP_FEATURES: u16 = 3;

/// Values of include/uapi/linux/ethtool_netlink.h.
const FEATURES_GET: u8 = 11;
const CHANNELS_GET: u8 = 17;
const HEADER: u16 = 1;
const HEADER_DEV_INDEX: u16 = 1;
const FEATURES_ACTIVE: u16 = 4;
const BITSET_BITS: u16 = 3;
const BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const CHANNELS_RX_COUNT: u16 = 6;
const CHANNELS_COMBINED_COUNT: u16 = 9;

/// Socket and id of a generic netlink family.
pub(super) struct Family {
    socket: Socket,
    id: u16,
}

impl Family {
    /// Asks the kernel for a family by name.
    ///
    /// # Errors
    /// Fails if the kernel has no family with that name.
    pub(super) fn named(name: &str) -> io::Result<Self> {
        let mut family = Self { socket: netlink::open(NETLINK_GENERIC)?, id: CONTROLLER };
        let answer = family.ask(GET_FAMILY, &attribute(FAMILY_NAME, &[name.as_bytes(), &[0]].concat()))?;
        let id = find(&answer, FAMILY_ID).and_then(|of| of.first_chunk().copied());
        family.id = u16::from_ne_bytes(id.ok_or_else(|| io::Error::other("a family without a number"))?);
        Ok(family)
    }

    /// Sends a command and returns the attributes of the answer.
    fn ask(&self, command: u8, attributes: &[u8]) -> io::Result<Vec<u8>> {
        let body = [&[command, 1, 0, 0], attributes].concat();
        self.socket.send(&netlink::request(self.id, REQUEST, &body), 0)?;
        let (reply, _) = self.socket.recv_from_full()?;
        answer(&reply).map(<[u8]>::to_vec)
    }
}

/// Returns the XDP features that a driver reports (`enum netdev_xdp_act`), from Linux 6.3 on.
///
/// # Errors
/// Returns the kernel's error. Older kernels have no such family.
pub(super) fn xdp_features(index: u32) -> io::Result<u64> {
    let answer = Family::named("netdev")?.ask(DEV_GET, &attribute(DEV_IFINDEX, &index.to_ne_bytes()))?;
    let of = find(&answer, DEV_XDP_FEATURES).and_then(|of| of.first_chunk().copied());
    of.map(u64::from_ne_bytes).ok_or_else(|| io::Error::other("the kernel does not say"))
}

/// Returns the names of the enabled offloads as in `ethtool -k`: `rx-lro`, `rx-gro-hw`, `rx-vlan-hw-parse`.
///
/// # Errors
/// Returns the kernel's error.
pub(super) fn offloads(index: u32) -> io::Result<Vec<String>> {
    let answer = Family::named("ethtool")?.ask(FEATURES_GET, &device(index))?;
    let bits = find(&answer, FEATURES_ACTIVE).and_then(|active| find(active, BITSET_BITS)).unwrap_or_default();
    let name = |(kind, bit)| find(bit, BIT_NAME).filter(|_| kind == BIT).map(netlink::text);
    Ok(attributes(bits).filter_map(name).collect())
}

/// Returns the number of receive queues.
///
/// # Errors
/// Returns the kernel's error. Many virtual devices report no number.
pub(super) fn receive_queues(index: u32) -> io::Result<u32> {
    let answer = Family::named("ethtool")?.ask(CHANNELS_GET, &device(index))?;
    let count = |kind| netlink::find_u32(&answer, kind).unwrap_or(0);
    match count(CHANNELS_RX_COUNT) + count(CHANNELS_COMBINED_COUNT) {
        0 => Err(io::Error::other("the driver does not say")),
        queues => Ok(queues),
    }
}

fn device(index: u32) -> Vec<u8> {
    attribute(HEADER | NESTED, &attribute(HEADER_DEV_INDEX, &index.to_ne_bytes()))
}

/// Returns the attributes of a message, or its error.
fn answer(message: &[u8]) -> io::Result<&[u8]> {
    let of = match netlink::messages(message).next() {
        Some(Message::Of(_, body)) => body.get(HEADER_BYTES..),
        Some(Message::Answer(Err(error))) => return Err(error),
        Some(Message::Answer(Ok(())) | Message::Done) | None => None,
    };
    of.ok_or_else(|| io::Error::other("a netlink message that ends too early"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_the_kernels_and_a_short_message_is_one_too() {
        let message = netlink::request(2, 0, &(-libc::EOPNOTSUPP).to_ne_bytes());
        assert_eq!(answer(&message).unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
        for len in 0..message.len() {
            assert!(answer(&message[..len]).is_err(), "{len}");
        }
    }
}
