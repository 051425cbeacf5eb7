//! Servers to put behind a limiter: a small one for HTTP, one that counts datagrams, and nginx.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::child::must;
use crate::{Child, Namespace};

/// Interval at which a server checks whether it should stop.
const TICK: Duration = Duration::from_millis(5);

/// Counts of something by client address.
type Counts = Arc<Mutex<BTreeMap<IpAddr, u64>>>;

fn lock(counts: &Counts) -> MutexGuard<'_, BTreeMap<IpAddr, u64>> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread in a namespace that serves until it is dropped.
#[derive(Debug)]
struct Serving {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    counts: Counts,
}

impl Serving {
    fn start(serve: impl FnOnce(&AtomicBool, &Counts) + Send + 'static) -> Self {
        let (is_over, counts) = (Arc::new(AtomicBool::new(false)), Counts::default());
        let (over, counted) = (Arc::clone(&is_over), Arc::clone(&counts));
        let thread = thread::spawn(move || serve(&over, &counted));
        Self { is_over, thread: Some(thread), counts }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A server that panicked has reported so already.
            let _panicked = thread.join();
        }
    }
}

/// A server that answers every connection with one short HTTP response, and counts connections and requests by client.
#[derive(Debug)]
pub struct HttpServer {
    serving: Serving,
    requests: Counts,
}

impl HttpServer {
    /// Starts a server on this address of the namespace.
    ///
    /// # Errors
    /// Fails if the address cannot be bound.
    pub fn start(namespace: &Namespace, address: SocketAddr) -> Result<Self> {
        let listener =
            namespace.inside(|| TcpListener::bind(address).with_context(|| format!("listen on {address}")))?;
        listener.set_nonblocking(true)?;
        let requests = Counts::default();
        let asked = Arc::clone(&requests);
        let serving = Serving::start(move |is_over, counts| {
            while !is_over.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, client)) => {
                        *lock(counts).entry(client.ip()).or_default() += 1;
                        let asked = Arc::clone(&asked);
                        thread::spawn(move || answer(stream, client.ip(), &asked));
                    }
                    Err(_) => thread::sleep(TICK),
                }
            }
        });
        Ok(Self { serving, requests })
    }

    /// Returns the number of connections so far, by client.
    pub fn connections(&self) -> BTreeMap<IpAddr, u64> {
        lock(&self.serving.counts).clone()
    }

    /// Returns the number of requests so far, by client.
    pub fn requests(&self) -> BTreeMap<IpAddr, u64> {
        lock(&self.requests).clone()
    }
}

/// Answers one request of a client. A client that goes away meanwhile is ignored.
fn answer(mut stream: TcpStream, client: IpAddr, requests: &Counts) {
    let mut request = [0; 4096];
    let heard = stream.set_nonblocking(false).and_then(|()| stream.read(&mut request));
    if heard.is_ok_and(|len| len > 0) {
        *lock(requests).entry(client).or_default() += 1;
        let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n");
    }
}

/// A server that counts datagrams by client.
#[derive(Debug)]
pub struct UdpCounter(Serving);

impl UdpCounter {
    /// Starts a server on this address of the namespace.
    ///
    /// # Errors
    /// Fails if the address cannot be bound.
    pub fn start(namespace: &Namespace, address: SocketAddr) -> Result<Self> {
        let socket = namespace.inside(|| UdpSocket::bind(address).with_context(|| format!("listen on {address}")))?;
        socket.set_read_timeout(Some(TICK))?;
        Ok(Self(Serving::start(move |is_over, counts| {
            let mut datagram = [0; 65_536];
            while !is_over.load(Ordering::Relaxed) {
                if let Ok((_, client)) = socket.recv_from(&mut datagram) {
                    *lock(counts).entry(client.ip()).or_default() += 1;
                }
            }
        })))
    }

    /// Returns the number of datagrams so far, by client.
    pub fn datagrams(&self) -> BTreeMap<IpAddr, u64> {
        lock(&self.0.counts).clone()
    }
}

/// Starts nginx in the namespace as one process, on these addresses. Its files and its access log (`access.log`) are in
/// `directory`. nginx answers `ok`, and below `/files/` with the files of `directory/files`.
///
/// # Errors
/// Fails if nginx is not installed, or does not answer within five seconds.
pub fn nginx(namespace: &Namespace, directory: &Path, addresses: &[SocketAddr]) -> Result<Child> {
    let listen: String = addresses.iter().map(|address| format!("listen {address}; ")).collect();
    start_nginx(namespace, directory, addresses, &listen)
}

/// Starts nginx as [`nginx`] does, which also speaks TLS 1.2 and 1.3 on the addresses `tls`, with its own certificate.
///
/// # Errors
/// Fails as [`nginx`] does, and if `openssl` cannot make the certificate.
pub fn nginx_with_tls(
    namespace: &Namespace,
    directory: &Path,
    clear: &[SocketAddr],
    tls: &[SocketAddr],
) -> Result<Child> {
    start_nginx_with_tls(namespace, directory, clear, tls, "ssl")
}

/// Starts nginx as [`nginx_with_tls`] does, which also speaks HTTP/2 on the addresses `tls`.
///
/// # Errors
/// Fails as [`nginx_with_tls`] does.
pub fn nginx_with_http2(
    namespace: &Namespace,
    directory: &Path,
    clear: &[SocketAddr],
    tls: &[SocketAddr],
) -> Result<Child> {
    start_nginx_with_tls(namespace, directory, clear, tls, "ssl http2")
}

/// Creates a key and its certificate, and returns the paths of both: `key.pem` and `certificate.pem` in `directory`.
///
/// # Errors
/// Fails if `openssl` cannot make them.
pub fn certificate(directory: &Path) -> Result<[String; 2]> {
    let [key, certificate] = ["key.pem", "certificate.pem"].map(|name| directory.join(name).display().to_string());
    let subject = ["-subj", "/CN=server.test", "-days", "30", "-keyout", &key, "-out", &certificate];
    must("openssl", &[&["req", "-x509", "-newkey", "rsa:2048", "-nodes"], &subject[..]].concat())?;
    Ok([key, certificate])
}

fn start_nginx_with_tls(
    namespace: &Namespace,
    directory: &Path,
    clear: &[SocketAddr],
    tls: &[SocketAddr],
    speaks: &str,
) -> Result<Child> {
    let [key, certificate] = certificate(directory)?;
    let mut listen: String = clear.iter().map(|address| format!("listen {address}; ")).collect();
    listen.extend(tls.iter().map(|address| format!("listen {address} {speaks}; ")));
    listen += &format!("ssl_certificate {certificate}; ssl_certificate_key {key};");
    start_nginx(namespace, directory, &[clear, tls].concat(), &listen)
}

fn start_nginx(namespace: &Namespace, directory: &Path, addresses: &[SocketAddr], listen: &str) -> Result<Child> {
    let root = directory.display();
    let config = format!(
        "daemon off;\nmaster_process off;\npid {root}/nginx.pid;\nerror_log {root}/error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n    access_log {root}/access.log;\n    keepalive_requests 1000000;\n\
         \x20   client_body_temp_path {root}; proxy_temp_path {root}; fastcgi_temp_path {root};\n\
         \x20   uwsgi_temp_path {root}; scgi_temp_path {root}; client_max_body_size 0;\n\
         \x20   server {{\n        {listen}\n        location / {{ return 200 \"ok\\n\"; }}\n\
         \x20       location /put/ {{ root {root}; dav_methods PUT; create_full_put_path on; }}\n\
         \x20       location /files/ {{ root {root}; }}\n    }}\n}}\n"
    );
    let path = directory.join("nginx.conf");
    fs::write(&path, config).with_context(|| format!("write {}", path.display()))?;
    let mut command = namespace.command("nginx");
    command.arg("-c").arg(&path).arg("-e").arg(directory.join("error.log"));
    let first = addresses.first().context("nginx needs an address")?;
    serving(namespace, command, *first)
}

/// Starts a server in a namespace, and waits until it answers there.
///
/// # Errors
/// Fails if the server cannot be started, or does not answer within ten seconds.
pub fn serving(namespace: &Namespace, command: Command, address: SocketAddr) -> Result<Child> {
    let server = Child::start(command)?;
    for _ in 0..1000 {
        if namespace.inside(|| Ok(TcpStream::connect(address).is_ok()))? {
            return Ok(server);
        }
        thread::sleep(TICK);
    }
    Err(anyhow!("what should answer on {address} does not: {}", server.stderr()))
}
