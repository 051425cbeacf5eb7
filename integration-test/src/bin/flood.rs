//! What a packet of a flood costs this limiter and others, as JSON on stdout. `cargo xtask bench` runs it as root and
//! shows it.
//!
//! Arguments: the rounds; then any of `--again TIMES`, by which rows are measured again whose floor was not steady,
//! and `--receiver NAME COMMAND`; then `rows` and words, of which a row's name or id has one where there are any; or
//! `growth`; or `servers`. It makes its own namespaces and touches nothing else of the machine's network.

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
            // They are there as long as the program: a kind of receiver is copied everywhere.
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
        eprintln!("flood: removed what an earlier run has left: {swept}");
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
