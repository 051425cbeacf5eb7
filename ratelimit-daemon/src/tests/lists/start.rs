//! Tests of list files that a start cannot take unchanged: readable parts are enforced, and the rest is reported.

use ratelimit_report::snapshot::{ListFileReport, ListState};

use super::*;

const GROUP: &str = "interfaces = [\"eth0\"]\nallow = [\"file:good.txt\"]\ndeny = [\"@bad\"]\n[lists]\nbad = \"file:bad.txt\"\n\
    crowd = \"file:crowd.txt\"\n[[rule]]\nname = \"crowd\"\nfrom = \"@crowd\"\nlimits = [\"5/1m per list\"]\n\
    [[rule]]\nname = \"all\"\nlimits = [\"3/5m\"]\n";
const DAMAGED: &str = "203.0.113.4254.0.2.223\n";
const PAGE: &str = "<!DOCTYPE html>\n<html>\n<p>Error 503</p>\n</html>\n";

fn list(good: u32) -> String {
    (0..good).map(|at| format!("192.0.2.{at}\n")).collect()
}

/// Leaves a file in the state that a start finds. None removes the file.
fn leave(site: &Watched, name: &str, text: Option<&str>) {
    match text {
        Some(text) => site.write(name, text),
        None => std::fs::remove_file(site.directory.path().join(name)).unwrap(),
    }
}

fn lists(site: &mut Watched) -> Vec<ListFileReport> {
    site.stats().lists.clone()
}

/// Asserts that every report of the daemon says what is not in force of one list.
fn assert_said(site: &mut Watched, name: &str, state: ListState, why: &str) {
    let of = lists(site).into_iter().find(|of| of.file.ends_with(name)).unwrap();
    assert_eq!((of.state, of.why.as_ref().is_some_and(|of| of.contains(why))), (state, true), "{of:?}");
    let stats = ratelimit_view::stats(&site.stats(), ratelimit_view::Page::ENDLESS);
    assert!(stats.contains("PARTLY PROTECTED") && stats.contains(name) && stats.contains(why), "{stats}");
    let supervision = site.said(Engine::supervise).0;
    let healthz = supervision.notes.join("\n");
    assert!(healthz.contains("PARTLY PROTECTED") && healthz.contains(name), "{healthz}");
    assert!(supervision.line.contains("PARTLY PROTECTED"), "{}", supervision.line);
    assert!(supervision.problems.is_empty(), "packets are limited all the same");
    for other in ListState::ALL {
        let file = site.directory.path().join(name);
        let line = format!(
            "ratelimitd_list_state{{file=\"{}\",state=\"{}\"}} {}",
            file.display(),
            other.label(),
            u8::from(other == state)
        );
        assert!(site.metric(&line), "{line}");
    }
    let told = site.engine.journal.feed().report(&ratelimit_control::proto::EventsOf::default()).unwrap();
    assert!(
        told.events.iter().any(|of| of.detail.contains("PARTLY PROTECTED") && of.detail.contains(name)),
        "{told:?}"
    );
}

fn assert_whole(site: &mut Watched) {
    assert!(lists(site).iter().all(|of| of.is_whole() && of.why.is_none()), "{:?}", lists(site));
    let stats = ratelimit_view::stats(&site.stats(), ratelimit_view::Page::ENDLESS);
    assert!(!stats.contains("PARTLY PROTECTED"), "{stats}");
}

#[tokio::test]
async fn a_start_with_an_unreadable_list_uses_the_last_good_version() {
    let gzip = [0x1f_u8, 0x8b, 8, 0].iter().map(|byte| char::from(*byte)).collect::<String>();
    for (text, why) in [
        (None, "cannot read the list file: no such file"),
        (Some(PAGE), "an HTML page"),
        (Some("{\n \"ips\": []\n}\n"), "a JSON document"),
        (Some(DAMAGED), "bad.txt:1:1: bad line in a list file"),
        (Some(""), "has become empty"),
        (Some("# all gone\n"), "has become empty"),
        (Some(gzip.as_str()), "bad.txt"),
    ] {
        let mut site = Watched::new();
        assert_whole(&mut site);
        leave(&site, "bad.txt", text);
        site.restart().unwrap();
        assert_eq!(site.denied(), ["192.0.2.0/24", "198.51.100.0/24"], "{why}");
        assert_eq!(site.amount(), 3, "limits are enforced");
        assert_said(&mut site, "bad.txt", ListState::LastGood, why);
        assert!(site.metric("ratelimitd_list_files_stale 1"));
        assert_eq!(site.two_looks(), "", "{why}: said once");
        site.restart().unwrap();
        assert_eq!(site.denied(), ["192.0.2.0/24", "198.51.100.0/24"], "{why}: a second start has it too");
        site.write("bad.txt", "203.0.113.7\n");
        let said = site.two_looks();
        assert!(said.contains("is followed again"), "{why}: {said}");
        assert_eq!(site.denied(), ["198.51.100.0/24", "203.0.113.7/32"], "{why}");
        assert_whole(&mut site);
        leave(&site, "bad.txt", text);
        site.restart().unwrap();
        assert_eq!(site.denied(), ["198.51.100.0/24", "203.0.113.7/32"], "{why}: each version that holds is kept");
    }
}

#[tokio::test]
async fn a_start_leaves_the_bad_lines_of_a_damaged_list_out_and_names_the_first() {
    let mut site = Watched::new();
    site.write("bad.txt", list(100) + DAMAGED + &list(250).replace("192.0.2", "203.0.113"));
    let reload = site.said(|engine, moment| engine.reload(ReloadRequest::default(), moment)).0;
    assert!(reload.unwrap_err().message.contains("bad.txt:101:1: bad line"), "a reload is strict");
    site.restart().unwrap();
    assert_eq!(site.denied().len(), 351);
    assert_said(&mut site, "bad.txt", ListState::InForce, "bad.txt:101:1: bad line in a list file");
    let of = lists(&mut site).into_iter().find(|of| of.file.ends_with("bad.txt")).unwrap();
    assert_eq!((of.lines_left_out, of.line), (1, Some(101)));
    assert_eq!(site.two_looks() + &site.two_looks(), "", "it is as damaged as it was");
    assert_eq!(lists(&mut site)[0].lines_left_out, 1);
    // A later fault of another kind keeps what the start took.
    site.write("bad.txt", PAGE);
    assert!(site.two_looks().contains("an HTML page"));
    assert_eq!((site.denied().len(), lists(&mut site)[0].state), (351, ListState::LastGood));
    // A start prefers the last version that was good as a whole.
    site.restart().unwrap();
    assert_eq!(site.denied(), ["192.0.2.0/24", "198.51.100.0/24"]);
    site.write("bad.txt", "203.0.113.7\n");
    site.two_looks();
    assert_whole(&mut site);
}

#[tokio::test]
async fn a_first_start_with_lists_that_cannot_be_read_enforces_the_limits_without_them() {
    for text in [None, Some(PAGE), Some(DAMAGED)] {
        let mut site = Watched::new();
        std::fs::remove_dir_all(site.directory.path().join("state")).unwrap();
        site.write("ratelimitd.toml", GROUP);
        site.write("good.txt", "192.0.2.7\n");
        site.write("crowd.txt", "203.0.113.0/24\n");
        for name in ["good.txt", "bad.txt", "crowd.txt"] {
            leave(&site, name, text);
        }
        site.restart().unwrap();
        let policy = site.kernel.policy().unwrap();
        assert!(policy.access.is_empty(), "{policy:?}");
        let from: Vec<String> = policy.rules[0].from.iter().map(ToString::to_string).collect();
        assert_eq!(from, ["0.0.0.0/32"], "a rule for a list that is not there is for nobody");
        assert!(policy.rules[1].from.is_empty() && policy.rules[1].limits[0].amount == 3);
        for name in ["good.txt", "bad.txt", "crowd.txt"] {
            assert_said(&mut site, name, ListState::LeftOut, name);
        }
        // Each list is adopted once it is fixed, even while others are not.
        site.write("crowd.txt", "203.0.113.0/24\n");
        let said = site.two_looks();
        assert!(said.contains("is followed again") && said.contains("crowd.txt"), "{said}");
        let from: Vec<String> = site.kernel.policy().unwrap().rules[0].from.iter().map(ToString::to_string).collect();
        assert_eq!(from, ["203.0.113.0/24"]);
        site.write("good.txt", "192.0.2.7\n");
        site.write("bad.txt", "198.51.100.7\n");
        site.two_looks();
        assert_eq!(site.denied(), ["198.51.100.7/32"]);
        assert_eq!(site.kernel.policy().unwrap().prefixes(Grant::Exempt).count(), 1);
        assert_whole(&mut site);
    }
}

#[tokio::test]
async fn a_group_and_an_allow_list_have_their_last_good_version_after_a_start() {
    let mut site = Watched::new();
    site.write("ratelimitd.toml", GROUP);
    site.write("good.txt", "192.0.2.7\n");
    site.write("crowd.txt", "203.0.113.0/24\n");
    site.restart().unwrap();
    site.two_looks();
    for name in ["good.txt", "bad.txt", "crowd.txt"] {
        leave(&site, name, None);
    }
    let before = site.kernel.policy().unwrap();
    site.restart().unwrap();
    assert_eq!(site.kernel.policy().unwrap(), before);
    assert_eq!(lists(&mut site).iter().filter(|of| of.state == ListState::LastGood).count(), 3);
}

#[tokio::test]
async fn lists_too_wide_together_leave_out_the_largest_and_keep_the_limits() {
    let mut site = Watched::new();
    let bounds = "[safety]\ndeny_list_share = \"off\"\ndeny_list_growth = \"off\"\n";
    site.write("ratelimitd.toml", format!("{FILE}{bounds}"));
    let eights = |first: u32| (first..=255).step_by(2).map(|octet| format!("{octet}.0.0.0/8\n")).collect::<String>();
    site.write("bad.txt", eights(0) + "11.0.0.0/16\n");
    site.write("other.txt", eights(1));
    site.restart().unwrap();
    assert_eq!((site.amount(), site.denied().len()), (3, 129), "the last good version of the larger one");
    assert_said(&mut site, "bad.txt", ListState::LastGood, "together these are 0.0.0.0/0");
}

#[tokio::test]
async fn a_configuration_that_is_wrong_by_itself_does_not_start_whatever_its_lists_hold() {
    let site = Watched::new();
    let text = FILE.replace("3/5m", "3/5x");
    leave(&site, "bad.txt", None);
    let store = Store::at(site.directory.path().join("state"));
    let path = site.directory.path().join("ratelimitd.toml");
    let wrong = with_lists_of(&store, |read| file::parse_by(&path, &text, read)).unwrap_err();
    assert!(wrong.to_string().contains("5x") || wrong.to_string().contains("unit of time"), "{wrong}");
}

#[tokio::test]
async fn damaged_or_foreign_copies_are_not_used_and_a_full_disk_stops_nothing() {
    let mut site = Watched::new();
    let copies = site.directory.path().join("state/lists");
    let copy = |site: &Watched| {
        let entries: Vec<_> = std::fs::read_dir(&copies).unwrap().map(|of| of.unwrap().path()).collect();
        let path = site.directory.path().join("bad.txt").display().to_string();
        entries.into_iter().find(|of| std::fs::read_to_string(of).unwrap().contains(&path)).unwrap()
    };
    use std::os::unix::fs::PermissionsExt as _;
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&copies), mode(&copy(&site))), (0o700, 0o600));
    leave(&site, "bad.txt", None);
    let good = std::fs::read_to_string(copy(&site)).unwrap();
    let at = copy(&site);
    for damaged in [&good[..good.len() - 4], "", "192.0.2.0/24\n", &good.replace("192.0.2", "192.0.3")] {
        std::fs::write(&at, damaged).unwrap();
        site.restart().unwrap();
        assert_eq!(site.denied(), ["198.51.100.0/24"], "{damaged}");
        assert_eq!(lists(&mut site)[0].state, ListState::LeftOut);
    }
    std::fs::write(&at, &good).unwrap();
    std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o666)).unwrap();
    site.restart().unwrap();
    assert_eq!(site.denied(), ["198.51.100.0/24"], "anybody could have written it");
    // There is no room: the directory cannot be created.
    std::fs::remove_dir_all(&copies).unwrap();
    std::fs::write(&copies, "").unwrap();
    site.write("bad.txt", "203.0.113.7\n");
    let said = site.two_looks();
    assert_eq!(site.denied(), ["198.51.100.0/24", "203.0.113.7/32"], "{said}");
    assert_eq!(said.matches("its copy cannot be written").count(), 2, "{said}");
    let unkept = site.stats().unkept.clone().unwrap();
    assert!(unkept.starts_with("A RESTART FORGETS which version of a list file is in force: /"), "{unkept}");
    // Once there is room, both copies are written.
    std::fs::remove_file(&copies).unwrap();
    (0..40).for_each(|_| drop(site.look()));
    assert_eq!((site.stats().unkept.clone(), std::fs::read_dir(&copies).unwrap().count()), (None, 2));
}

#[tokio::test]
async fn the_copy_of_a_list_that_is_named_no_more_is_removed() {
    let mut site = Watched::new();
    let count = |site: &Watched| std::fs::read_dir(site.directory.path().join("state/lists")).unwrap().count();
    assert_eq!(count(&site), 2);
    site.write("ratelimitd.toml", FILE.replace(", \"file:other.txt\"", ""));
    site.said(|engine, moment| engine.reload(ReloadRequest::default(), moment).unwrap());
    assert_eq!(count(&site), 1);
}
