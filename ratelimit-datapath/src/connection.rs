//! A TCP connection of this host, as a value.

use std::net::IpAddr;

/// A TCP connection of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Address of the peer.
    pub remote: IpAddr,
    /// Local address. IPv4 even if an IPv6 socket carries the connection.
    pub local: IpAddr,
    /// Local port.
    pub port: u16,
    /// Socket that carries the connection.
    pub socket: SocketName,
}

impl Connection {
    /// Returns a connection that no kernel has, for fakes.
    pub const fn fake(remote: IpAddr, local: IpAddr, port: u16) -> Self {
        Self { remote, local, port, socket: SocketName { family: 0, name: [0; SocketName::BYTES] } }
    }
}

/// Family of a socket, and the kernel's name for it. The name includes a number that no later connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketName {
    /// Address family, `AF_INET` or `AF_INET6`.
    pub family: u8,
    /// `struct inet_diag_sockid` (include/uapi/linux/inet_diag.h, Linux 6.18).
    pub name: [u8; Self::BYTES],
}

impl SocketName {
    /// Size in bytes of `struct inet_diag_sockid`.
    pub const BYTES: usize = 48;
}

/// Result of ending connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Number of ended connections.
    pub ended: u64,
    /// Number of selected connections that remain open.
    pub left: u64,
}
