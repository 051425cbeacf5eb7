//! Rows of clients with requests that packets cannot distinguish, on servers with an access log that the limiter reads.

use super::traffic::CHROMIUM;
use super::{Bound, Over, Row, Server, row};
use crate::accuracy::lab::Family;

pub(super) fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    let of_http2 = [
        Server::Nginx,
        Server::Apache,
        Server::Caddy,
        Server::Lighttpd,
        Server::Haproxy,
        Server::Hypercorn,
        Server::Node,
    ];
    for server in of_http2 {
        // lighttpd takes the client's first protocol, and httpx lists HTTP/2 last.
        let agrees = |row: &Row| server != Server::Lighttpd || row.client != "Python httpx";
        // Hypercorn ends a connection after a thousand requests.
        let allows = |row: &Row| server != Server::Hypercorn || row.asks <= 1000;
        rows.extend(http2().into_iter().filter(agrees).filter(allows).map(|row| Row { server, ..row }));
    }
    for over in [Over::Clear, Over::Tls13] {
        rows.extend(http1(over).into_iter().map(|row| Row { server: Server::Node, ..row }));
    }
    for server in [Server::Caddy, Server::Hypercorn] {
        rows.extend(http3().into_iter().map(|row| Row { server, ..row }));
    }
    // Surplus counts of one row would match lines of the next, so exact rows run first.
    rows.sort_by_key(|row| row.bound != Bound::Exact);
    rows
}

fn http2() -> Vec<Row> {
    let of = |bound, asks, traffic, client, command| with_log(row(Over::Http2, bound, asks, traffic, client, command));
    let exact = |asks, traffic, client, command| of(Bound::Exact, asks, traffic, client, command);
    vec![
        exact(1000, "1 stream at a time", "h2load -m 1", "h2load -n 1000 -c 1 -m 1 {url}/ok"),
        exact(1000, "1 stream at a time, 20 connections", "h2load -m 1", "h2load -n 1000 -c 20 -m 1 {url}/ok"),
        exact(1000, "10 streams at once", "h2load -m 10", "h2load -n 1000 -c 1 -m 10 {url}/ok"),
        exact(4000, "10 streams at once, 20 connections", "h2load -m 10", "h2load -n 4000 -c 20 -m 10 {url}/ok"),
        exact(1000, "100 streams at once", "h2load -m 100", "h2load -n 1000 -c 1 -m 100 {url}/ok"),
        // HAProxy loses some of its lines.
        exact(9_900, "100 streams at once, 20 connections", "h2load -m 100", "h2load -n 10000 -c 20 -m 100 {url}/ok"),
        exact(20, "20 requests", "Node", "{node} http2 {url}/ok 20"),
        exact(200, "10 streams at once", "Node", "{node} http2-at-once {url}/ok 200"),
        exact(40, "40 at once", "Python httpx", "{python} {programs}/client.py httpx-parallel {url} 40"),
        of(
            Bound::Within(10),
            20,
            "20 downloads at once",
            "curl --parallel",
            "curl -ksSf --http2 -Z --parallel-max 20 -o {files}/got#1 '{url_of_globs}/page/[0-19].png'",
        ),
        of(Bound::Within(10), 60, "a page of 60 resources", "Chromium", CHROMIUM),
    ]
}

fn http1(over: Over) -> Vec<Row> {
    let of = |asks, traffic, client, command| with_log(row(over, Bound::Exact, asks, traffic, client, command));
    vec![
        of(1000, "4 connections, kept alive", "h2load --h1", "h2load --h1 -n 1000 -c 4 -m 1 {url}/ok"),
        of(20, "20 requests, kept alive", "Node", "{node} https {url}/ok 20"),
        of(200, "20 requests in one send", "Python", "{python} {programs}/client.py pipeline {url} 10"),
        of(45, "GET and POST, kept and not, 45", "Python requests", "{python} {programs}/client.py requests {url} 20"),
    ]
}

fn http3() -> Vec<Row> {
    let of = |asks, traffic, command| {
        let row = row(Over::Http3, Bound::Exact, asks, traffic, "aioquic", command);
        with_log(row)
    };
    vec![
        of(1, "1 request", "{python} {programs}/h3_client.py one-by-one {host} {port} 1"),
        of(200, "200 requests, one by one", "{python} {programs}/h3_client.py one-by-one {host} {port} 200"),
        of(100, "100 requests at once", "{python} {programs}/h3_client.py at-once {host} {port} 100"),
    ]
}

fn with_log(row: Row) -> Row {
    Row { has_log: true, families: &[Family::V4], ..row }
}
