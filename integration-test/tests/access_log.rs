//! Tests of access logs as a second count. Requests that HTTP/2 hides in a record are charged once the server has
//! logged them, and nobody is charged for what a log says about others.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use integration_test::lab::{CLIENTS, SERVER, once};
use integration_test::logged::{CLIENT, Site, logged_in, post, settled, used};
use netlab::needs_root;
use nix::sys::signal::Signal;
use serde_json::Value;

#[test]
fn counted_requests_match_the_server_log_over_restart_and_rotation() {
    needs_root!();
    let site = Site::new();
    let daemon = site.limit("1000000/1h");
    for (requests, connections, streams) in [(1, 1, 1), (50, 1, 1), (500, 1, 10), (2_000, 1, 100), (10_000, 20, 100)] {
        site.load(requests, connections, streams);
        let (logged, used) = settled(&site);
        assert_eq!(used, logged, "{requests} requests, {connections} connections with {streams} streams");
    }
    let added = site.report()["requests_added"]["default"].as_u64().unwrap();
    assert!(added > 1_000, "records are shared: {:#}", site.report());
    let check = site.lab.ratelimitd(&["check", CLIENT]).stdout;
    assert!(check.contains("of them added from the log)"), "{check}");

    // A killed daemon leaves its windows, and later continues to read where it had stopped.
    daemon.end(Signal::SIGKILL);
    site.load(1_000, 1, 100);
    let daemon = site.limit("1000000/1h");
    site.load(1_000, 1, 100);
    once(|| (site.report()["behind_bytes"] == 0).then_some(()));
    let (logged, charged) = (site.logged(), site.used());
    // The window already contains the lines that were read before, so no line is charged twice.
    assert!((12_600..=logged).contains(&charged), "{charged} after a kill, {logged} are logged");
    assert_eq!(logged, 14_551);

    // Another client, whose lines the daemon has followed all along.
    let url = format!("https://{}/", SERVER[0]);
    let of_another = ["curl", "-sk", "--interface", CLIENTS[1], "-o", "/dev/null", &url];
    // The server writes to the renamed file until it gets a signal.
    fs::rename(site.log(), site.lab.directory().join("access.log.1")).unwrap();
    (0..5).for_each(|_| drop(site.lab.client.run(&of_another).unwrap()));
    site.web.signal(Signal::SIGUSR1).unwrap();
    assert!(once(|| site.log().exists().then_some(())).is_some());
    (0..5).for_each(|_| drop(site.lab.client.run(&of_another).unwrap()));
    // Each line was read once. More would have been charged otherwise, and fewer would leave the next ones uncharged.
    let line = fs::read_to_string(site.log()).unwrap().lines().last().unwrap().to_owned() + "\n";
    OpenOptions::new().append(true).open(site.log()).unwrap().write_all(line.repeat(7).as_bytes()).unwrap();
    assert!(once(|| (used(&site.lab, CLIENTS[1]) == 17).then_some(())).is_some(), "{:#}", site.report());
    drop(daemon);
}

/// Returns the most that was logged within any `window` of these samples that begins after `from`.
fn most_within(samples: &[(Duration, u64)], window: Duration, from: Duration) -> u64 {
    let ends_of = |(begin, at_begin): &(Duration, u64)| {
        let within = samples.iter().filter(|(at, _)| (*begin..=*begin + window).contains(at));
        within.map(|(_, logged)| logged - at_begin).max().unwrap_or(0)
    };
    samples.iter().filter(|(begin, _)| *begin >= from).map(ends_of).max().unwrap_or(0)
}

#[test]
fn a_multiplexing_client_exceeds_its_limit_once_by_requests_in_flight() {
    needs_root!();
    const LIMIT: u64 = 100;
    const IN_FLIGHT: u64 = 20 * 100;
    const LASTS: Duration = Duration::from_secs(45);
    const WINDOW: Duration = Duration::from_secs(10);
    let site = Site::new();
    let _daemon = site.limit(&format!("{LIMIT}/10s"));
    let (begun, directory) = (Instant::now(), site.lab.directory().to_owned());
    let (ends, ended) = mpsc::channel::<()>();
    let sampler = thread::spawn(move || {
        let mut samples = vec![(Duration::ZERO, 0)];
        while ended.recv_timeout(Duration::from_millis(250)) == Err(RecvTimeoutError::Timeout) {
            samples.push((begun.elapsed(), logged_in(&directory)));
        }
        samples
    });
    while begun.elapsed() < LASTS {
        site.load_for("3", 10_000, 20, 100);
    }
    drop(ends);
    let samples = sampler.join().unwrap();
    // The window and its first bucket.
    let later_from = WINDOW + WINDOW / 5;
    let first = samples.iter().filter(|(at, _)| *at <= WINDOW).map(|(_, logged)| *logged).max().unwrap_or(0);
    let later = most_within(&samples, WINDOW, later_from);
    println!("{first} in the first window, {later} at most in one that begins later; {:#}", site.report());
    // Requests in flight are answered, and some of those that arrived before their lines were read.
    assert!(first <= LIMIT + 2 * IN_FLIGHT, "{first}");
    assert!((1..=LIMIT + LIMIT / 10).contains(&later), "{later}: {samples:?}");
    // Another client still has its whole limit.
    let url = format!("https://{}/", SERVER[0]);
    let curl = ["curl", "-sk", "--interface", CLIENTS[1], "-o", "/dev/null", "-w", "%{http_code}", &url];
    for _ in 0..20 {
        assert_eq!(site.lab.client.run(&curl).unwrap().stdout, "200");
    }
    assert!(once(|| (used(&site.lab, CLIENTS[1]) == 20).then_some(())).is_some(), "{}", used(&site.lab, CLIENTS[1]));
}

#[test]
fn requests_as_short_as_control_frames_are_refused_once_their_lines_are_charged() {
    needs_root!();
    const LIMIT: u64 = 10;
    let site = Site::new();
    let files = site.lab.directory().join("files");
    fs::create_dir_all(&files).unwrap();
    fs::write(files.join("long"), "x".repeat(17_000)).unwrap();
    let program = site.lab.directory().join("small_records.py");
    fs::write(&program, include_str!("programs/small_records.py")).unwrap();
    let _daemon = site.limit(&format!("{LIMIT}/1m"));
    // Each HEADERS frame has the length of a window update, and follows an answer that allows one.
    let ask = ["timeout", "30", "python3", "-B", program.to_str().unwrap(), SERVER[0], "1.3", "h2", "13", "2000"];
    let output = site.lab.client.run(&[&ask[..], &["/files/long"]].concat()).unwrap();
    let answered: u64 = output.stdout.trim().parse().unwrap_or_else(|_| panic!("{}{}", output.stdout, output.stderr));
    println!("{answered} requests of a client that is allowed {LIMIT}");
    assert!((LIMIT + 1..500).contains(&answered), "{answered}: {:#}", site.report());
    // A window update within a download of a client within its limit is no request.
    let url = format!("https://{}/files/large", SERVER[0]);
    fs::write(files.join("large"), "x".repeat(30_000_000)).unwrap();
    let curl = ["curl", "-sk", "--http2", "--interface", CLIENTS[1], "-o", "/dev/null", "-w", "%{size_download}", &url];
    assert_eq!(site.lab.client.run(&curl).unwrap().stdout, "30000000");
    assert!(once(|| (used(&site.lab, CLIENTS[1]) == 1).then_some(())).is_some());
}

#[test]
fn lines_charge_no_one_but_peers_within_the_window() {
    needs_root!();
    let site = Site::new();
    let _daemon = site.limit("1000/1h");
    site.load(10, 1, 1);
    assert_eq!(settled(&site), (10, 10));
    let now = |offset: i64| jiff::Timestamp::now() + jiff::SignedDuration::from_secs(offset);
    let line = |who: &str, at: jiff::Timestamp| {
        let time = at.strftime("%d/%b/%Y:%H:%M:%S +0000");
        format!("{who} - - [{time}] \"GET / HTTP/2.0\" 200 3 \"-\" \"-\"\n")
    };
    let mut text = String::new();
    for _ in 0..5 {
        text += &line("198.51.100.7", now(0));
        text += &line(CLIENT, now(600));
        text += &line(CLIENT, now(-7_200));
        text += &line(CLIENT, now(0))[..20];
        text += "\n\x1b[31m\0garbage\n";
    }
    text += &"x".repeat(20_000);
    text += "\n";
    let mut log = OpenOptions::new().append(true).open(site.log()).unwrap();
    log.write_all(text.as_bytes()).unwrap();
    log.write_all(b"\xff\xfe not text\n").unwrap();
    let lines = once(|| {
        let lines = site.report()["lines"].clone();
        (lines["not_a_peer"] == 5 && lines["too_long"] == 1).then_some(lines)
    });
    let lines = lines.unwrap_or_else(|| panic!("{:#}", site.report()));
    assert_eq!((&lines["in_future"], &lines["too_old"]), (&Value::from(5), &Value::from(5)), "{lines:#}");
    assert!(lines["malformed"].as_u64().unwrap() >= 11, "{lines:#}");
    assert_eq!(site.used(), 10, "nobody is charged for it");
    assert_eq!(used(&site.lab, "198.51.100.7"), 0);
    // A line of a peer with the current time charges the difference to what was counted.
    log.write_all(line(CLIENT, now(0)).repeat(7).as_bytes()).unwrap();
    assert!(once(|| (site.used() == 17).then_some(())).is_some(), "{}", site.used());
}

#[test]
fn a_log_that_cannot_be_read_is_said_and_is_read_once_it_can_be() {
    needs_root!();
    let site = Site::new();
    let path = site.lab.directory().join("later.log");
    let daemon = site.lab.limit(&["--limit", "1000/1h", "--access-log", path.to_str().unwrap()]);
    let said = once(|| {
        let stats = site.lab.ratelimitd(&["stats"]).stdout;
        stats.contains("ACCESS LOG").then_some(stats)
    });
    assert!(said.unwrap().contains("later.log does not exist"));
    fs::create_dir(&path).unwrap();
    let is_said = |what: &str| once(|| site.lab.ratelimitd(&["stats"]).stdout.contains(what).then_some(())).is_some();
    assert!(is_said("is a directory"));
    fs::remove_dir(&path).unwrap();
    fs::write(&path, "").unwrap();
    assert!(once(|| site.report()["trouble"].is_null().then_some(())).is_some(), "{:#}", site.report());
    site.load(3, 1, 1);
    let mut log = OpenOptions::new().append(true).open(&path).unwrap();
    log.write_all(fs::read(site.log()).unwrap().repeat(4).as_slice()).unwrap();
    assert!(once(|| (site.used() == 12).then_some(())).is_some(), "{}", site.used());
    drop(daemon);
}

#[test]
fn a_guesser_is_refused_after_its_failures_and_banned_and_who_fails_less_is_not() {
    needs_root!();
    let site = Site::new();
    let log = site.log();
    let limits = "limits = [\"1000/1m\", \"5/1m path=/login method=POST\", \"20/1m status=404\"]";
    let rule = format!("{limits}\nblock_for = \"1m\"\naccess_log = [\"{}\"]", log.display());
    let _daemon = site.limit_by(&rule);
    let login = format!("https://{}/%6Cogin?next=/", SERVER[0]);
    let post = |client: &str, url: &str| post(&site.lab, client, url);
    // Others load the page as often as they like, and log in within the limit.
    let other = CLIENTS[1];
    for _ in 0..30 {
        let page = ["curl", "-sk", "--interface", other, "-o", "/dev/null", &login];
        site.lab.client.run(&page).unwrap();
    }
    let within: Vec<String> = (0..5).map(|_| post(other, &login)).collect();
    assert_eq!(within, ["200"; 5], "{:#}", site.report());
    // A guesser sends one guess after the other.
    let guesses: Vec<String> = (0..60).map(|_| post(CLIENT, &login)).take_while(|code| code == "200").collect();
    assert!((6..=20).contains(&guesses.len()), "{} guesses: {:#}", guesses.len(), site.report());
    let ban = once(|| {
        let check = site.lab.ratelimitd(&["check", CLIENT]).stdout;
        check.contains("anned").then_some(check)
    });
    let check = ban.unwrap_or_else(|| panic!("{}", site.lab.ratelimitd(&["check", CLIENT]).stdout));
    let said = site.lab.ratelimitd(&["stats"]).stdout;
    assert!(said.contains("5 requests in 1m with path=/login method=POST"), "{said}");
    assert_eq!(post(other, &format!("https://{}/", SERVER[0])), "200", "who is within the limits is served");
    // The ban names the limit that caused it.
    let events = site.lab.ratelimitd(&["events"]).stdout;
    let is_told =
        |line: &str| line.contains("banned by rule") && line.contains("5/1m requests path=/login method=POST");
    assert!(events.lines().any(is_told), "{events}");
    assert!(check.contains("with path=/login method=POST"), "{check}");
}

#[test]
fn a_shadow_limit_with_conditions_says_what_it_would_refuse_and_refuses_nobody() {
    needs_root!();
    let site = Site::new();
    let limits = "limits = [\"1000/1m\"]\nshadow_limits = [\"5/1m path=/login method=POST\", \"9/1m status=404\"]";
    let _daemon = site.limit_by(&format!("{limits}\naccess_log = [\"{}\"]", site.log().display()));
    let (login, page) = (format!("https://{}/login", SERVER[0]), format!("https://{}/", SERVER[0]));
    let said = |client: &str| {
        let check: Value = serde_json::from_str(&site.lab.ratelimitd(&["check", client, "--json"]).stdout).unwrap();
        let shadow = check["shadow_limits"][0].clone();
        (shadow["used"].as_u64().unwrap(), shadow["refused"].as_u64().unwrap())
    };
    let post = |client: &str| assert_eq!(post(&site.lab, client, &login), "200");
    let is_said = |client: &str, wanted| once(|| (said(client) == wanted).then_some(())).is_some();
    // Another client stays within the shadow limit.
    (0..5).for_each(|_| post(CLIENTS[1]));
    assert!(is_said(CLIENTS[1], (5, 0)), "{:?}", said(CLIENTS[1]));
    // The request that exceeds the limit is served, and each later one would be refused, whatever its path.
    (0..6).for_each(|_| post(CLIENT));
    assert!(is_said(CLIENT, (6, 0)), "{:?}", said(CLIENT));
    (0..3).for_each(|_| post(CLIENT));
    assert!(is_said(CLIENT, (6, 3)), "{:?}", said(CLIENT));
    let curl = ["curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", &page];
    assert_eq!(site.lab.client.run(&curl).unwrap().stdout, "200");
    assert!(is_said(CLIENT, (6, 4)), "{:?}", said(CLIENT));
    let check = site.lab.ratelimitd(&["check", CLIENT]).stdout;
    assert!(
        check.contains("6 of 5 requests with path=/login method=POST used in 1m; 4 requests would have"),
        "{check}"
    );
    let stats = site.lab.ratelimitd(&["stats"]).stdout;
    let line = "5 requests in 1m with path=/login method=POST: would have dropped 4 requests of 1 source";
    assert!(stats.contains(line), "{stats}");
    let events = site.lab.ratelimitd(&["events"]).stdout;
    let is_told = |line: &str| line.contains("would") && line.contains("5/1m requests path=/login method=POST");
    assert_eq!(events.lines().filter(|line| is_told(line)).count(), 1, "{events}");
    assert_eq!(site.lab.ratelimitd(&["suggest"]).code(), 0);
}

#[test]
fn turns_of_a_source_over_its_limit_by_log_lines_cost_the_whole_limit() {
    needs_root!();
    let site = Site::new();
    let _daemon = site.limit("50/10s");
    site.load_for("3", 1_000, 2, 100);
    assert!(
        once(|| (site.report()["turn_requests_max"]["default"] == 50).then_some(())).is_some(),
        "{:#}",
        site.report()
    );
    // Once the client's window is free, one turn fills it.
    let freed = once(|| (site.used() == 0).then_some(()));
    assert!(freed.is_some(), "{}", site.used());
    let curl = ["curl", "-sk", "-o", "/dev/null", &format!("https://{}/", SERVER[0])];
    site.lab.client.run(&curl).unwrap();
    assert_eq!(site.used(), 50);
    assert_eq!(used(&site.lab, CLIENTS[1]), 0);
    // A source that is unblocked starts again: each of its requests counts once, by packet or by line.
    assert_eq!(site.lab.ratelimitd(&["unblock", CLIENT]).code(), 0);
    assert!(once(|| (site.report()["turn_requests_max"]["default"] == 1).then_some(())).is_some());
    for asked in 1..=8 {
        site.lab.client.run(&curl).unwrap();
        assert!(once(|| (site.report()["behind_bytes"] == 0).then_some(())).is_some());
        assert_eq!(site.used(), asked);
    }
}

#[test]
fn each_limit_is_charged_for_lines_no_older_than_its_window() {
    needs_root!();
    let site = Site::new();
    let limits = "limits = [\"1000/10s\", \"1000/1h\", \"1000/10m status=404\", \"900/1h status=404\"]";
    let _daemon = site.limit_by(&format!("{limits}\naccess_log = [\"{}\"]", site.log().display()));
    site.load(10, 1, 1);
    let line = |seconds: i64| {
        let time =
            (jiff::Timestamp::now() - jiff::SignedDuration::from_secs(seconds)).strftime("%d/%b/%Y:%H:%M:%S +0000");
        format!("{CLIENT} - - [{time}] \"GET / HTTP/2.0\" 404 3 \"-\" \"-\"\n")
    };
    // Lines of half an hour ago, of five minutes ago, and of now.
    let text = line(1_800).repeat(40) + &line(300).repeat(20) + &line(0).repeat(5);
    OpenOptions::new().append(true).open(site.log()).unwrap().write_all(text.as_bytes()).unwrap();
    let used = || {
        let check: Value = serde_json::from_str(&site.lab.ratelimitd(&["check", CLIENT, "--json"]).stdout).unwrap();
        let limits = check["limits"].as_array().unwrap().iter();
        let used = |of: &Value| (of["window_seconds"].as_f64(), of["condition"].is_string(), of["used"].as_u64());
        limits.map(used).collect::<Vec<_>>()
    };
    let used_of = |window: f64, has_condition: bool| {
        let of_window = used().into_iter().filter(|of| (of.0, of.1) == (Some(window), has_condition));
        of_window.filter_map(|of| of.2).max().unwrap_or(0)
    };
    // The server may write its own last lines after these.
    let all_used = || (used_of(3600.0, true), used_of(3600.0, false), used_of(600.0, true));
    assert!(once(|| (all_used() == (65, 75, 25)).then_some(())).is_some(), "{:?}", used());
    assert!(used_of(10.0, false) <= 15, "{:?}", used());
}
