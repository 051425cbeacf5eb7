//! Strictness of a rule about ambiguous packets: UDP ports with QUIC, and packets that cannot be parsed. Pure.

use std::fmt;

use ratelimit_common::layout::QUIC_PORTS_MAX;

use crate::labels;

/// UDP ports that speak QUIC: sorted, without duplicates, at most [`QUIC_PORTS_MAX`]. The default is 443. Stored as
/// in the maps, where 0 is an unused entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicPorts([u16; QUIC_PORTS_MAX]);

impl QuicPorts {
    /// The default: port 443.
    pub const DEFAULT: Self = Self([443, 0, 0, 0, 0, 0, 0, 0]);
    /// The empty set of ports.
    pub const NONE: Self = Self([0; QUIC_PORTS_MAX]);

    /// Returns these ports, sorted and without duplicates. None if there are too many.
    pub fn new(ports: &[u16]) -> Option<Self> {
        let mut sorted: Vec<u16> = ports.iter().copied().filter(|port| *port != 0).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut all = [0; QUIC_PORTS_MAX];
        all.get_mut(..sorted.len())?.copy_from_slice(&sorted);
        Some(Self(all))
    }

    /// Returns the ports in order.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        self.0.into_iter().filter(|port| *port != 0)
    }

    /// Returns true if `port` is one of the ports.
    pub fn holds(&self, port: u16) -> bool {
        port != 0 && self.0.contains(&port)
    }

    /// Returns the ports in the layout of the maps.
    pub const fn layout(self) -> [u16; QUIC_PORTS_MAX] {
        self.0
    }
}

impl Default for QuicPorts {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for QuicPorts {
    /// Writes the ports as in flags and files: `443,8443`, or `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports: Vec<String> = self.iter().map(|port| port.to_string()).collect();
        f.write_str(if ports.is_empty() { "none".into() } else { ports.join(",") }.as_str())
    }
}

/// Treatment of packets that the program cannot parse although the network stack might: header chains that are too
/// long, or that end where other parsers may go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unparsable {
    /// They are dropped, like packets with too many tags.
    #[default]
    Drop,
    /// Each is counted as a new connection and a request.
    Count,
}

labels!(pub Unparsable { Drop => "drop", Count => "count" });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quic_ports_hold_their_maximum_once_each_and_no_more() {
        let most = [8, 7, 6, 5, 4, 3, 2, 1];
        assert_eq!(QuicPorts::new(&most).map(|ports| ports.to_string()), Some("1,2,3,4,5,6,7,8".to_owned()));
        assert_eq!(QuicPorts::new(&[[443; 9].as_slice(), &[8443, 0]].concat()).unwrap().to_string(), "443,8443");
        assert_eq!(QuicPorts::new(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), None);
    }

    #[test]
    fn none_holds_no_port_not_even_the_one_that_is_none() {
        assert!(QuicPorts::DEFAULT.holds(443) && !QuicPorts::DEFAULT.holds(0));
        assert!((0..=u16::MAX).all(|port| !QuicPorts::NONE.holds(port)));
        assert_eq!(QuicPorts::NONE.to_string(), "none");
    }
}
