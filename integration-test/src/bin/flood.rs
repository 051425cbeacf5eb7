//! What a packet of a flood costs this limiter and others, as JSON on stdout. `cargo xtask bench` runs it as root and shows it.
//!
//! Arguments: rounds, then words; only rows whose name or id has one of them, where there are any. It makes its own namespaces and touches
//! nothing else of the machine's network.

use anyhow::{Context as _, Result, ensure};
use integration_test::flood::{measure, rows};
use serde_json::json;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let rounds: u32 =
        arguments.next().context("the number of rounds is missing")?.parse().context("read the rounds")?;
    ensure!(rounds > 0, "nothing to measure");
    let words: Vec<String> = arguments.collect();
    if let Some(obstacle) = netlab::obstacle() {
        anyhow::bail!("{obstacle}");
    }
    for swept in netlab::sweep()? {
        eprintln!("flood: removed what an earlier run has left: {swept}");
    }
    let is_chosen =
        |row: &rows::Row| words.is_empty() || words.iter().any(|word| row.id.contains(word) || row.name.contains(word));
    let rows: Vec<_> = rows::all().into_iter().filter(is_chosen).collect();
    ensure!(!rows.is_empty(), "no row says {}", words.join(" or "));
    let measured = measure::measure(&rows, rounds)?;
    let rows: Vec<_> = measured.iter().map(measure::Measured::to_json).collect::<Result<_>>()?;
    println!("{:#}", json!({ "rounds": rounds, "rows": rows }));
    Ok(())
}
