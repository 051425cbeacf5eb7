//! Reports about sources that a command frees. Beforehand, reports what their bans and windows refused since the last
//! report. Afterwards, reports that their bans have ended. Later refusals count from zero.

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
    /// Reports what these sources were refused until now. Returns the events to report once they are free. `bans` is
    /// the number of their bans in force. A read failure is only logged and does not prevent the command.
    pub(super) fn look_at_freed(
        &mut self,
        is_freed: impl Fn(&IpNet) -> bool,
        bans: usize,
        by: &Requester,
        moment: Moment,
    ) -> Vec<Event> {
        // Beginnings must be reported before their ends.
        self.tell_begun(moment);
        let ends = self.try_look_at_freed(&is_freed, bans, by, moment);
        ends.unwrap_or_else(|error| {
            tracing::debug!("read freed sources: {:#}", anyhow::Error::from(error));
            Vec::new()
        })
    }

    /// Reports that these sources are free.
    pub(super) fn tell_freed(&mut self, is_freed: impl Fn(&IpNet) -> bool, ends: &[Event], moment: Moment) {
        // The log already has the command in one line.
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

    /// Returns up to `bans` bans in force with their dropped packets, at most [`EVENTS_EACH`].
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
