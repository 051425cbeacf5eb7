//! Tests of both surfaces, with a stub instead of the datapath's owner.

use std::sync::LazyLock;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tower::ServiceExt;

use super::proto::{DetachReport, Health, METRICS, ReloadReport, StandingReport};
use super::server::{Door, Peer, Surface, router, serve};
use super::*;
use ratelimit_datapath::Datapath;
use ratelimit_datapath::fake::FakeDatapath;
use ratelimit_policy::desired::Rule;
use ratelimit_report::fixture::{limit, opening, policy};
use ratelimit_report::snapshot::{Census, ConfigState, Parts, SCHEMA, Samples, Snapshot, TOP_DEFAULT, TopSource};

mod crowd;
mod fuzz;
mod web;

const OWN_UID: u32 = 990;

/// Returns a snapshot with one source over its limit, whose address TCP must not reveal.
fn snapshot() -> Snapshot {
    snapshot_of(1)
}

/// Returns a snapshot of a daemon with this many rules.
fn snapshot_of(rules: usize) -> Snapshot {
    let mut policy = policy(vec![limit(1, ratelimit_common::layout::Unit::Connections)]);
    let rule = policy.rules[0].clone();
    policy.rules.extend((1..rules).map(|of| Rule { name: format!("rule-{of}"), ..rule.clone() }));
    let (mut datapath, kernel) = FakeDatapath::new(&["eth0"]);
    datapath.apply(&policy).unwrap();
    datapath.attach("eth0").unwrap();
    kernel.packet("eth0", opening("198.51.100.7"));
    let reading = datapath.read().unwrap();
    let mut census = Census::new(&policy, reading.now, TOP_DEFAULT);
    datapath.visit_sources(&mut |source| census.visit(&source)).unwrap();
    let tracked = census.finish();
    let windows = datapath.source(tracked.leaders[0].addr()).unwrap();
    Snapshot::build(Parts {
        top: TopSource::of(&policy, reading.now, tracked.leaders[0], &windows, &[]).into_iter().collect(),
        reading: &reading,
        tracked,
        policy: &policy,
        samples: &Samples::default(),
        uptime: std::time::Duration::ZERO,
        version: "0.2.0",
        config: ConfigState {
            last_reload_successful: true,
            last_reload_success_at: jiff::Timestamp::UNIX_EPOCH,
            error: None,
            rolled_back: None,
        },
    })
}

static SNAPSHOT: LazyLock<serde_json::Value> = LazyLock::new(|| serde_json::to_value(snapshot()).unwrap());

/// Owner that answers a few commands, and refuses all others with the command's debug text.
struct Stub;

impl<C: Call> Carry<C, ()> for Stub {
    fn carry(&mut self, call: C, by: &Requester, (): ()) -> Result<C::Report, Problem> {
        let answer = match C::ROUTE.path {
            "/api/v1/stats" => Ok(SNAPSHOT.clone()),
            "/healthz" => serde_json::to_value(Health {
                schema: SCHEMA,
                healthy: false,
                problems: vec!["gone".into()],
                notes: vec![],
            }),
            "/v1/reload" => serde_json::to_value(ReloadReport { schema: SCHEMA, changes: vec![], notes: vec![] }),
            "/v1/detach" => serde_json::to_value(DetachReport { schema: SCHEMA, detached: vec![], stopping: false }),
            _ => return Err(Problem::new(ProblemKind::Conflict, format!("{call:?} by {by}"))),
        };
        Ok(serde_json::from_value(answer.unwrap()).unwrap())
    }
}

impl<C: Call> Defer<C, ()> for Stub {
    fn defer(&mut self, ask: Ask<C>, (): ()) -> Answer {
        let why = format!("{:?} by {}", ask.call, ask.by);
        Answer::by(move || drop(ask.reply.send(Err(Problem::new(ProblemKind::Conflict, why)))))
    }
}

fn stub() -> Handle {
    let (handle, mut commands) = Handle::channel(feed::Feed::default());
    tokio::spawn(async move {
        while let Some(command) = commands.recv().await {
            if let Some(command) = command.awaited().await {
                command.carry_out(&mut Stub, ()).send();
            }
        }
    });
    handle
}

async fn ask(surface: Surface, peer: Option<u32>, method: &str, path: &str) -> (StatusCode, String) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .extension(Peer { uid: peer, address: None })
        .body(Body::empty())
        .unwrap();
    let response = router(stub(), surface, OWN_UID).oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn only_root_and_the_daemons_own_user_may_write() {
    for path in ["/v1/reload", "/v1/detach", "/v1/detach?interface=eth0"] {
        for (peer, expected) in [
            (Some(0), StatusCode::OK),
            (Some(OWN_UID), StatusCode::OK),
            (Some(1000), StatusCode::FORBIDDEN),
            (None, StatusCode::FORBIDDEN),
        ] {
            let (status, body) = ask(Surface::Socket, peer, "POST", path).await;
            assert_eq!(status, expected, "{path} by {peer:?}: {body}");
        }
        assert_eq!(ask(Surface::Socket, Some(0), "GET", path).await.0, StatusCode::METHOD_NOT_ALLOWED);
    }
    let (status, _) = ask(Surface::Socket, Some(1000), "GET", "/api/v1/stats").await;
    assert_eq!(status, StatusCode::OK, "every user who can connect may read");
}

async fn post(surface: Surface, peer: Option<u32>, path: &str, body: &str) -> (StatusCode, String) {
    let request = Request::builder().method("POST").uri(path).extension(Peer { uid: peer, address: None });
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let response = router(stub(), surface, OWN_UID).oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// Requests that change something: path, body, and how the stub's refusal begins.
const CHANGES: [(&str, &str, &str); 14] = [
    ("/v1/allow", r#"{"prefix":"192.0.2.0/24","reason":"office"}"#, "Allow(GrantRequest { prefix: \"192.0.2.0/24\""),
    (
        "/v1/deny",
        r#"{"prefix":"192.0.2.7","seconds":60}"#,
        "Deny(GrantRequest { prefix: \"192.0.2.7\", seconds: Some(60)",
    ),
    (
        "/v1/unblock",
        r#"{"prefix":"192.0.2.7"}"#,
        "UnblockRequest { prefix: Some(\"192.0.2.7\"), all: false, fleet: false, owner: None }",
    ),
    ("/v1/deny", r#"{"prefix":"2001:db8::7"}"#, "Deny(GrantRequest { prefix: \"2001:db8::7\""),
    ("/v1/unblock", r#"{"prefix":"2001:db8::7/128"}"#, "UnblockRequest { prefix: Some(\"2001:db8::7/128\")"),
    ("/v1/allow", r#"{"prefix":"192.0.2.1/24"}"#, "Allow(GrantRequest { prefix: \"192.0.2.1/24\""),
    ("/v1/reset", r#"{"source":"192.0.2.7"}"#, "SourceRequest { source: 192.0.2.7, fleet: false }"),
    ("/v1/mode", r#"{"mode":"dry-run"}"#, "ModeRequest { mode: DryRun }"),
    ("/v1/apply", r#"{"confirm_seconds":60}"#, "confirm_seconds: Some(60)"),
    ("/v1/confirm", "", "Confirm by root"),
    ("/v1/unblock", r#"{"all":true}"#, "UnblockRequest { prefix: None, all: true, fleet: false, owner: None }"),
    ("/v1/unallow", r#"{"prefix":"192.0.2.7"}"#, "PrefixRequest { prefix: \"192.0.2.7\", fleet: false }"),
    ("/v1/rollback", "ignored", "Rollback by root"),
    (
        "/v1/import",
        r#"{"rows":[{"prefix":"192.0.2.7","until":"2026-01-01T00:00:00Z","owner":"a"},{"prefix":"192.0.2.8"}]}"#,
        "Import { rows: [ImportRow { prefix: \"192.0.2.7\", until: Some(2026-01-01T00:00:00Z), reason: None, owner: \
         Some(\"a\") }, ImportRow { prefix: \"192.0.2.8\"",
    ),
];

#[tokio::test]
async fn changes_are_only_for_root_over_the_socket() {
    for (path, body, asked) in CHANGES {
        let (status, answer) = post(Surface::Socket, Some(0), path, body).await;
        assert_eq!(status, StatusCode::CONFLICT, "{path}: {answer}");
        let problem: Problem = serde_json::from_str(&answer).unwrap();
        assert!(problem.message.contains(asked) && problem.message.ends_with(" by root"), "{path}: {answer}");
        assert_eq!(post(Surface::Socket, Some(1000), path, body).await.0, StatusCode::FORBIDDEN, "{path}");
        assert_eq!(post(Surface::Tcp, Some(0), path, body).await.0, StatusCode::NOT_FOUND, "{path}");
    }
}

#[test]
fn each_command_has_its_own_path_and_members_change_only_by_charging() {
    let mut paths: Vec<_> = Command::ROUTES.iter().map(|route| route.path).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), Command::ROUTES.len());
    for route in Command::ROUTES {
        let is_for_root = route.verb == Verb::Post && route.path != "/v1/charge";
        assert_eq!(route.access, if is_for_root { Access::Change } else { Access::Connect }, "{route:?}");
    }
}

#[tokio::test]
async fn all_who_may_connect_may_charge_and_ask() {
    let charge = r#"{"source":"192.0.2.7","rule":"login","amount":1}"#;
    let (status, answer) = post(Surface::Socket, Some(1000), "/v1/charge", charge).await;
    assert!(status == StatusCode::CONFLICT && answer.contains("login"), "{answer}");
    for (path, asked) in [
        ("/v1/check/192.0.2.7?rule=login", "StandingOf { ip: 192.0.2.7, rule: \\\"login\\\" }"),
        (
            "/api/v1/explain/192.0.2.7?to=53%2Fudp&address=192.0.2.1",
            "to: \\\"53/udp\\\", address: Some(\\\"192.0.2.1\\\")",
        ),
        ("/api/v1/list", "ListFilter { rule: None"),
        ("/api/v1/suggest", "Suggest { rule: None }"),
        ("/api/v1/suggest?rule=api%3Apartner", "Suggest { rule: Some(\\\"api:partner\\\") }"),
    ] {
        let (status, answer) = ask(Surface::Socket, Some(1000), "GET", path).await;
        assert!(status == StatusCode::CONFLICT && answer.contains(asked), "{path}: {answer}");
        assert_eq!(ask(Surface::Tcp, None, "GET", path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn a_body_that_is_not_what_is_asked_for_is_answered_in_words() {
    for (path, body, words) in [
        ("/v1/deny", "", "the body is not valid for this request"),
        ("/v1/deny", r#"{"prefix":"192.0.2.1/33"}"#, "lengths are 0 to 32"),
        ("/v1/unblock", r#"{"prefix":"192.0.2.1","all":true}"#, "either a prefix or `all`"),
        ("/v1/unblock", "{}", "either a prefix or `all`"),
        ("/v1/deny", r#"{"prefix":"192.0.2.1","until":5}"#, "unknown field `until`"),
        ("/v1/mode", r#"{"mode":"off"}"#, "unknown variant `off`"),
        ("/v1/charge", r#"{"source":"192.0.2.7","rule":"login","amount":-1}"#, "invalid value"),
        ("/v1/reset", r#"{"source":"192.0.2.0/24"}"#, "invalid IP address"),
    ] {
        let (status, answer) = post(Surface::Socket, Some(0), path, body).await;
        assert!(status == StatusCode::BAD_REQUEST && answer.contains(words), "{path} {body}: {answer}");
    }
    for (method, path, status, words) in [
        ("GET", "/v1/deny", 405, "needs another method"),
        ("GET", "/v1/check/192.0.2.7", 400, "missing field `rule`"),
        ("POST", "/v1/detach?interfaces=eth0", 400, "unknown field `interfaces`"),
        ("GET", "/v1/check/%ff?rule=login", 400, "UTF-8"),
    ] {
        let (is, answer) = ask(Surface::Socket, Some(0), method, path).await;
        let problem: Problem = serde_json::from_str(&answer).expect(&answer);
        assert!(is == status && problem.message.contains(words), "{path}: {is} {answer}");
    }
    let row = r#"{"prefix":"2001:db8::7"},"#;
    let rows = |count: usize| format!(r#"{{"rows":[{}]}}"#, row.repeat(count).trim_end_matches(','));
    assert_eq!(post(Surface::Socket, Some(0), "/v1/import", &rows(1_000)).await.0, StatusCode::CONFLICT, "25 kB");
    let (status, answer) = post(Surface::Socket, Some(0), "/v1/import", &rows(1_001)).await;
    assert!(status == StatusCode::BAD_REQUEST && answer.contains("at most 1000 rows"), "{answer}");
    let huge = "x".repeat((2 << 20) + 1);
    assert_eq!(post(Surface::Socket, Some(0), "/v1/import", &huge).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(post(Surface::Socket, Some(1000), "/v1/import", &huge).await.0, StatusCode::FORBIDDEN);
    let large = format!(r#"{{"prefix":"{}"}}"#, "x".repeat(5000));
    assert_eq!(post(Surface::Socket, Some(0), "/v1/deny", &large).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let (status, answer) = ask(Surface::Socket, Some(0), "GET", "/api/v1/explain/192.0.2.7?to=htp").await;
    assert!(status == StatusCode::BAD_REQUEST && answer.contains("`htp` is no port"), "{answer}");
}

#[test]
fn the_documented_answer_is_the_one_that_is_given_and_every_path_is_documented() {
    let text = include_str!("../../docs/API.md");
    let example = text.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let standing: StandingReport = serde_json::from_str(example).unwrap();
    let written: serde_json::Value = serde_json::from_str(example).unwrap();
    assert_eq!(serde_json::to_value(&standing).unwrap(), written);
    for path in Command::ROUTES.iter().map(|route| route.path).chain([METRICS]) {
        assert!(text.contains(&format!(" {}", path.trim_end_matches("/{ip}"))), "{path}");
    }
}

#[tokio::test]
async fn over_tcp_nothing_writes_and_nothing_names_a_source() {
    for path in ["/v1/reload", "/v1/detach"] {
        assert_eq!(ask(Surface::Tcp, Some(0), "POST", path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    let (status, body) = ask(Surface::Tcp, None, "GET", "/api/v1/check/198.51.100.7").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(body.contains("single sources are not reported over TCP"), "{body}");
    for path in ["/api/v1/stats", "/metrics"] {
        let (status, body) = ask(Surface::Tcp, None, "GET", path).await;
        assert_eq!(status, StatusCode::OK);
        assert!(!body.contains("198.51.100"), "{path}: {body}");
    }
    let (_, body) = ask(Surface::Socket, Some(1000), "GET", "/api/v1/stats").await;
    assert!(body.contains("198.51.100.7"), "{body}");
}

#[tokio::test]
async fn wrong_requests_are_answered_in_words() {
    for (path, expected, words) in [
        ("/api/v1/check/example.org", StatusCode::BAD_REQUEST, "`example.org` is no IP address"),
        ("/api/v2/stats", StatusCode::NOT_FOUND, "no such path"),
        ("/healthz", StatusCode::SERVICE_UNAVAILABLE, "gone"),
    ] {
        let (status, body) = ask(Surface::Socket, Some(0), "GET", path).await;
        assert_eq!(status, expected, "{path}");
        assert!(body.contains(words), "{body}");
    }
}

#[tokio::test]
async fn a_tcp_port_serves_one_request_a_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(());
    let server = tokio::spawn(serve(listener, Door::new(&stub(), Surface::Tcp, OWN_UID), stopped));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");

    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("GET /metrics HTTP/1.1\r\nHost: here\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    // The server may close before it has read everything.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));
    drop(stop);
    server.await.unwrap();
}

#[tokio::test]
async fn a_body_whose_length_is_said_in_two_ways_is_refused_and_nothing_behind_it_is_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_stop, stopped) = watch::channel(());
    tokio::spawn(serve(listener, Door::new(&stub(), Surface::Tcp, OWN_UID), stopped));
    for lengths in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Transfer-Encoding: gzip, chunked\r\ncontent-length: 5",
        "Transfer-Encoding: chunked",
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let behind = "0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
        let sent = format!("GET /metrics HTTP/1.1\r\nHost: here\r\n{lengths}\r\n\r\n{behind}");
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _end = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{lengths}: {answer}");
        assert!(answer.contains("only as Content-Length") && answer.matches("HTTP/1.1").count() == 1, "{answer}");
        assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
    }
}

#[tokio::test]
async fn events_are_a_report_or_a_stream_in_either_form_and_not_for_tcp() {
    let feed = feed::Feed::default();
    let (handle, _commands) = Handle::channel(feed.clone());
    let event = |second, detail: &str| {
        let time = jiff::Timestamp::from_second(second).unwrap();
        ratelimit_report::event::Event::new(time, ratelimit_report::event::EventKind::Reload, detail.to_owned())
    };
    feed.tell(event(1, "first"));
    let get = async |surface, path: &str, accept: &str| {
        let request = Request::builder().uri(path).header("accept", accept).body(Body::empty()).unwrap();
        let response = router(handle.clone(), surface, OWN_UID).oneshot(request).await.unwrap();
        (response.status(), response.into_body())
    };
    let whole = async |body: Body| String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    assert_eq!(get(Surface::Tcp, "/api/v1/events", "").await.0, StatusCode::FORBIDDEN);
    assert_eq!(get(Surface::Socket, "/api/v1/events?kind=bann", "").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(get(Surface::Socket, "/api/v1/events?source=nobody", "").await.0, StatusCode::BAD_REQUEST);
    let (_, report) = get(Surface::Socket, "/api/v1/events?kind=reload", "").await;
    let report = whole(report).await;
    assert!(report.contains(r#""detail":"first""#) && report.ends_with(r#""overwritten":0}"#), "{report}");
    let (_, lines) = get(Surface::Socket, "/api/v1/events?follow=true", "").await;
    let (_, sent) = get(Surface::Socket, "/api/v1/events", "text/event-stream").await;
    let (_, slow) = get(Surface::Socket, "/api/v1/events?follow=true", "").await;
    for second in 0..3_000 {
        feed.tell(event(second, "more"));
    }
    feed.close();
    let lines = whole(lines).await;
    assert!(lines.lines().next().unwrap().contains(r#""detail":"first""#), "{lines}");
    assert!(lines.contains("\n{\"missed\":1976}\n"), "3000 less the 1024 that one may be behind");
    assert_eq!(lines.lines().filter(|line| line.contains(r#""detail":"more""#)).count(), 1024);
    let sent = whole(sent).await;
    assert!(
        sent.starts_with("data: {\"schema\":1,") && sent.contains("\n\nevent: missed\ndata: {\"missed\":1976}\n\n")
    );
    drop(slow);
    assert_eq!(get(Surface::Socket, "/api/v1/events?follow=true", "").await.0, StatusCode::SERVICE_UNAVAILABLE);
}
