//! Tests of the line and the kind of every event.

use super::*;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn banned(source: &str, step: u32) -> Banned {
    Banned {
        source: source.into(),
        rule: "ssh".into(),
        usage: Some(Usage { limit: "5/1m connections".into(), used: 5 }),
        until: "2026-11-24T18:48:03Z".parse().unwrap(),
        step,
        by: None,
    }
}

#[test]
fn a_line_says_source_rule_use_and_end() {
    let until = "2026-11-24T18:48:03Z".parse().ok();
    let (prefix, by): (IpNet, String) = ("192.0.2.0/24".parse().unwrap(), "root (alice)".into());
    let deny = |reason: Option<&str>, until, frees| Event::Grant {
        grant: Grant::Denied,
        prefix,
        by: by.clone(),
        reason: reason.map(str::to_owned),
        until,
        frees,
    };
    let unblock = |prefix, denials, rules: &[&str], freed| Event::Unblock {
        prefix,
        by: by.clone(),
        denials,
        rules: rules.iter().map(ToString::to_string).collect(),
        untold: 0,
        freed,
    };
    let detach = |left, done| Event::Detach { interfaces: vec!["eth0".into()], left, by: None, done: Some(done) };
    let rows = [
        (
            Event::Ban(banned("192.0.2.7", 1)),
            "ban",
            "192.0.2.7 banned by rule \"ssh\" until 2026-11-24 18:48:03 UTC: used 5 of 5/1m connections",
        ),
        (
            Event::Ban(Banned { usage: None, ..banned("2001:db8::/64", 3) }),
            "ban",
            "2001:db8::/64 banned by rule \"ssh\" until 2026-11-24 18:48:03 UTC, ban 3 in a row",
        ),
        (
            Event::WouldBan(banned("192.0.2.7", 1)),
            "would_ban",
            "192.0.2.7 would be banned by rule \"ssh\" until 2026-11-24 18:48:03 UTC: \
             used 5 of 5/1m connections (dry run)",
        ),
        (
            Event::BanEnd { source: "192.0.2.7".into(), rule: "ssh".into(), dropped: 412, lifted_by: None },
            "ban_end",
            "192.0.2.7: ban by rule \"ssh\" expired, 412 packets dropped",
        ),
        (
            deny(Some("scraper"), until, 0),
            "deny",
            "192.0.2.0/24 denied until 2026-11-24 18:48:03 UTC by root (alice): scraper",
        ),
        (deny(None, None, 0), "deny", "192.0.2.0/24 denied permanently by root (alice)"),
        (
            Event::Grant { grant: Grant::Exempt, prefix, by: by.clone(), reason: None, until: None, frees: 2 },
            "allow",
            "192.0.2.0/24 allowed permanently by root (alice) (frees 2 sources)",
        ),
        (
            Event::GrantEnd { grant: Grant::Denied, prefix, by: by.clone() },
            "deny",
            "192.0.2.0/24 is no longer denied: the time that root (alice) gave has expired",
        ),
        (
            unblock(Some(prefix), 1, &["ssh", "ssh", "web"], 2),
            "unblock",
            "192.0.2.0/24 unblocked by root (alice): 1 denial lifted, 3 bans by rule \"ssh\", \"web\" lifted, \
             counters of 2 sources removed",
        ),
        (unblock(Some(prefix), 0, &[], 0), "unblock", "192.0.2.0/24 unblocked by root (alice): nothing to lift"),
        (unblock(None, 2, &[], 0), "unblock", "everything unblocked by root (alice): 2 denials lifted"),
        (
            Event::Unallow { prefix, by: by.clone(), removed: 1 },
            "unallow",
            "192.0.2.0/24 no longer allowed by root (alice): 1 exemption lifted",
        ),
        (
            Event::Reset { source: prefix, by: by.clone(), windows: 3, bans: 1 },
            "reset",
            "192.0.2.0/24: counters reset by root (alice), 3 windows and 1 ban removed",
        ),
        (
            Event::TakeOver { interfaces: vec!["eth0".into(), "eth1".into()], alone: None },
            "attach",
            "took over the filter on eth0, eth1, which ran without a daemon",
        ),
        (
            Event::TakeOver { interfaces: vec!["eth0".into()], alone: Some(at(180)) },
            "attach",
            "took over the filter on eth0, which ran without a daemon for 3m",
        ),
        (
            detach(OnExit::Detach, Done { dropped: 4_120, would_drop: 0, within: at(7_259) }),
            "detach",
            "detached from eth0; 4120 packets dropped in 2h",
        ),
        (
            detach(OnExit::Detach, Done { dropped: 1, would_drop: 7, within: at(125) }),
            "detach",
            "detached from eth0; 1 packet dropped, 7 would have been in 2m5s",
        ),
        (
            detach(OnExit::Keep, Done { within: at(0), ..Done::default() }),
            "detach",
            "eth0 stays limited without the daemon; 0 packets dropped in 0s; \
             `ratelimitd detach` removes the filter",
        ),
    ];
    for (event, kind, line) in rows {
        assert_eq!((event.kind().label(), event.line().as_str()), (kind, line));
    }
}
