//! Rounds of observation, and suggestions derived from them.

use ratelimit_common::layout::Tally;
use ratelimit_common::verdict::Reason;

use super::engine::Engine;
use super::journal::EVENTS_EACH;
use super::moment::Moment;
use super::orders::rule_named;
use super::would_ban;
use ratelimit_control::proto::Problem;
use ratelimit_datapath::{Datapath, DatapathError, Reading};
use ratelimit_report::snapshot::{Clocks, SuggestReport};

/// Length in bytes of the Ethernet header before the IP packet.
const ETHERNET_BYTES: u64 = 14;

impl<D: Datapath> Engine<D> {
    /// Runs one round. If the maps cannot be read, supervision reports it, and the next round retries.
    pub(super) fn observe(&mut self, moment: Moment) {
        if let Err(error) = self.try_observe(moment) {
            tracing::debug!("observe sources: {:#}", anyhow::Error::from(error));
        }
    }

    fn try_observe(&mut self, moment: Moment) -> Result<Reading, DatapathError> {
        let reading = self.datapath.read()?;
        let (policy, sources_max) = (&self.enforced.desired.policy, self.enforced.config.max_sources as usize);
        self.watched.observer.follow(policy, &self.enforced.config.candidates, sources_max, reading.now);
        let refused_bytes: Vec<u64> = (0..policy.rules.len()).map(|rule| refused_bytes(&reading, rule)).collect();
        let mut round = self.watched.observer.round(reading.now, &refused_bytes);
        let mut bans = self.watched.would_bans.round(policy, reading.now, EVENTS_EACH);
        self.datapath.visit_sources(&mut |source| {
            round.visit(&source);
            if let Some(bans) = &mut bans {
                bans.visit(&source);
            }
        })?;
        round.finish();
        if let Some(found) = bans.map(would_ban::Round::finish) {
            let clocks = Clocks { now: reading.now, wall: moment.wall };
            let (events, unlogged) = found.events(policy, clocks);
            self.journal.tell_all(events, unlogged, moment);
        }
        Ok(reading)
    }

    /// Suggests limits for all rules or for one, as of now.
    pub(super) fn suggest(&mut self, rule: Option<&str>, moment: Moment) -> Result<SuggestReport, Problem> {
        if let Some(name) = rule {
            rule_named(&self.enforced.desired.policy, name)?;
        }
        let reading = self.try_observe(moment).map_err(Problem::datapath)?;
        let (policy, lists) = (&self.enforced.desired.policy, &self.enforced.config.list_files);
        Ok(SuggestReport::build(policy, &self.watched.observer, reading.now, rule, lists))
    }
}

/// Returns the average length in bytes of the IP packets that a rule refuses, since its counters began.
pub(super) fn refused_bytes(reading: &Reading, rule: usize) -> u64 {
    let tallies = reading.interfaces.iter().filter_map(|interface| interface.rules.get(rule));
    let refused = tallies.flat_map(|of| [of.of(Reason::OverLimit), of.of(Reason::DryRun)]);
    let Tally { packets, bytes } = refused.fold(Tally::default(), |sum, of| Tally {
        packets: sum.packets.saturating_add(of.packets),
        bytes: sum.bytes.saturating_add(of.bytes),
    });
    bytes.checked_div(packets).unwrap_or(0).saturating_sub(ETHERNET_BYTES)
}
