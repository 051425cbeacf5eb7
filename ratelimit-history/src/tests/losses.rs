//! Tests of recorded losses: they are kept as long as all other records.

use super::*;
use ratelimit_report::history::Loss;

fn at(second: i64) -> Timestamp {
    Timestamp::from_millisecond(START + second * 1_000).unwrap()
}

/// Waits until the database has `len` losses, and returns them.
fn losses(site: &Site, len: usize) -> Vec<Loss> {
    let begin = Instant::now();
    loop {
        let losses = site.story("198.51.100.7").losses;
        if losses.len() == len {
            return losses;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{losses:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn history_names_what_it_lost_and_when() {
    let site = Site::new();
    let recorder = site.recorder();
    written(&recorder);
    recorder.lost(at(0), at(2), 7);
    recorder.lost(at(2), at(4), 5);
    recorder.lost(at(3_600), at(3_602), 1);
    let hour = Loss { began: at(3_600), ended: at(3_602), events: 1 };
    let first = Loss { began: at(0), ended: at(4), events: 12 };
    assert_eq!(losses(&site, 2), [hour.clone(), first.clone()], "neighbours are one, the newest first");
    close(recorder);
    let of = |since, until| {
        let filter = Filter { since: Some(at(since)), until: Some(at(until)), ..Filter::default() };
        let worst = site.reader().worst(&filter, at(7_200)).unwrap().losses;
        assert_eq!(site.reader().history(net("192.0.2.0/24"), &filter).unwrap().losses, worst);
        worst
    };
    assert_eq!(of(3, 3_599), [first]);
    assert_eq!(of(3_601, 3_601), [hour]);
    assert_eq!(of(5, 3_599), []);

    // Another daemon continues these losses. They expire together with other records of that time.
    let recorder = site.recorder_with(Settings { keep: Duration::from_secs(86_400), ..site.settings() });
    recorder.lost(at(3_602), at(3_606), 2);
    let begin = Instant::now();
    while losses(&site, 2)[0] != (Loss { began: at(3_600), ended: at(3_606), events: 3 }) {
        assert!(begin.elapsed() < Duration::from_secs(30));
    }
    site.pass(86_400 + 60);
    assert_eq!(losses(&site, 1)[0].events, 3);
    close(recorder);
}

#[test]
fn events_without_room_in_the_queue_become_a_loss_once_writable() {
    let site = Site::new();
    let (recorder, lock) = locked(&site);
    let begin = Instant::now();
    let mut missed = 0;
    while missed < 3 {
        assert!(begin.elapsed() < Duration::from_secs(60));
        missed += u64::from(!recorder.record(site.event(EventKind::Deny, "192.0.2.7")));
    }
    site.pass(30);
    missed += u64::from(!recorder.progress(site.progress("192.0.2.7", 9)));
    lock.execute_batch("ROLLBACK").unwrap();
    drop(lock);
    let all = losses(&site, 2);
    assert_eq!(all.iter().map(|of| of.events).sum::<u64>(), missed);
    assert_eq!(all.iter().map(|of| (of.began, of.ended)).collect::<Vec<_>>(), [(at(30), at(30)), (at(0), at(0))]);
    close(recorder);
}
