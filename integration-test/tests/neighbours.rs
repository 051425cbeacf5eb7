//! Beside other programs: fail2ban bans by the shipped action, CrowdSec's decisions are in force, lists come and go.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use integration_test::fail2ban::{self, Fail2ban};
use integration_test::lab::{CLIENTS, CLIENTS_V6, Lab, SERVER, binary, once, run};
use netlab::{Child, HttpServer, needs_root};
use serde_json::{Value, json};

/// Prefix, owner and end of what is denied.
fn denied(lab: &Lab) -> Vec<(String, String, bool)> {
    let list: Value = serde_json::from_str(&lab.ratelimitd(&["list", "--json"]).stdout).unwrap();
    let of = list["entries"].as_array().unwrap().iter().filter(|of| of["state"] == "denied");
    let text = |of: &Value, key: &str| of[key].as_str().unwrap_or_default().to_owned();
    let mut all: Vec<_> = of.map(|of| (text(of, "prefix"), text(of, "owner"), of["until"].is_null())).collect();
    all.sort();
    all
}

fn until(lab: &Lab, wanted: &[(&str, &str, bool)], why: &dyn Fn() -> String) {
    let wanted: Vec<_> =
        wanted.iter().map(|(prefix, owner, ever)| ((*prefix).into(), (*owner).into(), *ever)).collect();
    let seen = once(|| (denied(lab) == wanted).then_some(()));
    assert!(seen.is_some(), "{:?} is not {wanted:?}\n{}", denied(lab), why());
}

#[test]
fn fail2ban_bans_unbans_stops_and_restores_each_jail_by_itself() {
    needs_root!();
    if let Some(why) = fail2ban::missing() {
        println!("skipped: fail2ban_bans_unbans_stops_and_restores_each_jail_by_itself: {why}");
        return;
    }
    let lab = Lab::new();
    let _web = lab.web();
    let _web_v6 = HttpServer::start(&lab.server, format!("[{}]:80", SERVER[1]).parse().unwrap()).unwrap();
    let _daemon = lab.limit(&["--limit", "1000/1m", "--count", "connections"]);
    let jails = [("one", 300), ("ever", -1)];
    let fail2ban = Fail2ban::start(&lab, &jails);
    let log = || fail2ban.log();
    fail2ban.fail("one", CLIENTS[0]);
    fail2ban.fail("ever", CLIENTS[0]);
    until(&lab, &[("10.9.0.2", "fail2ban/ever", true), ("10.9.0.2", "fail2ban/one", false)], &log);
    lab.assert_blocked(CLIENTS[0], 80);
    lab.open(CLIENTS[1], 80);
    // What one jail unbans, the other still bans.
    fail2ban.set("one", "unbanip", CLIENTS[0]);
    until(&lab, &[("10.9.0.2", "fail2ban/ever", true)], &log);
    lab.assert_blocked(CLIENTS[0], 80);
    // Two addresses of one source, of which one is unbanned.
    let source = "fd09:0:0:a::/64";
    let owners = [CLIENTS_V6[0], CLIENTS_V6[1]].map(|address| format!("fail2ban/one/{address}"));
    fail2ban.set("one", "banip", CLIENTS_V6[0]);
    fail2ban.set("one", "banip", CLIENTS_V6[1]);
    let ever = ("10.9.0.2", "fail2ban/ever", true);
    until(&lab, &[ever, (source, &owners[0], false), (source, &owners[1], false)], &log);
    fail2ban.set("one", "unbanip", CLIENTS_V6[0]);
    until(&lab, &[ever, (source, &owners[1], false)], &log);
    lab.assert_blocked(CLIENTS_V6[0], 80);
    lab.open(CLIENTS_V6[2], 80);
    // Its stop takes off its own, and its start bans again; what the administrator denies stays.
    assert_eq!(lab.ratelimitd(&["deny", CLIENTS[2]]).code(), 0);
    assert_eq!(fail2ban.client(&["stop"]).code(), 0);
    until(&lab, &[("10.9.0.4", "", false)], &log);
    lab.open(CLIENTS[0], 80);
    let said = log();
    assert!(!said.contains("ERROR"), "{said}");
    drop(fail2ban);
    let fail2ban = Fail2ban::start(&lab, &jails);
    let log = || fail2ban.log();
    until(&lab, &[ever, ("10.9.0.4", "", false), (source, &owners[1], false)], &log);
    assert_eq!(fail2ban.client(&["stop", "ever"]).code(), 0);
    until(&lab, &[("10.9.0.4", "", false), (source, &owners[1], false)], &log);
}

/// Answers every request with the text that is set, in the server's namespace.
struct Publisher {
    text: Arc<Mutex<String>>,
    port: u16,
}

impl Publisher {
    fn new(lab: &Lab) -> Self {
        lab.server.ip(&["link", "set", "lo", "up"]).unwrap();
        let listener = lab.server.inside(|| Ok(TcpListener::bind("127.0.0.1:0")?)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let text = Arc::new(Mutex::new(String::new()));
        let answers = Arc::clone(&text);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let head = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                let is_known = head.take_while(|line| !line.is_empty()).any(|line| line == "If-None-Match: \"1\"");
                let text = answers.lock().unwrap().clone();
                let status = if is_known && text.starts_with("; first") { "304 Not Modified" } else { "200 OK" };
                let body = if status.starts_with("304") { "" } else { &text };
                let tag = if text.starts_with("; first") { "ETag: \"1\"\r\n" } else { "" };
                let answer = format!(
                    "HTTP/1.1 {status}\r\n{tag}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        Self { text, port }
    }

    fn set(&self, text: &str) {
        *self.text.lock().unwrap() = text.to_owned();
    }
}

#[test]
fn a_decision_of_crowdsec_is_in_force_within_seconds_and_gone_after_its_deletion() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let list = lab.directory().join("decisions.txt");
    let config = lab.directory().join("ratelimitd.toml");
    fs::write(&list, "").unwrap();
    fs::set_permissions(lab.directory(), fs::Permissions::from_mode(0o755)).unwrap();
    let text = format!(
        "interfaces = [\"s0\"]\nsocket = \"{}\"\ndeny = [\"file:{}\"]\n[rule]\nlimits = [\"1000/1m\"]\n",
        lab.socket().display(),
        list.display()
    );
    fs::write(&config, text).unwrap();
    let _daemon = lab.start(&["run", "--config", config.to_str().unwrap()]);
    let lapi = Publisher::new(&lab);
    let key = lab.directory().join("key");
    fs::write(&key, "key").unwrap();
    lapi.set(r#"{"new":null,"deleted":null}"#);
    let mut command = lab.command(binary());
    let url = format!("http://127.0.0.1:{}/", lapi.port);
    command.args(["crowdsec", "--interval", "1s", "--url", &url]).arg("--key-file").arg(&key).arg("--out").arg(&list);
    let _crowdsec = Child::start(command).unwrap();
    lab.open(CLIENTS[0], 80);
    let decision = json!({ "id": 1, "origin": "crowdsec", "type": "ban", "scope": "Ip", "value": CLIENTS[0],
        "duration": "3h59m49s", "scenario": "crowdsecurity/ssh-bf" });
    lapi.set(&json!({ "new": [decision], "deleted": null }).to_string());
    assert!(once(|| lab.is_blocked(CLIENTS[0], 80).then_some(())).is_some(), "{}", fs::read_to_string(&list).unwrap());
    lab.open(CLIENTS[1], 80);
    let said = lab.ratelimitd(&["list", "--json"]).stdout;
    assert!(said.contains("crowdsecurity/ssh-bf (crowdsec)"), "{said}");
    lapi.set(&json!({ "new": null, "deleted": [decision] }).to_string());
    assert!(
        once(|| (!lab.is_blocked(CLIENTS[0], 80)).then_some(())).is_some(),
        "{}",
        fs::read_to_string(&list).unwrap()
    );
}

#[test]
fn a_feed_is_fetched_where_it_changed_and_kept_where_it_is_no_list() {
    needs_root!();
    let lab = Lab::new();
    let publisher = Publisher::new(&lab);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/feeds/ratelimitd-feed");
    let fetch = || {
        let mut command = lab.command(&script);
        command.arg("bad").current_dir(lab.directory()).env("RATELIMITD", binary());
        command.env("URL", format!("http://127.0.0.1:{}/list", publisher.port));
        run(command)
    };
    let kept = || fs::read_to_string(lab.directory().join("bad.txt")).unwrap();
    let first = "; first, in the shape of Spamhaus\n192.0.2.0/24 ; SBL1\n";
    publisher.set(first);
    let fetched = fetch();
    assert_eq!((fetched.code(), kept().as_str()), (0, first), "{}", fetched.stderr);
    let again = fetch();
    assert!(again.code() == 0 && again.stdout.contains("unchanged"), "{}{}", again.stdout, again.stderr);
    let lines = "{\"cidr\":\"203.0.113.0/24\",\"sblid\":\"SBL2\"}\n{\"type\":\"metadata\",\"records\":1}\n";
    publisher.set(lines);
    assert_eq!((fetch().code(), kept().as_str()), (0, lines));
    for broken in ["<html>come back later</html>\n", "{\"cidr\":\"203.0.113.0/24\"}\n{\"cid"] {
        publisher.set(broken);
        let refused = fetch();
        assert_eq!((refused.code(), kept().as_str()), (78, lines), "{}", refused.stderr);
    }
    let names = fs::read_dir(lab.directory()).unwrap().map(|of| of.unwrap().file_name());
    assert!(!names.into_iter().any(|name| name.to_string_lossy().contains(".new")));
}

#[test]
fn what_is_denied_goes_to_nft_and_comes_back_whole() {
    needs_root!();
    let lab = Lab::new();
    let _daemon = lab.limit(&["--limit", "1000/1m", "--count", "connections"]);
    for args in [
        &["deny", "198.51.100.0/24", "--for", "1h", "--reason", "a \"quote\" \\ and # a mark; {}"][..],
        &["deny", "198.51.100.7", "--for", "permanent"],
        &["deny", "2001:db8::7", "--for", "2h", "--by", "test/one"],
        &["deny", "2001:db8::/32", "--for", "30m"],
    ] {
        assert_eq!(lab.ratelimitd(args).code(), 0, "{args:?}");
    }
    let script = lab.ratelimitd(&["list", "--format", "nft"]).stdout;
    let file = lab.directory().join("denied.nft");
    fs::write(&file, &script).unwrap();
    let mut command = lab.command("nft");
    command.arg("-f").arg(&file);
    let loaded = run(command);
    assert_eq!(loaded.code(), 0, "{}\n{script}", loaded.stderr);
    let plain = lab.ratelimitd(&["list", "--format", "plain"]).stdout;
    let prefixes: Vec<&str> = plain.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(prefixes, ["198.51.100.0/24", "198.51.100.7/32", "2001:db8::/32", "2001:db8::/64"]);
    fs::write(lab.directory().join("plain.txt"), &plain).unwrap();
    assert_eq!(lab.ratelimitd(&["unblock", "--all"]).code(), 0);
    let file = lab.directory().join("plain.txt");
    let imported = lab.ratelimitd(&["import", file.to_str().unwrap()]);
    assert_eq!(imported.code(), 0, "{}", imported.stderr);
    let again = lab.ratelimitd(&["list", "--format", "plain"]).stdout;
    let without_seconds = |text: &str| -> Vec<String> {
        // A second may pass on the way.
        text.lines()
            .map(|line| line.split("\"until\":\"").map(|part| part.get(20..).unwrap_or(part)).collect())
            .collect()
    };
    assert_eq!(without_seconds(&again), without_seconds(&plain));
}
