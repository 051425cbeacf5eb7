//! Cost of a packet while all windows are read, and the duration of such a reading.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ratelimit_datapath::Datapath as _;
use ratelimit_kernel::Kernel;
use serde_json::{Value, json};

use super::measure::spread;
use super::receiver::limiter;
use super::rows::{Amount, Beside, Row, in_turn, one_source};
use super::wire::{Family, Wire};

const SOURCES_BITS: u8 = 20;
/// Number of frames of one run, which takes longer than a reading of all windows.
const FRAMES: u32 = 1 << 22;
/// Number of frames that the timed source sends before, so that it is known or over its limit.
const BEFORE: u32 = 1000;

/// Cases by name, with the limit of the timed source.
const CASES: [(&str, Amount); 2] =
    [("one source over its limit", Amount::Of(1)), ("one source within its limit", Amount::Plenty)];

/// Measures each case in `rounds` rounds, without a reader and with a reader that starts again whenever it is done.
pub fn measure(rounds: u32) -> Result<Value> {
    let wire = Wire::new(Family::V4, 1)?;
    if wire.cpus() < 2 {
        return Ok(json!({ "missing": "needs two CPUs" }));
    }
    let mut cases = Vec::new();
    for (name, amount) in CASES {
        let (mut alone_ns, mut beside_ns, mut more_percent, mut took_ms) = (vec![], vec![], vec![], vec![]);
        let many = Row { amount, ..with_all_sources() };
        let mut kernel = limiter(&many, 0, &wire, 1, None)?;
        wire.send(&mut wire.generator(0, &many.flood())?, many.before)?;
        let one = Row { sources: in_turn("198.51.100.7", 0), ..many.clone() };
        let mut generator = wire.generator(0, &one.flood())?;
        wire.send(&mut generator, BEFORE)?;
        for round in 1..=rounds {
            eprintln!("flood: round {round} of {rounds}, beside a reader: {name}");
            let alone = wire.send(&mut generator, FRAMES)?.ns();
            let (beside, readings) = beside_reader(&mut kernel, || Ok(wire.send(&mut generator, FRAMES)?.ns()))?;
            alone_ns.push(alone);
            beside_ns.push(beside);
            more_percent.push((beside / alone - 1.0) * 100.0);
            took_ms.extend(readings.iter().map(|took| took.as_secs_f64() * 1000.0));
        }
        cases.push(json!({
            "name": name,
            "alone_ns": spread(&alone_ns),
            "beside_ns": spread(&beside_ns),
            "more_percent": spread(&more_percent),
            "took_ms": spread(&took_ms),
        }));
    }
    Ok(json!({ "sources": 1 << SOURCES_BITS, "cases": cases }))
}

/// Returns a row with the maximum number of sources of the design. Each has a window when the first frame is timed.
fn with_all_sources() -> Row {
    let sources = 1 << SOURCES_BITS;
    Row {
        sources: in_turn("10.0.0.0", SOURCES_BITS),
        before: sources,
        max_sources: sources / 4 * 5,
        beside: Beside::Bare,
        ..one_source()
    }
}

/// Reads all windows on another CPU repeatedly while `send` runs. Returns its result and the duration of each reading.
fn beside_reader(kernel: &mut Kernel, send: impl FnOnce() -> Result<f64>) -> Result<(f64, Vec<Duration>)> {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            super::wire::on_the_first_cpu()?;
            let mut took = Vec::new();
            while !is_done.load(Ordering::Relaxed) {
                let (start, mut windows) = (Instant::now(), 0_u32);
                kernel.visit_sources(&mut |_| windows += 1).context("read all windows")?;
                took.push(start.elapsed());
                ensure!(windows >= 1 << SOURCES_BITS, "{windows} windows were read, not {}", 1 << SOURCES_BITS);
            }
            Ok(took)
        });
        let sent = send();
        is_done.store(true, Ordering::Relaxed);
        let took = reader.join().expect("a reader does not panic")?;
        Ok((sent?, took))
    })
}
