//! Rows of open connections: real ones between the two namespaces, opened before anything is attached, so that the
//! server's sockets have what was said and answer the program's questions.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt::Linger};
use ratelimit_datapath::kernel::{Flood, Kernel, OpenConnection, OpenConnections};

use super::rows::{PORT, Row, in_turn};
use super::wire::{CLIENT, SERVER, Wire};
use crate::cost::conversations::Said;
use crate::established::Established;

/// What a server takes without an answer: more than a run sends on one connection.
const WINDOW_BYTES: u32 = 1 << 29;
/// An acknowledgement that is delayed is on its way by then.
const QUIET_AFTER: Duration = Duration::from_millis(250);

/// What the clients of a row's open connections do.
#[derive(Clone, Debug)]
pub struct Open {
    /// How many connections there are: two to the power of this, all of one client.
    pub bits: u8,
    /// What was said on each before.
    pub before: Vec<Said>,
    /// What is in the segments that are sent: nothing of acknowledgements.
    pub data: Vec<u8>,
    /// Whether each segment goes on behind the last, else it is the same again.
    pub goes_on: bool,
}

/// The connections of one run.
pub struct Connections {
    all: Vec<Established>,
    open: Open,
}

impl Connections {
    /// Opens those of a row, if it has any.
    pub fn of(row: &Row, wire: &Wire) -> Result<Option<Self>> {
        let Some(open) = row.open.clone() else { return Ok(None) };
        let (client, server): (Ipv4Addr, Ipv4Addr) = (CLIENT.parse()?, SERVER.parse()?);
        let listener = wire.receiver.inside(|| TcpListener::bind((server, PORT)).context("listen"))?;
        let connect = || -> Result<Established> {
            let ours = wire.sender.inside(|| TcpStream::connect((server, PORT)).context("connect"))?;
            let (theirs, from) = listener.accept().context("accept")?;
            anyhow::ensure!(from.ip() == client, "a connection comes from {from}");
            // Both are gone with the run, and leave nothing behind that answers in the next.
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

    /// Has everything said that comes before, and the limiter judge what clients say, if there is one: it is not
    /// attached yet. Runs in the receiver's namespace.
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

    /// What their clients send from now on.
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
