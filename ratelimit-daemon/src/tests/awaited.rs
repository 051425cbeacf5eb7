//! Tests of a service with an interface that is missing at the start.

use super::site::Site;
use super::*;
use ratelimit_control::proto::ApplyRequest;
use ratelimit_datapath::Trial;
use ratelimit_datapath::path::Link;

/// Starts a service on eth0 and on eth9, which does not exist.
async fn service(adjust: impl FnOnce(&mut Config)) -> Running {
    let adjust = |config: &mut Config| {
        config.interfaces.push("eth9".into());
        adjust(config);
    };
    start(None, adjust, |config| file([Ok(config.clone())])).await
}

/// Waits until the next look is complete.
async fn look() {
    sleep(SUPERVISE_EVERY + Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_service_protects_the_interfaces_that_are_there_and_says_which_is_missing() {
    let mut running = service(|_| {}).await;
    assert_eq!(running.kernel.attached(), ["eth0"]);
    for _ in 0..5 {
        running.kernel.packet("eth0", opening("198.51.100.7"));
    }
    look().await;
    let told = running.heard();
    let line = told.iter().rfind(|told| told.starts_with("Line")).unwrap();
    assert!(line.contains("NOT PROTECTED: eth9 is not attached") && line.contains("attached to eth0"), "{line}");
    let health = running.client.health().await.unwrap();
    assert!(!health.healthy && health.problems[0].contains("no interface eth9"), "{health:?}");
    let stats = running.client.stats().await.unwrap();
    assert_eq!(stats.rules[0].dropped, 2, "eth0 is limited meanwhile");
    let shown: Vec<_> = stats.interfaces.iter().map(|of| (of.name.as_str(), of.attached)).collect();
    assert_eq!(shown, [("eth0", true), ("eth9", false)]);
    assert_eq!(stats.interfaces[1].problem.as_deref(), Some("no interface eth9; there are eth0, eth1"));
    let said = ratelimit_view::stats(&stats, ratelimit_view::Page::ENDLESS);
    let missing = "eth9 IS NOT ATTACHED: no interface eth9; there are eth0, eth1; the daemon keeps retrying";
    assert!(said.contains("NOT PROTECTED: eth9 not attached\n") && said.contains(missing), "{said}");
    assert!(running.client.metrics().await.unwrap().contains("ratelimitd_attached{iface=\"eth9\",mode=\"none\"} 0"));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_awaited_interface_is_attached_as_soon_as_it_appears() {
    let mut running = service(|_| {}).await;
    running.kernel.add("eth9", XdpMode::Native);
    running.events.send(Event::LinksChanged).await.unwrap();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(running.kernel.attached(), ["eth0", "eth9"]);
    look().await;
    assert!(running.client.health().await.unwrap().healthy);
    assert!(!running.heard().last().unwrap().contains("NOT PROTECTED"));
    assert_eq!(running.client.stats().await.unwrap().interfaces[1].problem, None);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_none_of_whose_interfaces_is_there_waits_for_all_of_them() {
    let running = service(|config| config.interfaces = vec!["eth8".into(), "eth9".into()]).await;
    assert!(running.kernel.attached().is_empty());
    let stats = running.client.stats().await.unwrap();
    assert!(
        ratelimit_view::stats(&stats, ratelimit_view::Page::ENDLESS)
            .contains(": NOT PROTECTED: eth8, eth9 not attached, so nothing is")
    );
    assert_eq!(running.client.health().await.unwrap().problems.len(), 2);
    running.kernel.add("eth8", XdpMode::Native);
    look().await;
    assert_eq!(running.kernel.attached(), ["eth8"]);
    assert_eq!(running.kernel.packet("eth8", opening("198.51.100.7")).unwrap().label(), "within_limit");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_awaited_interface_can_be_given_up_and_a_reload_of_it_is_refused() {
    let running = service(|_| {}).await;
    assert_eq!(running.client.detach(Some("eth9")).await.unwrap().detached, ["eth9"]);
    assert!(running.client.health().await.unwrap().healthy);
    let error = running.client.reload().await.unwrap_err();
    assert!(error.to_string().contains("no interface eth9"), "{error}");
    assert_eq!(running.kernel.attached(), ["eth0"], "a reload is carried out whole or not at all");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_reload_changes_limits_while_an_interface_is_awaited() {
    let running = start(
        None,
        |config| config.interfaces.push("eth9".into()),
        |config| {
            let mut next = config.clone();
            next.policy.rules[0].limits[0].amount = 4;
            file([Ok(next)])
        },
    )
    .await;
    assert_eq!(running.client.reload().await.unwrap().changes.len(), 1);
    running.kernel.add("eth9", XdpMode::Native);
    look().await;
    assert_eq!(running.kernel.attached(), ["eth0", "eth9"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_takeover_continues_without_a_missing_interface_and_keeps_wanted_ones() {
    let directory = tempfile::tempdir().unwrap();
    let (datapath, kernel) = FakeDatapath::new(&["eth0", "eth1", "eth2"]);
    // eth9 may be in another network namespace now.
    kernel.keep(&["eth0", "eth2", "eth9"], &config(directory.path(), 3).policy);
    let mut config = config(directory.path(), 9);
    config.interfaces = vec!["eth0".into(), "eth1".into(), "eth9".into()];
    let policy = config.policy.clone();
    let (events, queue) = mpsc::channel(1);
    events.send(Event::Stop).await.unwrap();
    let source = file([]);
    drive(config, source, |_| Ok(datapath), |_| {}, queue, surroundings(None).0).await.unwrap();
    assert_eq!(kernel.policy(), Some(policy));
    let mut calls = kernel.calls();
    // A look may come before the stop. It tries once more.
    let again = calls.iter().rposition(|call| call == "attach eth9").filter(|at| *at > 2);
    again.map(|at| calls.remove(at));
    assert_eq!(calls, ["attach eth1", "attach eth0", "attach eth9", "apply", "detach eth2", "shutdown detach"]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_in_a_trial_goes_on_with_it_though_an_interface_is_missing() {
    let mut site = Site::new(3);
    site.write("3 eth9");
    site.start().await;
    site.write("9 eth9");
    let minute = ApplyRequest { confirm_seconds: Some(60), ..ApplyRequest::default() };
    site.client.apply(&minute).await.unwrap();
    site.kill().await;
    site.start().await;
    assert!(matches!(site.trial(), Trial::Running(_)), "{:?}", site.trial());
    site.kernel.add("eth9", XdpMode::Native);
    site.pass(1).await;
    assert!(matches!(site.trial(), Trial::Running(_)), "to attach what comes ends no trial: {:?}", site.trial());
    assert_eq!((site.kernel.attached().len(), site.amount()), (2, 9));
    site.pass(60).await;
    assert_eq!((site.trial(), site.amount()), (Trial::None, 3));
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_starts_before_its_metrics_address_and_a_command_line_fails() {
    // Addresses of TEST-NET-1 and of the documentation prefix, which no host has.
    for address in ["192.0.2.77:0", "[2001:db8::77]:0"] {
        let listen = Some(address.parse().unwrap());
        let running = start(None, |config| config.listen = listen, |config| file([Ok(config.clone())])).await;
        assert_eq!(running.kernel.attached(), ["eth0"], "{address}");
        assert!(running.client.health().await.unwrap().healthy, "{address}");
        running.stop().await;

        let directory = tempfile::tempdir().unwrap();
        let config = Config { listen, ..ratelimit_report::fixture::config(directory.path(), 3) };
        let (datapath, kernel) = FakeDatapath::new(&["eth0"]);
        let (_events, queue) = mpsc::channel(1);
        let outcome = drive(config, ConfigSource::Flags, |_| Ok(datapath), |_| {}, queue, surroundings(None).0).await;
        assert!(matches!(outcome, Err(DaemonError::Listen { .. })), "{outcome:?}");
        assert!(kernel.attached().is_empty());
    }
}

/// Returns eth0 as a port of the bridge eth9.
fn joined() -> [Link; 2] {
    let port = Link { name: "eth0".into(), index: 2, master: Some(3), ..Link::default() };
    [port, Link { name: "eth9".into(), index: 3, kind: Some("bridge".into()), ..Link::default() }]
}

#[tokio::test(start_paused = true)]
async fn a_start_and_a_reload_with_a_port_and_its_bridge_are_refused_and_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (datapath, kernel) = FakeDatapath::new(&["eth0", "eth9"]);
    kernel.join(&joined());
    let mut config = config(directory.path(), 3);
    config.interfaces.push("eth9".into());
    let (_events, queue) = mpsc::channel(1);
    let outcome = drive(config, file([]), |_| Ok(datapath), |_| {}, queue, surroundings(None).0).await;
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("eth0 and eth9 are one path") && error.contains("write interfaces = [\"eth0\"]"), "{error}");
    assert!(kernel.attached().is_empty());

    let both = |config: &Config| {
        let mut next = config.clone();
        next.interfaces.push("eth9".into());
        file([Ok(next)])
    };
    let running = start(None, |_| {}, both).await;
    running.kernel.add("eth9", XdpMode::Native);
    running.kernel.join(&joined());
    let error = running.client.reload().await.unwrap_err().to_string();
    assert!(error.contains("eth0 and eth9 are one path") && error.contains("nothing was changed"), "{error}");
    assert_eq!(running.kernel.attached(), ["eth0"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_joined_interface_waits_and_one_joined_later_is_said_to_count_twice() {
    let mut running = service(|_| {}).await;
    running.kernel.join(&joined());
    running.kernel.add("eth9", XdpMode::Native);
    running.events.send(Event::LinksChanged).await.unwrap();
    look().await;
    assert_eq!(running.kernel.attached(), ["eth0"]);
    let problem = running.client.stats().await.unwrap().interfaces[1].problem.clone().unwrap();
    assert!(problem.contains("eth0 and eth9 are one path"), "{problem}");
    assert!(!running.client.health().await.unwrap().healthy);

    running.kernel.join(&[]);
    look().await;
    assert_eq!(running.kernel.attached(), ["eth0", "eth9"]);
    running.kernel.join(&joined());
    look().await;
    assert_eq!(running.kernel.attached(), ["eth0", "eth9"], "what is attached stays");
    let health = running.client.health().await.unwrap();
    assert!(health.healthy && health.notes[0].starts_with("packets count twice: eth0 and eth9"), "{health:?}");
    let said = ratelimit_view::stats(&running.client.stats().await.unwrap(), ratelimit_view::Page::ENDLESS);
    assert!(said.contains("PACKETS COUNT TWICE: eth0 and eth9 are one path"), "{said}");
    assert!(running.heard().last().unwrap().contains("PACKETS COUNT TWICE; "));
    running.stop().await;
}
