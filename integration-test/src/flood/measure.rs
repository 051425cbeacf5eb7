//! Rounds of measurements. Each round measures every row, and each row every receiver, loaded anew.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ratelimit_kernel::Generator;
use serde_json::{Value, json};

use super::connections::Connections;
use super::peers;
use super::receiver::{Kind, Receiver};
use super::rows::{Floor, OTHERS_BEFORE, OTHERS_BITS, Row};
use super::wire::{Family, Wire};
use crate::steady::{Steadied, steadied, varied};

/// Target duration of one run.
const RUN_MIN: Duration = Duration::from_millis(200);
/// Divisor of each run's number of frames, so that all sources of a row have the same number of turns.
const FRAMES_MIN: u32 = 1 << 17;
/// Maximum number of frames of a run. More would give a second turn to sources that must be new.
const FRAMES_MAX: u32 = 1 << 21;
/// Pause after each receiver, because the kernel frees the entries of a large table in the background.
const SETTLE: Duration = Duration::from_millis(100);

/// Wires for both families.
pub struct Wires {
    v4: Wire,
    v6: Wire,
}

impl Wires {
    /// Creates the wires of both families.
    pub fn new() -> Result<Self> {
        Ok(Self { v4: Wire::new(Family::V4, 1)?, v6: Wire::new(Family::V6, 1)? })
    }

    fn of(&self, row: &Row) -> &Wire {
        match row.family() {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }
}

/// Rounds, repetitions and additional receivers.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Number of rounds.
    pub rounds: u32,
    /// Maximum number of repetitions for rows with an unsteady floor.
    pub again_max: u32,
    /// Receivers besides those that are always measured.
    pub outside: Vec<Kind>,
}

/// Measurements of one row.
#[derive(Clone)]
pub struct Measured {
    /// The row that was measured.
    pub row: Row,
    /// Receivers of the row, whether they could be measured or not.
    pub kinds: Vec<Kind>,
    /// Nanoseconds per packet, by receiver and round.
    pub ns: BTreeMap<Kind, Vec<f64>>,
    /// Number of frames in a run, by receiver.
    pub frames: BTreeMap<Kind, u32>,
    /// Share of the packets that passed in the last round, by receiver.
    pub passed: BTreeMap<Kind, f64>,
}

/// Measures the rows in `plan.rounds` rounds. Each receiver is tried once before, and fails there if it treats packets
/// wrongly.
pub fn measure(rows: &[Row], plan: &Plan) -> Result<Vec<Steadied<Measured>>> {
    let wires = Wires::new()?;
    // A receiver is loaded anew and knows no source; the sender continues with its next source.
    let load = |row: &Row| wires.of(row).generator(0, &row.flood()).with_context(|| row.name.clone());
    let mut generators: Vec<Generator> = rows.iter().map(load).collect::<Result<_>>()?;
    let mut tried = Vec::new();
    for (at, (row, generator)) in rows.iter().zip(&mut generators).enumerate() {
        eprintln!("flood: trying row {} of {}: {}", at + 1, rows.len(), row.name);
        let (kinds, none) = (Kind::of(row, &plan.outside), BTreeMap::new());
        let mut frames = BTreeMap::new();
        for &kind in kinds.iter().filter(|&&kind| peers::obstacle(kind).is_none()) {
            let (ns, _) = run(kind, row, FRAMES_MIN, wires.of(row), generator)?;
            frames.insert(kind, frames_for(ns));
        }
        tried.push(Measured { row: row.clone(), kinds, ns: none, frames, passed: BTreeMap::new() });
    }
    let mut first = tried.clone();
    let positions: Vec<usize> = (0..rows.len()).collect();
    in_rounds(&mut first, &positions, &mut generators, &wires, plan.rounds)?;
    steadied(first, plan.again_max, Measured::floor_varied, |unsteady, again| {
        let names: Vec<&str> = unsteady.iter().map(|&at| rows[at].name.as_str()).collect();
        eprintln!(
            "flood: the floor was not steady, measured again ({again} of {}): {}",
            plan.again_max,
            names.join("; ")
        );
        let mut newer: Vec<Measured> = unsteady.iter().map(|&at| tried[at].clone()).collect();
        in_rounds(&mut newer, unsteady, &mut generators, &wires, plan.rounds)?;
        Ok(newer)
    })
}

/// Measures each row with each receiver, once per round. `positions` are the rows' indices among the generators.
fn in_rounds(
    all: &mut [Measured],
    positions: &[usize],
    generators: &mut [Generator],
    wires: &Wires,
    rounds: u32,
) -> Result<()> {
    for round in 1..=rounds {
        for (number, (measured, &at)) in (1..).zip(all.iter_mut().zip(positions)) {
            let (row, of) = (measured.row.clone(), positions.len());
            eprintln!("flood: round {round} of {rounds}, row {number} of {of}: {}", row.name);
            for (&kind, &frames) in &measured.frames {
                let (ns, passed) = run(kind, &row, frames, wires.of(&row), &mut generators[at])?;
                measured.ns.entry(kind).or_default().push(ns);
                measured.passed.insert(kind, passed);
            }
        }
    }
    Ok(())
}

/// Returns the number of frames that takes about [`RUN_MIN`].
fn frames_for(ns: f64) -> u32 {
    let least = Duration::from_secs_f64(ns * f64::from(FRAMES_MIN) / 1e9);
    let times = RUN_MIN.as_nanos() / least.as_nanos().max(1);
    u32::try_from(times).unwrap_or(u32::MAX).saturating_mul(FRAMES_MIN).clamp(FRAMES_MIN, FRAMES_MAX)
}

/// Loads a receiver, sends the frames that come before, and times `frames` frames. Returns the nanoseconds per packet
/// and the share of packets that passed.
fn run(kind: Kind, row: &Row, frames: u32, wire: &Wire, generator: &mut Generator) -> Result<(f64, f64)> {
    let context = || format!("{}, {}", row.name, kind.id());
    let before = kind.needs_before(row);
    let frames_in_all = u64::from(before) + u64::from(frames);
    let mut open = Connections::of(row, wire).with_context(context)?;
    let mut receiver = Receiver::load(kind, row, frames_in_all, wire, open.as_mut()).with_context(context)?;
    let mut of_connections = match &open {
        Some(open) => Some(wire.generator(0, &open.flood()?).with_context(context)?),
        None => None,
    };
    let generator = of_connections.as_mut().unwrap_or(generator);
    let timed = (|| {
        if let Some(flood) = row.flood_of_others() {
            wire.send(&mut wire.generator(0, &flood)?, OTHERS_BEFORE << OTHERS_BITS)?;
        }
        if before > 0 {
            wire.send(generator, before)?;
        }
        let counted = receiver.counts()?;
        let run = wire.send(generator, frames)?;
        let counts = receiver.check(row, counted, run.sent)?;
        receiver.check_edge(row, |frames| wire.send(generator, frames).map(|_| ()))?;
        Ok::<_, anyhow::Error>((run.ns(), counts.passed as f64 / run.sent as f64))
    })();
    let ended = receiver.end();
    std::thread::sleep(SETTLE);
    let timed = timed.with_context(context)?;
    ended.with_context(context)?;
    Ok(timed)
}

impl Measured {
    /// Returns the variation between rounds of the least steady floor of its receivers.
    fn floor_varied(&self) -> f64 {
        let floors = self.frames.keys().filter_map(|kind| self.ns.get(&kind.floor(&self.row)));
        floors.map(|floor| varied(floor)).fold(0.0, f64::max)
    }

    /// Returns the measurements as JSON: medians and extremes, absolute, above the bare program of the same round, and
    /// above the receiver's floor of the same round.
    pub fn to_json(&self) -> Result<Value> {
        let above = |ns: &[f64], floor: Kind| {
            let floor_ns = self.ns.get(&floor).with_context(|| format!("{} is measured", floor.id()))?;
            ensure!(ns.len() == floor_ns.len(), "each round has a run of each");
            Ok(ns.iter().zip(floor_ns).map(|(ns, floor_ns)| ns - floor_ns).collect::<Vec<f64>>())
        };
        let mut receivers = Vec::new();
        for &kind in &self.kinds {
            if let Some(missing) = peers::obstacle(kind) {
                receivers.push(json!({ "id": kind.id(), "missing": missing }));
                continue;
            }
            let ns = self.ns.get(&kind).with_context(|| format!("{} is measured", kind.id()))?;
            let above_bare = above(ns, Kind::Bare)?;
            let mut above_floor = above(ns, kind.floor(&self.row))?;
            if matches!((kind, self.row.floor), (Kind::Outside(_), Floor::Own)) {
                // Packets that the receiver itself drops do not cost it a drop behind it.
                let passed = self.passed[&kind];
                above_floor =
                    above_floor.iter().zip(&above_bare).map(|(own, bare)| bare + (own - bare) * passed).collect();
            }
            receivers.push(json!({
                "id": kind.id(),
                "frames": self.frames[&kind],
                "ns": spread(ns),
                "above_bare_ns": spread(&above_bare),
                "above_floor_ns": spread(&above_floor),
                "passed": self.passed[&kind],
            }));
        }
        let floor = match self.row.floor {
            Floor::Bare => "bare",
            Floor::Own => "own",
        };
        Ok(json!({
            "id": self.row.id,
            "name": self.row.name,
            "floor": floor,
            "limiter_passed": self.passed[&Kind::Limiter],
            "receivers": receivers,
        }))
    }
}

/// Returns median, minimum and maximum, rounded to tenths.
pub fn spread(values: &[f64]) -> Value {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let tenths = |value: f64| (value * 10.0).round() / 10.0;
    json!({
        "median": tenths(values[(values.len() - 1) / 2].midpoint(values[values.len() / 2])),
        "min": tenths(values[0]),
        "max": tenths(values[values.len() - 1]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_whole_turns_of_every_source_and_no_forged_one_twice() {
        assert_eq!(frames_for(200.0), 7 * FRAMES_MIN);
        assert_eq!(frames_for(5_000.0), FRAMES_MIN);
        assert_eq!(frames_for(0.1), FRAMES_MAX);
        const { assert!(FRAMES_MAX + (17 << 16) < 1 << 24) };
    }

    #[test]
    fn a_spread_is_the_median_between_the_extremes() {
        assert_eq!(spread(&[3.04, 1.0, 2.0]), json!({ "median": 2.0, "min": 1.0, "max": 3.0 }));
        assert_eq!(spread(&[4.0, 1.0]), json!({ "median": 2.5, "min": 1.0, "max": 4.0 }));
    }
}
