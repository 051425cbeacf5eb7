//! Tests against a stand-in that speaks the local API's protocol: keys, streams, truncated answers, machines.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::client::{Api, ClientError};
use crate::report::{Alert, Machine, Reporter, alert};
use crate::{Error, Options, Trouble, list, run};
use ratelimit_report::event::{Event, EventKind};

const KEY: &str = "a key of the test";
/// Time limit of a wait, generous enough for a busy machine.
const HANGS_AFTER: Duration = Duration::from_secs(30);

/// Behaviour of the stand-in's next answers.
#[derive(Clone, Debug, Default)]
enum Mood {
    #[default]
    Answers,
    /// Answers with this status.
    Fails(u16),
    /// Sends half of an answer and leaves the connection open.
    Hangs,
    /// Sends half of an answer and closes the connection.
    BreaksOff,
    /// Sends one byte at a time until notified.
    Drips(Arc<tokio::sync::Notify>),
}

#[derive(Debug, Default)]
struct Lapi {
    mood: Mood,
    all: Vec<Value>,
    new: Vec<Value>,
    deleted: Vec<Value>,
    /// Queries received, except those answered with no changes.
    asked: Vec<String>,
    logins: u32,
    refuses_token: Option<String>,
    alerts: Vec<Value>,
}

type Shared = Arc<Mutex<Lapi>>;

async fn stream(
    State(lapi): State<Shared>,
    Query(query): Query<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Response {
    if headers.get("x-api-key").is_none_or(|key| key != KEY) {
        return answer(403, "{\"message\":\"access forbidden\"}");
    }
    assert_eq!(headers["user-agent"], crate::client::USER_AGENT);
    let mut lapi = lapi.lock().unwrap();
    let is_startup = query.contains(&("startup".to_owned(), "true".to_owned()));
    let words: Vec<String> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
    lapi.asked.push(words.join("&"));
    let text = if is_startup {
        (lapi.new, lapi.deleted) = Default::default();
        json!({ "new": lapi.all, "deleted": null })
    } else {
        let or_null = |of: Vec<Value>| if of.is_empty() { Value::Null } else { Value::Array(of) };
        json!({ "new": or_null(std::mem::take(&mut lapi.new)), "deleted": or_null(std::mem::take(&mut lapi.deleted)) })
    };
    let text = text.to_string();
    match lapi.mood {
        Mood::Answers => answer(200, &text),
        Mood::Fails(status) => answer(status, "no"),
        Mood::Drips(ref may_end) => {
            let may_end = Arc::clone(may_end);
            let (mut sender, body) = http_body_util::channel::Channel::<hyper::body::Bytes, std::io::Error>::new(2);
            tokio::spawn(async move {
                let (first, last) = text.split_at(text.len() - 1);
                let mut drops = first.bytes().map(|byte| vec![byte]);
                loop {
                    tokio::select! {
                        biased;
                        () = may_end.notified() => break,
                        () = tokio::time::sleep(Duration::from_millis(20)) => {
                            let Some(drop) = drops.next() else { continue };
                            if sender.send_data(drop.into()).await.is_err() { return; }
                        }
                    }
                }
                let rest: Vec<u8> = drops.flatten().chain(last.bytes()).collect();
                let _ = sender.send_data(rest.into()).await;
            });
            Response::new(Body::new(body))
        }
        Mood::Hangs | Mood::BreaksOff => {
            let half = text.get(..text.len() / 2).unwrap().to_owned();
            let hangs = matches!(lapi.mood, Mood::Hangs);
            let (sender, body) = http_body_util::channel::Channel::<hyper::body::Bytes, std::io::Error>::new(2);
            tokio::spawn(async move {
                let mut sender = sender;
                sender.send_data(half.into()).await.unwrap();
                if hangs {
                    std::future::pending::<()>().await;
                }
                sender.abort(std::io::Error::other("gone"));
            });
            Response::new(Body::new(body))
        }
    }
}

async fn login(State(lapi): State<Shared>, body: String) -> Response {
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["scenarios"], json!([]));
    if body["machine_id"] != "host" || body["password"] != "word" {
        return answer(403, "{}");
    }
    let mut lapi = lapi.lock().unwrap();
    lapi.logins += 1;
    let token = format!("token-{}", lapi.logins);
    answer(200, &json!({ "code": 200, "expire": "2999-01-01T00:00:00Z", "token": token }).to_string())
}

async fn alerts(State(lapi): State<Shared>, headers: HeaderMap, body: String) -> Response {
    let mut lapi = lapi.lock().unwrap();
    let token = headers["authorization"].to_str().unwrap().to_owned();
    if lapi.refuses_token.as_ref().is_some_and(|refused| *refused == token) || !token.starts_with("Bearer token-") {
        return answer(401, "{}");
    }
    if let Mood::Fails(status) = lapi.mood {
        return answer(status, "no");
    }
    let Value::Array(sent) = serde_json::from_str(&body).unwrap() else { panic!("no array: {body}") };
    lapi.alerts.extend(sent);
    answer(201, "[\"1\"]")
}

fn answer(status: u16, text: &str) -> Response {
    Response::builder().status(StatusCode::from_u16(status).unwrap()).body(Body::from(text.to_owned())).unwrap()
}

struct Site {
    lapi: Shared,
    directory: tempfile::TempDir,
    at: SocketAddr,
    serving: tokio::task::JoinHandle<()>,
}

impl Site {
    async fn new() -> Self {
        let lapi = Shared::default();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("key"), format!("{KEY}\n")).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve(listener, Arc::clone(&lapi)));
        Self { lapi, directory, at, serving }
    }

    fn options(&self) -> Options {
        Options {
            url: format!("http://{}/", self.at),
            key_file: self.directory.path().join("key"),
            ca_file: None,
            out: self.out(),
            interval: Duration::from_millis(50),
            scopes: vec!["ip".into(), "range".into()],
            origins: Vec::new(),
            ipv6_prefix: 64,
            most: list::PREFIXES_MAX as usize,
            is_once: false,
            machine_file: None,
            socket: PathBuf::from("/nonexistent"),
        }
    }

    fn out(&self) -> PathBuf {
        self.directory.path().join("crowdsec.txt")
    }

    fn set(&self, change: impl FnOnce(&mut Lapi)) {
        change(&mut self.lapi.lock().unwrap());
    }

    async fn until(&self, listed: &[&str]) {
        let wanted: BTreeSet<String> = listed.iter().map(|of| (*of).to_owned()).collect();
        let began = Instant::now();
        while self::listed(&self.out()) != wanted {
            let asked = &self.lapi.lock().unwrap().asked.clone();
            assert!(began.elapsed() < HANGS_AFTER, "{:?} is not {wanted:?}: {asked:?}", self::listed(&self.out()));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn asked_again(&self) {
        let before = self.lapi.lock().unwrap().asked.len();
        let began = Instant::now();
        while self.lapi.lock().unwrap().asked.len() < before + 3 {
            assert!(began.elapsed() < HANGS_AFTER, "it is not asked");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn serve(listener: tokio::net::TcpListener, lapi: Shared) {
    let router = Router::new()
        .route("/v1/decisions/stream", get(stream))
        .route("/v1/watchers/login", post(login))
        .route("/v1/alerts", post(alerts));
    axum::serve(listener, router.with_state(lapi)).await.unwrap();
}

fn listed(path: &Path) -> BTreeSet<String> {
    list::read(path).unwrap().keys().map(ToString::to_string).collect()
}

fn ban(value: &str, duration: &str) -> Value {
    let scope = if value.contains('/') { "Range" } else { "Ip" };
    json!({ "id": 1, "uuid": "u", "origin": "crowdsec", "type": "ban", "scope": scope, "value": value,
            "duration": duration, "scenario": "crowdsecurity/ssh-bf" })
}

/// Runs the bridge during a test, and stops it afterwards.
async fn beside(options: Options, test: impl Future<Output = ()>) {
    tokio::select! {
        ended = run(&options) => panic!("it ended: {ended:?}"),
        () = test => {}
    }
}

#[tokio::test]
async fn the_file_follows_the_stream_through_startup_changes_and_a_restart() {
    let site = Site::new().await;
    site.set(|lapi| lapi.all = vec![ban("198.51.100.7", "1h"), ban("203.0.113.0/24", "-5s"), ban("2001:db8::9", "1h")]);
    beside(site.options(), async {
        site.until(&["198.51.100.7/32", "2001:db8::/64"]).await;
        site.set(|lapi| {
            lapi.new = vec![ban("203.0.113.0/24", "3h59m49s"), ban("198.51.100.7", "2h")];
            lapi.deleted = vec![ban("198.51.100.7", "-1s"), ban("2001:db8::9", "-1s")];
        });
        site.until(&["198.51.100.7/32", "203.0.113.0/24"]).await;
        let text = std::fs::read_to_string(site.out()).unwrap();
        assert!(text.contains("crowdsecurity/ssh-bf (crowdsec)"), "{text}");
    })
    .await;
    let asked = site.lapi.lock().unwrap().asked.clone();
    assert_eq!(asked[0], "startup=true&scopes=ip,range");
    assert!(asked[1..].iter().all(|query| query == "startup=false&scopes=ip,range"), "{asked:?}");
    // The content that an earlier run wrote holds until the first answer replaces it.
    site.set(|lapi| (lapi.mood, lapi.all) = (Mood::Fails(500), vec![ban("198.51.100.8", "1h")]));
    beside(site.options(), async {
        site.asked_again().await;
        assert_eq!(listed(&site.out()).len(), 2);
        site.set(|lapi| lapi.mood = Mood::Answers);
        site.until(&["198.51.100.8/32"]).await;
    })
    .await;
}

#[tokio::test]
async fn a_local_api_that_fails_hangs_or_breaks_off_keeps_what_holds_until_it_is_over() {
    let site = Site::new().await;
    for mood in [Mood::Fails(401), Mood::Fails(403), Mood::Fails(500), Mood::BreaksOff, Mood::Hangs] {
        let all = vec![ban("198.51.100.7", "2s"), ban("198.51.100.8", "1h")];
        site.set(|lapi| (lapi.mood, lapi.all, lapi.asked) = (Mood::Answers, all, Vec::new()));
        let _ = std::fs::remove_file(site.out());
        beside(site.options(), async {
            site.until(&["198.51.100.7/32", "198.51.100.8/32"]).await;
            site.set(|lapi| {
                lapi.mood = mood.clone();
                lapi.new = vec![ban("198.51.100.9", "1h"), ban("198.51.100.10", "1h")];
                lapi.all.extend(lapi.new.clone());
                lapi.asked.clear();
            });
            // Decisions expire without an answer, and half an answer has no effect.
            site.until(&["198.51.100.8/32"]).await;
            if matches!(mood, Mood::Hangs) {
                return;
            }
            site.set(|lapi| (lapi.mood, lapi.all) = (Mood::Answers, vec![ban("198.51.100.9", "1h")]));
            site.until(&["198.51.100.9/32"]).await;
            let asked = site.lapi.lock().unwrap().asked.clone();
            assert!(asked.iter().any(|query| query.starts_with("startup=true")), "{mood:?}: {asked:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn entries_of_an_earlier_run_hold_until_their_end_while_an_answer_drips() {
    let site = Site::new().await;
    let may_end = Arc::new(tokio::sync::Notify::new());
    let held = |seconds: i64| crate::book::Held {
        until: jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds),
        label: "crowdsecurity/ssh-bf (crowdsec)".into(),
        is_local: true,
    };
    let prefixes = [("198.51.100.6/32", -5), ("198.51.100.7/32", 2), ("198.51.100.8/32", 3_600)];
    let prefixes = prefixes.map(|(prefix, seconds)| (prefix.parse().unwrap(), held(seconds)));
    list::write(&site.out(), &crate::book::Denied { prefixes: prefixes.into(), left_out: 0 }).unwrap();
    site.set(|lapi| (lapi.mood, lapi.all) = (Mood::Drips(Arc::clone(&may_end)), vec![ban("198.51.100.9", "1h")]));
    let began = Instant::now();
    beside(site.options(), async {
        // A decision that expired before the start is removed at once, even while the answer is slow.
        site.until(&["198.51.100.7/32", "198.51.100.8/32"]).await;
        site.until(&["198.51.100.8/32"]).await;
        assert!(began.elapsed() >= Duration::from_secs(1), "it went too soon: {:?}", began.elapsed());
        assert_eq!(site.lapi.lock().unwrap().asked.len(), 1, "the answer still drips");
        may_end.notify_one();
        site.set(|lapi| lapi.mood = Mood::Answers);
        site.until(&["198.51.100.9/32"]).await;
    })
    .await;
}

#[tokio::test]
async fn each_trouble_is_told_from_the_others() {
    let site = Site::new().await;
    let once = || Options { is_once: true, ..site.options() };
    let trouble = |options: Options| async move { run(&options).await.unwrap_err().trouble() };
    for (status, expected) in [
        (401, Trouble::NotPermitted),
        (403, Trouble::NotPermitted),
        (404, Trouble::Unavailable),
        (500, Trouble::Unavailable),
        (503, Trouble::Unavailable),
    ] {
        site.set(|lapi| lapi.mood = Mood::Fails(status));
        assert_eq!(trouble(once()).await, expected, "{status}");
    }
    site.set(|lapi| lapi.mood = Mood::BreaksOff);
    assert_eq!(trouble(once()).await, Trouble::Unavailable);
    site.set(|lapi| lapi.mood = Mood::Answers);
    assert_eq!(trouble(Options { url: "http://127.0.0.1:1/".into(), ..once() }).await, Trouble::Unavailable);
    assert_eq!(trouble(Options { url: "127.0.0.1".into(), ..once() }).await, Trouble::Usage);
    assert_eq!(trouble(Options { key_file: "/nonexistent/key".into(), ..once() }).await, Trouble::Usage);
    assert_eq!(trouble(Options { out: site.directory.path().join("key"), ..once() }).await, Trouble::Usage);
    assert_eq!(trouble(Options { out: "/nonexistent/list".into(), ..once() }).await, Trouble::Usage);
    assert_eq!(trouble(Options { out: "/proc/list".into(), ..once() }).await, Trouble::Usage);
    let machine_file = Some(site.directory.path().join("key"));
    assert_eq!(trouble(Options { machine_file, ..once() }).await, Trouble::Config);
    let https = Options { url: "https://a/".into(), ca_file: Some(site.directory.path().join("key")), ..once() };
    assert_eq!(trouble(https).await, Trouble::Config);
    let denied = |kind| Error::Write("list".into(), std::io::Error::from(kind)).trouble();
    assert_eq!(denied(std::io::ErrorKind::PermissionDenied), Trouble::NotPermitted);
    assert_eq!(denied(std::io::ErrorKind::ReadOnlyFilesystem), Trouble::NotPermitted);
    assert_eq!(denied(std::io::ErrorKind::StorageFull), Trouble::Internal);
    let unread = Error::Secret("key".into(), std::io::ErrorKind::PermissionDenied.into()).trouble();
    assert_eq!(unread, Trouble::NotPermitted);
}

#[tokio::test]
async fn one_that_is_not_there_yet_is_awaited_and_one_pull_alone_says_what_is_wrong() {
    let site = Site::new().await;
    site.serving.abort();
    site.set(|lapi| lapi.all = vec![ban("198.51.100.7", "1h")]);
    while tokio::net::TcpStream::connect(site.at).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let once = Options { is_once: true, ..site.options() };
    assert!(matches!(run(&once).await, Err(Error::Pull(ClientError::Unreachable(..)))));
    assert!(!site.out().exists());
    beside(site.options(), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(site.out().exists() && listed(&site.out()).is_empty(), "the daemon finds a file from the start");
        let listener = tokio::net::TcpListener::bind(site.at).await.unwrap();
        tokio::spawn(serve(listener, Arc::clone(&site.lapi)));
        site.until(&["198.51.100.7/32"]).await;
    })
    .await;
    run(&once).await.unwrap();
    std::fs::write(&once.key_file, "another").unwrap();
    let refused = run(&once).await.unwrap_err();
    assert!(
        matches!(refused, Error::Pull(ClientError::Refused(403))) && refused.help()[0].contains("cscli"),
        "{refused}"
    );
    std::fs::write(&once.key_file, "\n").unwrap();
    assert!(matches!(run(&once).await, Err(Error::NoSecret(..))));
    assert!(!format!("{:?}", site.options()).contains(KEY));
}

#[tokio::test]
async fn a_large_answer_is_bounded_by_the_room_that_there_is() {
    let site = Site::new().await;
    let address = |at: u32| std::net::Ipv4Addr::from(0xc633_0000 + at).to_string();
    site.set(|lapi| lapi.all = (0..30_000).map(|at| ban(&address(at), &format!("{}s", 1_000 + at))).collect());
    let once = Options { is_once: true, most: 20_000, origins: vec!["a b".into(), "c".into()], ..site.options() };
    run(&once).await.unwrap();
    assert_eq!(list::read(&site.out()).unwrap().len(), 20_000);
    assert!(listed(&site.out()).contains(&format!("{}/32", address(29_999))), "the longest stay");
    assert_eq!(site.lapi.lock().unwrap().asked, ["startup=true&scopes=ip,range&origins=a b,c"]);
}

fn alerts_of(sources: &[&str]) -> Vec<Alert> {
    let of = |source: &&str| {
        let event = Event::new(jiff::Timestamp::UNIX_EPOCH, EventKind::Ban, "banned".to_owned());
        alert(&Event { source: Some((*source).to_owned()), ..event }).unwrap()
    };
    sources.iter().map(of).collect()
}

#[tokio::test]
async fn a_machine_logs_in_once_and_again_where_its_token_is_refused() {
    let site = Site::new().await;
    let api = || Api::new(&site.options().url, None).unwrap();
    let machine = Machine::read("login: host\npassword: word").unwrap();
    let mut reporter = Reporter::new(api(), machine);
    reporter.send(&alerts_of(&["198.51.100.7", "198.51.100.8"])).await.unwrap();
    reporter.send(&alerts_of(&["198.51.100.9"])).await.unwrap();
    assert_eq!(site.lapi.lock().unwrap().logins, 1);
    site.set(|lapi| lapi.refuses_token = Some("Bearer token-1".to_owned()));
    reporter.send(&alerts_of(&["2001:db8::/64"])).await.unwrap();
    site.set(|lapi| lapi.mood = Mood::Fails(500));
    assert!(matches!(reporter.send(&alerts_of(&["198.51.100.9"])).await, Err(ClientError::Status(500, _))));
    let (alerts, logins) = {
        let lapi = site.lapi.lock().unwrap();
        (lapi.alerts.clone(), lapi.logins)
    };
    let values: Vec<&Value> = alerts.iter().map(|of| &of["source"]["value"]).collect();
    assert_eq!(values, ["198.51.100.7", "198.51.100.8", "198.51.100.9", "2001:db8::/64"]);
    assert!(alerts.iter().all(|of| of.get("decisions").is_none()));
    assert_eq!(logins, 2);
    let wrong = Machine::read("login: host\npassword: other").unwrap();
    let refused = Reporter::new(api(), wrong).send(&alerts_of(&["198.51.100.7"])).await;
    assert!(matches!(refused, Err(ClientError::Refused(403))));
}
