//! Raw frames, sent byte for byte, including tags and invalid fields.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{RcvBufForce, ReceiveTimestampns};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrLike, bind, recv, recvmsg,
    send, setsockopt, socket,
};
use nix::sys::time::TimeSpec;

use crate::Namespace;

/// Receive buffer of a listener in bytes, enough for some hundred thousand short frames.
const HEARD_BYTES_MAX: usize = 128 << 20;

/// A packet socket on one interface of a namespace.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
    interface: String,
}

impl PacketSocket {
    /// Opens a socket that only sends.
    ///
    /// # Errors
    /// Fails if the namespace has no such interface, or without CAP_NET_RAW.
    pub fn sender(namespace: &Namespace, interface: &str) -> Result<Self> {
        Self::open(namespace, interface, 0)
    }

    /// Opens a socket that also receives every frame.
    ///
    /// # Errors
    /// Fails as [`PacketSocket::sender`] does.
    pub fn listener(namespace: &Namespace, interface: &str) -> Result<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "an EtherType, 3")]
        let all = (libc::ETH_P_ALL as u16).to_be();
        let listener = Self::open(namespace, interface, all)?;
        setsockopt(&listener.socket, RcvBufForce, &HEARD_BYTES_MAX).context("make room for what is heard")?;
        setsockopt(&listener.socket, ReceiveTimestampns, &true).context("ask for the time of each frame")?;
        Ok(listener)
    }

    fn open(namespace: &Namespace, interface: &str, protocol: u16) -> Result<Self> {
        namespace.inside(|| {
            let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)
                .context("open a packet socket")?;
            bind(socket.as_raw_fd(), &link(interface, protocol)?)
                .with_context(|| format!("bind a packet socket to {interface}"))?;
            Ok(Self { socket, interface: interface.to_owned() })
        })
    }

    /// Sends a frame, and waits while the queue is full.
    ///
    /// # Errors
    /// Fails if the kernel refuses the frame.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        loop {
            match send(self.socket.as_raw_fd(), frame, MsgFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(Errno::ENOBUFS | Errno::EINTR | Errno::EAGAIN) => std::thread::yield_now(),
                Err(errno) => return Err(errno).with_context(|| format!("send on {}", self.interface)),
            }
        }
    }

    /// Returns the next received frame, or `None` if there is none now.
    ///
    /// # Errors
    /// Fails if the socket fails.
    pub fn receive(&self) -> Result<Option<Vec<u8>>> {
        let mut frame = vec![0; 65_536];
        match recv(self.socket.as_raw_fd(), &mut frame, MsgFlags::MSG_DONTWAIT) {
            Ok(len) => {
                frame.truncate(len);
                Ok(Some(frame))
            }
            Err(Errno::EAGAIN) => Ok(None),
            Err(errno) => Err(errno).with_context(|| format!("receive on {}", self.interface)),
        }
    }

    /// Writes the next received frame into `frame`. Returns its length, or `None` if none arrives within `wait`.
    pub(crate) fn receive_within(&self, wait: Duration, frame: &mut [u8]) -> Result<Option<usize>> {
        let mut watched = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
        match poll(&mut watched, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno).with_context(|| format!("wait for {}", self.interface)),
        }
        match recv(self.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT) {
            Ok(len) => Ok(Some(len)),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            Err(errno) => Err(errno).with_context(|| format!("receive on {}", self.interface)),
        }
    }

    /// Returns the next received frame, and the time at which the stack took it, by the wall clock since 1970.
    ///
    /// # Errors
    /// Fails if the socket fails.
    pub fn receive_at(&self) -> Result<Option<(Duration, Vec<u8>)>> {
        let mut frame = vec![0; 2048];
        let mut control = nix::cmsg_space!(TimeSpec);
        let mut parts = [IoSliceMut::new(&mut frame)];
        let received =
            recvmsg::<LinkAddr>(self.socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::MSG_DONTWAIT);
        let message = match received {
            Ok(message) => message,
            Err(Errno::EAGAIN) => return Ok(None),
            Err(errno) => return Err(errno).with_context(|| format!("receive on {}", self.interface)),
        };
        let len = message.bytes;
        let stamp = message.cmsgs()?.find_map(|control| {
            if let ControlMessageOwned::ScmTimestampns(stamp) = control { Some(Duration::from(stamp)) } else { None }
        });
        let at = stamp.context("the kernel stamps what a listener hears")?;
        frame.truncate(len);
        Ok(Some((at, frame)))
    }
}

/// Returns the link-layer address of an interface of this thread's namespace.
fn link(interface: &str, protocol: u16) -> Result<LinkAddr> {
    let index = nix::net::if_::if_nametoindex(interface).with_context(|| format!("no interface {interface}"))?;
    let address = libc::sockaddr_ll {
        #[expect(clippy::cast_possible_truncation, reason = "an address family, 17")]
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol,
        sll_ifindex: i32::try_from(index).context("an interface index fits")?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = u32::try_from(size_of_val(&address)).context("a socket address is short")?;
    // SAFETY: the pointer is to a whole sockaddr_ll of the stated family, alive for the call. Its bytes are copied.
    let link = unsafe { LinkAddr::from_raw((&raw const address).cast(), Some(len)) };
    link.context("a link address")
}
