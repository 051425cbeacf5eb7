//! Size of the program as this kernel loads it, compared with the numbers in budget.toml.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use netlab::needs_root;
use std::collections::BTreeMap;

use integration_test::program::{Program, limit, policy};
use ratelimit_common::layout::Unit;
use ratelimit_policy::desired::WindowForm;

const BUDGET: &str = include_str!("../budget.toml");

/// Returns the numbers of a file that has only comments, one heading and pairs: for the whole program and for its
/// functions.
fn budget() -> BTreeMap<&'static str, u32> {
    let lines = BUDGET.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '[']));
    let pairs = lines.map(|line| line.split_once(" = ").unwrap_or_else(|| panic!("budget.toml: {line}")));
    pairs.map(|(name, number)| (name, number.parse().unwrap())).collect()
}

#[test]
fn the_program_is_within_its_budget() {
    needs_root!();
    let mut program = Program::on_the_kernels_clock(&policy(&[limit(1, Unit::Connections, WindowForm::Strict)]));
    let (size, at_tcx) = (program.size(), program.size_at_tcx());
    let whole = [
        ("verified_instructions", size.verified_instructions),
        ("instructions", size.translated_bytes / 8),
        ("jited_bytes", size.jited_bytes),
        ("tcx_verified_instructions", at_tcx.verified_instructions),
        ("tcx_instructions", at_tcx.translated_bytes / 8),
        ("tcx_jited_bytes", at_tcx.jited_bytes),
    ];
    let functions = size.functions.iter().map(|(name, bytes)| (name.as_str(), *bytes));
    let is: BTreeMap<_, _> = whole.into_iter().chain(functions).collect();
    let budget = budget();
    assert!(
        is.keys().eq(budget.keys()),
        "`cargo xtask bench --write-budget` records what there is: {is:?}, not {budget:?}"
    );
    let over: Vec<_> = is.iter().filter(|(name, is)| **is > budget[*name]).collect();
    assert!(
        over.is_empty(),
        "the program is {is:?}, over its budget in {over:?} of {budget:?}. Where it is worth that, `cargo xtask bench --write-budget` \
         records it anew; say why in the commit"
    );
}
