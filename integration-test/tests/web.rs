//! Tests of the web page over the network: by TLS with real clients, and under hostile traffic while an operator needs
//! the control socket. The real daemon runs in a namespace. Clients are curl, openssl and raw bytes.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use integration_test::lab::{CLIENTS, HANGS_AFTER, Lab, once, run};
use integration_test::site::{Member, NAME, PAGE, Pair, Site, code, connect, raw};
use netlab::needs_root;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const LIMIT: [&str; 4] = ["--limit", "1/1h", "--count", "connections"];
/// Maximum time of the control socket's answer throughout.
const QUICK: Duration = Duration::from_millis(100);

/// Returns the time in which the control socket answers a request for statistics with sources.
fn control_socket(lab: &Lab) -> Duration {
    let began = Instant::now();
    let mut stream = UnixStream::connect(lab.socket()).unwrap();
    stream.set_read_timeout(Some(HANGS_AFTER)).unwrap();
    stream.write_all(b"GET /api/v1/stats HTTP/1.1\r\nHost: ratelimitd\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("\"top\""), "{answer}");
    began.elapsed()
}

/// Asserts that the median of several answers is quick, because the machine is shared.
fn assert_quick(lab: &Lab, during: &str) {
    let mut took: Vec<Duration> = (0..9).map(|_| control_socket(lab)).collect();
    took.sort_unstable();
    println!("{during}: the control socket answers in {:?}, at most {:?}", took[4], took[8]);
    assert!(took[4] < QUICK, "{during}: {took:?}");
}

#[test]
fn the_page_is_served_to_other_hosts_over_tls_across_certificate_renewal() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let (served, first, second) = (Pair::make(&lab, "tls"), Pair::make(&lab, "first"), Pair::make(&lab, "second"));
    first.replace(&served);
    let [cert, key] = [&served.cert, &served.key].map(|path| path.display().to_string());
    let tls = ["--listen", PAGE, "--tls-cert-file", &cert, "--tls-key-file", &key];
    let daemon = lab.limit(&[&LIMIT[..], &tls].concat());
    lab.assert_admitted(CLIENTS[0], 80, 1);
    let link = lab.ratelimitd(&["web-token"]).stdout;
    assert!(link.starts_with(&format!("https://{NAME}:9464/login#")), "{link}");

    let site = Site::encrypted(&lab, &first.cert);
    assert_eq!(site.ask("/login", &[]).status, 200);
    assert!(!site.ask("/api/v1/stats", &[]).text.contains(CLIENTS[0]), "nobody is told who is refused");
    let member = site.log_in();
    assert!(member.set.starts_with("__Host-ratelimitd_9464=") && member.set.ends_with("; Secure"), "{}", member.set);
    let list = member.ask("/api/v1/check/10.9.0.2", &[]);
    assert!(list.status == 200 && list.text.contains("over_limit"), "{}", list.text);
    let denied = member.change("/v1/deny", &json!({ "prefix": CLIENTS[1], "seconds": 600 }));
    assert_eq!(denied.status, 200, "{}", denied.text);
    lab.assert_blocked(CLIENTS[1], 80);
    assert!(lab.ratelimitd(&["list"]).stdout.contains("web"));

    // Real clients of other kinds, and one that does not use TLS.
    for version in ["-tls1_2", "-tls1_3"] {
        let mut openssl = lab.client.command("openssl");
        openssl.args(["s_client", "-connect", PAGE, "-servername", NAME, "-verify_return_error", version, "-brief"]);
        openssl.arg("-CAfile").arg(&first.cert).stdin(std::process::Stdio::null());
        let told = run(openssl);
        assert_eq!(told.code(), 0, "{version}: {}", told.stderr);
    }
    assert!(
        !raw(&lab, b"GET /metrics HTTP/1.1\r\nHost: 10.9.0.1\r\n\r\n").contains("HTTP/1.1"),
        "nothing in the clear"
    );
    for (host, status) in [("evil.example:9464", 403), ("limiter.example.evil.example", 403), (PAGE, 200)] {
        assert_eq!(site.ask("/login", &["-H", &format!("Host: {host}")]).status, status, "{host}");
    }
    let unencrypted = ["-H", "Origin: http://limiter.example:9464", "-d", "{}"];
    assert_eq!(member.ask("/v1/deny", &unencrypted).status, 404, "a page without TLS is another origin");

    // Another certificate, loaded by a signal. Sessions persist.
    second.replace(&served);
    daemon.child.signal(Signal::SIGHUP).unwrap();
    daemon.child.wait_for_line("a new certificate is served from now on", HANGS_AFTER).unwrap();
    assert_eq!(site.ask("/login", &[]).status, 0, "the one before is not served any more");
    let renewed = Site::encrypted(&lab, &second.cert);
    let member = Member { site: &renewed, ..member };
    assert_eq!(member.ask("/api/v1/list", &[]).status, 200);

    // An invalid one is reported, and everything continues.
    fs::write(&served.key, "no key").unwrap();
    let reloaded = lab.ratelimitd(&["reload"]);
    let said = [reloaded.stdout.as_str(), &reloaded.stderr].concat();
    assert!(reloaded.code() == 0 && said.contains("there is no private key in it"), "{said}");
    assert!(said.contains("`ratelimitd reload`") && said.contains("previous certificate stays in use"), "{said}");
    assert_eq!(member.ask("/api/v1/list", &[]).status, 200);
    lab.assert_blocked(CLIENTS[0], 80);
    let mut health = lab.command("curl");
    health.args(["-sS", "--unix-socket"]).arg(lab.socket()).arg("http://ratelimitd/healthz");
    let health = run(health).stdout;
    assert!(health.contains("\"healthy\":true") && health.contains("no private key"), "{health}");
    first.replace(&served);
    assert_eq!(lab.ratelimitd(&["reload"]).code(), 0);
    assert!(once(|| (site.ask("/login", &[]).status == 200).then_some(())).is_some());
}

#[test]
fn a_daemon_with_a_bad_certificate_limits_all_the_same_and_serves_once_it_is_mended() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let (served, good) = (Pair::make(&lab, "tls"), Pair::make(&lab, "good"));
    let cert = served.cert.display().to_string();
    fs::remove_file(&served.cert).unwrap();
    let file = format!(
        "interfaces = [\"s0\"]\nsocket = \"{}\"\nlisten = \"{PAGE}\"\ntls_cert_file = \"tls.pem\"\n\
         tls_key_file = \"tls.key\"\n[rule]\nlimits = [\"1/1h connections\"]\n",
        lab.socket().display()
    );
    let path = lab.directory().join("ratelimitd.toml");
    fs::write(&path, file).unwrap();
    let path = path.display().to_string();
    let checked = lab.ratelimitd(&["check-config", &path]);
    assert!(checked.code() == 0 && checked.stderr.contains(&format!("{cert} cannot be read")), "{}", checked.stderr);
    let daemon = lab.start(&["run", "--config", &path]);
    let said = daemon.child.stderr();
    assert!(said.contains(&cert) && said.contains("nothing is served over TCP until then"), "{said}");
    lab.assert_admitted(CLIENTS[0], 80, 1);
    assert_eq!(raw(&lab, b"GET /metrics HTTP/1.1\r\nHost: 10.9.0.1\r\n\r\n"), "");
    good.replace(&served);
    assert_eq!(lab.ratelimitd(&["reload"]).code(), 0);
    let site = Site::encrypted(&lab, &good.cert);
    assert_eq!(site.log_in().ask("/api/v1/list", &[]).status, 200);
    assert_eq!(site.ask("/metrics", &[]).status, 200);
}

/// Returns hostile requests, each with the accepted starts of the answer. "" means a close without an answer.
fn hostile() -> Vec<(&'static str, Vec<u8>, &'static [&'static str])> {
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: {PAGE}\r\n\r\n").into_bytes();
    let post = |path: &str, rows: &str, body: &str| {
        let length = body.len();
        format!("POST {path} HTTP/1.1\r\nHost: {PAGE}\r\n{rows}Content-Length: {length}\r\n\r\n{body}").into_bytes()
    };
    let deny = r#"{"prefix":"10.9.0.4"}"#;
    let own = "Origin: http://10.9.0.1:9464\r\n";
    let long = "x".repeat(20_000);
    vec![
        ("no token", get("/api/v1/list"), &["404"]),
        ("no token", get("/api/v1/check/10.9.0.2"), &["403"]),
        ("no token", get("/api/v1/events"), &["403"]),
        ("no token", get("/api/v1/history?prefix=10.9.0.2"), &["404"]),
        ("no token", get("/api/v1/stats"), &["200"]),
        ("no token", get("/metrics"), &["200"]),
        ("no token", get("/"), &["303"]),
        ("no token", post("/v1/deny", "", deny), &["404"]),
        ("no token", post("/v1/deny", own, deny), &["404"]),
        ("a wrong token", post("/login", own, r#"{"code":"00"}"#), &["401"]),
        ("a wrong cookie", post("/v1/deny", &format!("{own}Cookie: ratelimitd_9464=00\r\n"), deny), &["404"]),
        ("a wrong cookie", b"GET /api/v1/list HTTP/1.1\r\nHost: 10.9.0.1\r\nCookie: ratelimitd_9464=\r\n\r\n".into(), &["404"]),
        ("a foreign origin", post("/login", "Origin: http://evil.example\r\n", "{}"), &["403"]),
        ("no origin", post("/login", "Origin: null\r\n", "{}"), &["403"]),
        ("a foreign name", b"GET / HTTP/1.1\r\nHost: evil.example:9464\r\n\r\n".into(), &["403"]),
        ("a foreign name", b"GET /login HTTP/1.1\r\nHost: 10.9.0.1.evil.example\r\n\r\n".into(), &["403"]),
        ("a foreign name", b"GET /api/v1/stats HTTP/1.1\r\nHost: evil.example\r\n\r\n".into(), &["200"]),
        ("no name", b"GET / HTTP/1.1\r\n\r\n".into(), &["403", "400"]),
        ("two names", b"GET / HTTP/1.1\r\nHost: 10.9.0.1:9464\r\nHost: evil.example\r\n\r\n".into(), &["403", "400"]),
        ("a target with a name", b"GET http://evil.example/ HTTP/1.1\r\nHost: 10.9.0.1:9464\r\n\r\n".into(), &["403"]),
        ("a tunnel", b"CONNECT 10.9.0.2:80 HTTP/1.1\r\nHost: 10.9.0.2:80\r\n\r\n".into(), &["404", "403"]),
        ("a trace", b"TRACE /login HTTP/1.1\r\nHost: 10.9.0.1:9464\r\nCookie: a=secret\r\n\r\n".into(), &["404", "405"]),
        ("a preflight", b"OPTIONS /v1/deny HTTP/1.1\r\nHost: 10.9.0.1:9464\r\nOrigin: http://evil.example\r\n\r\n".into(), &["404"]),
        ("a head", b"HEAD /api/v1/list HTTP/1.1\r\nHost: 10.9.0.1:9464\r\n\r\n".into(), &["404"]),
        ("a path", get("/../../etc/passwd"), &["404"]),
        ("a path", get("/..%2f..%2fetc/passwd"), &["404"]),
        ("a path", get("/%2e%2e/%2e%2e/etc/passwd"), &["404"]),
        ("a path", get("//etc/passwd"), &["404"]),
        ("a path", get("/app.js/../../token.json"), &["404"]),
        ("a path", get("/app.js%00.html"), &["404"]),
        ("a long path", get(&format!("/{long}")), &["414", "431", ""]),
        ("a long header", format!("GET / HTTP/1.1\r\nHost: {PAGE}\r\nX: {long}\r\n\r\n").into_bytes(), &["431", ""]),
        ("many headers", format!("GET / HTTP/1.1\r\nHost: {PAGE}\r\n{}\r\n", "X: y\r\n".repeat(1_000)).into_bytes(), &["431", ""]),
        ("a long body", post("/login", own, &long), &["413"]),
        ("a body said to be long", format!("POST /login HTTP/1.1\r\nHost: {PAGE}\r\n{own}Content-Length: 9999999999\r\n\r\nx").into_bytes(), &["413"]),
        ("a long body in chunks", format!("POST /login HTTP/1.1\r\nHost: {PAGE}\r\n{own}Transfer-Encoding: chunked\r\n\r\n2000\r\n{}\r\n0\r\n\r\n", &long[..0x2000]).into_bytes(), &["400"]),
        ("no HTTP", b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03".into(), &["400", ""]),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), &["400", "505", ""]),
        ("garbage", vec![0; 100], &["400", ""]),
    ]
}

#[test]
fn hostile_clients_read_and_change_nothing_and_the_socket_stays_quick() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let daemon = lab.limit(&[&LIMIT[..], &["--listen", PAGE, "--insecure-web", "-v"]].concat());
    lab.assert_admitted(CLIENTS[0], 80, 1);
    let site = Site::plain(&lab);
    let member = site.log_in();
    let list = || {
        let told: Value = serde_json::from_str(&lab.ratelimitd(&["list", "--json"]).stdout).unwrap();
        told["entries"].clone()
    };
    let before = list();
    for (what, bytes, expected) in hostile() {
        let sent = String::from_utf8_lossy(&bytes[..bytes.len().min(90)]).into_owned();
        let answer = raw(&lab, &bytes);
        let status = answer.strip_prefix("HTTP/1.1 ").map_or("", |rest| &rest[..3]);
        assert!(expected.contains(&status), "{what}: {sent:?}: {answer}");
        assert!(!answer.contains(CLIENTS[0]) && !answer.contains("secret"), "{what}: {sent:?}: {answer}");
        // Everything that was parsed as a request is answered with the headers that keep other sites' pages out.
        if !["", "400", "431", "414", "413", "505"].contains(&status) {
            let headers = answer.to_ascii_lowercase();
            for header in ["frame-ancestors 'none'", "cache-control: no-store", "x-content-type-options: nosniff"] {
                assert!(headers.contains(header), "{what}: {sent:?}: {answer}");
            }
            assert!(!headers.contains("access-control-"), "{what}: {sent:?}: {answer}");
        }
    }
    let two = raw(&lab, format!("GET /login HTTP/1.1\r\nHost: {PAGE}\r\n\r\n").repeat(3).as_bytes());
    assert_eq!(two.matches("HTTP/1.1 200 OK").count(), 1, "a connection carries one request");
    // Another site's page controls a member's browser: the browser sends the cookie and nothing else.
    let cookie = format!("Cookie: {}", member.cookie);
    let csrf = format!("X-CSRF-Token: {}", member.csrf);
    let deny = ["-H", &cookie, "-d", r#"{"prefix":"10.9.0.4"}"#];
    for (more, status) in [
        (vec![], 403),
        (vec!["-H", "Origin: http://10.9.0.1:9464"], 403),
        (vec!["-H", "Origin: http://10.9.0.1:9464", "-H", "X-CSRF-Token: 00"], 403),
        (vec!["-H", "Origin: http://evil.example", "-H", &csrf], 404),
        (vec!["-H", "Origin: null", "-H", &csrf], 404),
        (vec!["-H", "Content-Type: text/plain", "-H", "Origin: http://evil.example"], 404),
    ] {
        assert_eq!(site.ask("/v1/deny", &[&deny[..], &more].concat()).status, status, "{more:?}");
    }
    assert_eq!(site.ask("/api/v1/list", &["-H", &cookie]).status, 404, "reading needs more than a cookie too");
    assert_eq!(list(), before, "nothing was changed");
    assert_eq!(member.ask("/api/v1/list", &[]).status, 200, "and who is logged in still is");

    // A session ID that another user has chosen is not accepted.
    let chosen = "Cookie: ratelimitd_9464=0000000000000000000000000000000000000000000000000000000000000000";
    let entered = site.enter(&code(&lab), &["-H", chosen]);
    assert!(entered.status == 200 && !entered.header("set-cookie").unwrap().contains("=0000"), "{}", entered.text);
    // Failures are limited by source, but a valid link still works.
    let failures = |from: &str| (0..12).map(|_| site.enter("00", &["--interface", from])).collect::<Vec<_>>();
    let failed = failures(CLIENTS[1]);
    let statuses: Vec<u16> = failed.iter().map(|of| of.status).collect();
    assert_eq!(statuses, [[401; 10].as_slice(), &[429; 2]].concat());
    assert!(failed[11].header("retry-after").unwrap().parse::<u64>().unwrap() <= 60);
    assert_eq!(site.enter("00", &["--interface", CLIENTS[2]]).status, 401, "another source has its own");
    let link = code(&lab);
    assert_eq!(site.enter(&link, &["--interface", CLIENTS[1]]).status, 200);
    assert_eq!(site.enter(&link, &["--interface", CLIENTS[2]]).status, 401, "and no link opens twice");
    let log = daemon.child.stderr();
    for secret in [&link, &member.csrf, member.cookie.split_once('=').unwrap().1] {
        assert!(!log.contains(secret), "a secret is in the log");
    }

    assert_eq!(member.change("/logout", &json!({})).status, 200);
    assert_eq!(member.ask("/api/v1/list", &[]).status, 404, "after the logout");
}

/// Guard that ends a background task when it is dropped, even if an assertion fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn idle_slow_and_endless_connections_leave_page_and_control_socket_quick() {
    needs_root!();
    let lab = Lab::new();
    let served = Pair::make(&lab, "tls");
    let [cert, key] = [&served.cert, &served.key].map(|path| path.display().to_string());
    for (tls, what) in
        [(vec!["--insecure-web"], "in the clear"), (vec!["--tls-cert-file", &cert, "--tls-key-file", &key], "by TLS")]
    {
        let daemon = lab.limit(&[&LIMIT[..], &["--listen", PAGE], &tls].concat());
        let site = if what == "by TLS" { Site::encrypted(&lab, &served.cert) } else { Site::plain(&lab) };
        assert_quick(&lab, &format!("{what}, nobody there"));
        let mut crowd = Vec::new();
        for of in 0..1_000 {
            let mut stream = connect(&lab);
            let begun: &[u8] = match of % 4 {
                0 => b"",
                1 => b"GET / HTTP/1.1\r\nHost: 10.9.0.1:9464\r\nX: ",
                2 => b"POST /login HTTP/1.1\r\nHost: 10.9.0.1:9464\r\nContent-Length: 4000\r\n\r\n{",
                // An incomplete handshake.
                _ => b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            };
            // The server keeps 32 connections of one address.
            let _closed = stream.write_all(begun);
            crowd.push(stream);
        }
        assert_quick(&lab, &format!("{what}, 1000 idle connections"));
        assert_eq!(site.log_in().ask("/api/v1/list", &[]).status, 200, "{what}");

        let (is_over, opened) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let over = Over(&is_over);
            // New connections without end, each with one more byte of something that never becomes a request.
            let flood = scope.spawn(|| {
                lab.client.inside(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        for stream in crowd.iter().take(64) {
                            let _closed = (&*stream).write_all(b"x");
                        }
                        let Ok(mut stream) = TcpStream::connect(PAGE) else { continue };
                        let _closed = stream.write_all(b"POST /login HTTP/1.1\r\nHost: 10.9.0.1:9464\r\nOrigin: ");
                        opened.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            });
            // Failing logins as fast as possible, over TLS with a handshake each.
            let logins = scope.spawn(|| {
                let mut tried = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    let _refused = site.enter("00", &["--interface", CLIENTS[1]]);
                    tried += 1;
                }
                tried
            });
            assert!(once(|| (opened.load(Ordering::Relaxed) > 20).then_some(())).is_some());
            assert_quick(&lab, &format!("{what}, connections without end"));
            drop(over);
            flood.join().unwrap().unwrap();
            let (opened, tried) = (opened.load(Ordering::Relaxed), logins.join().unwrap());
            println!("{what}: {opened} connections, {tried} logins meanwhile");
        });

        // The server does not wait for a head that arrives byte by byte.
        let began = Instant::now();
        let mut slow = connect(&lab);
        slow.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let mut answer = [0; 64];
        while began.elapsed() < HANGS_AFTER {
            let is_closed = slow.write_all(b"G").is_err();
            match slow.read(&mut answer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && !is_closed => {}
                Ok(1..) => {}
                Ok(0) | Err(_) => break,
            }
        }
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        drop(crowd);
        assert_eq!(daemon.end(Signal::SIGTERM), 0);
    }
}
