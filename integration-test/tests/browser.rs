//! The web page in a browser: the one-time link logs in, a source that is refused is opened and unblocked by a click, and
//! its client passes again. Chromium in the server's namespace, by WebDriver.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use integration_test::lab::{CLIENTS, HANGS_AFTER, Lab, binary, once};
use integration_test::site::{NAME, Pair};
use integration_test::tmux::Tmux;
use netlab::{Child, needs_root};
use serde_json::{Value, json};

const PAGE: &str = "127.0.0.1:9464";
const DRIVER: u16 = 9515;
/// What WebDriver calls an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// What the browser lacks to be driven.
fn no_browser() -> Option<String> {
    let is_missing = |program: &&str| Command::new(program).arg("--version").output().is_err();
    let missing = ["chromium", "chromedriver"].into_iter().find(is_missing)?;
    Some(format!("{missing} is missing; `cargo xtask setup` installs it where apt-get has it"))
}

/// A browser, closed with its driver.
struct Browser<'a> {
    lab: &'a Lab,
    session: String,
    _driver: Child,
}

impl<'a> Browser<'a> {
    fn start(lab: &'a Lab) -> Self {
        let mut command = lab.command("chromedriver");
        command.arg(format!("--port={DRIVER}")).env("HOME", lab.directory());
        let driver = Child::start(command).unwrap();
        once(|| lab.server.inside(|| Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, DRIVER))?)).ok()).unwrap();
        let named = format!("--host-resolver-rules=MAP {NAME} 127.0.0.1");
        let args =
            ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", &named];
        let options = json!({ "args": args });
        let wanted = json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": options, "acceptInsecureCerts": true } } });
        let mut browser = Self { lab, session: String::new(), _driver: driver };
        let session = browser.post("/session", &wanted);
        browser.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        browser
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let head = format!("Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {}", body.len());
        let request = format!("POST {}{path} HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n{body}", self.session);
        let connect = || Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, DRIVER))?);
        let mut stream = self.lab.server.inside(connect).unwrap();
        stream.set_read_timeout(Some(HANGS_AFTER)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        // The driver leaves the connection open.
        let mut answer = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            answer.read_line(&mut line).unwrap();
            match line.trim_end().to_ascii_lowercase().split_once(':') {
                Some(("content-length", value)) => length = value.trim().parse().unwrap(),
                Some(_) => {}
                None if line.trim_end().is_empty() => break,
                None => {}
            }
        }
        let mut body = vec![0; length];
        answer.read_exact(&mut body).unwrap();
        let told: Value = serde_json::from_slice(&body).unwrap();
        told["value"].clone()
    }

    fn open(&self, url: &str) {
        assert_eq!(self.post("/url", &json!({ "url": url })), Value::Null);
    }

    /// What a script gives.
    fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until the page says this.
    fn says(&self, text: &str) {
        let page = || self.run("return document.body.innerText").as_str().unwrap_or_default().to_owned();
        assert!(once(|| page().contains(text).then_some(())).is_some(), "{text} is not in {}", page());
    }

    /// Clicks as a user does: on what can be seen.
    fn click(&self, selector: &str) {
        let clicked = once(|| {
            let found = self.post("/element", &json!({ "using": "css selector", "value": selector }));
            let element = found[ELEMENT].as_str()?.to_owned();
            // A page that is just drawn anew has lost it.
            (self.post(&format!("/element/{element}/click"), &json!({})) == Value::Null).then_some(())
        });
        assert!(clicked.is_some(), "{selector}: {}", self.run("return document.body.innerText"));
    }

    /// Holds the page to axe-core, which `RATELIMITD_AXE` names: `npm pack axe-core`.
    fn accessible(&self, page: &str) {
        let Some(axe) = std::env::var_os("RATELIMITD_AXE") else { return };
        let then = "const done = arguments[arguments.length - 1]; axe.run(document).then((of) => done(of.violations.filter((one) => \
                    ['serious', 'critical'].includes(one.impact)).map((one) => [one.id, one.nodes.map((node) => node.html)])), \
                    (error) => done(String(error)));";
        let script = format!("{};\n{then}", fs::read_to_string(axe).unwrap());
        let found = self.post("/execute/async", &json!({ "script": script, "args": [] }));
        assert_eq!(found, json!([]), "{page}");
    }

    /// Keeps a picture where `RATELIMITD_SCREENSHOTS` says.
    fn picture(&self, name: &str, size: [u32; 2], scheme: &str) {
        let Some(directory) = std::env::var_os("RATELIMITD_SCREENSHOTS").map(PathBuf::from) else { return };
        let run = |cmd: &str, params: Value| self.post("/goog/cdp/execute", &json!({ "cmd": cmd, "params": params }));
        let [width, height] = size;
        let is_phone = width < 600;
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone });
        run("Emulation.setDeviceMetricsOverride", screen);
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        run("Emulation.setEmulatedMedia", media);
        let picture = run("Page.captureScreenshot", json!({ "format": "png" }));
        let text = picture["data"].as_str().unwrap();
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join(format!("{name}.png.base64"));
        fs::write(&path, text).unwrap();
        let mut decode = Command::new("base64");
        let decoded = decode.arg("-d").arg(&path).output().unwrap();
        fs::write(directory.join(format!("{name}.png")), decoded.stdout).unwrap();
        fs::remove_file(path).unwrap();
    }
}

const WIDE: [u32; 2] = [1280, 900];
const PHONE: [u32; 2] = [390, 844];

#[test]
fn the_link_logs_in_a_refused_source_is_unblocked_by_a_click_and_its_client_passes_again() {
    needs_root!(no_browser());
    let lab = Lab::new();
    lab.server.ip(&["link", "set", "lo", "up"]).unwrap();
    let _web = lab.web();
    let _daemon = lab.limit(&["--limit", "3/5m connections", "--listen", PAGE]);
    let printed = lab.ratelimitd(&["web-token"]);
    assert_eq!(printed.code(), 0, "{}", printed.stderr);
    let link = printed.stdout.trim().to_owned();
    assert!(link.starts_with(&format!("http://{PAGE}/login#")), "{link}");
    let [client, other, ..] = CLIENTS;
    lab.assert_admitted(client, 80, 3);
    lab.open(other, 80);

    let browser = Browser::start(&lab);
    browser.open(&format!("http://{PAGE}/"));
    browser.says("sudo ratelimitd web-token");
    browser.accessible("login");
    browser.picture("login-light", WIDE, "light");
    browser.open(&link);
    browser.says("Who is refused now");
    browser.says(client);
    browser.says("over the limit");
    assert_eq!(browser.run("return location.pathname + location.hash"), "/", "the code is in no history");
    browser.accessible("overview");
    browser.picture("overview-light", WIDE, "light");
    browser.picture("overview-dark", WIDE, "dark");
    browser.picture("overview-phone", PHONE, "light");

    browser.click(&format!("a[data-key='{client}']"));
    browser.says("Blocked on ports 80,443");
    browser.says("drops new connections");
    let check = lab.ratelimitd(&["check", client]);
    assert!(check.stdout.contains("drops new connections"), "the same words: {}", check.stdout);
    browser.accessible("source");
    browser.picture("source-light", WIDE, "light");
    browser.picture("source-phone", PHONE, "dark");
    lab.assert_blocked(client, 80);
    browser.click("#unblock");
    browser.says("Unblock 10.");
    browser.accessible("dialog");
    browser.picture("dialog-dark", WIDE, "dark");
    browser.click("#ask-do");
    browser.says("Passes on ports 80,443");
    lab.open(client, 80);

    for (page, says) in [("rules", "Limit: 3 connections in 5m"), ("access", "Access list"), ("events", client)] {
        browser.run(&format!("location.hash = '#/{page}'"));
        browser.says(says);
        browser.accessible(page);
        browser.picture(&format!("{page}-light"), WIDE, "light");
    }
    // A link opens once.
    browser.run("document.querySelector('#logout').click()");
    browser.says("sudo ratelimitd web-token");
    browser.open("about:blank");
    browser.open(&link);
    browser.says("the link was used before");
    let log = browser.post("/se/log", &json!({ "type": "browser" }));
    let refused = log.to_string();
    assert!(!refused.contains("Content Security Policy") && !refused.contains("TrustedHTML"), "{refused}");
}

/// When the page shows something new, frame by frame, in `seen`: where it stands, a number of it.
const WATCH: &str = "window.seen = []; new MutationObserver(() => requestAnimationFrame(() => { \
    const main = document.getElementById('main'); \
    if (main && /\\d/.test(main.innerText)) window.seen.push(performance.now()); })) \
    .observe(document, { subtree: true, childList: true, characterData: true });";
/// What has been loaded: path, bytes with headers, and when the last of them came.
const LOADED: &str = "return ['navigation', 'resource'].flatMap((type) => performance.getEntriesByType(type)) \
    .map((of) => [new URL(of.name).pathname, of.transferSize, of.responseEnd]);";
/// A page and what it asks for before it shows everything.
const VIEW_BYTES_MAX: f64 = 100_000.0;
/// From the daemon's answer to a frame with its first numbers.
const RENDERED_MS_MAX: f64 = 200.0;

#[test]
fn a_page_load_has_at_most_100_kb_and_shows_its_first_numbers_200_ms_after_the_daemons_answer() {
    needs_root!(no_browser());
    let lab = Lab::new();
    let _web = lab.web();
    let _daemon = lab.limit(&["--limit", "3/5m connections", "--listen", PAGE]);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    let link = lab.ratelimitd(&["web-token"]).stdout;
    let browser = Browser::start(&lab);
    let watch = json!({ "cmd": "Page.addScriptToEvaluateOnNewDocument", "params": { "source": WATCH } });
    browser.post("/goog/cdp/execute", &watch);
    browser.open(link.trim());
    browser.says(CLIENTS[0]);
    let mut rendered = Vec::new();
    // The machine is shared: the best of three. Each time everything is loaded anew.
    for _ in 0..3 {
        browser.open(&format!("http://{PAGE}/"));
        browser.says(CLIENTS[0]);
        let loaded = browser.run(LOADED);
        let rows = loaded.as_array().unwrap();
        let bytes: f64 = rows.iter().map(|row| row[1].as_f64().unwrap()).sum();
        assert!(bytes > 10_000.0 && bytes <= VIEW_BYTES_MAX, "{bytes} bytes: {loaded}");
        let answered = rows.iter().find(|row| row[0] == "/api/v1/stats").unwrap()[2].as_f64().unwrap();
        let seen = browser.run("return window.seen");
        let frames = seen.as_array().unwrap().iter().filter_map(Value::as_f64);
        let first = frames.filter(|at| *at >= answered).min_by(f64::total_cmp).unwrap();
        println!("{bytes} bytes in {} answers; numbers {:.1} ms after the daemon's", rows.len(), first - answered);
        rendered.push(first - answered);
    }
    let best = rendered.into_iter().min_by(f64::total_cmp).unwrap();
    assert!(best <= RENDERED_MS_MAX, "{best} ms");
}

/// `events -f`, whose lines can be waited for.
fn follow(lab: &Lab) -> Child {
    let mut command = lab.command("sh");
    command.arg("-c").arg("exec \"$0\" events -f >&2").arg(binary());
    Child::start(command).unwrap()
}

fn done(lab: &Lab, args: &[&str]) -> String {
    let output = lab.ratelimitd(args);
    assert_eq!(output.code(), 0, "{args:?}: {}", output.stderr);
    output.stdout
}

/// The reason by which packets are dropped, as metrics have it, of those that count any.
fn dropped_by(lab: &Lab) -> Vec<String> {
    let mut stream = UnixStream::connect(lab.socket()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ratelimitd\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("ratelimitd_packets_total{"));
    let dropped = rows.filter(|line| line.contains("verdict=\"drop\"") && !line.ends_with(" 0"));
    dropped.map(|line| line.split_once("reason=\"").unwrap().1.split_once('"').unwrap().0.to_owned()).collect()
}

#[test]
fn a_client_that_is_limited_banned_and_released_is_told_of_in_the_same_words_by_all_who_tell_of_it() {
    needs_root!(no_browser());
    let lab = Lab::new();
    let _web = lab.web();
    let limit = ["--limit", "1/1h", "--count", "connections", "--name", "web", "--block-for", "1h"];
    let daemon = lab.limit(&[&limit[..], &["--listen", PAGE]].concat());
    let client = CLIENTS[0];
    let link = done(&lab, &["web-token"]);
    let browser = Browser::start(&lab);
    browser.open(link.trim());
    browser.says("Who is refused now");
    browser.run("location.hash = '#/events'");
    let (events, top) = (follow(&lab), Tmux::start(&lab, ""));
    top.shows(&["enforcing"]);
    let json = |args: &[&str]| serde_json::from_str::<Value>(&lab.ratelimitd(args).stdout).unwrap();
    let last = |kind: &str| {
        let told = done(&lab, &["events", "--json", "--source", client, "--kind", kind]);
        told.lines().last().map(|line| serde_json::from_str::<Value>(line).unwrap())
    };
    // All of an event but its time is one sentence: in the log, in a terminal, on the page.
    let sentence = |kind: &str| {
        let event = once(|| last(kind)).unwrap();
        let detail = event["detail"].as_str().unwrap().to_owned();
        daemon.child.wait_for_line(&detail, HANGS_AFTER).unwrap();
        events.wait_for_line(&detail, HANGS_AFTER).unwrap();
        browser.says(&detail);
        (event, detail)
    };
    let episode = |reason: &str| {
        let found = once(|| {
            let story = json(&["history", client, "--json"]);
            story["episodes"].as_array()?.iter().find(|of| of["reason"] == reason).cloned()
        });
        found.unwrap_or_else(|| panic!("{reason}: {}", json(&["history", client, "--json"])))
    };

    // Limited: a SYN alone bans nobody.
    let mut open = lab.open(client, 80);
    lab.assert_blocked(client, 80);
    let (event, detail) = sentence("refused");
    assert_eq!(event["reason"], "over_limit");
    assert!(detail.starts_with("10.9.0.2 refused by rule \"web\""), "{detail}");
    assert_eq!(json(&["check", client, "--json"])["reason"], event["reason"]);
    assert_eq!(lab.stats()["top"][0]["state"], event["reason"]);
    assert_eq!(dropped_by(&lab), ["over_limit"]);
    assert_eq!(episode("over_limit")["limit"], event["limit"]);
    let in_words = "over the limit";
    assert!(top.shows(&[client]).contains(in_words));

    // Banned.
    open.write_all(b"GET").unwrap();
    let (event, detail) = sentence("ban");
    assert_eq!((&event["reason"], &event["limit"]), (&"banned".into(), &"1/1h connections".into()));
    let until = detail.split_once(" until ").unwrap().1.split_once(" UTC").unwrap().0.to_owned();
    lab.assert_blocked(client, 80);
    assert_eq!(json(&["check", client, "--json"])["reason"], event["reason"]);
    assert_eq!(lab.stats()["top"][0]["state"], event["reason"]);
    assert!(once(|| dropped_by(&lab).contains(&"banned".to_owned()).then_some(())).is_some());
    let banned = episode("banned");
    assert_eq!((&banned["limit"], &banned["rule"], &banned["ended"]), (&event["limit"], &event["rule"], &Value::Null));
    top.shows(&[client, "banned"]);
    for args in [&["check", client][..], &["history", client], &["list"], &["stats"]] {
        let told = lab.ratelimitd(args).stdout;
        let is_said = told.lines().any(|line| line.split_whitespace().any(|word| word == "banned"));
        assert!(is_said, "{args:?}: {told}");
    }
    // Rule, limit and end as well, where they are told.
    let check = lab.ratelimitd(&["check", client]).stdout;
    assert!(check.contains("web") && check.contains(&until), "{until}: {check}");
    browser.run("location.hash = '#/'");
    browser.says("Who is refused now");
    browser.click(&format!("a[data-key='{client}']"));
    browser.says("banned");
    browser.says("Blocked on ports 80,443");

    // Released, by a click.
    browser.click("#unblock");
    browser.says("Unblock 10.");
    browser.click("#ask-do");
    browser.says("Passes on ports 80,443");
    assert_eq!(lab.ratelimitd(&["check", client]).code(), 0);
    lab.open(client, 80);
    browser.run("location.hash = '#/events'");
    let (event, detail) = sentence("unblock");
    assert!(event["by"] == "web" && detail.starts_with("10.9.0.2/32 unblocked by web"), "{event}");
    let act = once(|| json(&["history", client, "--json"]).pointer("/acts/0").cloned()).unwrap();
    assert_eq!((&act["what"], &act["by"]), (&"unblock".into(), &event["by"]));
    assert!(once(|| episode("banned")["ended"].is_string().then_some(())).is_some());
    assert_eq!(lab.stats()["sources"]["banned"], 0);
    top.holds(|screen| !screen.contains("banned"), "end of the ban");
}

#[test]
fn by_tls_the_browser_keeps_the_cookie_for_this_host_alone_and_a_source_is_unblocked() {
    needs_root!(no_browser());
    let lab = Lab::new();
    let _web = lab.web();
    let pair = Pair::make(&lab, "tls");
    let [cert, key] = [&pair.cert, &pair.key].map(|path| path.display().to_string());
    let tls = ["--listen", PAGE, "--tls-cert-file", &cert, "--tls-key-file", &key];
    let _daemon = lab.limit(&[&["--limit", "3/5m connections"][..], &tls].concat());
    lab.assert_admitted(CLIENTS[0], 80, 3);
    let browser = Browser::start(&lab);
    browser.open(done(&lab, &["web-token"]).trim());
    browser.says("Who is refused now");
    assert_eq!(browser.run("return location.origin"), format!("https://{NAME}:9464"));
    let cookies = browser.post("/goog/cdp/execute", &json!({ "cmd": "Network.getAllCookies", "params": {} }));
    let kept = &cookies["cookies"][0];
    assert_eq!((&kept["name"], &kept["domain"]), (&"__Host-ratelimitd_9464".into(), &NAME.into()));
    for is_so in ["secure", "httpOnly"] {
        assert_eq!(kept[is_so], true, "{kept}");
    }
    assert_eq!((&kept["sameSite"], &kept["path"]), (&"Strict".into(), &"/".into()));
    browser.click(&format!("a[data-key='{}']", CLIENTS[0]));
    browser.click("#unblock");
    browser.click("#ask-do");
    browser.says("Passes on ports 80,443");
    lab.open(CLIENTS[0], 80);
}
