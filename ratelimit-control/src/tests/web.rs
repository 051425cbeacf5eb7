//! Tests of the web page's routes: the login over TCP, and what it permits.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::http::request::Builder;
use http_body_util::BodyExt as _;
use hyper::body::Frame;
use tokio::time::Instant;

use super::*;
use crate::follow::Lasting;
use crate::server::router_with_login;
use ratelimit_report::event::{Event, EventKind};
use ratelimit_web::{Login, Token};

const HOST: &str = "127.0.0.1:9464";

struct Page {
    router: axum::Router,
    feed: feed::Feed,
    rows: Vec<(&'static str, String)>,
}

impl Page {
    /// Returns a page without a login, and its token.
    fn new() -> (Self, Token) {
        Self::of(stub())
    }

    fn of(handle: Handle) -> (Self, Token) {
        let token = Token::random().unwrap();
        let login = Login::new(token.clone(), HOST.parse::<SocketAddr>().unwrap(), None);
        let rows = vec![("host", HOST.to_owned()), ("origin", format!("http://{HOST}"))];
        (Self { feed: handle.feed.clone(), router: router_with_login(handle, login, OWN_UID), rows }, token)
    }

    /// Returns a page with a login.
    async fn member() -> Self {
        let (mut page, token) = Self::new();
        page.log_in(&token).await;
        page
    }

    async fn log_in(&mut self, token: &Token) {
        let body = format!(r#"{{"code":"{}"}}"#, code(token));
        let (status, headers, told) = self.ask("POST", "/login", &body).await;
        assert_eq!(status, StatusCode::OK);
        let cookie = headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
        self.rows.push(("cookie", cookie));
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        self.rows.push(("x-csrf-token", told["csrf"].as_str().unwrap().to_owned()));
    }

    fn request(&self, method: &str, path: &str) -> Builder {
        let request = Request::builder().method(method).uri(path);
        let request = request.extension(Peer { uid: None, address: Some("127.0.0.1".parse().unwrap()) });
        self.rows.iter().fold(request, |request, (name, value)| request.header(*name, value))
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> (StatusCode, HeaderMap, String) {
        let (status, headers, body) = self.bytes(method, path, body).await;
        (status, headers, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn bytes(&self, method: &str, path: &str, body: &str) -> (StatusCode, HeaderMap, Bytes) {
        let request = self.request(method, path);
        let response = self.router.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        (parts.status, parts.headers, body.collect().await.unwrap().to_bytes())
    }
}

fn code(token: &Token) -> String {
    token.code(u64::try_from(jiff::Timestamp::now().as_second()).unwrap()).unwrap()
}

#[tokio::test]
async fn without_a_login_tcp_serves_what_it_served_and_the_login_page() {
    let (page, _) = Page::new();
    for (method, path, expected) in [
        ("GET", "/metrics", 200),
        ("GET", "/healthz", 503),
        ("GET", "/api/v1/stats", 200),
        ("GET", "/api/v1/check/198.51.100.7", 403),
        ("GET", "/api/v1/list", 404),
        ("GET", "/api/v1/suggest", 404),
        ("GET", "/api/v1/events", 403),
        ("GET", "/api/v1/events?follow=true", 403),
        ("GET", "/api/v1/history?prefix=192.0.2.7", 404),
        ("GET", "/api/v1/worst", 404),
        ("GET", "/api/v1/series?period=1h", 404),
        ("POST", "/v1/deny", 404),
        ("POST", "/v1/detach", 404),
        ("POST", "/v1/forget", 404),
        ("GET", "/login", 200),
        ("GET", "/", 303),
        ("GET", "/web/session", 401),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/assets/../app.js", 404),
    ] {
        let (status, headers, body) = page.ask(method, path, "").await;
        assert_eq!(status, expected, "{method} {path}: {body}");
        assert!(!body.contains("198.51.100.7"), "{path}: {body}");
        assert!(headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"), "{path}");
    }
}

#[tokio::test]
async fn a_member_reads_what_names_sources_and_allows_denies_and_unblocks_as_web() {
    let page = Page::member().await;
    let (status, _, body) = page.ask("GET", "/api/v1/stats", "").await;
    assert!(status == 200 && body.contains("198.51.100.7"), "{body}");
    for (path, asked) in [
        ("/api/v1/check/192.0.2.7", "Check { ip: 192.0.2.7 }"),
        ("/api/v1/list?most=7", "most: Some(7)"),
        ("/api/v1/suggest", "Suggest { rule: None }"),
        ("/api/v1/history?prefix=192.0.2.7", "HistoryOf { prefix: \"192.0.2.7\""),
        ("/api/v1/worst", "Worst { since: None"),
        ("/api/v1/series?period=1h", "Series { period: Hour }"),
    ] {
        let (status, _, body) = page.ask("GET", path, "").await;
        let problem: Problem = serde_json::from_str(&body).unwrap();
        assert!(status == 409 && problem.message.contains(asked), "{path}: {status} {body}");
    }
    for (path, body, asked) in &CHANGES[..7] {
        let (status, _, answer) = page.ask("POST", path, body).await;
        let is_for_members = !path.ends_with("reset");
        assert_eq!(status, if is_for_members { 409 } else { 404 }, "{path}: {answer}");
        if is_for_members {
            let problem: Problem = serde_json::from_str(&answer).unwrap();
            assert!(problem.message.contains(asked) && problem.message.ends_with(" by web"), "{path}: {answer}");
        }
    }
    for path in
        ["/v1/detach", "/v1/apply", "/v1/reload", "/v1/mode", "/v1/confirm", "/v1/rollback", "/v1/charge", "/v1/forget"]
    {
        assert_eq!(page.ask("POST", path, "{}").await.0, 404, "{path} is for the host alone");
    }
}

#[tokio::test]
async fn a_member_follows_events_on_a_connection_that_lasts() {
    let page = Page::member().await;
    let (status, _, told) = page.ask("GET", "/api/v1/events", "").await;
    assert!(status == 200 && told.contains(r#""events":[]"#), "{told}");
    let lasting = Lasting::default();
    let request = page.request("GET", "/api/v1/events?follow=true").extension(lasting.clone());
    let response = page.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    assert!(lasting.is_set(), "the page's layers pass it on");
    let time = jiff::Timestamp::UNIX_EPOCH;
    page.feed.tell(Event::new(time, EventKind::Ban, "banned, as it happens".to_owned()));
    let line = response.into_body().frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(String::from_utf8(line.to_vec()).unwrap().contains("banned, as it happens"));
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_events_ends_with_its_session_at_once_and_goes_on_until_then() {
    let page = Page::member().await;
    let lasting = Lasting::default();
    let follow = || async {
        let request = page.request("GET", "/api/v1/events?follow=true").extension(lasting.clone());
        page.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().into_body()
    };
    let (mut one, mut other) = (follow().await, follow().await);
    tokio::time::sleep(Duration::from_secs(11 * 3_600)).await;
    let is_kept_alive = |frame: Option<Result<Frame<Bytes>, _>>| frame.unwrap().unwrap().into_data().unwrap() == "\n";
    assert!(is_kept_alive(one.frame().await) && is_kept_alive(other.frame().await), "eleven hours later");
    assert_eq!(page.ask("POST", "/logout", "").await.0, 200);
    let began = Instant::now();
    for body in [one, other] {
        // Data that was sent earlier can still be read.
        body.collect().await.unwrap();
    }
    assert!(began.elapsed() < Duration::from_millis(1), "{:?}", began.elapsed());
    assert!(!lasting.is_set(), "a client that reads nothing keeps its connection no longer");
    let time = jiff::Timestamp::UNIX_EPOCH;
    page.feed.tell(Event::new(time, EventKind::Ban, "after the logout".to_owned()));
    assert_eq!(page.ask("GET", "/api/v1/events?follow=true", "").await.0, 403);
}

#[tokio::test(start_paused = true)]
async fn an_event_stream_ends_with_its_session_or_when_newer_logins_replace_it() {
    let page = Page::member().await;
    let request = page.request("GET", "/api/v1/events?follow=true").body(Body::empty()).unwrap();
    let body = page.router.clone().oneshot(request).await.unwrap().into_body();
    let began = Instant::now();
    body.collect().await.unwrap();
    let lasted = began.elapsed().as_secs();
    assert!((12 * 3_600 - 1..=12 * 3_600).contains(&lasted), "{lasted} s");

    let (mut page, token) = Page::new();
    page.log_in(&token).await;
    let request = page.request("GET", "/api/v1/events?follow=true").body(Body::empty()).unwrap();
    let body = page.router.clone().oneshot(request).await.unwrap().into_body();
    let began = Instant::now();
    for _ in 0..32 {
        let body = format!(r#"{{"code":"{}"}}"#, code(&token));
        assert_eq!(page.ask("POST", "/login", &body).await.0, 200);
    }
    body.collect().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test]
async fn streams_of_events_are_bounded_and_a_logout_makes_room() {
    let page = Page::member().await;
    let follow = || async {
        let request = page.request("GET", "/api/v1/events?follow=true").header("accept", "text/event-stream");
        page.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    };
    let mut streams = Vec::new();
    for _ in 0..64 {
        let response = follow().await;
        assert_eq!(response.status(), StatusCode::OK);
        streams.push(response);
    }
    assert_eq!(follow().await.status(), StatusCode::CONFLICT);
    assert_eq!(page.ask("POST", "/logout", "").await.0, 200);
    for stream in streams {
        stream.into_body().collect().await.unwrap();
    }
}

#[tokio::test]
async fn the_page_is_on_the_socket_without_a_login() {
    for (path, text) in [("/", "<!doctype html>"), ("/web/session", r#""login":false"#)] {
        let (status, body) = ask(Surface::Socket, Some(1000), "GET", path).await;
        assert!(status == 200 && body.contains(text), "{path}: {body}");
        let (status, _) = ask(Surface::Tcp, None, "GET", path).await;
        assert_eq!(status, 404, "{path}: no login, no page");
    }
}

#[tokio::test]
async fn a_thousand_idle_connections_and_slow_requests_leave_page_and_socket_quick() {
    let (_, token) = Page::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let socket = tokio::net::UnixListener::bind(&path).unwrap();
    let (_stop, stopped) = watch::channel(());
    let handle = stub();
    let login = Login::new(token.clone(), address, None);
    tokio::spawn(serve(listener, Door::with_login(&handle, login, OWN_UID), stopped.clone()));
    tokio::spawn(serve(socket, Door::new(&handle, Surface::Socket, OWN_UID), stopped));
    let mut crowd = Vec::new();
    for of in 0..1_000 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        if of % 2 == 0 {
            // A login request whose last bytes never arrive.
            let _ = stream.write_all(b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4000\r\n\r\n{").await;
        }
        // The server may have closed it: one address may have 32 connections.
        crowd.push(stream);
    }
    let began = Instant::now();
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"GET /api/v1/stats HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && began.elapsed() < Duration::from_millis(100), "{answer}");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = format!(r#"{{"code":"{}"}}"#, code(&token));
    let head = format!("Host: {address}\r\nOrigin: http://{address}\r\nContent-Length: {}", body.len());
    stream.write_all(format!("POST /login HTTP/1.1\r\n{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("set-cookie: ratelimitd_"), "{answer}");
}

#[tokio::test]
async fn a_login_that_is_too_long_is_refused_before_it_is_read_whole() {
    let (page, _) = Page::new();
    assert_eq!(page.ask("POST", "/login", &"x".repeat(5_000)).await.0, 413);
    assert_eq!(Page::member().await.ask("POST", "/v1/deny", &"x".repeat(5_000)).await.0, 413);
}

/// Returns the paths on this host that a page's markup names.
fn named(html: &str) -> BTreeSet<String> {
    let parts = html.split(['"', '\'']);
    parts.filter(|part| part.starts_with('/') && part.contains('.')).map(str::to_owned).collect()
}

fn unpacked(packed: &[u8]) -> String {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(packed), &mut text).unwrap();
    text
}

#[tokio::test]
async fn the_first_view_of_64_rules_is_below_100_kb_with_gzip_and_equal_without() {
    /// Bytes of an answer's status, headers and framing.
    const HEAD_BYTES: usize = 1_000;
    let (handle, mut commands) = Handle::channel(feed::Feed::default());
    let stats = snapshot_of(64);
    tokio::spawn(async move {
        while let Some(Command::Stats(Ask { reply, .. })) = commands.recv().await {
            drop(reply.send(Ok(stats.clone())));
        }
    });
    let (mut page, token) = Page::of(handle);
    page.log_in(&token).await;
    let (_, _, html) = page.ask("GET", "/", "").await;
    let mut paths = named(&html);
    assert!(paths.len() > 10, "{paths:?}");
    paths.extend(["/", "/web/session", "/api/v1/stats"].map(str::to_owned));
    let plain = page.ask("GET", "/api/v1/stats", "").await;
    assert!(plain.2.len() > 60_000 && !plain.1.contains_key("content-encoding"), "{} bytes", plain.2.len());
    let mut plains = Vec::new();
    for path in &paths {
        plains.push(page.ask("GET", path, "").await.2);
    }
    page.rows.push(("accept-encoding", "gzip, deflate, br".to_owned()));
    let mut bytes = 0;
    for (path, plain) in paths.iter().zip(plains) {
        let (status, headers, body) = page.bytes("GET", path, "").await;
        let is_packed = plain.len() >= 1_024;
        assert_eq!(headers.get("content-encoding").is_some(), is_packed, "{path}");
        assert_eq!(headers.contains_key("vary"), is_packed, "{path}");
        assert_eq!(headers["content-length"], body.len().to_string(), "{path}");
        let text = if is_packed { unpacked(&body) } else { String::from_utf8(body.to_vec()).unwrap() };
        assert!(status == 200 && (path == "/web/session" || text == plain), "{path}");
        bytes += body.len() + HEAD_BYTES;
    }
    assert!((20_000..100_000).contains(&bytes), "{bytes} bytes");
}

#[tokio::test]
async fn login_answers_and_event_streams_are_not_compressed() {
    let (mut page, token) = Page::new();
    page.rows.push(("accept-encoding", "gzip".to_owned()));
    let body = format!(r#"{{"code":"{}"{}}}"#, code(&token), " ".repeat(2_000));
    let (status, headers, told) = page.ask("POST", "/login", &body).await;
    assert!(status == 200 && told.contains("csrf") && !headers.contains_key("content-encoding"), "{told}");
    page.log_in(&token).await;
    let request = page.request("GET", "/api/v1/events?follow=true").body(Body::empty()).unwrap();
    let response = page.router.clone().oneshot(request).await.unwrap();
    assert!(response.status() == 200 && !response.headers().contains_key("content-encoding"));
    let metrics = page.bytes("GET", "/metrics", "").await;
    assert!(unpacked(&metrics.2).contains("ratelimitd_packets_total"), "scrapes are packed as well");
    let request = Request::builder().uri("/metrics").header("accept-encoding", "gzip").body(Body::empty()).unwrap();
    let response = router(stub(), Surface::Socket, OWN_UID).oneshot(request).await.unwrap();
    assert!(!response.headers().contains_key("content-encoding"), "nothing is over the socket");
}

#[tokio::test]
async fn a_change_names_the_address_that_its_member_comes_from() {
    let (handle, mut commands) = Handle::channel(feed::Feed::default());
    let (mut page, token) = Page::of(handle);
    page.log_in(&token).await;
    let denied = tokio::spawn(async move { page.ask("POST", "/v1/deny", r#"{"prefix":"192.0.2.7"}"#).await });
    let Some(Command::Deny(Ask { by, reply, .. })) = commands.recv().await else { panic!("no denial") };
    assert_eq!((by.to_string().as_str(), by.web_address()), ("web", Some("127.0.0.1".parse().unwrap())));
    drop(reply);
    assert_eq!(denied.await.unwrap().0, 503);
}
