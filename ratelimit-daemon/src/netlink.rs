//! Announcements that some network interface appeared, vanished or changed.
//!
//! Messages are not parsed, because the state of interfaces is read from the datapath. A message is only a reason to
//! look, so no netlink library is needed. A lost message costs nothing, because the daemon looks every two seconds
//! anyway.

use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket};
use tokio::net::UnixDatagram;

/// Multicast group of link changes: `RTMGRP_LINK`, include/uapi/linux/rtnetlink.h.
const GROUP_LINK: u32 = 1;

/// Buffer size in bytes for the start of a message. The rest is discarded unread.
const MESSAGE_BYTES: usize = 64;

/// Maximum number of messages taken at once, so that a flood of them causes one look.
const BATCH_MAX: usize = 1024;

/// Subscription to the kernel's link changes, in the network namespace of the caller of [`LinkEvents::open`].
#[derive(Debug)]
pub struct LinkEvents {
    /// Netlink socket, typed as a datagram socket. Only poll(2) and recv(2) are used, which work the same on both.
    /// Tokio's own type for arbitrary descriptors needs `unsafe`.
    socket: UnixDatagram,
}

impl LinkEvents {
    /// Subscribes to link changes. Needs no privilege.
    ///
    /// # Errors
    /// Fails if the kernel provides no socket.
    pub fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUP_LINK))?;
        Ok(Self { socket: UnixDatagram::from_std(socket.into())? })
    }

    /// Waits until something has changed since the last call.
    ///
    /// # Errors
    /// Fails if the socket does. Messages lost for lack of buffer space are not an error.
    pub async fn changed(&mut self) -> io::Result<()> {
        let mut message = [0; MESSAGE_BYTES];
        heard(self.socket.recv(&mut message).await)?;
        for _ in 0..BATCH_MAX {
            match self.socket.try_recv(&mut message) {
                Err(empty) if empty.kind() == io::ErrorKind::WouldBlock => break,
                more => heard(more)?,
            }
        }
        Ok(())
    }
}

/// Treats messages lost for lack of buffer space (ENOBUFS) as received, because something has changed.
fn heard(received: io::Result<usize>) -> io::Result<()> {
    match received {
        Err(error) if error.raw_os_error() != Some(Errno::ENOBUFS as i32) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_subscription_opens_and_stays_quiet_while_nothing_changes() {
        let mut events = LinkEvents::open().unwrap();
        let quiet = tokio::time::timeout(std::time::Duration::from_millis(20), events.changed()).await;
        assert!(quiet.is_err() || quiet.is_ok_and(|changed| changed.is_ok()), "another's link may change meanwhile");
    }
}
