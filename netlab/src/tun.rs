//! A network interface whose packets a test reads and writes: IP alone, with no Ethernet header.

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

/// Two such interfaces, each of which has come in what the other has sent, until this is dropped.
#[derive(Debug)]
pub struct TunPair {
    is_over: Arc<AtomicBool>,
    carriers: Vec<JoinHandle<()>>,
}

/// How long a carrier waits for a packet before it looks whether it is over.
const LOOKS_AFTER_MS: u16 = 50;
/// No packet is longer.
const PACKET_BYTES_MAX: usize = 1 << 16;

impl TunPair {
    /// Joins these.
    ///
    /// # Errors
    /// If a file cannot be opened once more.
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
        // What an interface does not take, or has no more, is lost.
        let Ok(bytes) = from.read(&mut packet) else { continue };
        let _lost = to.write_all(&packet[..bytes]);
    }
}

impl Drop for TunPair {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for carrier in self.carriers.drain(..) {
            // It has no more to say.
            let _ended = carrier.join();
        }
    }
}
