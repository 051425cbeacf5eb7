//! The clients: requests sent, each on a connection of its own, answers counted, time taken.

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

/// 50 requests in ten seconds: half of the limit.
pub(super) const GOOD_PER_SECOND: u32 = 5;
pub(super) const BAD_THREADS: usize = 64;

/// How long a client waits before it counts an attempt as lost.
#[derive(Clone, Copy)]
struct Patience {
    connect: Duration,
    /// Once connected.
    answer: Duration,
}

/// A SYN is sent again after one second (RFC 6298): one that was lost counts as lost.
const GOOD: Patience = Patience { connect: Duration::from_millis(900), answer: Duration::from_secs(5) };
/// A refused request is sent again after some 0.2 s, and has no answer until the window frees. A client that hammers does not wait so long.
const BAD: Patience = Patience { connect: Duration::from_millis(400), answer: Duration::from_millis(400) };
/// An upper bound of the bad client's attempts, for the sake of ports and of the access log.
const BAD_PER_THREAD_MAX: usize = 5_000;

/// A crawler's addresses, each of which asks once.
pub(super) const CRAWLER_ADDRESSES: u32 = 2_000;
/// So many of them wait for an answer at a time.
const CRAWLER_THREADS: u32 = 200;

/// What became of a client's requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) tried: u64,
    /// From the first SYN to the end of the answer, of those that were answered; sorted.
    latencies: Vec<Duration>,
}

impl Outcome {
    pub(super) fn answered(&self) -> u64 {
        self.latencies.len() as u64
    }

    pub(super) fn lost(&self) -> u64 {
        self.tried.saturating_sub(self.answered())
    }

    /// The latency that `percent` of the answers do not exceed (nearest rank).
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

/// Requests at an even pace until the time is over.
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

/// Requests without a pause, on many threads, until the time is over.
pub(super) fn bad(namespace: &Namespace, target: SocketAddr, end: Instant) -> Result<Outcome> {
    // Threads are in the namespace of the one that starts them.
    namespace.inside(|| {
        let outcomes = thread::scope(|scope| {
            let threads: Vec<_> = (0..BAD_THREADS).map(|_| scope.spawn(|| hammer(target, end))).collect();
            // A thread that panicked has said so, and what it tried is missing from the sum.
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
        });
        Ok(Outcome::sum(outcomes.into_iter()))
    })
}

/// One request of each address from `first` on.
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

/// A connection from one of this host's addresses.
fn connect_from(source: Ipv4Addr, target: SocketAddr, patience: Duration) -> Option<TcpStream> {
    let SocketAddr::V4(target) = target else { return None };
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).ok()?;
    // Linux waits for a connection no longer than for room to send.
    let wait = TimeVal::new(0, i64::from(patience.subsec_micros()));
    setsockopt(&socket, sockopt::SendTimeout, &wait).ok()?;
    bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(source, 0))).ok()?;
    connect(socket.as_raw_fd(), &SockaddrIn::from(target)).ok()?;
    Some(TcpStream::from(socket))
}

fn hammer(target: SocketAddr, end: Instant) -> Outcome {
    let mut outcome = Outcome::default();
    for _ in 0..BAD_PER_THREAD_MAX {
        // A refused attempt is not begun where it could not be told from one that the end cut off.
        if interrupt::came() || Instant::now() + BAD.connect + BAD.answer > end {
            break;
        }
        outcome.add(ask(target, BAD));
    }
    outcome
}

/// One connection, one request; how long the answer took, if there was one.
fn ask(target: SocketAddr, patience: Patience) -> Option<Duration> {
    let start = Instant::now();
    let stream = TcpStream::connect_timeout(&target, patience.connect).ok()?;
    request(stream, patience).map(|()| start.elapsed())
}

/// One request, where it is answered.
fn request(mut stream: TcpStream, patience: Patience) -> Option<()> {
    stream.set_read_timeout(Some(patience.answer)).ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    if stream.read_to_end(&mut answer).is_err() {
        // Resets the connection. Else this kernel would send the request again for minutes, and be admitted in the end.
        let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        let _else_it_goes_on = nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::Linger, &at_once);
        return None;
    }
    // The server has closed its side first, so no port of this one waits.
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
