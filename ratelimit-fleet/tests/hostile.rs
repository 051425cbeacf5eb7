//! Bounded cost and naming of a hostile store: endless answers, unrequested answers and errors.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/hosts.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod hosts;

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use fake::{Fake, endlessly, question, slowly};
use hosts::Host;
use ratelimit_fleet::run::{State, Status};
use ratelimit_fleet::store::access::Access;
use ratelimit_fleet::store::trouble::Trouble;
use tokio::time::sleep;

/// Maximum memory growth for one answer in kB, including copies in the client and in buffers.
const GROWTH_KB_MAX: u64 = 48 << 10;

fn begin(access: &Access) -> Host {
    Host::begin(1, 2, "web", 7, access)
}

async fn until(host: &Host, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
    let began = Instant::now();
    loop {
        let status = host.fleet.status();
        if is_so(&status) {
            return status;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{what}: {:?} {:?}", status.trouble, status.failed);
        sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the peak memory of this process since [`forget_peak`], in kB.
fn peak_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn forget_peak() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}

type Serve = fn(&mut TcpStream);

/// A single test, because it measures the memory of the whole process.
#[tokio::test]
async fn an_answer_without_an_end_is_ended_and_named_and_takes_little_memory() {
    let stores: [(&str, Serve, &[Trouble]); 9] = [
        (
            "a string of 9 TB",
            |stream| {
                drop(stream.write_all(b"$9000000000000\r\n"));
                endlessly(stream, &[b'a'; 65_536]);
            },
            &[Trouble::Oversized],
        ),
        (
            "an array of a billion",
            |stream| {
                drop(stream.write_all(b"*1000000000\r\n"));
                endlessly(stream, &b":1\r\n".repeat(10_000));
            },
            &[Trouble::Oversized],
        ),
        (
            "an array of strings, each short",
            |stream| {
                drop(stream.write_all(b"*60000\r\n"));
                endlessly(stream, &[&b"$1000\r\n"[..], &[b'a'; 1000], b"\r\n"].concat());
            },
            &[Trouble::Oversized],
        ),
        ("arrays in arrays", |stream| endlessly(stream, &b"*1\r\n".repeat(10_000)), &[Trouble::Oversized]),
        (
            "a line",
            |stream| {
                drop(stream.write_all(b"+"));
                endlessly(stream, &[b'a'; 65_536]);
            },
            &[Trouble::Oversized],
        ),
        (
            "answers that nobody asked for",
            |stream| endlessly(stream, &b"+OK\r\n".repeat(10_000)),
            &[Trouble::Oversized, Trouble::Garbled],
        ),
        (
            "a trickle of answers that nobody asked for",
            |stream| {
                for _ in 0..1000 {
                    slowly(stream, b":1\r\n", Duration::from_millis(1));
                }
            },
            // The first of them counts as the answer and cannot be parsed.
            &[Trouble::Oversized, Trouble::Garbled],
        ),
        (
            "messages that are pushed",
            |stream| endlessly(stream, &b">2\r\n+invalidate\r\n+a\r\n".repeat(10_000)),
            &[Trouble::Garbled],
        ),
        (
            "a byte at a time",
            |stream| {
                drop(stream.write_all(b"$1000\r\n"));
                slowly(stream, &[b'a'; 1000], Duration::from_millis(100));
            },
            &[Trouble::Oversized],
        ),
    ];
    for (what, serve, troubles) in stores {
        let store = Fake::start(move |stream| {
            if question(stream) {
                serve(stream);
            }
        });
        forget_peak();
        let before = peak_kb();
        let host = begin(&store.access());
        let status =
            until(&host, what, |status| troubles.iter().any(|of| status.failed.contains_key(of.label()))).await;
        assert_ne!(status.state, State::Connected, "{what}");
        // The host reconnects several times to a store that keeps misbehaving.
        until(&host, what, |_| store.ended() >= 3).await;
        let grown = peak_kb().saturating_sub(before);
        println!("measured: {what}: {grown} kB at most, {} connections", store.connections());
        assert!(grown < GROWTH_KB_MAX, "{what}: {grown} kB");
        host.task.abort();
    }
}

#[tokio::test]
async fn each_error_of_a_store_is_named_with_what_to_do_and_the_stores_own_words() {
    let errors: [(&'static [u8], Trouble, &str); 16] = [
        (
            b"-DENIED Redis is running in protected mode because protected mode is enabled.\r\n",
            Trouble::ProtectedMode,
            "requirepass",
        ),
        (b"-NOAUTH Authentication required.\r\n", Trouble::NoPassword, "password_file"),
        (b"-WRONGPASS invalid username-password pair or user is disabled.\r\n", Trouble::Refused, "password_file"),
        (b"-NOPERM User rl has no permissions to run the 'evalsha' command\r\n", Trouble::NoPermission, "check-config"),
        (b"-LOADING Redis is loading the dataset in memory\r\n", Trouble::Loading, "loading"),
        (b"-READONLY You can't write against a read only replica.\r\n", Trouble::ReadOnly, "master's address"),
        (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", Trouble::OutOfMemory, "maxmemory"),
        (
            b"-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.\r\n",
            Trouble::NotSaving,
            "stop-writes-on-bgsave-error",
        ),
        (
            b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
            Trouble::NoMaster,
            "master's address",
        ),
        (b"-CLUSTERDOWN The cluster is down\r\n", Trouble::ClusterDown, "cluster info"),
        (b"-MOVED 3999 127.0.0.1:6381\r\n", Trouble::IsCluster, "list its nodes"),
        (
            b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
            Trouble::Busy,
            "SCRIPT KILL",
        ),
        (b"-ERR max number of clients reached\r\n", Trouble::TooManyClients, "maxclients"),
        (
            b"-ERR unknown command `EVALSHA`, with args beginning with: `hunter2`\r\n",
            Trouble::UnknownCommand,
            "Redis 7",
        ),
        (b"-ERR something else\r\n", Trouble::Other, "an error"),
        (b"HTTP/1.1 400 Bad Request\r\n", Trouble::Garbled, "Redis or Valkey"),
    ];
    for (answer, trouble, words) in errors {
        let store = Fake::answering(answer);
        let host = begin(&store.access());
        let what = String::from_utf8_lossy(answer);
        let status = until(&host, &what, |status| status.trouble == Some(trouble)).await;
        assert!(trouble.to_string().contains(words), "{trouble}");
        if trouble == Trouble::Garbled {
            assert_eq!(status.said, None);
            continue;
        }
        let said = until(&host, &what, |status| status.said.is_some()).await.said.unwrap().to_string();
        let sent = what.trim_start_matches('-').trim_end().split(", with").next().unwrap();
        assert!(said == sent && !said.contains("hunter2"), "{said}");
        host.task.abort();
    }
}

#[tokio::test]
async fn an_error_sent_before_a_connection_ends_is_heard() {
    for (said, trouble) in [
        (&b"-ERR max number of clients reached\r\n"[..], Trouble::TooManyClients),
        (b"-DENIED Redis is running in protected mode.\r\n", Trouble::ProtectedMode),
    ] {
        let store = Fake::start(move |stream| drop(stream.write_all(said)));
        let dir = tempfile::tempdir().unwrap();
        let password = dir.path().join("password");
        fs::write(&password, "hunter2").unwrap();
        for password_file in [None, Some(password)] {
            let host = begin(&Access { password_file, ..store.access() });
            let status = until(&host, "a greeting", |status| status.trouble == Some(trouble) && status.said.is_some());
            assert!(status.await.said.unwrap().to_string().starts_with(['E', 'D']));
            host.task.abort();
        }
    }
}

#[tokio::test]
async fn tls_on_a_plain_port_and_the_reverse_are_named() {
    let speaks_tls = Fake::answering(b"\x15\x03\x03\0\x02\x02\x46");
    let host = begin(&speaks_tls.access());
    until(&host, "an alert of TLS", |status| status.trouble == Some(Trouble::SpeaksTls)).await;
    for (answer, trouble) in [(&b"-ERR unknown command\r\n"[..], Trouble::SpeaksPlain), (b"", Trouble::NoHandshake)] {
        let speaks_plain = Fake::answering(answer);
        let urls = speaks_plain.access().urls.iter().map(|url| url.replace("redis:", "rediss:")).collect();
        let host = begin(&Access { urls, ..Access::default() });
        until(&host, "no TLS", |status| status.trouble == Some(trouble)).await;
        host.task.abort();
    }
    assert!(
        [Trouble::SpeaksTls, Trouble::SpeaksPlain, Trouble::NoHandshake]
            .iter()
            .all(|of| of.to_string().contains("`url`"))
    );
}
