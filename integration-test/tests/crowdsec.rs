//! Tests of bans as CrowdSec alerts, from the packet over the limit to the local API, which is a stand-in.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use integration_test::lab::{CLIENTS, CLIENTS_V6, Lab, SERVER, assert_refused, binary, once};
use netlab::{Child, HttpServer, needs_root};
use serde_json::{Value, json};

/// A local API that accepts any key and machine, and stores the alerts that are posted.
struct Lapi {
    port: u16,
    alerts: Arc<Mutex<Vec<Value>>>,
}

impl Lapi {
    fn new(lab: &Lab) -> Self {
        lab.server.ip(&["link", "set", "lo", "up"]).unwrap();
        let listener = lab.server.inside(|| Ok(TcpListener::bind("127.0.0.1:0")?)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let alerts = Arc::<Mutex<Vec<Value>>>::default();
        let kept = Arc::clone(&alerts);
        std::thread::spawn(move || listener.incoming().for_each(|stream| answer(stream.unwrap(), &kept)));
        Self { port, alerts }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Waits for the alert about a source, and returns it.
    fn alert(&self, source: &str) -> Value {
        let about = |of: &&Value| of["source"]["value"] == source;
        let seen = once(|| self.alerts.lock().unwrap().iter().find(about).cloned());
        seen.unwrap_or_else(|| panic!("none about {source}: {:?}", self.alerts.lock().unwrap()))
    }
}

fn answer(mut stream: TcpStream, alerts: &Mutex<Vec<Value>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut first, mut length, mut line) = (String::new(), 0, String::new());
    while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 2) {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if first.is_empty() {
            first.clone_from(&line);
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let (status, text) = if first.contains("/v1/decisions/stream") {
        ("200 OK", r#"{"new":null,"deleted":null}"#.to_owned())
    } else if first.contains("/v1/watchers/login") {
        ("200 OK", json!({ "code": 200, "expire": "2999-01-01T00:00:00Z", "token": "t" }).to_string())
    } else {
        let Value::Array(sent) = serde_json::from_slice(&body).unwrap() else { panic!("no array") };
        alerts.lock().unwrap().extend(sent);
        ("201 Created", r#"["1"]"#.to_owned())
    };
    let length = text.len();
    let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}");
}

#[test]
fn a_ban_in_the_kernel_is_an_alert_with_source_scope_reason_and_times() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let _web_v6 = HttpServer::start(&lab.server, format!("[{}]:80", SERVER[1]).parse().unwrap()).unwrap();
    let _daemon = lab.limit(&["--limit", "1/1h", "--count", "connections", "--block-for", "1h"]);
    let lapi = Lapi::new(&lab);
    let at = |name: &str| lab.directory().join(name);
    fs::write(at("key"), "key").unwrap();
    fs::write(at("machine"), "url: http://127.0.0.1:8080\nlogin: host\npassword: word\n").unwrap();
    let mut command = lab.command(binary());
    command.args(["crowdsec", "--interval", "1s", "--url", &lapi.url()]).arg("--key-file").arg(at("key"));
    command.arg("--out").arg(at("decisions.txt")).arg("--machine-file").arg(at("machine"));
    let crowdsec = Child::start(command).unwrap();
    // A manual denial is no ban, and is not reported.
    assert_eq!(lab.ratelimitd(&["deny", CLIENTS[1]]).code(), 0);
    let open = [CLIENTS[0], CLIENTS_V6[0]].map(|client| {
        let mut stream = lab.open(client, 80);
        lab.assert_blocked(client, 80);
        // A SYN alone causes no ban; data on an established connection does.
        stream.write_all(b"GET").unwrap();
        stream
    });
    let source = "fd09:0:0:a::/64";
    for (value, scope, key) in [(CLIENTS[0], "Ip", "ip"), (source, "Range", "range")] {
        let alert = lapi.alert(value);
        assert_eq!((&alert["source"]["scope"], &alert["source"][key]), (&json!(scope), &json!(value)), "{alert:#}");
        assert_eq!((&alert["scenario"], &alert["remediation"]), (&json!("ratelimitd/default"), &json!(true)));
        assert_eq!((&alert["capacity"], &alert["leakspeed"]), (&json!(1), &json!("1h")), "{alert:#}");
        assert!(alert["events_count"].as_u64().unwrap() >= 1 && alert.get("decisions").is_none(), "{alert:#}");
        // Time and reason are those of the kernel's event.
        let events = lab.ratelimitd(&["events", "--json", "--kind", "ban", "--source", value]).stdout;
        let event: Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
        assert_eq!((&alert["start_at"], &alert["stop_at"]), (&event["time"], &event["time"]), "{event:#}");
        assert_eq!(alert["message"], event["detail"]);
        assert!(alert["message"].as_str().unwrap().contains("1/1h connections"), "{alert:#}");
    }
    let told = lapi.alerts.lock().unwrap().clone();
    assert!(!told.iter().any(|of| of["source"]["value"] == CLIENTS[1]), "{told:#?}");
    assert_eq!(told.len(), 2, "each once: {told:#?}");
    drop((crowdsec, open));
    // The same ban for an abuse desk, once the history has it.
    let history = |format: &str| lab.ratelimitd(&["history", CLIENTS[0], "--format", format]).stdout;
    let line = once(|| history("plain").lines().find(|line| line.starts_with(CLIENTS[0])).map(str::to_owned));
    let line = line.unwrap_or_else(|| panic!("{}", history("plain")));
    assert!(line.split(' ').count() == 7 && line.contains("banned") && line.contains(" default "), "{line}");
    let first: Value = serde_json::from_str(history("json").lines().next().unwrap()).unwrap();
    assert_eq!((&first["source"], &first["schema"]), (&json!(CLIENTS[0]), &json!(1)), "{first:#}");
    assert!(history("abuse").contains(&format!("Subject: Traffic beyond our limits from {}\n", CLIENTS[0])));
    assert!(history("nft").contains(&format!("{}/32", CLIENTS[0])) && history("ipset").contains(CLIENTS[0]));
    assert_refused(&lab.ratelimitd(&["history", "--format", "plain", "--csv"]), 2, &["--csv"]);
}

#[test]
fn each_trouble_with_the_local_api_and_the_file_has_its_exit_code() {
    needs_root!();
    let lab = Lab::new();
    let lapi = Lapi::new(&lab);
    fs::write(lab.directory().join("key"), "key").unwrap();
    let path = |name: &str| lab.directory().join(name).to_str().unwrap().to_owned();
    let (key, out, url) = (path("key"), path("list.txt"), lapi.url());
    let once = |args: &[&str]| {
        let base = ["crowdsec", "--once", "--key-file", &key, "--out", &out, "--url", &url];
        lab.ratelimitd(&[&base, args].concat())
    };
    assert_eq!(once(&[]).code(), 0);
    let alone = |args: &[&str]| lab.ratelimitd(&[&["crowdsec", "--once"], args].concat());
    let unreachable = alone(&["--key-file", &key, "--out", &out, "--url", "http://127.0.0.1:1/"]);
    assert_refused(&unreachable, 69, &["cannot be reached", "cscli lapi status"]);
    let no_directory = path("none/list.txt");
    assert_refused(&alone(&["--key-file", &key, "--out", &no_directory, "--url", &url]), 2, &["cannot write"]);
    assert_refused(&alone(&["--key-file", &path("nokey"), "--out", &out, "--url", &url]), 2, &["cannot read"]);
    assert_refused(&alone(&["--key-file", &key, "--out", &out, "--url", "here"]), 2, &["no URL"]);
    fs::write(lab.directory().join("empty"), "\n").unwrap();
    assert_refused(&alone(&["--key-file", &path("empty"), "--out", &out, "--url", &url]), 78, &["has no key"]);
    for (flag, wrong) in [("--scopes", "country"), ("--most", "0"), ("--most", "1048577"), ("--ipv6-prefix", "0")] {
        assert_refused(&once(&[flag, wrong]), 2, &[flag]);
    }
}
