//! What is measured: traffic, the client that makes it, and what is promised of the count.
//!
//! A command is a line of shell; what stands in braces, `measure` fills in.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) traffic: &'static str,
    pub(super) client: &'static str,
    pub(super) server: Server,
    pub(super) over: Over,
    pub(super) link: Link,
    pub(super) bound: Bound,
    /// At least as many requests have to be in the log, or the client did not do what it should.
    pub(super) asks: u64,
    pub(super) command: &'static str,
    pub(super) is_quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Nginx,
    Hypercorn,
    Grpc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Clear,
    Tls12,
    Tls13,
    Http2Tls12,
    Http2,
    Http3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Clean,
    Lossy1,
    Lossy5,
}

/// How far the count may be from the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Bound {
    Exact,
    /// Of the log, in percent, either way.
    Within(u64),
    /// A lower bound: at most 5 % above the log, and a fiftieth of it at least.
    Below,
    /// Shown, and nothing is promised.
    Stated,
}

impl Link {
    pub(super) const ALL: [Self; 3] = [Self::Clean, Self::Lossy1, Self::Lossy5];
}

impl Bound {
    pub(super) fn holds(self, logged: u64, counted: u64) -> bool {
        match self {
            Self::Exact => counted == logged,
            Self::Within(percent) => counted.abs_diff(logged) * 100 <= logged * percent,
            Self::Below => counted * 100 <= logged * 105 && counted * 50 >= logged,
            Self::Stated => true,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => write!(f, "0"),
            Self::Within(percent) => write!(f, "at most {percent} %"),
            Self::Below => f.write_str("-98 to +5 %"),
            Self::Stated => write!(f, "stated"),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nginx => "nginx",
            Self::Hypercorn => "hypercorn",
            Self::Grpc => "grpcio",
        })
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clear => "HTTP/1, clear",
            Self::Tls12 => "HTTP/1, TLS 1.2",
            Self::Tls13 => "HTTP/1, TLS 1.3",
            Self::Http2Tls12 => "HTTP/2, TLS 1.2",
            Self::Http2 => "HTTP/2, TLS 1.3",
            Self::Http3 => "HTTP/3",
        })
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clean => "no loss",
            Self::Lossy1 => "1 % loss, reordering",
            Self::Lossy5 => "5 % loss, reordering",
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { traffic, client, server, over, link, .. } = self;
        write!(f, "{traffic}; {client}, {server}; {over}; {link}")
    }
}

pub(super) fn all() -> Vec<Row> {
    let http1 = [Over::Clear, Over::Tls12, Over::Tls13].into_iter().flat_map(|over| http1(over).into_iter());
    let http2 = [Over::Http2Tls12, Over::Http2].into_iter().flat_map(|over| http2(over).into_iter());
    let links = [Link::Lossy1, Link::Lossy5];
    let lossy = links.into_iter().flat_map(|link| [Over::Clear, Over::Tls12, Over::Tls13].map(|over| (link, over)));
    let lossy = lossy.flat_map(|(link, over)| lossy_over(link, over).into_iter());
    http1.chain(http2).chain(other_http2()).chain(http3()).chain(lossy).collect()
}

const CHROMIUM: &str = "{chromium} --disable-quic --dump-dom {url}/page.html";

fn row(over: Over, bound: Bound, asks: u64, traffic: &'static str, client: &'static str, command: &'static str) -> Row {
    let (server, link) = (Server::Nginx, Link::Clean);
    Row { traffic, client, server, over, link, bound, asks, command, is_quick: false }
}

fn http1(over: Over) -> Vec<Row> {
    let exact = |asks, traffic, client, command| row(over, Bound::Exact, asks, traffic, client, command);
    let stated = |traffic, client, command| row(over, Bound::Stated, 1, traffic, client, command);
    let mut rows = vec![
        Row { is_quick: true, ..exact(1, "1 request", "curl", "curl -ksSf {url}/ok") },
        exact(3, "3 requests, kept alive", "curl", "curl -ksSf --http1.1 {url}/ok {url}/ok {url}/ok"),
        exact(3, "HTTP/1.0, 3 connections", "curl", "for i in 1 2 3; do curl -ksSf -0 {url}/ok; done"),
        exact(200, "HTTP/1.0, 200 connections", "ab", "ab -q -n 200 {url}/ok"),
        exact(2000, "HTTP/1.0, 8 connections, kept alive", "ab", "ab -q -k -c 8 -n 2000 {url}/ok"),
        Row { is_quick: true, ..exact(1000, "4 connections, a second", "wrk", "wrk -t1 -c4 -d1s {url}/ok") },
        exact(
            40,
            "GET and POST, kept alive",
            "Python http.client",
            "{python} {programs}/client.py http.client {url} 40",
        ),
        exact(45, "GET and POST, kept and not", "Python requests", "{python} {programs}/client.py requests {url} 20"),
        exact(100, "GET and POST, kept alive", "Rust ureq", "{ureq} {url} 100"),
        exact(20, "POST, the body apart", "Python socket", "{python} {programs}/client.py split-post {url} 20"),
        exact(3, "slow: 5 bytes at a time", "Python socket", "{python} {programs}/client.py trickle {url} 3"),
        Row { is_quick: true, ..exact(60, "a page of 60 resources", "Chromium", CHROMIUM) },
        exact(1, "upload of 10 MB", "curl", "curl -ksSf -H Expect: -T {files}/ten {url}/put/ten"),
        exact(1, "upload of 10 MB, 100-continue", "curl", "curl -ksSf -T {files}/ten {url}/put/ten"),
        exact(1, "download of 100 MB", "curl", "curl -ksSf -o {files}/got {url}/hundred"),
        exact(1, "idle for 5 s, TCP keep-alives", "Python socket", "{python} {programs}/client.py idle {url} 5"),
        stated("WebSocket, 70 messages", "Python websockets", "{python} {programs}/client.py websocket {url} 50"),
        stated("server-sent events, 40", "curl", "curl -ksSf {url}/events"),
    ];
    if over == Over::Clear {
        let command = "{python} {programs}/client.py pipeline {url} 20";
        rows.push(exact(400, "pipelining, 20 in one send", "Python socket", command));
    }
    rows
}

fn http2(over: Over) -> Vec<Row> {
    let of = |bound, asks, traffic, client, command| row(over, bound, asks, traffic, client, command);
    let (one, many) = (Bound::Within(1), Bound::Below);
    vec![
        of(one, 1, "1 request", "curl", "curl -ksSf --http2 {url}/ok"),
        Row {
            is_quick: true,
            ..of(one, 3, "3 requests, kept alive", "curl", "curl -ksSf --http2 {url}/ok {url}/ok {url}/ok")
        },
        of(one, 1000, "1 stream at a time", "h2load -m 1", "h2load -n 1000 -c 1 -m 1 {url}/ok"),
        of(one, 1000, "1 stream at a time, 4 connections", "h2load -m 1", "h2load -n 1000 -c 4 -m 1 {url}/ok"),
        of(one, 40, "GET and POST", "Python httpx", "{python} {programs}/client.py httpx {url} 40"),
        Row { is_quick: true, ..of(Bound::Within(10), 60, "a page of 60 resources", "Chromium", CHROMIUM) },
        of(
            many,
            20,
            "20 downloads at once",
            "curl --parallel",
            "curl -ksSf --http2 -Z --parallel-max 20 -o {files}/got#1 '{url_of_globs}/page/[0-19].png'",
        ),
        of(many, 40, "40 at once", "Python httpx", "{python} {programs}/client.py httpx-parallel {url} 40"),
        of(many, 1000, "10 streams at once", "h2load -m 10", "h2load -n 1000 -c 1 -m 10 {url}/ok"),
        of(many, 1000, "10 streams at once, 4 connections", "h2load -m 10", "h2load -n 1000 -c 4 -m 10 {url}/ok"),
        of(many, 1000, "100 streams at once", "h2load -m 100", "h2load -n 1000 -c 1 -m 100 {url}/ok"),
        of(Bound::Exact, 1, "upload of 10 MB", "curl", "curl -ksSf --http2 -T {files}/ten {url}/put/ten"),
        of(Bound::Exact, 1, "download of 100 MB", "curl", "curl -ksSf --http2 -o {files}/got {url}/hundred"),
        of(Bound::Stated, 1, "server-sent events, 40", "curl", "curl -ksSf --http2 {url}/events"),
    ]
}

/// HTTP/2 of servers that are not nginx.
fn other_http2() -> Vec<Row> {
    let of = |server, bound, asks, traffic, client, command| {
        let row = row(Over::Http2, bound, asks, traffic, client, command);
        Row { server, ..row }
    };
    vec![
        of(
            Server::Hypercorn,
            Bound::Within(1),
            3,
            "3 requests, kept alive",
            "curl",
            "curl -ksSf --http2 {url}/ok {url}/ok {url}/ok",
        ),
        of(
            Server::Hypercorn,
            Bound::Within(1),
            200,
            "1 stream at a time",
            "h2load -m 1",
            "h2load -n 200 -c 1 -m 1 {url}/ok",
        ),
        of(Server::Hypercorn, Bound::Within(10), 60, "a page of 60 resources", "Chromium", CHROMIUM),
        of(
            Server::Grpc,
            Bound::Stated,
            50,
            "gRPC, 50 calls",
            "grpcio",
            "{python} {programs}/grpc_client.py unary {address} {files}/certificate.pem 50",
        ),
        of(
            Server::Grpc,
            Bound::Stated,
            1,
            "gRPC, 1 stream of 50 messages",
            "grpcio",
            "{python} {programs}/grpc_client.py stream {address} {files}/certificate.pem 50",
        ),
    ]
}

fn http3() -> Vec<Row> {
    let of = |asks, traffic, client, command| {
        let row = row(Over::Http3, Bound::Stated, asks, traffic, client, command);
        Row { server: Server::Hypercorn, ..row }
    };
    // An address cannot be asked for QUIC, a name can.
    let chromium = "{chromium} --origin-to-force-quic-on=server.test:{port} --ignore-certificate-errors-spki-list={spki} \
        --host-resolver-rules='MAP server.test {bracketed_host}' --dump-dom https://server.test:{port}/page.html";
    vec![
        of(1, "1 request", "aioquic", "{python} {programs}/h3_client.py one-by-one {host} {port} 1"),
        of(20, "20 requests, one by one", "aioquic", "{python} {programs}/h3_client.py one-by-one {host} {port} 20"),
        of(20, "20 requests at once", "aioquic", "{python} {programs}/h3_client.py at-once {host} {port} 20"),
        of(1, "download of 5 MB", "aioquic", "{python} {programs}/h3_client.py download {host} {port} 1"),
        of(1, "upload of 2 MB", "aioquic", "{python} {programs}/h3_client.py upload {host} {port} 2000000"),
        of(1, "idle for 5 s, PING each second", "aioquic", "{python} {programs}/h3_client.py idle {host} {port} 5"),
        of(60, "a page of 60 resources", "Chromium", chromium),
    ]
}

/// Over a wire that loses frames; what takes seconds a request is asked for less often.
fn lossy_over(link: Link, over: Over) -> Vec<Row> {
    let of = |asks, traffic, client, command| {
        let row = row(over, Bound::Within(1), asks, traffic, client, command);
        Row { link, ..row }
    };
    vec![
        of(800, "HTTP/1.0, 8 connections, kept alive", "ab", "ab -q -r -k -c 8 -n 800 {url}/ok"),
        of(200, "HTTP/1.0, 200 connections", "ab", "ab -q -r -c 16 -n 200 {url}/ok"),
        of(100, "16 connections, 3 seconds", "wrk", "wrk -t1 -c16 -d3s {url}/ok"),
        of(1, "upload of 10 MB", "curl", "curl -ksSf -T {files}/ten {url}/put/ten"),
        of(1, "download of 10 MB", "curl", "curl -ksSf -o {files}/got {url}/ten"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_holds_on_its_edge_and_not_beyond() {
        assert!(Bound::Exact.holds(3, 3) && !Bound::Exact.holds(3, 2));
        assert!(Bound::Within(1).holds(200, 198) && !Bound::Within(1).holds(200, 197));
        assert!(Bound::Within(1).holds(200, 202) && !Bound::Within(1).holds(200, 203));
        assert!(Bound::Below.holds(100, 105) && !Bound::Below.holds(100, 106));
        assert!(Bound::Below.holds(100, 2) && !Bound::Below.holds(100, 1) && Bound::Stated.holds(1, 50));
    }

    #[test]
    fn no_row_is_there_twice() {
        let mut names: Vec<_> = all().iter().map(ToString::to_string).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
