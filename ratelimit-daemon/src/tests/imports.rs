//! Tests of many denials at once, and of importing this daemon's own export, which changes nothing.

use super::site::Site;
use super::*;
use ratelimit_control::proto::{GrantRequest, Import, ImportReport, ImportRow};
use ratelimit_policy::config::syntax::printable;
use ratelimit_policy::desired::Grant;
use ratelimit_report::entries::{self, Format};
use ratelimit_report::event::EventKind;
use ratelimit_report::snapshot::{Author, ListReport, Listed};

fn row(prefix: &str) -> ImportRow {
    ImportRow { prefix: prefix.to_owned(), ..ImportRow::default() }
}

async fn import(site: &Site, rows: Vec<ImportRow>) -> ImportReport {
    site.client.call(&Import { rows, ssh_peer: None }).await.unwrap()
}

/// Returns the rows of a text for `import`, without those that a configuration denies.
fn rows(text: &str) -> Vec<ImportRow> {
    let rows = entries::import(text, Timestamp::now()).unwrap().rows;
    let rows = rows.into_iter().filter(|row| row.by != Author::Configuration);
    let row = |of: entries::Row| ImportRow {
        prefix: of.prefix.to_string(),
        until: of.until,
        reason: of.reason,
        owner: of.owner,
    };
    rows.map(row).collect()
}

/// Returns the entries without expiries. The kernel's clock stands still here, so expiries move with the wall clock.
fn without_ends(report: &ListReport) -> Vec<Listed> {
    report.entries.iter().map(|of| Listed { until: None, ..of.clone() }).collect()
}

#[tokio::test(start_paused = true)]
async fn an_export_of_this_daemon_imported_again_changes_nothing_in_any_format() {
    let mut site = Site::new(3);
    site.write("3 deny=203.0.113.0/24");
    site.start().await;
    for (prefix, seconds, owner, reason) in [
        ("198.51.100.0/24", Some(3_600), None, Some("a \"quote\" and # {}")),
        ("198.51.100.7", None, None, None),
        ("198.51.100.8", Some(9_000_000), Some("fail2ban/sshd"), Some("5 failures")),
        ("2001:db8::/32", Some(61), Some("test/one"), None),
    ] {
        let request = GrantRequest {
            prefix: prefix.to_owned(),
            seconds,
            permanent: seconds.is_none(),
            owner: owner.map(str::to_owned),
            reason: reason.map(str::to_owned),
            ..GrantRequest::default()
        };
        site.client.grant(Grant::Denied, &request).await.unwrap();
    }
    let before = site.client.list().await.unwrap();
    let policy = site.kernel.policy();
    let made = entries::rows(&before);
    assert_eq!(made.len(), 5);
    for (name, text) in [
        ("plain", entries::export(&made, Format::Plain, before.time)),
        ("nft", entries::export(&made, Format::Nft, before.time)),
        ("ipset", entries::export(&made, Format::Ipset, before.time)),
        ("json", serde_json::to_string(&before).unwrap()),
    ] {
        let rows = rows(&text);
        assert_eq!(rows.len(), 4, "{name}");
        let report = import(&site, rows).await;
        assert_eq!((report.entered, report.unchanged, report.refused), (0, 4, vec![]), "{name}");
        assert_eq!(without_ends(&site.client.list().await.unwrap()), without_ends(&before), "{name}");
        assert_eq!(site.kernel.policy(), policy, "{name}: to the nanosecond");
    }
    // On another host, the import is the same except for what the configuration denies there.
    let text = entries::export(&made, Format::Nft, before.time);
    let mut other = Site::new(3);
    other.start().await;
    assert_eq!(import(&other, rows(&text)).await.entered, 4);
    let there = entries::rows(&other.client.list().await.unwrap());
    let told = |rows: &[entries::Row]| -> Vec<_> {
        let commands = rows.iter().filter(|row| row.by == Author::Command);
        commands.map(|row| (row.prefix, row.until.is_some(), row.reason.clone(), row.owner.clone())).collect()
    };
    assert_eq!(told(&there), told(&made));
    for mut site in [site, other] {
        site.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn rows_that_cannot_be_denied_are_refused_by_name_and_the_others_hold() {
    fn around() -> Around {
        Around { gateways: vec!["192.0.2.1".parse().unwrap()], ..Around::default() }
    }
    let mut site = Site::new(3).with_around(around);
    site.start().await;
    let past = Some("2001-01-01T00:00:00Z".parse().unwrap());
    let far = Some("2999-01-01T00:00:00Z".parse().unwrap());
    let rows = vec![
        row("198.51.100.7"),
        row("0.0.0.0/1"),
        row("192.0.2.0/24"),
        row("here"),
        ImportRow { until: past, ..row("198.51.100.8") },
        ImportRow { until: far, ..row("198.51.100.9") },
        ImportRow { owner: Some("a//b".into()), ..row("198.51.100.10") },
        ImportRow { reason: Some("a\u{202e}b".into()), ..row("198.51.100.11") },
        row("2001:db8::7"),
    ];
    let report = import(&site, rows.clone()).await;
    assert_eq!((report.entered, report.unchanged), (2, 0));
    let refused: Vec<String> =
        report.refused.iter().map(|of| printable(&format!("{}: {}", of.prefix, of.why))).collect();
    for (at, words) in [
        "0.0.0.0/1: 0.0.0.0/1 is more of IPv4 than `deny` should hold: /8 at the most: this may lock you out",
        "192.0.2.0/24: 192.0.2.0/24 contains the default gateway, 192.0.2.1: this may lock you out",
        "here: `here` is not an IP address",
        "198.51.100.8: it is over",
        "198.51.100.9: it ends later than in 10 years",
        "198.51.100.10: an owner is named as in fail2ban/sshd",
        "198.51.100.11: the reason has a character that cannot be seen",
    ]
    .into_iter()
    .enumerate()
    {
        assert!(refused.get(at).is_some_and(|of| of.starts_with(words)), "{words}: {refused:#?}");
    }
    assert_eq!(refused.len(), 7, "{refused:#?}");
    let denied: Vec<String> = site.kernel.policy().unwrap().prefixes(Grant::Denied).map(|of| of.to_string()).collect();
    assert_eq!(denied, ["198.51.100.7/32", "2001:db8::/64"]);
    assert_eq!(import(&site, rows).await.unchanged, 2);
    // A policy that the kernel refuses leaves everything unchanged.
    site.kernel.refuse_apply();
    let failed = site.client.call(&Import { rows: vec![row("203.0.113.7")], ssh_peer: None }).await;
    assert_eq!(Site::refusal(failed).0, ProblemKind::Datapath);
    assert!(!site.client.list().await.unwrap().entries.iter().any(|of| of.prefix == "203.0.113.7"));
    site.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_at_once_are_applied_kept_and_told_together() {
    let mut site = Site::new(3);
    site.start().await;
    let applied = |site: &Site| site.kernel.calls().iter().filter(|call| *call == "apply").count();
    let before = applied(&site);
    let rows: Vec<ImportRow> = (0..1_000).map(|at| row(&format!("198.{}.{}.7", 18 + at / 256, at % 256))).collect();
    assert_eq!(import(&site, rows).await.entered, 1_000);
    assert_eq!(applied(&site), before + 1);
    site.pass(0).await;
    let events = site.client.events(&ratelimit_control::proto::EventsOf::default()).await.unwrap().events;
    let told: Vec<_> = events.iter().filter(|of| of.kind == EventKind::Deny).collect();
    assert!(told.len() == 1 && told[0].detail == "1000 prefixes were imported and are denied", "{told:?}");
    assert_eq!(import(&site, vec![row("203.0.113.7")]).await.entered, 1);
    let events = site.client.events(&ratelimit_control::proto::EventsOf::default()).await.unwrap().events;
    assert!(events.iter().any(|of| of.source.as_deref() == Some("203.0.113.7")), "a few are told one by one");
    site.restart().await;
    assert_eq!(site.client.list().await.unwrap().entries.len(), 1_001, "they outlive the daemon");
    site.stop().await;
}
