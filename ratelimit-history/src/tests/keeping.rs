//! Tests of retention: what is kept, for how long and how much, and what `forget` erases.

use ratelimit_report::history::Outcome;
use rusqlite::Connection;

use super::*;
use crate::schema;
use crate::{Mask, Period, Total};

/// An address with bytes that occur in a file only for this address.
const MARKED: &str = "203.0.113.199";
const MARK: &str = "zQ7-the-mark";

/// Returns true if a file of the directory contains these bytes.
fn is_anywhere(site: &Site, bytes: &[u8]) -> bool {
    std::fs::read_dir(site.path().parent().unwrap()).unwrap().any(|entry| {
        let contents = std::fs::read(entry.unwrap().path()).unwrap();
        contents.windows(bytes.len()).any(|window| window == bytes)
    })
}

/// Erases a prefix and waits for the answer.
pub(super) fn forget(recorder: &Recorder, prefix: &str) -> Result<u64, String> {
    let (told, answer) = std::sync::mpsc::channel();
    recorder.forget(net(prefix), move |result| told.send(result).unwrap());
    answer.recv_timeout(Duration::from_secs(60)).unwrap()
}

#[test]
fn erased_data_is_in_no_table_file_or_memory_and_all_else_stays() {
    let site = Site::new();
    let recorder = site.recorder();
    for number in 0..200 {
        recorder.record(site.event(EventKind::Refused, &format!("192.0.2.{number}")));
    }
    for _ in 0..3 {
        recorder.record(site.event(EventKind::Refused, MARKED));
        recorder.record(Event { detail: MARK.to_owned(), ..site.event(EventKind::Reset, MARKED) });
        site.pass(1);
        written(&recorder);
    }
    recorder.record(site.event(EventKind::Refused, MARKED));
    recorder.record(site.event(EventKind::Deny, "203.0.113.0/24"));
    written(&recorder);
    let key = crate::prefix::key(net(MARKED));
    assert!(is_anywhere(&site, &key) && is_anywhere(&site, MARK.as_bytes()));
    std::fs::write(site.directory.path().join("state/history.db.corrupt-20260101T000000Z"), &key).unwrap();

    assert_eq!(forget(&recorder, MARKED), Ok(7));
    assert!(!is_anywhere(&site, &key) && !is_anywhere(&site, MARK.as_bytes()));
    // The erased open episode does not return with the next progress.
    recorder.progress(site.progress(MARKED, 9));
    written(&recorder);
    let story = site.story(MARKED);
    assert_eq!((story.episodes.len(), story.acts.len()), (0, 1));
    assert_eq!(site.story("192.0.2.0/24").episodes.len(), 200);
    close(recorder);
}

#[test]
fn a_reader_that_holds_the_log_delays_only_its_end() {
    let site = Site::new();
    let recorder = site.recorder();
    recorder.record(site.event(EventKind::Refused, MARKED));
    written(&recorder);
    let key = crate::prefix::key(net(MARKED));
    let reader = Connection::open(site.path()).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM episodes").unwrap();
    assert_eq!(forget(&recorder, MARKED), Ok(1));
    assert!(is_anywhere(&site, &key));
    drop(reader);
    let begin = Instant::now();
    while is_anywhere(&site, &key) {
        assert!(begin.elapsed() < Duration::from_secs(30));
        recorder.record(site.event(EventKind::Refused, "192.0.2.1"));
        std::thread::sleep(Duration::from_millis(10));
    }
    close(recorder);
}

#[test]
fn masked_addresses_are_in_no_file_and_their_prefix_has_the_story() {
    let site = Site::new();
    let recorder = site.recorder_with(Settings { mask: Mask::new(24, 48), ..site.settings() });
    let event = site.event(EventKind::Refused, MARKED);
    recorder.record(event);
    recorder.progress(site.progress(MARKED, 4));
    recorder.progress(site.progress("203.0.113.5", 5));
    let by = Some(format!("root (from {MARKED})"));
    recorder.record(Event { by, detail: format!("{MARKED} is denied"), ..site.event(EventKind::Deny, MARKED) });
    recorder.record(site.event(EventKind::Refused, "2001:db8:1:2::/64"));
    close(recorder);
    assert!(!is_anywhere(&site, MARKED.as_bytes()) && !is_anywhere(&site, &crate::prefix::key(net(MARKED))));
    let story = site.story(MARKED);
    assert_eq!((story.episodes[0].source.as_str(), story.episodes[0].packets), ("203.0.113.0/24", 9));
    assert_eq!(story.acts[0].detail, "203.0.113.0/24 is denied");
    assert_eq!(story.acts[0].by.as_deref(), Some("root (from 203.0.113.0/24)"));
    assert_eq!(site.story("2001:db8:1::/48").episodes[0].source, "2001:db8:1::/48");
}

#[test]
fn expired_episodes_are_deleted_and_open_ones_stay() {
    let site = Site::new();
    let day = 86_400;
    let recorder = site.recorder_with(Settings { keep: Duration::from_secs(10 * 86_400), ..site.settings() });
    let until = Some(site.now() + Duration::from_secs(100 * 86_400));
    recorder.record(Event { until, ..site.event(EventKind::Ban, "192.0.2.1") });
    recorder.record(site.event(EventKind::Refused, "192.0.2.2"));
    recorder.record(site.event(EventKind::Deny, "192.0.2.2"));
    let total =
        Total { rule: "web".into(), reason: "over_limit".into(), outcome: Outcome::Dropped, packets: 5, bytes: 9 };
    recorder.totals(site.now(), vec![total]);
    written(&recorder);
    site.pass(5 * day);
    recorder.record(site.event(EventKind::Refused, "192.0.2.3"));
    written(&recorder);
    let kept = || {
        let story = site.story("192.0.2.0/24");
        let mut kept: Vec<_> = story.episodes.into_iter().map(|of| of.source).collect();
        kept.sort_unstable();
        (kept.join(" "), story.acts.len())
    };
    assert_eq!(kept(), ("192.0.2.1 192.0.2.2 192.0.2.3".to_owned(), 1));
    site.pass(6 * day);
    let begin = Instant::now();
    while kept() != ("192.0.2.1 192.0.2.3".to_owned(), 0) {
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", kept());
        std::thread::sleep(Duration::from_millis(5));
    }
    close(recorder);
    let connection = Connection::open(site.path()).unwrap();
    let spans: String = connection.query_row("SELECT group_concat(span) FROM totals", [], |row| row.get(0)).unwrap();
    assert_eq!(spans, "3600,86400");
    assert_eq!(site.reader().series(Period::Month, site.now()).unwrap().lines.len(), 1);
}

#[test]
fn a_database_that_grows_too_large_loses_its_oldest_and_shrinks() {
    const BYTES_MAX: u64 = 1_000_000;
    let site = Site::new();
    let recorder = site.recorder_with(Settings { bytes_max: BYTES_MAX, ..site.settings() });
    let mut largest = 0;
    for hour in 0..40 {
        for number in 0..1_000 {
            recorder.record(site.event(EventKind::Refused, &format!("10.0.{hour}.{}", number % 250)));
            recorder.record(site.event(EventKind::Deny, &format!("10.0.{hour}.{}", number % 250)));
            recorder.record(site.event(EventKind::Reset, &format!("10.0.{hour}.{}", number % 250)));
        }
        site.pass(3_600);
        written(&recorder);
        largest = largest.max(recorder.health().bytes);
    }
    let begin = Instant::now();
    while std::fs::metadata(site.path()).unwrap().len() > BYTES_MAX * 3 / 2 {
        assert!(begin.elapsed() < Duration::from_secs(30), "{}", std::fs::metadata(site.path()).unwrap().len());
        recorder.record(site.event(EventKind::Deny, "192.0.2.1"));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(recorder.health().bytes <= BYTES_MAX, "{:?}", recorder.health());
    close(recorder);
    println!("at most {BYTES_MAX} bytes were allowed, the largest after a batch was {largest}");
    assert!(is_whole(&site.path()));
    let story = site.story("10.0.0.0/16");
    assert!(story.episodes[0].source.starts_with("10.0.39."), "{}", story.episodes[0].source);
    assert_eq!(site.story("10.0.0.0/24").episodes.len() + site.story("10.0.0.0/24").acts.len(), 0);
}

/// Records a typical month without a flood: acts of administrators, bans, a long refusal, totals.
fn month(site: &Site, recorder: &Recorder) {
    let total =
        Total { rule: "web".into(), reason: "over_limit".into(), outcome: Outcome::Dropped, packets: 5, bytes: 9 };
    for number in 0..100 {
        recorder.record(site.event(EventKind::Deny, &format!("192.0.2.{number}")));
        let until = Some(site.now() + Duration::from_secs(60));
        recorder.record(Event { until, ..site.event(EventKind::Ban, &format!("198.51.100.{number}")) });
        recorder.record(site.event(EventKind::Refused, &format!("203.0.113.{number}")));
        recorder.totals(site.now(), vec![total.clone()]);
        site.pass(61);
        recorder.progress(site.progress(&format!("203.0.113.{number}"), 9));
        recorder.record(site.event(EventKind::BanEnd, &format!("198.51.100.{number}")));
        // The writer ends an episode without news for longer than its window. Under load it could otherwise see the
        // clock of a later round before the progress of this round, and then store a brief episode.
        written(recorder);
    }
    site.pass(600);
    written(recorder);
}

#[test]
fn no_flood_of_one_kind_pushes_out_another_kind() {
    const BYTES_MAX: u64 = 1_000_000;
    let refusals: fn(&Site, u32) -> Vec<Event> = |site, number| {
        let source = std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string();
        vec![site.event(EventKind::Refused, &source), site.event(EventKind::BanEnd, &source)]
    };
    let forged: fn(&Site, u32) -> Vec<Event> = |site, number| {
        let source = std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string();
        let until = Some(site.now() + Duration::from_secs(3_600));
        vec![
            Event { until, ..site.event(EventKind::WouldBan, &source) },
            Event { source: Some(source), ..site.event(EventKind::Refused, "") },
        ]
    };
    let charges: fn(&Site, u32) -> Vec<Event> = |site, _| vec![site.event(EventKind::Charge, "10.0.0.1"); 2];
    for (name, flood) in [("refusals", refusals), ("what dry run would ban", forged), ("charges", charges)] {
        let site = Site::new();
        let recorder = site.recorder_with(Settings { bytes_max: BYTES_MAX, ..site.settings() });
        month(&site, &recorder);
        for number in 0..20_000 {
            flood(&site, number).into_iter().for_each(|event| {
                while !recorder.record(event.clone()) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            if number % 1_000 == 0 {
                site.pass(7);
                written(&recorder);
            }
        }
        site.pass(10_000);
        let begin = Instant::now();
        while recorder.health().bytes > BYTES_MAX || recorder.health().waiting > 0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "{name}: {:?}", recorder.health());
            std::thread::sleep(Duration::from_millis(5));
        }
        close(recorder);
        let of = |source: &str| site.story(source);
        assert_eq!(of("192.0.2.0/24").acts.len(), 100, "{name}");
        assert_eq!(of("198.51.100.0/24").episodes.len(), 100, "{name}");
        assert_eq!(of("203.0.113.0/24").episodes.len(), 100, "{name}");
        let connection = Connection::open(site.path()).unwrap();
        let minutes = "SELECT count(*) FROM totals WHERE span = 60";
        assert!(connection.query_row(minutes, [], |row| row.get::<_, u32>(0)).unwrap() >= 100, "{name}");
    }
}

#[test]
fn the_oldest_minute_totals_are_deleted_before_any_hour() {
    let site = Site::new();
    const BYTES_MAX: u64 = 1_000_000;
    let recorder = site.recorder_with(Settings { bytes_max: BYTES_MAX, ..site.settings() });
    for _ in 0..240 {
        let total = |number| Total {
            rule: format!("rule-{number}"),
            reason: "over_limit".into(),
            outcome: Outcome::Dropped,
            packets: 5,
            bytes: 9,
        };
        recorder.totals(site.now(), (0..100).map(total).collect());
        site.pass(60);
        written(&recorder);
    }
    let begin = Instant::now();
    while recorder.health().bytes > BYTES_MAX {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", recorder.health());
        std::thread::sleep(Duration::from_millis(5));
    }
    close(recorder);
    let connection = Connection::open(site.path()).unwrap();
    let of = |span: u32| {
        let sql = format!("SELECT count(*), coalesce(min(start), 0) FROM totals WHERE span = {span}");
        connection.query_row(&sql, [], |row| Ok((row.get::<_, u32>(0)?, row.get::<_, i64>(1)?))).unwrap()
    };
    let (minutes, oldest) = of(60);
    assert!((1..24_000).contains(&minutes) && oldest > START, "{minutes} since {oldest}");
    assert_eq!((of(3_600), of(86_400)), ((400, START), (100, START)));
}

#[test]
fn a_file_of_a_daemon_that_kept_more_shrinks_to_what_this_one_may_keep() {
    const BYTES_MAX: u64 = 600_000;
    let site = Site::new();
    let recorder = site.recorder();
    for number in 0..20_000 {
        while !recorder.record(site.event(EventKind::Deny, &format!("10.0.{}.{}", number / 200, number % 200))) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    close(recorder);
    let length = || std::fs::metadata(site.path()).unwrap().len();
    assert!(length() > 2 * BYTES_MAX, "{}", length());
    let recorder = site.recorder_with(Settings { bytes_max: BYTES_MAX, ..site.settings() });
    let begin = Instant::now();
    // The log is written back together with later records.
    while length() > BYTES_MAX {
        assert!(begin.elapsed() < Duration::from_secs(30), "{}", length());
        recorder.record(site.event(EventKind::Deny, "192.0.2.1"));
        std::thread::sleep(Duration::from_millis(2));
    }
    close(recorder);
    assert!(is_whole(&site.path()));
}

#[test]
fn the_file_is_made_for_root_alone_with_what_it_needs_to_shrink() {
    use std::os::unix::fs::PermissionsExt as _;
    let site = Site::new();
    close(site.recorder());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&site.path()), mode(site.path().parent().unwrap())), (0o600, 0o700));
    let connection = Connection::open(site.path()).unwrap();
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0));
    assert_eq!(pragma("auto_vacuum").unwrap(), rusqlite::types::Value::Integer(2));
    assert_eq!(pragma("journal_mode").unwrap(), rusqlite::types::Value::Text("wal".to_owned()));
    assert_eq!(pragma("user_version").unwrap(), rusqlite::types::Value::Integer(schema::VERSION));
}

#[test]
fn a_restart_goes_on_with_what_was_open_and_ends_what_is_over() {
    let site = Site::new();
    let recorder = site.recorder();
    recorder.record(site.event(EventKind::Refused, "192.0.2.1"));
    let until = Some(site.now() + Duration::from_secs(7_200));
    recorder.record(Event { until, ..site.event(EventKind::Ban, "192.0.2.2") });
    close(recorder);
    site.pass(3_600);
    let recorder = site.recorder();
    recorder.progress(site.progress("192.0.2.2", 5));
    recorder.record(site.event(EventKind::Refused, "192.0.2.3"));
    close(recorder);
    let story = site.story("192.0.2.0/24");
    let of = |source: &str| story.episodes.iter().find(|of| of.source == source).unwrap();
    assert_eq!(story.episodes.len(), 3);
    assert_eq!(of("192.0.2.1").ended, Some(of("192.0.2.1").began));
    assert_eq!((of("192.0.2.2").ended, of("192.0.2.2").packets), (None, 5));
}
