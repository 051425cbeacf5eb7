//! Health of the fleet, for `stats`, `ratelimitd fleet`, `/healthz` and events.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use ratelimit_common::time::{Nanos, SECOND_NS};

use super::{Joined, Ties};
use crate::engine::Engine;
use crate::journal::Occurrence;
use crate::moment::Moment;
use ratelimit_control::proto::Problem;
use ratelimit_datapath::Datapath;
use ratelimit_fleet::hosts::{self, Host, SILENT_AFTER};
use ratelimit_fleet::run::{ROUND_SECONDS, State, Status};
use ratelimit_fleet::store::trouble::Trouble;
use ratelimit_fleet::trips::Distance;
use ratelimit_policy::config::syntax::printable;
use ratelimit_policy::fleet::{DELAY, Sum, Terms};
use ratelimit_report::event::EventKind;
use ratelimit_report::fleet::{Fleet, FleetHost, FleetLimit, FleetReport, FleetState, RoundSeconds, Summed};
use ratelimit_report::snapshot::SCHEMA;

/// Maximum number of unshared limits that a warning names.
const ALONE_NAMED_MAX: usize = 3;

/// State of the fleet as of the last event.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    state: FleetState,
    since: Option<Timestamp>,
    /// Trouble at that time, as a label or in words.
    why: Option<String>,
    is_doubled: bool,
    misfit: Option<Misfit>,
    name: String,
}

/// Misconfiguration of a fleet in which all exchanges succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Misfit {
    /// Hosts use different secrets.
    Unread,
    /// More hosts are present than `hosts` says.
    TooMany,
    /// Another host has a different value of `hosts`.
    HostsDiffer,
    /// No other host shares one of the limits.
    Alone,
}

/// Current health of the fleet.
struct Now {
    state: FleetState,
    trouble: Option<String>,
    error: Option<String>,
    /// Misconfiguration that `trouble` describes, if all exchanges succeed.
    misfit: Option<Misfit>,
    /// Kind of the trouble. The cause may become known later without a new event.
    label: Option<&'static str>,
}

impl Now {
    fn of(ties: &Ties) -> Self {
        if let Some(failed) = &ties.failed {
            let trouble = Some("it cannot start".to_owned());
            return Self {
                state: FleetState::Away,
                trouble,
                error: Some(failed.why.clone()),
                misfit: None,
                label: None,
            };
        }
        let Some(status) = ties.status() else {
            return Self { state: FleetState::Off, trouble: None, error: None, misfit: None, label: None };
        };
        let clocks = || "this host's clock differs from the store's: some limits are not summed".to_owned();
        let misfit = misfit(ties, &status).filter(|_| status.state == State::Connected);
        let trouble = match (status.state, status.trouble, &status.error) {
            (State::Connected, ..) => misfit.as_ref().map(|(_, words)| words.clone()),
            (State::Degraded | State::Away, _, Some(_)) => Some("the store cannot be reached in this way".to_owned()),
            (State::Degraded | State::Away, Some(trouble), None) => Some(trouble.to_string()),
            (State::Degraded, None, None) => Some(status.slow().unwrap_or_else(clocks)),
            (State::Away, None, None) => status.slow(),
        };
        let slow = match status.reach.distance {
            Distance::Near => None,
            Distance::Slow => Some("slow"),
            Distance::Far => Some("too_slow"),
        };
        let (misfit, label) = (misfit.map(|(misfit, _)| misfit), status.trouble.map(Trouble::label).or(slow));
        Self { state: state(status.state), trouble, error: status.error, misfit, label }
    }

    /// Returns true until the first connection is established or fails.
    const fn is_beginning(&self) -> bool {
        matches!(self.state, FleetState::Away) && self.trouble.is_none()
    }

    fn why(&self) -> Option<String> {
        self.error.clone().or_else(|| self.trouble.clone())
    }

    /// Returns the key by which two troubles count as the same event.
    fn kind(&self) -> Option<String> {
        self.error.clone().or_else(|| self.label.map(str::to_owned)).or_else(|| self.trouble.clone())
    }
}

/// Returns the first misconfiguration found: unreadable hosts, too many hosts, differing `hosts`, or limits shared
/// with no one.
fn misfit(ties: &Ties, status: &Status) -> Option<(Misfit, String)> {
    let fleet = &ties.joined.as_ref()?.by;
    let (unread, heard) = (status.unread, status.hosts_heard);
    if unread > 0 {
        let (hosts, name) = (if unread == 1 { "host" } else { "hosts" }, &fleet.name);
        let words = format!(
            "the store has {unread} {hosts} of fleet {name} that this host's secret cannot read: is the secret the same \
             on all?"
        );
        return Some((Misfit::Unread, words));
    }
    let said = fleet.hosts;
    if heard as u64 > u64::from(said) {
        let words = format!("{heard} hosts are heard, but `hosts` is {said}: the bound holds for {said}");
        return Some((Misfit::TooMany, words));
    }
    let joined = ties.joined.as_ref()?;
    if let Some(other) = others(joined, status).find(|of| of.record.hosts != 0 && of.record.hosts != said) {
        let (name, theirs) = (printable(&other.record.name), other.record.hosts);
        let words = format!(
            "`hosts` is {said} here and {theirs} on {name}: set the same number on all hosts, because the \
                bound depends on it"
        );
        return Some((Misfit::HostsDiffer, words));
    }
    let mut alone: Vec<String> = limits(joined, status)
        .iter()
        .filter(|of| of.shared_with == Some(0))
        .map(|of| format!("{} of rule {}", of.text, of.rule))
        .collect();
    let more = alone.len().saturating_sub(ALONE_NAMED_MAX);
    alone.truncate(ALONE_NAMED_MAX);
    if more > 0 {
        alone.push(format!("{more} more"));
    }
    let words = || {
        let alone = alone.join(" and ");
        format!("no other host has {alone}: hosts share a rule only if its name, unit, window and buckets are the same")
    };
    (!alone.is_empty()).then(|| (Misfit::Alone, words()))
}

/// Returns the other hosts that are currently heard.
fn others<'a>(joined: &'a Joined, status: &'a Status) -> impl Iterator<Item = &'a Host> {
    status.hosts.iter().filter(|host| host.id != joined.host && host.age < SILENT_AFTER)
}

/// Returns the number of other hosts that share a limit. None if there are no others, or if one does not report its
/// limits.
fn shared_with(joined: &Joined, status: &Status, mark: u32) -> Option<u64> {
    let mut shared = None;
    for host in others(joined, status) {
        let has_it = host.record.limits.as_ref()?.contains(&mark);
        *shared.get_or_insert(0) += u64::from(has_it);
    }
    shared
}

const fn state(of: State) -> FleetState {
    match of {
        State::Connected => FleetState::Connected,
        State::Degraded => FleetState::Degraded,
        State::Away => FleetState::Away,
    }
}

impl<D: Datapath> Engine<D> {
    /// Returns an event if the fleet's state changed since the last one. The fleet's task has already logged the
    /// change.
    pub(super) fn tell_fleet_state(&mut self, moment: Moment) -> Option<Occurrence> {
        let now = Now::of(&self.fleet);
        if now.is_beginning() {
            return None;
        }
        let is_doubled = self.fleet.status().is_some_and(|status| status.is_doubled);
        let name = self.enforced.config.fleet.as_ref().map(|fleet| fleet.name.clone());
        let before = self.fleet.told.clone();
        let told = &mut self.fleet.told;
        told.is_doubled = is_doubled;
        if let Some(name) = name {
            told.name = name;
        }
        let name = told.name.clone();
        if is_doubled && !before.is_doubled {
            let said = format!("fleet {name}: another machine has a copy of this host's state, and both count as one");
            tracing::error!("{said}; stop one, `ratelimitd detach` there, and start it again");
            return Some(Occurrence::new(EventKind::Fleet, said));
        }
        if now.state == FleetState::Connected && now.state == before.state {
            told.misfit = now.misfit;
            let words = now.trouble.filter(|_| now.misfit != before.misfit)?;
            let said = format!("fleet {name}: {words}");
            tracing::warn!("{said}");
            return Some(Occurrence::new(EventKind::Fleet, said));
        }
        if now.state == before.state && now.kind() == before.why {
            return None;
        }
        if now.state != before.state {
            told.since = Some(moment.wall);
        }
        (told.state, told.why) = (now.state, now.kind());
        let why = now.why().map_or_else(String::new, |why| format!(": {why}"));
        let said = match now.state {
            FleetState::Connected => format!("fleet {name} is connected"),
            FleetState::Degraded => format!("fleet {name} is degraded{why}"),
            FleetState::Away => format!("fleet {name} is away{why}; each host holds its limits by itself"),
            FleetState::Off => format!("this host has left fleet {name}"),
        };
        Some(Occurrence::new(EventKind::Fleet, said))
    }

    /// Describes the trouble with the fleet, if any. Packets are limited regardless.
    pub(crate) fn fleet_trouble(&self) -> Option<String> {
        let now = Now::of(&self.fleet);
        match now.state {
            FleetState::Off => None,
            FleetState::Connected | FleetState::Degraded => now.why().map(|why| format!("fleet: {why}")),
            FleetState::Away => {
                Some(format!("fleet: {}; each host holds its limits by itself", now.why().unwrap_or_else(beginning)))
            }
        }
    }

    /// Reports the state of the fleet.
    pub(crate) fn fleet_seen(&self, now: Nanos, moment: Moment) -> Fleet {
        let Now { state, trouble, error, misfit: _, label: _ } = Now::of(&self.fleet);
        let Some(config) = &self.enforced.config.fleet else { return Fleet::default() };
        let told = &self.fleet.told;
        let since = if told.state == state { told.since } else { Some(moment.wall) };
        let status = self.fleet.counted();
        let ago = |at: Nanos| seconds(now.0.saturating_sub(at.0));
        Fleet {
            state,
            hosts: status.hosts_heard as u64,
            last_exchange_seconds: status.last_exchange.map(ago),
            rounds: status.rounds,
            rounds_failed: status.rounds_failed(),
            reports: status.counters.reports,
            reports_lost: status.counters.reports_lost,
            name: config.name.clone(),
            since,
            trouble,
            error,
            store_says: status.said.as_ref().map(ToString::to_string),
            slow: status.trouble.is_none() && status.reach.distance != Distance::Near,
            round_trip_seconds: status.reach.round_trip.map(|of| of.as_secs_f64()),
            delay_seconds: status.delay.map(|of| of.as_secs_f64()),
            doubled: status.is_doubled,
            clock_ahead_seconds: status.ahead_ns.map(ahead),
            failures: status
                .failed
                .iter()
                .map(|(what, count)| ((*what).to_owned(), *count))
                .collect::<BTreeMap<_, _>>(),
            round_seconds: RoundSeconds {
                sum: seconds(status.round_ns),
                up_to: ROUND_SECONDS.to_vec(),
                counts: status.round_seconds.to_vec(),
            },
            connections: status.connections,
            garbage: status.counters.garbage,
            late: status.counters.late,
            store_lost: status.counters.store_lost,
            messages_lost: status.lost,
            sources: status.tracked as u64,
            limits: self.fleet.joined.as_ref().map_or_else(Vec::new, |joined| limits(joined, &status)),
        }
    }

    /// Reports the state of the fleet and of its hosts.
    pub(crate) fn fleet_report(&mut self, moment: Moment) -> Result<FleetReport, Problem> {
        if self.enforced.config.fleet.is_none() {
            return Ok(FleetReport::off(moment.wall));
        }
        let now = self.clocks(moment)?.now;
        let fleet = self.fleet_seen(now, moment);
        let own = ratelimit_fleet::names::HostId::of_state(self.datapath.secret());
        let status = self.fleet.status().unwrap_or_default();
        let mut hosts: Vec<FleetHost> = status
            .hosts
            .iter()
            .map(|host| FleetHost {
                name: printable(&host.record.name),
                id: host.id.to_string(),
                this: host.id == own,
                heard_seconds_ago: host.age.as_secs_f64(),
                clock_ahead_seconds: host.record.ahead_ns.map(ahead),
                version: printable(&host.record.version),
                admitted_last_minute: host.record.admitted_last_minute,
            })
            .collect();
        hosts.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        Ok(FleetReport { schema: SCHEMA, time: moment.wall, fleet, hosts })
    }
}

/// Returns one row per shared limit, even if both of its sides are summed.
fn limits(joined: &Joined, status: &Status) -> Vec<FleetLimit> {
    let mut rows: Vec<FleetLimit> = Vec::new();
    let mut last = None;
    for (id, shared) in joined.shared.all() {
        let place = (shared.at.rule, shared.at.limit);
        let summed = status.state != State::Away && !status.not_summed.contains(&id);
        if last.replace(place) == Some(place) {
            continue;
        }
        let terms = Terms::new(&shared.named, joined.by.hosts);
        rows.push(FleetLimit {
            rule: shared.rule.clone(),
            limit: (&shared.limit).into(),
            text: shared.limit.to_string(),
            sum: match shared.named.sum {
                Sum::Verified => Summed::Verified,
                Sum::All => Summed::All,
            },
            summed,
            bound: if summed { joined.by.bound_of(terms) } else { terms.bound_alone() },
            bound_words: terms.words(status.delay.unwrap_or(DELAY)),
            shared_with: shared_with(joined, status, hosts::mark(&shared.named)),
        });
    }
    rows
}

fn beginning() -> String {
    "no answer from the store yet".to_owned()
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "a difference of clocks, for people")]
fn ahead(ns: i64) -> f64 {
    ns as f64 / SECOND_NS as f64
}
