//! Rows with open connections between the two namespaces. They are real and opened before anything is attached, so that
//! the server's sockets hold the conversation and the program finds them.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt::Linger};
use ratelimit_kernel::{Flood, Kernel, OpenConnection, OpenConnections};

use super::rows::{PORT, Row, in_turn};
use super::wire::{CLIENT, SERVER, Wire};
use crate::cost::conversations::Said;
use crate::established::Established;

/// Receive window of a server in bytes, more than a run sends on one connection.
const WINDOW_BYTES: u32 = 1 << 29;
/// Time after which a delayed acknowledgement has been sent.
const QUIET_AFTER: Duration = Duration::from_millis(250);

/// Behaviour of the clients of a row's open connections.
#[derive(Clone, Debug)]
pub struct Open {
    /// Number of connections as a power of two, all of one client.
    pub bits: u8,
    /// Conversation on each connection before the flood.
    pub before: Vec<Said>,
    /// Payload of the segments that are sent, empty for acknowledgements.
    pub data: Vec<u8>,
    /// Each segment continues the stream. Otherwise the same segment is sent again.
    pub goes_on: bool,
}

/// Open connections of one run.
pub struct Connections {
    all: Vec<Established>,
    open: Open,
}

impl Connections {
    /// Opens the connections of a row, if it has any.
    pub fn of(row: &Row, wire: &Wire) -> Result<Option<Self>> {
        let Some(open) = row.open.clone() else { return Ok(None) };
        let (client, server): (Ipv4Addr, Ipv4Addr) = (CLIENT.parse()?, SERVER.parse()?);
        let listener = wire.receiver.inside(|| TcpListener::bind((server, PORT)).context("listen"))?;
        let connect = || -> Result<Established> {
            let ours = wire.sender.inside(|| TcpStream::connect((server, PORT)).context("connect"))?;
            let (theirs, from) = listener.accept().context("accept")?;
            anyhow::ensure!(from.ip() == client, "a connection comes from {from}");
            // Both sockets are reset at the end of the run, so that nothing answers in the next run.
            for stream in [&ours, &theirs] {
                setsockopt(stream, Linger, &linger { l_onoff: 1, l_linger: 0 })?;
            }
            let connection = Established::between(ours, theirs)?;
            connection.widen(WINDOW_BYTES)?;
            Ok(connection)
        };
        let all = (0..1_u32 << open.bits).map(|_| connect()).collect::<Result<_>>()?;
        Ok(Some(Self { all, open }))
    }

    /// Plays the conversation before the flood on each connection, and has the limiter, if there is one, judge the
    /// clients' data. The limiter is not attached yet. Runs in the receiver's namespace.
    pub fn play(&mut self, mut limiter: Option<&mut Kernel>) -> Result<()> {
        for connection in &mut self.all {
            for said in &self.open.before {
                if let (Said::Client(data) | Said::Lost(data), Some(limiter)) = (said, limiter.as_deref_mut()) {
                    limiter.test_run(&connection.frame(data), 1)?;
                }
                match said {
                    Said::Client(data) => connection.says(data)?,
                    Said::Server(data) => connection.hears(data)?,
                    Said::Lost(_) => {}
                }
            }
        }
        thread::sleep(QUIET_AFTER);
        Ok(())
    }

    /// Returns the flood that the clients send from now on.
    pub fn flood(&self) -> Result<Flood> {
        let first = self.all.first().context("there is a connection")?;
        let open = |one: &Established| OpenConnection {
            source_port: one.source_port,
            sequence: one.sequence,
            acknowledged: one.acknowledged,
        };
        let step = if self.open.goes_on { u32::try_from(self.open.data.len())? } else { 0 };
        let connections = OpenConnections { all: self.all.iter().map(open).collect(), step };
        let frame = crate::frames::padded(first.frame(&self.open.data), 60);
        Ok(Flood { frame, sources: in_turn(CLIENT, 0), others: None, connections: Some(connections) })
    }
}
