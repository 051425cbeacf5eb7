//! Tests of reports after a flood in which most events are lost.

use super::*;
use ratelimit_report::history::{HistoryReport, Loss};

/// Number of sources that are refused in a moment. Only 256 of them are reported.
const SOURCES: u64 = 600;

/// Lets a second pass in which more sources begin to be refused than can be reported. The last one is the source
/// under test.
fn second(site: &mut Site, number: u64) -> Vec<String> {
    for at in number * SOURCES..(number + 1) * SOURCES {
        site.exceed(&format!("10.{}.{}.{}", at / 65_536, at / 256 % 256, at % 256));
    }
    site.exceed(SOURCE);
    site.pass(1)
}

/// Returns the history of the source and of losses.
fn story(site: &mut Site) -> HistoryReport {
    remembered(site, SOURCE)
}

fn lost(site: &mut Site) -> u64 {
    site.engine.datapath.read().unwrap().events.lost()
}

#[test]
fn history_names_what_it_lost_and_when() {
    let mut site = Site::of(Timestamp::now(), kept);
    let began = site.moment().wall;
    let mut said = Vec::new();
    for number in 0..3 {
        said.extend(second(&mut site, number));
    }
    let ended = site.moment().wall;
    said.extend(site.pass(70));
    let lost = lost(&mut site);
    assert!(lost > SOURCES, "{lost}");
    let report = story(&mut site);
    assert_eq!(Loss::sum(&report.losses), lost, "{:?}", report.losses);
    let [loss] = report.losses.as_slice() else { panic!("{:?}", report.losses) };
    let tolerance = Duration::from_millis(1);
    assert!(loss.began + tolerance >= began && loss.ended <= ended && loss.began < loss.ended, "{loss:?}");
    let line = said.iter().find(|line| line.starts_with("EVENTS LOST")).unwrap();
    assert!(line.contains(&format!("{lost} sources refused")) && line.contains("`ratelimitd history`"), "{line}");
    assert!(!said.iter().any(|line| line.contains("`ratelimitd list`")), "it shows none of them");
}

#[test]
fn a_source_that_is_still_refused_after_a_flood_is_taken_up() {
    let mut site = Site::of(Timestamp::now(), kept);
    second(&mut site, 0);
    second(&mut site, 1);
    let events = site.engine.journal.feed().report(&of(SOURCE));
    assert_eq!(events.unwrap().events, [], "its event was lost");
    let ended = site.moment().wall;
    site.pass(60);
    let report = story(&mut site);
    let [episode] = report.episodes.as_slice() else { panic!("{report:?}") };
    assert_eq!(
        (episode.reason.as_str(), episode.limit.as_str(), episode.ended),
        ("over_limit", "1/5m connections", None)
    );
    assert!(episode.began > ended && episode.packets > 0, "{episode:?}");
}

#[test]
fn a_source_that_is_banned_unseen_is_taken_up_once_with_the_end_of_its_ban() {
    let bans = Bans { steps_ns: vec![600 * SECOND_NS], forget_ns: 3_600 * SECOND_NS, needs_proof: false };
    let mut site = Site::of(Timestamp::now(), |config, directory| {
        kept(config, directory);
        config.policy.rules[0].bans = Some(bans);
    });
    second(&mut site, 0);
    site.pass(60);
    second(&mut site, 1);
    site.pass(60);
    site.pass(600);
    let report = story(&mut site);
    let [episode] = report.episodes.as_slice() else { panic!("{report:?}") };
    assert_eq!((episode.reason.as_str(), episode.cause.as_deref()), ("banned", Some("expired")), "{episode:?}");
    assert!(episode.ended.is_some(), "{episode:?}");
}
