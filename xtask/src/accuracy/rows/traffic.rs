//! Rows of each kind of traffic with one server: nginx for HTTP/1 and 2, hypercorn for HTTP/3, grpcio for gRPC.

use super::{Bound, Link, Over, Row, Server, row};

pub(super) const CHROMIUM: &str = "{chromium} --disable-quic --dump-dom {url}/page.html";

pub(super) fn all() -> Vec<Row> {
    let http1 = [Over::Clear, Over::Tls12, Over::Tls13].into_iter().flat_map(|over| http1(over).into_iter());
    let http2 = [Over::Http2Tls12, Over::Http2].into_iter().flat_map(|over| http2(over).into_iter());
    let links = [Link::Lossy1, Link::Lossy5];
    let lossy = links.into_iter().flat_map(|link| [Over::Clear, Over::Tls12, Over::Tls13].map(|over| (link, over)));
    let lossy = lossy.flat_map(|(link, over)| lossy_over(link, over).into_iter());
    http1.chain(http2).chain(other_http2()).chain(http3()).chain(lossy).collect()
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
    let (one, many, shared) = (Bound::Exact, Bound::Third, Bound::Shared);
    vec![
        of(one, 1, "1 request", "curl", "curl -ksSf --http2 {url}/ok"),
        Row {
            is_quick: true,
            ..of(one, 3, "3 requests, kept alive", "curl", "curl -ksSf --http2 {url}/ok {url}/ok {url}/ok")
        },
        of(one, 1000, "1 stream at a time", "h2load -m 1", "h2load -n 1000 -c 1 -m 1 {url}/ok"),
        of(one, 1000, "1 stream at a time, 4 connections", "h2load -m 1", "h2load -n 1000 -c 4 -m 1 {url}/ok"),
        of(one, 40, "GET and PUT", "Python httpx", "{python} {programs}/client.py httpx {url} 40"),
        Row { is_quick: true, ..of(Bound::Within(10), 60, "a page of 60 resources", "Chromium", CHROMIUM) },
        of(
            many,
            20,
            "20 downloads at once",
            "curl --parallel",
            "curl -ksSf --http2 -Z --parallel-max 20 -o {files}/got#1 '{url_of_globs}/page/[0-19].png'",
        ),
        of(shared, 40, "40 at once", "Python httpx", "{python} {programs}/client.py httpx-parallel {url} 40"),
        of(shared, 1000, "10 streams at once", "h2load -m 10", "h2load -n 1000 -c 1 -m 10 {url}/ok"),
        of(shared, 1000, "10 streams at once, 4 connections", "h2load -m 10", "h2load -n 1000 -c 4 -m 10 {url}/ok"),
        of(shared, 1000, "100 streams at once", "h2load -m 100", "h2load -n 1000 -c 1 -m 100 {url}/ok"),
        of(Bound::Exact, 1, "upload of 10 MB", "curl", "curl -ksSf --http2 -T {files}/ten {url}/put/ten"),
        of(Bound::Exact, 1, "download of 100 MB", "curl", "curl -ksSf --http2 -o {files}/got {url}/hundred"),
        of(Bound::Stated, 1, "server-sent events, 40", "curl", "curl -ksSf --http2 {url}/events"),
    ]
}

/// Rows of HTTP/2 on servers other than nginx.
fn other_http2() -> Vec<Row> {
    let of = |server, bound, asks, traffic, client, command| {
        let row = row(Over::Http2, bound, asks, traffic, client, command);
        Row { server, ..row }
    };
    vec![
        of(
            Server::Hypercorn,
            Bound::Exact,
            3,
            "3 requests, kept alive",
            "curl",
            "curl -ksSf --http2 {url}/ok {url}/ok {url}/ok",
        ),
        of(
            Server::Hypercorn,
            Bound::Exact,
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
    // Chromium uses QUIC only for a host name, not for an address.
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

/// Rows over a lossy link, with fewer requests where one takes seconds.
fn lossy_over(link: Link, over: Over) -> Vec<Row> {
    let of = |asks, traffic, client, command| {
        let row = row(over, Bound::Exact, asks, traffic, client, command);
        Row { link, ..row }
    };
    vec![
        of(800, "HTTP/1.0, 8 connections, kept alive", "ab", "ab -q -r -k -c 8 -n 800 {url}/ok"),
        of(200, "HTTP/1.0, 200 connections", "ab", "ab -q -r -c 16 -n 200 {url}/ok"),
        // wrk abandons requests when it stops.
        Row { bound: Bound::Within(1), ..of(100, "16 connections, 3 seconds", "wrk", "wrk -t1 -c16 -d3s {url}/ok") },
        of(1, "upload of 10 MB", "curl", "curl -ksSf -T {files}/ten {url}/put/ten"),
        of(1, "download of 10 MB", "curl", "curl -ksSf -o {files}/got {url}/ten"),
    ]
}
