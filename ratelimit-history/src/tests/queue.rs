//! Tests of the queue: it never blocks its caller, it is bounded, and losses are counted.

use super::*;
use crate::Mask;
use crate::record::{QUEUE_LEN, TEXT_LEN_MAX};
use crate::schema::BUSY_TIMEOUT;
use crate::writer::PENDING_MAX;

/// Returns a recorder with a database that cannot be opened: its directory is a file.
fn stuck(site: &Site) -> Recorder {
    std::fs::write(site.directory.path().join("state"), "").unwrap();
    let recorder = site.recorder();
    wait(&recorder, |health| health.state == HealthState::Failing);
    recorder
}

#[test]
fn a_queue_that_nobody_empties_takes_so_many_and_counts_the_rest() {
    let site = Site::new();
    let recorder = stuck(&site);
    let sent = 2 * (QUEUE_LEN + PENDING_MAX);
    let begin = Instant::now();
    let mut taken = 0;
    for _ in 0..sent {
        taken += usize::from(recorder.record(site.event(EventKind::Deny, "192.0.2.1")));
    }
    let each = begin.elapsed() / u32::try_from(sent).unwrap();
    println!("an event is queued or lost within {each:?}");
    assert!((QUEUE_LEN..=QUEUE_LEN + PENDING_MAX).contains(&taken), "{taken}");
    let health = recorder.health();
    assert_eq!(usize::try_from(health.lost).unwrap(), sent - taken);
    assert!(usize::try_from(health.waiting).unwrap() <= QUEUE_LEN + PENDING_MAX, "{health:?}");
    // The recorder ends nevertheless, without writing the queued records.
    close(recorder);
}

#[test]
fn a_shutdown_waits_no_longer_than_it_says() {
    let site = Site::new();
    let (recorder, _lock) = locked(&site);
    let begin = Instant::now();
    assert!(!recorder.close(Duration::from_millis(100)), "its thread waits for the lock, for a second");
    assert!(begin.elapsed() < BUSY_TIMEOUT, "{:?}", begin.elapsed());
}

#[test]
fn changed_settings_apply_after_all_events_taken_before() {
    let site = Site::new();
    let (recorder, lock) = locked(&site);
    let mask = Mask::new(24, 48);
    let recorder = recorder.replaced_at(Some(Settings { mask, ..site.settings() }), site.pace());
    recorder.record(site.event(EventKind::Refused, "198.51.100.1"));
    // Switching history off in between does not change the order.
    let recorder = recorder.replaced_at(None, site.pace());
    assert_eq!(recorder.health().state, HealthState::Off);
    let recorder = recorder.replaced_at(Some(site.settings()), site.pace());
    recorder.record(site.event(EventKind::Refused, "203.0.113.1"));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(recorder.health().waiting, 1, "the lock is held");
    drop(lock);
    close(recorder);
    for (asked, source) in
        [("192.0.2.1", "192.0.2.1"), ("198.51.100.1", "198.51.100.0/24"), ("203.0.113.1", "203.0.113.1")]
    {
        assert_eq!(site.story(asked).episodes[0].source, source);
    }
}

#[test]
fn events_are_counted_as_lost_when_no_thread_can_start() {
    let site = Site::new();
    let (recorder, lock) = locked(&site);
    let recorder = recorder.replaced_by(site.settings(), site.pace(), |_| Err(std::io::Error::other("no memory")));
    let health = recorder.health();
    assert_eq!((health.state, health.lost), (HealthState::Off, 0));
    assert_eq!(health.detail.unwrap(), "history is off: its thread cannot start: no memory");
    assert!(!recorder.record(site.event(EventKind::Refused, "198.51.100.1")));
    assert_eq!((recorder.health().lost, recorder.health().waiting), (1, 0));
    assert!(!recorder.close(Duration::from_millis(100)), "the thread before waits for the lock");
    drop(lock);
}

#[test]
fn two_writers_of_one_database_never_merge_two_episodes() {
    let site = Site::new();
    // Both recorders have read the same last row before either writes.
    let recorders = [0, 1].map(|_| site.recorder());
    recorders.iter().for_each(written);
    for last in 0..60 {
        for (number, recorder) in recorders.iter().enumerate() {
            recorder.record(site.event(EventKind::Refused, &format!("198.51.{number}.{last}")));
            recorder.progress(Progress { packets: 7, ..site.progress(&format!("198.51.{number}.{last}"), 7) });
        }
        recorders.iter().for_each(written);
    }
    recorders.into_iter().for_each(close);
    for number in 0..2 {
        let story = site.story(&format!("198.51.{number}.0/24"));
        assert_eq!(story.episodes.len(), 60);
        assert!(story.episodes.iter().all(|of| of.packets == 7), "{story:?}");
    }
}

#[test]
fn waiting_events_are_written_once_the_database_is_writable() {
    let site = Site::new();
    let recorder = stuck(&site);
    for last in 0..50 {
        recorder.record(site.event(EventKind::Refused, &format!("192.0.2.{last}")));
    }
    std::fs::remove_file(site.directory.path().join("state")).unwrap();
    written(&recorder);
    assert_eq!(site.story("192.0.2.0/24").episodes.len(), 50);
    assert_eq!(recorder.health().detail, None);
}

#[test]
fn texts_of_any_length_take_bounded_memory() {
    let site = Site::new();
    let recorder = site.recorder();
    let mut event = site.event(EventKind::Deny, "192.0.2.1");
    event.detail = "é".repeat(100_000);
    event.reason = Some("x".repeat(100_000));
    recorder.record(event);
    close(recorder);
    let act = site.story("192.0.2.1").acts.remove(0);
    assert_eq!((act.detail.len(), act.reason.unwrap().len()), (TEXT_LEN_MAX, TEXT_LEN_MAX));
}

#[test]
fn a_history_that_is_off_takes_nothing_and_says_why() {
    let recorder = Recorder::off();
    let site = Site::new();
    assert!(!recorder.record(site.event(EventKind::Ban, "192.0.2.1")));
    let health = recorder.health();
    assert_eq!((health.state, health.lost, health.waiting), (HealthState::Off, 0, 0));
    let (told, answer) = std::sync::mpsc::channel();
    recorder.forget(net("192.0.2.1"), move |result| told.send(result).unwrap());
    assert!(answer.recv().unwrap().unwrap_err().contains("enabled = false"));
    assert!(recorder.close(Duration::ZERO));
}

#[test]
fn one_transaction_a_second_sustains_a_flood_of_new_sources() {
    let site = Site::new();
    let recorder =
        Recorder::off().replaced_at(Some(site.settings()), Pace { batch: Duration::from_secs(1), ..site.pace() });
    let sent = 60_000_u32;
    let begin = Instant::now();
    for number in 0..sent {
        let source = std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string();
        while !recorder.record(site.event(EventKind::Refused, &source)) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    close(recorder);
    let seconds = begin.elapsed().as_secs_f64();
    println!("{:.0} first refusals a second, in batches of a second", f64::from(sent) / seconds);
    let connection = rusqlite::Connection::open(site.path()).unwrap();
    let rows: u32 = connection.query_row("SELECT count(*) FROM episodes", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, sent);
}

#[test]
fn at_most_one_transaction_a_second_is_made() {
    let site = Site::new();
    let recorder =
        Recorder::off().replaced_at(Some(site.settings()), Pace { clock: site.pace().clock, ..Pace::default() });
    written(&recorder);
    let reader = rusqlite::Connection::open(site.path()).unwrap();
    // The value changes with each transaction of another connection.
    let version = || reader.pragma_query_value(None, "data_version", |row| row.get::<_, i64>(0)).unwrap();
    let (begin, mut last, mut transactions) = (Instant::now(), version(), 0);
    while begin.elapsed() < Duration::from_millis(2_500) {
        recorder.record(site.event(EventKind::Deny, "192.0.2.1"));
        recorder.record(site.event(EventKind::Refused, "192.0.2.1"));
        std::thread::sleep(Duration::from_millis(5));
        transactions += u32::from(version() != last);
        last = version();
    }
    assert!((1..=3).contains(&transactions), "{transactions}");
    close(recorder);
}
