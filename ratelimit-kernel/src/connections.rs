//! The host's own TCP connections and their termination (`sock_diag`, include/uapi/linux/{sock_diag,inet_diag}.h, Linux
//! 6.18). Only connections of the thread's network namespace are seen. The caller decides which ones to end.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use crate::netlink::{self, Message};
use crate::{Connection, Ended, SocketName};

/// Message types: list sockets, and destroy one.
const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;

/// `NLM_F_REQUEST` with `NLM_F_ACK`.
const ONE: u16 = 1 | 4;

const TCP: u8 = 6;
/// Mask of the TCP states to list. Left out are unfinished handshakes (3, 12), which the kernel would forget silently.
/// Also left out are sockets that wait for late segments (6), are closed (7) or listen (10).
const STATES: u32 = 0x1fff & !(1 << 0 | 1 << 3 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 12);

/// Size in bytes of `struct inet_diag_sockid`, and its offset in `struct inet_diag_msg`.
const NAME_BYTES: usize = SocketName::BYTES;
const NAME_AT: usize = 4;
/// Offsets of the addresses in `struct inet_diag_sockid`.
const LOCAL_AT: usize = 4;
const REMOTE_AT: usize = 20;

/// Ends the connections that `wanted` selects, at most `most` of them.
///
/// # Errors
/// Returns the kernel's error: `EOPNOTSUPP` if built without `INET_DIAG_DESTROY`, `EPERM` without CAP_NET_ADMIN.
/// Connections before the failing one are ended.
pub fn end(wanted: &mut dyn FnMut(&Connection) -> bool, most: usize) -> io::Result<Ended> {
    let mut of = Ended::default();
    let mut first = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6].map(|family| u8::try_from(family).unwrap_or(0)) {
        visit(family, &mut |connection| match (wanted(&connection), first.len() < most) {
            (true, true) => first.push(connection),
            (true, false) => of.left += 1,
            (false, _) => {}
        })?;
    }
    let mut socket = open()?;
    for connection in first {
        match destroy(&mut socket, &connection) {
            Ok(()) => of.ended += 1,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(of)
}

/// Returns whether this kernel can end connections: it lists them, and reports a missing one as missing.
///
/// # Errors
/// Returns any other error of the kernel.
pub fn can_end() -> io::Result<bool> {
    let none = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let family = u8::try_from(libc::AF_INET).unwrap_or(0);
    let socket = SocketName { family, name: [0; NAME_BYTES] };
    let nobody = Connection { remote: none, local: none, port: 0, socket };
    // Without inet_diag, the kernel knows neither message type.
    match visit(family, &mut |_| {}) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
        Ok(()) | Err(_) => {}
    }
    match destroy(&mut open()?, &nobody) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(true),
        Err(error) => Err(error),
        Ok(()) => Ok(true),
    }
}

fn open() -> io::Result<Socket> {
    netlink::open(NETLINK_SOCK_DIAG)
}

fn visit(family: u8, each: &mut dyn FnMut(Connection)) -> io::Result<()> {
    let question = question(family, [0; NAME_BYTES]);
    netlink::dump(&open()?, BY_FAMILY, &question, &mut |_, message| of(message).into_iter().for_each(&mut *each))
}

fn destroy(socket: &mut Socket, of: &Connection) -> io::Result<()> {
    socket.send(&netlink::request(DESTROY, ONE, &question(of.socket.family, of.socket.name)), 0)?;
    let (messages, _) = socket.recv_from_full()?;
    let answer = netlink::messages(&messages).find_map(|message| match message {
        Message::Answer(answer) => Some(answer),
        Message::Of(..) | Message::Done => None,
    });
    answer.unwrap_or_else(|| Err(io::Error::other("the kernel does not say whether it ended a connection")))
}

/// Builds a `struct inet_diag_req_v2`.
fn question(family: u8, name: [u8; NAME_BYTES]) -> Vec<u8> {
    let mut bytes = vec![family, TCP, 0, 0];
    bytes.extend(STATES.to_ne_bytes());
    bytes.extend(name);
    bytes
}

/// Parses a `struct inet_diag_msg`. Returns none if the message is cut off or of another family.
fn of(message: &[u8]) -> Option<Connection> {
    let family = *message.first()?;
    let name: [u8; NAME_BYTES] = message.get(NAME_AT..NAME_AT + NAME_BYTES)?.try_into().ok()?;
    let address = |at: usize| match i32::from(family) {
        libc::AF_INET => name.get(at..)?.first_chunk().map(|bytes: &[u8; 4]| IpAddr::from(*bytes)),
        libc::AF_INET6 => name.get(at..)?.first_chunk().map(|bytes| Ipv6Addr::from_octets(*bytes).to_canonical()),
        _ => None,
    };
    let port = u16::from_be_bytes(*name.first_chunk()?);
    let socket = SocketName { family, name };
    Some(Connection { remote: address(REMOTE_AT)?, local: address(LOCAL_AT)?, port, socket })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn message(family: i32, local: &[u8], remote: &[u8]) -> Vec<u8> {
        let mut bytes = vec![u8::try_from(family).unwrap(), 1, 0, 0, 0x01, 0xbb, 0x9c, 0x40];
        for address in [local, remote] {
            bytes.extend(address);
            bytes.resize(bytes.len() + 16 - address.len(), 0);
        }
        bytes.extend([0; 4 + 8 + 20]);
        bytes
    }

    #[test]
    fn a_socket_of_ipv6_that_speaks_ipv4_is_one_of_ipv4() {
        let mapped = |last| [&[0; 10][..], &[255, 255, 192, 0, 2, last]].concat();
        for message in
            [message(libc::AF_INET, &[192, 0, 2, 1], &[192, 0, 2, 7]), message(libc::AF_INET6, &mapped(1), &mapped(7))]
        {
            let of = of(&message).unwrap();
            assert_eq!(
                (of.remote.to_string(), of.local.to_string(), of.port),
                ("192.0.2.7".into(), "192.0.2.1".into(), 443)
            );
        }
        let six = of(&message(libc::AF_INET6, &[0x20; 16], &[0x21; 16])).unwrap();
        assert_eq!(six.remote, IpAddr::from([0x21; 16]));
        assert_eq!(of(&message(libc::AF_UNIX, &[], &[])), None);
        let whole = message(libc::AF_INET, &[192, 0, 2, 1], &[192, 0, 2, 7]);
        assert!((0..NAME_AT + NAME_BYTES).all(|len| of(&whole[..len]).is_none()));
    }

    #[test]
    fn the_host_names_its_connections_and_ends_no_more_than_it_may() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut clients: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        let servers: Vec<TcpStream> = (0..3).map(|_| listener.accept().unwrap().0).collect();
        let mut wanted = |of: &Connection| of.port == address.port() && of.remote == address.ip();
        assert_eq!(end(&mut wanted, 0).unwrap(), Ended { ended: 0, left: 3 });
        match end(&mut wanted, 2) {
            Ok(of) => {
                assert_eq!(of, Ended { ended: 2, left: 1 });
                let is_ended = clients.iter_mut().map(|client| {
                    client.set_read_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
                    client.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
                });
                assert_eq!(is_ended.filter(|is| *is).count(), 2);
            }
            // The test does not run as root, or the kernel lacks support.
            Err(error) => assert!(matches!(error.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP)), "{error}"),
        }
        drop(servers);
    }
}
