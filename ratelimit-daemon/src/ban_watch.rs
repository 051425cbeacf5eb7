//! Detection of expired bans. The maps are read in batches, and only when an expiry is due. Packets report the start
//! of a ban.
//!
//! No single ban is remembered. A pass over the maps finds the bans that expired since the previous pass. The end of
//! a ban goes unreported if another ban of the source began within the same pass.

use ratelimit_common::time::{Nanos, SECOND_NS};

use super::begun::Begun;
use super::journal::{EVENTS_EACH, Event, Journal, Unlogged};
use super::moment::Moment;
use ratelimit_datapath::{BanReading, BansPosition, Datapath, DatapathError, Reading};
use ratelimit_policy::desired::Policy;
use ratelimit_report::snapshot::{Clocks, source_text};

/// Safety margin of a pass. The kernel's coarse clock, which dates bans, may lag, and a ban appears in the map a
/// moment later.
const SETTLED_NS: u64 = SECOND_NS / 2;
/// Maximum number of map batches read in one call. // 32 768 bans: 11 ms, as a million entries take a third of a
/// second
const PARTS_MAX: usize = 2;

/// Time up to which ends of bans were reported, and the pass in progress.
#[derive(Debug)]
pub(super) struct BanWatch {
    told: Nanos,
    /// Number of bans begun by all rules at the start of the last pass.
    begun: u64,
    /// Earliest expiry among the bans that the last pass has seen.
    next_end: Option<Nanos>,
    /// True if there may be bans that no pass has seen.
    is_behind: bool,
    pass: Option<Pass>,
}

#[derive(Clone, Copy, Debug)]
struct Pass {
    /// Time limit of the pass. Later expiries belong to the next one.
    until: Nanos,
    position: BansPosition,
    next_end: Option<Nanos>,
}

/// Result of a pass: up to [`EVENTS_EACH`] expired bans, and the number of further ones.
#[derive(Default)]
struct Found {
    expired: Vec<BanReading>,
    unlogged: u64,
}

impl BanWatch {
    /// Starts after the bans that an earlier run has already reported.
    pub(super) fn since(reading: &Reading) -> Self {
        // Bans of an earlier run may still expire. The first pass finds out when.
        let begun = begun(reading);
        Self { told: settled(reading.now), begun, next_end: None, is_behind: begun != 0, pass: None }
    }

    /// Notes that there are bans that no packet started.
    pub(super) const fn more(&mut self) {
        self.is_behind = true;
    }

    /// Reports expired bans. The work of one call is bounded.
    pub(super) fn look<D: Datapath>(
        &mut self,
        datapath: &mut D,
        policy: &Policy,
        begun: &mut Begun,
        journal: &mut Journal,
        reading: &Reading,
        moment: Moment,
    ) {
        if let Some(pass) = self.pass(reading)
            && let Err(error) = self.go_through(pass, datapath, policy, begun, journal, (reading, moment))
        {
            // A persistent failure means that the maps are unreadable, which supervision reports.
            self.is_behind = true;
            tracing::debug!("read bans: {:#}", anyhow::Error::from(error));
        }
    }

    fn go_through<D: Datapath>(
        &mut self,
        mut pass: Pass,
        datapath: &mut D,
        policy: &Policy,
        begun: &mut Begun,
        journal: &mut Journal,
        (reading, moment): (&Reading, Moment),
    ) -> Result<(), DatapathError> {
        let mut found = Found::default();
        let told = self.told;
        let mut position = Some(pass.position);
        for _ in 0..PARTS_MAX {
            let Some(from) = position else { break };
            position = datapath.visit_bans(from, &mut |of| pass.take(told, of, &mut found))?;
        }
        self.go_on(pass, position);
        let Found { mut expired, unlogged } = found;
        expired.sort_by_key(|of| (of.ban.until, of.ban.client));
        journal.tell_all([], Unlogged { ends: unlogged, ..Unlogged::default() }, moment);
        let clocks = Clocks { now: reading.now, wall: moment.wall };
        for of in expired {
            let Some(rule) = policy.rules.get(of.ban.rule) else { continue };
            if let Some(progress) = begun.dropped(of, (policy, reading), clocks) {
                let _is_kept = journal.past.progress(progress);
            }
            let (source, rule) = (source_text(of.ban.client), rule.name.clone());
            let event = Event::BanEnd { source, rule, dropped: of.dropped, lifted_by: None };
            journal.take(&event, clocks.wall_of(of.ban.until), moment);
        }
        Ok(())
    }

    /// Returns the pass in progress, or a new one if anything may have changed.
    fn pass(&mut self, reading: &Reading) -> Option<Pass> {
        if let Some(pass) = self.pass.take() {
            return Some(pass);
        }
        let until = settled(reading.now);
        let is_due = self.is_behind || begun(reading) != self.begun || self.next_end.is_some_and(|end| end <= until);
        if !is_due || until <= self.told {
            return None;
        }
        self.begun = begun(reading);
        Some(Pass { until, position: BansPosition::default(), next_end: None })
    }

    fn go_on(&mut self, pass: Pass, position: Option<BansPosition>) {
        match position {
            Some(position) => self.pass = Some(Pass { position, ..pass }),
            None => (self.told, self.next_end, self.is_behind) = (pass.until, pass.next_end, false),
        }
    }
}

impl Pass {
    fn take(&mut self, told: Nanos, of: BanReading, found: &mut Found) {
        let end = of.ban.until;
        if end > self.until {
            self.next_end = Some(self.next_end.map_or(end, |next| next.min(end)));
        } else if end > told && found.expired.len() < EVENTS_EACH {
            found.expired.push(of);
        } else if end > told {
            found.unlogged += 1;
        }
    }
}

const fn settled(now: Nanos) -> Nanos {
    Nanos(now.0.saturating_sub(SETTLED_NS))
}

fn begun(reading: &Reading) -> u64 {
    reading.bans_begun.iter().fold(0, |sum, of| sum.wrapping_add(*of))
}
