//! The web page in a browser: the one-time link logs in, a source that is refused is opened and unblocked by a click, and
//! its client passes again. Chromium in the server's namespace, by WebDriver.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use integration_test::lab::{CLIENTS, HANGS_AFTER, Lab, once};
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
        let args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"];
        let options = json!({ "args": args });
        let wanted = json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": options } } });
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
            // A page that is just rendered again has lost it.
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
