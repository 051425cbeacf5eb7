//! Rows to measure: traffic, its client, and the promised accuracy of the count.
//!
//! A command is a shell line. `measure` replaces the words in braces.

mod clients;
mod logged;
mod traffic;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::lab::Family;
use super::servers::lenient::Lenient;

#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) traffic: &'static str,
    pub(super) client: &'static str,
    pub(super) server: Server,
    pub(super) over: Over,
    pub(super) link: Link,
    /// True if the limiter reads the server's access log.
    pub(super) has_log: bool,
    pub(super) bound: Bound,
    /// Minimum number of requests in the log. Fewer mean that the client did not work.
    pub(super) asks: u64,
    pub(super) command: &'static str,
    pub(super) families: &'static [Family],
    pub(super) is_quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Nginx,
    Apache,
    Caddy,
    Lighttpd,
    Haproxy,
    Hypercorn,
    Node,
    Grpc,
    Lenient(Lenient),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Clear,
    Tls12,
    Tls13,
    /// HTTP/1 over TLS 1.3, from clients that present a certificate.
    Mutual,
    /// HTTP/1 over TLS 1.3, from clients that send a request in their first flight.
    EarlyData,
    Http2Clear,
    Http2Tls12,
    Http2,
    Http2Mutual,
    Http3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Clean,
    Lossy1,
    Lossy5,
}

/// Promised maximum difference between the count and the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Bound {
    Exact,
    /// Maximum difference in percent of the log, in either direction.
    Within(u64),
    /// Many streams: at least a third of the log, and at most 5 % above it.
    Third,
    /// Many streams with requests that share records: at most 5 % above the log, and not zero.
    Shared,
    /// Padded records: the client's close notifications count as requests, at most this many.
    Goodbyes(u64),
    /// The error is shown, and nothing is promised.
    Stated,
}

impl Server {
    /// Web servers that serve the same files, each with one port per protocol.
    pub(super) const WEB: [Self; 5] = [Self::Nginx, Self::Apache, Self::Caddy, Self::Lighttpd, Self::Haproxy];
    pub(super) const ALL: [Self; 13] = [
        Self::Nginx,
        Self::Apache,
        Self::Caddy,
        Self::Lighttpd,
        Self::Haproxy,
        Self::Hypercorn,
        Self::Node,
        Self::Grpc,
        Self::Lenient(Lenient::Waitress),
        Self::Lenient(Lenient::Cheroot),
        Self::Lenient(Lenient::Aiohttp),
        Self::Lenient(Lenient::Uvicorn),
        Self::Lenient(Lenient::Jdk),
    ];
}

impl Over {
    pub(super) const ALL: [Self; 9] = [
        Self::Clear,
        Self::Tls12,
        Self::Tls13,
        Self::Mutual,
        Self::EarlyData,
        Self::Http2Clear,
        Self::Http2Tls12,
        Self::Http2,
        Self::Http2Mutual,
    ];

    pub(super) fn is_clear(self) -> bool {
        matches!(self, Self::Clear | Self::Http2Clear)
    }

    pub(super) fn is_tls12(self) -> bool {
        matches!(self, Self::Tls12 | Self::Http2Tls12)
    }

    pub(super) fn is_http2(self) -> bool {
        matches!(self, Self::Http2Clear | Self::Http2Tls12 | Self::Http2 | Self::Http2Mutual)
    }

    pub(super) fn asks_for_certificate(self) -> bool {
        matches!(self, Self::Mutual | Self::Http2Mutual)
    }
}

impl Link {
    pub(super) const ALL: [Self; 3] = [Self::Clean, Self::Lossy1, Self::Lossy5];
}

impl Bound {
    pub(super) fn holds(self, logged: u64, counted: u64) -> bool {
        match self {
            Self::Exact => counted == logged,
            Self::Within(percent) => counted.abs_diff(logged) * 100 <= logged * percent,
            Self::Third => counted * 100 <= logged * 105 && counted * 3 >= logged,
            Self::Shared => counted * 100 <= logged * 105 && counted != 0,
            Self::Goodbyes(most) => (logged..=logged + most).contains(&counted),
            Self::Stated => true,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => write!(f, "0"),
            Self::Within(percent) => write!(f, "at most {percent} %"),
            Self::Third => f.write_str("-67 to +5 %"),
            Self::Shared => f.write_str("at most +5 %"),
            Self::Goodbyes(most) => write!(f, "at most +{most}"),
            Self::Stated => write!(f, "stated"),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nginx => "nginx",
            Self::Apache => "Apache",
            Self::Caddy => "Caddy",
            Self::Lighttpd => "lighttpd",
            Self::Haproxy => "HAProxy",
            Self::Hypercorn => "hypercorn",
            Self::Node => "Node",
            Self::Grpc => "grpcio",
            Self::Lenient(lenient) => return lenient.fmt(f),
        })
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clear => "HTTP/1, clear",
            Self::Tls12 => "HTTP/1, TLS 1.2",
            Self::Tls13 => "HTTP/1, TLS 1.3",
            Self::Mutual => "HTTP/1, TLS 1.3, client certificate",
            Self::EarlyData => "HTTP/1, TLS 1.3, early data",
            Self::Http2Clear => "HTTP/2, clear",
            Self::Http2Tls12 => "HTTP/2, TLS 1.2",
            Self::Http2 => "HTTP/2, TLS 1.3",
            Self::Http2Mutual => "HTTP/2, TLS 1.3, client certificate",
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
        let and = if self.has_log { "; access log" } else { "" };
        write!(f, "{traffic}; {client}, {server}; {over}; {link}{and}")
    }
}

/// Returns the rows of each kind of traffic, then each client with each server, then the rows with access logs.
pub(super) fn all() -> Vec<Row> {
    let mut rows = traffic::all();
    rows.extend(clients::all());
    rows.extend(logged::all());
    rows
}

fn row(over: Over, bound: Bound, asks: u64, traffic: &'static str, client: &'static str, command: &'static str) -> Row {
    let (server, link) = (Server::Nginx, Link::Clean);
    let families = &Family::ALL;
    Row { traffic, client, server, over, link, has_log: false, bound, asks, command, families, is_quick: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_holds_on_its_edge_and_not_beyond() {
        assert!(Bound::Exact.holds(3, 3) && !Bound::Exact.holds(3, 2));
        assert!(Bound::Within(1).holds(200, 198) && !Bound::Within(1).holds(200, 197));
        assert!(Bound::Within(1).holds(200, 202) && !Bound::Within(1).holds(200, 203));
        assert!(Bound::Third.holds(100, 105) && !Bound::Third.holds(100, 106));
        assert!(Bound::Third.holds(99, 33) && !Bound::Third.holds(99, 32) && Bound::Stated.holds(1, 50));
        assert!(Bound::Shared.holds(100, 105) && Bound::Shared.holds(100, 1) && !Bound::Shared.holds(100, 106));
        assert!(Bound::Goodbyes(1).holds(3, 4) && !Bound::Goodbyes(1).holds(3, 5) && !Bound::Goodbyes(1).holds(3, 2));
    }

    #[test]
    fn all_of_http1_is_exact_but_what_has_no_exact_truth() {
        let is_exact = |bound| matches!(bound, Bound::Exact | Bound::Goodbyes(_));
        let loose =
            |row: &&Row| !row.has_log && !is_exact(row.bound) && !row.over.is_http2() && row.over != Over::Http3;
        let rows = all();
        let mut traffic: Vec<_> = rows.iter().filter(loose).map(|row| row.traffic).collect();
        traffic.dedup();
        traffic.sort_unstable();
        traffic.dedup();
        assert_eq!(traffic, ["16 connections, 3 seconds", "WebSocket, 70 messages", "server-sent events, 40"]);
    }

    #[test]
    fn each_client_meets_each_web_server() {
        let rows = all();
        for server in Server::WEB {
            for client in ["curl", "libcurl, GnuTLS", "libcurl, NSS", "wget", "hey (Go)", "Node", "Java 17", "Java 21"]
            {
                let met = |over: Over| {
                    let is_it = |row: &&Row| row.server == server && row.over == over && row.client == client;
                    rows.iter().any(|row| is_it(&row))
                };
                assert!(met(Over::Tls13), "{client}, {server}, HTTP/1");
                let speaks_http2 = client != "wget" && (client, server) != ("libcurl, NSS", Server::Lighttpd);
                assert!(!speaks_http2 || met(Over::Http2), "{client}, {server}, HTTP/2");
            }
        }
    }

    #[test]
    fn set_up_installs_each_program_that_a_row_runs() {
        let (installed, of_a_shell) =
            (crate::setup::accuracy_programs(), ["cat", "done", "env", "for", "printf", "sleep"]);
        for row in all() {
            for part in row.command.split(['|', ';', '&', '(']).map(|part| part.trim_start().trim_start_matches("do "))
            {
                let mut words = part.split_whitespace().skip_while(|word| word.starts_with("{padded"));
                let program = match words.next() {
                    None | Some("{ureq}" | "{java17}" | "{java21}") => continue,
                    Some("{python}" | "{libcurl}") => "python3",
                    Some("{curl_shown}") => "curl",
                    Some(word) => word.trim_start_matches('{').trim_end_matches('}'),
                };
                assert!(
                    installed.contains(&program) || of_a_shell.contains(&program),
                    "{program} of `{}`",
                    row.command
                );
            }
        }
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
