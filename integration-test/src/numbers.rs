//! Sequence numbers of a connection as its own end knows them, for tests that write its segments by hand.

use std::net::TcpStream;

use nix::sys::socket::{getsockopt, setsockopt, sockopt::TcpRepair};
use nix::{getsockopt_impl, libc, setsockopt_impl, sockopt_impl};

sockopt_impl!(
    /// Queue that is queried next.
    RepairQueue, SetOnly, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, u32
);
sockopt_impl!(
    /// Sequence number of the selected queue.
    QueueSequence, GetOnly, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, u32
);

/// Returns the sequence numbers of the next byte to send and of the next byte to receive. Needs `CAP_NET_ADMIN`.
/// Nothing is sent.
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

/// Socket option's `struct tcp_repair_window` (include/uapi/linux/tcp.h).
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
    /// Windows of a socket.
    RepairWindow, Both, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, Windows
);

/// Sets a socket's receive window to `bytes` more than it has received. Needs `CAP_NET_ADMIN`. Nothing is sent.
pub fn widen(stream: &TcpStream, bytes: u32) -> nix::Result<()> {
    setsockopt(stream, TcpRepair, &1)?;
    let windows = getsockopt(stream, RepairWindow);
    let widened = windows.and_then(|now| setsockopt(stream, RepairWindow, &Windows { receives: bytes, ..now }));
    setsockopt(stream, TcpRepair, &u32::MAX)?;
    widened
}
