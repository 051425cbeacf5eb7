//! Tests of rounds of observation that the daemon runs by itself, and of its suggestions.

use ratelimit_common::time::SECOND_NS;

use super::*;
use ratelimit_policy::config::lists::ListFile;
use ratelimit_policy::desired::Mode;
use ratelimit_report::snapshot::{LimitSuggestion, Observation, SuggestReport};

fn of_first(report: &SuggestReport) -> (&LimitSuggestion, &Observation) {
    let limit = &report.rules[0].limits[0];
    (limit, limit.observed.as_ref().expect("it is observed"))
}

/// Sends one packet of one source per minute.
async fn minutes(running: &Running, count: u64) {
    for _ in 0..count {
        running.kernel.packet("eth0", opening("198.51.100.7"));
        running.kernel.advance(60 * SECOND_NS);
        sleep(Duration::from_secs(60)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn rounds_are_taken_while_nobody_asks() {
    let running = start(None, |config| config.policy.rules[0].limits[0].amount = 1000, |_| ConfigSource::Flags).await;
    for _ in 0..25 {
        running.kernel.packet("eth0", opening("198.51.100.7"));
    }
    // The ring of eight buckets wraps around meanwhile.
    minutes(&running, 12).await;
    let report = running.client.suggest(None).await.unwrap();
    let (limit, observed) = of_first(&report);
    assert_eq!((observed.sources, observed.missed_buckets, observed.wanted), (1, 0, 37));
    assert_eq!(observed.busiest_window.map(|of| of.max), Some(31), "26 in the first minute, and five after it");
    assert_eq!(observed.seconds, 720.0);
    assert_eq!(observed.candidates.iter().map(|of| of.sources_blocked).sum::<u64>(), 0);
    assert!(limit.proposal.is_none() && limit.notes[0].contains("fewer than 20 sources"), "{limit:?}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_the_observation_and_counts_new_candidates_anew() {
    let dry_run = |config: &mut Config| config.policy.rules[0].mode = Mode::DryRun;
    let running = start(None, dry_run, |config| {
        let mut next = config.clone();
        let limit = &mut next.policy.rules[0].limits[0];
        limit.amount = 4;
        let candidates = [20, 30].map(|amount| ratelimit_policy::desired::Limit { amount, ..*limit });
        next.candidates = vec![("default".to_owned(), candidates.to_vec())];
        file([Ok(next.clone()), Ok(next)])
    })
    .await;
    for _ in 0..25 {
        running.kernel.packet("eth0", opening("198.51.100.7"));
    }
    minutes(&running, 3).await;
    let before = running.client.suggest(None).await.unwrap();
    assert_eq!(of_first(&before).1.candidates.iter().map(|of| of.amount).collect::<Vec<_>>(), [1, 3, 6, 12, 24, 48]);
    let changes = running.client.reload().await.unwrap().changes;
    let candidates =
        "candidates of rule default: the default ones -> 20/5m connections, 30/5m connections, counters reset";
    assert_eq!(changes, ["limit of rule default: 3/5m -> 4/5m connections", candidates]);
    assert!(running.client.reload().await.unwrap().changes.is_empty());
    minutes(&running, 1).await;
    let after = running.client.suggest(Some("default")).await.unwrap();
    let (before, after) = (of_first(&before).1, of_first(&after).1);
    assert_eq!((after.since, after.sources), (before.since, 1));
    assert_eq!(after.busiest_window.map(|of| of.max), Some(29), "the window goes on over the reload");
    assert!(after.candidates_since > before.candidates_since);
    let blocked: Vec<_> = after.candidates.iter().map(|of| (of.amount, of.sources_blocked, of.blocked)).collect();
    assert_eq!(blocked, [(20, 1, 1), (30, 0, 0)]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_memory_is_bounded_by_the_number_of_sources_that_are_remembered() {
    let running = start(None, |config| config.max_sources = 2, |_| ConfigSource::Flags).await;
    for last in 1..=5 {
        running.kernel.packet("eth0", opening(&format!("198.51.100.{last}")));
    }
    let report = running.client.suggest(None).await.unwrap();
    let (limit, observed) = of_first(&report);
    assert_eq!((observed.sources, observed.sources_not_observed), (2, 3));
    assert!(limit.notes.iter().any(|note| note.starts_with("at least 3 more sources")), "{limit:?}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_there_is_not_is_said_with_those_that_there_are() {
    let running = start_from_flags().await;
    let error = running.client.suggest(Some("login")).await.unwrap_err();
    assert_eq!(error.to_string(), "there is no rule login; the only rule is default; type: --rule default");
    running.kernel.refuse_read();
    running.client.suggest(None).await.unwrap_err();
    running.kernel.permit_read();
    sleep(Duration::from_secs(60)).await;
    assert!(running.client.suggest(None).await.is_ok(), "it goes on where it can read again");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn sources_over_a_limit_are_reported_by_prefix_and_by_list_file() {
    let listed = |config: &mut Config| {
        config.policy.rules[0].mode = Mode::DryRun;
        let prefixes = vec!["198.51.100.0/25".parse().unwrap()].into();
        config.list_files =
            vec![ListFile { path: "crawlers.txt".into(), named_by: "list crawlers".to_owned(), prefixes }];
    };
    let running = start(None, listed, |_| ConfigSource::Flags).await;
    for source in ["198.51.100.7", "198.51.100.8", "198.51.100.200", "192.0.2.1"] {
        for _ in 0..25 {
            running.kernel.packet("eth0", opening(source));
        }
    }
    minutes(&running, 1).await;
    let report = running.client.suggest(None).await.unwrap();
    let (limit, _) = of_first(&report);
    let prefixes: Vec<_> = limit.prefixes.iter().map(|of| (&*of.prefix, of.sources)).collect();
    let lists: Vec<_> = limit.lists.iter().map(|of| (&*of.file, of.sources)).collect();
    assert_eq!((prefixes, lists), (vec![("198.51.100.0/24", 3)], vec![("crawlers.txt", 2)]));
    running.stop().await;
}
