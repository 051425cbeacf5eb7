//! Tests of the number of sources in statistics.

use super::*;
use ratelimit_report::snapshot::TOP_DEFAULT;

#[tokio::test(start_paused = true)]
async fn stats_list_twenty_sources_by_default_and_all_on_request() {
    let running = start(None, |config| config.policy.rules[0].limits[0].amount = 1000, |_| ConfigSource::Flags).await;
    for source in 1..=50 {
        running.kernel.packet("eth0", opening(&format!("198.51.100.{source}")));
    }
    let few = running.client.stats().await.unwrap();
    assert_eq!((few.top.map(|top| top.len()), few.sources.in_use), (Some(TOP_DEFAULT), 50));
    let all = running.client.call(&Stats::of_all_sources()).await.unwrap();
    let all = all.top.unwrap();
    let sources: Vec<&str> = all.iter().map(|of| of.source.as_str()).collect();
    let expected: Vec<String> = (1..=50).map(|source| format!("198.51.100.{source}")).collect();
    assert_eq!(sources, expected, "equal sources are sorted by address");
    let again = running.client.stats().await.unwrap();
    assert_eq!(again.top.map(|top| top.len()), Some(TOP_DEFAULT), "the larger answer is not cached");
    running.stop().await;
}
