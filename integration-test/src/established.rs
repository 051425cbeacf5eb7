//! A real connection between two sockets, and its client's segments as frames, so that the program finds the server's
//! socket.
//!
//! A frame is the client's next segment, built but not sent. [`says`](Established::says) and
//! [`hears`](Established::hears) really send data from one socket to the other.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::frames::flag::{ACK, PSH};
use crate::frames::proto::TCP;
use crate::frames::{IPV4, Segment, V4, frame};
use crate::numbers;

const WITHIN: Duration = Duration::from_secs(5);
/// Offset of the IPv4 destination, behind an Ethernet header.
const DESTINATION_AT: usize = 14 + 16;

/// An open connection over IPv4.
pub struct Established {
    client: TcpStream,
    server: TcpStream,
    from: Ipv4Addr,
    to: Ipv4Addr,
    /// Port of the client.
    pub source_port: u16,
    port: u16,
    /// Sequence number of the byte that the client sends next.
    pub sequence: u32,
    /// Sequence number of the byte that the client receives next.
    pub acknowledged: u32,
}

impl Established {
    /// Opens a connection to this port over the loopback interface of the calling thread's namespace.
    pub fn on_loopback(port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).with_context(|| format!("listen on {port}"))?;
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).with_context(|| format!("connect to {port}"))?;
        let (server, _) = listener.accept().context("accept")?;
        Self::between(client, server)
    }

    /// Creates a connection from the sockets of its two ends.
    pub fn between(client: TcpStream, server: TcpStream) -> Result<Self> {
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(WITHIN)).context("set a time limit")?;
            stream.set_write_timeout(Some(WITHIN)).context("set a time limit")?;
            stream.set_nodelay(true).context("send at once")?;
        }
        let (ours, theirs) = (client.local_addr()?, client.peer_addr()?);
        let (IpAddr::V4(from), IpAddr::V4(to)) = (ours.ip(), theirs.ip()) else {
            anyhow::bail!("{ours} to {theirs} is not IPv4")
        };
        let (sequence, acknowledged) = numbers::of(&client).context("ask for the connection's numbers")?;
        let (source_port, port) = (ours.port(), theirs.port());
        Ok(Self { client, server, from, to, source_port, port, sequence, acknowledged })
    }

    /// Widens the server's window to `bytes` more than the server has received.
    pub fn widen(&self, bytes: u32) -> Result<()> {
        numbers::widen(&self.server, bytes).context("widen the server's window")
    }

    /// Returns the client's next segment as a frame.
    pub fn frame(&self, data: &[u8]) -> Vec<u8> {
        let flags = if data.is_empty() { ACK } else { ACK | PSH };
        let segment = Segment {
            source_port: self.source_port,
            sequence: self.sequence,
            acknowledged: self.acknowledged,
            data,
            ..Segment::to(self.port, flags)
        };
        let mut frame = frame(IPV4, V4 { source: self.from.octets(), ..V4::of(TCP) }.around(segment.bytes()));
        // The checksum is left as it is: whoever sends the frame writes it anew.
        frame[DESTINATION_AT..DESTINATION_AT + 4].copy_from_slice(&self.to.octets());
        frame
    }

    /// Sends data from the client, and waits until the server has received it.
    pub fn says(&mut self, data: &[u8]) -> Result<()> {
        self.client.write_all(data).context("send what the client says")?;
        receive(&mut self.server, data.len()).context("receive what the client says")?;
        self.sequence = after(self.sequence, data.len())?;
        Ok(())
    }

    /// Sends data from the server, and waits until the client has received it.
    pub fn hears(&mut self, data: &[u8]) -> Result<()> {
        self.server.write_all(data).context("send what the server says")?;
        receive(&mut self.client, data.len()).context("receive what the server says")?;
        self.acknowledged = after(self.acknowledged, data.len())?;
        Ok(())
    }
}

fn after(number: u32, bytes: usize) -> Result<u32> {
    Ok(number.wrapping_add(u32::try_from(bytes).context("a few bytes")?))
}

fn receive(stream: &mut TcpStream, bytes: usize) -> Result<()> {
    let mut data = vec![0; bytes];
    stream.read_exact(&mut data)?;
    Ok(())
}
