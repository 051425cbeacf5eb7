//! Rows of each client with each web server. HTTP/1, and HTTP/2 with one stream, are exact; HTTP/2 with many streams
//! counts at least a third.
//!
//! TLS output differs by library and by server: the length of Finished and its segment, whether the server sent tickets
//! before the first request, and the bytes at the end of a connection.

use super::traffic::CHROMIUM;
use super::{Bound, Over, Row, Server, row};
use crate::accuracy::lab::Family;

pub(super) fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    for server in Server::WEB {
        for over in [Over::Clear, Over::Tls12, Over::Tls13] {
            // Caddy sends 100 itself and also forwards its backend's 100. After the second, Java never continues.
            let never_ends = (Server::Caddy, "Java 17", "upload of 10 MB, Expect");
            let goes_on = |row: &Row| (server, row.client, row.traffic) != never_ends;
            rows.extend(http1(over).into_iter().filter(goes_on).map(|row| of_server(server, row)));
        }
        rows.extend(with_certificate().into_iter().map(|row| of_server(server, row)));
        rows.extend(http2_clear().into_iter().map(|row| of_server(server, row)));
        // nginx's pages are already among the kinds of traffic.
        if server != Server::Nginx {
            rows.extend(pages().map(|row| of_server(server, row)));
        }
        for over in [Over::Http2Tls12, Over::Http2] {
            // lighttpd takes the client's first protocol, and these clients list HTTP/2 last.
            let names_it_last = ["libcurl, NSS", "Python httpx", "Python httpx asyncio"];
            let agree = |row: &Row| server != Server::Lighttpd || !names_it_last.contains(&row.client);
            rows.extend(http2(over).into_iter().filter(agree).map(|row| of_server(server, row)));
        }
    }
    rows.extend([Server::Nginx, Server::Haproxy].map(|server| of_server(server, early_data())));
    rows
}

/// Assigns a row to a server, over one address family. A client's output does not depend on the family, so alternating
/// families covers both.
fn of_server(server: Server, row: Row) -> Row {
    let families: &'static [Family] = match server {
        Server::Nginx | Server::Caddy | Server::Haproxy | Server::Node => &[Family::V4],
        Server::Apache | Server::Lighttpd | Server::Hypercorn | Server::Grpc | Server::Lenient(_) => &[Family::V6],
    };
    let row = if server == Server::Lighttpd { of_eight_streams(row) } else { row };
    // HAProxy sends a window update for each of Java's small frames. These updates look like answers.
    let is_stated = (server, row.client, row.traffic, row.over)
        == (Server::Haproxy, "Java 17", "upload of 10 MB", Over::Http2Tls12);
    let bound = if is_stated { Bound::Stated } else { row.bound };
    Row { server, families, bound, ..row }
}

/// Limits a row to eight concurrent streams, lighttpd's maximum. Java fails at the maximum, other clients wait.
fn of_eight_streams(row: Row) -> Row {
    let command = match (row.client, row.traffic) {
        ("Java 17", "10 streams at once") => "{java17} eight-at-once 2 {url}/ok 1 200",
        ("Java 21", "10 streams at once") => "{java21} eight-at-once 2 {url}/ok 1 200",
        _ => return row,
    };
    Row { traffic: "8 streams at once", command, ..row }
}

fn http1(over: Over) -> Vec<Row> {
    let of = |asks, traffic, client, command| row(over, Bound::Exact, asks, traffic, client, command);
    let mut rows = vec![
        of(5, "5 requests, kept alive", "curl", "curl -ksSf --http1.1 {url}/ok {url}/ok {url}/ok {url}/ok {url}/ok"),
        of(
            5,
            "5 connections, TLS resumed",
            "curl",
            "curl -ksSf --http1.1 -H 'Connection: close' {url}/ok {url}/ok {url}/ok {url}/ok {url}/ok",
        ),
        of(1, "upload of 10 MB, no Expect", "curl", "curl -ksSf --http1.1 -H Expect: -T {files}/ten {url}/put/ten"),
        of(1, "upload of 10 MB, Expect", "curl", "curl -ksSf --http1.1 -T {files}/ten {url}/put/ten"),
        of(1, "download of 50 MB", "curl", "curl -ksSf --http1.1 -o {files}/got {url}/fifty"),
        of(1000, "4 connections, kept alive", "h2load --h1", "h2load --h1 -n 1000 -c 4 -m 1 {url}/ok"),
        of(100, "100 connections, HTTP/1.0", "ab", "ab -q -c 4 -n 100 {url}/ok"),
        of(200, "4 connections, kept alive", "hey (Go)", "hey -n 200 -c 4 {url}/ok"),
        of(40, "40 connections", "hey (Go)", "hey -disable-keepalive -n 40 -c 4 {url}/ok"),
        of(20, "20 requests, kept alive", "Node", "{node} https {url}/ok 20"),
        of(5, "5 connections", "Node", "{node} apart {url}/ok 5"),
        of(20, "20 requests", "Node fetch", "{node} fetch {url}/ok 20"),
        of(1, "upload of 10 MB", "Node", "{node} upload {url}/put/ten 1 {files}/ten"),
        of(45, "GET and POST, kept and not, 45", "Python requests", "{python} {programs}/client.py requests {url} 20"),
        of(40, "GET and POST, 40", "Rust ureq", "{ureq} {url} 40"),
        of(
            5,
            "5 requests, kept alive",
            "wget",
            "wget -q --no-check-certificate -O /dev/null {url}/ok {url}/ok {url}/ok {url}/ok {url}/ok",
        ),
    ];
    rows.extend(java(over, "1"));
    if !over.is_clear() {
        rows.extend(libcurl(over, "1"));
        rows.push(of(1, "1 request", "gnutls-cli", GNUTLS_CLI));
    }
    if over == Over::Tls13 {
        rows.extend(padded(over));
        let of_openssl = |traffic, command| row(over, Bound::Goodbyes(1), 2, traffic, "openssl s_client", command);
        rows.push(of_openssl("2 requests, records padded to 256", S_CLIENT_256));
        rows.push(of_openssl("2 requests, records padded to 512", S_CLIENT_512));
    }
    rows
}

const GNUTLS_CLI: &str = "(printf 'GET /ok HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n'; sleep 1) | \
    gnutls-cli --insecure --no-ca-verification -p {port} {host}";

macro_rules! s_client {
    ($padding:literal) => {
        concat!(
            "(printf 'GET /ok HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n'; sleep 0.3; ",
            "printf 'GET /ok HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n'; sleep 0.3) | ",
            "openssl s_client -quiet -record_padding ",
            $padding,
            " -connect {address}"
        )
    };
}

const S_CLIENT_256: &str = s_client!("256");
const S_CLIENT_512: &str = s_client!("512");

/// Rows with TLS records padded to one length, regardless of their content (RFC 8446, 5.4).
fn padded(over: Over) -> Vec<Row> {
    // A close notification is as long as a request.
    let of =
        |connections, asks, traffic, command| row(over, Bound::Goodbyes(connections), asks, traffic, "curl", command);
    if over.is_http2() {
        return vec![
            of(1, 3, "3 requests, records padded to 256", "{padded256} curl -ksSf --http2 {url}/ok {url}/ok {url}/ok"),
            of(1, 3, "3 requests, records padded to 512", "{padded512} curl -ksSf --http2 {url}/ok {url}/ok {url}/ok"),
        ];
    }
    vec![
        of(1, 3, "3 requests, records padded to 256", "{padded256} curl -ksSf --http1.1 {url}/ok {url}/ok {url}/ok"),
        of(1, 3, "3 requests, records padded to 512", "{padded512} curl -ksSf --http1.1 {url}/ok {url}/ok {url}/ok"),
        of(
            3,
            3,
            "3 connections, records padded to 512",
            "{padded512} curl -ksSf --http1.1 -H 'Connection: close' {url}/ok {url}/ok {url}/ok",
        ),
        of(
            1,
            1,
            "upload of 10 MB, Expect, records padded to 512",
            "{padded512} curl -ksSf --http1.1 -T {files}/ten {url}/put/ten",
        ),
    ]
}

/// Rows of libcurl with the other TLS libraries that the distribution builds it with.
fn libcurl(over: Over, version: &str) -> Vec<Row> {
    let of = |asks, traffic, client, command| row(over, Bound::Exact, asks, traffic, client, command);
    let (gnutls, nss) = ("libcurl, GnuTLS", "libcurl, NSS");
    if version == "2" {
        return vec![
            of(5, "5 requests, kept alive", gnutls, "{libcurl} libcurl-gnutls.so.4 get 2 {url}/ok 5"),
            of(3, "3 connections", gnutls, "{libcurl} libcurl-gnutls.so.4 apart 2 {url}/ok 3"),
            of(1, "upload of 10 MB", gnutls, "{libcurl} libcurl-gnutls.so.4 upload 2 {url}/put/ten 1 {files}/ten"),
            of(5, "5 requests, kept alive", nss, "{libcurl} libcurl-nss.so.4 get 2 {url}/ok 5"),
            of(3, "3 connections", nss, "{libcurl} libcurl-nss.so.4 apart 2 {url}/ok 3"),
        ];
    }
    vec![
        of(5, "5 requests, kept alive", gnutls, "{libcurl} libcurl-gnutls.so.4 get 1 {url}/ok 5"),
        of(5, "5 connections", gnutls, "{libcurl} libcurl-gnutls.so.4 apart 1 {url}/ok 5"),
        of(1, "upload of 10 MB", gnutls, "{libcurl} libcurl-gnutls.so.4 upload-continue 1 {url}/put/ten 1 {files}/ten"),
        of(5, "5 requests, kept alive", nss, "{libcurl} libcurl-nss.so.4 get 1 {url}/ok 5"),
        of(5, "5 connections", nss, "{libcurl} libcurl-nss.so.4 apart 1 {url}/ok 5"),
        of(1, "upload of 10 MB", nss, "{libcurl} libcurl-nss.so.4 upload-continue 1 {url}/put/ten 1 {files}/ten"),
    ]
}

/// Rows of Java's HttpClient, with the arguments of `JavaClient`. A placeholder at the start selects the Java version.
fn java(over: Over, version: &str) -> Vec<Row> {
    let of = |bound, asks, traffic, client, command| row(over, bound, asks, traffic, client, command);
    let exact = |asks, traffic, client, command| of(Bound::Exact, asks, traffic, client, command);
    let (old, new) = ("Java 17", "Java 21");
    if version == "2" {
        return vec![
            exact(8, "8 connections of 1 request", old, "{java17} get 2 {url}/ok 8 1"),
            exact(20, "20 requests, one by one", old, "{java17} get 2 {url}/ok 1 20"),
            exact(200, "4 connections of 50 requests", old, "{java17} get 2 {url}/ok 4 50"),
            exact(1, "upload of 10 MB", old, "{java17} upload 2 {url}/put/ten 1 1 {files}/ten"),
            exact(1, "download of 50 MB", old, "{java17} get 2 {url}/fifty 1 1"),
            of(Bound::Third, 200, "10 streams at once", old, "{java17} at-once 2 {url}/ok 1 200"),
            exact(8, "8 connections of 1 request", new, "{java21} get 2 {url}/ok 8 1"),
            exact(20, "20 requests, one by one", new, "{java21} get 2 {url}/ok 1 20"),
            of(Bound::Third, 200, "10 streams at once", new, "{java21} at-once 2 {url}/ok 1 200"),
        ];
    }
    vec![
        exact(8, "8 connections of 1 request", old, "{java17} get 1 {url}/ok 8 1"),
        exact(24, "8 connections of 3 requests", old, "{java17} get 1 {url}/ok 8 3"),
        exact(200, "4 connections of 50 requests", old, "{java17} get 1 {url}/ok 4 50"),
        exact(1, "upload of 10 MB", old, "{java17} upload 1 {url}/put/ten 1 1 {files}/ten"),
        exact(1, "upload of 10 MB, Expect", old, "{java17} upload-continue 1 {url}/put/ten 1 1 {files}/ten"),
        exact(1, "download of 50 MB", old, "{java17} get 1 {url}/fifty 1 1"),
        exact(8, "8 connections of 1 request", new, "{java21} get 1 {url}/ok 8 1"),
        exact(24, "8 connections of 3 requests", new, "{java21} get 1 {url}/ok 8 3"),
        exact(200, "4 connections of 50 requests", new, "{java21} get 1 {url}/ok 4 50"),
    ]
}

fn pages() -> [Row; 3] {
    let of = |over, bound| row(over, bound, 60, "a page of 60 resources", "Chromium", CHROMIUM);
    [of(Over::Clear, Bound::Exact), of(Over::Tls13, Bound::Exact), of(Over::Http2, Bound::Within(10))]
}

fn with_certificate() -> Vec<Row> {
    let of = |over, asks, traffic, client, command| row(over, Bound::Exact, asks, traffic, client, command);
    let (http1, http2) = (Over::Mutual, Over::Http2Mutual);
    vec![
        of(http1, 3, "3 requests, kept alive", "curl", "{curl_shown} --http1.1 {url}/ok {url}/ok {url}/ok"),
        of(
            http1,
            3,
            "3 connections, TLS resumed",
            "curl",
            "{curl_shown} --http1.1 -H 'Connection: close' {url}/ok {url}/ok {url}/ok",
        ),
        of(http1, 8, "8 connections of 1 request", "Java 17", "{java17} certificate 1 {url}/ok 8 1 {files}/client.p12"),
        of(
            http1,
            24,
            "8 connections of 3 requests",
            "Java 17",
            "{java17} certificate 1 {url}/ok 8 3 {files}/client.p12",
        ),
        of(
            http1,
            24,
            "8 connections of 3 requests",
            "Java 21",
            "{java21} certificate 1 {url}/ok 8 3 {files}/client.p12",
        ),
        of(http2, 3, "3 requests, kept alive", "curl", "{curl_shown} --http2 {url}/ok {url}/ok {url}/ok"),
        of(http2, 8, "8 connections of 1 request", "Java 17", "{java17} certificate 2 {url}/ok 8 1 {files}/client.p12"),
        of(
            http2,
            24,
            "8 connections of 3 requests",
            "Java 21",
            "{java21} certificate 2 {url}/ok 8 3 {files}/client.p12",
        ),
    ]
}

/// Row of a connection that resumes a session and sends a request with its ClientHello.
fn early_data() -> Row {
    let command = "printf 'GET /ok HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n' > {files}/early && \
        (cat {files}/early; sleep 0.5) | openssl s_client -quiet -connect {address} -sess_out {files}/session && \
        (sleep 0.5) | openssl s_client -quiet -connect {address} -sess_in {files}/session -early_data {files}/early";
    row(Over::EarlyData, Bound::Exact, 2, "2 connections, the second resumed", "openssl s_client", command)
}

fn http2_clear() -> Vec<Row> {
    let of = |bound, asks, traffic, client, command| row(Over::Http2Clear, bound, asks, traffic, client, command);
    let one = Bound::Exact;
    vec![
        // curl fails if it reuses such a connection.
        of(one, 3, "3 connections", "curl", "for i in 1 2 3; do curl -sSf --http2-prior-knowledge {url}/ok; done"),
        of(one, 300, "1 stream at a time, /", "h2load -m 1", "h2load -n 300 -c 1 -m 1 {url}/"),
        of(one, 300, "1 stream at a time, /index.html", "h2load -m 1", "h2load -n 300 -c 1 -m 1 {url}/index.html"),
        of(one, 1000, "10 streams at once", "h2load -m 10", "h2load -n 1000 -c 1 -m 10 {url}/"),
        of(one, 1000, "100 streams at once", "h2load -m 100", "h2load -n 1000 -c 1 -m 100 {url}/"),
        of(one, 20, "20 requests, one by one", "Node", "{node} http2 {url}/ok 20"),
        of(one, 200, "10 streams at once", "Node", "{node} http2-at-once {url}/ok 200"),
    ]
}

fn http2(over: Over) -> Vec<Row> {
    let of = |bound, asks, traffic, client, command| row(over, bound, asks, traffic, client, command);
    let (one, many, shared) = (Bound::Exact, Bound::Third, Bound::Shared);
    let mut rows = vec![
        of(one, 5, "5 requests, kept alive", "curl", "curl -ksSf --http2 {url}/ok {url}/ok {url}/ok {url}/ok {url}/ok"),
        of(one, 1, "upload of 10 MB by PUT", "curl", "curl -ksSf --http2 -T {files}/ten {url}/put/ten"),
        of(one, 1, "download of 50 MB", "curl", "curl -ksSf --http2 -o {files}/got {url}/fifty"),
        of(one, 1000, "1 stream at a time, /", "h2load -m 1", "h2load -n 1000 -c 1 -m 1 {url}/"),
        of(one, 1000, "1 stream at a time, /index.html", "h2load -m 1", "h2load -n 1000 -c 1 -m 1 {url}/index.html"),
        of(one, 1000, "1 stream at a time, 4 connections, /", "h2load -m 1", "h2load -n 1000 -c 4 -m 1 {url}/"),
        of(shared, 1000, "10 streams at once, /", "h2load -m 10", "h2load -n 1000 -c 1 -m 10 {url}/"),
        of(shared, 1000, "10 streams at once, 4 connections, /", "h2load -m 10", "h2load -n 1000 -c 4 -m 10 {url}/"),
        of(shared, 1000, "100 streams at once, /", "h2load -m 100", "h2load -n 1000 -c 1 -m 100 {url}/"),
    ];
    rows.extend(java(over, "2"));
    if over == Over::Http2 {
        rows.extend(padded(over));
        rows.extend(libcurl(over, "2"));
        rows.extend([
            of(one, 40, "1 stream at a time", "hey (Go)", "hey -h2 -n 40 -c 1 {url}/ok"),
            of(many, 200, "10 streams at once", "hey (Go)", "hey -h2 -n 200 -c 10 {url}/ok"),
            of(many, 1000, "100 streams at once", "hey (Go)", "hey -h2 -n 1000 -c 100 {url}/ok"),
            of(one, 20, "20 requests, one by one", "Node", "{node} http2 {url}/ok 20"),
            of(one, 1, "upload of 10 MB", "Node", "{node} http2-upload {url}/put/ten 1 {files}/ten"),
            of(shared, 200, "10 streams at once", "Node", "{node} http2-at-once {url}/ok 200"),
            of(one, 20, "GET and PUT, 20", "Python httpx", "{python} {programs}/client.py httpx {url} 20"),
            of(
                shared,
                40,
                "40 at once",
                "Python httpx asyncio",
                "{python} {programs}/client.py httpx-parallel {url} 40",
            ),
            of(
                many,
                40,
                "40 downloads at once",
                "curl --parallel",
                "curl -ksSf --http2 -Z --parallel-max 40 -o {files}/got#1 '{url_of_globs}/page/[0-39].png'",
            ),
        ]);
    }
    rows
}
