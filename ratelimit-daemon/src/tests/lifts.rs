//! Tests of commands that lift grants and bans, and of a second grant for the same prefix.

use super::grants::{around, for_seconds, permanent, request};
use super::site::Site;
use super::*;
use ratelimit_control::proto::{GrantRequest, ModeWord};
use ratelimit_policy::desired::{Bans, Grant};
use ratelimit_report::snapshot::{Author, State as SourceState};
use ratelimit_view::lifted;

/// Makes the rule ban for a minute.
fn banning(site: &Site) {
    let mut policy = site.kernel.policy().unwrap();
    policy.rules[0].bans = Some(Bans { steps_ns: vec![60 * site::SECOND_NS], forget_ns: 0, needs_proof: false });
    ratelimit_datapath::Datapath::apply(&mut site.kernel.peek(), &policy).unwrap();
}

fn reasons<const N: usize>(site: &Site, sources: [&str; N]) -> [&'static str; N] {
    sources.map(|source| site.reason(source))
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_unblocked_is_served_by_the_very_next_packet_banned_or_not() {
    let over = ["within_limit", "within_limit", "over_limit"];
    for bans in [false, true] {
        let mut site = Site::new(2);
        site.start().await;
        if bans {
            banning(&site);
        }
        site.reason("198.51.100.8");
        for (source, asked, freed) in [
            ("198.51.100.7", "198.51.100.7", "198.51.100.7"),
            ("198.51.100.9", "198.51.100.0/24", "198.51.100.9"),
            ("2001:db8::7", "2001:db8::8", "2001:db8::/64"),
        ] {
            assert_eq!(reasons(&site, [source; 3]), over, "{source}");
            let report = site.client.unblock(asked).await.unwrap();
            assert_eq!((report.removed.len(), report.freed), (usize::from(bans), vec![freed.to_owned()]), "{asked}");
            assert_eq!(reasons(&site, [source; 3]), over, "{source}: all of its limit again");
            site.client.unblock(asked).await.unwrap();
        }
        assert_eq!(reasons(&site, ["198.51.100.8"; 2]), over[1..], "a neighbour that was not blocked");
        let report = site.client.unblock("203.0.113.5").await.unwrap();
        assert_eq!((report.removed.len(), report.freed_count, report.still.len()), (0, 0, 0));
        assert_eq!(lifted(&report), "203.0.113.5: nothing to lift\n");
        site.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_freed_if_a_denial_cannot_be_lifted() {
    let mut site = Site::new(1);
    site.start().await;
    assert_eq!(reasons(&site, ["198.51.100.7"; 2]), ["within_limit", "over_limit"]);
    site.client.grant(Grant::Denied, &permanent("198.51.100.9")).await.unwrap();
    site.kernel.refuse_apply();
    let (_, why) = Site::refusal(site.client.unblock("198.51.100.0/24").await);
    assert!(why.contains("write map CONFIG"), "{why}");
    assert_eq!(reasons(&site, ["198.51.100.7", "198.51.100.9"]), ["over_limit", "denied"]);
    site.kernel.permit_apply();
    site.client.unblock("198.51.100.0/24").await.unwrap();
    assert_eq!(reasons(&site, ["198.51.100.7", "198.51.100.9"]), ["within_limit"; 2]);
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_by_the_drop_cache_alone_is_lifted_too() {
    let mut site = Site::new(2);
    site.start().await;
    let slot = site.kernel.policy().unwrap().rules[0].limits[0].slot;
    let until = ratelimit_common::time::Nanos(ratelimit_datapath::fake::START.0 + 60 * site::SECOND_NS);
    let source = address("198.51.100.7");
    for asked in ["198.51.100.7", "198.51.100.0/24"] {
        site.kernel.evict_windows("198.51.100.7/32".parse().unwrap(), slot, until);
        assert_eq!(site.client.check(source).await.unwrap().reason, "over_limit");
        assert_eq!(site.client.unblock(asked).await.unwrap().freed, ["198.51.100.7"], "{asked}");
        assert_eq!(site.client.check(source).await.unwrap().reason, "within_limit", "{asked}");
    }
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_denial_that_no_command_can_lift_is_named_with_file_and_remedy() {
    let mut site = Site::new(2);
    site.write("2 deny=10.88.0.0/25");
    site.start().await;
    for asked in ["10.88.0.9", "10.88.0.0/25", "10.88.0.0/24"] {
        let report = site.client.unblock(asked).await.unwrap();
        assert_eq!((report.removed.len(), report.freed_count, report.notes.len()), (0, 0, 0), "{asked}");
        let [still] = report.still.as_slice() else { panic!("{asked}: {report:?}") };
        assert_eq!((still.entry.prefix.as_str(), still.entry.by), ("10.88.0.0/25", Author::Configuration), "{asked}");
        let file = "/nonexistent/deny.txt";
        assert_eq!(still.lift, format!("take 10.88.0.0/25 out of {file}, or override it: ratelimitd allow {asked}"));
        let said = lifted(&report);
        assert!(
            said.starts_with(&format!("10.88.0.0/25 is STILL DENIED permanently by {file}\n  to lift it: ")),
            "{said}"
        );
        assert!(!said.contains("nothing to lift") && !report.still.is_empty(), "{said}");
    }
    site.client.grant(Grant::Exempt, &request("10.88.0.9")).await.unwrap();
    assert_eq!(site.reason("10.88.0.9"), "exempt", "as was said");
    assert!(site.client.unblock("10.88.0.9").await.unwrap().still.is_empty());
    assert!(site.client.unblock("10.88.1.1").await.unwrap().still.is_empty());
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_unblock_of_a_prefix_lifts_denials_within_it() {
    let mut site = Site::new(2);
    site.start().await;
    for prefix in ["10.88.0.0/25", "10.88.0.200", "10.88.1.0/24"] {
        site.client.grant(Grant::Denied, &permanent(prefix)).await.unwrap();
    }
    let report = site.client.unblock("10.88.0.0/24").await.unwrap();
    let removed: Vec<_> = report.removed.iter().map(|of| of.prefix.as_str()).collect();
    assert_eq!((removed, report.still.len()), (vec!["10.88.0.0/25", "10.88.0.200"], 0));
    let now = reasons(&site, ["10.88.0.1", "10.88.0.200", "10.88.1.1"]);
    assert_eq!(now, ["within_limit", "within_limit", "denied"]);
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_zero_blocks_a_source_that_is_unblocked_and_is_named() {
    let mut site = Site::new(0);
    site.start().await;
    site.reason("198.51.100.7");
    let report = site.client.unblock("198.51.100.7").await.unwrap();
    assert_eq!(report.freed_count, 0);
    assert_eq!(report.still[0].lift, "raise the limit of rule default, or: ratelimitd allow 198.51.100.7");
    let said = lifted(&report);
    assert!(
        said.starts_with("198.51.100.7 is STILL BLOCKED by rule default (the limit is 0)\n  to lift it: "),
        "{said}"
    );
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn unblock_all_ends_bans_and_command_denials_and_nothing_else() {
    let mut site = Site::new(2);
    site.write("2 deny=203.0.113.0/24");
    site.start().await;
    site.client.grant(Grant::Denied, &permanent("10.88.0.0/24")).await.unwrap();
    site.client.grant(Grant::Exempt, &permanent("192.0.2.1")).await.unwrap();
    reasons(&site, ["192.0.2.2"; 3]);
    banning(&site);
    reasons(&site, ["198.51.100.7"; 3]);
    reasons(&site, ["2001:db8::7"; 3]);
    site.reason("198.51.100.8");
    let report = site.client.unblock_all().await.unwrap();
    let removed: Vec<_> = report.removed.iter().map(|of| (of.prefix.as_str(), of.state)).collect();
    let expected = [
        ("10.88.0.0/24", SourceState::Denied),
        ("198.51.100.7", SourceState::Banned),
        ("2001:db8::/64", SourceState::Banned),
    ];
    assert_eq!((removed.as_slice(), report.removed_count, report.freed_count), (&expected[..], 3, 2));
    assert_eq!(report.notes, ["1 prefix stays denied by /nonexistent/deny.txt"]);
    assert_eq!((report.prefix.as_str(), report.still.len()), ("", 0));
    let now = reasons(&site, ["198.51.100.7", "2001:db8::7", "10.88.0.1", "203.0.113.1", "192.0.2.1"]);
    assert_eq!(now, ["within_limit", "within_limit", "within_limit", "denied", "exempt"]);
    assert_eq!(reasons(&site, ["198.51.100.8"; 2]), ["within_limit", "over_limit"], "a counter stays");
    assert_eq!(site.reason("192.0.2.2"), "over_limit", "and a source that is over a limit and not banned");
    site.client.unblock_all().await.unwrap();
    assert!(lifted(&site.client.unblock_all().await.unwrap()).starts_with("nothing to lift: no bans"));
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_second_entry_extends_the_first_unless_it_replaces_it_and_says_so() {
    let mut site = Site::new(2);
    site.start().await;
    for (grant, what, prefix) in [(Grant::Denied, "denial", "10.88.0.9"), (Grant::Exempt, "exemption", "10.88.1.9")] {
        let whose = format!("root's {what} of {prefix}");
        let left = |site: &Site| {
            let access = site.kernel.policy().unwrap().access;
            let of = access.iter().find(|of| of.prefix.to_string() == format!("{prefix}/32")).unwrap();
            of.until.map(|until| (until.0 - ratelimit_datapath::fake::START.0) / site::SECOND_NS)
        };
        let with = |reason: &str, request| GrantRequest { reason: Some(reason.to_owned()), ..request };
        let first = site.client.grant(grant, &with("scraper", for_seconds(prefix, 600))).await.unwrap();
        assert_eq!((first.before, first.notes.len()), (None, 0));
        let report = site.client.grant(grant, &for_seconds(prefix, 60)).await.unwrap();
        assert_eq!((left(&site), report.entry.reason.as_deref()), (Some(600), Some("scraper")));
        let [longer, reason] = report.notes.as_slice() else { panic!("{:?}", report.notes) };
        assert!(longer.starts_with(&format!("{whose} holds longer and stays, until ")), "{longer}");
        assert!(longer.ends_with(" UTC; --replace ends it sooner"), "{longer}");
        assert_eq!(reason, "its reason stays: scraper");
        let report = site.client.grant(grant, &for_seconds(prefix, 900)).await.unwrap();
        assert_eq!((left(&site), report.before.is_some()), (Some(900), true));
        assert!(report.notes[0].starts_with(&format!("extends {whose}, which was until ")), "{report:?}");
        let replace = GrantRequest { replace: true, ..with("crawler", for_seconds(prefix, 30)) };
        let report = site.client.grant(grant, &replace).await.unwrap();
        assert_eq!((left(&site), report.entry.reason.as_deref()), (Some(30), Some("crawler")));
        assert!(report.notes[0].starts_with(&format!("replaces {whose}, which was until ")), "{report:?}");
        assert_eq!(report.notes[1], "its reason was: scraper");
        site.client.grant(grant, &permanent(prefix)).await.unwrap();
        let report = site.client.grant(grant, &request(prefix)).await.unwrap();
        assert_eq!((left(&site), report.entry.until), (None, None), "permanent it stays");
        let report = site.client.grant(grant, &permanent(prefix)).await.unwrap();
        assert_eq!(report.notes[0], format!("{whose} was permanent already"));
    }
    let report = site.client.grant(Grant::Denied, &permanent("10.88.1.9")).await.unwrap();
    assert_eq!(report.notes, ["ends root's exemption of 10.88.1.9"]);
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn unallow_ends_what_was_allowed_and_names_what_allows_it_all_the_same() {
    let mut site = Site::new(0).with_around(around);
    site.start().await;
    site.client.grant(Grant::Denied, &permanent("10.88.0.9")).await.unwrap();
    for prefix in ["10.88.0.9", "10.88.0.0/25", "10.88.0.0/16"] {
        site.client.grant(Grant::Exempt, &permanent(prefix)).await.unwrap();
    }
    let report = site.client.unallow("10.88.0.0/24").await.unwrap();
    let removed: Vec<_> = report.removed.iter().map(|of| of.prefix.as_str()).collect();
    assert_eq!(removed, ["10.88.0.0/25", "10.88.0.9"]);
    assert_eq!(report.notes, ["root's denial of 10.88.0.9 holds again"]);
    let [still] = report.still.as_slice() else { panic!("{report:?}") };
    assert_eq!((still.entry.prefix.as_str(), still.lift.as_str()), ("10.88.0.0/16", "ratelimitd unallow 10.88.0.0/16"));
    assert_eq!(reasons(&site, ["10.88.0.9", "10.88.0.1"]), ["denied", "exempt"]);
    assert!(site.client.unallow("10.88.0.0/16").await.unwrap().still.is_empty());
    assert_eq!(site.reason("10.88.0.1"), "over_limit");
    let report = site.client.unallow("192.0.2.1").await.unwrap();
    assert_eq!((report.removed.len(), report.still[0].entry.by), (0, Author::Safety));
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn entries_keep_the_sudo_user_and_an_exemption_only_suspends_a_denial() {
    let mut site = Site::new(0);
    site.start().await;
    let client = site.client.clone().for_sudo_user(Some("alice"));
    client.grant(Grant::Denied, &permanent("10.88.0.9")).await.unwrap();
    site.client.grant(Grant::Exempt, &for_seconds("10.88.0.9", 600)).await.unwrap();
    let users = async |site: &Site| {
        let entries = site.client.list().await.unwrap().entries;
        entries.into_iter().map(|of| (of.state, of.user.unwrap(), of.decides)).collect::<Vec<_>>()
    };
    let expected =
        [(SourceState::Exempt, "root".to_owned(), true), (SourceState::Denied, "root (alice)".to_owned(), false)];
    assert_eq!(users(&site).await, expected);
    site.restart().await;
    assert_eq!(users(&site).await, expected);
    let report = client.grant(Grant::Exempt, &permanent("10.88.0.9")).await.unwrap();
    assert_eq!(report.entry.user.as_deref(), Some("root (alice)"));
    client.mode(ModeWord::Panic).await.unwrap();
    assert_eq!(site.client.stats().await.unwrap().hold.unwrap().by, "root (alice)");
    site.stop().await;
}
