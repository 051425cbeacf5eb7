//! A network interface whose packets a test reads and writes: IP alone, with no Ethernet header.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::libc;

use crate::namespace::Namespace;

/// `TUNSETIFF` of linux/if_tun.h.
const SET: libc::c_ulong = 0x4004_54ca;
/// `IFF_TUN | IFF_NO_PI`, likewise.
const PLAIN: u16 = 0x0001 | 0x1000;

/// `struct ifreq`, with flags for its data.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    flags: u16,
    rest: [u8; 22],
}

/// The other end of such an interface, which is gone when this is dropped.
#[derive(Debug)]
pub struct Tun(File);

impl Tun {
    /// Makes one with this address, and sets it up.
    ///
    /// # Errors
    /// If there is no `/dev/net/tun`, or the kernel refuses.
    pub fn new(namespace: &Namespace, name: &str, address: &str) -> Result<Self> {
        let file = namespace.inside(|| {
            let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").context("open /dev/net/tun")?;
            let mut request = Request { name: [0; libc::IFNAMSIZ], flags: PLAIN, rest: [0; 22] };
            // The last one stays 0.
            for (to, from) in request.name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
                *to = from;
            }
            // SAFETY: the request lives until the call returns, and is as long as the kernel's own.
            let result = unsafe { libc::ioctl(file.as_raw_fd(), SET, &raw mut request) };
            Errno::result(result).with_context(|| format!("make {name}"))?;
            Ok(file)
        })?;
        namespace.add_address(name, address)?;
        namespace.ip(&["link", "set", name, "up"])?;
        Ok(Self(file))
    }

    /// Has a packet come in.
    ///
    /// # Errors
    /// If the interface does not take it.
    pub fn send(&mut self, packet: &[u8]) -> Result<()> {
        self.0.write_all(packet).context("write a packet")
    }
}
