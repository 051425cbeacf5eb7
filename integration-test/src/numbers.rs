//! The sequence numbers of a connection, as its own end knows them: for who writes its segments by hand.

use std::net::TcpStream;

use nix::sys::socket::{getsockopt, setsockopt, sockopt::TcpRepair};
use nix::{getsockopt_impl, libc, setsockopt_impl, sockopt_impl};

sockopt_impl!(
    /// Which queue is asked for.
    RepairQueue, SetOnly, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, u32
);
sockopt_impl!(
    /// Its number.
    QueueSequence, GetOnly, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, u32
);

/// The number of the byte that is sent next, and of the one that is received next. Needs `CAP_NET_ADMIN`. Nothing is
/// sent for it.
pub fn of(stream: &TcpStream) -> nix::Result<(u32, u32)> {
    // include/uapi/linux/tcp.h: TCP_RECV_QUEUE, TCP_SEND_QUEUE, and the end of a repair without a probe.
    const RECEIVES: u32 = 1;
    const SENDS: u32 = 2;
    setsockopt(stream, TcpRepair, &1)?;
    let of = |queue| {
        setsockopt(stream, RepairQueue, &queue)?;
        getsockopt(stream, QueueSequence)
    };
    let numbers = (of(SENDS), of(RECEIVES));
    setsockopt(stream, TcpRepair, &u32::MAX)?;
    Ok((numbers.0?, numbers.1?))
}

/// `struct tcp_repair_window` (include/uapi/linux/tcp.h).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Windows {
    heard_at: u32,
    peers: u32,
    peers_max: u32,
    receives: u32,
    told_at: u32,
}

sockopt_impl!(
    /// Its windows.
    RepairWindow, Both, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, Windows
);

/// Has a socket take so many bytes more than it has. Needs `CAP_NET_ADMIN`. Nothing is sent for it.
pub fn widen(stream: &TcpStream, bytes: u32) -> nix::Result<()> {
    setsockopt(stream, TcpRepair, &1)?;
    let windows = getsockopt(stream, RepairWindow);
    let widened = windows.and_then(|now| setsockopt(stream, RepairWindow, &Windows { receives: bytes, ..now }));
    setsockopt(stream, TcpRepair, &u32::MAX)?;
    widened
}
