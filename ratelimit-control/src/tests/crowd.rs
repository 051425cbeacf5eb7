//! Tests with many connections that send nothing, or too much: everyone else is served at once.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::DuplexStream;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, timeout};

use super::*;
use crate::large::READ_TIME_MAX;
use crate::server::{CONNECTIONS_EACH, HEADER_TIME_MAX, Listener};
use ratelimit_report::event::{Event, EventKind};
use ratelimit_report::snapshot::{ListReport, Omitted};

/// Number of connections, more than any surface has places for.
const CROWD: usize = 1_400;
const ASK: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
/// Bytes that a connection may have sent: an incomplete request, or one whose answer nobody reads.
const SAID: [&[u8]; 5] = [
    b"",
    b"G",
    b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: ",
    b"POST /v1/charge HTTP/1.1\r\nHost: a\r\nContent-Length: 4000\r\n\r\n{",
    ASK,
];

/// Connections that a test makes, with their peers.
struct Pipes(Mutex<mpsc::Receiver<(DuplexStream, Peer)>>);

impl Listener for Pipes {
    type Stream = DuplexStream;

    async fn next(&self) -> io::Result<(DuplexStream, Peer)> {
        match self.0.lock().await.recv().await {
            Some(connection) => Ok(connection),
            None => std::future::pending().await,
        }
    }
}

struct Served {
    connect: mpsc::Sender<(DuplexStream, Peer)>,
    _stop: watch::Sender<()>,
}

impl Served {
    fn new(surface: Surface, handle: &Handle) -> Self {
        let (connect, incoming) = mpsc::channel(1);
        let (stop, stopped) = watch::channel(());
        tokio::spawn(serve(Pipes(Mutex::new(incoming)), Door::new(handle, surface, OWN_UID), stopped));
        Self { connect, _stop: stop }
    }

    /// Opens a connection and sends these bytes. The answer is longer than the pipe's buffer.
    async fn say(&self, peer: Peer, said: &[u8]) -> DuplexStream {
        let (mut client, server) = tokio::io::duplex(1 << 12);
        client.write_all(said).await.unwrap();
        self.connect.send((server, peer)).await.unwrap();
        client
    }

    /// Returns the answer to a request, which must come at once.
    async fn ask(&self, peer: Peer) -> String {
        let mut stream = self.say(peer, ASK).await;
        let (began, mut answer) = (Instant::now(), Vec::new());
        let read = timeout(HEADER_TIME_MAX * 10, stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok() && began.elapsed() < Duration::from_secs(1), "{peer:?} waited for {:?}", began.elapsed());
        String::from_utf8(answer).unwrap()
    }

    async fn assert_served(&self, peer: Peer) {
        let answer = self.ask(peer).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{peer:?}: {answer:?}");
    }
}

fn user(uid: u32) -> Peer {
    Peer { uid: Some(uid), address: None }
}

fn at(bits: u32) -> Peer {
    Peer { uid: None, address: Some(Ipv4Addr::from_bits(0x0a00_0000 + bits).into()) }
}

#[tokio::test(start_paused = true)]
async fn no_number_of_connections_of_members_keeps_root_or_another_member_out() {
    for said in SAID {
        let served = Served::new(Surface::Socket, &stub());
        let mut crowd = Vec::new();
        for of in 0..CROWD {
            // A few members with many connections each.
            crowd.push(served.say(user(1_000 + u32::try_from(of).unwrap() % 7), said).await);
        }
        for _ in 0..3 {
            for uid in [0, OWN_UID, 2_000, 1_000] {
                served.assert_served(user(uid)).await;
            }
            // Replace each connection that was closed.
            for of in 0..50 {
                crowd.push(served.say(user(1_000 + of % 7), said).await);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_number_of_connections_or_addresses_keeps_the_health_check_out() {
    for said in SAID {
        for addresses in [1, 5, u32::MAX] {
            let served = Served::new(Surface::Tcp, &stub());
            let mut crowd = Vec::new();
            for of in 0..u32::try_from(CROWD).unwrap() {
                crowd.push(served.say(at(of % addresses), said).await);
            }
            for of in [0, 4, 9_999_999] {
                served.assert_served(at(of)).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_that_fills_its_places_takes_none_of_anothers() {
    let served = Served::new(Surface::Tcp, &stub());
    let mut silent = served.say(at(1), b"").await;
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        crowd.push(served.say(at(2), b"").await);
    }
    silent.write_all(ASK).await.unwrap();
    let mut answer = String::new();
    silent.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer:?}");
    let mut rest = Vec::new();
    assert_eq!(timeout(Duration::from_millis(1), crowd[0].read_to_end(&mut rest)).await.unwrap().unwrap(), 0);
    assert!(timeout(Duration::from_millis(1), crowd[CROWD - 1].read_to_end(&mut rest)).await.is_err(), "it is open");
}

#[tokio::test(start_paused = true)]
async fn requests_under_way_go_for_nobody_and_root_finds_a_place_all_the_same() {
    let (handle, mut commands) = Handle::channel(feed::Feed::default());
    let served = Served::new(Surface::Socket, &handle);
    let mut under_way = Vec::new();
    for _ in 0..CONNECTIONS_EACH {
        under_way.push(served.say(user(1_000), ASK).await);
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    let refused = served.ask(user(1_000)).await;
    assert_eq!(refused, "", "one more is closed");
    let mut roots = served.say(user(0), b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    // Root's command comes before those that have waited longer.
    let Some(Command::Health(Ask { reply, .. })) = commands.recv().await else { panic!("not root's command first") };
    drop(reply.send(Ok(Health { schema: SCHEMA, healthy: true, problems: vec![], notes: vec![] })));
    let mut answer = String::new();
    roots.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer:?}");
    for mut stream in under_way {
        let Some(Command::Stats(Ask { reply, .. })) = commands.recv().await else { panic!("a request was lost") };
        drop(reply.send(Ok(snapshot())));
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_client_has_gone_is_not_carried_out() {
    for (path, body) in
        [("/v1/detach", ""), ("/v1/mode", r#"{"mode":"panic"}"#), ("/v1/reload", ""), ("/v1/import", r#"{"rows":[]}"#)]
    {
        let request = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let (handle, mut commands) = Handle::channel(feed::Feed::default());
        let served = Served::new(Surface::Socket, &handle);
        // One client goes while the owner is busy, one before its request was read, and one waits.
        let busy = served.say(user(0), request.as_bytes()).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        drop(busy);
        drop(served.say(user(0), request.as_bytes()).await);
        let _waits = served.say(user(0), request.as_bytes()).await;
        let mut carried_out = 0;
        while let Ok(command) = timeout(Duration::from_millis(10), commands.recv()).await {
            carried_out += usize::from(command.unwrap().awaited().await.is_some());
        }
        assert_eq!(carried_out, 1, "{path}");
    }
    // An application may charge without waiting for the answer.
    let (handle, mut commands) = Handle::channel(feed::Feed::default());
    let served = Served::new(Surface::Socket, &handle);
    let body = r#"{"source":"192.0.2.1","rule":"a","amount":1}"#;
    let request = format!("POST /v1/charge HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let charging = served.say(user(1_000), request.as_bytes()).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    drop(charging);
    assert!(commands.recv().await.unwrap().awaited().await.is_some());
}

#[tokio::test]
async fn a_daemon_that_closes_the_connection_and_goes_on_is_not_said_to_be_gone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let closing = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
    };
    let client = crate::client::Client::new(&path);
    let (answer, ()) = tokio::join!(client.call(&proto::Detach { interface: None }), closing);
    let said = answer.unwrap_err();
    assert!(said.to_string().contains("closed the connection without an answer; if the daemon has started"), "{said}");
    assert!(said.help().join(" ").contains("systemctl status"), "{:?}", said.help());
}

const EVENTS: &[u8] = b"GET /api/v1/events HTTP/1.1\r\nHost: a\r\n\r\n";

/// Returns a daemon with a full memory of events.
fn with_events() -> Handle {
    let handle = stub();
    for second in 0..5_000 {
        let time = jiff::Timestamp::from_second(second).unwrap();
        handle.feed.tell(Event::new(time, EventKind::Refused, "x".repeat(1_000)));
    }
    handle
}

#[tokio::test(start_paused = true)]
async fn answers_that_nobody_reads_have_no_other_wait_and_go() {
    let served = Served::new(Surface::Socket, &with_events());
    let mut silent = Vec::new();
    for of in 0..60 {
        silent.push(served.say(user(1_000 + of % 3), EVENTS).await);
    }
    let began = Instant::now();
    let whole = async |peer: Peer| {
        let (mut answer, mut stream) = (Vec::new(), served.say(peer, EVENTS).await);
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.len() > 4_000_000 && answer.ends_with(b"}"), "{peer:?} has {} bytes", answer.len());
        began.elapsed()
    };
    assert!(whole(user(0)).await < Duration::from_secs(1), "root waits for nobody");
    let waited = whole(user(2_000)).await;
    assert!(waited < Duration::from_secs(1), "it waited for {waited:?}");
    tokio::time::sleep(READ_TIME_MAX * 2).await;
    // The first client gets what its pipe held, and then the end.
    let mut answer = Vec::new();
    let _end = silent[0].read_to_end(&mut answer).await;
    assert!(answer.len() < 100_000, "{} bytes were made for who does not read", answer.len());
}

#[tokio::test(start_paused = true)]
async fn slow_readers_of_large_answers_have_nobody_wait_for_a_list() {
    let (handle, mut commands) = Handle::channel(feed::Feed::default());
    const LIST: &[u8] = b"GET /api/v1/list HTTP/1.1\r\nHost: a\r\n\r\n";
    tokio::spawn(async move {
        while let Some(Command::List(Ask { reply, .. })) = commands.recv().await {
            let omitted = vec![Omitted { of: "list bad".to_owned(), count: 7 }; 100_000];
            let time = jiff::Timestamp::UNIX_EPOCH;
            let report = ListReport { schema: SCHEMA, time, entries: vec![], omitted, would_ban: vec![] };
            drop(reply.send(Ok(report)));
        }
    });
    let served = Served::new(Surface::Socket, &handle);
    for uid in [1_000, 1_000, 1_001, 1_002] {
        let mut slow = served.say(user(uid), LIST).await;
        tokio::spawn(async move {
            // Read often enough not to be dropped as a client that does not read.
            while slow.read(&mut [0; 1_024]).await.is_ok_and(|read| read > 0) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    for uid in [2_000, 1_000] {
        let (began, mut answer) = (Instant::now(), Vec::new());
        served.say(user(uid), LIST).await.read_to_end(&mut answer).await.unwrap();
        assert!(answer.len() > 2_000_000 && answer.ends_with(b"}"), "{uid} has {} bytes", answer.len());
        assert!(began.elapsed() < Duration::from_secs(2), "{uid} waited for {:?}", began.elapsed());
    }
}
