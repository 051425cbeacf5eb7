//! What is told of sources that a command is about to free: what their bans and windows have refused since it was told
//! last, and that their bans end. What they do from then on is counted from zero.

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
    /// Tells it of the sources that `is_freed` says. What cannot be read is not told, and hinders nobody.
    pub(super) fn tell_freed(&mut self, is_freed: impl Fn(&IpNet) -> bool, by: &Requester, moment: Moment) {
        // What began is told before it ends.
        self.tell_begun(moment);
        if let Err(error) = self.try_tell_freed(&is_freed, by, moment) {
            tracing::debug!("look at freed sources: {:#}", anyhow::Error::from(error));
        }
        self.watched.begun.part_with(&is_freed);
    }

    fn try_tell_freed(
        &mut self,
        is_freed: impl Fn(&IpNet) -> bool,
        by: &Requester,
        moment: Moment,
    ) -> Result<(), DatapathError> {
        let reading = self.datapath.read()?;
        let clocks = Clocks { now: reading.now, wall: moment.wall };
        let lifted = self.bans_in_force(&is_freed, clocks)?;
        let Self { datapath, enforced, watched, journal, .. } = self;
        let policy = &enforced.desired.policy;
        let keys = watched.begun.followed(&is_freed);
        let addresses: Vec<IpAddr> = keys.iter().map(|key| key.client.addr()).collect();
        for (key, windows) in keys.into_iter().zip(datapath.sources(&addresses)?) {
            tell_progress_of(&mut watched.begun, key, &windows, (policy, &reading), journal, moment);
        }
        for of in lifted {
            let Some(rule) = policy.rules.get(of.ban.rule) else { continue };
            if let Some(progress) = watched.begun.dropped(of, (policy, &reading), clocks) {
                let _is_kept = journal.past.progress(progress);
            }
            let (source, rule) = (source_text(of.ban.client), rule.name.clone());
            // The log has the command, in one line.
            let end = Event::BanEnd { source, rule, dropped: of.dropped, lifted_by: Some(by.to_string()) };
            journal.tell_unlogged(&end, moment.wall);
        }
        Ok(())
    }

    /// Each with what it has dropped. At most so many as are told one by one.
    fn bans_in_force(
        &mut self,
        is_freed: impl Fn(&IpNet) -> bool,
        clocks: Clocks,
    ) -> Result<Vec<BanReading>, DatapathError> {
        let mut found = Vec::new();
        let mut position = Some(BansPosition::default());
        while let Some(from) = position.filter(|_| found.len() < EVENTS_EACH) {
            position = self.datapath.visit_bans(from, &mut |of| {
                if clocks.now < of.ban.until && is_freed(&of.ban.client) {
                    found.push(of);
                }
            })?;
        }
        found.truncate(EVENTS_EACH);
        found.sort_by_key(|of| of.ban);
        Ok(found)
    }
}
