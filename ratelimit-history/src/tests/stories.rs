//! Tests of the answers to queries.

use ratelimit_report::history::{Outcome, SeriesReport};

use super::*;
use crate::{Period, QueryError, Total};

#[test]
fn the_story_of_an_address_has_its_episodes_and_what_was_done_about_it_newest_first() {
    let site = Site::new();
    let recorder = site.recorder();
    recorder.record(site.event(EventKind::Refused, "192.0.2.1"));
    recorder.record(site.event(EventKind::Refused, "192.0.2.2"));
    site.pass(10);
    recorder.progress(site.progress("192.0.2.1", 40));
    let until = Some(site.now() + Duration::from_secs(600));
    recorder.record(Event { until, ..site.event(EventKind::Ban, "192.0.2.1") });
    site.pass(20);
    let by = Some("root (alice)".to_owned());
    let reason = Some("a customer".to_owned());
    recorder.record(Event { by: by.clone(), reason: reason.clone(), ..site.event(EventKind::Unblock, "192.0.2.1") });
    site.pass(5);
    recorder.record(Event { by: by.clone(), ..site.event(EventKind::Deny, "192.0.2.0/24") });
    recorder.record(site.event(EventKind::Refused, "192.0.2.1"));
    close(recorder);

    let story = site.story("192.0.2.1");
    assert_eq!((story.schema, story.source.as_str(), story.more), (1, "192.0.2.1", false));
    let episodes: Vec<_> =
        story.episodes.iter().map(|of| (of.reason.as_str(), of.ended.is_none(), of.packets)).collect();
    assert_eq!(episodes, [("over_limit", true, 0), ("banned", false, 40)]);
    let first = &story.episodes[1];
    assert_eq!((first.bytes, first.peak, first.limit.as_str()), (2_400, 1_000, "1000/5m requests"));
    assert_eq!(first.ended.unwrap().as_second() - first.began.as_second(), 30);
    let acts: Vec<_> = story.acts.iter().map(|of| (of.what.as_str(), of.source.as_deref().unwrap())).collect();
    assert_eq!(acts, [("deny", "192.0.2.0/24"), ("unblock", "192.0.2.1")]);
    assert_eq!((&story.acts[1].by, &story.acts[1].reason), (&by, &reason));
    assert_eq!(site.story("192.0.2.0/24").episodes.len(), 3);
    assert_eq!(site.story("192.0.2.0/31").episodes.len(), 2);
    assert_eq!(site.story("198.51.100.0/24").episodes.len(), 0);
}

#[test]
fn an_address_within_a_source_of_ipv6_has_that_sources_story() {
    let site = Site::new();
    let recorder = site.recorder();
    recorder.record(site.event(EventKind::Refused, "2001:db8:1:2::/64"));
    close(recorder);
    assert_eq!(site.story("2001:db8:1:2::77").episodes[0].source, "2001:db8:1:2::/64");
    assert_eq!(site.story("2001:db8:1:3::77").episodes.len(), 0);
}

#[test]
fn a_story_is_of_the_time_rule_and_reason_that_are_asked_for_and_at_most_so_long() {
    let site = Site::new();
    let recorder = site.recorder();
    for rule in ["a", "b", "c"] {
        recorder.record(Event { rule: Some(rule.to_owned()), ..site.event(EventKind::Refused, "192.0.2.1") });
        site.pass(1_000);
        recorder.record(site.event(EventKind::Reset, "192.0.2.1"));
        recorder.record(site.event(EventKind::WouldRefuse, "192.0.2.1"));
    }
    close(recorder);
    let reader = site.reader();
    let rules = |filter: Filter| {
        let of_rules = Filter { rows: filter.rows.or(Some(100)), ..filter };
        let story = reader.history(net("192.0.2.1"), &of_rules).unwrap();
        story.episodes.into_iter().filter(|of| !of.would).map(|of| of.rule).collect::<String>()
    };
    let at = |seconds: i64| Some(Timestamp::from_millisecond(START + seconds * 1_000).unwrap());
    assert_eq!(rules(Filter::default()), "cba");
    assert_eq!(rules(Filter { since: at(1_500), ..Filter::default() }), "cb");
    assert_eq!(rules(Filter { until: at(1_500), ..Filter::default() }), "ba");
    assert_eq!(rules(Filter { rule: Some("b".to_owned()), ..Filter::default() }), "b");
    assert_eq!(rules(Filter { reason: Some("dry_run".to_owned()), ..Filter::default() }), "");
    let one = reader.history(net("192.0.2.1"), &Filter { rows: Some(1), ..Filter::default() }).unwrap();
    assert!(one.more && one.episodes.len() == 1 && one.acts.len() == 1);
    assert!(one.more_episodes && one.more_acts);
    let of_one_rule = |rule: &str| {
        let filter = Filter { rows: Some(1), rule: Some(rule.to_owned()), ..Filter::default() };
        let of = reader.history(net("192.0.2.1"), &filter).unwrap();
        (of.more, of.more_episodes, of.more_acts)
    };
    // Rule a has one refusal. Rule web has three of dry run, and as many acts.
    assert_eq!(of_one_rule("a"), (false, false, false));
    assert_eq!(of_one_rule("web"), (true, true, true));
    recorder_of_acts(&site);
    let of = site.reader().history(net("192.0.2.9"), &Filter { rows: Some(1), ..Filter::default() }).unwrap();
    assert_eq!((of.more, of.more_episodes, of.more_acts), (true, false, true));
}

fn recorder_of_acts(site: &Site) {
    let recorder = site.recorder();
    recorder.record(site.event(EventKind::Deny, "192.0.2.9"));
    recorder.record(site.event(EventKind::Unblock, "192.0.2.9"));
    close(recorder);
}

#[test]
fn the_worst_of_a_day_are_those_with_the_most_packets_and_dry_run_comes_after() {
    let site = Site::new();
    let recorder = site.recorder();
    recorder.record(site.event(EventKind::Refused, "192.0.2.9"));
    site.pass(2 * 86_400);
    for (source, packets) in [("192.0.2.1", 5), ("192.0.2.2", 50), ("192.0.2.3", 7)] {
        recorder.record(site.event(EventKind::Refused, source));
        recorder.progress(site.progress(source, packets));
    }
    recorder.record(site.event(EventKind::WouldRefuse, "192.0.2.4"));
    recorder.progress(Progress { would: true, ..site.progress("192.0.2.4", 900) });
    site.pass(1);
    recorder.record(site.event(EventKind::Unblock, "192.0.2.1"));
    recorder.record(Event { rule: Some("ssh".to_owned()), ..site.event(EventKind::Refused, "192.0.2.1") });
    close(recorder);

    let worst = site.reader().worst(&Filter::default(), site.now()).unwrap();
    let got: Vec<_> = worst.sources.iter().map(|of| (of.source.as_str(), of.packets, of.episodes, of.would)).collect();
    let wanted = [
        ("192.0.2.2", 50, 1, false),
        ("192.0.2.3", 7, 1, false),
        ("192.0.2.1", 5, 2, false),
        ("192.0.2.4", 900, 1, true),
    ];
    assert_eq!(got, wanted);
    assert_eq!((worst.sources[2].rules.join(" "), worst.sources[2].ended), ("ssh web".to_owned(), None));
    let two = site.reader().worst(&Filter { rows: Some(3), ..Filter::default() }, site.now()).unwrap();
    assert_eq!((two.sources.len(), two.omitted), (3, 1));
}

#[test]
fn a_chart_has_each_step_and_a_gap_only_where_nothing_was_recorded() {
    let site = Site::new();
    let recorder = site.recorder();
    let total = |outcome, packets| Total {
        rule: "web".to_owned(),
        reason: if outcome == Outcome::Admitted { "within_limit" } else { "over_limit" }.to_owned(),
        outcome,
        packets,
        bytes: packets * 100,
    };
    recorder.totals(site.now(), vec![total(Outcome::Admitted, 10), total(Outcome::Dropped, 2)]);
    site.pass(61);
    recorder.totals(site.now(), vec![total(Outcome::Admitted, 20)]);
    recorder.totals(site.now(), vec![total(Outcome::Admitted, 1)]);
    site.pass(120);
    recorder.totals(site.now(), vec![total(Outcome::Admitted, 40)]);
    close(recorder);

    let series = |period| site.reader().series(period, site.now()).unwrap();
    let packets =
        |of: &SeriesReport, outcome| of.lines.iter().find(|line| line.outcome == outcome).unwrap().packets.clone();
    let minutes = series(Period::FiveMinutes);
    assert_eq!(packets(&minutes, Outcome::Admitted), [None, Some(10), Some(21), None, Some(40)]);
    assert_eq!(packets(&minutes, Outcome::Dropped), [None, Some(2), Some(0), None, Some(0)]);
    assert_eq!(minutes.lines[1].bytes[1], Some(1_000));
    assert_eq!(minutes.until.as_second() - minutes.since.as_second(), 300);
    for (period, steps, step) in [(Period::Hour, 60, 60), (Period::Day, 96, 900), (Period::Month, 120, 21_600)] {
        let series = series(period);
        let all = packets(&series, Outcome::Admitted);
        assert_eq!((all.len(), all.iter().flatten().sum::<u64>(), series.step_seconds), (steps, 71, step));
    }
}

#[test]
fn totals_as_large_as_can_be_neither_fail_nor_wrap() {
    let site = Site::new();
    let recorder = site.recorder();
    let row = Total {
        rule: String::new(),
        reason: "x".to_owned(),
        outcome: Outcome::Would,
        packets: u64::MAX,
        bytes: u64::MAX,
    };
    for _ in 0..3 {
        recorder.totals(site.now(), vec![row.clone()]);
    }
    written(&recorder);
    let series = site.reader().series(Period::Hour, site.now()).unwrap();
    assert!(series.lines[0].packets[59].unwrap() > u64::MAX / 4);
}

#[test]
fn without_a_database_a_reader_says_so() {
    let site = Site::new();
    assert!(matches!(Reader::open(&site.path()), Err(QueryError::Missing(_))));
}

#[test]
fn a_reader_sees_what_is_written_while_it_is_open_and_cannot_write() {
    let site = Site::new();
    let recorder = site.recorder();
    recorder.record(site.event(EventKind::Refused, "192.0.2.1"));
    written(&recorder);
    let reader = site.reader();
    recorder.record(site.event(EventKind::Refused, "192.0.2.2"));
    written(&recorder);
    assert_eq!(reader.history(net("192.0.2.2"), &Filter::default()).unwrap().episodes.len(), 1);
    close(recorder);
}
