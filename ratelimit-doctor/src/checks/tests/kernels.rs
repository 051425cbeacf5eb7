//! Tests of the kernel checks with feature tables of several distributions' kernels.

use ratelimit_kernel::probe::Feature;
use ratelimit_policy::config::HookChoice;

use super::super::features::FEATURES;
use super::{config_of, healthy, unwell};
use crate::checks::examine;
use crate::distribution::Distribution;
use crate::facts::{Facts, Program};
use crate::finding::{Finding, State};

/// Returns a host with this kernel, which lacks the given features and TCX.
fn host(release: &str, os_release: &str, lacks: &[&str]) -> Facts {
    let mut facts = healthy();
    facts.kernel.release = release.to_owned();
    facts.kernel.distribution = Distribution::parse(os_release);
    let feature = |name: &str| Feature { name: name.to_owned(), is_there: Ok(!lacks.contains(&name)) };
    facts.kernel.features = FEATURES.iter().map(|of| feature(of.name)).collect();
    assert!(lacks.iter().all(|name| FEATURES.iter().any(|of| of.name == *name)), "{lacks:?}");
    if !lacks.is_empty() {
        facts.kernel.program = Program::Refused { why: "unknown func".into(), log: None };
    }
    facts.machine.has_tcx = false;
    facts
}

fn missing(facts: &Facts) -> Vec<Finding> {
    unwell(facts).into_iter().filter(|of| of.id == "kernel.features").collect()
}

const LACKS_OF_5_10: [&str; 3] =
    ["function bpf_loop", "function bpf_xdp_get_buff_len", "XDP programs for frames of several buffers"];

#[test]
fn a_missing_feature_is_reported_with_what_still_works_and_the_package_that_brings_it() {
    let rows = [
        ("5.10.0-33-amd64", "ID=debian\nVERSION_ID=\"11\"\n", "linux-image-6.1-$(dpkg --print-architecture)"),
        ("5.15.0-91-generic", "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"22.04\"\n", "linux-generic-hwe-22.04"),
        ("4.18.0-553.el8", "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\nVERSION_ID=\"8.10\"\n", "release 9"),
        ("5.10.9", "", "mainline has it since Linux 5.1"),
    ];
    for (release, os_release, package) in rows {
        let found = missing(&host(release, os_release, &LACKS_OF_5_10));
        assert_eq!(found.len(), 3, "{found:#?}");
        for of in found {
            assert_eq!(of.state, State::Problem);
            assert!(of.seen.starts_with(&format!("Linux {release} lacks ")), "{of:?}");
            assert!(
                of.seen.contains("`replay`, `suggest --from`, `check-config` and `lists check` still work"),
                "{of:?}"
            );
            assert!(of.mend.as_ref().is_some_and(|mend| mend.contains(package)), "{of:?}");
        }
    }
    let found = missing(&host("5.10.9", "", &["function bpf_loop"]));
    assert!(found[0].seen.contains("lacks function bpf_loop, for reading packets"), "{found:?}");
    assert!(found[0].mend.as_ref().unwrap().contains("since Linux 5.17"), "{found:?}");
}

#[test]
fn an_old_kernel_version_with_all_features_passes() {
    let rhel = "ID=\"rhel\"\nID_LIKE=\"fedora\"\nVERSION_ID=\"9.6\"\n";
    let facts = host("5.14.0-570.12.1.el9_6.x86_64", rhel, &[]);
    assert_eq!(unwell(&facts), []);
    let all = examine(&facts).checks;
    let seen = |id: &str| all.iter().find(|of| of.id == id).map(|of| of.seen.clone()).unwrap_or_default();
    assert_eq!(seen("kernel.features"), "Linux 5.14.0-570.12.1.el9_6.x86_64: 24 features were tried and are there");
    assert!(
        seen("kernel.tcx").contains("lacks TCX: the filter runs at XDP, and only on Ethernet"),
        "{}",
        seen("kernel.tcx")
    );
}

#[test]
fn a_new_kernel_version_without_a_feature_fails() {
    let facts = host("6.12.0-custom", "ID=debian\nVERSION_ID=\"13\"\n", &["map LPM trie"]);
    let found = missing(&facts);
    assert!(found[0].seen.contains("lacks map LPM trie, for lists of prefixes"), "{found:?}");
    assert_eq!(
        found[0].mend.as_deref(),
        Some("sudo apt install linux-image-$(dpkg --print-architecture); then reboot")
    );
}

#[test]
fn tcx_is_a_problem_only_if_the_configuration_asks_for_it() {
    let mut facts = host("6.1.0-18-amd64", "ID=debian\nVERSION_ID=\"12\"\n", &[]);
    assert_eq!(unwell(&facts), []);
    config_of(&mut facts).hook = HookChoice::Tcx;
    let found = unwell(&facts).into_iter().find(|of| of.id == "kernel.tcx").unwrap();
    assert_eq!(found.state, State::Problem);
    let mend = found.mend.unwrap();
    assert!(mend.contains("hook = \"auto\"") && mend.contains("-t bookworm-backports"), "{mend}");
}
