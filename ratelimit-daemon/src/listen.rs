//! TCP listener, also for an address that this host does not have yet.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket};

use super::error::DaemonError;
use ratelimit_datapath::Absent;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Listens on an address. A service must not fail, and so limit nobody, because metrics are not reachable yet. If the
/// address appears later, by DHCP or with a VPN, it is served from then on.
pub(super) async fn listen(address: SocketAddr, absent: Absent) -> Result<TcpListener, DaemonError> {
    let failed = |source| DaemonError::Listen { address, source };
    match (TcpListener::bind(address).await, absent) {
        (Ok(listener), Absent::Awaited | Absent::Refused) => Ok(listener),
        (Err(error), Absent::Awaited) if error.kind() == ErrorKind::AddrNotAvailable => {
            let listener = listen_ahead(address).map_err(failed)?;
            tracing::warn!(%address, "{} is no address of this host yet: metrics are served there once it is", address.ip());
            Ok(listener)
        }
        (Err(error), Absent::Awaited | Absent::Refused) => Err(failed(error)),
    }
}

/// Listens on an address that this host does not have. Packets arrive once it does.
fn listen_ahead(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    // The option works for both families (`ipv6_setsockopt`, net/ipv6/ipv6_sockglue.c, Linux 6.18).
    setsockopt(&socket, sockopt::IpFreebind, &true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
