//! Clients of all hosts by turns: greedy ones, which always want more, and innocent ones, which lose no request.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use netlab::Namespace;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};

use super::WORKS;
use super::site::{ANSWERED, REQUEST};
use crate::lab::HANGS_AFTER;

/// Time without an answer after which a greedy client opens a new connection, because TCP would retransmit too late.
const GIVES_UP_AFTER: Duration = Duration::from_secs(1);

/// Rate and patience of a client.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Requests per second, over all hosts together.
    pub per_second: u32,
    /// Time that the client waits for an answer.
    pub patience: Duration,
}

/// Returns the manner of a client that does not mind being refused.
pub const fn greedy(per_second: u32) -> Manner {
    Manner { per_second, patience: GIVES_UP_AFTER }
}

/// Returns the manner of a client that waits for each answer.
pub const fn innocent(per_second: u32) -> Manner {
    Manner { per_second, patience: HANGS_AFTER }
}

/// Results of a client's requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Number of requests sent.
    pub sent: u64,
    /// Number of requests answered.
    pub answered: u64,
    /// Number of requests given up.
    pub lost: u64,
    /// Longest time until an answer.
    pub slowest: Duration,
}

/// A client that sends until it is stopped.
pub struct Client {
    is_over: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    thread: JoinHandle<Tally>,
}

impl Client {
    /// Starts a client with this source address.
    pub fn start(namespace: &Arc<Namespace>, from: &str, to: Vec<SocketAddr>, manner: Manner) -> Self {
        let (is_over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, so_far) = (Arc::clone(&is_over), Arc::clone(&answered));
        let (namespace, from) = (Arc::clone(namespace), from.parse().expect("an address"));
        let thread = thread::spawn(move || {
            namespace.inside(|| Ok(send(from, &to, manner, &over, &so_far))).expect("a client goes on")
        });
        Self { is_over, answered, thread }
    }

    /// Returns the number of answers so far.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Stops the client, and waits for the outstanding answers.
    pub fn stop(self) -> Tally {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("a client ends")
    }
}

fn send(from: IpAddr, to: &[SocketAddr], manner: Manner, is_over: &AtomicBool, answered: &AtomicU64) -> Tally {
    let mut lines: Vec<_> = to.iter().map(|to| Line { from, to: *to, open: None }).collect();
    let mut tally = Tally::default();
    let start = Instant::now();
    let mut turn = 0;
    while !is_over.load(Ordering::Relaxed) {
        let due = start + Duration::from_secs(1) * turn / manner.per_second;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        lines.iter_mut().for_each(|line| line.listen(manner.patience, &mut tally));
        let count = lines.len();
        lines[turn as usize % count].ask(&mut tally);
        answered.store(tally.answered, Ordering::Relaxed);
        turn += 1;
    }
    let end = Instant::now() + manner.patience;
    while lines.iter().any(Line::is_waiting) && Instant::now() < end {
        lines.iter_mut().for_each(|line| line.listen(manner.patience, &mut tally));
        thread::sleep(Duration::from_millis(1));
    }
    answered.store(tally.answered, Ordering::Relaxed);
    tally
}

/// A client's connection to one host.
struct Line {
    from: IpAddr,
    to: SocketAddr,
    open: Option<Open>,
}

struct Open {
    stream: TcpStream,
    since: Instant,
    /// A request is outstanding.
    is_asked: bool,
    heard: Vec<u8>,
}

impl Line {
    fn is_waiting(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.is_asked)
    }

    /// Sends a request if none is outstanding. A request that cannot be sent yet does not count as outstanding.
    fn ask(&mut self, tally: &mut Tally) {
        let (from, to) = (self.from, self.to);
        let open = self.open.get_or_insert_with(|| Open {
            stream: dial(from, to),
            since: Instant::now(),
            is_asked: false,
            heard: Vec::new(),
        });
        if open.is_asked {
            return;
        }
        match open.stream.write(REQUEST) {
            Ok(bytes) => {
                assert_eq!(bytes, REQUEST.len(), "a request fits");
                (open.is_asked, open.since) = (true, Instant::now());
                tally.sent += 1;
            }
            // Not connected yet. The connection is given up later.
            Err(error) if error.kind() == ErrorKind::WouldBlock && open.since.elapsed() < GIVES_UP_AFTER => {}
            Err(_) => self.open = None,
        }
    }

    fn listen(&mut self, patience: Duration, tally: &mut Tally) {
        let Some(open) = self.open.as_mut().filter(|open| open.is_asked) else { return };
        let mut part = [0; 256];
        let is_over = match open.stream.read(&mut part) {
            Ok(bytes) => {
                open.heard.extend(&part[..bytes]);
                bytes == 0
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => open.since.elapsed() > patience,
            Err(_) => true,
        };
        if open.heard.ends_with(ANSWERED) {
            tally.slowest = tally.slowest.max(open.since.elapsed());
            tally.answered += 1;
            (open.is_asked, open.heard) = (false, Vec::new());
        } else if is_over {
            tally.lost += 1;
            self.open = None;
        }
    }
}

/// Opens a connection that ends by a reset, so that nothing that was refused is retransmitted.
fn dial(from: IpAddr, to: SocketAddr) -> TcpStream {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None).expect(WORKS);
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(&socket, sockopt::Linger, &linger).expect(WORKS);
    setsockopt(&socket, sockopt::TcpNoDelay, &true).expect(WORKS);
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(from, 0))).expect(WORKS);
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => TcpStream::from(socket),
        Err(errno) => panic!("{from} connects to {to}: {errno}"),
    }
}
