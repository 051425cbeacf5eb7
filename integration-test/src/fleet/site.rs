//! A server with persistent connections that records when each request reached it, and thus what the limiter passed.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use netlab::Namespace;
use nix::sys::socket::{Shutdown, shutdown};

use super::WORKS;

/// Request of every client.
pub const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
/// Last bytes of an answer.
pub const ANSWERED: &[u8] = b"ok\n";

/// A request that reached a server.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Time of the request.
    pub at: Instant,
    /// Source address of the request.
    pub from: IpAddr,
    /// Number of the host.
    pub host: usize,
}

/// Requests that reached all servers.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<Arrival>>>);

impl Log {
    fn lock(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the times of this client's requests, in order.
    pub fn times(&self, from: &str) -> Vec<Instant> {
        let from: IpAddr = from.parse().expect("an address");
        let mut times: Vec<_> = self.lock().iter().filter(|seen| seen.from == from).map(|seen| seen.at).collect();
        times.sort_unstable();
        times
    }

    /// Returns how many requests of this client reached this host.
    pub fn at_host(&self, from: &str, host: usize) -> u64 {
        self.count(from, |seen| seen.host == host)
    }

    /// Returns how many requests of this client reached other hosts, since `since` if given.
    pub fn at_others(&self, from: &str, host: usize, since: Option<Instant>) -> u64 {
        self.count(from, |seen| seen.host != host && since.is_none_or(|since| seen.at >= since))
    }

    fn count(&self, from: &str, is_meant: impl Fn(&Arrival) -> bool) -> u64 {
        let from: IpAddr = from.parse().expect("an address");
        self.lock().iter().filter(|seen| seen.from == from && is_meant(seen)).count() as u64
    }
}

/// Returns the largest number of requests within any period of this length.
pub fn most_within(times: &[Instant], length: Duration) -> u64 {
    let mut first = 0;
    let mut most = 0;
    for (last, at) in times.iter().enumerate() {
        while times[first] + length <= *at {
            first += 1;
        }
        most = most.max(last + 1 - first);
    }
    most as u64
}

/// A server on one address, until it is dropped.
pub struct Site {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl Site {
    /// Starts a server of this host, which records requests in `log`.
    pub fn start(namespace: &Namespace, address: SocketAddr, host: usize, log: &Log) -> Self {
        let listener = namespace.inside(|| Ok(TcpListener::bind(address)?)).expect(WORKS);
        let (accepting, log) = (listener.try_clone().expect(WORKS), log.clone());
        let thread = thread::spawn(move || {
            while let Ok((stream, client)) = accepting.accept() {
                let log = log.clone();
                thread::spawn(move || answer(stream, client.ip(), host, &log));
            }
        });
        Self { listener, thread: Some(thread) }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // Interrupts the wait for another client.
        let _ended = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Answers a client's requests. A client has at most one outstanding request on a connection.
fn answer(mut stream: TcpStream, from: IpAddr, host: usize, log: &Log) {
    let mut heard = 0;
    let mut part = [0; 256];
    while let Ok(bytes @ 1..) = stream.read(&mut part) {
        heard += bytes;
        if heard == REQUEST.len() {
            heard = 0;
            log.lock().push(Arrival { at: Instant::now(), from, host });
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n").is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_within_a_time_is_found_wherever_it_begins() {
        let start = Instant::now();
        let times: Vec<_> = [0, 9, 10, 11, 18, 30].map(|seconds| start + Duration::from_secs(seconds)).into();
        assert_eq!(most_within(&times, Duration::from_secs(10)), 4, "9, 10, 11 and 18");
        assert_eq!(most_within(&times, Duration::from_secs(9)), 3, "what is as long after is not within");
        assert_eq!(most_within(&[], Duration::from_secs(1)), 0);
    }
}
