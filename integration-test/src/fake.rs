//! The fake datapath, driven with the frames that the real program gets, and what both can be asked.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;
use ratelimit_common::time::Nanos;
use ratelimit_common::window;
use ratelimit_datapath::fake::{FakeDatapath, FakeKernel, START, Sender};
use ratelimit_datapath::{Ban, Datapath};
use ratelimit_policy::desired::{Limit, Policy, WindowForm};

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
        self.judged_of(frame, Sender::UNKNOWN)
    }

    /// Likewise, of a sender of whom the host's sockets say this.
    pub fn judged_of(&self, frame: &[u8], sender: Sender) -> Verdict {
        let verdict = self.kernel.frame(INTERFACE, frame, sender).expect("it is attached");
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

/// What each source has used of each limit now, and whether that is verified.
pub fn used(datapath: &mut dyn Datapath, policy: &Policy, now: Nanos) -> BTreeMap<(IpNet, u32, bool), u64> {
    let limits = policy.rules.iter().flat_map(|rule| rule.limits.iter().chain(&rule.shadow_limits));
    let limits: HashMap<u32, &Limit> = limits.map(|limit| (limit.slot, limit)).collect();
    let mut used = BTreeMap::new();
    datapath
        .visit_sources(&mut |source| {
            let Some(limit) = limits.get(&source.slot) else { return };
            let amount = match limit.form {
                // Nanoseconds until it is empty.
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

/// The sources that are banned now by a rule of this policy that bans: the fake tells of others too.
pub fn bans(datapath: &mut dyn Datapath, policy: &Policy) -> Vec<Ban> {
    let mut bans = datapath.bans().expect("the bans are read");
    bans.retain(|ban| policy.rules[ban.rule].bans.is_some());
    bans.sort_unstable();
    bans
}
