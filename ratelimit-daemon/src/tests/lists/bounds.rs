//! Tests of poisoned `deny` lists: the previous version stays in force until an administrator accepts the new one.

use ratelimit_control::proto::AcceptList;
use ratelimit_report::snapshot::ListState;

use super::*;

const GOOD: &str = "192.0.2.0/24\n";

fn eights() -> String {
    (1..=255).map(|octet| format!("{octet}.0.0.0/8\n")).collect()
}

fn of_v6() -> String {
    (0x2000..0x4000).map(|at| format!("{at:x}::/16\n")).collect()
}

fn sixteens(count: u32) -> String {
    (0..count).map(|at| format!("11.{at}.0.0/16\n")).collect()
}

fn accept(
    site: &mut Watched,
    name: &str,
) -> Result<ratelimit_control::proto::AcceptReport, ratelimit_control::proto::Problem> {
    accept_version(site, name, None)
}

fn accept_version(
    site: &mut Watched,
    name: &str,
    version: Option<String>,
) -> Result<ratelimit_control::proto::AcceptReport, ratelimit_control::proto::Problem> {
    let request = AcceptList { file: site.directory.path().join(name), version };
    site.said(|engine, moment| engine.accept_list(&request, &root(), moment)).0
}

fn state(site: &mut Watched) -> (ListState, String) {
    let stats = site.stats();
    let of = stats.lists.iter().find(|of| of.file.ends_with("bad.txt")).unwrap();
    (of.state, of.why.clone().unwrap_or_default())
}

#[tokio::test]
async fn a_poisoned_list_changes_nothing_however_it_comes_until_it_is_accepted() {
    for (text, words) in [
        (eights(), "it covers 99.6 % of IPv4, and 5 % is the most"),
        (of_v6(), "it covers 100.0 % of IPv6"),
        (sixteens(16), "1048576 addresses of IPv4 where it covered 256"),
    ] {
        let mut site = Watched::new();
        site.write("bad.txt", &text);
        // A feed's timer replaces the file.
        let said = site.two_looks();
        assert!(said.contains("WARN") && said.contains(words) && said.contains("ratelimitd lists accept"), "{said}");
        assert_eq!(site.denied(), ["192.0.2.0/24", "198.51.100.0/24"]);
        assert!(matches!(state(&mut site), (ListState::LastGood, why) if why.contains(words)));
        let stats = ratelimit_view::stats(&site.stats(), ratelimit_view::Page::ENDLESS);
        assert!(stats.contains("PARTLY PROTECTED") && stats.contains(words), "{stats}");
        assert!(site.said(Engine::supervise).0.notes.join("\n").contains("PARTLY PROTECTED"));
        assert_eq!(site.two_looks(), "", "once");
        // A reload is refused, even a forced one, and so is a trial.
        for force in [false, true] {
            let request = ReloadRequest { force, ..ReloadRequest::default() };
            let refused = site.said(|engine, moment| engine.reload(request, moment)).0.unwrap_err();
            assert!(refused.message.contains(words) && refused.message.contains("lists accept"), "{refused:?}");
        }
        for confirm_seconds in [None, Some(20)] {
            let request = ApplyRequest { confirm_seconds, force: true, ..ApplyRequest::default() };
            let refused = site.said(|engine, moment| engine.apply(&request, &root(), moment)).0.unwrap_err();
            assert!(refused.message.contains(words), "{refused:?}");
        }
        // A start keeps the last good version.
        site.restart().unwrap();
        assert_eq!(site.denied(), ["192.0.2.0/24", "198.51.100.0/24"]);
        assert!(matches!(state(&mut site), (ListState::LastGood, why) if why.contains(words)));
        assert_eq!(site.two_looks(), "", "once");
        // Once accepted, the version survives a restart and a reload.
        let report = accept(&mut site, "bad.txt").unwrap();
        assert!(report.in_force && report.prefixes == text.lines().count() as u64, "{report:?}");
        let held = site.denied().len();
        assert!(held > 16 && state(&mut site).0 == ListState::InForce);
        assert_eq!(site.two_looks(), "");
        site.restart().unwrap();
        site.said(|engine, moment| engine.reload(ReloadRequest::default(), moment)).0.unwrap();
        assert_eq!((site.denied().len(), state(&mut site).0), (held, ListState::InForce));
    }
}

#[tokio::test]
async fn a_first_version_that_denies_too_much_is_left_out_of_a_start() {
    let mut site = Watched::new();
    std::fs::remove_dir_all(site.directory.path().join("state")).unwrap();
    site.write("bad.txt", eights());
    site.restart().unwrap();
    assert_eq!((site.denied(), site.amount()), (vec!["198.51.100.0/24".to_owned()], 3));
    assert_eq!(state(&mut site).0, ListState::LeftOut);
    site.write("bad.txt", GOOD);
    site.two_looks();
    assert_eq!((site.denied().len(), state(&mut site).0), (2, ListState::InForce));
}

#[tokio::test]
async fn another_version_than_the_accepted_one_needs_to_be_accepted_too() {
    let mut site = Watched::new();
    site.write("bad.txt", eights());
    site.two_looks();
    accept(&mut site, "bad.txt").unwrap();
    site.write("bad.txt", eights() + "9.9.0.0/16\n");
    assert!(site.two_looks().contains("it covers 99.6 % of IPv4"));
    assert_eq!(state(&mut site).0, ListState::LastGood);
    site.restart().unwrap();
    assert_eq!((state(&mut site).0, site.denied().len() > 200), (ListState::LastGood, true), "the accepted one holds");
}

#[tokio::test]
async fn a_version_that_is_replaced_before_it_is_accepted_is_not_accepted() {
    let mut site = Watched::new();
    let named = |said: &str| said.split("lists accept ").nth(1).unwrap().split_whitespace().nth(1).unwrap().to_owned();
    site.write("bad.txt", sixteens(16));
    let looked_at = named(&site.two_looks());
    site.write("bad.txt", eights());
    let refused = accept_version(&mut site, "bad.txt", Some(looked_at.clone())).unwrap_err();
    assert!(
        refused.message.contains("another version now, of 255 prefixes, which cover 99.6 % of IPv4"),
        "{refused:?}"
    );
    assert_eq!(site.denied(), ["192.0.2.0/24", "198.51.100.0/24"]);
    assert_ne!(named(&refused.message), looked_at);
    site.write("bad.txt", sixteens(16));
    let report = accept_version(&mut site, "bad.txt", Some(looked_at.clone())).unwrap();
    assert_eq!((report.version, report.prefixes, report.in_force), (looked_at, 16, true));
}

#[tokio::test]
async fn accepted_lists_are_read_strictly_and_unnamed_ones_reported_as_unused() {
    let mut site = Watched::new();
    site.write("bad.txt", sixteens(16) + "nonsense\n");
    let refused = accept(&mut site, "bad.txt").unwrap_err();
    assert!(refused.message.contains("bad.txt:17:1: bad line") && !refused.message.contains("nonsense"), "{refused:?}");
    assert!(accept(&mut site, "none.txt").unwrap_err().message.contains("cannot read the list file"));
    site.write("new.txt", eights());
    assert!(!accept(&mut site, "new.txt").unwrap().in_force);
    site.write("bad.txt", GOOD);
    site.write("ratelimitd.toml", FILE.replace("file:other.txt", "file:new.txt"));
    site.said(|engine, moment| engine.reload(ReloadRequest::default(), moment)).0.unwrap();
    assert!(site.denied().len() > 200, "it was accepted before a configuration named it");
    site.try_out(None);
    site.write("ratelimitd.toml", FILE.replace("file:other.txt", "file:new.txt").replace("3/5m", "4/5m"));
    site.try_out(None);
    assert!(accept(&mut site, "bad.txt").unwrap_err().message.contains("a file is on trial"));
}

#[tokio::test]
async fn lists_that_allow_and_lists_of_rules_have_no_bound_and_keys_move_it() {
    let mut site = Watched::new();
    let reload = |site: &mut Watched, text: &str| {
        site.write("ratelimitd.toml", text);
        site.said(|engine, moment| engine.reload(ReloadRequest::default(), moment)).0.map(drop)
    };
    site.write("bad.txt", eights());
    let of_rule =
        "interfaces = [\"eth0\"]\n[lists]\nbad = \"file:bad.txt\"\n[rule]\nfrom = \"@bad\"\nlimits = [\"3/5m\"]\n";
    reload(&mut site, of_rule).unwrap();
    let wider = |share: &str| format!("{FILE}[safety]\ndeny_list_share = \"{share}\"\n");
    assert!(reload(&mut site, &wider("99%")).is_err());
    reload(&mut site, &wider("100%")).unwrap();
    site.write("bad.txt", GOOD);
    reload(&mut site, FILE).unwrap();
    site.write("bad.txt", sixteens(16));
    assert!(reload(&mut site, FILE).is_err());
    reload(&mut site, &format!("{FILE}[safety]\ndeny_list_growth = \"off\"\n")).unwrap();
}
