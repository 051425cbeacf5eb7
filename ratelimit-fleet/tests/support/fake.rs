//! Fake store on loopback that answers as a test requires, with one thread per connection.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ratelimit_fleet::store::access::Access;

/// Fake store.
pub(crate) struct Fake {
    port: u16,
    connections: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
}

impl Fake {
    /// Serves each connection with `serve`. The connection ends when `serve` returns.
    pub(crate) fn start(serve: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (connections, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (made, over, serve) = (Arc::clone(&connections), Arc::clone(&ended), Arc::new(serve));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                made.fetch_add(1, Ordering::Relaxed);
                let (over, serve) = (Arc::clone(&over), Arc::clone(&serve));
                thread::spawn(move || {
                    serve(&mut stream);
                    over.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        Self { port, connections, ended }
    }

    /// Answers each request with these bytes.
    pub(crate) fn answering(answer: &'static [u8]) -> Self {
        Self::start(move |stream| while question(stream) && stream.write_all(answer).is_ok() {})
    }

    pub(crate) fn access(&self) -> Access {
        Access { urls: vec![format!("redis://127.0.0.1:{}", self.port)], ..Access::default() }
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of ended connections.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }
}

/// Reads a request: whatever one read returns. Returns false at the end of the connection.
pub(crate) fn question(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 65_536];
    stream.read(&mut bytes).is_ok_and(|count| count > 0)
}

/// Writes `bytes` repeatedly until the peer stops reading.
pub(crate) fn endlessly(stream: &mut TcpStream, bytes: &[u8]) {
    while stream.write_all(bytes).is_ok() {}
}

/// Writes one byte at a time.
pub(crate) fn slowly(stream: &mut TcpStream, bytes: &[u8], pause: Duration) {
    for byte in bytes {
        if stream.write_all(&[*byte]).is_err() {
            return;
        }
        thread::sleep(pause);
    }
}
