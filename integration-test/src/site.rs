//! The web page as clients on other hosts see it, by curl and by raw bytes.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::lab::{HANGS_AFTER, Lab, run};

/// Address at which the page is served.
pub const PAGE: &str = "10.9.0.1:9464";
/// Name in the page's certificate.
pub const NAME: &str = "limiter.example";
const WORKS: &str = "what a test needs works";

/// A certificate for [`NAME`] and its key, in one directory.
pub struct Pair {
    /// Path of the certificate.
    pub cert: PathBuf,
    /// Path of the private key.
    pub key: PathBuf,
}

impl Pair {
    /// Creates a certificate and a key in the files `named`.pem and `named`.key.
    pub fn make(lab: &Lab, named: &str) -> Self {
        let at = |kind: &str| lab.directory().join(format!("{named}.{kind}"));
        let pair = Self { cert: at("pem"), key: at("key") };
        let mut openssl = lab.command("openssl");
        openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]);
        openssl.args(["-subj", "/CN=ratelimitd", "-addext", &format!("subjectAltName=DNS:{NAME}")]);
        openssl.arg("-keyout").arg(&pair.key).arg("-out").arg(&pair.cert);
        let made = run(openssl);
        assert_eq!(made.code(), 0, "{}", made.stderr);
        pair
    }

    /// Replaces another certificate and its key.
    pub fn replace(&self, served: &Self) {
        fs::copy(&self.cert, &served.cert).expect(WORKS);
        fs::copy(&self.key, &served.key).expect(WORKS);
    }
}

/// Answer that curl received.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status, or 0 without an answer.
    pub status: u16,
    /// Headers and body of the answer. Without an answer, curl's error.
    pub text: String,
}

impl Answer {
    /// Returns a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::trim_end)
    }

    /// Returns the body, which must be JSON.
    pub fn body(&self) -> Value {
        let body = self.text.rsplit_once("\r\n\r\n").expect(WORKS).1;
        serde_json::from_str(body).expect(WORKS)
    }
}

/// The page as curl requests it from the clients' side.
pub struct Site<'a> {
    lab: &'a Lab,
    origin: String,
    options: Vec<String>,
}

impl<'a> Site<'a> {
    /// Returns the site over HTTP in the clear.
    pub fn plain(lab: &'a Lab) -> Self {
        Self { lab, origin: format!("http://{PAGE}"), options: Vec::new() }
    }

    /// Returns the site over TLS, with this certificate as the only trusted one.
    pub fn encrypted(lab: &'a Lab, trusted: &Path) -> Self {
        let options = ["--cacert", &trusted.display().to_string(), "--resolve", &format!("{NAME}:9464:10.9.0.1")];
        Self { lab, origin: format!("https://{NAME}:9464"), options: options.map(str::to_owned).to_vec() }
    }

    /// Requests a path, with more arguments for curl.
    pub fn ask(&self, path: &str, more: &[&str]) -> Answer {
        let mut curl = self.lab.client.command("curl");
        curl.args(["-sS", "-i", "--max-time", "20"]).args(&self.options).args(more);
        let told = run({
            curl.arg(format!("{}{path}", self.origin));
            curl
        });
        let status = told.stdout.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok()).unwrap_or(0);
        Answer { status, text: if status == 0 { told.stderr } else { told.stdout } }
    }

    /// Tries to log in with a code.
    pub fn enter(&self, code: &str, more: &[&str]) -> Answer {
        let (origin, body) = (format!("Origin: {}", self.origin), json!({ "code": code }).to_string());
        self.ask("/login", &[&["-H", &origin, "-d", &body], more].concat())
    }

    /// Logs in by a new link.
    pub fn log_in(&'a self) -> Member<'a> {
        let answer = self.enter(&code(self.lab), &[]);
        assert_eq!(answer.status, 200, "{}", answer.text);
        let cookie = answer.header("set-cookie").expect(WORKS).split(';').next().expect(WORKS).to_owned();
        let csrf = answer.body()["csrf"].as_str().expect(WORKS).to_owned();
        Member { site: self, cookie, csrf, set: answer.header("set-cookie").expect(WORKS).to_owned() }
    }
}

/// A logged-in user.
pub struct Member<'a> {
    /// Site of the session.
    pub site: &'a Site<'a>,
    /// Cookie that the browser sends.
    pub cookie: String,
    /// CSRF token that every request repeats.
    pub csrf: String,
    /// Value of the header that set the cookie.
    pub set: String,
}

impl Member<'_> {
    /// Requests a path with the session's cookie and token.
    pub fn ask(&self, path: &str, more: &[&str]) -> Answer {
        let (cookie, csrf) = (format!("Cookie: {}", self.cookie), format!("X-CSRF-Token: {}", self.csrf));
        self.site.ask(path, &[&["-H", &cookie, "-H", &csrf], more].concat())
    }

    /// Sends a change with the session's cookie and token.
    pub fn change(&self, path: &str, body: &Value) -> Answer {
        let origin = format!("Origin: {}", self.site.origin);
        self.ask(path, &["-H", &origin, "-d", &body.to_string()])
    }
}

/// Returns the code of a new link.
pub fn code(lab: &Lab) -> String {
    let printed = lab.ratelimitd(&["web-token"]);
    assert_eq!(printed.code(), 0, "{}", printed.stderr);
    printed.stdout.trim().split_once("/login#").expect(WORKS).1.to_owned()
}

/// Connects to the page from the clients' side.
pub fn connect(lab: &Lab) -> TcpStream {
    lab.client.inside(|| Ok(TcpStream::connect(PAGE)?)).expect(WORKS)
}

/// Returns the answer to these bytes. A connection that the server closes is no failure.
pub fn raw(lab: &Lab, bytes: &[u8]) -> String {
    let mut stream = connect(lab);
    stream.set_read_timeout(Some(HANGS_AFTER)).expect(WORKS);
    let _closed = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    while let Ok(bytes @ 1..) = stream.read(&mut part) {
        answer.extend(&part[..bytes]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}
