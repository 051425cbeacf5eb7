//! Growth of a packet's cost with sources, rules, exempt prefixes and buckets, and with a second CPU.

use anyhow::{Context as _, Result, ensure};
use ratelimit_kernel::{Bare, Generator, Kernel};
use serde_json::{Value, json};

use super::measure::{self, Measured, Plan, spread};
use super::reading;
use super::receiver::{counts_of, limiter};
use super::rows::{Amount, Beside, MAX_SOURCES, Row, all, in_turn, one_source};
use super::wire::{Family, RECEIVING, Wire};
use crate::steady::Steadied;

const SOURCES_BITS: [u8; 5] = [0, 10, 16, 20, 22];
const RULES: [usize; 4] = [1, 4, 16, 64];
const BUCKETS: [u8; 3] = [5, 6, 7];
const EXEMPT: [u32; 5] = [0, 100, 1_000, 10_000, 100_000];
/// Number of frames of one run on each CPU.
const FRAMES: u32 = 1 << 18;

/// Measures everything in `rounds` rounds.
pub fn measure(rounds: u32) -> Result<Value> {
    let sources = SOURCES_BITS.map(|bits| (1 << bits, with_sources(bits)));
    let rules =
        RULES.map(|rules| (rules as u64, Row { id: "rules", name: format!("{rules} rules"), rules, ..alone() }));
    let within = all().into_iter().find(|row| row.id == "within").context("there is such a row")?;
    let exempt = EXEMPT.map(|exempt| {
        let name = format!("{exempt} exempt prefixes");
        (u64::from(exempt), Row { id: "exempt", name, exempt, ..within.clone() })
    });
    let buckets = BUCKETS.map(|buckets| {
        let name = format!("{buckets} buckets");
        (u64::from(buckets), Row { id: "buckets", name, buckets, ..within.clone() })
    });
    let points: Vec<(u64, Row)> = sources.into_iter().chain(rules).chain(exempt).chain(buckets).collect();
    let (counts, rows): (Vec<u64>, Vec<Row>) = points.into_iter().unzip();
    let measured = measure::measure(&rows, &Plan { rounds, ..Plan::default() })?;
    let point = |(count, Steadied { of: measured, .. }): (u64, &Steadied<Measured>)| {
        let row = measured.to_json()?;
        let limiter = row["receivers"].as_array().and_then(|all| all.last()).context("the limiter is measured")?;
        Ok(json!({
            "series": measured.row.id,
            "count": count,
            "ns": limiter["ns"],
            "above_bare_ns": limiter["above_bare_ns"],
        }))
    };
    let points: Vec<Value> = counts.into_iter().zip(&measured).map(point).collect::<Result<_>>()?;
    Ok(json!({ "rounds": rounds, "points": points, "cpus": cpus(rounds)?, "reading": reading::measure(rounds)? }))
}

fn alone() -> Row {
    Row { beside: Beside::Bare, ..one_source() }
}

/// Returns a row with this number of sources, each of which has used its whole limit when the first frame is timed.
fn with_sources(bits: u8) -> Row {
    let count = 1_u32 << bits;
    Row {
        id: "sources",
        name: format!("{count} sources"),
        sources: in_turn("10.0.0.0", bits),
        amount: Amount::Of(1),
        before: (2 * count).max(8192),
        max_sources: (count / 4 * 5).max(MAX_SOURCES),
        ..alone()
    }
}

/// Sources that send on each CPU.
struct Case {
    name: &'static str,
    /// First source on each CPU.
    first: &'static [&'static str],
}

const CASES: [Case; 3] = [
    Case { name: "one CPU", first: &["198.51.100.7"] },
    Case { name: "two CPUs, one source", first: &["198.51.100.7", "198.51.100.7"] },
    Case { name: "two CPUs, a source each", first: &["198.51.100.7", "198.51.100.99"] },
];

/// Returns the nanoseconds of CPU time per packet, with one and with two CPUs that send and receive at once.
fn cpus(rounds: u32) -> Result<Value> {
    let wire = Wire::new(Family::V4, 2)?;
    if wire.cpus() < 2 {
        return Ok(json!({ "missing": "needs two CPUs" }));
    }
    let mut ns: Vec<[Vec<f64>; 2]> = CASES.iter().map(|_| Default::default()).collect();
    for round in 1..=rounds {
        eprintln!("flood: round {round} of {rounds}, one CPU and two");
        for (case, [bare_ns, limiter_ns]) in CASES.iter().zip(&mut ns) {
            bare_ns.push(run_bare(&wire, case)?);
            limiter_ns.push(run_limiter(&wire, case).with_context(|| case.name)?);
        }
    }
    let cases = CASES.iter().zip(&ns).map(|(case, [bare, limiter])| {
        let above: Vec<f64> = limiter.iter().zip(bare).map(|(limiter, bare)| limiter - bare).collect();
        json!({ "name": case.name, "ns": spread(limiter), "bare_ns": spread(bare), "above_bare_ns": spread(&above) })
    });
    Ok(json!({ "cases": cases.collect::<Vec<_>>() }))
}

fn run_bare(wire: &Wire, case: &Case) -> Result<f64> {
    let _attached: Vec<Bare> = wire.receiver.inside(|| {
        let attach = |interface: &&str| {
            let mut bare = Bare::load()?;
            bare.attach(interface)?;
            Ok(bare)
        };
        RECEIVING[..case.first.len()].iter().map(attach).collect()
    })?;
    let mut generators = generators(wire, case)?;
    send(wire, &mut generators, FRAMES)
}

fn run_limiter(wire: &Wire, case: &Case) -> Result<f64> {
    let row = alone();
    let mut kernel: Kernel = limiter(&row, u64::from(FRAMES), wire, case.first.len(), None)?;
    let mut generators = generators(wire, case)?;
    send(wire, &mut generators, row.before)?;
    let before = counts_of(&mut kernel, wire)?;
    let ns = send(wire, &mut generators, FRAMES)?;
    let (sent, over) = (u64::from(FRAMES) * case.first.len() as u64, counts_of(&mut kernel, wire)?.over - before.over);
    ensure!(over == sent, "of {sent} frames of sources over their limit {over} were refused");
    Ok(ns)
}

fn generators(wire: &Wire, case: &Case) -> Result<Vec<Generator>> {
    let of = |(pair, first): (usize, &&str)| {
        let row = Row { sources: in_turn(first, 0), ..alone() };
        wire.generator(pair, &row.flood())
    };
    case.first.iter().enumerate().map(of).collect()
}

/// Sends frames with each generator, and returns the nanoseconds of one CPU per packet.
fn send(wire: &Wire, generators: &mut [Generator], frames: u32) -> Result<f64> {
    Ok(wire.send_at_once(&mut generators.iter_mut().collect::<Vec<_>>(), frames)?.ns())
}
