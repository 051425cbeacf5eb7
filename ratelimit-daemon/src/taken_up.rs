//! Recovery after lost events. Once no more events are lost, the maps are walked. The history then opens episodes for
//! refusals and bans in force that it does not know. Each look does a small part.

use std::collections::VecDeque;
use std::net::IpAddr;

use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;

use super::begun;
use super::engine::Engine;
use super::journal::Occurrence;
use super::moment::Moment;
use ratelimit_datapath::{
    Ban, BansPosition, Datapath, DatapathError, EventLimit, KernelEvent, KernelEventKind, Reading, SourceReading,
    SourcesPosition,
};
use ratelimit_policy::desired::{Grant, Mode, Policy};
use ratelimit_report::event::EventKind;
use ratelimit_report::snapshot::{Clocks, RefusedBy, RefusedNow, used_most};

/// Maximum number of beginnings reported to the history in one look. // 512 x 0.5 KB = 256 KB in its queue
const TOLD_MAX: usize = 512;
/// Maximum number of map batches read in one look. // 32 768 entries: 11 ms, as a million take a third of a second
const PARTS_MAX: usize = 2;
/// Maximum number of beginnings reported after one loss. // in 32 looks of 2 s each
const TAKEN_UP_MAX: u64 = 16_384;

/// Progress of the recovery.
#[derive(Debug, Default)]
pub(super) struct TakenUp(State);

#[derive(Debug, Default)]
enum State {
    /// No loss is left to recover from.
    #[default]
    Complete,
    /// Events were lost at the last look.
    Losing,
    /// No events were lost since, and the maps are being walked.
    Walking(Walk),
}

#[derive(Debug)]
struct Walk {
    /// Position of the next bans. None after the last.
    bans: Option<BansPosition>,
    /// Position of the next windows. None after the last.
    sources: Option<SourcesPosition>,
    /// Refusals and bans found but not reported yet.
    found: VecDeque<KernelEvent>,
    /// Number of reported beginnings.
    taken_up: u64,
}

impl TakenUp {
    /// Updates the state. `is_losing` is true if events were lost since the last look, `is_kept` if there is a
    /// history.
    pub(super) fn look(&mut self, is_losing: bool, is_kept: bool) {
        if !is_kept {
            self.0 = State::Complete;
        } else if is_losing {
            self.0 = State::Losing;
        } else if matches!(self.0, State::Losing) {
            self.0 = State::Walking(Walk::default());
        }
    }
}

impl Default for Walk {
    fn default() -> Self {
        let (bans, sources) = (Some(BansPosition::default()), Some(SourcesPosition::default()));
        Self { bans, sources, found: VecDeque::new(), taken_up: 0 }
    }
}

impl Walk {
    /// Reads the next batch of the maps.
    fn read<D: Datapath>(&mut self, datapath: &mut D, policy: &Policy, now: Nanos) -> Result<(), DatapathError> {
        let found = &mut self.found;
        if let Some(from) = self.bans {
            self.bans = datapath.visit_bans(from, &mut |of| found.extend(ban_now(of.ban, policy, now)))?;
        } else if let Some(from) = self.sources {
            let refused = RefusedNow::new(policy, now);
            self.sources = datapath.visit_part_of_sources(from, &mut |of| {
                found.extend(refused.by(&of).map(|by| refusal(&of, by, now)));
            })?;
        }
        Ok(())
    }

    const fn is_read(&self) -> bool {
        self.bans.is_none() && self.sources.is_none()
    }

    /// Returns the next untracked refusals and bans, each with its limit, and starts tracking them.
    fn next<D: Datapath>(
        &mut self,
        datapath: &mut D,
        begun: &mut begun::Begun,
        policy: &Policy,
        now: Nanos,
    ) -> Result<Vec<KernelEvent>, DatapathError> {
        let mut next: Vec<KernelEvent> = self.found.drain(..self.found.len().min(TOLD_MAX)).collect();
        let banned: Vec<IpAddr> = next.iter().filter(|of| of.limit.is_none()).map(|of| of.client.addr()).collect();
        let mut windows = if banned.is_empty() { Vec::new() } else { datapath.sources(&banned)? }.into_iter();
        for of in next.iter_mut().filter(|of| of.limit.is_none()) {
            let rule = of.rule.and_then(|at| policy.rules.get(at));
            let most = rule.zip(windows.next()).and_then(|(rule, windows)| {
                let (limit, used) = used_most(rule, &windows, now)?;
                Some((rule.limits.iter().position(|other| other.slot == limit.slot)?, used))
            });
            if let Some((limit, used)) = most {
                (of.limit, of.used) = (Some(EventLimit::Held(limit)), used);
            }
        }
        next.retain(|of| begun.take_up(of, policy, now));
        self.taken_up += next.len() as u64;
        Ok(next)
    }
}

/// Returns an event for a ban that currently drops packets. Its limit is looked up later.
fn ban_now(ban: Ban, policy: &Policy, now: Nanos) -> Option<KernelEvent> {
    let rule = policy.rules.get(ban.rule).filter(|rule| rule.mode == Mode::Enforce && now < ban.until);
    let is_exempt = policy.grant_around(ban.client, now).is_some_and(|access| access.grant == Grant::Exempt);
    rule.filter(|_| !is_exempt).map(|_| KernelEvent {
        time: now,
        kind: KernelEventKind::Ban { until: ban.until, step: ban.step },
        client: ban.client,
        rule: Some(ban.rule),
        limit: None,
        reason: Reason::Banned,
        guard: None,
        is_verified: false,
        used: 0,
    })
}

const fn refusal(of: &SourceReading, by: RefusedBy, now: Nanos) -> KernelEvent {
    let kind = if by.would { KernelEventKind::WouldRefuse } else { KernelEventKind::Refused };
    KernelEvent {
        time: now,
        kind,
        client: of.prefix,
        rule: Some(by.rule),
        limit: Some(by.limit),
        reason: Reason::OverLimit,
        guard: None,
        is_verified: of.is_verified,
        used: by.used,
    }
}

impl<D: Datapath> Engine<D> {
    /// Reports to the history some refusals that no event reported.
    pub(super) fn take_up(&mut self, reading: &Reading, moment: Moment) {
        let state = std::mem::take(&mut self.watched.taken_up.0);
        let State::Walking(mut walk) = state else {
            self.watched.taken_up.0 = state;
            return;
        };
        match self.try_take_up(&mut walk, reading, moment) {
            Ok(()) if walk.taken_up < TAKEN_UP_MAX && !(walk.is_read() && walk.found.is_empty()) => {
                self.watched.taken_up.0 = State::Walking(walk);
            }
            Ok(()) if walk.taken_up > 0 => {
                let said = format!(
                    "events were lost: {} sources were refused or banned after that, and `ratelimitd history` has \
                     them only from now on",
                    walk.taken_up
                );
                tracing::info!("{said}");
                self.journal.add(Occurrence::new(EventKind::Overload, said));
            }
            Ok(()) => {}
            // A persistent failure means that the maps are unreadable, which supervision reports.
            Err(error) => {
                tracing::debug!("record the sources that are refused: {:#}", anyhow::Error::from(error));
                self.watched.taken_up.0 = State::Losing;
            }
        }
    }

    fn try_take_up(&mut self, walk: &mut Walk, reading: &Reading, moment: Moment) -> Result<(), DatapathError> {
        let Self { datapath, enforced, watched, journal, .. } = self;
        let (policy, now) = (&enforced.desired.policy, reading.now);
        for _ in 0..PARTS_MAX {
            if walk.found.len() < TOLD_MAX && !walk.is_read() {
                walk.read(datapath, policy, now)?;
            }
        }
        let clocks = Clocks { now, wall: moment.wall };
        let next = walk.next(datapath, &mut watched.begun, policy, now)?;
        let events: Vec<_> = next.iter().filter_map(|of| begun::event(of, policy, clocks)).collect();
        if !events.is_empty() {
            journal.take_up(&events, moment.wall);
        }
        Ok(())
    }

    /// Returns memory to the system that a flood took and that is no longer needed.
    pub(super) fn give_back_memory(&mut self, reading: &Reading) {
        self.watched.begun.tidy(reading.now);
        (self.host.give_back_memory)();
    }
}
