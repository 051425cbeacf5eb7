//! Top talker of each rule: searched once a minute, shown in the statistics, and logged once.

use std::collections::BTreeSet;
use std::time::Duration;

use ratelimit_datapath::{Datapath, Reading};
use ratelimit_policy::desired::Policy;
use ratelimit_report::snapshot::{TalkerWatch, TopTalker};

/// Maximum number of top talkers that are logged. The statistics still show all of them.
const SAID_MAX: usize = 64;

/// Top talkers of the rules.
#[derive(Debug, Default)]
pub(super) struct Talkers {
    watch: TalkerWatch,
    /// Result of the last search.
    top_talkers: Vec<TopTalker>,
    /// Logged pairs of rule and source.
    said: BTreeSet<(String, String)>,
}

impl Talkers {
    /// Returns the result of the last search.
    pub(super) fn top_talkers(&self) -> &[TopTalker] {
        &self.top_talkers
    }

    /// Searches once a minute for a source that sends most of what a rule counts.
    pub(super) fn look<D: Datapath>(&mut self, datapath: &mut D, policy: &Policy, reading: &Reading, at: Duration) {
        let Some(mut look) = self.watch.look(policy, reading, at) else { return };
        if look.is_busy()
            && let Err(error) = datapath.visit_sources(&mut |window| look.visit(policy, &window))
        {
            tracing::warn!("find the top sources: {:#}", anyhow::Error::from(error));
            return;
        }
        self.top_talkers = self.watch.conclude(policy, &look);
        for of in &self.top_talkers {
            let key = (of.rule.clone(), of.source.clone());
            if self.said.len() < SAID_MAX && self.said.insert(key) {
                tracing::warn!(rule = of.rule, "RULE {}: {}", of.rule, of.words());
            }
        }
    }
}
