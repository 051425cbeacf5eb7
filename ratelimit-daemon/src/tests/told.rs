//! Tests that the log, recent events, the history and `check` report a source in the same terms.

use std::net::IpAddr;
use std::time::Duration;

use super::bans::Site;
use super::*;
use crate::fleet::Reach;
use ratelimit_common::time::SECOND_NS;
use ratelimit_control::Requester;
use ratelimit_control::feed::EVENTS_MAX;
use ratelimit_control::proto::{EventsOf, Forget, HistoryOf, SourceRequest, Worst};
use ratelimit_policy::config::history::History;
use ratelimit_policy::desired::{Bans, Mode, NewSources};
use ratelimit_report::event::{Event as Told, EventKind};

mod flood;

const SOURCE: &str = "198.51.100.7";
/// Period of the budget of new sources, in nanoseconds.
const PERIOD_NS: u64 = 1 << 27;

fn of(source: &str) -> EventsOf {
    EventsOf { source: Some(source.to_owned()), ..EventsOf::default() }
}

fn recent(site: &Site, asked: &EventsOf) -> Vec<Told> {
    site.engine.journal.feed().report(asked).unwrap().events
}

/// Returns the history of a source once all records are written.
fn remembered(site: &mut Site, source: &str) -> ratelimit_report::history::HistoryReport {
    site.engine.journal.past.close(Duration::from_secs(10));
    let reader = ratelimit_history::Reader::open(&site.directory.path().join("h.db")).unwrap();
    reader.history(source.parse::<IpAddr>().unwrap().into(), &ratelimit_history::Filter::default()).unwrap()
}

fn kept(config: &mut Config, directory: &Path) {
    config.history = History { path: Some(directory.join("h.db")), ..History::default() };
}

#[test]
fn a_refused_source_is_one_event_one_line_and_one_episode_in_the_words_of_check() {
    let mut site = Site::of(Timestamp::now(), kept);
    site.exceed(SOURCE);
    let said = site.pass(3);
    assert_eq!(said, ["198.51.100.7 refused by rule \"default\": used 1 of 1/5m connections"]);
    // The refusal continues, in other buckets too.
    let mut more = Vec::new();
    for _ in 0..3 {
        site.exceed(SOURCE);
        more.extend(site.pass(61));
    }
    assert_eq!(more, [""; 0], "it is the same refusal");
    let events = recent(&site, &of(SOURCE));
    let [event] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((event.kind, event.detail.as_str()), (EventKind::Refused, said[0].as_str()));
    assert_eq!((event.source.as_deref(), event.rule.as_deref()), (Some(SOURCE), Some("default")));
    assert_eq!((event.limit.as_deref(), event.used), (Some("1/5m connections"), Some(1)));
    let moment = site.moment();
    let check = site.engine.check(address(SOURCE), moment).unwrap();
    assert_eq!(event.reason.as_deref(), Some(check.reason.as_str()));
    let history = remembered(&mut site, SOURCE);
    let [episode] = history.episodes.as_slice() else { panic!("{history:?}") };
    assert_eq!((&episode.reason, &episode.rule), (&check.reason, &"default".to_owned()));
    assert_eq!((episode.limit.as_str(), episode.peak), ("1/5m connections", 1));
    let refused = check.limits[0].refused;
    assert!(refused > 0 && episode.packets == refused, "{refused} by check, {} by history", episode.packets);
    assert!(episode.bytes > 0);
}

#[test]
fn a_ban_is_one_event_and_one_episode_and_its_end_is_that_of_the_ban() {
    let bans = Bans { steps_ns: vec![60 * SECOND_NS], forget_ns: 3_600 * SECOND_NS, needs_proof: false };
    let mut site = Site::of(Timestamp::now(), |config, directory| {
        kept(config, directory);
        config.policy.rules[0].bans = Some(bans);
    });
    site.exceed(SOURCE);
    site.pass(2);
    (0..5).for_each(|_| site.exceed(SOURCE));
    site.pass(70);
    let kinds: Vec<EventKind> = recent(&site, &of(SOURCE)).iter().map(|of| of.kind).collect();
    assert_eq!(kinds, [EventKind::Ban, EventKind::BanEnd], "a ban is told once");
    let events = recent(&site, &of(SOURCE));
    assert_eq!(events[1].time.round(jiff::Unit::Second).unwrap(), events[0].until.unwrap());
    let history = remembered(&mut site, SOURCE);
    let [episode] = history.episodes.as_slice() else { panic!("{history:?}") };
    assert_eq!((episode.reason.as_str(), episode.ended), ("banned", Some(events[1].time)));
}

#[test]
fn a_ban_lifted_early_ends_with_all_its_drops_and_the_next_is_separate() {
    let root = super::lists::root();
    let one: fn(&mut Site, &Requester) = |site, root| {
        let target = ratelimit_policy::config::network::Target::parse(SOURCE).unwrap();
        site.engine.unblock(Some(target), Reach::Host, root, site.moment()).unwrap();
    };
    let all: fn(&mut Site, &Requester) =
        |site, root| drop(site.engine.unblock(None, Reach::Host, root, site.moment()).unwrap());
    let reset: fn(&mut Site, &Requester) = |site, root| {
        site.engine.reset(&SourceRequest { source: address(SOURCE), fleet: false }, root, site.moment()).unwrap();
    };
    for free in [one, all, reset] {
        let bans = Bans { steps_ns: vec![600 * SECOND_NS], forget_ns: 3_600 * SECOND_NS, needs_proof: false };
        let mut site = Site::of(Timestamp::now(), |config, directory| {
            kept(config, directory);
            config.policy.rules[0].bans = Some(bans);
        });
        site.exceed(SOURCE);
        site.exceed("198.51.100.8");
        site.pass(3);
        // Nobody has looked since then.
        (0..4).for_each(|_| site.exceed(SOURCE));
        let at = site.moment().wall;
        free(&mut site, &root);
        site.exceed(SOURCE);
        site.pass(2);
        let events = recent(&site, &of(SOURCE));
        let kinds: Vec<EventKind> = events.iter().map(|of| of.kind).filter(|kind| !kind.is_act()).collect();
        assert_eq!(kinds, [EventKind::Ban, EventKind::BanEnd, EventKind::Ban]);
        let end = events.iter().find(|of| of.kind == EventKind::BanEnd).unwrap();
        assert_eq!(end.detail, "198.51.100.7: ban by rule \"default\" lifted by root, 8 packets dropped");
        assert_eq!(end.by.as_deref(), Some("root"));
        let history = remembered(&mut site, SOURCE);
        let [second, first] = history.episodes.as_slice() else { panic!("{history:?}") };
        assert_eq!((first.reason.as_str(), first.packets, second.ended), ("banned", 9, None), "{history:?}");
        assert_eq!(first.ended, Some(at.round(jiff::Unit::Millisecond).unwrap()));
    }
}

#[test]
fn lifting_every_ban_ends_only_the_episodes_of_banned_sources() {
    let mut site = Site::of(Timestamp::now(), |config, directory| {
        kept(config, directory);
        config.policy.rules[0].bans =
            Some(Bans { steps_ns: vec![600 * SECOND_NS], forget_ns: 3_600 * SECOND_NS, needs_proof: false });
        let mut other = config.policy.rules[0].clone();
        other.name = "other".to_owned();
        other.bans = None;
        other.from = vec!["203.0.113.0/24".parse().unwrap()];
        other.limits[0].slot += 50;
        config.policy.rules.insert(0, other);
    });
    site.exceed(SOURCE);
    site.exceed("203.0.113.9");
    site.pass(2);
    let moment = site.moment();
    site.engine.unblock(None, Reach::Host, &super::lists::root(), moment).unwrap();
    assert_ne!(remembered(&mut site, SOURCE).episodes[0].ended, None);
    assert_eq!(remembered(&mut site, "203.0.113.9").episodes[0].ended, None);
}

#[test]
fn a_refusal_after_an_unblock_is_told_as_a_beginning() {
    let mut site = Site::of(Timestamp::now(), kept);
    site.exceed(SOURCE);
    site.pass(2);
    let target = ratelimit_policy::config::network::Target::parse(SOURCE).unwrap();
    let moment = site.moment();
    site.engine.unblock(Some(target), Reach::Host, &super::lists::root(), moment).unwrap();
    site.exceed(SOURCE);
    assert_eq!(site.pass(2).len(), 1);
    let kinds: Vec<EventKind> = recent(&site, &of(SOURCE)).iter().map(|of| of.kind).collect();
    assert_eq!(kinds, [EventKind::Refused, EventKind::Unblock, EventKind::Refused]);
    assert_eq!(remembered(&mut site, SOURCE).episodes.len(), 2);
}

#[test]
fn a_refusal_after_the_window_is_reported_again() {
    let mut site = Site::of(Timestamp::now(), kept);
    site.exceed(SOURCE);
    site.pass(2);
    site.kernel.advance(3_600 * SECOND_NS);
    site.pass(1);
    site.exceed(SOURCE);
    assert_eq!(site.pass(2).len(), 1);
    assert_eq!(recent(&site, &of(SOURCE)).len(), 2);
}

#[test]
fn dry_run_tells_what_would_be_refused_with_the_reason_of_packets_that_pass() {
    let mut site = Site::of(Timestamp::now(), |config, _| config.policy.rules[0].mode = Mode::DryRun);
    site.exceed(SOURCE);
    site.pass(2);
    let events = recent(&site, &of(SOURCE));
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].kind, events[0].reason.as_deref()), (EventKind::WouldRefuse, Some("dry_run")));
}

fn told_of(site: &Site, kind: EventKind) -> Vec<(Option<String>, String)> {
    let events = recent(site, &EventsOf { kind: Some(kind), ..EventsOf::default() });
    events.into_iter().map(|of| (of.rule, of.detail)).collect()
}

#[test]
fn a_new_source_bound_is_reported_when_reached_and_when_it_ends() {
    let mut site = Site::of(Timestamp::now(), |config, _| {
        config.policy.rules[0].new_sources = Some(NewSources { amount: 2, window_ns: SECOND_NS });
    });
    for last in 0..10 {
        site.kernel.packet("eth0", opening(&format!("198.51.100.{last}")));
    }
    site.pass(2);
    let begins = "rule default: more new sources come than it admits: packets of the others are dropped";
    let of_rule = |words: &str| (Some("default".to_owned()), words.to_owned());
    assert_eq!(told_of(&site, EventKind::Overload), [of_rule(begins)]);
    site.pass(40);
    let ends = "rule default: all new sources are admitted again";
    assert_eq!(told_of(&site, EventKind::Overload), [of_rule(begins), of_rule(ends)]);
}

#[test]
fn overload_is_told_when_it_begins_and_when_it_ends() {
    let mut site = Site::of(Timestamp::now(), |_, _| {});
    for _ in 0..5 {
        // Period of the look that comes a second later.
        let period = (site.engine.datapath.now().unwrap().0 + SECOND_NS) / PERIOD_NS;
        let admission = ratelimit_common::admission::Admission { period, shift: 3, ..Default::default() };
        site.kernel.set_admission(admission);
        site.pass(1);
    }
    site.pass(40);
    let expected = [
        "more new sources come than can be remembered: packets of unknown ones are sampled",
        "all new sources can be remembered again",
    ];
    assert_eq!(told_of(&site, EventKind::Overload), expected.map(|words| (None, words.to_owned())));
}

#[test]
fn a_would_be_ban_is_an_event_and_an_episode_apart_from_bans() {
    let mut site = Site::of(Timestamp::now(), |config, directory| {
        kept(config, directory);
        config.policy.rules[0].mode = Mode::DryRun;
        let bans = Bans { steps_ns: vec![600 * SECOND_NS], forget_ns: 3_600 * SECOND_NS, needs_proof: false };
        config.policy.rules[0].bans = Some(bans);
    });
    site.exceed(SOURCE);
    site.pass(3);
    let kinds: Vec<EventKind> = recent(&site, &of(SOURCE)).iter().map(|of| of.kind).collect();
    assert_eq!(kinds, [EventKind::WouldBan, EventKind::WouldRefuse]);
    let history = remembered(&mut site, SOURCE);
    assert!(history.episodes.iter().all(|of| of.would && of.reason == "dry_run"), "{history:?}");
    assert!(!history.episodes.is_empty());
}

#[test]
fn a_clock_that_goes_back_an_hour_leaves_limits_events_and_history_whole() {
    let mut site = Site::of(Timestamp::now(), kept);
    site.exceed(SOURCE);
    site.pass(2);
    site.step_back(Duration::from_secs(3_600));
    site.exceed("198.51.100.8");
    site.pass(2);
    assert_eq!(site.kernel.packet("eth0", opening("198.51.100.8")).unwrap().label(), "over_limit");
    assert_eq!(recent(&site, &of("198.51.100.8")).len(), 1);
    let target = ratelimit_policy::config::network::Target::parse(SOURCE).unwrap();
    let moment = site.moment();
    site.engine.unblock(Some(target), Reach::Host, &super::lists::root(), moment).unwrap();
    for source in [SOURCE, "198.51.100.8"] {
        let history = remembered(&mut site, source);
        assert_eq!(history.episodes.len(), 1, "{history:?}");
        assert!(history.episodes.iter().all(|of| of.ended.is_none_or(|ended| ended >= of.began)), "{history:?}");
    }
}

#[test]
fn the_history_is_kept_as_the_configuration_says() {
    let mut site = Site::of(Timestamp::now(), kept);
    let history = site.engine.enforced.config.history.clone();
    let other = History { keep_ns: 3_600 * SECOND_NS, bytes_max: 2_000_000, mask_ipv4: 24, mask_ipv6: 48, ..history };
    site.engine.enforced.config.history = other;
    site.pass(1);
    let settings = site.engine.journal.past.settings();
    assert_eq!((settings.keep, settings.bytes_max), (Duration::from_secs(3_600), 2_000_000));
    assert_eq!(settings.mask, ratelimit_history::Mask::new(24, 48));
    assert_eq!(settings.path, site.directory.path().join("h.db"));
}

#[test]
fn a_flood_of_refusals_is_remembered_within_bounds_and_counted_in_full() {
    let mut site = Site::of(Timestamp::now(), |_, _| {});
    let sources = 20_000;
    let mut lines = Vec::new();
    for part in 0..20 {
        for at in part * 1_000..(part + 1) * 1_000 {
            site.exceed(&format!("10.{}.{}.{}", at / 65_536, at / 256 % 256, at % 256));
        }
        lines.extend(site.pass(1));
    }
    lines.extend(site.pass(61));
    let counts = site.engine.datapath.read().unwrap().events.refused;
    assert_eq!(counts.sent + counts.lost, sources, "each that began was sent or is lost");
    let report = site.engine.journal.feed().report(&EventsOf::default()).unwrap();
    assert!(report.events.len() <= EVENTS_MAX);
    let refused = |of: &&Told| of.kind == EventKind::Refused;
    let others = report.events.iter().filter(|of| !refused(of)).count() as u64;
    // Other events from before the flood are among the overwritten ones.
    let told = report.events.len() as u64 + report.overwritten - others;
    assert!((counts.sent..=counts.sent + 2).contains(&told), "{told} told, {} sent", counts.sent);
    let singly = lines.iter().filter(|line| line.contains(" refused by rule ")).count() as u64;
    let number = |line: &String| {
        let untold = || line.strip_prefix("and ")?.split_once(" more sources refused");
        let lost = || line.strip_prefix("EVENTS LOST in the last minute: ")?.split_once(" sources refused");
        untold().or_else(lost)?.0.parse::<u64>().ok()
    };
    let numbered: u64 = lines.iter().filter_map(number).sum();
    assert_eq!(singly + numbered, sources, "each is in a line, its own or that of a number");
    assert!(singly <= 50 + 82 * 10, "{singly}");
}

#[tokio::test]
async fn user_commands_are_named_events_that_can_be_followed_and_erased() {
    let mut path = std::path::PathBuf::new();
    let running = start(
        None,
        |config| {
            let directory = config.socket.parent().unwrap().join("state");
            path = directory.join("h.db");
            kept(config, &directory);
        },
        |_| ConfigSource::Flags,
    )
    .await;
    let client = running.client.clone();
    let mut followed = Vec::new();
    let following = async {
        client
            .follow(&of("192.0.2.7"), |line| {
                followed.push(line);
                if followed.len() == 2 { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
            })
            .await
    };
    let acting = async {
        let request = ratelimit_control::proto::GrantRequest {
            prefix: "192.0.2.7".into(),
            reason: Some("scraper".into()),
            ..Default::default()
        };
        running.client.grant(ratelimit_policy::desired::Grant::Denied, &request).await.unwrap();
        running.client.unblock("192.0.2.7").await.unwrap();
        running.client.mode(ratelimit_control::proto::ModeWord::DryRun).await.unwrap();
    };
    let (ended, ()) = tokio::join!(following, acting);
    ended.unwrap();
    let ratelimit_control::client::Followed::Event(first) = &followed[0] else { panic!("{followed:?}") };
    assert_eq!((first.kind, first.by.as_deref()), (EventKind::Deny, Some("root")));
    assert_eq!((first.reason.as_deref(), first.source.as_deref()), (Some("scraper"), Some("192.0.2.7")));
    let listed = running.client.events(&of("192.0.2.7")).await.unwrap();
    assert_eq!(listed.events.iter().map(|of| of.kind).collect::<Vec<_>>(), [EventKind::Deny, EventKind::Unblock]);
    // The mode is reported with the next step, and an act is written within a second.
    let asked = HistoryOf { prefix: "192.0.2.7".into(), ..HistoryOf::default() };
    let story = loop {
        match running.client.call(&asked).await {
            Ok(story) if story.acts.len() == 2 => break story,
            Ok(_) | Err(ClientError::Refused(_)) => sleep(Duration::from_millis(50)).await,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!((story.acts[1].what.as_str(), story.acts[1].by.as_deref()), ("deny", Some("root")));
    let mode = EventsOf { kind: Some(EventKind::Reload), ..EventsOf::default() };
    assert_eq!(running.client.events(&mode).await.unwrap().events.len(), 1);
    assert!(running.client.call(&Worst::default()).await.unwrap().sources.is_empty());
    assert!(running.client.stats().await.unwrap().history.is_some());
    let erased = running.client.call(&Forget { source: address("192.0.2.7") }).await.unwrap();
    assert_eq!((erased.rows, erased.events), (2, 2));
    assert!(running.client.events(&of("192.0.2.7")).await.unwrap().events.is_empty());
    assert!(running.client.call(&asked).await.unwrap().acts.is_empty());
    running.events.send(Event::Stop).await.unwrap();
    running.task.await.unwrap().unwrap();
    assert!(path.exists());
}

#[tokio::test]
async fn a_history_that_cannot_be_written_is_said_and_leaves_the_daemon_healthy() {
    let running = start(
        None,
        |config| {
            let file = config.socket.parent().unwrap().join("file");
            std::fs::write(&file, "").unwrap();
            kept(config, &file);
        },
        |_| ConfigSource::Flags,
    )
    .await;
    let health = loop {
        let health = running.client.health().await.unwrap();
        if !health.notes.is_empty() {
            break health;
        }
        sleep(Duration::from_millis(50)).await;
    };
    assert!(health.healthy && health.notes[0].starts_with("history is not written: "), "{health:?}");
    let text = ratelimit_view::stats(&running.client.stats().await.unwrap(), ratelimit_view::Page::ENDLESS);
    assert!(text.contains("HISTORY: history is not written: "), "{text}");
    running.events.send(Event::Stop).await.unwrap();
    running.task.await.unwrap().unwrap();
}

#[test]
fn stats_list_what_needs_attention_and_the_names_of_all_event_kinds() {
    let mut site = Site::of(Timestamp::now(), |_, _| {});
    let stats = |site: &mut Site| site.engine.stats(&stats_at(site.moment()), site.moment()).unwrap();
    assert_eq!(stats(&mut site).attention, [""; 0]);
    site.kernel.remove("eth0");
    site.pass(3);
    let stats = stats(&mut site);
    assert!(stats.attention[0].starts_with("eth0 IS NOT ATTACHED: "), "{:?}", stats.attention);
    assert_eq!(stats.attention, ratelimit_view::attention(&stats));
    assert_eq!(stats.events.kinds, EventKind::ALL.map(EventKind::label));
}
