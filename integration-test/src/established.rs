//! A real connection of two sockets, and its client's segments as frames: so that a program that asks the server's
//! socket is answered.
//!
//! A frame is what the client sends next; it is not sent. What really goes from one socket to the other is said by
//! both by name.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::frames::flag::{ACK, PSH};
use crate::frames::proto::TCP;
use crate::frames::{IPV4, Segment, V4, frame};
use crate::numbers;

const WITHIN: Duration = Duration::from_secs(5);
/// An Ethernet header is before the IPv4 header, and this is where that has its destination.
const DESTINATION_AT: usize = 14 + 16;

/// An open connection over IPv4.
pub struct Established {
    client: TcpStream,
    server: TcpStream,
    from: Ipv4Addr,
    to: Ipv4Addr,
    /// The client's port.
    pub source_port: u16,
    port: u16,
    /// The number of the byte that the client sends next.
    pub sequence: u32,
    /// The number of the byte that it receives next.
    pub acknowledged: u32,
}

impl Established {
    /// One over the loopback interface of the calling thread's namespace, to this port.
    pub fn on_loopback(port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).with_context(|| format!("listen on {port}"))?;
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).with_context(|| format!("connect to {port}"))?;
        let (server, _) = listener.accept().context("accept")?;
        Self::between(client, server)
    }

    /// Of the sockets of its two ends.
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

    /// Has the server take so many bytes more than it has.
    pub fn widen(&self, bytes: u32) -> Result<()> {
        numbers::widen(&self.server, bytes).context("widen the server's window")
    }

    /// The client's next segment.
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
        // Nobody looks at the checksum: who sends the frame writes it anew.
        frame[DESTINATION_AT..DESTINATION_AT + 4].copy_from_slice(&self.to.octets());
        frame
    }

    /// The client sends this, and the server has it.
    pub fn says(&mut self, data: &[u8]) -> Result<()> {
        self.client.write_all(data).context("send what the client says")?;
        receive(&mut self.server, data.len()).context("receive what the client says")?;
        self.sequence = after(self.sequence, data.len())?;
        Ok(())
    }

    /// The server sends this, and the client has it.
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
