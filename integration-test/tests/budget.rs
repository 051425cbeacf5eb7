//! How large the program is, as this kernel takes it, held against what is recorded in budget.toml.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::collections::{BTreeMap, BTreeSet};

use integration_test::is_skipped;
use integration_test::program::{Program, limit, policy};
use ratelimit_common::layout::Unit;
use ratelimit_userspace::desired::WindowForm;

const BUDGET: &str = include_str!("../budget.toml");

/// The numbers of the whole program, and those of its functions: of a file that has nothing else but comments.
fn budget() -> [BTreeMap<&'static str, u32>; 2] {
    let (whole, functions) = BUDGET.split_once("[functions]\n").unwrap();
    [whole, functions].map(|part| {
        let lines = part.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let pairs = lines.map(|line| line.split_once(" = ").unwrap_or_else(|| panic!("budget.toml: {line}")));
        pairs.map(|(name, number)| (name, number.parse().unwrap())).collect()
    })
}

#[test]
fn the_program_is_within_its_budget() {
    if is_skipped("the_program_is_within_its_budget") {
        return;
    }
    let size = Program::on_the_kernels_clock(&policy(&[limit(1, Unit::Connections, WindowForm::Strict)])).size();
    let is = [
        ("verified_instructions", size.verified_instructions),
        ("instructions", size.translated_bytes / 8),
        ("jited_bytes", size.jited_bytes),
    ];
    let [budget, functions] = budget();
    assert_eq!(budget.keys().copied().collect::<Vec<_>>(), ["instructions", "jited_bytes", "verified_instructions"]);
    let are: BTreeSet<_> = size.functions.keys().map(String::as_str).collect();
    let recorded: BTreeSet<_> = functions.keys().copied().collect();
    assert_eq!(are, recorded, "`cargo xtask bench --write-budget` records what there is");
    let is_over =
        |(name, bytes): (&String, &u32)| (*bytes > functions[name.as_str()]).then(|| format!("{name}: {bytes}"));
    let over: Vec<_> = size.functions.iter().filter_map(is_over).collect();
    assert!(over.is_empty(), "bytes of machine code, over what is recorded in {functions:?}: {over:?}");
    let over: Vec<_> = is.iter().filter(|(name, is)| *is > budget[name]).collect();
    assert!(
        over.is_empty(),
        "the program is {is:?}, over its budget in {over:?} of {budget:?}. Where it is worth that, `cargo xtask bench --write-budget` \
         records it anew; say why in the commit"
    );
}
