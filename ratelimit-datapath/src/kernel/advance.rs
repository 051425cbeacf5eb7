//! A program that is timed alone on a connection that goes on: before each run the frame becomes the connection's next
//! segment (`advance` of ratelimit-ebpf/src/generator.rs), and the program that is timed runs behind that by a tail
//! call.

use anyhow::Context as _;
use aya::maps::ProgramArray;
use aya::programs::{ProgramFd, Xdp};
use aya::{Ebpf, EbpfLoader};

use super::testing::{TestRun, run};
use crate::DatapathError;

const NAME: &str = "advance";
const BEHIND: &str = "BEHIND";

/// How a connection goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// The sequence number of the first segment.
    pub sequence: u32,
    /// By how much it is more in the next.
    pub step: u32,
    /// Segments in a TLS record: each first one begins with a record's header, and the others with nothing that is
    /// one. 0 where the payload stays as it is.
    pub record_segments: u32,
    /// What the header says of the record's length.
    pub record_len: u16,
}

/// What makes each frame the next, and has a program run behind it. It counts on from run to run.
pub struct Advance(Ebpf);

impl Advance {
    /// Loads it before a program. Both take frames in fragments.
    pub(super) fn before(program: &ProgramFd, steps: Steps) -> Result<Self, DatapathError> {
        let record_len = u32::from(steps.record_len);
        let mut loader = EbpfLoader::new();
        loader
            .override_global("SEQUENCE", &steps.sequence, true)
            .override_global("STEP", &steps.step, true)
            .override_global("RECORD_SEGMENTS", &steps.record_segments, true)
            .override_global("RECORD_LEN", &record_len, true);
        let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/generator"));
        let mut advance = Self(loader.load(object).context("read the generator")?);
        let map = advance.0.map_mut(BEHIND).with_context(|| format!("the object has no map {BEHIND}"))?;
        let mut behind = ProgramArray::try_from(map).with_context(|| format!("open {BEHIND}"))?;
        behind.set(0, program, 0).with_context(|| format!("write {BEHIND}"))?;
        advance.program()?.load().with_context(|| format!("load {NAME}"))?;
        Ok(advance)
    }

    /// Runs it `repeat` times, and the program behind it each time, from the next segment on.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn test_run(&mut self, frame: &[u8], repeat: u32) -> Result<TestRun, DatapathError> {
        run(self.program()?, frame, repeat)
    }

    fn program(&mut self) -> Result<&mut Xdp, DatapathError> {
        let program = self.0.program_mut(NAME).with_context(|| format!("find program {NAME}"))?;
        Ok(program.try_into().with_context(|| format!("{NAME} is no XDP program"))?)
    }
}
