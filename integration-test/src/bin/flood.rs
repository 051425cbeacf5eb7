//! Measures the cost of a flood packet for this limiter and others, and prints JSON on stdout. `cargo xtask bench` runs
//! it as root and shows the result.
//!
//! Arguments: the rounds, then options, then what to measure. The options are `--again TIMES`, the maximum number of
//! repetitions for rows with an unsteady floor, and `--receiver NAME COMMAND`. What to measure is `growth`, `servers`,
//! or `rows` with optional words, which select the rows whose name or id contains one. The program creates its own
//! namespaces and changes nothing else in the machine's network.

use anyhow::{Context as _, Result, bail, ensure};
use integration_test::flood::measure::{self, Plan};
use integration_test::flood::outside::Outside;
use integration_test::flood::receiver::Kind;
use integration_test::flood::{growth, peers, rows, servers, stopwatch};
use integration_test::machine;
use serde_json::{Value, json};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let rounds: u32 =
        arguments.next().context("the number of rounds is missing")?.parse().context("read the rounds")?;
    ensure!(rounds > 0, "nothing to measure");
    let mut plan = Plan { rounds, ..Plan::default() };
    let part = loop {
        let mut next = || arguments.next().context("an argument is missing");
        match next()?.as_str() {
            "--again" => plan.again_max = next()?.parse().context("read how often again")?,
            // Leaked for the program's lifetime, because a receiver's kind is copied everywhere.
            "--receiver" => {
                plan.outside.push(Kind::Outside(Box::leak(Box::new(Outside { name: next()?, command: next()? }))))
            }
            part => break part.to_owned(),
        }
    };
    if let Some(obstacle) = netlab::obstacle() {
        bail!("{obstacle}");
    }
    for swept in netlab::sweep()? {
        eprintln!("flood: removed leftovers of an earlier run: {swept}");
    }
    let report = match part.as_str() {
        "rows" => measure_rows(&plan, &arguments.collect::<Vec<_>>())?,
        "growth" => growth::measure(rounds)?,
        "servers" => servers::measure(rounds, plan.again_max)?,
        other => bail!("`{other}` is neither rows nor growth nor servers"),
    };
    println!("{report:#}");
    Ok(())
}

fn measure_rows(plan: &Plan, words: &[String]) -> Result<Value> {
    let is_chosen =
        |row: &rows::Row| words.is_empty() || words.iter().any(|word| row.id.contains(word) || row.name.contains(word));
    let rows: Vec<_> = rows::all().into_iter().filter(is_chosen).collect();
    ensure!(!rows.is_empty(), "no row says {}", words.join(" or "));
    let mut shown = Vec::new();
    for steadied in measure::measure(&rows, plan)? {
        let mut row = steadied.of.to_json()?;
        row["floor_varied"] = json!(steadied.floor_varied);
        row["measured_again"] = json!(steadied.measured_again);
        shown.push(row);
    }
    let programs: Vec<_> = Kind::ALL.into_iter().filter_map(peers::version).collect();
    Ok(json!({
        "kernel": machine::kernel(),
        "processor": machine::processor(),
        "clock": stopwatch::clock(),
        "rounds": plan.rounds,
        "programs": programs,
        "rows": shown,
    }))
}
