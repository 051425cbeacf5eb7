//! Tests of the dead man's switch, and of a machine that was suspended.

use super::site::{SECOND_NS, Site};
use super::*;
use ratelimit_common::time::Nanos;
use ratelimit_control::proto::{ApplyRequest, EventsOf, ModeWord};
use ratelimit_policy::config::Safety;

const AFTER: u64 = 60;

fn site(without_daemon_ns: Option<u64>) -> Site {
    Site::new(1).with_safety(Safety { without_daemon_ns, ..Safety::default() })
}

/// Returns the seconds until enforcement lapses.
fn lapses_in(site: &Site) -> Option<u64> {
    let mut kernel = site.kernel.peek();
    let (at, now) = (kernel.lapse().unwrap(), kernel.now().unwrap());
    at.map(|Nanos(at)| at.saturating_sub(now.0) / SECOND_NS)
}

async fn events(site: &Site) -> Vec<String> {
    let all = site.client.events(&EventsOf::default()).await.unwrap().events;
    all.into_iter().map(|event| event.detail).collect()
}

#[tokio::test(start_paused = true)]
async fn enforcement_lapses_only_without_a_daemon_and_the_next_one_reports_it() {
    let mut site = site(Some(AFTER * SECOND_NS));
    site.start().await;
    assert_eq!([site.reason("192.0.2.7"), site.reason("192.0.2.7")], ["within_limit", "over_limit"]);
    for _ in 0..5 {
        site.pass(AFTER / 2).await;
        assert_eq!((site.reason("192.0.2.7"), lapses_in(&site)), ("over_limit", Some(AFTER)));
    }
    assert!(events(&site).await.iter().all(|told| !told.contains("NOTHING WAS DROPPED")));
    site.kill().await;
    site.kernel.advance((AFTER - 1) * SECOND_NS);
    assert_eq!(site.reason("192.0.2.7"), "over_limit");
    site.kernel.advance(SECOND_NS);
    assert_eq!(site.reason("192.0.2.7"), "dry_run");
    site.start().await;
    assert_eq!((site.reason("192.0.2.7"), lapses_in(&site)), ("over_limit", Some(AFTER)));
    site.pass(1).await;
    let told = events(&site).await;
    assert_eq!(told.iter().filter(|told| told.contains("NOTHING WAS DROPPED since")).count(), 1, "{told:?}");
    // An orderly stop leaves no daemon either, and a start in time reports nothing.
    site.stop().await;
    site.kernel.advance((AFTER - 1) * SECOND_NS);
    site.start().await;
    site.pass(1).await;
    assert!(events(&site).await.iter().all(|told| !told.contains("NOTHING WAS DROPPED")));
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_hung_for_longer_enforces_again_and_tells_it_once_when_it_goes_on() {
    let mut site = site(Some(AFTER * SECOND_NS));
    site.start().await;
    assert_eq!([site.reason("192.0.2.7"), site.reason("192.0.2.7")], ["within_limit", "over_limit"]);
    // Packets keep arriving while the daemon does nothing.
    site.kernel.advance(AFTER * SECOND_NS);
    assert_eq!(site.reason("192.0.2.7"), "dry_run");
    site.pass(0).await;
    assert_eq!((site.reason("192.0.2.7"), lapses_in(&site)), ("over_limit", Some(AFTER)));
    site.pass(1).await;
    site.pass(1).await;
    let told = events(&site).await;
    assert_eq!(told.iter().filter(|told| told.contains("NOTHING WAS DROPPED since")).count(), 1, "{told:?}");
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn enforcement_never_lapses_unless_configured_even_after_a_set_lapse() {
    let mut site = site(None);
    site.start().await;
    assert_eq!(lapses_in(&site), None);
    site.kill().await;
    site.kernel.peek().lapse_at(Some(Nanos(1))).unwrap();
    site.start().await;
    assert_eq!([site.reason("192.0.2.7"), site.reason("192.0.2.7")], ["within_limit", "over_limit"]);
    assert_eq!(lapses_in(&site), None);
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lapse_applies_during_and_after_a_trial_and_leaves_a_panic_unchanged() {
    let mut site = site(Some(AFTER * SECOND_NS));
    site.start().await;
    site.write("2");
    let request = ApplyRequest { file: None, confirm_seconds: Some(30), ssh: None, force: false };
    site.client.apply(&request).await.unwrap();
    let reasons = |site: &Site| [(); 3].map(|()| site.reason("192.0.2.7"));
    assert_eq!(reasons(&site), ["within_limit", "within_limit", "over_limit"]);
    site.kill().await;
    site.kernel.advance(29 * SECOND_NS);
    assert_eq!(reasons(&site), ["over_limit"; 3]);
    site.kernel.advance(2 * SECOND_NS);
    assert_eq!(reasons(&site), ["over_limit"; 3], "what was before the trial");
    site.kernel.advance(30 * SECOND_NS);
    assert_eq!(reasons(&site), ["dry_run"; 3]);
    site.start().await;
    assert_eq!(reasons(&site), ["over_limit"; 3]);
    site.client.mode(ModeWord::Panic).await.unwrap();
    assert_eq!(reasons(&site), ["dry_run"; 3]);
    site.kill().await;
    site.kernel.advance(2 * AFTER * SECOND_NS);
    assert_eq!(reasons(&site), ["dry_run"; 3]);
    site.start().await;
    assert_eq!(reasons(&site), ["dry_run"; 3], "a restart does not end a panic");
    site.client.mode(ModeWord::Enforce).await.unwrap();
    assert_eq!(reasons(&site), ["over_limit"; 3]);
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_suspended_machine_goes_on_at_the_time_that_it_is_then_and_no_beat_is_missed() {
    let mut site = site(Some(AFTER * SECOND_NS));
    site.start().await;
    assert_eq!([site.reason("192.0.2.7"), site.reason("192.0.2.7")], ["within_limit", "over_limit"]);
    // The kernel's clock stood still.
    site.kernel.suspend(3_600 * SECOND_NS);
    assert_eq!(site.reason("192.0.2.7"), "over_limit");
    site.pass(1).await;
    assert_eq!([site.reason("192.0.2.7"), site.reason("192.0.2.7")], ["within_limit", "over_limit"]);
    assert_eq!(lapses_in(&site), Some(AFTER));
    for _ in 0..2 {
        let told = events(&site).await;
        let suspended = told.iter().filter(|told| told.contains("the machine was suspended for 1 hour:")).count();
        assert_eq!(suspended, 1, "it is told once: {told:?}");
        site.pass(1).await;
    }
    site.stop().await;
}
