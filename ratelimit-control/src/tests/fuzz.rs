//! Tests with arbitrary bytes on a connection: it ends in time, with or without an answer, and the next client is
//! served.

use std::io;

use tokio::io::DuplexStream;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, timeout};

use super::*;
use crate::server::{CONNECTION_TIME_MAX, Listener};
use ratelimit_policy::fixture::{Choices, for_any_bytes};

/// Parts of the generated requests.
const PIECES: [&str; 28] = [
    "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /v1/charge HTTP/1.1\r\nHost: a\r\n",
    "POST /v1/deny HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST /v1/reload HTTP/1.1\r\nHost: a\r\nContent-Length: 8192\r\n\r\n",
    "GET ",
    "POST ",
    "HEAD ",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "/healthz",
    "/api/v1/stats",
    "/v1/charge",
    "/v1/deny",
    "http://localhost/metrics",
    "*",
    "%2e%2e/",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    " HTTP/9.9\r\n",
    "Host: a\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 99999999999999999999\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Expect: 100-continue\r\n",
    "Connection: upgrade\r\nUpgrade: websocket\r\n",
    "\r\n",
    "\r\n\r\n",
    "5\r\n{\"a\":\r\n",
    "ffffffffffffffff\r\n",
];

/// Connections that a test makes.
struct Pipes(Mutex<mpsc::Receiver<DuplexStream>>);

impl Listener for Pipes {
    type Stream = DuplexStream;

    async fn next(&self) -> io::Result<(DuplexStream, Peer)> {
        match self.0.lock().await.recv().await {
            Some(stream) => Ok((stream, Peer { uid: Some(0), address: None })),
            None => std::future::pending().await,
        }
    }
}

fn request(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..choices.below(24) {
        if choices.is_rare() {
            bytes.extend(choices.bytes(64).repeat(1 << choices.below(10)));
        } else {
            bytes.extend(choices.pick(&PIECES).as_bytes());
        }
    }
    bytes
}

/// Returns the answer to these bytes until the connection ends.
async fn said(pipes: &mpsc::Sender<DuplexStream>, bytes: &[u8]) -> Vec<u8> {
    let (client, server) = tokio::io::duplex(1 << 12);
    pipes.send(server).await.unwrap();
    let (mut read, mut write) = tokio::io::split(client);
    let mut answer = Vec::new();
    let began = Instant::now();
    // The server may close before it has read everything, and the client keeps its end open.
    let both = async { tokio::join!(write.write_all(bytes), read.read_to_end(&mut answer)) };
    let _ = timeout(CONNECTION_TIME_MAX + CONNECTION_TIME_MAX, both).await.expect("a connection ends");
    assert!(began.elapsed() <= CONNECTION_TIME_MAX + std::time::Duration::from_secs(1), "{:?}", began.elapsed());
    answer
}

async fn serve_these(bytes: &[u8]) {
    let (pipes, incoming) = mpsc::channel(1);
    let (stop, stopped) = watch::channel(());
    let server =
        tokio::spawn(serve(Pipes(Mutex::new(incoming)), Door::new(&stub(), Surface::Socket, OWN_UID), stopped));
    let answer = said(&pipes, bytes).await;
    let shown = format!("{:?}: {:?}", String::from_utf8_lossy(bytes), String::from_utf8_lossy(&answer));
    // The stub reports itself unhealthy with 503; any other 5xx is a fault.
    let status = answer.strip_prefix(b"HTTP/1.1 ").or(answer.strip_prefix(b"HTTP/1.0 ")).and_then(|rest| rest.first());
    let is_health = answer.windows(4).any(|part| part == b"gone") || shown.contains("HEAD ");
    assert!(answer.is_empty() || status.is_some_and(|first| b"124".contains(first)) || is_health, "{shown}");
    let next = said(&pipes, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(next.starts_with(b"HTTP/1.1 200 OK"), "after {shown}");
    drop(stop);
    server.await.expect("the server does not panic");
}

#[test]
fn any_bytes_end_a_connection_in_time_and_the_next_client_is_served() {
    for_any_bytes(|bytes| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(serve_these(&request(&mut Choices::new(bytes))));
    });
}
