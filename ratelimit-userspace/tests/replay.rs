//! Tests of `replay` and `suggest --from` through the real binary, with small logs of every kind in `logs/`. Those of
//! [`SAME`] hold the same six requests. The expected output is in `snapshots/`. Needs neither privileges nor a daemon.
#![expect(clippy::expect_used, reason = "a test that cannot run its program fails")]

use std::io::Write as _;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use assert_cmd::Command;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use tempfile::TempDir;

/// Time limit of a command, as none waits for anything.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

fn logs() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/logs"))
}

fn log(name: &str) -> Vec<u8> {
    std::fs::read(logs().join(name)).expect(name)
}

/// Returns the binary in an environment that is the same everywhere.
fn ratelimitd(arguments: &[&str], directory: &Path) -> Command {
    let mut command = Command::cargo_bin("ratelimitd").expect("built with the tests");
    command
        .args(arguments)
        .current_dir(directory)
        .env_clear()
        .env("COLUMNS", "100")
        .env("TERM", "dumb")
        .env("TZ", "UTC");
    command.timeout(ENDS_WITHIN);
    command
}

fn run(arguments: &[&str], directory: &Path) -> Output {
    ratelimitd(arguments, directory).output().expect("run")
}

/// Returns the output on a terminal, with streams and exit code separated.
fn transcript(arguments: &[&str]) -> String {
    transcript_in(arguments, logs())
}

fn transcript_in(arguments: &[&str], directory: &Path) -> String {
    let output = run(arguments, directory);
    let stream = |name: &str, bytes: &[u8]| match std::str::from_utf8(bytes).expect("UTF-8") {
        "" => String::new(),
        text => format!("--- {name}\n{text}"),
    };
    format!(
        "$ ratelimitd {}\nexit code {}\n{}{}",
        arguments.join(" "),
        output.status.code().expect("ended by itself"),
        stream("stdout", &output.stdout),
        stream("stderr", &output.stderr)
    )
}

fn json(arguments: &[&str], directory: &Path) -> Value {
    let output = run(arguments, directory);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Logs with the same requests, each in the original format of its writer.
const SAME: [&str; 26] = [
    "nginx-combined.log",
    "apache-vhost-combined.log",
    "nginx-json.log",
    "caddy.log",
    "traefik.log",
    "envoy.log",
    "apache-forwarded-first.log",
    "nginx-forwarded-alone.log",
    "syslog-3164.log",
    "syslog-5424.log",
    "journal-short.log",
    "journal-short-iso.log",
    "journal-json.log",
    "journal-export.bin",
    "haproxy.log",
    "iis-w3c.log",
    "cloudfront.log",
    "aws-alb.log",
    "aws-elb.log",
    "docker-json-file.log",
    "kubernetes-cri.log",
    "docker-compose.log",
    "copytruncate.log",
    "mixed.log",
    "mixed-windows.log",
    "nginx-combined.log.1.gz",
];

#[test]
fn equal_requests_are_judged_alike_in_every_format() {
    let directory = copied();
    for name in SAME {
        let report = json(&["replay", name, "--limit", "3/1m", "--json"], directory.path());
        let (input, limit) = (&report["input"], &report["limits"][0]);
        assert_eq!(input["judged"], 6, "{name}");
        assert_eq!((&limit["admitted"], &limit["refused"]), (&4.into(), &2.into()), "{name}");
        assert_eq!(limit["limited"][0]["source"], "198.51.100.7", "{name}");
        let from = input["from"].as_str().expect("a time");
        // The time is the begin of the request, if a line has its end and the duration.
        assert!(from.starts_with("2026-10-10T13:55:36") || from.starts_with("2026-10-10T13:55:35.9"), "{name}: {from}");
        assert_eq!(input["files"][0]["name"], name);
    }
}

/// Returns a directory with the logs, and with variants of some.
fn copied() -> TempDir {
    let directory = TempDir::new().expect("a directory for files");
    let put = |name: &str, contents: &[u8]| std::fs::write(directory.path().join(name), contents).expect(name);
    for name in SAME.iter().filter(|name| logs().join(name).exists()) {
        put(name, &log(name));
    }
    let combined = log("nginx-combined.log");
    put("nginx-combined.log.1.gz", &members(&combined));
    let windows = String::from_utf8(log("mixed.log")).expect("UTF-8").replace('\n', "\r\n");
    put("mixed-windows.log", &[b"\xef\xbb\xbf", windows.as_bytes()].concat());
    directory
}

fn packed(contents: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(contents).expect("pack");
    encoder.finish().expect("pack")
}

/// Compresses each line as a gzip member of its own, as programs do that append.
fn members(contents: &[u8]) -> Vec<u8> {
    contents.split_inclusive(|byte| *byte == b'\n').flat_map(packed).collect()
}

macro_rules! transcripts {
    ($($name:ident: $arguments:expr;)*) => {
        $(
            #[test]
            fn $name() {
                insta::with_settings!({ omit_expression => true }, {
                    insta::assert_snapshot!(stringify!($name), transcript(&$arguments));
                });
            }
        )*
    };
}

transcripts! {
    nginx_combined: ["replay", "nginx-combined.log", "--limit", "3/1m"];
    apache_virtual_hosts: ["replay", "apache-vhost-combined.log", "--limit", "3/1m"];
    nginx_json: ["replay", "nginx-json.log", "--limit", "3/1m"];
    caddy: ["replay", "caddy.log", "--limit", "3/1m"];
    traefik: ["replay", "traefik.log", "--limit", "3/1m"];
    forwarded_first: ["replay", "apache-forwarded-first.log", "--limit", "3/1m"];
    forwarded_alone: ["replay", "nginx-forwarded-alone.log", "--limit", "3/1m"];
    syslog: ["replay", "syslog-3164.log", "--limit", "3/1m"];
    journal_short: ["replay", "journal-short.log", "--limit", "3/1m"];
    journal_json: ["replay", "journal-json.log", "--limit", "3/1m"];
    journal_export: ["replay", "journal-export.bin", "--limit", "3/1m"];
    haproxy: ["replay", "haproxy.log", "--limit", "3/1m"];
    iis: ["replay", "iis-w3c.log", "--limit", "3/1m"];
    aws_load_balancer: ["replay", "aws-alb.log", "--limit", "3/1m"];
    a_hole_before_the_log: ["replay", "copytruncate.log", "--limit", "3/1m"];
    a_format_that_changes: ["replay", "mixed.log", "--limit", "3/1m"];
    a_proxy_that_has_all_requests: ["replay", "proxied.log", "--limit", "60/1m"];

    an_error_log_of_nginx: ["replay", "nginx-error.log", "--limit", "3/1m"];
    an_error_log_of_apache: ["replay", "apache-error.log", "--limit", "3/1m"];
    a_log_of_sshd: ["replay", "sshd.log", "--limit", "3/1m"];
    a_log_of_connections_of_haproxy: ["replay", "haproxy-tcp.log", "--limit", "3/1m"];
    an_array: ["replay", "array.json", "--limit", "3/1m"];
    objects_of_several_lines: ["replay", "pretty.json", "--limit", "3/1m"];
    one_of_several_that_is_no_log: ["replay", "nginx-combined.log", "nginx-error.log", "--limit", "3/1m"];

    suggest_from_a_log: ["suggest", "--from", "proxied.log"];
    suggest_from_a_log_by_its_limit: ["suggest", "--from", "nginx-combined.log", "caddy.log", "--limit", "3/1m"];
    suggest_for_a_rule_from_a_log: ["suggest", "--from", "nginx-combined.log", "--rule", "login"];
    suggest_by_a_limit_without_a_log: ["suggest", "--limit", "3/1m"];
    suggest_from_another_text: ["suggest", "--from", "sshd.log"];
}

#[test]
fn other_archives_are_named_with_their_unpack_command() {
    let directory = TempDir::new().expect("a directory for files");
    let mut tar = vec![0; 512];
    tar[..10].copy_from_slice(b"access.log");
    tar[257..262].copy_from_slice(b"ustar");
    for (name, contents, what, command) in [
        ("a.xz", b"\xfd7zXZ\0\0\x04".as_slice(), "(xz)", "xzcat FILE | ratelimitd replay -"),
        ("a.zst", b"\x28\xb5\x2f\xfd\x04", "(zstd)", "zstdcat FILE | ratelimitd replay -"),
        ("a.bz2", b"BZh91AY&SY", "(bzip2)", "bzcat FILE | ratelimitd replay -"),
        ("a.lz4", b"\x04\x22\x4d\x18\x64", "(lz4)", "lz4cat FILE | ratelimitd replay -"),
        ("a.zip", b"PK\x03\x04\x14", "zip archive", "unzip -p FILE | ratelimitd replay -"),
        ("a.tar", &tar, "tar archive", "tar -xOf FILE | ratelimitd replay -"),
        ("a.tar.gz", &packed(&tar), "tar archive", "tar -xOf FILE | ratelimitd replay -"),
        ("a.gz.gz", &packed(&packed(b"a")), "gzip twice", "zcat FILE | ratelimitd replay -"),
        (
            "a.journal",
            b"LPKSHHRH\0\0\0\0",
            "journal of systemd",
            "journalctl --file FILE -o json | ratelimitd replay -",
        ),
        ("utf16.log", b"\xff\xfe1\x009\x00", "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE | ratelimitd replay -"),
        ("cut.gz", &packed(b"a")[..10], "gzip data is cut off", "leave it out"),
    ] {
        std::fs::write(directory.path().join(name), contents).expect("write");
        let output = run(&["replay", name, "--limit", "3/1m"], directory.path());
        let talk = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{name}: {talk}");
        assert!(talk.contains(what) && talk.contains(command), "{name}: {talk}");
    }
}

#[test]
fn rotated_logs_are_merged_by_time_in_whatever_order_they_are_named() {
    let directory = TempDir::new().expect("a directory for files");
    let combined = log("nginx-combined.log");
    let lines: Vec<&[u8]> = combined.split_inclusive(|byte| *byte == b'\n').collect();
    let put = |name: &str, contents: &[u8]| std::fs::write(directory.path().join(name), contents).expect(name);
    put("access.log", &lines[4..].concat());
    put("access.log.1", &[lines[1], lines[3]].concat());
    put("access.log.2.gz", &members(&[lines[0], lines[2]].concat()));
    put("access.log.3", b"");
    let whole = json(&["replay", "nginx-combined.log", "--limit", "3/1m", "--json"], logs());
    for order in [["access.log", "access.log.1", "access.log.2.gz"], ["access.log.1", "access.log.2.gz", "access.log"]]
    {
        let [a, b, c] = order;
        let merged = json(&["replay", a, "access.log.3", b, c, "--limit", "3/1m", "--json"], directory.path());
        assert_eq!(merged["limits"], whole["limits"], "{order:?}");
        assert_eq!(merged["input"]["out_of_order"], 0);
        assert_eq!(merged["input"]["files"].as_array().expect("a list").len(), 3);
        assert_eq!(merged["warnings"], serde_json::json!(["access.log.3 is empty"]));
    }
    let text = transcript_in(
        &["replay", "access.log", "access.log.1", "access.log.2.gz", "--limit", "3/1m"],
        directory.path(),
    );
    insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!("rotated_logs", text) });
}

#[test]
fn standard_input_may_be_packed_and_is_read_once() {
    for (command, named) in [("replay", &["-"][..]), ("suggest", &["--from", "-"])] {
        let arguments = [&[command], named, &["--limit", "3/1m", "--json"]].concat();
        let mut ratelimitd = ratelimitd(&arguments, logs());
        let output = ratelimitd.write_stdin(packed(&log("caddy.log"))).output().expect("run");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(report["input"]["judged"], 6);
        assert_eq!(report["input"]["files"][0]["compression"], "gzip");
    }
    let output = run(&["replay", "-", "-", "--limit", "3/1m"], logs());
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("can be read only once"));
}

#[test]
fn a_packed_log_that_is_cut_off_is_judged_as_far_as_it_goes() {
    let directory = TempDir::new().expect("a directory for files");
    let whole = members(&log("nginx-combined.log"));
    for (contents, what) in [
        (whole[..whole.len() - 6].to_vec(), "its gzip data is cut off"),
        ([whole.as_slice(), b"garbage behind the last member"].concat(), "its gzip data is damaged"),
    ] {
        std::fs::write(directory.path().join("a.gz"), contents).expect("write");
        let report = json(&["replay", "a.gz", "--limit", "3/1m", "--json"], directory.path());
        assert!(report["input"]["judged"].as_u64().expect("a number") >= 5);
        assert!(report["warnings"][0].as_str().expect("a text").contains(what), "{report}");
    }
}

#[test]
fn captures_and_logs_are_not_judged_together() {
    let directory = TempDir::new().expect("a directory for files");
    let mut header = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 262_144, 1] {
        header.extend_from_slice(&word.to_le_bytes());
    }
    std::fs::write(directory.path().join("a.pcap"), &header).expect("write");
    std::fs::write(directory.path().join("b.pcap.gz"), packed(&header)).expect("write");
    std::fs::write(directory.path().join("a.log"), log("nginx-combined.log")).expect("write");
    let output = run(&["replay", "a.log", "a.pcap", "--limit", "3/1m"], directory.path());
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(talk.contains("a.pcap: it is a capture, and a.log is a log"), "{talk}");
    let report = json(&["replay", "a.pcap", "b.pcap.gz", "--limit", "3/1m", "--json"], directory.path());
    assert_eq!((&report["input"]["kind"], &report["input"]["read"]), (&"capture".into(), &0.into()));
}

#[test]
fn times_without_an_offset_are_local_and_it_is_said() {
    let mut command = ratelimitd(&["replay", "haproxy.log", "--limit", "3/1m", "--json"], logs());
    let output = command.env("TZ", "CET-1CEST,M3.5.0,M10.5.0/3").output().expect("run");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["input"]["from"], "2026-10-10T11:55:36.655Z");
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("taken as local time of this machine"), "{warnings}");
}

#[test]
fn a_suggestion_from_a_log_is_what_its_sources_wanted() {
    let report = json(&["suggest", "--from", "nginx-combined.log", "--limit", "3/1m", "--json"], logs());
    let limit = &report["rules"][0]["limits"][0];
    assert_eq!((&limit["amount"], &limit["is_assumed"]), (&3.into(), &Value::Null));
    let observed = &limit["observed"];
    assert_eq!((&observed["sources"], &observed["wanted"]), (&2.into(), &6.into()));
    assert_eq!((&observed["busiest_window"]["max"], &observed["missed_buckets"]), (&5.into(), &0.into()));
    let three = observed["candidates"].as_array().expect("a list").iter().find(|of| of["amount"] == 3).expect("it");
    assert_eq!((&three["sources_blocked"], &three["blocked"]), (&1.into(), &2.into()));
}

/// Returns a directory with list files and a log. The log has 40 requests from each of these addresses of a crawler's
/// prefix, and requests of 25 readers.
fn crawled(crawler: impl IntoIterator<Item = u8>) -> TempDir {
    let directory = TempDir::new().expect("a directory for files");
    let line = |source: &str| format!("{source} - - [10/Oct/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 5\n");
    let crawler = crawler.into_iter().map(|last| line(&format!("203.0.113.{last}")).repeat(40));
    let readers = (1..=25).map(|last| line(&format!("198.51.{last}.7")).repeat(1 + last % 3));
    let files = [
        ("access.log", crawler.chain(readers).collect()),
        ("as64496.txt", "203.0.113.0/25\n2001:db8::/32\n".to_owned()),
        ("partners.txt", "203.0.113.7 # one of ours\n".to_owned()),
        ("unknown.txt", "192.0.2.0/24\n".to_owned()),
        ("broken.txt", "nobody\n".to_owned()),
    ];
    for (name, contents) in files {
        std::fs::write(directory.path().join(name), contents).expect(name);
    }
    directory
}

const LISTS: [&str; 6] = ["--list", "as64496.txt", "--list", "partners.txt", "--list", "unknown.txt"];

#[test]
fn replay_says_which_lists_and_prefixes_what_is_refused_comes_from() {
    let directory = crawled(1..=30);
    let asked = [&["replay", "access.log", "--limit", "30/1m"], &LISTS[..]].concat();
    let report = json(&[&asked[..], &["--json"]].concat(), directory.path());
    let row = |file: &str, sources: u64, refused: u64| serde_json::json!({"file": file, "sources": sources, "refused": refused});
    assert_eq!(
        report["limits"][0]["lists"],
        Value::from(vec![row("as64496.txt", 30, 300), row("partners.txt", 1, 10)])
    );
    let words = transcript_in(&asked, directory.path());
    let table = words.split("LIST").nth(1).expect("a table");
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows[..3],
        [vec!["SOURCES", "REFUSED"], vec!["as64496.txt", "30", "300"], vec!["partners.txt", "1", "10"]]
    );
}

#[test]
fn suggest_says_which_lists_and_prefixes_those_over_the_proposed_limit_are_in() {
    let directory = crawled([1, 2, 7]);
    let asked = [&["suggest", "--from", "access.log"], &LISTS[..]].concat();
    let report = json(&[&asked[..], &["--json"]].concat(), directory.path());
    let limit = &report["rules"][0]["limits"][0];
    let proposed = limit["proposal"]["amount"].as_u64().expect("a proposal");
    assert!(proposed < 40, "{limit}");
    assert_eq!(limit["prefixes"], serde_json::json!([{"prefix": "203.0.113.0/24", "sources": 3, "wanted": 120}]));
    let lists = serde_json::json!([
        {"file": "as64496.txt", "sources": 3, "wanted": 120},
        {"file": "partners.txt", "sources": 1, "wanted": 40}
    ]);
    assert_eq!(limit["lists"], lists);
    let words = transcript_in(&asked, directory.path());
    assert!(words.contains("Prefixes with several sources over it:\n"), "{words}");
    assert!(words.contains("Lists with sources over it:\n"), "{words}");
}

#[test]
fn an_unreadable_list_ends_a_replay_with_its_line_and_suggest_needs_a_log() {
    let directory = crawled(1..=30);
    for (arguments, code, word) in [
        (&["replay", "access.log", "--limit", "3/1m", "--list", "broken.txt"][..], 78, "broken.txt:1:1"),
        (&["replay", "access.log", "--limit", "3/1m", "--list", "none.txt"], 78, "none.txt"),
        (&["suggest", "--list", "partners.txt"], 2, "--from"),
    ] {
        let output = run(arguments, directory.path());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
}
