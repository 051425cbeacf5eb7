//! Tests that each kind of event is reported once, where it happens, with the user who caused it.

use super::grants::request;
use super::site::Site;
use super::*;
use ratelimit_control::proto::{ApplyRequest, ChargeRequest, EventsOf, ModeWord};
use ratelimit_policy::desired::Grant;
use ratelimit_report::event::{Event as Told, EventKind};

/// Returns the user and the text of each event of a kind.
async fn told(site: &Site, kind: EventKind) -> Vec<(Option<String>, String)> {
    let asked = EventsOf { kind: Some(kind), ..EventsOf::default() };
    let report = site.client.events(&asked).await.unwrap();
    report.events.into_iter().map(|Told { by, detail, .. }| (by, detail)).collect()
}

fn root(detail: impl Into<String>) -> (Option<String>, String) {
    (Some("root".to_owned()), detail.into())
}

fn itself(detail: impl Into<String>) -> (Option<String>, String) {
    (None, detail.into())
}

#[tokio::test(start_paused = true)]
async fn a_trial_is_told_when_it_begins_is_kept_rolled_back_or_over_and_after_a_restart() {
    let mut site = Site::new(3);
    site.start().await;
    let file = site.file().display().to_string();
    let minute = ApplyRequest { confirm_seconds: Some(60), ..ApplyRequest::default() };
    let began = || root(format!("{file} is on trial for 60 s"));
    site.write("9");
    site.client.apply(&minute).await.unwrap();
    site.client.confirm().await.unwrap();
    site.write("8");
    site.client.apply(&minute).await.unwrap();
    site.client.roll_back().await.unwrap();
    site.write("7");
    site.client.apply(&minute).await.unwrap();
    site.pass(60).await;
    let expected = [
        began(),
        root(format!("{file} is confirmed by root")),
        began(),
        itself(format!("{file} is rolled back: root said so")),
        began(),
        itself(format!("{file} is rolled back: it was not confirmed in time")),
    ];
    assert_eq!(told(&site, EventKind::Trial).await, expected);
    site.write("6");
    site.client.apply(&minute).await.unwrap();
    site.kill().await;
    site.start().await;
    site.pass(1).await;
    let resumed = told(&site, EventKind::Trial).await;
    let [(None, still)] = resumed.as_slice() else { panic!("{resumed:?}") };
    assert!(still.starts_with(&format!("{file} is still on trial: `ratelimitd confirm` within ")), "{still}");
    site.pass(60).await;
    site.restart().await;
    site.pass(1).await;
    let over = format!("{file} is rolled back: it was not confirmed before the daemon started again");
    assert_eq!(told(&site, EventKind::Trial).await, [itself(over)]);
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_reload_is_told_with_what_it_changes_or_why_it_is_refused_and_so_is_a_mode() {
    let mut site = Site::new(3);
    site.start().await;
    site.write("9");
    site.client.reload().await.unwrap();
    site.client.reload().await.unwrap();
    site.write("nine");
    site.client.reload().await.unwrap_err();
    site.client.mode(ModeWord::DryRun).await.unwrap();
    site.pass(1).await;
    let told = told(&site, EventKind::Reload).await;
    let expected = [
        "reload: limit of rule default: 3/5m -> 9/5m connections",
        "reload: no change",
        "reload refused, nothing was changed: `nine` is no limit",
    ];
    assert_eq!(told[..3], expected.map(root));
    assert!(told[3].1.starts_with("DRY RUN by root since ") && told.len() == 4, "{told:?}");
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_falls_back_is_told_and_when_a_command_or_another_file_ends_that() {
    let mut site = Site::new(1);
    site.write("1 breaker=90");
    site.start().await;
    let hammer = async |site: &Site| {
        for _ in 0..20 {
            for _ in 0..20 {
                site.reason("198.51.100.7");
            }
            sleep(SUPERVISE_EVERY).await;
        }
    };
    hammer(&site).await;
    site.client.mode(ModeWord::Enforce).await.unwrap();
    hammer(&site).await;
    site.write("2 breaker=90");
    site.client.reload().await.unwrap();
    site.pass(1).await;
    let told = told(&site, EventKind::Breaker).await;
    assert_eq!(told.len(), 4, "{told:?}");
    for fell in [&told[0], &told[2]] {
        assert!(fell.0.is_none() && fell.1.starts_with("rule default falls back to dry run: it dropped "), "{fell:?}");
    }
    assert_eq!(told[1], root("rule default follows the configuration again, by command of root"));
    let loaded = format!("rule default follows the configuration again: {} was loaded", site.file().display());
    assert_eq!(told[3], itself(loaded));
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_interface_is_told_when_it_is_attached_gone_back_and_detached_by_a_user() {
    let mut running = start(None, |config| config.interfaces.push("eth1".into()), |_| ConfigSource::Flags).await;
    let look = || sleep(SUPERVISE_EVERY + Duration::from_millis(1));
    look().await;
    running.kernel.remove("eth1");
    running.events.send(Event::LinksChanged).await.unwrap();
    look().await;
    running.kernel.add("eth1", XdpMode::Native);
    running.events.send(Event::LinksChanged).await.unwrap();
    look().await;
    running.client.detach(Some("eth1")).await.unwrap();
    look().await;
    let events = running.client.events(&EventsOf::default()).await.unwrap().events;
    let told: Vec<_> = events.iter().map(|of| (of.kind, of.by.as_deref(), of.detail.as_str())).collect();
    let expected = [
        (EventKind::Attach, None, "eth0 is protected"),
        (EventKind::Attach, None, "eth1 is protected"),
        (EventKind::Detach, None, "eth1 is NOT PROTECTED any more"),
        (EventKind::Attach, None, "eth1 is protected"),
        (EventKind::Detach, Some("root"), "detached from eth1 by root"),
    ];
    assert_eq!(told, expected);
    let client = running.client.clone();
    let (last, detached) = tokio::join!(
        async {
            let mut last = None;
            let kind = Some(EventKind::Detach);
            let asked = EventsOf { kind, since: Some(Timestamp::now()), ..EventsOf::default() };
            let _ended = client
                .follow(&asked, |line| {
                    last = Some(line);
                    std::ops::ControlFlow::Continue(())
                })
                .await;
            last
        },
        async {
            sleep(Duration::from_millis(1)).await;
            running.client.detach(None).await.unwrap()
        }
    );
    assert!(detached.stopping);
    let Some(ratelimit_control::client::Followed::Event(last)) = last else { panic!("{last:?}") };
    assert_eq!(last.by.as_deref(), Some("root"));
    assert!(last.detail.starts_with("detached from eth0 by root; "), "{}", last.detail);
    assert!(running.heard().len() > 1);
    running.task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn user_changes_are_reported_with_the_user_who_made_them() {
    let mut site = Site::new(3);
    site.start().await;
    site.client.grant(Grant::Exempt, &request("192.0.2.7")).await.unwrap();
    site.client.unallow("192.0.2.7").await.unwrap();
    site.client.reset(address("192.0.2.8")).await.unwrap();
    let charge = ChargeRequest { source: address("192.0.2.9"), rule: "default".into(), amount: 2 };
    site.client.charge(&charge).await.unwrap();
    let of = async |kind| told(&site, kind).await.pop().unwrap();
    let allowed = of(EventKind::Allow).await;
    assert!(
        allowed.0.as_deref() == Some("root") && allowed.1.starts_with("192.0.2.7/32 allowed until "),
        "{allowed:?}"
    );
    assert_eq!(of(EventKind::Unallow).await, root("192.0.2.7/32 no longer allowed by root: 1 exemption lifted"));
    let reset = root("192.0.2.8/32: counters reset by root, 0 windows and 0 bans removed");
    assert_eq!(of(EventKind::Reset).await, reset);
    assert_eq!(of(EventKind::Charge).await, root("192.0.2.9 charged 2 by rule \"default\", by root"));
    site.stop().await;
}
