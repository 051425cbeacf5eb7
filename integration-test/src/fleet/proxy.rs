//! Between a host and the store: hands everything on, and holds the store's answers back while it is told to.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use netlab::Namespace;

use super::WORKS;
use crate::lab::once;

/// How often it looks whether it may go on.
const TICK: Duration = Duration::from_micros(200);

#[derive(Default)]
struct Holding {
    is_held: AtomicBool,
    bytes: AtomicUsize,
}

/// One, until it is dropped.
pub struct Proxy {
    listener: TcpListener,
    holding: Arc<Holding>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts one on this address of the namespace, before the server with this Unix socket.
    pub fn start(namespace: &Namespace, address: SocketAddr, server: PathBuf) -> Self {
        let listener = namespace.inside(|| Ok(TcpListener::bind(address)?)).expect(WORKS);
        let holding = Arc::<Holding>::default();
        let (accepting, held) = (listener.try_clone().expect(WORKS), Arc::clone(&holding));
        let thread = thread::spawn(move || {
            while let Ok((host, _)) = accepting.accept() {
                // A server that is away is for the host to notice.
                let Ok(store) = UnixStream::connect(&server) else { continue };
                let (from_host, to_store) = (host.try_clone().expect(WORKS), store.try_clone().expect(WORKS));
                thread::spawn(move || ask(from_host, to_store));
                let held = Arc::clone(&held);
                thread::spawn(move || answer(store, host, &held));
            }
        });
        Self { listener, holding, thread: Some(thread) }
    }

    /// From now on no answer goes on.
    pub fn hold(&self) {
        self.holding.bytes.store(0, Ordering::SeqCst);
        self.holding.is_held.store(true, Ordering::SeqCst);
    }

    /// Waits until answers of so many bytes wait.
    pub fn wait_for_answers(&self, bytes: usize) {
        let come = once(|| (self.holding.bytes.load(Ordering::SeqCst) >= bytes).then_some(()));
        come.expect("the store answers");
    }

    /// What waits goes on, and all after it.
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

fn ask(mut host: TcpStream, mut store: UnixStream) {
    let _over = std::io::copy(&mut host, &mut store);
    let _gone = store.shutdown(Shutdown::Both);
}

fn answer(mut store: UnixStream, mut host: TcpStream, holding: &Holding) {
    let mut part = [0; 65_536];
    while let Ok(bytes @ 1..) = store.read(&mut part) {
        if holding.is_held.load(Ordering::SeqCst) {
            holding.bytes.fetch_add(bytes, Ordering::SeqCst);
            while holding.is_held.load(Ordering::SeqCst) {
                thread::sleep(TICK);
            }
        }
        if host.write_all(&part[..bytes]).is_err() {
            return;
        }
    }
    let _gone = host.shutdown(Shutdown::Both);
}
