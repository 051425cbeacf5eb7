//! A row's packet, ready to be run again and again: as it is, or as the next segment of its connection each time.

use std::time::Duration;

use anyhow::{Result, ensure};
use ratelimit_datapath::Datapath as _;
use ratelimit_datapath::kernel::{Bare, Steps};

use super::conversations::Said;
use super::rows::{Goes, Row, Scene};
use crate::established::Established;
use crate::program::{Program, is_pass};

/// Before it is timed, a packet is run so often: it takes a source over its limit, and is what it is from then on.
const RUNS_BEFORE: u32 = 4;
/// What a connection that goes on may send in one run: its server takes that much.
const WINDOW_BYTES: u32 = 1 << 29;
/// Least number of segments with 1400 bytes of which the guard counts one as within its limit: it counts a segment in
/// 128 KB of data that begins nothing.
const GUARDED_SHARE: u64 = 8;
/// Requests that a log has for each turn, in a rule that has one.
const LOGGED: u16 = 3;
/// The source of every connection.
const LOOPBACK: &str = "127.0.0.1/32";

/// A row's program and what it is run on.
pub struct Runs {
    program: Program,
    bare: Bare,
    row: Row,
}

/// What one round says: nanoseconds of the empty program before and after, and of the program.
pub struct Round {
    /// On the same packet.
    pub bare_ns: [u64; 2],
    /// Of the program.
    pub ns: u64,
}

impl Runs {
    /// Loads the program for a row.
    pub fn load(row: Row) -> Result<Self> {
        Ok(Self { program: Program::on_the_kernels_clock(&row.policy), bare: Bare::load()?, row })
    }

    /// The row.
    pub fn row(&self) -> &Row {
        &self.row
    }

    /// How large the program is.
    pub fn size(&mut self) -> ratelimit_datapath::kernel::ProgramSize {
        self.program.size()
    }

    /// The same of the program at TCX.
    pub fn size_at_tcx(&mut self) -> ratelimit_datapath::kernel::ProgramSize {
        self.program.size_at_tcx()
    }

    /// Times it: up to so many runs of each. Each packet must have the row's verdict, before it is timed and while it
    /// is.
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
                // Whatever it has used up in an earlier round.
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

    /// Fails where any of the packets had another verdict than the row's; of those that are not counted the guard may
    /// count a few.
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

/// Has the program judge what the client says, and the server have it.
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
