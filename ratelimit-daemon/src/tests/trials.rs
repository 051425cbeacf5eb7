//! Tests of files on trial and their possible outcomes, and of what stops rules from dropping.

use super::grants::request;
use super::site::Site;
use super::*;
use ratelimit_common::time::Nanos;
use ratelimit_control::proto::{ApplyRequest, GrantRequest, ModeWord};
use ratelimit_datapath::Trial;
use ratelimit_policy::config::Safety;
use ratelimit_policy::desired::Grant;
use ratelimit_report::snapshot::Mode;

const MINUTE: ApplyRequest = ApplyRequest { file: None, confirm_seconds: Some(60), ssh: None, force: false };

async fn on_trial(site: &mut Site) {
    site.start().await;
    site.write("9");
    let report = site.client.apply(&MINUTE).await.unwrap();
    assert_eq!(report.changes, ["limit of rule default: 3/5m -> 9/5m connections"]);
    assert_eq!((report.confirm_within_seconds, site.amount()), (Some(60), 9));
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_is_confirmed_holds_for_good() {
    let mut site = Site::new(3);
    on_trial(&mut site).await;
    assert_eq!(site.client.stats().await.unwrap().confirm_within_seconds, Some(60.0));
    site.pass(50).await;
    assert_eq!(site.client.confirm().await.unwrap().file, site.file());
    assert!(!site.state("trial.json").exists());
    site.pass(60).await;
    assert_eq!((site.amount(), site.trial()), (9, Trial::None));
    assert_eq!(Site::refusal(site.client.confirm().await).0, ProblemKind::BadRequest);
    site.restart().await;
    assert_eq!(site.amount(), 9);
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_nobody_confirms_is_rolled_back_and_said_so() {
    let mut site = Site::new(3);
    on_trial(&mut site).await;
    site.pass(60).await;
    assert_eq!((site.amount(), site.trial()), (3, Trial::None), "what held before was applied for good");
    let config = site.client.stats().await.unwrap().config;
    assert!(config.last_reload_successful && config.error.is_none(), "no reload has failed: {config:?}");
    let rolled_back = config.rolled_back.unwrap();
    assert_eq!(
        (rolled_back.file, rolled_back.why),
        (site.file().display().to_string(), "it was not confirmed in time".into())
    );
    let metrics = site.client.metrics().await.unwrap();
    let has = |line: &str| metrics.lines().any(|has| has == line);
    assert!(has("ratelimitd_config_rolled_back 1") && has("ratelimitd_config_last_reload_successful 1"), "{metrics}");
    assert!(Site::refusal(site.client.confirm().await).1.contains("too late"));
    let (kind, why) = Site::refusal(site.client.reload().await);
    assert!(kind == ProblemKind::Conflict && why.contains("was tried and not confirmed"), "{why}");
    site.restart().await;
    assert_eq!(site.amount(), 3, "a restart does not put it in force silently");
    assert!(site.client.stats().await.unwrap().config.rolled_back.is_some(), "and says why");
    site.client.apply(&ApplyRequest::default()).await.unwrap();
    assert_eq!(site.amount(), 9, "a reload by name gets it");
    assert_eq!(site.client.stats().await.unwrap().config.rolled_back, None);
    site.restart().await;
    assert_eq!(site.amount(), 9);
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_that_comes_too_late_is_told_so() {
    let mut site = Site::new(3);
    on_trial(&mut site).await;
    site.kernel.advance(60 * site::SECOND_NS);
    let (kind, why) = Site::refusal(site.client.confirm().await);
    assert!(kind == ProblemKind::Conflict && why.contains("too late"), "{why}");
    assert_eq!((site.amount(), site.trial()), (3, Trial::None));
    site.stop().await;
}

/// Returns the limit that the daemon reports in one of several ways.
async fn shown(site: &Site, way: usize) -> u64 {
    let source = address("198.51.100.7");
    match way {
        0 => site.client.stats().await.unwrap().rules[0].limits[0].amount,
        1 => site.client.check(source).await.unwrap().limits[0].limit,
        2 => {
            site.client
                .explain(&ratelimit_policy::desired::Sent::to_port(source, None, "80").unwrap())
                .await
                .unwrap()
                .limits[0]
                .limit
        }
        3 => site.client.list().await.map(|_| site.amount()).unwrap(),
        _ => {
            let request = ratelimit_control::proto::GrantRequest { prefix: "203.0.113.7".into(), ..Default::default() };
            site.client.grant(ratelimit_policy::desired::Grant::Denied, &request).await.map(|_| site.amount()).unwrap()
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_trial_is_seen_at_once_however_it_is_looked_at() {
    for way in 0..5 {
        let mut site = Site::new(3);
        on_trial(&mut site).await;
        if way < 3 {
            assert_eq!(shown(&site, way).await, 9, "{way}");
        }
        site.kernel.advance(60 * site::SECOND_NS);
        assert_eq!(shown(&site, way).await, 3, "{way}");
        assert_eq!(site.trial(), Trial::None, "{way}: the daemon has put it in force");
        assert!(site.client.stats().await.unwrap().config.rolled_back.is_some());
        site.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn packets_go_back_without_a_daemon_and_the_next_one_stays_there() {
    let mut site = Site::new(3);
    on_trial(&mut site).await;
    site.kill().await;
    assert_eq!(site.amount(), 9);
    site.kernel.advance(60 * site::SECOND_NS);
    assert_eq!(site.amount(), 3, "the kernel needs nobody for it");
    site.start().await;
    assert_eq!((site.amount(), site.trial()), (3, Trial::None));
    assert!(site.client.stats().await.unwrap().config.rolled_back.is_some());
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_daemon_goes_on_with_the_trial() {
    for is_confirmed in [true, false] {
        let mut site = Site::new(3);
        on_trial(&mut site).await;
        site.kill().await;
        site.kernel.advance(20 * site::SECOND_NS);
        site.start().await;
        assert_eq!(site.amount(), 9);
        assert_eq!(site.client.stats().await.unwrap().confirm_within_seconds, Some(40.0));
        if is_confirmed {
            site.client.confirm().await.unwrap();
        }
        site.pass(40).await;
        let expected = if is_confirmed { 9 } else { 3 };
        assert_eq!((site.amount(), site.trial()), (expected, Trial::None));
        site.restart().await;
        assert_eq!(site.amount(), expected);
        site.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_changed_after_a_roll_back_is_loaded_as_any_other() {
    let mut site = Site::new(3);
    on_trial(&mut site).await;
    site.pass(60).await;
    site.write("7");
    site.client.reload().await.unwrap();
    assert_eq!(site.amount(), 7);
    assert!(!site.state("trial.json").exists());
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn while_a_file_is_on_trial_no_other_configuration_is_put_in_force() {
    let mut site = Site::new(3);
    on_trial(&mut site).await;
    site.write("7");
    for (kind, why) in [
        Site::refusal(site.client.reload().await),
        Site::refusal(site.client.apply(&MINUTE).await),
        Site::refusal(site.client.mode(ModeWord::Enforce).await),
    ] {
        assert!(kind == ProblemKind::Conflict && why.contains("is on trial for 60 s more: end that first"), "{why}");
    }
    let config = site.client.stats().await.unwrap().config;
    assert!(config.last_reload_successful && config.error.is_none(), "the file was not at fault: {config:?}");
    site.client.confirm().await.unwrap();
    site.stop().await;
}

/// End of a trial.
#[derive(Clone, Copy, Debug)]
enum End {
    Confirmed,
    RolledBack,
    Over,
    OverWithoutDaemon,
    /// The daemon is killed and returns before the trial expires.
    ConfirmedByTheNext,
}

#[tokio::test(start_paused = true)]
async fn grants_changed_during_a_trial_hold_at_once_and_whatever_its_end() {
    let sources = ["198.51.100.7", "192.0.2.7", "10.88.0.9", "10.88.1.9", "203.0.113.7", "203.0.113.200"];
    let expected = ["denied", "exempt", "within_limit", "within_limit", "exempt", "denied"];
    for end in [End::Confirmed, End::RolledBack, End::Over, End::OverWithoutDaemon, End::ConfirmedByTheNext] {
        let mut site = Site::new(30);
        site.start().await;
        site.client.grant(Grant::Denied, &request("10.88.0.9")).await.unwrap();
        site.client.grant(Grant::Exempt, &request("10.88.1.9")).await.unwrap();
        site.write("90 deny=203.0.113.0/24");
        site.client.apply(&MINUTE).await.unwrap();
        let report = site.client.grant(Grant::Denied, &request("198.51.100.7")).await.unwrap();
        assert_eq!(report.notes, ["a file is on trial: this holds whether it is confirmed or rolled back"]);
        for (grant, prefix) in
            [(Grant::Exempt, "192.0.2.7"), (Grant::Exempt, "203.0.113.7"), (Grant::Denied, "203.0.113.200")]
        {
            site.client.grant(grant, &request(prefix)).await.unwrap();
        }
        assert_eq!(site.client.unblock("10.88.0.9").await.unwrap().removed.len(), 1);
        assert_eq!(site.client.unallow("10.88.1.9").await.unwrap().removed.len(), 1);
        assert_eq!(site.trial(), Trial::Running(Nanos(ratelimit_datapath::fake::START.0 + 60 * site::SECOND_NS)));
        assert_eq!((sources.map(|of| site.reason(of)), site.reason("203.0.113.8")), (expected, "denied"), "{end:?}");
        match end {
            End::Confirmed => drop(site.client.confirm().await.unwrap()),
            End::RolledBack => drop(site.client.roll_back().await.unwrap()),
            End::Over => site.pass(60).await,
            End::OverWithoutDaemon => {
                site.kill().await;
                site.kernel.advance(60 * site::SECOND_NS);
                assert_eq!((sources.map(|of| site.reason(of)), site.reason("203.0.113.8")), (expected, "within_limit"));
                site.start().await;
            }
            End::ConfirmedByTheNext => {
                site.kill().await;
                site.start().await;
                site.client.grant(Grant::Denied, &request("198.51.100.77")).await.unwrap();
                site.client.confirm().await.unwrap();
                assert_eq!(site.reason("198.51.100.77"), "denied");
            }
        }
        let (amount, listed) = match end {
            End::Confirmed | End::ConfirmedByTheNext => (90, "denied"),
            End::RolledBack | End::Over | End::OverWithoutDaemon => (30, "within_limit"),
        };
        site.pass(60).await;
        for _ in 0..2 {
            assert_eq!((site.amount(), site.trial()), (amount, Trial::None), "{end:?}");
            assert_eq!((sources.map(|of| site.reason(of)), site.reason("203.0.113.8")), (expected, listed), "{end:?}");
            site.restart().await;
        }
        site.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_unblock_warns_of_denials_that_a_rollback_would_restore() {
    let mut site = Site::new(3);
    site.write("3 deny=203.0.113.0/24");
    site.start().await;
    site.write("9");
    site.client.apply(&MINUTE).await.unwrap();
    let report = site.client.unblock("203.0.113.7").await.unwrap();
    let again = "203.0.113.0/24 is denied again if the file on trial is rolled back, by the configuration before it";
    assert_eq!((report.still.len(), report.notes.as_slice()), (0, &[again.to_owned()][..]));
    assert_eq!(site.client.unblock("198.51.100.7").await.unwrap().notes, Vec::<String>::new());
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_ends_during_a_trial_yields_to_the_one_it_suspended() {
    let mut site = Site::new(3);
    site.start().await;
    site.client.grant(Grant::Denied, &request("198.51.100.7")).await.unwrap();
    let briefly = GrantRequest { seconds: Some(20), ..request("198.51.100.7") };
    site.client.grant(Grant::Exempt, &briefly).await.unwrap();
    site.write("9");
    site.client.apply(&MINUTE).await.unwrap();
    assert_eq!(site.reason("198.51.100.7"), "exempt");
    site.pass(20).await;
    assert_eq!((site.reason("198.51.100.7"), site.amount()), ("denied", 9));
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_refused_by_the_kernel_is_not_entered_and_the_trial_goes_on() {
    let mut site = Site::new(3);
    on_trial(&mut site).await;
    site.kernel.refuse_apply();
    assert!(site.client.grant(Grant::Denied, &request("198.51.100.7")).await.is_err());
    site.kernel.permit_apply();
    site.pass(2).await;
    assert_eq!((site.reason("198.51.100.7"), site.amount()), ("within_limit", 9));
    assert_eq!(site.client.list().await.unwrap().entries, []);
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_trial_is_rolled_back_by_command_at_once_and_no_reload_has_failed() {
    let mut site = Site::new(3);
    site.start().await;
    let (kind, why) = Site::refusal(site.client.roll_back().await);
    assert!(kind == ProblemKind::BadRequest && why == "there is nothing to roll back: no file is on trial", "{why}");
    site.write("9");
    site.client.apply(&MINUTE).await.unwrap();
    let report = site.client.clone().for_sudo_user(Some("alice")).roll_back().await.unwrap();
    assert_eq!((report.file, report.was_over), (site.file().display().to_string(), false));
    assert_eq!((site.amount(), site.trial()), (3, Trial::None));
    let config = site.client.stats().await.unwrap().config;
    assert!(config.last_reload_successful && config.error.is_none());
    assert_eq!(config.rolled_back.unwrap().why, "root (alice) said so");
    assert!(site.client.roll_back().await.unwrap().was_over, "what was wanted holds");
    assert!(Site::refusal(site.client.confirm().await).1.contains("too late"));
    assert_eq!(Site::refusal(site.client.reload().await).0, ProblemKind::Conflict, "it has to be asked for by name");
    site.restart().await;
    assert_eq!(site.amount(), 3);
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_cannot_be_tried_changes_nothing() {
    let mut site = Site::new(3);
    site.start().await;
    for (text, seconds, words) in [
        ("9", 4, "a trial lasts from 5 s to 24 h"),
        ("9 eth1", 60, "changes the interfaces"),
        ("many", 60, "`many` is no limit"),
    ] {
        site.write(text);
        let (_, why) = Site::refusal(
            site.client.apply(&ApplyRequest { confirm_seconds: Some(seconds), ..ApplyRequest::default() }).await,
        );
        assert!(why.contains(words), "{why}");
    }
    site.write("3");
    let report = site.client.apply(&MINUTE).await.unwrap();
    assert_eq!((report.confirm_within_seconds, report.notes.len()), (None, 1));
    site.write("9");
    site.kernel.refuse_apply();
    assert!(site.client.apply(&MINUTE).await.is_err());
    assert!(!site.state("trial.json").exists());
    assert_eq!((site.amount(), site.trial()), (3, Trial::None));
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_file_can_be_applied_and_a_restart_reads_the_own_one() {
    let mut site = Site::new(3);
    site.start().await;
    let other = site.directory.path().join("other.toml");
    std::fs::write(&other, "9").unwrap();
    let report = site.client.apply(&ApplyRequest { file: Some(other), ..ApplyRequest::default() }).await.unwrap();
    assert_eq!(site.amount(), 9);
    assert!(report.notes[0].starts_with("a restart and a reload read "), "{report:?}");
    site.restart().await;
    assert_eq!(site.amount(), 3);
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_own_file_is_known_by_whatever_path_it_is_named() {
    let mut site = Site::new(3);
    site.start().await;
    std::fs::create_dir(site.directory.path().join("beside")).unwrap();
    std::os::unix::fs::symlink(site.file(), site.directory.path().join("link.toml")).unwrap();
    for (text, path) in [("4", "beside/../ratelimitd.toml"), ("5", "link.toml")] {
        site.write(text);
        let request = ApplyRequest { file: Some(site.directory.path().join(path)), ..ApplyRequest::default() };
        let report = site.client.apply(&request).await.unwrap();
        assert_eq!((report.notes, site.amount().to_string().as_str()), (Vec::new(), text), "{path}");
    }
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn panic_passes_everything_and_counts_until_it_is_ended() {
    let mut site = Site::new(0);
    site.start().await;
    assert_eq!(site.reason("198.51.100.7"), "over_limit");
    assert!(site.client.mode(ModeWord::Panic).await.unwrap().changed);
    assert_eq!(site.reason("198.51.100.7"), "dry_run");
    site.write("0 ");
    site.client.reload().await.unwrap();
    assert_eq!(site.reason("198.51.100.7"), "dry_run", "a reload does not end it");
    site.restart().await;
    assert_eq!(site.reason("198.51.100.7"), "dry_run", "nor does a restart, where the filter outlives the daemon");
    let stats = site.client.stats().await.unwrap();
    assert!(stats.mode == Mode::DryRun && stats.hold.as_ref().is_some_and(|hold| hold.panic && hold.by == "root"));
    site.pass(2).await;
    let told: Vec<_> = std::iter::from_fn(|| site.told.try_recv().ok()).collect();
    assert!(told.iter().any(|line| line.contains("PANIC by root since")), "{told:?}");
    assert!(site.client.mode(ModeWord::Enforce).await.unwrap().changed);
    assert_eq!(site.reason("198.51.100.7"), "over_limit");
    assert!(!site.client.mode(ModeWord::Enforce).await.unwrap().changed);
    assert!(site.client.stats().await.unwrap().hold.is_none());
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn panic_in_a_trial_rolls_it_back_for_good() {
    let mut site = Site::new(0);
    site.start().await;
    site.write("1");
    site.client.apply(&MINUTE).await.unwrap();
    let report = site.client.mode(ModeWord::Panic).await.unwrap();
    assert_eq!(report.notes, ["the file that was on trial is rolled back"]);
    site.pass(60).await;
    assert_eq!((site.amount(), site.trial(), site.reason("198.51.100.7")), (0, Trial::None, "dry_run"));
    site.client.mode(ModeWord::Enforce).await.unwrap();
    assert_eq!((site.amount(), site.reason("198.51.100.7")), (0, "over_limit"));
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_drops_nearly_everything_falls_back_and_says_so() {
    let mut site = Site::new(1).with_safety(Safety { breaker: Some(90), ..Safety::default() });
    site.start().await;
    for _ in 0..20 {
        for _ in 0..20 {
            site.reason("198.51.100.7");
        }
        sleep(SUPERVISE_EVERY).await;
    }
    assert_eq!(site.reason("198.51.100.7"), "dry_run");
    assert_eq!(site.client.stats().await.unwrap().fallen_back, ["default"]);
    sleep(SUPERVISE_EVERY).await;
    let told: Vec<_> = std::iter::from_fn(|| site.told.try_recv().ok()).collect();
    assert!(told.iter().any(|line| line.contains("RULE default FELL BACK TO DRY RUN")), "{told:?}");
    site.kernel.refuse_apply();
    assert!(site.client.mode(ModeWord::Enforce).await.is_err());
    site.kernel.permit_apply();
    assert_eq!(
        site.client.stats().await.unwrap().fallen_back,
        ["default"],
        "a command that failed has changed nothing"
    );
    assert!(site.client.mode(ModeWord::Enforce).await.unwrap().changed);
    assert_eq!(site.reason("198.51.100.7"), "over_limit");
    assert!(site.client.stats().await.unwrap().fallen_back.is_empty());
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_drops_nearly_everything_is_rolled_back_at_once() {
    let mut site = Site::new(1_000_000).with_safety(Safety { breaker: Some(90), ..Safety::default() });
    site.start().await;
    let hammer = async |site: &Site, seconds: u64| {
        for _ in 0..seconds / 2 {
            for _ in 0..20 {
                site.reason("198.51.100.7");
            }
            site.kernel.advance(2 * site::SECOND_NS);
            sleep(SUPERVISE_EVERY).await;
        }
    };
    // Packets dropped before the trial do not count against it.
    hammer(&site, 20).await;
    site.write("1");
    site.client.apply(&ApplyRequest { confirm_seconds: Some(600), ..ApplyRequest::default() }).await.unwrap();
    hammer(&site, 20).await;
    assert_eq!(site.amount(), 1);
    hammer(&site, 20).await;
    assert_eq!((site.amount(), site.trial()), (1_000_000, Trial::None));
    assert_eq!(site.reason("198.51.100.7"), "within_limit", "the rule that held before goes on");
    let stats = site.client.stats().await.unwrap();
    assert!(stats.fallen_back.is_empty());
    let why = stats.config.rolled_back.unwrap().why;
    assert!(why.contains("rule default dropped"), "{why}");
    let told: Vec<_> = std::iter::from_fn(|| site.told.try_recv().ok()).collect();
    assert!(!told.iter().any(|line| line.contains("FELL BACK")), "{told:?}");
    assert!(Site::refusal(site.client.confirm().await).1.contains("too late"));
    site.stop().await;
}
