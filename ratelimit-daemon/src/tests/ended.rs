//! Tests that whatever ends a ban or a refusal ends its episode in the history, once, with the time and the cause.

use super::site::{SECOND_NS, Site};
use super::*;
use ratelimit_control::proto::{HistoryOf, ModeWord};
use ratelimit_history::{Filter, Reader};
use ratelimit_policy::config::Safety;
use ratelimit_report::history::{Episode, HistoryReport};

const SOURCE: &str = "192.0.2.7";

/// Starts a daemon that keeps a history and refuses one source.
async fn refusing(text: &str, safety: Safety) -> Site {
    let mut site = Site::new(1).with_safety(safety);
    site.write(text);
    site.start().await;
    assert_eq!([site.reason(SOURCE), site.reason(SOURCE)], ["within_limit", "over_limit"]);
    let open = episodes(&site, |all| all.len() == 1).await;
    assert_eq!((open[0].ended, open[0].cause.as_deref()), (None, None), "it goes on");
    site
}

/// Returns the source's episodes once they satisfy the condition. The history's thread has a clock of its own.
async fn episodes(site: &Site, is_so: impl Fn(&[Episode]) -> bool) -> Vec<Episode> {
    let asked = HistoryOf { prefix: SOURCE.to_owned(), ..HistoryOf::default() };
    let mut last = Vec::new();
    for _ in 0..200 {
        match site.client.call(&asked).await {
            Ok(HistoryReport { episodes, .. }) if is_so(&episodes) => return episodes,
            Ok(HistoryReport { episodes, .. }) => last = episodes,
            Err(_) => {}
        }
        site.pass(0).await;
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{last:?}")
}

/// Returns the cause of the end of the only episode.
async fn cause(site: &Site) -> String {
    let all = episodes(site, |all| all.iter().any(|of| of.ended.is_some())).await;
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].cause.clone().unwrap()
}

fn plain() -> Safety {
    Safety { without_daemon_ns: None, ..Safety::default() }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_mode_or_of_the_limit_ends_what_is_refused() {
    for (word, expected) in [(ModeWord::Panic, "panic"), (ModeWord::DryRun, "dry_run")] {
        let mut site = refusing("1 history=on", plain()).await;
        let _report = site.client.mode(word).await.unwrap();
        assert_eq!(cause(&site).await, expected);
        site.stop().await;
    }
    let mut site = refusing("1 history=on", plain()).await;
    site.write("2 history=on");
    site.client.reload().await.unwrap();
    assert_eq!(cause(&site).await, "limit_changed");
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn detach_ends_what_is_refused_in_the_history_on_disk() {
    let mut site = refusing("1 history=on", plain()).await;
    let _report = site.client.detach(None).await.unwrap();
    let _ended = site.told.recv().await;
    let database = site.state("history.db");
    let story = || {
        Reader::open(&database)
            .unwrap()
            .history(ipnet::IpNet::from(SOURCE.parse::<std::net::IpAddr>().unwrap()), &Filter::default())
    };
    for _ in 0..200 {
        if story().unwrap().episodes[0].ended.is_some() {
            break;
        }
        sleep(Duration::from_millis(20)).await;
        std::thread::sleep(Duration::from_millis(20));
    }
    let all = story().unwrap().episodes;
    assert_eq!((all.len(), all[0].cause.as_deref()), (1, Some("detached")));
}

#[tokio::test(start_paused = true)]
async fn restarts_with_another_policy_or_after_a_lapse_end_earlier_refusals() {
    let mut site = refusing("1 history=on", plain()).await;
    site.restart().await;
    site.pass(1).await;
    assert!(episodes(&site, |all| all.len() == 1).await[0].ended.is_none(), "a restart alone ends nothing");
    site.stop().await;
    site.write("2 history=on");
    site.start().await;
    assert_eq!(cause(&site).await, "limit_changed");
    site.stop().await;

    let mut site = refusing("1 history=on", Safety { without_daemon_ns: Some(60 * SECOND_NS), ..plain() }).await;
    site.kill().await;
    site.kernel.advance(90 * SECOND_NS);
    site.start().await;
    assert_eq!(cause(&site).await, "without_daemon");
    site.stop().await;
}
