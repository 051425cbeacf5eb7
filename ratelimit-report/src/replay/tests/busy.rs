//! Tests of replays that name the busiest prefixes although no source is over a limit.

use super::*;
use crate::busy::{BusyPrefix, GroupReason};
use ratelimit_policy::config::lists::ListFile;

/// Returns a log of six minutes in which 40 visitors make 20 requests each, and 254 sources of one /24 make 12 each.
fn crawled() -> Vec<u8> {
    let visitors = (0..20).flat_map(|round| (0..40).map(move |at| (18 * round, format!("10.0.{at}.7"))));
    let crawlers = (0..12).flat_map(|round| (0..254).map(move |at| (30 * round, format!("203.0.113.{at}"))));
    let mut lines: Vec<(u64, String)> = visitors.chain(crawlers).collect();
    lines.sort();
    log(&lines.iter().map(|(at, source)| (*at, source.as_str())).collect::<Vec<_>>())
}

fn input(contents: Vec<u8>) -> Vec<Named> {
    vec![Named { name: "it".to_owned(), input: Box::new(std::io::Cursor::new(contents)) }]
}

fn lists() -> [ListFile; 1] {
    let prefixes = vec!["203.0.113.0/25".parse().unwrap()];
    [ListFile { path: "crawlers.list".into(), named_by: "--list".to_owned(), prefixes: prefixes.into() }]
}

/// Row of the crawler: six minutes at two requests a minute. A window of five minutes and the bucket before it contain
/// all of them.
const CRAWLER: [(&str, u64, u64, u64); 1] = [("203.0.113.0/24", 254, 12 * 254, 12 * 254)];

fn told(of: &[BusyPrefix]) -> Vec<(&str, u64, u64, u64)> {
    of.iter().map(|of| (of.prefix.as_str(), of.sources, of.busiest_window, of.wanted)).collect()
}

#[test]
fn replay_names_a_crawler_of_254_addresses_that_are_each_within_the_limit() {
    let policy = policy(vec![limit(100, Unit::Requests)]);
    let (replay, read, files) = play(input(crawled()), &asked(&policy), |kind| Replay::new(&policy, kind)).unwrap();
    let report = replay.finish(read, files, &lists());
    let of = &report.limits[0];
    assert_eq!((of.refused, of.sources_limited, of.prefixes.len(), of.lists.len()), (0, 0, 0, 0));
    assert_eq!(told(&of.busiest_prefixes), CRAWLER);
    let proposal = of.group_proposal.as_ref().unwrap();
    assert_eq!((proposal.prefixes, proposal.prefixes_over, proposal.reason), (41, 1, GroupReason::Gap));
    assert_eq!(proposal.limit, format!("{}/5m requests per /24,/48", proposal.amount));
    assert!((100..3_048).contains(&proposal.amount), "{proposal:?}");
    let listed: Vec<_> = of.busiest_lists.iter().map(|of| (of.file.as_str(), of.sources, of.wanted)).collect();
    assert_eq!(listed, [("crawlers.list", 128, 12 * 128)]);
}

#[test]
fn suggest_names_the_same_prefixes_and_proposes_the_same_limit() {
    let policy = policy(vec![limit(100, Unit::Requests)]);
    let begin = |kind| Replay::observing(&policy, kind, Present::Said);
    let (replay, read, files) = play(input(crawled()), &asked(&policy), begin).unwrap();
    let suggested = replay.suggest(read, files, &lists()).unwrap();
    let of = &suggested.report.rules[0].limits[0];
    assert_eq!(told(&of.busiest_prefixes), CRAWLER);
    let proposal = of.group_proposal.as_ref().unwrap();
    assert_eq!((proposal.prefixes, proposal.prefixes_over), (41, 1));
    let least = of.proposal.as_ref().map_or(100, |of| of.amount);
    assert!(proposal.amount >= least, "a source may not take more than its group: {proposal:?}");
    let listed: Vec<_> = of.busiest_lists.iter().map(|of| (of.file.as_str(), of.sources)).collect();
    assert_eq!(listed, [("crawlers.list", 128)]);
}

#[test]
fn the_proposed_limit_refuses_the_crawler_and_no_visitor() {
    let own = limit(100, Unit::Requests);
    let alone = policy(vec![own]);
    let (replay, read, files) = play(input(crawled()), &asked(&alone), |kind| Replay::new(&alone, kind)).unwrap();
    let amount = replay.finish(read, files, &[]).limits[0].group_proposal.as_ref().unwrap().amount;
    let group = ratelimit_policy::desired::Limit { amount, per: crate::busy::GROUPS, slot: 71, ..own };
    let both = policy(vec![own, group]);
    let report = replayed(&crawled(), &both).unwrap();
    let of = &report.limits[1];
    assert!(of.refused > 0 && report.limits[0].refused == 0, "{of:?}");
    assert!(of.limited.iter().all(|of| of.source.starts_with("203.0.113.")), "{of:?}");
    assert_eq!(of.busiest_prefixes, [], "a limit of groups names its own groups");
}
