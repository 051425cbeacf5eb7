//! Bans, grants and resets that all hosts of a fleet follow: sending this host's, and carrying out those of others.
//!
//! Received acts are carried out like the engine's own commands, attributed to `fleet (HOST: USER)`. They are not
//! sent on, because only the host where a packet or a user started them does that.

use std::collections::BTreeSet;

use ipnet::IpNet;
use ratelimit_common::time::{Nanos, SECOND_NS};

use super::hosts::name_of;
use crate::engine::Engine;
use crate::journal::{Banned, Event, Occurrence};
use crate::lift::Freed;
use crate::moment::Moment;
use ratelimit_control::Requester;
use ratelimit_control::proto::{GrantRequest, Problem, ProblemKind};
use ratelimit_crash::{Point, reach};
use ratelimit_datapath::{Ban, Datapath, KernelEvent, KernelEventKind};
use ratelimit_fleet::acts::{Act, Begun, RESET_FOR, What};
use ratelimit_fleet::run::State;
use ratelimit_policy::access::{By, Entry};
use ratelimit_policy::config::network::Target;
use ratelimit_policy::desired::{Grant, Policy, Rule};
use ratelimit_report::event::EventKind;
use ratelimit_report::snapshot::source_text;

/// Maximum difference between two expiries that count as equal, given the clocks of two hosts.
const SAME_END_NS: u64 = 2 * SECOND_NS;
/// Tolerance, for clock differences, when an act lifts the bans that began before it.
const SAME_TIME_NS: u64 = SECOND_NS;

/// Scope of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Only this host.
    Host,
    /// Every host of the fleet.
    Fleet,
}

/// Treatment of a source's windows when its bans are lifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Windows {
    Kept,
    Reset,
}

impl Reach {
    /// Returns the scope for the `fleet` flag of a request.
    pub(crate) const fn of(on_fleet: bool) -> Self {
        if on_fleet { Self::Fleet } else { Self::Host }
    }
}

impl<D: Datapath> Engine<D> {
    /// Fails if the command targets the fleet and this host has not joined one. An unreachable store is not an error:
    /// the command is delivered later.
    pub(crate) fn must_have_fleet(&mut self, reach: Reach, moment: Moment) -> Result<(), Problem> {
        if reach == Reach::Host {
            return Ok(());
        }
        if self.enforced.config.fleet.is_none() {
            let why = "this host is in no fleet, so nothing was changed; leave --fleet out, or write [fleet] into the \
                       configuration";
            return Err(Problem::new(ProblemKind::BadRequest, why));
        }
        self.follow_fleet(moment);
        let Some(failed) = self.fleet.failed.as_ref().filter(|_| self.fleet.joined.is_none()) else { return Ok(()) };
        let why = format!(
            "this host has not joined its fleet, so nothing was changed: {}; mend that, or leave --fleet out",
            failed.why
        );
        Err(Problem::new(ProblemKind::Conflict, why))
    }

    /// Returns a note for the user if other hosts learn of the command only later, or if a restart would lose it.
    pub(crate) fn fleet_note(&self, reach: Reach, spread: Result<(), String>) -> Option<String> {
        let is_away = self.fleet.status().is_some_and(|status| status.state == State::Away);
        match (reach, spread) {
            (Reach::Host, _) => None,
            (Reach::Fleet, Err(error)) => Some(format!("a restart before other hosts hear of this loses it: {error}")),
            (Reach::Fleet, Ok(())) => {
                is_away.then(|| "the fleet is away: other hosts hear of this when it is back".to_owned())
            }
        }
    }

    /// Returns a note for the user if a reset may expire before other hosts hear about it.
    pub(crate) fn reset_note(&self, reach: Reach) -> Option<String> {
        let is_away = self.fleet.status().is_some_and(|status| status.state == State::Away);
        (reach == Reach::Fleet && is_away).then(|| {
            let seconds = RESET_FOR.as_secs();
            format!("the fleet is away: other hosts reset it only if it is back within {seconds} s")
        })
    }

    /// Returns a note for the user if a grant from the fleet was removed on this host only.
    pub(crate) fn kept_elsewhere(&self, removed: &[Entry], reach: Reach) -> Option<String> {
        let is_told = |entry: &Entry| matches!(&entry.by, By::Command { user, .. } if Requester::is_of_fleet(user));
        let is_kept = reach == Reach::Host && self.enforced.config.fleet.is_some() && removed.iter().any(is_told);
        is_kept.then(|| "other hosts of the fleet keep it: add --fleet".to_owned())
    }

    /// Sends commands of a user of this host to all hosts. Saves them first, so a restart does not lose them. Fails
    /// if they cannot be saved.
    pub(crate) fn spread(&mut self, said: impl IntoIterator<Item = (IpNet, What)>, now: Nanos) -> Result<(), String> {
        let Some(fleet) = &self.enforced.config.fleet else { return Ok(()) };
        let kept = self.fleet.kept.add(&fleet.name, said, now, &self.host.store);
        if let Some(joined) = &self.fleet.joined {
            self.fleet.kept.give(&joined.fleet);
            reach(Point::FleetSpread);
        }
        kept.map_err(|error| {
            tracing::warn!("{error}");
            error.to_string()
        })
    }

    /// Returns true if bans and their lifting are sent to all hosts automatically.
    pub(crate) fn spreads_bans(&self) -> bool {
        self.enforced.config.fleet.as_ref().is_some_and(|fleet| fleet.bans)
    }

    /// Sends those bans to the fleet that the source's established connections proved.
    pub(crate) fn spread_bans(&mut self, events: &[KernelEvent]) {
        let (true, Ok(now), Some(joined)) = (self.spreads_bans(), self.datapath.now(), &self.fleet.joined) else {
            return;
        };
        for (prefix, what) in events.iter().filter_map(|event| proved_ban(event, &self.enforced.desired.policy)) {
            // An act that does not fit into the queue is counted by the fleet.
            let _is_sent = joined.fleet.spread(Begun { number: 0, at_ns: now.0, prefix, what });
        }
    }

    /// Carries out an act that another host sent.
    pub(crate) fn hear(&mut self, act: Act, moment: Moment) {
        let Act { at_ns, said_ns: _, host, prefix, what } = act;
        let host = name_of(host, &self.fleet.status().unwrap_or_default());
        let is_grant = !matches!(what, What::Ban { .. } | What::Unblock { .. } | What::Reset { .. });
        if is_grant && self.is_overtaken(prefix, at_ns) {
            return;
        }
        let done = match what {
            What::Ban { rule, until_ns } => self.ban_heard(prefix, &rule, Nanos(until_ns), &host, moment),
            What::Unblock { by } => self.unblock_heard(prefix, Nanos(at_ns), &Requester::fleet(&host, &by), moment),
            What::Reset { by } => self.reset_client(prefix, &Requester::fleet(&host, &by), moment).map(drop),
            What::Allow { until_ns, reason, by } => {
                let request = granted(prefix, reason);
                self.grant_heard(Grant::Exempt, request, until_ns, (prefix, &Requester::fleet(&host, &by)), moment)
            }
            What::Deny { until_ns, reason, by } => {
                let request = granted(prefix, reason);
                self.grant_heard(Grant::Denied, request, until_ns, (prefix, &Requester::fleet(&host, &by)), moment)
            }
            What::Unallow { by } => self.take_off_heard(Grant::Exempt, prefix, &Requester::fleet(&host, &by), moment),
            What::Undeny { by } => self.take_off_heard(Grant::Denied, prefix, &Requester::fleet(&host, &by), moment),
        };
        reach(Point::FleetHeard);
        if let Err(problem) = done {
            let said = format!(
                "the command of {host} for {} is not carried out here: {}",
                source_text(prefix),
                problem.message
            );
            tracing::warn!("fleet: {said}");
            self.journal.add(Occurrence::new(EventKind::Fleet, said));
        }
    }

    /// Returns true if a user of this host has granted something within the prefix since the act. After a start, a
    /// host receives older acts again.
    fn is_overtaken(&self, prefix: IpNet, at_ns: u64) -> bool {
        self.overrides.grants.ledger.entries().filter(|entry| prefix.contains(&entry.prefix)).any(|entry| {
            let is_own = matches!(&entry.by, By::Command { user, .. } if !Requester::is_of_fleet(user));
            is_own && entry.since.is_some_and(|since| since.as_nanosecond() > i128::from(at_ns))
        })
    }

    fn ban_heard(
        &mut self,
        client: IpNet,
        rule: &str,
        until: Nanos,
        host: &str,
        moment: Moment,
    ) -> Result<(), Problem> {
        let policy = &self.enforced.desired.policy;
        let Some(at) = policy.rules.iter().position(|of| of.name == rule) else { return Ok(()) };
        let clocks = self.clocks(moment)?;
        let policy = &self.enforced.desired.policy;
        // Ignores the ban if this host's prefix length makes a different source of it, or if the source is allowed.
        let is_exempt = policy.grant(client.addr(), clocks.now).is_some_and(|access| access.grant == Grant::Exempt);
        if !self.spreads_bans() || policy.client(client.addr()) != client || is_exempt {
            return Ok(());
        }
        if !self.datapath.ban(client, at, until).map_err(Problem::datapath)? {
            return Ok(());
        }
        let bans = self.datapath.bans_of(client).map_err(Problem::datapath)?;
        self.kill_client(client, at, until, moment.uptime);
        let step = bans.iter().find(|ban| ban.rule == at).map_or(1, |ban| ban.step);
        if let Some(watch) = &mut self.watched.bans {
            watch.more();
        }
        let until = clocks.wall_of(until);
        let until = until.round(jiff::Unit::Second).unwrap_or(until);
        let by = Some(Requester::fleet(host, "").to_string());
        let (source, rule) = (source_text(client), rule.to_owned());
        self.journal.tell(Event::Ban(Banned { source, rule, usage: None, until, step, by }), moment);
        self.statistics.outdate();
        Ok(())
    }

    /// Carries out an unblock from another host. Denials have an act of their own. An unblock of everything, or one
    /// received late such as after a restart, lifts only bans that began before it.
    fn unblock_heard(&mut self, prefix: IpNet, at: Nanos, by: &Requester, moment: Moment) -> Result<(), Problem> {
        let clocks = self.clocks(moment)?;
        let is_new = u128::from(clocks.now.0.saturating_sub(at.0)) < RESET_FOR.as_nanos();
        let freed = if is_new && prefix.prefix_len() > 0 {
            let found = self.find_blocked(Some(prefix), clocks)?;
            self.free(found, by, moment)?
        } else {
            let latest = Nanos(at.0.saturating_add(SAME_TIME_NS));
            let windows = if is_new { Windows::Reset } else { Windows::Kept };
            self.lift_older(prefix, latest, windows, (by, moment))?
        };
        if !(freed.bans.is_empty() && freed.blocked.is_empty()) {
            self.tell_unblock(Some(prefix), 0, &freed, by, moment);
        }
        Ok(())
    }

    /// Lifts the bans within a prefix that began no later than `latest`.
    fn lift_older(
        &mut self,
        prefix: IpNet,
        latest: Nanos,
        windows: Windows,
        (by, moment): (&Requester, Moment),
    ) -> Result<Freed, Problem> {
        let within = self.enforced.whole_client(prefix);
        let mut bans = self.datapath.bans().map_err(Problem::datapath)?;
        let rules = &self.enforced.desired.policy.rules;
        bans.retain(|ban| within.contains(&ban.client) && began(ban, rules).is_some_and(|began| began <= latest.0));
        let clients: BTreeSet<IpNet> = bans.iter().map(|ban| ban.client).collect();
        if clients.is_empty() {
            return Ok(Freed { bans, blocked: Vec::new(), untold: 0 });
        }
        let clients: Vec<IpNet> = clients.into_iter().collect();
        let is_freed = |client: &IpNet| clients.binary_search(client).is_ok();
        let ends = self.look_at_freed(is_freed, bans.len(), by, moment);
        if windows == Windows::Reset {
            self.forget_clients(&clients).map_err(Problem::datapath)?;
        } else {
            clients.iter().try_for_each(|of| self.datapath.lift_bans(*of).map(drop)).map_err(Problem::datapath)?;
        }
        self.tell_freed(is_freed, &ends, moment);
        let untold = bans.len().saturating_sub(ends.len());
        let blocked = if windows == Windows::Reset { clients } else { Vec::new() };
        Ok(Freed { bans, blocked, untold })
    }

    fn grant_heard(
        &mut self,
        grant: Grant,
        request: GrantRequest,
        until_ns: Option<u64>,
        (prefix, by): (IpNet, &Requester),
        moment: Moment,
    ) -> Result<(), Problem> {
        let now = self.clocks(moment)?.now;
        let said = by.to_string();
        // After a start, this host receives acts again that are already in force.
        let is_entered = self.overrides.grants.ledger.entries().any(|entry| {
            let is_same_end = match (entry.until, until_ns) {
                (None, None) => true,
                (Some(until), Some(until_ns)) => until.0.abs_diff(until_ns) <= SAME_END_NS,
                (Some(_), None) | (None, Some(_)) => false,
            };
            let is_theirs = matches!(&entry.by, By::Command { user, .. } if *user == said);
            entry.prefix == prefix && entry.grant == grant && is_same_end && is_theirs
        });
        if is_entered {
            return Ok(());
        }
        let seconds = until_ns.map(|until_ns| until_ns.saturating_sub(now.0).div_ceil(SECOND_NS).max(1));
        let request = GrantRequest { seconds, permanent: seconds.is_none(), ..request };
        self.grant(grant, Target::Prefix { network: prefix, written: prefix }, &request, by, moment).map(drop)
    }

    fn take_off_heard(&mut self, grant: Grant, prefix: IpNet, by: &Requester, moment: Moment) -> Result<(), Problem> {
        let entries = self.overrides.grants.ledger.entries();
        if !entries.into_iter().any(|entry| entry.grant == grant && prefix.contains(&entry.prefix)) {
            return Ok(());
        }
        let clocks = self.clocks(moment)?;
        let removed = self.take_off(grant, Some(prefix), clocks, &mut Vec::new())?;
        let (by, count) = (by.to_string(), removed.len());
        self.journal.tell(
            match grant {
                Grant::Exempt => Event::Unallow { prefix, by, removed: count },
                Grant::Denied => {
                    Event::Unblock { prefix: Some(prefix), by, denials: count, rules: Vec::new(), untold: 0, freed: 0 }
                }
            },
            moment,
        );
        Ok(())
    }
}

/// Returns the start of a ban in nanoseconds of the datapath's clock.
fn began(ban: &Ban, rules: &[Rule]) -> Option<u64> {
    let steps = rules.get(ban.rule)?.bans.as_ref()?.steps_ns.as_slice();
    let step = usize::try_from(ban.step.saturating_sub(1)).unwrap_or(usize::MAX);
    let length = steps.get(step).or(steps.last())?;
    Some(ban.until.0.saturating_sub(*length))
}

/// Returns the ban of an event, if the source's established connections proved it.
fn proved_ban(event: &KernelEvent, policy: &Policy) -> Option<(IpNet, What)> {
    let KernelEventKind::Ban { until, step: _ } = event.kind else { return None };
    let rule = policy.rules.get(event.rule?)?;
    let is_proved = event.is_verified || rule.bans.as_ref().is_some_and(|bans| bans.needs_proof);
    is_proved.then(|| (event.client, What::Ban { rule: rule.name.clone(), until_ns: until.0 }))
}

/// Builds a grant request that replaces earlier grants, because the latest act wins. The request still must not lock
/// anyone out.
fn granted(prefix: IpNet, reason: Option<String>) -> GrantRequest {
    GrantRequest { prefix: prefix.to_string(), replace: true, reason, ..GrantRequest::default() }
}
