//! Which bans expired: the maps are read in parts, and only where one is due. That a ban begins is told by packets.
//!
//! Nothing is remembered of a single ban. A pass over the maps finds what expired since the pass before it. The end of a
//! ban is not told where another ban of the source began within the same pass.

use ratelimit_common::time::{Nanos, SECOND_NS};

use super::begun::Begun;
use super::journal::{EVENTS_EACH, Event, Journal, Unlogged};
use super::moment::Moment;
use ratelimit_datapath::{BanReading, BansPosition, Datapath, DatapathError, Reading};
use ratelimit_policy::desired::Policy;
use ratelimit_report::snapshot::{Clocks, source_text};

/// The kernel's coarse clock, which dates bans, may be behind, and a ban is in the map a moment later: a pass takes
/// in what is this old.
const SETTLED_NS: u64 = SECOND_NS / 2;
/// Parts of the maps that are read at one time. // 32 768 bans: 11 ms, as a million entries take a third of a second
const PARTS_MAX: usize = 2;

/// Up to when ends of bans are told, and the pass that runs.
#[derive(Debug)]
pub(super) struct BanWatch {
    told: Nanos,
    /// Bans that all rules had begun when the last pass began.
    begun: u64,
    /// When the next ban expires; of those that the last pass has seen.
    next_end: Option<Nanos>,
    /// There may be bans that no pass has seen.
    is_behind: bool,
    pass: Option<Pass>,
}

#[derive(Clone, Copy, Debug)]
struct Pass {
    /// What happened after this is for the next one.
    until: Nanos,
    position: BansPosition,
    next_end: Option<Nanos>,
}

/// What a pass has found: at most so many to tell, the others as a number.
#[derive(Default)]
struct Found {
    expired: Vec<BanReading>,
    unlogged: u64,
}

impl BanWatch {
    /// What was before is not told, as an earlier run has done so.
    pub(super) fn since(reading: &Reading) -> Self {
        // Bans of an earlier run may end: the first pass finds out when.
        let begun = begun(reading);
        Self { told: settled(reading.now), begun, next_end: None, is_behind: begun != 0, pass: None }
    }

    /// There are bans that no packet began.
    pub(super) const fn more(&mut self) {
        self.is_behind = true;
    }

    /// Tells which bans expired. Little is done at one time however many there are.
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
            // Where this goes on, the maps cannot be read, which supervision says.
            self.is_behind = true;
            tracing::debug!("look at bans: {:#}", anyhow::Error::from(error));
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

    /// The pass that runs, or a new one where anything can have changed.
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
