//! The fake datapath, driven with the frames that the real program gets, and functions that query both.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;
use ratelimit_common::time::Nanos;
use ratelimit_common::window;
use ratelimit_datapath::fake::{FakeDatapath, FakeKernel, START, Sender};
use ratelimit_datapath::{Ban, Datapath};
use ratelimit_policy::desired::{Limit, Policy, WindowForm};

use crate::program::{TEN_O_CLOCK, Verdict, tallies};

/// Interface that receives all frames.
const INTERFACE: &str = "lo";

/// A fake datapath that is attached to one interface.
pub struct Fake {
    datapath: FakeDatapath,
    kernel: FakeKernel,
    now: Nanos,
}

impl Fake {
    /// Creates a fake with this policy, at ten o'clock.
    pub fn new(policy: &Policy) -> Self {
        let (datapath, kernel) = FakeDatapath::new(&[INTERFACE]);
        let mut fake = Self { datapath, kernel, now: START };
        fake.set_now(TEN_O_CLOCK);
        fake.apply(policy);
        fake.datapath.attach(INTERFACE).expect("the interface is there");
        fake
    }

    /// Applies another policy.
    pub fn apply(&mut self, policy: &Policy) {
        self.datapath.apply(policy).expect("the policy is applied");
    }

    /// Returns the datapath that the daemon owns, for queries that the daemon makes.
    pub fn datapath(&mut self) -> &mut FakeDatapath {
        &mut self.datapath
    }

    /// Advances the clock to this time, which must not be in the past.
    pub fn set_now(&mut self, now: Nanos) {
        self.kernel.advance(now.0 - self.now.0);
        self.now = now;
    }

    /// Sends a frame of an unknown sender, and returns its verdict.
    pub fn judged(&self, frame: &[u8]) -> Verdict {
        self.judged_of(frame, Sender::UNKNOWN)
    }

    /// Sends a frame, and returns its verdict. `sender` is what the host's sockets say about its sender.
    pub fn judged_of(&self, frame: &[u8], sender: Sender) -> Verdict {
        let verdict = self.kernel.frame(INTERFACE, frame, sender).expect("it is attached");
        let rule = (verdict.rule != ratelimit_common::verdict::Verdict::NO_RULE).then(|| usize::from(verdict.rule));
        (verdict.reason.label(), rule)
    }

    /// Returns the number of packets so far, by verdict.
    pub fn counts(&mut self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        for ((word, _), count) in tallies(&self.datapath.read().expect("it reads")) {
            *counts.entry(word).or_default() += count;
        }
        counts
    }
}

/// Returns the current use of each source's limits: by source, slot and whether the use is verified.
pub fn used(datapath: &mut dyn Datapath, policy: &Policy, now: Nanos) -> BTreeMap<(IpNet, u32, bool), u64> {
    let limits = policy.rules.iter().flat_map(|rule| rule.limits.iter().chain(&rule.shadow_limits));
    let limits: HashMap<u32, &Limit> = limits.map(|limit| (limit.slot, limit)).collect();
    let mut used = BTreeMap::new();
    datapath
        .visit_sources(&mut |source| {
            let Some(limit) = limits.get(&source.slot) else { return };
            let amount = match limit.form {
                // Nanoseconds until the bucket is empty.
                WindowForm::Gcra => source.window.cells[0].saturating_sub(now.0),
                WindowForm::Strict | WindowForm::Lenient | WindowForm::Fixed => {
                    window::used(&source.window.cells, limit.arithmetic(), now.bucket(limit.bucket_ns))
                }
            };
            if amount > 0 {
                used.insert((source.prefix, source.slot, source.is_verified), amount);
            }
        })
        .expect("the windows are read");
    used
}

/// Returns the current bans by this policy's banning rules. The fake also reports bans of other rules.
pub fn bans(datapath: &mut dyn Datapath, policy: &Policy) -> Vec<Ban> {
    let mut bans = datapath.bans().expect("the bans are read");
    bans.retain(|ban| policy.rules[ban.rule].bans.is_some());
    bans.sort_unstable();
    bans
}
