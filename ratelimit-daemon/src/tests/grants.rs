//! Tests of allowances and denials by commands.

use super::site::Site;
use super::*;
use ratelimit_control::proto::GrantRequest;
use ratelimit_policy::desired::{Bans, Grant};
use ratelimit_report::snapshot::{Author, State as SourceState};

pub(super) fn request(prefix: &str) -> GrantRequest {
    GrantRequest { prefix: prefix.to_owned(), ..GrantRequest::default() }
}

pub(super) fn for_seconds(prefix: &str, seconds: u64) -> GrantRequest {
    GrantRequest { seconds: Some(seconds), ..request(prefix) }
}

pub(super) fn permanent(prefix: &str) -> GrantRequest {
    GrantRequest { permanent: true, ..request(prefix) }
}

#[tokio::test(start_paused = true)]
async fn a_denial_holds_for_its_time_and_no_longer() {
    let mut site = Site::new(3);
    site.start().await;
    let report = site.client.grant(Grant::Denied, &for_seconds("198.51.100.0/24", 60)).await.unwrap();
    assert_eq!(
        (report.entry.state, report.entry.by, report.entry.user.as_deref()),
        (SourceState::Denied, Author::Command, Some("root"))
    );
    assert_eq!(site.reason("198.51.100.7"), "denied");
    assert_eq!(site.reason("198.51.101.7"), "within_limit");
    site.kernel.advance(60 * site::SECOND_NS);
    assert_eq!(site.reason("198.51.100.7"), "within_limit", "the kernel compares by itself");
    site.pass(0).await;
    assert!(site.kernel.policy().unwrap().access.is_empty(), "and the daemon tidies up");
    assert_eq!(site.client.list().await.unwrap().entries, []);
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_time_an_exemption_is_for_an_hour_and_a_denial_for_four() {
    let mut site = Site::new(3);
    site.start().await;
    for (grant, prefix, hours) in [(Grant::Exempt, "192.0.2.1/32", 1), (Grant::Denied, "192.0.2.2/32", 4)] {
        site.client.grant(grant, &request(prefix)).await.unwrap();
        let policy = site.kernel.policy().unwrap();
        let until = policy.access.iter().find(|of| of.prefix.to_string() == prefix).unwrap().until.unwrap();
        assert_eq!(until.0 - ratelimit_datapath::fake::START.0, hours * 3_600 * site::SECOND_NS);
    }
    for wrong in [for_seconds("192.0.2.3", 0), GrantRequest { permanent: true, ..for_seconds("192.0.2.3", 5) }] {
        assert_eq!(Site::refusal(site.client.grant(Grant::Exempt, &wrong).await).0, ProblemKind::BadRequest);
    }
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_reason_that_cannot_be_kept_is_refused_with_what_is_wrong_and_how_to_mend_it() {
    let mut site = Site::new(3);
    site.start().await;
    for (reason, words) in [
        ("x".repeat(201), "a reason has at most 200 bytes, and this one 201"),
        ("office\nhours".to_owned(), "the reason has a line break: write it on one line"),
        ("a\u{202e}b".to_owned(), "the reason has a character that cannot be seen, U+202E: leave it out"),
        ("\u{1b}[2J".to_owned(), "the reason has a character that cannot be seen, U+001B: leave it out"),
    ] {
        let asked = GrantRequest { reason: Some(reason), ..request("192.0.2.3") };
        assert_eq!(Site::refusal(site.client.grant(Grant::Exempt, &asked).await).1, words);
    }
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn grants_survive_a_restart_with_their_reason_and_end() {
    let mut site = Site::new(3);
    site.start().await;
    let reason = Some("scraper".to_owned());
    site.client.grant(Grant::Denied, &GrantRequest { reason, ..permanent("198.51.100.7") }).await.unwrap();
    site.client.grant(Grant::Exempt, &for_seconds("192.0.2.0/24", 600)).await.unwrap();
    let before = site.client.list().await.unwrap().entries;
    let policy = site.kernel.policy().unwrap();
    site.restart().await;
    assert_eq!(site.client.list().await.unwrap().entries, before);
    let again = site.kernel.policy().unwrap();
    let drift = again.access[0].until.unwrap().0.abs_diff(policy.access[0].until.unwrap().0);
    assert!(drift < 10 * site::SECOND_NS, "the wall clock went on by {drift} ns while the kernel's stood still");
    assert_eq!(again.access[1], policy.access[1]);
    assert_eq!(before[1].reason.as_deref(), Some("scraper"));
    site.kill().await;
    std::fs::write(site.state("access.json"), "not JSON").unwrap();
    site.start().await;
    assert_eq!(site.client.list().await.unwrap().entries, [], "a broken file never stops the daemon");
    assert!(site.state("access.json.broken").exists());
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_exemption_tells_whom_it_frees_and_goes_before_bans_and_denials() {
    let mut site = Site::new(1);
    site.start().await;
    let mut policy = site.kernel.policy().unwrap();
    policy.rules[0].bans = Some(Bans { steps_ns: vec![60 * site::SECOND_NS], forget_ns: 0, needs_proof: false });
    ratelimit_datapath::Datapath::apply(&mut site.kernel.peek(), &policy).unwrap();
    for source in ["198.51.100.7", "198.51.100.7", "198.51.100.8", "203.0.113.9", "203.0.113.9"] {
        site.reason(source);
    }
    site.client.grant(Grant::Denied, &permanent("198.51.0.0/16")).await.unwrap();
    let report = site.client.grant(Grant::Exempt, &request("198.51.100.0/24")).await.unwrap();
    assert_eq!((report.frees, report.frees_count), (vec!["198.51.100.7".to_owned(), "198.51.100.8".to_owned()], 2));
    let [note] = report.notes.as_slice() else { panic!("{:?}", report.notes) };
    assert!(note.starts_with("overrides root's denial of 198.51.0.0/16 until ") && note.ends_with(" UTC"), "{note}");
    assert_eq!(site.reason("198.51.100.7"), "exempt");
    assert_eq!(site.reason("198.51.101.7"), "denied");
    let banned = site.client.list().await.unwrap().entries.into_iter().filter(|of| of.state == SourceState::Banned);
    assert_eq!(banned.map(|of| of.prefix).collect::<Vec<_>>(), ["198.51.100.7", "203.0.113.9"]);
    let stats = site.client.stats().await.unwrap();
    assert_eq!((stats.sources.banned, stats.rules[0].banned), (2, 2));
    let top: Vec<_> = stats.top.unwrap().into_iter().map(|of| (of.source, of.state)).collect();
    let row = |source: &str, state| (source.to_owned(), state);
    assert_eq!(top[0], row("203.0.113.9", SourceState::Banned));
    assert!(top.contains(&row("198.51.100.7", SourceState::Exempt)), "{top:?}");
    let check = site.client.check(address("203.0.113.9")).await.unwrap();
    assert_eq!((check.reason.as_str(), check.verdict), ("banned", snapshot::Outcome::Drop));
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn unblock_takes_off_the_denial_and_the_bans_within_and_reset_forgets_the_source() {
    let mut site = Site::new(1);
    site.start().await;
    let mut policy = site.kernel.policy().unwrap();
    policy.rules[0].bans = Some(Bans { steps_ns: vec![60 * site::SECOND_NS], forget_ns: 0, needs_proof: false });
    ratelimit_datapath::Datapath::apply(&mut site.kernel.peek(), &policy).unwrap();
    for source in ["198.51.100.7", "198.51.100.7", "2001:db8::7", "2001:db8::8"] {
        site.reason(source);
    }
    let report = site.client.unblock("2001:db8::7").await.unwrap();
    assert_eq!(report.removed.iter().map(|of| of.prefix.as_str()).collect::<Vec<_>>(), ["2001:db8::/64"]);
    site.client.grant(Grant::Denied, &permanent("198.51.100.7")).await.unwrap();
    site.client.grant(Grant::Denied, &permanent("198.51.0.0/16")).await.unwrap();
    let report = site.client.unblock("198.51.100.7").await.unwrap();
    let states: Vec<_> = report.removed.iter().map(|of| of.state).collect();
    assert_eq!(states, [SourceState::Denied, SourceState::Banned]);
    let [still] = report.still.as_slice() else { panic!("{report:?}") };
    assert_eq!((still.entry.prefix.as_str(), still.entry.user.as_deref()), ("198.51.0.0/16", Some("root")));
    assert_eq!(still.lift, "ratelimitd unblock 198.51.0.0/16");
    assert_eq!(site.reason("198.51.100.7"), "denied");
    site.client.unblock("198.51.0.0/16").await.unwrap();
    assert_eq!(site.reason("198.51.100.7"), "within_limit", "its window is reset with its ban");
    assert_eq!(site.reason("198.51.100.7"), "over_limit");
    let report = site.client.reset(address("198.51.100.7")).await.unwrap();
    assert_eq!((report.windows, report.limits, report.source.as_str()), (1, 1, "198.51.100.7/32"));
    assert_eq!(site.reason("198.51.100.7"), "within_limit");
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_ipv6_address_alone_is_its_source_for_a_command_and_what_is_cut_off_is_said() {
    let mut site = Site::new(3);
    site.start().await;
    let report = site.client.grant(Grant::Denied, &permanent("2001:db8::7")).await.unwrap();
    assert_eq!(report.entry.prefix, "2001:db8::/64");
    assert_eq!(report.notes, ["2001:db8::7 means its source, 2001:db8::/64; 2001:db8::7/128 means the one address"]);
    assert_eq!((site.reason("2001:db8::8"), site.reason("2001:db8:0:1::7")), ("denied", "within_limit"));
    let report = site.client.grant(Grant::Denied, &permanent("2001:db8::7/128")).await.unwrap();
    assert_eq!((report.entry.prefix.as_str(), report.notes.len()), ("2001:db8::7", 0));
    let report = site.client.grant(Grant::Denied, &permanent("198.51.100.7/24")).await.unwrap();
    assert_eq!(report.entry.prefix, "198.51.100.0/24");
    assert_eq!(report.notes, ["198.51.100.7/24 has bits set beyond /24: cut to 198.51.100.0/24"]);

    let report = site.client.unblock("2001:db8::7").await.unwrap();
    let removed: Vec<_> = report.removed.iter().map(|of| of.prefix.as_str()).collect();
    assert_eq!(removed, ["2001:db8::/64", "2001:db8::7"], "and what is denied within it");
    assert_eq!((report.prefix.as_str(), report.notes.len()), ("2001:db8::/64", 1));
    assert_eq!((site.reason("2001:db8::8"), site.reason("2001:db8::7")), ("within_limit", "within_limit"));
    let report = site.client.unblock("198.51.100.9/24").await.unwrap();
    assert_eq!((report.removed.len(), report.notes.len()), (1, 1));
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn texts_from_state_files_contain_no_terminal_controls() {
    let mut site = Site::new(3);
    std::fs::create_dir(site.directory.path().join("state")).unwrap();
    let entry = |reason: &str| {
        serde_json::json!({"prefix": "192.0.2.0/24", "grant": "denied", "user": "\u{1b}[2Jroot\u{9b}1m", "reason": reason,
            "forced": false, "since": null, "until": null})
    };
    let kept = serde_json::json!({"version": 1, "entries": [entry("\u{1b}]0;x\u{7}\n\u{202e}y")]});
    std::fs::write(site.state("access.json"), kept.to_string()).unwrap();
    let hold =
        serde_json::json!({"version": 1, "word": "panic", "user": "\u{1b}[31mred", "since": "2026-01-01T00:00:00Z"});
    std::fs::write(site.state("mode.json"), hold.to_string()).unwrap();
    site.start().await;
    let stats = site.client.stats().await.unwrap();
    let list = site.client.list().await.unwrap();
    assert_eq!(list.entries[0].user.as_deref(), Some("\u{fffd}[2Jroot\u{fffd}1m"));
    assert_eq!(list.entries[0].reason.as_deref(), Some("\u{fffd}]0;x\u{fffd}\u{fffd}\u{fffd}y"));
    assert_eq!(stats.hold.as_ref().map(|hold| hold.by.as_str()), Some("\u{fffd}[31mred"));
    for said in [ratelimit_view::list(&list, usize::MAX), ratelimit_view::stats(&stats, ratelimit_view::Page::ENDLESS)]
    {
        assert!(
            said.chars().all(|c| c == '\n' || !c.is_control() && !ratelimit_policy::config::syntax::turns_text(c)),
            "{said:?}"
        );
    }
    site.stop().await;
}

pub(super) fn around() -> Around {
    Around {
        ssh: ratelimit_policy::safety::ssh_session("198.51.100.7 51000 192.0.2.5 22"),
        gateways: vec![address("192.0.2.1")],
        resolvers: vec![address("192.0.2.53")],
        own: vec![address("192.0.2.5")],
        ..Around::default()
    }
}

#[tokio::test(start_paused = true)]
async fn protected_addresses_are_exempt_and_cannot_be_denied_by_mistake() {
    let mut site = Site::new(0).with_around(around);
    site.start().await;
    let safe = site.client.list().await.unwrap().entries;
    let rows: Vec<_> = safe.iter().map(|of| (of.prefix.as_str(), of.by, of.state)).collect();
    let row = |prefix| (prefix, Author::Safety, SourceState::Exempt);
    assert_eq!(rows, [row("192.0.2.1"), row("192.0.2.53"), row("198.51.100.7")]);
    assert_eq!((site.reason("198.51.100.7"), site.reason("198.51.100.8")), ("exempt", "over_limit"));
    for (prefix, words) in [
        ("198.51.100.7", "SSH session"),
        ("192.0.2.5", "an address of this host"),
        ("192.0.2.0/24", "an address of this host"),
        ("0.0.0.0/0", "SSH session"),
        ("::/0", "/16 at the most"),
    ] {
        let (kind, why) = Site::refusal(site.client.grant(Grant::Denied, &request(prefix)).await);
        assert!(kind == ProblemKind::BadRequest && why.contains(words) && why.contains("--force "), "{prefix}: {why}");
    }
    let caller = GrantRequest { ssh_peer: Some(address("203.0.113.9")), ..request("203.0.113.0/24") };
    assert!(Site::refusal(site.client.grant(Grant::Denied, &caller).await).1.contains("the peer of your SSH session"));
    let report =
        site.client.grant(Grant::Denied, &GrantRequest { force: true, ..request("192.0.2.0/24") }).await.unwrap();
    assert_eq!(report.notes, ["192.0.2.1 within it stays allowed, and 1 more"]);
    assert_eq!((site.reason("192.0.2.9"), site.reason("192.0.2.1")), ("denied", "exempt"));
    site.client.grant(Grant::Denied, &GrantRequest { force: true, ..request("192.0.2.1") }).await.unwrap();
    assert_eq!(site.reason("192.0.2.1"), "denied", "--force gets it");
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_the_kernel_refuses_is_not_entered() {
    let mut site = Site::new(3);
    site.start().await;
    site.kernel.refuse_apply();
    let (_, why) = Site::refusal(site.client.grant(Grant::Denied, &request("198.51.100.7")).await);
    assert!(why.contains("write map CONFIG"), "{why}");
    assert_eq!(site.client.list().await.unwrap().entries, []);
    assert!(!site.state("access.json").exists());
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_what_commands_entered() {
    let mut site = Site::new(3);
    site.start().await;
    site.client.grant(Grant::Denied, &permanent("198.51.100.7")).await.unwrap();
    site.write("5");
    let changes = site.client.reload().await.unwrap().changes;
    assert_eq!(changes, ["limit of rule default: 3/5m -> 5/5m connections"]);
    assert_eq!((site.amount(), site.reason("198.51.100.7")), (5, "denied"));
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_application_charges_a_source_and_asks_how_it_stands() {
    use ratelimit_control::proto::ChargeRequest;
    let mut site = Site::new(3);
    site.start().await;
    let source = address("198.51.100.7");
    let charge = |amount| ChargeRequest { source, rule: "default".into(), amount };
    let standing = site.client.charge(&charge(2)).await.unwrap();
    assert_eq!((standing.used, standing.remaining, standing.verdict), (2, 1, snapshot::Outcome::Pass));
    assert_eq!(standing.retry_after_seconds, 0.0);
    site.client.charge(&charge(5)).await.unwrap();
    let standing = site.client.standing(source, "default").await.unwrap();
    assert_eq!((standing.used, standing.remaining, standing.verdict), (7, 0, snapshot::Outcome::Drop));
    assert!(standing.retry_after_seconds > 0.0);
    assert_eq!(site.reason("198.51.100.7"), "over_limit");
    // A server that listens for both families sees this client in this form.
    let mapped = ChargeRequest { source: address("::ffff:198.51.100.7"), ..charge(u64::MAX) };
    let standing = site.client.charge(&mapped).await.unwrap();
    assert_eq!((standing.source.as_str(), standing.verdict), ("198.51.100.7", snapshot::Outcome::Drop));
    assert_eq!(site.client.charge(&mapped).await.unwrap(), standing, "more than can be counted is no error");
    assert_eq!(site.client.standing(mapped.source, "default").await.unwrap(), standing);
    assert_eq!(site.client.reset(mapped.source).await.unwrap().windows, 1);
    let exempt = GrantRequest { seconds: Some(60), ..request("198.51.100.7") };
    site.client.grant(Grant::Exempt, &exempt).await.unwrap();
    let standing = site.client.charge(&charge(9)).await.unwrap();
    assert_eq!((standing.used, standing.reason.as_str()), (0, "exempt"), "no packet of his is charged either");
    let unknown = site.client.standing(source, "no such").await;
    assert_eq!(
        Site::refusal(unknown),
        (ProblemKind::NotFound, "there is no rule no such; the only rule is default; type: --rule default".to_owned())
    );
    site.stop().await;
}

static HAS_MOVED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

fn moving_gateway() -> Around {
    let gateway = if HAS_MOVED.load(std::sync::atomic::Ordering::Relaxed) { "192.0.2.254" } else { "192.0.2.1" };
    Around { gateways: vec![address(gateway)], ..Around::default() }
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_changes_is_noticed() {
    let mut site = Site::new(0).with_around(moving_gateway);
    site.start().await;
    assert_eq!((site.reason("192.0.2.1"), site.reason("192.0.2.254")), ("exempt", "over_limit"));
    HAS_MOVED.store(true, std::sync::atomic::Ordering::Relaxed);
    site.pass(32).await;
    assert_eq!((site.reason("192.0.2.1"), site.reason("192.0.2.254")), ("over_limit", "exempt"));
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn likely_mistakes_are_refused_and_say_how_to_insist() {
    let mut site = Site::new(3).with_around(around);
    site.start().await;
    for (grant, prefix) in [
        (Grant::Exempt, "0.0.0.0/0"),
        (Grant::Exempt, "::/0"),
        (Grant::Exempt, "128.0.0.0/1"),
        (Grant::Denied, "0.0.0.0/0"),
        (Grant::Denied, "::/0"),
        (Grant::Denied, "128.0.0.0/1"),
        (Grant::Denied, "198.51.100.0/24"),
    ] {
        let (kind, why) = Site::refusal(site.client.grant(grant, &request(prefix)).await);
        assert!(kind == ProblemKind::BadRequest && why.contains("--force ") && why.contains(prefix), "{prefix}: {why}");
        let forced = GrantRequest { force: true, ..request(prefix) };
        site.client.grant(grant, &forced).await.unwrap();
    }
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_limits_the_callers_own_session_needs_force_or_a_trial() {
    use ratelimit_control::proto::{ApplyRequest, ReloadRequest};

    let mut site = Site::new(3).with_around(around);
    site.start().await;
    // The rules of a site cover ports 80 and 443.
    let ssh = |peer: &str, port: u16| ratelimit_policy::safety::ssh_session(&format!("{peer} 4 203.0.113.5 {port}"));
    let words = "rule default limits your own SSH session, from 203.0.113.9 to port 443";
    let limited = ssh("203.0.113.9", 443);
    let mut amount = 3;
    for (session, is_limited) in
        [(limited, true), (ssh("203.0.113.9", 22), false), (ssh("198.51.100.7", 443), false), (None, false)]
    {
        amount += 1;
        site.write(&amount.to_string());
        let (reload, apply) =
            (ReloadRequest { ssh: session, force: false }, ApplyRequest { ssh: session, ..ApplyRequest::default() });
        if is_limited {
            for refusal in
                [Site::refusal(site.client.reload_by(&reload).await), Site::refusal(site.client.apply(&apply).await)]
            {
                let (kind, why) = refusal;
                assert!(
                    kind == ProblemKind::BadRequest && why.contains(words) && why.contains("apply --confirm 60s"),
                    "{why}"
                );
                assert!(why.contains("--force "), "{why}");
                assert_eq!(site.amount(), amount - 1, "nothing was changed");
            }
            let tried = ApplyRequest { confirm_seconds: Some(60), ..apply.clone() };
            let notes = site.client.apply(&tried).await.unwrap().notes;
            assert!(site.amount() == amount && notes.iter().any(|note| note.contains(words)), "{notes:?}");
            site.pass(60).await;
            assert_eq!(site.amount(), amount - 1);
            let notes = site.client.apply(&ApplyRequest { force: true, ..apply.clone() }).await.unwrap().notes;
            assert!(site.amount() == amount && notes.iter().any(|note| note.contains(words)), "{notes:?}");
            amount += 1;
            site.write(&amount.to_string());
            site.client.reload_by(&ReloadRequest { force: true, ..reload }).await.unwrap();
        }
        let notes = site.client.reload_by(&reload).await.unwrap().notes;
        assert_eq!(notes.len(), usize::from(is_limited), "what held before is only warned of: {notes:?}");
        let notes = site.client.apply(&apply).await.unwrap().notes;
        assert_eq!(notes.iter().any(|note| note.contains(words)), is_limited, "{session:?}: {notes:?}");
        assert_eq!(site.amount(), amount);
    }
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_source_that_most_comes_from_is_named_until_it_is_exempt() {
    let mut site = Site::new(3);
    site.start().await;
    let minute = async |site: &Site| {
        for _ in 0..1_500 {
            site.reason("198.51.100.7");
        }
        site.pass(60).await;
    };
    minute(&site).await;
    minute(&site).await;
    minute(&site).await;
    let stats = site.client.stats().await.unwrap();
    let [of] = stats.top_talkers.as_slice() else { panic!("{:?}", stats.top_talkers) };
    assert_eq!((of.rule.as_str(), of.source.as_str()), ("default", "198.51.100.7"));
    let said = ratelimit_view::stats(&stats, ratelimit_view::Page::ENDLESS);
    assert!(
        said.contains("comes from 198.51.100.7; if that is a proxy or a CDN, all its users are one source"),
        "{said}"
    );
    assert!(stats.without_sources().top_talkers.is_empty());
    site.client.grant(Grant::Exempt, &request("198.51.100.7")).await.unwrap();
    minute(&site).await;
    assert!(site.client.stats().await.unwrap().top_talkers.is_empty());
    site.stop().await;
}
