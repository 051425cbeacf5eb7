//! Tests that the history follows the configuration, and that each query is answered.

use super::grants::request;
use super::site::Site;
use super::*;
use ratelimit_control::proto::{ApplyRequest, Forget, HistoryOf};
use ratelimit_policy::desired::Grant;
use ratelimit_report::history::{Act, HistoryReport};

async fn deny(site: &Site, prefix: &str) {
    let _report = site.client.grant(Grant::Denied, &request(prefix)).await.unwrap();
}

/// Waits until the history has the given number of acts, and returns them.
async fn remembered(site: &Site, prefix: &str, acts: usize) -> Vec<Act> {
    let asked = HistoryOf { prefix: prefix.to_owned(), ..HistoryOf::default() };
    let story = async || loop {
        match site.client.call(&asked).await {
            Ok(HistoryReport { acts: found, .. }) if found.len() == acts => break found,
            Ok(_) | Err(ClientError::Refused(_)) => sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error}"),
        }
    };
    timeout(Duration::from_secs(30), story()).await.unwrap()
}

async fn reload(site: &Site, text: &str) -> Vec<String> {
    site.write(text);
    site.client.reload().await.unwrap().changes
}

#[tokio::test]
async fn a_reload_changes_the_historys_address_mask_and_whether_it_is_on() {
    let mut site = Site::new(3);
    site.write("3 history=on");
    site.start().await;
    deny(&site, "192.0.2.7").await;
    assert_eq!(reload(&site, "3 history=on mask=24").await, ["history of IPv4 addresses: /32 -> /24"]);
    // The next step opens the history again.
    sleep(2 * TELL_EVERY).await;
    deny(&site, "198.51.100.7").await;
    let masked = remembered(&site, "198.51.100.0/24", 1).await;
    assert_eq!(masked[0].source.as_deref(), Some("198.51.100.0/24"));
    assert_eq!(remembered(&site, "192.0.2.7", 1).await[0].source.as_deref(), Some("192.0.2.7"), "what was kept stays");

    assert_eq!(reload(&site, "3 mask=24").await, ["history: on -> off"]);
    sleep(2 * TELL_EVERY).await;
    deny(&site, "203.0.113.7").await;
    let asked = HistoryOf { prefix: "192.0.2.7".into(), ..HistoryOf::default() };
    let (kind, why) = Site::refusal(site.client.call(&asked).await);
    assert!(kind == ProblemKind::NotFound && why.contains("history is off"), "{why}");
    assert!(site.client.stats().await.unwrap().history.is_none());

    let moved = site.directory.path().join("state/moved.db");
    let changes = reload(&site, &format!("3 history=on file={}", moved.display())).await;
    let file = format!("history file: in the state directory -> {}", moved.display());
    let on = ["history: off -> on", file.as_str(), "history of IPv4 addresses: /24 -> /32"];
    assert_eq!(changes, on);
    sleep(2 * TELL_EVERY).await;
    deny(&site, "203.0.113.8").await;
    let acts = remembered(&site, "203.0.113.0/24", 1).await;
    assert_eq!(acts[0].source.as_deref(), Some("203.0.113.8"), "what was done while it was off is in none");
    assert_eq!(reload(&site, "3 history=on").await.len(), 1);
    sleep(2 * TELL_EVERY).await;
    assert_eq!(remembered(&site, "192.0.2.7", 1).await.len(), 1, "the first file is read again");
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_of_safety_alone_is_told_and_holds() {
    let around = || Around { gateways: vec![address("192.0.2.1")], ..Around::default() };
    let mut site = Site::new(1).with_around(around);
    site.start().await;
    assert_eq!(site.reason("192.0.2.1"), "exempt");
    let changes = reload(&site, "1 breaker=90 gateway=off").await;
    assert_eq!(changes, ["gateways: allowed -> NOT allowed", "breaker: off -> more than 90% dropped for 30s"]);
    site.pass(1).await;
    assert_eq!(site.reason("192.0.2.1"), "within_limit");
    assert_eq!(reload(&site, "1 breaker=90 gateway=off").await, [""; 0]);
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_of_history_alone_can_be_on_trial_and_is_rolled_back() {
    let mut site = Site::new(3);
    site.write("3 history=on");
    site.start().await;
    site.write("3");
    let minute = ApplyRequest { confirm_seconds: Some(60), ..ApplyRequest::default() };
    let report = site.client.apply(&minute).await.unwrap();
    assert_eq!((report.changes, report.confirm_within_seconds), (vec!["history: on -> off".to_owned()], Some(60)));
    site.pass(1).await;
    assert!(site.client.stats().await.unwrap().history.is_none());
    site.client.roll_back().await.unwrap();
    site.pass(1).await;
    assert!(site.client.stats().await.unwrap().history.is_some());
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_user_who_has_a_source_erased_is_answered_also_where_the_disk_hangs() {
    let mut site = Site::new(3);
    std::fs::create_dir(site.directory.path().join("state")).unwrap();
    // Opening a FIFO for writing waits for a reader.
    site.write("3 history=on");
    nix::unistd::mkfifo(&site.state("history.db"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    site.start().await;
    site.pass(1).await;
    let (kind, why) = Site::refusal(site.client.call(&Forget { source: address("192.0.2.7") }).await);
    assert_eq!(kind, ProblemKind::Internal);
    let said = "the history is not erased: not done within 10 s: its disk is slow; it stays queued, so run the \
        command again to see whether it is done";
    assert_eq!(why, said);
    // Nothing else waits for the history either.
    deny(&site, "192.0.2.7").await;
    assert_eq!(site.reason("192.0.2.7"), "denied");
    site.stop().await;
}
