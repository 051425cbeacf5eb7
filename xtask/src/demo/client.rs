//! Clients of the demo: they send requests on separate connections, count answers and measure times.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use netlab::Namespace;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt};
use nix::sys::time::TimeVal;

use super::interrupt;

/// Requests per second of the good client. In ten seconds it sends 50, half of the limit.
pub(super) const GOOD_PER_SECOND: u32 = 5;
pub(super) const BAD_THREADS: usize = 64;

/// Time after which a client counts an attempt as lost.
#[derive(Clone, Copy)]
struct Patience {
    connect: Duration,
    /// Time for the answer, once connected.
    answer: Duration,
}

/// The first retransmission of a SYN comes after one second (RFC 6298), so a lost SYN counts as a lost attempt.
const GOOD: Patience = Patience { connect: Duration::from_millis(900), answer: Duration::from_secs(5) };
/// A refused request is retransmitted after some 0.2 s, and stays unanswered until the window frees. The bad client
/// gives up sooner.
const BAD: Patience = Patience { connect: Duration::from_millis(400), answer: Duration::from_millis(400) };
/// Maximum attempts per thread of the bad client, to spare ports and the access log.
const BAD_PER_THREAD_MAX: usize = 5_000;

/// Number of the crawler's addresses. Each sends one request.
pub(super) const CRAWLER_ADDRESSES: u32 = 2_000;
/// Number of crawler addresses that wait for an answer at the same time.
const CRAWLER_THREADS: u32 = 200;

/// Results of a client's requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) tried: u64,
    /// Sorted times from the first SYN to the end of the answer, of the answered requests.
    latencies: Vec<Duration>,
}

impl Outcome {
    pub(super) fn answered(&self) -> u64 {
        self.latencies.len() as u64
    }

    pub(super) fn lost(&self) -> u64 {
        self.tried.saturating_sub(self.answered())
    }

    /// Returns the latency that `percent` of the answers do not exceed (nearest rank).
    pub(super) fn latency(&self, percent: usize) -> Option<Duration> {
        let rank = (self.latencies.len() * percent).div_ceil(100);
        self.latencies.get(rank.max(1) - 1).copied()
    }

    #[cfg(test)]
    pub(super) fn of(tried: u64, answered: usize) -> Self {
        Self { tried, latencies: vec![Duration::from_millis(1); answered] }
    }

    fn add(&mut self, latency: Option<Duration>) {
        self.tried += 1;
        self.latencies.extend(latency);
    }

    fn sum(parts: impl Iterator<Item = Self>) -> Self {
        let mut sum = Self::default();
        for part in parts {
            sum.tried += part.tried;
            sum.latencies.extend(part.latencies);
        }
        sum.latencies.sort_unstable();
        sum
    }
}

/// Sends requests at an even pace until `end`.
pub(super) fn good(namespace: &Namespace, target: SocketAddr, end: Instant) -> Result<Outcome> {
    let pause = Duration::from_secs(1) / GOOD_PER_SECOND;
    namespace.inside(|| {
        let (start, mut outcome, mut turn) = (Instant::now(), Outcome::default(), 0);
        while !interrupt::came() && start + pause * turn < end {
            interrupt::sleep_until(start + pause * turn);
            outcome.add(ask(target, GOOD));
            turn += 1;
        }
        Ok(Outcome::sum([outcome].into_iter()))
    })
}

/// Sends requests without a pause on many threads until `end`.
pub(super) fn bad(namespace: &Namespace, target: SocketAddr, end: Instant) -> Result<Outcome> {
    // Threads inherit the namespace of the thread that starts them.
    namespace.inside(|| {
        let outcomes = thread::scope(|scope| {
            let threads: Vec<_> = (0..BAD_THREADS).map(|_| scope.spawn(|| hammer(target, end))).collect();
            // A thread that panicked has printed that, and its attempts are missing from the sum.
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
        });
        Ok(Outcome::sum(outcomes.into_iter()))
    })
}

/// Sends one request from each address, starting at `first`.
pub(super) fn crawl(namespace: &Namespace, target: SocketAddr, first: Ipv4Addr) -> Result<Outcome> {
    let each = |thread: u32| {
        let mut outcome = Outcome::default();
        let addresses = (thread..CRAWLER_ADDRESSES).step_by(CRAWLER_THREADS as usize);
        for address in addresses.take_while(|_| !interrupt::came()) {
            let source = Ipv4Addr::from_bits(first.to_bits() + address);
            let start = Instant::now();
            let stream = connect_from(source, target, BAD.connect);
            outcome.add(stream.and_then(|stream| request(stream, BAD)).map(|()| start.elapsed()));
        }
        outcome
    };
    namespace.inside(|| {
        let outcomes = thread::scope(|scope| {
            let threads: Vec<_> = (0..CRAWLER_THREADS).map(|thread| scope.spawn(move || each(thread))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
        });
        Ok(Outcome::sum(outcomes.into_iter()))
    })
}

/// Connects from one of this host's addresses.
fn connect_from(source: Ipv4Addr, target: SocketAddr, patience: Duration) -> Option<TcpStream> {
    let SocketAddr::V4(target) = target else { return None };
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).ok()?;
    // Linux applies the send timeout to connect(2) too.
    let wait = TimeVal::new(0, i64::from(patience.subsec_micros()));
    setsockopt(&socket, sockopt::SendTimeout, &wait).ok()?;
    bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(source, 0))).ok()?;
    connect(socket.as_raw_fd(), &SockaddrIn::from(target)).ok()?;
    Some(TcpStream::from(socket))
}

fn hammer(target: SocketAddr, end: Instant) -> Outcome {
    let mut outcome = Outcome::default();
    for _ in 0..BAD_PER_THREAD_MAX {
        // An attempt too close to the end could not be classified: refused, or cut off by the end.
        if interrupt::came() || Instant::now() + BAD.connect + BAD.answer > end {
            break;
        }
        outcome.add(ask(target, BAD));
    }
    outcome
}

/// Opens a connection and sends one request. Returns the time to the answer, or None without one.
fn ask(target: SocketAddr, patience: Patience) -> Option<Duration> {
    let start = Instant::now();
    let stream = TcpStream::connect_timeout(&target, patience.connect).ok()?;
    request(stream, patience).map(|()| start.elapsed())
}

/// Sends one request. Returns Some if it is answered with status 200.
fn request(mut stream: TcpStream, patience: Patience) -> Option<()> {
    stream.set_read_timeout(Some(patience.answer)).ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    if stream.read_to_end(&mut answer).is_err() {
        // Resets the connection. Otherwise this kernel would retransmit the request for minutes, and it would be
        // admitted in the end.
        let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        let _else_it_goes_on = nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::Linger, &at_once);
        return None;
    }
    // The server closed its side first, so no port of this side stays in TIME_WAIT.
    let _closed = stream.shutdown(Shutdown::Both);
    answer.starts_with(b"HTTP/1.1 200 ").then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_nearest_rank() {
        let latencies: Vec<_> = (1..=100).map(Duration::from_millis).collect();
        let outcome = Outcome { tried: 120, latencies };
        assert_eq!(outcome.latency(50), Some(Duration::from_millis(50)));
        assert_eq!(outcome.latency(99), Some(Duration::from_millis(99)));
        assert_eq!((outcome.answered(), outcome.lost()), (100, 20));
        assert_eq!(Outcome::default().latency(50), None);
    }
}
