//! Running the program on made-up frames, without an interface (`BPF_PROG_TEST_RUN`).

use std::time::Duration;

use anyhow::Context as _;
use aya::{TestRun as _, TestRunOptions};
use ratelimit_common::layout::map;
use ratelimit_common::time::Nanos;

use super::attach::Slot;
use super::{Kernel, interface, program};
use crate::datapath::{Datapath as _, DatapathError};

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// What the program returned: 1 is XDP_DROP, 2 is XDP_PASS.
    pub action: u32,
    /// Mean time of one run, in whole nanoseconds.
    pub duration: Duration,
}

impl Kernel {
    /// Sets the time of a program that was loaded with [`super::Clock::Injected`].
    ///
    /// # Errors
    /// Where the map cannot be written.
    pub fn set_now(&mut self, now: Nanos) -> Result<(), DatapathError> {
        Ok(self.array::<u64>(map::INJECTED_NOW)?.set(0, now.0, 0).context("write INJECTED_NOW")?)
    }

    /// Runs the program `repeat` times on `frame`, which seems to come in by `lo`.
    ///
    /// # Errors
    /// Where the kernel refuses: frames are 14 bytes at least.
    pub fn test_run(&mut self, frame: &[u8], repeat: u32) -> Result<TestRun, DatapathError> {
        let options = TestRunOptions { data_in: Some(frame), repeat, ..TestRunOptions::default() };
        let result = program(&mut self.ebpf)?.test_run(options).context("run the program")?;
        Ok(TestRun { action: result.return_value, duration: result.duration })
    }

    /// Gives an interface a row of counters without attaching to it.
    ///
    /// # Errors
    /// Where there is no such interface.
    pub fn list_unattached(&mut self, name: &str) -> Result<(), DatapathError> {
        let found = interface::named(name).context("list the network interfaces")?;
        let found = found.with_context(|| format!("no interface {name}"))?;
        self.slots[0] = Some(Slot::known(found.name, found.index));
        if let Some(policy) = self.policy.clone() {
            self.apply(&policy)?;
        }
        Ok(())
    }
}
