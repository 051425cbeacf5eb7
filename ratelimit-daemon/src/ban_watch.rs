//! Which bans began and expired, for the log: the maps are read in parts, and only where something has changed.
//!
//! Nothing is remembered of a single ban. A pass over the maps finds what began or expired since the pass before it:
//! the map has the end of a ban, and its beginning is its length before that. A ban is logged twice or not at all
//! where `block_for` is changed while it holds. The end of a ban is not logged where another ban of the source began
//! within the same pass.

use std::net::IpAddr;

use jiff::Timestamp;
use ratelimit_common::time::{Nanos, SECOND_NS};

use super::journal::{Banned, Event, Journal, Unlogged, Usage};
use super::moment::Moment;
use ratelimit_datapath::{BanReading, BansPosition, Datapath, DatapathError, Reading};
use ratelimit_policy::desired::Policy;
use ratelimit_report::snapshot::{Clocks, source_text, used_most};

/// The kernel's coarse clock, which dates bans, may be behind, and a ban is in the map a moment later: a pass takes
/// in what is this old.
const SETTLED_NS: u64 = SECOND_NS / 2;
/// Parts of the maps that are read at one time. // 32 768 bans: 11 ms, as a million entries take a third of a second
const PARTS_MAX: usize = 2;

/// Up to when bans are logged, and the pass that runs.
#[derive(Debug)]
pub(super) struct BanWatch {
    told: Nanos,
    /// Bans that all rules had begun when the last pass began.
    begun: u64,
    /// When the next ban expires; of those that the last pass has seen.
    next_end: Option<Nanos>,
    /// The last pass has seen what is for the next one.
    is_behind: bool,
    pass: Option<Pass>,
}

#[derive(Clone, Copy, Debug)]
struct Pass {
    /// What happened after this is for the next one.
    until: Nanos,
    position: BansPosition,
    next_end: Option<Nanos>,
    is_behind: bool,
}

/// What is known of one ban without another look at its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    at: Nanos,
    kind: Kind,
    of: BanReading,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Began,
    Expired,
}

/// What a pass has found: at most `room` to log, the others as numbers.
struct Found {
    room: usize,
    changes: Vec<Change>,
    unlogged: Unlogged,
}

impl BanWatch {
    /// What was before is not logged, as an earlier run has done so.
    pub(super) fn since(reading: &Reading) -> Self {
        // Bans of an earlier run may end: the first pass finds out when.
        let begun = begun(reading);
        Self { told: settled(reading.now), begun, next_end: None, is_behind: begun != 0, pass: None }
    }

    /// Tells which bans began and expired. Little is done at one time however many there are.
    pub(super) fn look<D: Datapath>(
        &mut self,
        datapath: &mut D,
        policy: &Policy,
        journal: &mut Journal,
        reading: &Reading,
        moment: Moment,
    ) {
        if let Some(pass) = self.pass(reading)
            && let Err(error) = self.go_through(pass, datapath, policy, journal, reading, moment)
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
        journal: &mut Journal,
        reading: &Reading,
        moment: Moment,
    ) -> Result<(), DatapathError> {
        let room = journal.room(moment.uptime);
        let mut found = Found { room, changes: Vec::new(), unlogged: Unlogged::default() };
        let told = self.told;
        let mut position = Some(pass.position);
        for _ in 0..PARTS_MAX {
            let Some(from) = position else { break };
            position = datapath.visit_bans(from, &mut |of| pass.take(told, policy, of, &mut found))?;
        }
        self.go_on(pass, position);
        let Found { mut changes, unlogged, .. } = found;
        changes.sort_by_key(|change| (change.at, change.of.ban.client));
        let began = changes.iter().filter(|change| change.kind == Kind::Began);
        let sources: Vec<IpAddr> = began.map(|change| change.of.ban.client.addr()).collect();
        let windows = if sources.is_empty() { Vec::new() } else { datapath.sources(&sources)? };
        let clocks = Clocks { now: reading.now, wall: moment.wall };
        let mut windows = windows.into_iter();
        let mut events = Vec::new();
        for Change { kind, of, .. } in changes {
            let Some(rule) = policy.rules.get(of.ban.rule) else { continue };
            let (source, name) = (source_text(of.ban.client), rule.name.clone());
            events.push(match kind {
                Kind::Began => {
                    let windows = windows.next().unwrap_or_default();
                    let most = used_most(rule, &windows, reading.now);
                    let usage = most.map(|(limit, used)| Usage { limit: limit.to_string(), used });
                    let until = whole(clocks.wall_of(of.ban.until));
                    Event::Ban(Banned { source, rule: name, usage, until, step: of.ban.step })
                }
                Kind::Expired => Event::BanEnd { source, rule: name, dropped: of.dropped },
            });
        }
        journal.tell_all(events, unlogged, moment);
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
        Some(Pass { until, position: BansPosition::default(), next_end: None, is_behind: false })
    }

    fn go_on(&mut self, pass: Pass, position: Option<BansPosition>) {
        match position {
            Some(position) => self.pass = Some(Pass { position, ..pass }),
            None => (self.told, self.next_end, self.is_behind) = (pass.until, pass.next_end, pass.is_behind),
        }
    }
}

impl Pass {
    fn take(&mut self, told: Nanos, policy: &Policy, of: BanReading, found: &mut Found) {
        let Some(length_ns) = policy.rules.get(of.ban.rule).and_then(|rule| rule.bans.as_ref()?.length_ns(of.ban.step))
        else {
            return;
        };
        let began = Nanos(of.ban.until.0.saturating_sub(length_ns));
        for (at, kind) in [(began, Kind::Began), (of.ban.until, Kind::Expired)] {
            if told < at && at <= self.until {
                found.add(Change { at, kind, of });
            }
        }
        if of.ban.until > self.until {
            self.next_end = Some(self.next_end.map_or(of.ban.until, |end| end.min(of.ban.until)));
        }
        self.is_behind |= began > self.until;
    }
}

impl Found {
    fn add(&mut self, change: Change) {
        if self.changes.len() < self.room {
            self.changes.push(change);
            return;
        }
        match change.kind {
            Kind::Began => self.unlogged.bans += 1,
            Kind::Expired => self.unlogged.ends += 1,
        }
    }
}

const fn settled(now: Nanos) -> Nanos {
    Nanos(now.0.saturating_sub(SETTLED_NS))
}

fn begun(reading: &Reading) -> u64 {
    reading.bans_begun.iter().fold(0, |sum, of| sum.wrapping_add(*of))
}

/// People and programs alike have no use for nanoseconds here.
fn whole(at: Timestamp) -> Timestamp {
    at.round(jiff::Unit::Second).unwrap_or(at)
}
