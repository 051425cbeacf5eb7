//! A proxy between hosts and the store. It forwards everything, optionally with a delay, and can hold back the store's
//! answers.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use netlab::Namespace;

use super::WORKS;
use crate::lab::once;

/// Interval at which the proxy checks whether it may forward.
const TICK: Duration = Duration::from_micros(200);

#[derive(Default)]
struct Holding {
    is_held: AtomicBool,
    bytes: AtomicUsize,
    /// Delay of each direction, in microseconds.
    delay_us: AtomicU64,
}

/// A proxy that runs until it is dropped.
pub struct Proxy {
    listener: TcpListener,
    holding: Arc<Holding>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy on this address of the namespace. `server` is the store's Unix socket.
    pub fn start(namespace: &Namespace, address: SocketAddr, server: PathBuf) -> Self {
        let listener = namespace.inside(|| Ok(TcpListener::bind(address)?)).expect(WORKS);
        let holding = Arc::<Holding>::default();
        let (accepting, held) = (listener.try_clone().expect(WORKS), Arc::clone(&holding));
        let thread = thread::spawn(move || {
            while let Ok((host, _)) = accepting.accept() {
                // The host must notice by itself that a server is away.
                let Ok(store) = UnixStream::connect(&server) else { continue };
                let (from_host, to_store) = (host.try_clone().expect(WORKS), store.try_clone().expect(WORKS));
                let late = Arc::clone(&held);
                thread::spawn(move || ask(from_host, to_store, &late));
                let held = Arc::clone(&held);
                thread::spawn(move || answer(store, host, &held));
            }
        });
        Self { listener, holding, thread: Some(thread) }
    }

    /// Holds back all answers from now on.
    pub fn hold(&self) {
        self.holding.bytes.store(0, Ordering::SeqCst);
        self.holding.is_held.store(true, Ordering::SeqCst);
    }

    /// Delays each question and its answer from now on, by `round_trip` in all.
    pub fn delay(&self, round_trip: Duration) {
        let us = u64::try_from(round_trip.as_micros() / 2).unwrap_or(u64::MAX);
        self.holding.delay_us.store(us, Ordering::SeqCst);
    }

    /// Waits until at least `bytes` bytes of answers are held back.
    pub fn wait_for_answers(&self, bytes: usize) {
        let come = once(|| (self.holding.bytes.load(Ordering::SeqCst) >= bytes).then_some(()));
        come.expect("the store answers");
    }

    /// Forwards the answers that are held back and all later ones.
    pub fn release(&self) {
        self.holding.is_held.store(false, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.release();
        let _ended = nix::sys::socket::shutdown(self.listener.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

fn ask(host: TcpStream, mut store: UnixStream, holding: &Holding) {
    late(host, holding, |part| store.write_all(part).is_ok());
    let _gone = store.shutdown(Shutdown::Both);
}

fn answer(store: UnixStream, mut host: TcpStream, holding: &Holding) {
    late(store, holding, |part| {
        if holding.is_held.load(Ordering::SeqCst) {
            holding.bytes.fetch_add(part.len(), Ordering::SeqCst);
            while holding.is_held.load(Ordering::SeqCst) {
                thread::sleep(TICK);
            }
        }
        host.write_all(part).is_ok()
    });
    let _gone = host.shutdown(Shutdown::Both);
}

/// Forwards data. Each part is delayed as configured when it arrived.
fn late(mut from: impl Read + Send, holding: &Holding, mut hand_on: impl FnMut(&[u8]) -> bool) {
    let (parts, waiting) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut part = [0; 65_536];
            while let Ok(bytes @ 1..) = from.read(&mut part) {
                let delay = Duration::from_micros(holding.delay_us.load(Ordering::SeqCst));
                if parts.send((Instant::now() + delay, part[..bytes].to_vec())).is_err() {
                    return;
                }
            }
        });
        for (due, part) in waiting {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if !hand_on(&part) {
                return;
            }
        }
    });
}
