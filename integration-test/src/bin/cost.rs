//! Measures the program's cost per packet with BPF_PROG_TEST_RUN, and prints JSON on stdout. `cargo xtask bench` runs
//! it as root and shows the result.
//!
//! Arguments: rounds, runs per round, maximum number of repetitions for rows with an unsteady floor, and optional
//! words. Given words select the rows whose names contain one of them. Rounds are interleaved: each row takes its turn
//! between two runs of the empty program, so that other load on the machine affects both. The benchmark creates its own
//! namespace, for connections over its loopback interface.

use anyhow::{Context as _, Result, bail, ensure};
use integration_test::cost::rows::{self, Row};
use integration_test::cost::runs::{Round, Runs};
use integration_test::machine;
use integration_test::steady::{Steadied, steadied, varied};
use netlab::Namespace;
use serde_json::{Value, json};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |what| -> Result<u32> {
        arguments.next().with_context(|| format!("{what} is missing"))?.parse().with_context(|| format!("read {what}"))
    };
    let (rounds, repeat) = (number("the number of rounds")?, number("the number of runs a round")?);
    let again_max = number("how often again")?;
    ensure!(rounds > 0 && repeat > 0, "nothing to measure");
    let words: Vec<String> = arguments.collect();
    if let Some(obstacle) = netlab::obstacle() {
        bail!("{obstacle}");
    }
    for swept in netlab::sweep()? {
        eprintln!("cost: removed leftovers of an earlier run: {swept}");
    }
    let report = Namespace::named("cost")?.inside(|| measure(rounds, repeat, again_max, &words))?;
    println!("{report:#}");
    Ok(())
}

fn measure(rounds: u32, repeat: u32, again_max: u32, words: &[String]) -> Result<Value> {
    let is_chosen = |row: &Row| words.is_empty() || words.iter().any(|word| row.name.contains(word));
    let chosen = rows::all().into_iter().filter(is_chosen);
    let mut all: Vec<Runs> = chosen.map(Runs::load).collect::<Result<_>>()?;
    ensure!(!all.is_empty(), "no row says {}", words.join(" or "));
    let positions: Vec<usize> = (0..all.len()).collect();
    let first = in_rounds(&mut all, &positions, rounds, repeat)?;
    let steadied = steadied(
        first,
        again_max,
        |rounds| varied(&floor(rounds)),
        |unsteady, again| {
            let names: Vec<&str> = unsteady.iter().map(|&at| all[at].row().name).collect();
            eprintln!("cost: the floor was not steady, measured again ({again} of {again_max}): {}", names.join("; "));
            in_rounds(&mut all, unsteady, rounds, repeat)
        },
    )?;
    let runs = all.first_mut().context("there are rows")?;
    let (size, at_tcx) = (runs.size(), runs.size_at_tcx());
    let bare_ns = steadied.iter().flat_map(|rounds| rounds.of.iter().flat_map(|round| round.bare_ns));
    Ok(json!({
        "kernel": machine::kernel(),
        "processor": machine::processor(),
        "rounds": rounds,
        "repeat": repeat,
        "verified_instructions": size.verified_instructions,
        "translated_bytes": size.translated_bytes,
        "jited_bytes": size.jited_bytes,
        "functions": size.functions,
        "at_tcx": {
            "verified_instructions": at_tcx.verified_instructions,
            "translated_bytes": at_tcx.translated_bytes,
            "jited_bytes": at_tcx.jited_bytes,
        },
        "bare_ns": spread(bare_ns.map(u64::cast_signed).collect()),
        "rows": all.iter().zip(&steadied).map(|(runs, rounds)| measured(runs.row(), rounds)).collect::<Vec<_>>(),
    }))
}

/// Measures each of these rows once per round.
fn in_rounds(all: &mut [Runs], positions: &[usize], rounds: u32, repeat: u32) -> Result<Vec<Vec<Round>>> {
    let mut of_rows: Vec<Vec<Round>> = positions.iter().map(|_| Vec::new()).collect();
    for round in 1..=rounds {
        eprint!("\rround {round} of {rounds}");
        for (of_row, &at) in of_rows.iter_mut().zip(positions) {
            of_row.push(all[at].round(repeat)?);
        }
    }
    eprintln!();
    Ok(of_rows)
}

/// Returns the empty program's time in each round, in nanoseconds: the mean of its two runs.
fn floor(rounds: &[Round]) -> Vec<f64> {
    rounds.iter().map(|Round { bare_ns: [before, after], .. }| (*before as f64).midpoint(*after as f64)).collect()
}

fn measured(row: &Row, steadied: &Steadied<Vec<Round>>) -> Value {
    let rounds = &steadied.of;
    let above = |round: &Round| {
        let [before, after] = round.bare_ns;
        round.ns.cast_signed() - before.midpoint(after).cast_signed()
    };
    json!({
        "name": row.name,
        "verdict": row.verdict,
        "limits": row.policy.rules[0].limits.len(),
        "ns": spread(rounds.iter().map(|round| round.ns.cast_signed()).collect()),
        "above_bare_ns": spread(rounds.iter().map(above).collect()),
        "floor_varied": steadied.floor_varied,
        "measured_again": steadied.measured_again,
    })
}

fn spread(mut values: Vec<i64>) -> Value {
    values.sort_unstable();
    json!({ "median": values[values.len() / 2], "min": values[0], "max": values[values.len() - 1] })
}
