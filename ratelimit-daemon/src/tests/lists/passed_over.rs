//! Tests of list entries that are passed over: whatever way a list takes to the daemon, its other entries apply.

use ratelimit_report::snapshot::{ListFilter, State};

use super::*;

const WIDE: &str = "192.0.2.0/24\n0.0.0.0/1\n203.0.113.7\n";

fn around() -> Around {
    let address = |text: &str| vec![text.parse().unwrap()];
    Around { gateways: address("10.0.0.1"), own: address("172.16.0.5"), ..Around::default() }
}

/// Returns the daemon and its log output after a list arrived in the given way.
fn came(way: u8, list: &str) -> (Watched, String) {
    let mut site = Watched::on(around);
    site.write("bad.txt", list);
    let mut said = match way {
        0 => String::new(),
        1 => site.said(|engine, moment| drop(engine.reload(ReloadRequest::default(), moment).unwrap())).1,
        2 => site.said(|engine, moment| engine.reload_unasked(moment)).1,
        3 => site.said(|engine, moment| drop(engine.apply(&ApplyRequest::default(), &root(), moment).unwrap())).1,
        4 => {
            site.try_out(None);
            site.said(|engine, moment| drop(engine.confirm(&root(), moment).unwrap())).1
        }
        _ => {
            site.restart().unwrap();
            String::new()
        }
    };
    said += &site.two_looks();
    (site, said)
}

#[tokio::test]
async fn however_a_list_comes_what_is_too_wide_in_it_is_passed_over_and_said_once() {
    for way in 0..=5 {
        let (mut site, said) = came(way, WIDE);
        assert_eq!(site.denied(), ["192.0.2.0/24", "198.51.100.0/24", "203.0.113.7/32"], "{way}");
        let path = site.directory.path().join("bad.txt");
        let line = format!("list bad ({}): 0.0.0.0/1 is more of IPv4 than a list should hold", path.display());
        assert_eq!(said.matches(&line).count(), 1, "{way}: {said}");
        assert_eq!(site.two_looks(), "", "{way}: once");
        let stats = site.stats();
        assert!(stats.attention.iter().any(|of| of.starts_with("1 entry of a list file is PASSED OVER")), "{stats:?}");
        let supervision = site.said(Engine::supervise).0;
        assert!(supervision.problems.is_empty() && supervision.line.contains("PASSED OVER"), "{supervision:?}");
        assert!(!format!("{:?}", supervision.notes).contains("0.0.0.0/1"), "no source is named to all");
        let told = site.engine.journal.feed().report(&ratelimit_control::proto::EventsOf::default()).unwrap();
        assert!(told.events.iter().any(|of| of.detail.contains("0.0.0.0/1 is more of IPv4")), "{told:?}");
        // Once fixed, the list applies as a whole, and the next entry that is passed over counts as new.
        site.write("bad.txt", "192.0.2.0/24\n");
        site.two_looks();
        assert_eq!(site.denied(), ["192.0.2.0/24", "198.51.100.0/24"], "{way}");
        assert!(!site.stats().attention.iter().any(|of| of.contains("PASSED OVER")));
        site.write("bad.txt", WIDE);
        assert_eq!(site.two_looks().matches(&line).count(), 1, "{way}");
    }
}

#[tokio::test]
async fn however_a_list_comes_whom_this_host_needs_is_not_denied_by_it() {
    for way in 0..=5 {
        let (mut site, said) = came(way, "10.0.0.0/24\n172.16.0.0/24\n172.16.0.5\n192.0.2.7\n");
        assert_eq!(site.denied(), ["192.0.2.7/32", "198.51.100.0/24"], "{way}");
        for line in [
            "10.0.0.0/24 holds 10.0.0.1, the default gateway: it is ignored",
            "172.16.0.0/24 holds 172.16.0.5, an address of this host: it is ignored",
            "172.16.0.5 is an address of this host: it is ignored",
        ] {
            assert_eq!(said.matches(line).count(), 1, "{way}: {line}: {said}");
        }
        assert!(site.stats().attention.iter().any(|of| of.starts_with("3 entries of list files are PASSED OVER")));
        let moment = site.moment();
        let report = site.engine.list(ListFilter::default(), moment).unwrap()();
        let listed: Vec<_> =
            report.entries.iter().filter(|of| of.state == State::Denied).map(|of| &of.prefix).collect();
        assert_eq!(listed, ["192.0.2.7", "198.51.100.0/24"], "{way}: what is exported is in force");
    }
}

#[tokio::test]
async fn a_list_that_would_exempt_everyone_exempts_nobody_by_that_line() {
    let mut site = Watched::on(around);
    site.write("ours.txt", "0.0.0.0/0\n::/0\n203.0.113.9\n");
    site.write("ratelimitd.toml", FILE.replace("deny =", "allow = [\"file:ours.txt\"]\ndeny ="));
    let notes = site.said(|engine, moment| engine.reload(ReloadRequest::default(), moment)).0.unwrap().notes.join("\n");
    assert!(notes.contains("0.0.0.0/0 is more of IPv4 than a list should hold"), "{notes}");
    let exempt = |site: &Watched| {
        let access = site.engine.enforced.config.policy.access.iter();
        let exempt = access.filter(|of| of.grant == ratelimit_policy::desired::Grant::Exempt);
        exempt.map(|of| of.prefix.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(exempt(&site), ["203.0.113.9/32"]);
    site.two_looks();
    assert!(site.stats().attention.iter().any(|of| of.starts_with("2 entries of list files are PASSED OVER")));
    // A user who means it writes it into the configuration.
    site.write("ratelimitd.toml", FILE.replace("deny =", "allow = [\"file:ours.txt\", \"0.0.0.0/0\"]\ndeny ="));
    site.said(|engine, moment| engine.reload(ReloadRequest::default(), moment)).0.unwrap();
    assert_eq!(exempt(&site), ["0.0.0.0/0", "203.0.113.9/32"]);
}

#[tokio::test]
async fn a_reload_and_an_apply_tell_who_asks_for_them() {
    for is_apply in [false, true] {
        let mut site = Watched::on(around);
        site.write("bad.txt", WIDE.to_owned() + "10.0.0.0/24\n");
        let notes = site.said(|engine, moment| {
            if is_apply {
                engine.apply(&ApplyRequest::default(), &root(), moment).unwrap().notes
            } else {
                engine.reload(ReloadRequest::default(), moment).unwrap().notes
            }
        });
        let said = notes.0.join("\n");
        assert!(said.contains("0.0.0.0/1 is more of IPv4") && said.contains("10.0.0.0/24 holds 10.0.0.1"), "{said}");
    }
}

#[tokio::test]
async fn a_gateway_that_comes_later_takes_its_prefix_out_of_the_lists_and_gives_it_back() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static IS_THERE: AtomicBool = AtomicBool::new(false);
    fn around() -> Around {
        let gateways = if IS_THERE.load(Ordering::Relaxed) { vec!["10.0.0.1".parse().unwrap()] } else { Vec::new() };
        Around { gateways, ..Around::default() }
    }
    let mut site = Watched::on(around);
    site.write("bad.txt", "10.0.0.0/24\n192.0.2.7\n");
    site.two_looks();
    assert_eq!(site.denied().len(), 3);
    for (is_there, count) in [(true, 2), (false, 3)] {
        IS_THERE.store(is_there, Ordering::Relaxed);
        // The daemon looks for gateways twice a minute.
        let said: String = (0..17).map(|_| site.look()).collect();
        assert_eq!(site.denied().len(), count, "{said}");
        assert_eq!(said.contains("10.0.0.0/24 holds 10.0.0.1"), is_there, "{said}");
    }
}
