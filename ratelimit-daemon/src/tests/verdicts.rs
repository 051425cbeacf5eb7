//! Tests of `check` and `list` with a daemon that uses list files.

use super::lists::{Watched, root};
use super::*;
use ratelimit_control::proto::{GrantRequest, ModeWord, ReloadRequest};
use ratelimit_policy::config::network::Target;
use ratelimit_policy::desired::Grant;
use ratelimit_report::snapshot::{CheckReport, ListFilter, ListReport, RuleMode, RuleVerdict};

mod groups;

fn check(site: &mut Watched, source: &str) -> CheckReport {
    site.said(|engine, moment| engine.check(address(source), moment).unwrap()).0
}

fn verdict(site: &mut Watched, source: &str) -> RuleVerdict {
    check(site, source).verdicts.remove(0)
}

fn list(site: &mut Watched, filter: &ListFilter) -> ListReport {
    site.said(|engine, moment| engine.list(filter.clone(), moment).unwrap()()).0
}

fn grant(site: &mut Watched, grant: Grant, prefix: &str) {
    let request = GrantRequest { prefix: prefix.to_owned(), ..GrantRequest::default() };
    site.said(|engine, moment| engine.grant(grant, Target::parse(prefix).unwrap(), &request, &root(), moment).unwrap());
}

#[tokio::test]
async fn a_source_denied_by_a_list_is_told_its_file_line_and_remedy() {
    let mut site = Watched::new();
    site.write("bad.txt", "# feed\n203.0.113.0/24\n\n192.0.2.0/24 ; SBL1\n");
    site.two_looks();
    let path = site.directory.path().join("bad.txt");
    let of = verdict(&mut site, "192.0.2.7");
    assert_eq!(of.reason, "denied");
    assert_eq!(of.decided_by, format!("list bad ({} line 4: SBL1), which denies 192.0.2.0/24", path.display()));
    let undo = of.undo.unwrap();
    assert!(undo.contains(&format!("take 192.0.2.0/24 out of {} line 4", path.display())), "{undo}");
    assert!(undo.ends_with("sudo ratelimitd allow 192.0.2.7") && !undo.contains("unblock"), "{undo}");
    grant(&mut site, Grant::Exempt, "192.0.2.7");
    let of = verdict(&mut site, "192.0.2.7");
    assert_eq!((of.reason.as_str(), of.decided_by.as_str()), ("exempt", "root's allow of 192.0.2.7"));
}

#[tokio::test]
async fn a_source_denied_by_a_command_and_a_list_is_told_both() {
    let mut site = Watched::new();
    grant(&mut site, Grant::Denied, "192.0.2.7");
    let of = verdict(&mut site, "192.0.2.7");
    assert_eq!(of.decided_by, "root's denial of 192.0.2.7");
    let undo = of.undo.unwrap();
    assert!(undo.starts_with("sudo ratelimitd unblock 192.0.2.7; take 192.0.2.0/24 out of "), "{undo}");
}

#[tokio::test]
async fn denied_sources_pass_in_a_panic_and_are_told_what_would_apply() {
    let mut site = Watched::new();
    site.said(|engine, moment| engine.set_mode(ModeWord::Panic, &root(), moment).unwrap());
    let report = check(&mut site, "192.0.2.7");
    assert_eq!((report.verdict.label(), report.reason.as_str()), ("pass", "dry_run"));
    let of = &report.verdicts[0];
    assert_eq!(of.would.as_deref(), Some("denied"));
    assert!(of.decided_by.starts_with("panic by root since "), "{}", of.decided_by);
}

#[tokio::test]
async fn mode_enforce_says_of_each_rule_what_it_does_now() {
    let mut site = Watched::new();
    let rule =
        |name: &str, mode: &str| format!("[[rule]]\nname = \"{name}\"\nmode = \"{mode}\"\nlimits = [\"3/5m\"]\n");
    site.write("ratelimitd.toml", "interfaces = [\"eth0\"]\n".to_owned() + &rule("ssh", "dry-run"));
    site.said(|engine, moment| engine.reload(ReloadRequest::default(), moment).unwrap());
    let enforce = |site: &mut Watched| {
        site.said(|engine, moment| engine.set_mode(ModeWord::Panic, &root(), moment).unwrap());
        site.said(|engine, moment| engine.set_mode(ModeWord::Enforce, &root(), moment).unwrap())
    };
    let (report, said) = enforce(&mut site);
    assert!(said.contains("rule ssh stays in dry run, as the configuration says"), "{said}");
    assert!(!said.contains("drop"), "{said}");
    let of = |rules: &[RuleMode]| rules.iter().map(|of| (of.name.clone(), of.mode)).collect::<Vec<_>>();
    assert_eq!(of(&report.rules), [("ssh".to_owned(), snapshot::Mode::DryRun)]);
    let both = "interfaces = [\"eth0\"]\n".to_owned() + &rule("web", "enforce") + &rule("ssh", "dry-run");
    site.write("ratelimitd.toml", both);
    site.said(|engine, moment| engine.reload(ReloadRequest::default(), moment).unwrap());
    let (report, said) = enforce(&mut site);
    assert!(said.contains("rule web drops what is over its limit; rule ssh stays in dry run"), "{said}");
    assert_eq!(of(&report.rules)[0], ("web".to_owned(), snapshot::Mode::Enforce));
}

#[tokio::test]
async fn a_list_shows_where_its_entries_come_from_and_is_bounded() {
    let mut site = Watched::new();
    site.write("bad.txt", "192.0.2.0/24 ; SBL1\n192.0.3.0/24 # a Scanner\n192.0.4.0/24\n");
    site.two_looks();
    let row =
        |report: &ListReport, prefix: &str| report.entries.iter().find(|of| of.prefix == prefix).cloned().unwrap();
    let all = list(&mut site, &ListFilter::default());
    assert_eq!(all.entries.len(), 4);
    let of = row(&all, "192.0.3.0/24");
    let path = site.directory.path().join("bad.txt").display().to_string();
    assert_eq!((of.list.as_deref(), of.file.as_deref(), of.line), (Some("bad"), Some(path.as_str()), Some(2)));
    assert_eq!((of.comment.as_deref(), of.reason), (Some("a Scanner"), None));
    let said = ratelimit_view::list(&all, usize::MAX);
    assert!(said.contains("list bad line 1: SBL1\n") && said.contains("other.txt line 1\n"), "{said}");
    let some = list(&mut site, &ListFilter { reason: Some("SCANNER".into()), ..ListFilter::default() });
    assert_eq!(some.entries.len(), 1);
    let few = list(&mut site, &ListFilter { most: Some(1), ..ListFilter::default() });
    let said = ratelimit_view::list(&few, usize::MAX);
    assert!(said.ends_with("\nlist bad: 2 more; `ratelimitd list --all` shows them\n"), "{said}");
}

#[tokio::test]
async fn a_prefix_is_checked_with_what_lists_and_commands_say_of_it() {
    let mut site = Watched::new();
    grant(&mut site, Grant::Exempt, "192.0.2.7");
    let of = |site: &mut Watched, prefix: &str| {
        let prefix = prefix.parse().unwrap();
        site.said(|engine, moment| engine.check_prefix(prefix, Some(9), moment).unwrap()()).0
    };
    let part = of(&mut site, "192.0.0.0/16");
    assert_eq!((part.verdict.label(), part.entries.len()), ("drop", 2));
    let whole = of(&mut site, "192.0.2.64/26");
    let by = whole.decided_by.clone().unwrap();
    assert!(by.starts_with("list bad (") && by.ends_with(" line 1), which denies 192.0.2.0/24"), "{by}");
    let said = ratelimit_view::check_prefix(&whole);
    assert!(
        said.starts_with("192.0.2.64/26 is blocked completely.\nThe whole network is decided by list bad ("),
        "{said}"
    );
    assert_eq!(of(&mut site, "203.0.113.0/24").verdict.label(), "pass");
}

#[tokio::test(start_paused = true)]
async fn a_list_of_as_many_prefixes_as_there_may_be_goes_over_the_socket() {
    let access = |at: u32| {
        ratelimit_policy::desired::Access::denied(ipnet::IpNet::from(std::net::IpAddr::from(
            (0x0a00_0000 | at).to_be_bytes(),
        )))
    };
    let many = |config: &mut Config| config.policy.access = (0..100_000).map(access).collect();
    let running = start(None, many, |_| ConfigSource::Flags).await;
    assert_eq!(running.client.list().await.unwrap().entries.len(), 100_000);
    let filter = ListFilter { most: Some(50), ..ListFilter::default() };
    let report = running.client.list_of(&filter).await.unwrap();
    assert_eq!((report.entries.len(), report.omitted[0].count), (50, 99_950));
    let prefix = "10.0.0.0/24".parse().unwrap();
    let report = running.client.check_prefix(prefix, 5).await.unwrap();
    assert_eq!((report.entries.len(), report.omitted[0].count), (5, 251));
    running.stop().await;
}
