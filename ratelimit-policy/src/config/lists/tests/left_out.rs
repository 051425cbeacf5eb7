//! Tests of damaged list files: a start leaves out some lines, or the whole list.

use super::*;
use crate::config::file;

const DAMAGED: &str = "203.0.113.4254.0.2.223";

fn list(good: usize, bad: usize) -> String {
    let bad = format!("{DAMAGED}\n").repeat(bad);
    (0..good).fold(bad, |text, at| format!("{text}198.51.{}.{}\n", at / 250, at % 250))
}

#[test]
fn the_stated_share_of_lines_is_left_out_of_a_damaged_list_and_no_more() {
    for (good, bad, is_tolerated) in
        [(199, 1, true), (95, 5, true), (94, 6, false), (19, 1, true), (18, 1, false), (0, 1, false), (1900, 100, true)]
    {
        let text = list(good, bad);
        assert!(parse(Path::new("list"), &text).is_err(), "a reload stays strict");
        let of = parse_tolerant(Path::new("list"), &text);
        assert_eq!(of.is_some(), is_tolerated, "{good} good lines, {bad} bad");
        let Some(of) = of else { continue };
        assert_eq!((of.prefixes.len(), of.lines_left_out, of.first.line()), (good, bad, Some(1)));
        assert!(!of.first.to_string().contains("4254"), "{}", of.first);
    }
    assert!(parse_tolerant(Path::new("list"), &list(200, 0)).is_none(), "nothing is wrong with it");
    let mac = list(200, 0).replace('\n', "\r");
    assert!(parse_tolerant(Path::new("list"), &mac).is_none(), "lines that end in no known way");
}

#[test]
fn a_rule_for_a_list_that_is_left_out_is_for_nobody_and_not_for_everyone() {
    let text = "interfaces = [\"eth0\"]\ndeny = [\"@bad\"]\n[lists]\na_inner = [\"file:crowd.txt\"]\nbad = \"file:bad.txt\"\n\
        crowd = [\"@a_inner\"]\n[[rule]]\nname = \"group\"\nfrom = \"@crowd\"\nlimits = [\"5/1m per list\"]\n\
        [[rule]]\nname = \"all\"\nlimits = [\"100/1m\"]\n";
    let left_out = |_: &Path| Contents::Known(Arc::from([]));
    let config = file::parse_by(Path::new("r.toml"), text, left_out).unwrap_or_else(|error| panic!("{error}"));
    let from: Vec<String> = config.policy.rules[0].from.iter().map(ToString::to_string).collect();
    assert_eq!((from, config.policy.rules[1].from.len()), (vec!["0.0.0.0/32".to_owned()], 0));
    assert!(config.policy.access.is_empty() && config.list_files.len() == 2);
    let empty = |_: &Path| Contents::Read(Ok(String::new()));
    let error = file::parse_by(Path::new("r.toml"), text, empty).expect_err("an empty list is a mistake");
    assert!(error.to_string().contains("so the rule is for no source"), "{error}");
}
