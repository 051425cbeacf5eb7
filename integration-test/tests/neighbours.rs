//! Tests with other programs: fail2ban bans by the shipped action, CrowdSec's decisions are enforced, lists change.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use integration_test::fail2ban::{self, Fail2ban};
use integration_test::lab::{CLIENTS, CLIENTS_V6, Lab, SERVER, assert_refused, binary, once, run};
use netlab::{Child, HttpServer, needs_root};
use serde_json::{Value, json};

/// Returns the denied prefixes, each with its owner and whether it is permanent.
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
    // An address that one jail unbans is still banned by the other.
    fail2ban.set("one", "unbanip", CLIENTS[0]);
    until(&lab, &[("10.9.0.2", "fail2ban/ever", true)], &log);
    lab.assert_blocked(CLIENTS[0], 80);
    // Two addresses of one source, one of which is unbanned.
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
    // A stop of fail2ban lifts its own bans, and a start bans again. The administrator's denials stay.
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

/// Returns the seconds until the end of an owner's entry.
fn lasts(lab: &Lab, owner: &str) -> Option<u64> {
    let script = lab.ratelimitd(&["list", "--format", "ipset", CLIENTS[0]]).stdout;
    let is_there = denied(lab).iter().any(|(_, of, _)| of == owner);
    let line =
        script.lines().find(|line| line.starts_with("add ") && line.contains(CLIENTS[0])).filter(|_| is_there)?;
    line.split_once(" timeout ")?.1.split(' ').next()?.parse().ok()
}

#[test]
fn bans_that_grow_end_when_the_last_one_says() {
    needs_root!();
    if let Some(why) = fail2ban::missing() {
        println!("skipped: bans_that_grow_end_when_the_last_one_says: {why}");
        return;
    }
    let lab = Lab::new();
    let _daemon = lab.limit(&["--limit", "1000/1m", "--count", "connections"]);
    // Each ban is five seconds longer than the one before. fail2ban first bans as before, and then extends the ban.
    let growing = "bantime.increment = true\nbantime.formula = ban.Time + 5 * ban.Count\n";
    let fail2ban = Fail2ban::start_with(&lab, &[("grow", 4)], growing);
    let owner = "fail2ban/grow";
    fail2ban.fail("grow", CLIENTS[0]);
    let first = once(|| lasts(&lab, owner)).unwrap_or_else(|| panic!("{}", fail2ban.log()));
    assert!((1..=5).contains(&first), "{first} s\n{}", fail2ban.log());
    // A manual unban is not counted, so the ban must end by itself.
    once(|| fail2ban.log().contains("Unban").then_some(())).unwrap_or_else(|| panic!("{}", fail2ban.log()));
    until(&lab, &[], &|| fail2ban.log());
    fail2ban.fail("grow", CLIENTS[0]);
    let grown = once(|| lasts(&lab, owner).filter(|seconds| *seconds > 5));
    assert!(grown.is_some(), "{:?} after {first} s\n{}", lasts(&lab, owner), fail2ban.log());
    assert!(fail2ban.log().contains("Increase Ban"), "{}", fail2ban.log());
    assert!(!fail2ban.log().contains("ERROR"), "{}", fail2ban.log());
}

/// A server in the server's namespace that answers every request with a text.
struct Publisher {
    text: Arc<Mutex<String>>,
    says_length: Arc<AtomicBool>,
    port: u16,
}

impl Publisher {
    fn new(lab: &Lab) -> Self {
        lab.server.ip(&["link", "set", "lo", "up"]).unwrap();
        let listener = lab.server.inside(|| Ok(TcpListener::bind("127.0.0.1:0")?)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let text = Arc::new(Mutex::new(String::new()));
        let answers = Arc::clone(&text);
        let says_length = Arc::new(AtomicBool::new(true));
        let says = Arc::clone(&says_length);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let head = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                let is_known = head.take_while(|line| !line.is_empty()).any(|line| line == "If-None-Match: \"1\"");
                let text = answers.lock().unwrap().clone();
                let status = if is_known && text.starts_with("; first") { "304 Not Modified" } else { "200 OK" };
                let body = if status.starts_with("304") { "" } else { &text };
                let tag = if text.starts_with("; first") { "ETag: \"1\"\r\n" } else { "" };
                let length = format!("Content-Length: {}\r\n", body.len());
                let length = if says.load(Ordering::Relaxed) { length.as_str() } else { "" };
                let answer = format!("HTTP/1.1 {status}\r\n{tag}{length}Connection: close\r\n\r\n{body}");
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        Self { text, says_length, port }
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
    publisher.set("");
    let nothing = fetch();
    assert!(nothing.code() == 78 && nothing.stderr.contains("there is no list yet"), "{}", nothing.stderr);
    publisher.set(first);
    let fetched = fetch();
    assert_eq!((fetched.code(), kept().as_str()), (0, first), "{}", fetched.stderr);
    let again = fetch();
    assert!(again.code() == 0 && again.stdout.contains("unchanged"), "{}{}", again.stdout, again.stderr);
    let lines = "{\"cidr\":\"203.0.113.0/24\",\"sblid\":\"SBL2\"}\n{\"type\":\"metadata\",\"records\":1}\n";
    publisher.set(lines);
    assert_eq!((fetch().code(), kept().as_str()), (0, lines));
    for broken in ["<html>come back later</html>\n", "{\"cidr\":\"203.0.113.0/24\"}\n{\"cid", "# moved\n", "\n"] {
        publisher.set(broken);
        let refused = fetch();
        assert_eq!((refused.code(), kept().as_str()), (78, lines), "{}", refused.stderr);
    }
    // Longer than a list file may be, announced by its length or not; and a truncated one.
    let long = "192.0.2.7 # a comment of forty bytes and no less\n".repeat((66 << 20) / 48);
    for (text, says_length) in [(long.as_str(), true), (long.as_str(), false), ("192.0.2.0/24\n192.0.2.1", false)] {
        publisher.set(text);
        publisher.says_length.store(says_length, Ordering::Relaxed);
        let refused = fetch();
        assert!(refused.code() != 0 && kept() == lines, "{says_length}: {}", refused.stderr);
    }
    // Two lists as Cloudflare serves them: without a last line end, which its length shows to be whole.
    publisher.says_length.store(true, Ordering::Relaxed);
    let document = r#"{"result":{"ipv4_cidrs":["192.0.2.0/24"],"ipv6_cidrs":["2001:db8::/32"]},"success":true}"#;
    for whole in ["192.0.2.0/24\n198.51.100.0/24", document] {
        publisher.set(whole);
        let fetched = fetch();
        assert_eq!((fetched.code(), kept().as_str()), (0, whole), "{}", fetched.stderr);
    }
    // The daemon skips prefixes that are too wide, and a file with nothing else is no list.
    let part = "0.0.0.0/1\n203.0.113.0/24\n";
    publisher.set(part);
    let warned = fetch();
    assert_eq!((warned.code(), kept().as_str()), (0, part), "{}", warned.stderr);
    assert!(warned.stderr.contains("0.0.0.0/1 is more of IPv4 than a list should hold"), "{}", warned.stderr);
    publisher.set("0.0.0.0/1\n128.0.0.0/1\n");
    assert_eq!((fetch().code(), kept().as_str()), (78, part));
    let names = fs::read_dir(lab.directory()).unwrap().map(|of| of.unwrap().file_name());
    assert!(!names.into_iter().any(|name| name.to_string_lossy().contains(".new")));
}

#[test]
fn denials_exported_to_nft_are_imported_back_unchanged() {
    needs_root!();
    let lab = Lab::new();
    let _daemon = lab.limit(&["--limit", "1000/1m", "--count", "connections"]);
    for args in [
        &["deny", "198.51.100.0/24", "--for", "1h", "--reason", "a \"quote\" \\ and # a mark; {}"][..],
        &["deny", "198.51.100.7", "--for", "permanent"],
        &["deny", "2001:db8::7", "--for", "2h", "--by", "test/one"],
        &["deny", "2001:db8::/32", "--for", "30m"],
        // nft rejects numbers of nine digits.
        &["deny", "203.0.113.9", "--for", "3600d"],
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
    assert_eq!(prefixes, ["198.51.100.0/24", "198.51.100.7/32", "203.0.113.9/32", "2001:db8::/32", "2001:db8::/64"]);
    fs::write(lab.directory().join("plain.txt"), &plain).unwrap();
    assert_eq!(lab.ratelimitd(&["unblock", "--all"]).code(), 0);
    let file = lab.directory().join("plain.txt");
    let imported = lab.ratelimitd(&["import", file.to_str().unwrap()]);
    assert_eq!(imported.code(), 0, "{}", imported.stderr);
    let again = lab.ratelimitd(&["list", "--format", "plain"]).stdout;
    let without_seconds = |text: &str| -> Vec<String> {
        // A second may pass in between.
        text.lines()
            .map(|line| line.split("\"until\":\"").map(|part| part.get(20..).unwrap_or(part)).collect())
            .collect()
    };
    assert_eq!(without_seconds(&again), without_seconds(&plain));
}

#[test]
fn a_list_that_denies_half_of_all_or_this_host_denies_the_rest_of_it() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let config = lab.directory().join("ratelimitd.toml");
    fs::set_permissions(lab.directory(), fs::Permissions::from_mode(0o755)).unwrap();
    let text = "interfaces = [\"s0\"]\ndeny = [\"file:bad.txt\"]\n[rule]\nlimits = [\"1000/1m connections\"]\n";
    fs::write(&config, format!("socket = {:?}\n{text}", lab.socket())).unwrap();
    // The server's own network, half of the Internet, and one client.
    let list = format!("0.0.0.0/1\n10.9.0.0/24\n{}\n", CLIENTS[0]);
    fs::write(lab.directory().join("bad.txt"), &list).unwrap();
    let config = config.to_str().unwrap();
    let words = ["0.0.0.0/1 is more of IPv4", "10.9.0.0/24 holds 10.9.0.1, an address of this host", "it is ignored"];
    assert_refused(&lab.ratelimitd(&["check-config", config]), 0, &words);
    let checked = lab.ratelimitd(&["lists", "check", lab.directory().join("bad.txt").to_str().unwrap()]);
    assert_refused(&checked, 0, &words[..2]);
    let daemon = lab.start(&["run", "--config", config]);
    lab.assert_blocked(CLIENTS[0], 80);
    lab.open(CLIENTS[1], 80);
    let said = || lab.ratelimitd(&["stats"]).stdout.contains("2 entries of list files are PASSED OVER").then_some(());
    assert!(once(said).is_some(), "{}", lab.ratelimitd(&["stats"]).stdout);
    let health = lab.ratelimitd(&["events", "--json", "--kind", "reload"]).stdout;
    assert!(once(|| lab.ratelimitd(&["events"]).stdout.contains("10.9.0.0/24 holds 10.9.0.1").then_some(())).is_some());
    assert!(!health.contains("error"), "{health}");
    // Another list, by a reload and by the file's watch.
    for (way, denied, open) in [(["reload"].as_slice(), CLIENTS[1], CLIENTS[0]), (&[], CLIENTS[2], CLIENTS[1])] {
        fs::write(lab.directory().join("bad.txt"), format!("0.0.0.0/1\n128.0.0.0/2\n{denied}\n")).unwrap();
        if !way.is_empty() {
            assert_refused(&lab.ratelimitd(way), 0, &[]);
        }
        assert!(once(|| lab.is_blocked(denied, 80).then_some(())).is_some(), "{denied}");
        lab.open(open, 80);
    }
    drop(daemon);
}

#[test]
fn ten_thousand_denials_go_out_and_come_back_unchanged() {
    needs_root!();
    let lab = Lab::new();
    fs::set_permissions(lab.directory(), fs::Permissions::from_mode(0o755)).unwrap();
    let at = |name: &str| lab.directory().join(name).to_str().unwrap().to_owned();
    let text = "interfaces = [\"s0\"]\ndeny = [\"203.0.113.0/24\", \"file:bad.txt\"]\n[rule]\nlimits = [\"9/1m\"]\n";
    fs::write(at("ratelimitd.toml"), format!("socket = {:?}\n{text}", lab.socket())).unwrap();
    fs::write(at("bad.txt"), "192.0.2.0/24\n").unwrap();
    let _daemon = lab.start(&["run", "--config", &at("ratelimitd.toml")]);
    let lines: String =
        (0..10_000_u32).map(|of| format!("198.{}.{}.{}\n", 18 + of / 65_536, of / 256 % 256, of % 256)).collect();
    // Compressed, and with a byte order mark as some editors write it.
    fs::write(at("many"), format!("\u{feff}{lines}")).unwrap();
    assert!(std::process::Command::new("gzip").arg(at("many")).status().unwrap().success());
    let began = Instant::now();
    let imported = lab.ratelimitd(&["import", &at("many.gz"), "--by", "test/many", "--json"]);
    let took = began.elapsed();
    println!("10000 denials were imported in {took:?}");
    let report: Value = serde_json::from_str(&imported.stdout).unwrap();
    assert_eq!((imported.code(), &report["denied"]), (0, &json!(10_000)), "{}", imported.stderr);
    assert!(took.as_secs() < 30, "{took:?}");
    assert_eq!(lab.ratelimitd(&["deny", "198.51.100.0/24", "--for", "1h", "--reason", "a"]).code(), 0);
    assert_eq!(lab.ratelimitd(&["deny", "198.51.100.7", "--for", "permanent"]).code(), 0);
    // Ends by the wall clock are rounded. The daemon's own tests check that they stay.
    let entries = || {
        let mut list: Value = serde_json::from_str(&lab.ratelimitd(&["list", "--json"]).stdout).unwrap();
        list["entries"].as_array_mut().unwrap().iter_mut().for_each(|of| of["until"] = json!(of["until"].is_null()));
        list["entries"].clone()
    };
    let before = entries();
    for format in ["plain", "nft", "ipset", "json"] {
        fs::write(at(format), lab.ratelimitd(&["list", "--format", format]).stdout).unwrap();
        let again = lab.ratelimitd(&["import", &at(format), "--json"]);
        let report: Value = serde_json::from_str(&again.stdout).unwrap();
        let counts = ["denied", "unchanged", "refused", "of_configuration"].map(|key| report[key].clone());
        assert_eq!(counts, [10_002, 10_002, 0, 2].map(|count| json!(count)), "{format}: {}", again.stderr);
        assert_eq!(entries(), before, "{format}");
    }
    fs::write(at("part"), "198.51.100.9\n0.0.0.0/1\n").unwrap();
    assert_refused(&lab.ratelimitd(&["import", &at("part")]), 3, &["0.0.0.0/1 is not denied", "may lock you out"]);
    fs::write(at("none"), "0.0.0.0/1\n").unwrap();
    assert_refused(&lab.ratelimitd(&["import", &at("none")]), 2, &["0.0.0.0/1 is not denied"]);
    fs::write(at("bad"), "198.51.100.10\nhere\n").unwrap();
    let bad = lab.ratelimitd(&["import", &at("bad")]);
    assert_refused(&bad, 3, &["line 2: this is no address"]);
    assert_eq!(bad.stdout, "1 prefixes are denied; 1 are refused\n");
}
