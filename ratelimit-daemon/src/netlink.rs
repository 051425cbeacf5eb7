//! Notices that some network interface came, went or changed.
//!
//! Parses nothing: what became of which interface is read from the datapath, so a message is only a reason to look. That
//! needs no netlink library, and a lost message costs nothing, since the daemon looks every two seconds anyway.

use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket};
use tokio::net::UnixDatagram;

/// `RTMGRP_LINK`, include/uapi/linux/rtnetlink.h.
const GROUP_LINK: u32 = 1;

/// Room for the start of a message: the rest is cut off unread.
const MESSAGE_BYTES: usize = 64;

/// Messages taken at once, so that a flood of them becomes one look.
const BATCH_MAX: usize = 1024;

/// The kernel's announcements of link changes, in the network namespace that it was opened in.
#[derive(Debug)]
pub struct LinkEvents {
    /// A netlink socket. All that is asked of it is poll(2) and recv(2), which are the same for every datagram socket; tokio's
    /// own type for any descriptor needs `unsafe`.
    socket: UnixDatagram,
}

impl LinkEvents {
    /// Subscribes. Needs no privilege.
    ///
    /// # Errors
    /// Where the kernel gives no socket.
    pub fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUP_LINK))?;
        Ok(Self { socket: UnixDatagram::from_std(socket.into())? })
    }

    /// Waits until something has changed since the last call.
    ///
    /// # Errors
    /// Where the socket fails; what was lost for want of room is no error.
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

/// Messages that were lost for want of room (ENOBUFS) were heard too: something has changed.
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
