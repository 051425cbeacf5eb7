//! What is told of sources that a command frees: before that, what their bans and windows have refused since it was told
//! last; once it has, that their bans have ended. What they do from then on is counted from zero.

use std::net::IpAddr;

use ipnet::IpNet;

use super::begun::tell_progress_of;
use super::engine::Engine;
use super::journal::{EVENTS_EACH, Event};
use super::moment::Moment;
use ratelimit_control::Requester;
use ratelimit_datapath::{BanReading, BansPosition, Datapath, DatapathError};
use ratelimit_report::snapshot::{Clocks, source_text};

impl<D: Datapath> Engine<D> {
    /// Tells what these sources were refused until now, and says what there is to tell once they are free. `bans` are in force
    /// there. What cannot be read is not told, and hinders nobody.
    pub(super) fn look_at_freed(
        &mut self,
        is_freed: impl Fn(&IpNet) -> bool,
        bans: usize,
        by: &Requester,
        moment: Moment,
    ) -> Vec<Event> {
        // What began is told before it ends.
        self.tell_begun(moment);
        let ends = self.try_look_at_freed(&is_freed, bans, by, moment);
        ends.unwrap_or_else(|error| {
            tracing::debug!("look at freed sources: {:#}", anyhow::Error::from(error));
            Vec::new()
        })
    }

    /// Tells that these sources are free.
    pub(super) fn tell_freed(&mut self, is_freed: impl Fn(&IpNet) -> bool, ends: &[Event], moment: Moment) {
        // The log has the command, in one line.
        ends.iter().for_each(|end| self.journal.tell_unlogged(end, moment.wall));
        self.watched.begun.part_with(is_freed);
    }

    fn try_look_at_freed(
        &mut self,
        is_freed: impl Fn(&IpNet) -> bool,
        bans: usize,
        by: &Requester,
        moment: Moment,
    ) -> Result<Vec<Event>, DatapathError> {
        let reading = self.datapath.read()?;
        let clocks = Clocks { now: reading.now, wall: moment.wall };
        let lifted = self.bans_in_force(&is_freed, bans, clocks)?;
        let Self { datapath, enforced, watched, journal, .. } = self;
        let policy = &enforced.desired.policy;
        let keys = watched.begun.followed(&is_freed);
        let addresses: Vec<IpAddr> = keys.iter().map(|key| key.client.addr()).collect();
        for (key, windows) in keys.into_iter().zip(datapath.sources(&addresses)?) {
            tell_progress_of(&mut watched.begun, key, &windows, (policy, &reading), journal, moment);
        }
        let mut ends = Vec::new();
        for of in lifted {
            let Some(rule) = policy.rules.get(of.ban.rule) else { continue };
            if let Some(progress) = watched.begun.dropped(of, (policy, &reading), clocks) {
                let _is_kept = journal.past.progress(progress);
            }
            let (source, rule) = (source_text(of.ban.client), rule.name.clone());
            ends.push(Event::BanEnd { source, rule, dropped: of.dropped, lifted_by: Some(by.to_string()) });
        }
        Ok(ends)
    }

    /// So many, each with what it has dropped; at most as many as are told one by one.
    fn bans_in_force(
        &mut self,
        is_freed: impl Fn(&IpNet) -> bool,
        bans: usize,
        clocks: Clocks,
    ) -> Result<Vec<BanReading>, DatapathError> {
        let mut found = Vec::new();
        let most = bans.min(EVENTS_EACH);
        let mut position = Some(BansPosition::default());
        while let Some(from) = position.filter(|_| found.len() < most) {
            position = self.datapath.visit_bans(from, &mut |of| {
                if clocks.now < of.ban.until && is_freed(&of.ban.client) {
                    found.push(of);
                }
            })?;
        }
        found.truncate(most);
        found.sort_by_key(|of| of.ban);
        Ok(found)
    }
}
