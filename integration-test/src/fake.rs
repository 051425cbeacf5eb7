//! The fake datapath, driven with the frames that the real program gets.

use std::collections::BTreeMap;

use ratelimit_common::proof::Standing;
use ratelimit_common::time::Nanos;
use ratelimit_userspace::datapath::Datapath as _;
use ratelimit_userspace::datapath::fake::{FakeDatapath, FakeKernel, START};
use ratelimit_userspace::desired::Policy;

use crate::program::{TEN_O_CLOCK, Verdict, tallies};

/// By which all frames come.
const INTERFACE: &str = "lo";

/// A fake that is attached to one interface.
pub struct Fake {
    datapath: FakeDatapath,
    kernel: FakeKernel,
    now: Nanos,
}

impl Fake {
    /// With this policy, at ten o'clock.
    pub fn new(policy: &Policy) -> Self {
        let (datapath, kernel) = FakeDatapath::new(&[INTERFACE]);
        let mut fake = Self { datapath, kernel, now: START };
        fake.set_now(TEN_O_CLOCK);
        fake.apply(policy);
        fake.datapath.attach(INTERFACE).expect("the interface is there");
        fake
    }

    /// Judges by another policy from now on.
    pub fn apply(&mut self, policy: &Policy) {
        self.datapath.apply(policy).expect("the policy is applied");
    }

    /// What the daemon owns, to ask of it what it asks.
    pub fn datapath(&mut self) -> &mut FakeDatapath {
        &mut self.datapath
    }

    /// Sets the time, which is not over yet.
    pub fn set_now(&mut self, now: Nanos) {
        self.kernel.advance(now.0 - self.now.0);
        self.now = now;
    }

    /// Sends one frame, and says what became of it.
    pub fn judged(&self, frame: &[u8]) -> Verdict {
        self.judged_of(frame, Standing::Unknown)
    }

    /// Likewise, of a sender of whom the host's sockets say this.
    pub fn judged_of(&self, frame: &[u8], standing: Standing) -> Verdict {
        let verdict = self.kernel.frame(INTERFACE, frame, standing).expect("it is attached");
        let rule = (verdict.rule != ratelimit_common::verdict::Verdict::NO_RULE).then(|| usize::from(verdict.rule));
        (verdict.reason.label(), rule)
    }

    /// What has become of all packets so far.
    pub fn counts(&mut self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        for ((word, _), count) in tallies(&self.datapath.read().expect("it reads")) {
            *counts.entry(word).or_default() += count;
        }
        counts
    }
}
