//! Which source dominates a rule: found once a minute, told in the statistics, and logged once for each.

use std::collections::BTreeSet;
use std::time::Duration;

use ratelimit_datapath::{Datapath, Reading};
use ratelimit_policy::desired::Policy;
use ratelimit_report::snapshot::{TalkerWatch, TopTalker};

/// So often it is said who dominates a rule; the statistics go on saying it.
const SAID_MAX: usize = 64;

/// The talkers that dominate rules.
#[derive(Debug, Default)]
pub(super) struct Talkers {
    watch: TalkerWatch,
    /// What it came to last.
    dominant: Vec<TopTalker>,
    /// Rules and sources of which it was said.
    said: BTreeSet<(String, String)>,
}

impl Talkers {
    /// Those that were found last.
    pub(super) fn dominant(&self) -> &[TopTalker] {
        &self.dominant
    }

    /// Notices, once a minute, a source that most of what a rule counts comes from.
    pub(super) fn look<D: Datapath>(&mut self, datapath: &mut D, policy: &Policy, reading: &Reading, at: Duration) {
        let Some(mut look) = self.watch.look(policy, reading, at) else { return };
        if look.is_busy()
            && let Err(error) = datapath.visit_sources(&mut |window| look.visit(policy, &window))
        {
            tracing::warn!("find the top sources: {:#}", anyhow::Error::from(error));
            return;
        }
        self.dominant = self.watch.conclude(policy, &look);
        for of in &self.dominant {
            let key = (of.rule.clone(), of.source.clone());
            if self.said.len() < SAID_MAX && self.said.insert(key) {
                tracing::warn!(rule = of.rule, "RULE {}: {}", of.rule, of.words());
            }
        }
    }
}
