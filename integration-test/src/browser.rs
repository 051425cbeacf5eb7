//! A Chromium browser in the server's namespace, driven by WebDriver. Knows nothing about the page.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use netlab::Child;
use serde_json::{Value, json};

use crate::lab::{HANGS_AFTER, Lab, once, run};
use crate::site::NAME;

const DRIVER: u16 = 9515;
/// WebDriver's key for an element's id.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// WebDriver's code points for keys.
const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";

/// Returns the reason why no browser can be driven here, or `None`.
pub fn no_browser() -> Option<String> {
    let is_missing = |program: &&str| Command::new(program).arg("--version").output().is_err();
    let missing = ["chromium", "chromedriver"].into_iter().find(is_missing)?;
    Some(format!("{missing} is missing; `cargo xtask setup` installs it where apt-get has it"))
}

/// Returns the reason why axe-core cannot run, or `None`.
pub fn no_axe() -> Option<String> {
    let path = axe();
    (!path.is_file()).then(|| format!("there is no {}; `cargo xtask setup` fetches it by npm", path.display()))
}

/// Returns the path of axe-core: `RATELIMITD_AXE`, or the place where `cargo xtask setup` puts it.
fn axe() -> PathBuf {
    let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target").join("axe-core/axe.min.js");
    std::env::var_os("RATELIMITD_AXE").map_or_else(usual, PathBuf::from)
}

/// A browser session. Its driver ends on drop.
pub struct Browser<'a> {
    lab: &'a Lab,
    session: String,
    _driver: Child,
}

impl<'a> Browser<'a> {
    /// Opens a browser with a window of a desktop's width.
    pub fn start(lab: &'a Lab) -> Self {
        let mut command = lab.command("chromedriver");
        command.arg(format!("--port={DRIVER}")).env("HOME", lab.directory());
        let driver = Child::start(command).expect("the driver starts");
        once(|| lab.server.inside(|| Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, DRIVER))?)).ok())
            .expect("the driver listens");
        let named = format!("--host-resolver-rules=MAP {NAME} 127.0.0.1");
        let args =
            ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", &named];
        let options = json!({ "args": args });
        let always = json!({ "goog:chromeOptions": options, "acceptInsecureCerts": true });
        let wanted = json!({ "capabilities": { "alwaysMatch": always } });
        let mut browser = Self { lab, session: String::new(), _driver: driver };
        let session = browser.post("/session", &wanted);
        browser.session = format!("/session/{}", session["sessionId"].as_str().expect("a session"));
        browser
    }

    /// Sends the driver a command.
    fn post(&self, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let head = format!("Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {}", body.len());
        let request = format!("POST {}{path} HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n{body}", self.session);
        let connect = || Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, DRIVER))?);
        let mut stream = self.lab.server.inside(connect).expect("the driver listens");
        stream.set_read_timeout(Some(HANGS_AFTER)).expect("a time limit");
        stream.write_all(request.as_bytes()).expect("the driver takes a command");
        // The driver leaves the connection open.
        let mut answer = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            answer.read_line(&mut line).expect("the driver answers");
            match line.trim_end().to_ascii_lowercase().split_once(':') {
                Some(("content-length", value)) => length = value.trim().parse().expect("a length"),
                Some(_) => {}
                None if line.trim_end().is_empty() => break,
                None => {}
            }
        }
        let mut body = vec![0; length];
        answer.read_exact(&mut body).expect("the driver answers");
        let told: Value = serde_json::from_slice(&body).expect("the driver answers in JSON");
        told["value"].clone()
    }

    fn devtools(&self, cmd: &str, params: &Value) -> Value {
        self.post("/goog/cdp/execute", &json!({ "cmd": cmd, "params": params }))
    }

    /// Navigates to a URL.
    pub fn open(&self, url: &str) {
        assert_eq!(self.post("/url", &json!({ "url": url })), Value::Null);
    }

    /// Returns the result of a script.
    pub fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until the page contains this text.
    pub fn says(&self, text: &str) {
        let page = || self.run("return document.body.innerText").as_str().unwrap_or_default().to_owned();
        assert!(once(|| page().contains(text).then_some(())).is_some(), "{text} is not in {}", page());
    }

    /// Clicks an element as a user does, which fails while the element is not visible.
    pub fn click(&self, selector: &str) {
        let clicked = once(|| {
            let found = self.post("/element", &json!({ "using": "css selector", "value": selector }));
            let element = found[ELEMENT].as_str()?.to_owned();
            (self.post(&format!("/element/{element}/click"), &json!({})) == Value::Null).then_some(())
        });
        assert!(clicked.is_some(), "{selector}: {}", self.run("return document.body.innerText"));
    }

    /// Presses the keys of a text, one after the other.
    pub fn press(&self, text: &str) {
        let key = |key: char| [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })];
        let keys: Vec<Value> = text.chars().flat_map(key).collect();
        let actions = json!({ "actions": [{ "type": "key", "id": "keys", "actions": keys }] });
        assert_eq!(self.post("/actions", &actions), Value::Null);
    }

    /// Presses the Enter key.
    pub fn enter(&self) {
        self.press(ENTER);
    }

    /// Presses Tab until the selected element has the focus. Fails if any focus on the way is not visible.
    pub fn tab_to(&self, selector: &str) {
        const STEPS_MAX: usize = 150;
        let mut way = Vec::new();
        for _ in 0..STEPS_MAX {
            self.press(TAB);
            let at = self.run(&format!(
                "const at = document.activeElement; const of = (one) => one && getComputedStyle(one).outlineStyle !== 'none'; \
                 return [at.matches({selector:?}), at === document.body || of(at) || of(at.nextElementSibling) || \
                 of(at.parentElement), at.outerHTML.slice(0, 120)]"
            ));
            assert_eq!(at[1], true, "the focus is not visible: {at}");
            if at[0] == true {
                return;
            }
            way.push(at[2].to_string());
        }
        panic!("Tab does not reach {selector}: {way:#?}");
    }

    /// Sets the page's width and height, and the colour scheme that the user's system prefers.
    pub fn looks(&self, [width, height]: [u32; 2], scheme: &str) {
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", &screen);
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", &media);
    }

    /// Returns the serious and critical violations that axe-core finds on the page.
    pub fn violations(&self) -> Value {
        let then = "const done = arguments[arguments.length - 1]; axe.run(document).then((of) => done(of.violations.filter((one) => \
                    ['serious', 'critical'].includes(one.impact)).map((one) => [one.id, one.nodes.map((node) => node.html)])), \
                    (error) => done(String(error)));";
        let script = format!("{};\n{then}", fs::read_to_string(axe()).expect("axe-core is there"));
        self.post("/execute/async", &json!({ "script": script, "args": [] }))
    }

    /// Returns the cookies that the browser stores.
    pub fn cookies(&self) -> Value {
        self.devtools("Network.getAllCookies", &json!({}))
    }

    /// Returns the browser's log.
    pub fn log(&self) -> String {
        self.post("/se/log", &json!({ "type": "browser" })).to_string()
    }

    /// Writes a screenshot as PNG, and returns its size in bytes.
    pub fn picture(&self, path: &Path) -> u64 {
        let picture = self.devtools("Page.captureScreenshot", &json!({ "format": "png" }));
        let encoded = path.with_extension("base64");
        fs::write(&encoded, picture["data"].as_str().expect("a picture")).expect("a file");
        let mut decode = Command::new("sh");
        decode.args(["-c", r#"base64 -d "$0" > "$1""#]).args([&encoded, path]);
        assert_eq!(run(decode).code(), 0);
        fs::remove_file(encoded).expect("the file is there");
        fs::metadata(path).expect("the picture is there").len()
    }
}
