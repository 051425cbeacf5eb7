//! Measures one row: runs the client, then compares the log and the count before and after.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::lab::{Family, Lab};
use super::limiter::Limiter;
use super::programs::Tools;
use super::rows::{Bound, Row, Server};
use crate::run;

/// Maximum run time of a client in seconds. A longer run counts as a hang.
const CLIENT_SECONDS_MAX: &str = "90";

/// Time after which the daemon has charged the lines of sources within their limits.
const CHARGED_WITHIN: Duration = Duration::from_millis(1_200);

/// Chromium with fresh settings each time, without background requests, and without certificate verification.
const CHROMIUM: &str = "chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --disable-dev-shm-usage --ignore-certificate-errors \
    --no-proxy-server --virtual-time-budget=4000 --user-data-dir=$(mktemp -d -p {files} chromium.XXXXXX)";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) traffic: String,
    pub(super) client: String,
    pub(super) server: String,
    pub(super) over: String,
    pub(super) has_log: bool,
    pub(super) link: String,
    pub(super) family: String,
    pub(super) bound: Bound,
    pub(super) logged: u64,
    pub(super) counted: u64,
}

pub(super) fn row(row: &Row, family: Family, lab: &Lab, limiter: &Limiter<'_>, tools: &Tools) -> Result<Measured> {
    let counts = || -> Result<(u64, u64)> { Ok((logged(lab, row, family)?, limiter.counted(family.client())?)) };
    let (logged_before, counted_before) = netlab::settled(counts)?;
    ask(row, family, lab, tools)?;
    if row.has_log {
        thread::sleep(CHARGED_WITHIN);
    }
    let (logged_after, counted_after) = netlab::settled(counts)?;
    let (logged, counted) = (logged_after - logged_before, counted_after.saturating_sub(counted_before));
    ensure!(logged >= row.asks, "only {logged} requests are in the log, of {}", row.asks);
    Ok(Measured {
        traffic: row.traffic.to_owned(),
        client: row.client.to_owned(),
        server: row.server.to_string(),
        over: row.over.to_string(),
        has_log: row.has_log,
        link: row.link.to_string(),
        family: family.to_string(),
        bound: row.bound,
        logged,
        counted,
    })
}

/// Runs a row's client until it ends. Fails if it fails.
fn ask(row: &Row, family: Family, lab: &Lab, tools: &Tools) -> Result<()> {
    let line = filled_in(row, family, lab, tools)?;
    let mut command = lab.client.command("timeout");
    command.args(["--kill-after=5", CLIENT_SECONDS_MAX, "sh", "-c", &line]).stdin(Stdio::null());
    for proxy in ["http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(proxy);
    }
    let output = command.output().with_context(|| format!("start `{}`", run::shown(&command)))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "`{line}` ended with {:?} {:?}: {}",
        output.status.code(),
        output.status.signal(),
        said.trim()
    );
    Ok(())
}

fn filled_in(row: &Row, family: Family, lab: &Lab, tools: &Tools) -> Result<String> {
    let port = row.server.port(row.over);
    let address = SocketAddr::new(family.server(), port).to_string();
    let url = if row.over.is_clear() { format!("http://{address}") } else { format!("https://{address}") };
    // curl interprets brackets as a range unless they are escaped.
    let url_of_globs = url.replace('[', "\\[").replace(']', "\\]");
    let python = format!("env PYTHONPATH={} python3 -W ignore", tools.python().display());
    let line = row.command.replace("{chromium}", CHROMIUM).replace("{url_of_globs}", &url_of_globs);
    Ok(line
        .replace("{url}", &url)
        .replace("{address}", &address)
        .replace("{host}", &family.server().to_string())
        .replace("{bracketed_host}", address.rsplit_once(':').map_or("", |(host, _)| host))
        .replace("{port}", &port.to_string())
        .replace("{python}", &python)
        .replace("{ureq}", &tools.ureq().to_string_lossy())
        .replace("{java17}", &tools.java_17()?)
        .replace("{java21}", &tools.java_21())
        .replace("{node}", "node {programs}/node_client.js")
        .replace("{libcurl}", "python3 {programs}/libcurl.py")
        .replace("{padded256}", "env OPENSSL_CONF={files}/padded256.conf")
        .replace("{padded512}", "env OPENSSL_CONF={files}/padded512.conf")
        .replace("{curl_shown}", "curl -ksSf --cert {files}/client.pem --key {files}/client-key.pem")
        .replace("{programs}", &Tools::programs().to_string_lossy())
        .replace("{files}", &lab.directory().to_string_lossy())
        .replace("{spki}", lab.certificate_hash()))
}

/// Returns the number of requests in the server's log. nginx's requests are filtered by client; the other servers serve
/// one client at a time.
fn logged(lab: &Lab, row: &Row, family: Family) -> Result<u64> {
    let path = lab.directory().join(row.server.log());
    if !path.exists() {
        return Ok(0);
    }
    let log = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(log.lines().filter(|line| is_request(line, row, family)).count() as u64)
}

/// Returns true if a log line is a request of the row's client. Web servers log the client's address first, HAProxy
/// with its port. HAProxy's lines about failed handshakes contain no request. A line with the wrong protocol does not
/// count for an HTTP/2 row.
fn is_request(line: &str, row: &Row, family: Family) -> bool {
    let is_of_client =
        || line.strip_prefix(&family.client().to_string()).is_some_and(|rest| rest.starts_with([' ', ':']));
    let is_of_protocol = || !row.over.is_http2() || line.contains("HTTP/2");
    match row.server {
        Server::Nginx | Server::Apache | Server::Node => is_of_client() && is_of_protocol(),
        Server::Haproxy => is_of_client() && is_of_protocol() && line.contains('"'),
        // lighttpd also logs the preface of clear-text HTTP/2.
        Server::Lighttpd => is_of_client() && is_of_protocol() && !line.contains("\"PRI * HTTP/2.0\""),
        Server::Caddy => is_of_protocol(),
        Server::Hypercorn | Server::Grpc | Server::Lenient(_) => true,
    }
}

impl Measured {
    pub(super) fn holds(&self) -> bool {
        self.bound.holds(self.logged, self.counted)
    }

    /// Returns the error in percent of the logged requests, with a sign. `0` if the count equals the log.
    pub(super) fn error(&self) -> String {
        let tenths = |part: u64| (part * 1000 + self.logged / 2).checked_div(self.logged).unwrap_or_default();
        let (sign, tenths) = match self.counted.cmp(&self.logged) {
            std::cmp::Ordering::Equal => return "0".to_owned(),
            std::cmp::Ordering::Less => ('-', tenths(self.logged - self.counted)),
            std::cmp::Ordering::Greater => ('+', tenths(self.counted - self.logged)),
        };
        format!("{sign}{}.{} %", tenths / 10, tenths % 10)
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { traffic, client, server, over, link, family, bound, logged, counted, .. } = self;
        let and = if self.has_log { "; access log" } else { "" };
        write!(f, "{over}; {traffic}; {client}; {server}; {family}; {link}{and}: ")?;
        write!(f, "{logged} in the log, {counted} counted, ")?;
        write!(f, "error {} (promised: {bound})", self.error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accuracy::rows::{self, Over};

    fn measured(logged: u64, counted: u64) -> Measured {
        let text = String::new;
        Measured {
            traffic: text(),
            client: text(),
            server: text(),
            over: text(),
            has_log: false,
            link: text(),
            family: text(),
            bound: Bound::Exact,
            logged,
            counted,
        }
    }

    #[test]
    fn a_request_is_a_line_of_the_client_that_is_no_preface_and_no_failed_handshake() {
        let row = |server, over| rows::all().into_iter().find(|row| row.server == server && row.over == over).unwrap();
        let is_of = |server, over, line| is_request(line, &row(server, over), Family::V4);
        assert!(is_of(Server::Nginx, Over::Clear, "192.0.2.7 1.000 80"));
        assert!(!is_of(Server::Nginx, Over::Clear, "192.0.2.77 1.000 80"));
        let answered = r#"192.0.2.7:52976 [22/Nov/2026:20:49:40.073] lab lab/<NOSRV> 0/-1/-1/-1/0 200 79 - - LR-- 1/1/0/0/0 0/0 "GET /ok HTTP/1.1""#;
        assert!(is_of(Server::Haproxy, Over::Tls12, answered));
        let failed = "192.0.2.7:52976 [22/Nov/2026:20:49:40.073] lab/3: SSL handshake failure";
        assert!(!is_of(Server::Haproxy, Over::Tls12, failed));
        assert!(is_of(
            Server::Lighttpd,
            Over::Http2Clear,
            r#"192.0.2.7 - - [22/Nov/2026:20:49:40 +0000] "GET /ok HTTP/2.0" 200 3"#
        ));
        assert!(!is_of(
            Server::Lighttpd,
            Over::Http2Clear,
            r#"192.0.2.7 - - [22/Nov/2026:20:49:40 +0000] "PRI * HTTP/2.0" 100 0"#
        ));
        assert!(!is_of(
            Server::Lighttpd,
            Over::Http2,
            r#"192.0.2.7 - - [22/Nov/2026:20:49:40 +0000] "GET /ok HTTP/1.1" 200 3"#
        ));
    }

    #[test]
    fn an_error_has_a_sign_and_a_tenth_of_a_percent() {
        assert_eq!(measured(1000, 1000).error(), "0");
        assert_eq!(measured(1000, 995).error(), "-0.5 %");
        assert_eq!(measured(3, 4).error(), "+33.3 %");
        assert_eq!(measured(100_000, 100_001).error(), "+0.0 %");
    }
}
