//! A row's packet, ready to be run repeatedly: unchanged, or as the next segment of its connection each time.

use std::time::Duration;

use anyhow::{Result, ensure};
use ratelimit_datapath::Datapath as _;
use ratelimit_kernel::{Bare, Steps};

use super::conversations::Said;
use super::rows::{Goes, Row, Scene};
use crate::established::Established;
use crate::program::{Program, is_pass};

/// Number of runs before a packet is timed. They take a source over its limit, so that its verdict no longer changes.
const RUNS_BEFORE: u32 = 4;
/// Number of bytes that a connection with new data may send in one run; the server's window is that large.
const WINDOW_BYTES: u32 = 1 << 29;
/// Lower bound of the ratio of segments with 1400 bytes to those that the guard counts as within its limit. The guard
/// counts one segment per 128 KB of data that begins nothing.
const GUARDED_SHARE: u64 = 8;
/// Number of requests that the access log has for each window, in a rule with an access log.
const LOGGED: u16 = 3;
/// Source of every connection.
const LOOPBACK: &str = "127.0.0.1/32";

/// A row's program, the empty program and the packet.
pub struct Runs {
    program: Program,
    bare: Bare,
    row: Row,
}

/// Result of one round.
pub struct Round {
    /// Time of the empty program on the same packet before and after, in nanoseconds.
    pub bare_ns: [u64; 2],
    /// Time of the program, in nanoseconds.
    pub ns: u64,
}

impl Runs {
    /// Loads the program for a row.
    pub fn load(row: Row) -> Result<Self> {
        Ok(Self { program: Program::on_the_kernels_clock(&row.policy), bare: Bare::load()?, row })
    }

    /// Returns the row that is measured.
    pub fn row(&self) -> &Row {
        &self.row
    }

    /// Returns the size of the program at XDP.
    pub fn size(&mut self) -> ratelimit_kernel::ProgramSize {
        self.program.size()
    }

    /// Returns the size of the program at TCX.
    pub fn size_at_tcx(&mut self) -> ratelimit_kernel::ProgramSize {
        self.program.size_at_tcx()
    }

    /// Times up to `repeat` runs of each program. Fails if a packet has another verdict than the row's, before or
    /// during the timing.
    pub fn round(&mut self, repeat: u32) -> Result<Round> {
        match self.row.scene.clone() {
            Scene::Frame { before, frame } => {
                for frame in &before {
                    self.program.passes(frame);
                }
                self.same(&frame, repeat)
            }
            Scene::Connection { port, before, data, goes } => {
                let mut connection = Established::on_loopback(port)?;
                connection.widen(WINDOW_BYTES)?;
                // Clears what an earlier round has used up.
                self.program.kernel().forget(LOOPBACK.parse()?)?;
                if !self.row.policy.rules[0].access_logs.is_empty() {
                    self.program.kernel().set_multiplicity(0, LOOPBACK.parse()?, LOGGED)?;
                }
                play(&mut self.program, &mut connection, &before, self.row.name)?;
                let frame = connection.frame(&data);
                match goes {
                    Goes::Again => self.same(&frame, repeat),
                    Goes::On { record_segments, record_len } => {
                        let step = u32::try_from(data.len())?;
                        let steps = Steps { sequence: connection.sequence, step, record_segments, record_len };
                        let most = WINDOW_BYTES / 2 / step.max(1);
                        self.advancing(&frame, steps, repeat.min(most))
                    }
                }
            }
        }
    }

    fn same(&mut self, frame: &[u8], repeat: u32) -> Result<Round> {
        for _ in 0..RUNS_BEFORE {
            self.program.passes(frame);
        }
        let before = self.bare.test_run(frame, repeat)?.duration;
        let ns = self.judged(repeat, |program| Ok(program.time(frame, repeat)))?;
        let after = self.bare.test_run(frame, repeat)?.duration;
        Ok(Round { bare_ns: [nanos(before), nanos(after)], ns })
    }

    fn advancing(&mut self, frame: &[u8], steps: Steps, repeat: u32) -> Result<Round> {
        let mut bare = self.bare.advancing(steps)?;
        let mut advance = self.program.advancing(steps)?;
        self.program.time_through(&mut advance, frame, RUNS_BEFORE)?;
        let before = bare.test_run(frame, repeat)?.duration;
        let ns = self.judged(repeat, |program| program.time_through(&mut advance, frame, repeat))?;
        let after = bare.test_run(frame, repeat)?.duration;
        Ok(Round { bare_ns: [nanos(before), nanos(after)], ns })
    }

    /// Runs packets, and fails if any has another verdict than the row's. The guard may count a few of the packets that
    /// are expected not to be counted.
    fn judged(&mut self, repeat: u32, run: impl FnOnce(&mut Program) -> Result<Duration>) -> Result<u64> {
        let before = self.program.counts();
        let took = run(&mut self.program)?;
        let after = self.program.counts();
        let moved: Vec<_> = after.iter().filter(|(word, count)| before[*word] != **count).collect();
        let of = |word: &str| after[word] - before[word];
        let of_row = of(self.row.verdict);
        let by_guard = if self.row.verdict == "not_counted" { of("within_limit") } else { 0 };
        ensure!(
            of_row + by_guard == u64::from(repeat) && by_guard <= u64::from(repeat) / GUARDED_SHARE,
            "{}: of {repeat} packets {of_row} are {}: {moved:?} after {before:?}",
            self.row.name,
            self.row.verdict
        );
        Ok(nanos(took))
    }
}

/// Plays a conversation: the program judges the client's data, and both sockets exchange what is not lost.
fn play(program: &mut Program, connection: &mut Established, said: &[Said], row: &str) -> Result<()> {
    for said in said {
        match said {
            Said::Client(data) => {
                let verdict = program.verdict(&connection.frame(data));
                ensure!(is_pass(verdict), "{row}: what comes before it is {verdict}");
                connection.says(data)?;
            }
            Said::Lost(data) => {
                program.passes(&connection.frame(data));
            }
            Said::Server(data) => connection.hears(data)?,
        }
    }
    Ok(())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
