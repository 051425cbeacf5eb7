//! A TUN interface for tests, which read and write its packets: IP only, without an Ethernet header.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::namespace::Namespace;

/// Request number `TUNSETIFF` of linux/if_tun.h.
const SET: libc::c_ulong = 0x4004_54ca;
/// Flags `IFF_TUN | IFF_NO_PI` of linux/if_tun.h.
const PLAIN: u16 = 0x0001 | 0x1000;

/// `struct ifreq` of linux/if.h, with flags as its data.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    flags: u16,
    rest: [u8; 22],
}

/// The user-space end of a TUN interface, which is removed when this is dropped.
#[derive(Debug)]
pub struct Tun(File);

impl Tun {
    /// Creates an interface with this address, and sets it up.
    ///
    /// # Errors
    /// Fails if there is no `/dev/net/tun`, or if the kernel refuses.
    pub fn new(namespace: &Namespace, name: &str, address: &str) -> Result<Self> {
        let file = namespace.inside(|| {
            let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").context("open /dev/net/tun")?;
            let mut request = Request { name: [0; libc::IFNAMSIZ], flags: PLAIN, rest: [0; 22] };
            // The last byte stays 0.
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

    /// Delivers a packet to the interface as incoming.
    ///
    /// # Errors
    /// Fails if the interface does not accept the packet.
    pub fn send(&mut self, packet: &[u8]) -> Result<()> {
        self.0.write_all(packet).context("write a packet")
    }
}

/// Two TUN interfaces that exchange their packets until this is dropped.
#[derive(Debug)]
pub struct TunPair {
    is_over: Arc<AtomicBool>,
    carriers: Vec<JoinHandle<()>>,
}

/// Time in milliseconds that a carrier waits for a packet before it checks whether it should stop.
const LOOKS_AFTER_MS: u16 = 50;
/// Upper bound of a packet's length in bytes.
const PACKET_BYTES_MAX: usize = 1 << 16;

impl TunPair {
    /// Joins two interfaces.
    ///
    /// # Errors
    /// Fails if a file cannot be cloned.
    pub fn new([first, second]: [Tun; 2]) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let back = (second.0.try_clone().context("clone a file")?, first.0.try_clone().context("clone a file")?);
        let carriers = [(first.0, second.0), back].map(|(from, to)| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || carry(from, to, &is_over))
        });
        Ok(Self { is_over, carriers: carriers.into() })
    }
}

fn carry(mut from: File, mut to: File, is_over: &AtomicBool) {
    let mut packet = vec![0; PACKET_BYTES_MAX];
    while !is_over.load(Ordering::Relaxed) {
        let mut waits = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
        if poll(&mut waits, PollTimeout::from(LOOKS_AFTER_MS)) != Ok(1) {
            continue;
        }
        // Packets that an interface does not accept are lost.
        let Ok(bytes) = from.read(&mut packet) else { continue };
        let _lost = to.write_all(&packet[..bytes]);
    }
}

impl Drop for TunPair {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for carrier in self.carriers.drain(..) {
            // A carrier returns nothing.
            let _ended = carrier.join();
        }
    }
}
