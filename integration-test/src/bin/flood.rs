//! What a packet of a flood costs this limiter and others, as JSON on stdout. `cargo xtask bench` runs it as root and shows it.
//!
//! Arguments: `rows` and words, of which a row's name or id has one where there are any; or `growth`; before them the rounds. It
//! makes its own namespaces and touches nothing else of the machine's network.

use anyhow::{Context as _, Result, bail, ensure};
use integration_test::flood::receiver::Kind;
use integration_test::flood::{growth, measure, peers, rows, stopwatch};
use integration_test::machine;
use serde_json::{Value, json};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let rounds: u32 =
        arguments.next().context("the number of rounds is missing")?.parse().context("read the rounds")?;
    ensure!(rounds > 0, "nothing to measure");
    let part = arguments.next().context("what to measure is missing")?;
    if let Some(obstacle) = netlab::obstacle() {
        bail!("{obstacle}");
    }
    for swept in netlab::sweep()? {
        eprintln!("flood: removed what an earlier run has left: {swept}");
    }
    let report = match part.as_str() {
        "rows" => measure_rows(rounds, &arguments.collect::<Vec<_>>())?,
        "growth" => growth::measure(rounds)?,
        other => bail!("`{other}` is neither rows nor growth"),
    };
    println!("{report:#}");
    Ok(())
}

fn measure_rows(rounds: u32, words: &[String]) -> Result<Value> {
    let is_chosen =
        |row: &rows::Row| words.is_empty() || words.iter().any(|word| row.id.contains(word) || row.name.contains(word));
    let rows: Vec<_> = rows::all().into_iter().filter(is_chosen).collect();
    ensure!(!rows.is_empty(), "no row says {}", words.join(" or "));
    let measured = measure::measure(&rows, rounds)?;
    let rows: Vec<_> = measured.iter().map(measure::Measured::to_json).collect::<Result<_>>()?;
    let programs: Vec<_> = Kind::ALL.into_iter().filter_map(peers::version).collect();
    Ok(json!({
        "kernel": machine::kernel(),
        "processor": machine::processor(),
        "clock": stopwatch::clock(),
        "rounds": rounds,
        "programs": programs,
        "rows": rows,
    }))
}
