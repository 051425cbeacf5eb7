//! Tests of hosts with different settings: their warnings about each other, and acts that one host does not follow.

use super::*;

#[tokio::test]
async fn a_rule_that_no_other_host_has_and_another_number_of_hosts_are_said() {
    let Some(store) = Store::start("a_rule_that_no_other_host_has") else { return };
    let one = store.host().await;
    one.is_connected().await;
    let says = async |words: Option<&str>| {
        let said = async || one.ask(FleetStatus {}).await.fleet.trouble.as_deref() == words;
        eventually(&format!("{words:?}"), SOON, said).await;
    };
    let with = async || one.ask(FleetStatus {}).await.fleet.limits[0].shared_with;
    assert_eq!(
        (with().await, one.ask(FleetStatus {}).await.fleet.trouble),
        (None, None),
        "it is alone, and that is seen"
    );
    let other = store.host_with(|config| config.policy.rules[0].name = "wed".to_owned()).await;
    says(Some(
        "no other host has 10/5m connections of rule default: hosts share a rule only if its name, unit, window and \
         buckets are the same",
    ))
    .await;
    assert_eq!(with().await, Some(0));
    assert!(one.client.health().await.unwrap().notes.iter().any(|note| note.contains("no other host has")));
    let third = store.host_with(|config| config.fleet.as_mut().unwrap().hosts = 3).await;
    let differs = async || {
        let trouble = one.ask(FleetStatus {}).await.fleet.trouble.unwrap_or_default();
        trouble.starts_with("3 hosts are heard") && with().await == Some(1)
    };
    eventually("one of two has it", SOON, differs).await;
    other.end().await;
    third.end().await;
    one.end().await;
}

#[tokio::test]
async fn another_number_of_hosts_on_another_host_is_said() {
    let Some(store) = Store::start("another_number_of_hosts") else { return };
    let (one, other) = (store.host().await, store.host_with(|of| of.fleet.as_mut().unwrap().hosts = 3).await);
    let differs = async |of: &Running, words: &str| {
        let trouble = async || of.ask(FleetStatus {}).await.fleet.trouble.is_some_and(|of| of.starts_with(words));
        eventually(words, SOON, trouble).await;
    };
    differs(&one, "`hosts` is 2 here and 3 on ").await;
    differs(&other, "`hosts` is 3 here and 2 on ").await;
    one.end().await;
    other.end().await;
}

#[tokio::test]
async fn counters_only_grow_when_the_fleet_starts_over_and_while_it_cannot() {
    let Some(store) = Store::start("counters_only_grow") else { return };
    let change = |config: &mut Config| {
        config.policy = shared();
        config.fleet = Some(store.fleet());
    };
    let again = |config: &Config| {
        let slower = Fleet { interval: Duration::from_millis(300), ..store.fleet() };
        let broken = Fleet { secret_file: Some("/dev/null/none".into()), ..store.fleet() };
        let with = |fleet| Ok(Config { fleet: Some(fleet), ..config.clone() });
        file([with(slower), with(broken), with(store.fleet())])
    };
    let host = start_on(None, until_now(), None, change, again).await;
    host.is_connected().await;
    let rounds = async || host.ask(FleetStatus {}).await.fleet.rounds;
    eventually("ten rounds", SOON, async || rounds().await >= 10).await;
    for _ in 0..3 {
        let before = rounds().await;
        host.client.reload().await.unwrap();
        assert!(rounds().await >= before);
    }
    host.is_connected().await;
    let fleet = host.ask(FleetStatus {}).await.fleet;
    assert!(fleet.connections >= 3 && fleet.rounds == fleet.round_seconds.counts.iter().sum::<u64>(), "{fleet:?}");
    host.end().await;
}

#[tokio::test]
async fn remote_bans_skip_rules_in_dry_run_of_another_name_or_without_bans() {
    let Some(store) = Store::start("remote_bans_skip_rules") else { return };
    let one = store.host().await;
    let follows = store.host().await;
    let dry = store.host_with(|config| config.policy.rules[0].mode = Mode::DryRun).await;
    let missing = store.host_with(|config| config.policy.rules[0].name = "other".to_owned()).await;
    let bans_nobody = store.host_with(|config| config.policy.rules[0].bans = None).await;
    let others = [&dry, &missing, &bans_nobody];
    for host in others.into_iter().chain([&one, &follows]) {
        host.is_connected().await;
    }
    one.send(SOURCE, LIMIT + 1);
    eventually("banned there", SOON, async || !follows.state_of(SOURCE).await.is_empty()).await;
    // After three intervals, all hosts have heard the ban.
    sleep(Duration::from_millis(600)).await;
    for host in others {
        assert_eq!(host.state_of(SOURCE).await, []);
        assert_eq!(host.told(EventKind::Ban).await, [""; 0]);
        assert_eq!(host.send(SOURCE, 1), 1);
    }
    for host in [one, follows, dry, missing, bans_nobody] {
        host.end().await;
    }
}

#[tokio::test]
async fn a_denial_by_another_host_locks_no_administrator_out_and_is_reported() {
    let Some(store) = Store::start("a_denial_by_another_host") else { return };
    let one = store.host().await;
    let other = store.host_at("none", grants::around, |_| {}).await;
    one.is_connected().await;
    other.is_connected().await;
    let deny = |prefix: &str| Deny(GrantRequest { prefix: prefix.to_owned(), fleet: true, ..GrantRequest::default() });
    // The prefixes are its gateway, and the SSH session of the user who started it.
    for (prefix, words) in [("192.0.2.1", "the default gateway"), ("198.51.100.0/24", "SSH")] {
        one.ask(deny(prefix)).await;
        let said = async || {
            let told = other.told(EventKind::Fleet).await;
            told.iter()
                .any(|told| told.contains(&format!("for {prefix} is not carried out here: ")) && told.contains(words))
        };
        eventually("told", SOON, said).await;
        assert!(other.state_of(prefix).await.iter().all(|of| of.0 != Standing::Denied), "{prefix}");
    }
    one.ask(deny("203.0.113.9")).await;
    eventually("another is denied", SOON, async || !other.state_of("203.0.113.9").await.is_empty()).await;
    one.end().await;
    other.end().await;
}
