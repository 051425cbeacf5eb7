//! Commands that undo: they lift denials, bans and allowances, and reset counters. Their reports include what still
//! applies.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use ratelimit_common::time::Nanos;

use super::engine::Engine;
use super::fleet::Reach;
use super::grants::{NAMED_MAX, granted, whose};
use super::journal::Event;
use super::moment::Moment;
use ratelimit_control::Requester;
use ratelimit_control::proto::{Problem, ResetReport, SourceRequest, Still, UnblockReport};
use ratelimit_crash::{Point, reach};
use ratelimit_datapath::{Ban, Datapath, DatapathError, Removed};
use ratelimit_fleet::acts::What;
use ratelimit_policy::access::{By, Entry};
use ratelimit_policy::config::network::Target;
use ratelimit_policy::desired::{Access, Grant};
use ratelimit_policy::safety::STORE;
use ratelimit_report::snapshot::{CheckLimit, CheckReport, Clocks, Listed, Mode, SCHEMA, State, source_text};

/// Maximum number of entries and bans in a report. // 1000 x 250 B
const REMOVED_MAX: usize = 1_000;
/// Maximum number of clients looked up in one batch.
const CLIENTS_AT_ONCE: usize = 4_096;
/// Prefixes that cover both address families.
const EVERYTHING: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0)),
];

/// Bans and sources that a command will free.
pub(super) struct Blocked {
    /// Prefix that contains them. None means everywhere.
    within: Option<IpNet>,
    bans: Vec<Ban>,
    /// Sources that are banned or over a limit, sorted.
    blocked: Vec<IpNet>,
}

/// Bans and sources that were freed.
pub(super) struct Freed {
    pub(super) bans: Vec<Ban>,
    /// Sources with reset windows, including the banned ones.
    pub(super) blocked: Vec<IpNet>,
    /// Number of lifted bans without an event of their own.
    pub(super) untold: usize,
}

impl<D: Datapath> Engine<D> {
    /// Frees a prefix: lifts command denials and bans within it, and resets the windows of sources over a limit.
    /// Without a target, lifts all command denials and all bans.
    pub(super) fn unblock(
        &mut self,
        target: Option<Target>,
        reach: Reach,
        by: &Requester,
        moment: Moment,
    ) -> Result<UnblockReport, Problem> {
        self.must_have_fleet(reach, moment)?;
        self.notice_trial();
        let clocks = self.clocks(moment)?;
        let ipv6_prefix = self.enforced.desired.policy.ipv6_prefix;
        let prefix = target.map(|target| target.prefix(ipv6_prefix));
        let mut notes: Vec<String> = target.and_then(|target| target.note(ipv6_prefix)).into_iter().collect();
        let found = self.find_blocked(prefix, clocks)?;
        // The policy is written first. If that fails, no window has been reset.
        let denials = self.take_off(Grant::Denied, prefix, clocks, &mut notes)?;
        let freed = match self.free(found, by, moment) {
            Err(problem) if denials.is_empty() => return Err(problem),
            freed => freed,
        };
        let denied: Vec<IpNet> = denials.iter().map(|entry| entry.prefix).collect();
        // Lifted denials are reported and sent to the fleet even if the rest failed.
        let none = Freed { bans: Vec::new(), blocked: Vec::new(), untold: 0 };
        self.tell_unblock(prefix, denials.len(), freed.as_ref().unwrap_or(&none), by, moment);
        let spread = self.spread_unblock(prefix, &denied, (reach, by), clocks.now);
        let freed = freed?;
        notes.extend(self.fleet_note(reach, spread).or_else(|| self.kept_elsewhere(&denials, reach)));
        let Freed { bans, blocked, untold: _ } = freed;
        let still = match prefix {
            Some(prefix) => {
                notes.extend(self.after_trial(Grant::Denied, prefix, clocks));
                [self.still(Grant::Denied, prefix, clocks), self.never_within(prefix, clocks)?].concat()
            }
            None => {
                notes.extend(self.enforced.denied_by_configuration(clocks));
                Vec::new()
            }
        };
        let removed = denials.iter().map(|entry| Listed::of(entry, true, clocks));
        let removed =
            removed.chain(bans.iter().map(|ban: &Ban| Listed::of_ban(&self.enforced.desired.policy, ban, clocks)));
        Ok(UnblockReport {
            schema: SCHEMA,
            prefix: prefix.map_or_else(String::new, |prefix| prefix.to_string()),
            removed: removed.take(REMOVED_MAX).collect(),
            removed_count: (denials.len() + bans.len()) as u64,
            freed: blocked.iter().take(NAMED_MAX).copied().map(source_text).collect(),
            freed_count: blocked.len() as u64,
            still,
            notes,
        })
    }

    /// Finds the bans within a prefix and the sources over a limit there. Without a prefix, finds all bans.
    pub(super) fn find_blocked(&mut self, prefix: Option<IpNet>, clocks: Clocks) -> Result<Blocked, Problem> {
        let within = prefix.map(|prefix| self.enforced.whole_client(prefix));
        let bans = self.bans_within(within)?;
        let mut blocked: BTreeSet<IpNet> = bans.iter().map(|ban| ban.client).collect();
        if let Some(within) = within {
            blocked.extend(self.over_within(within, clocks)?);
        }
        Ok(Blocked { within, bans, blocked: blocked.into_iter().collect() })
    }

    /// Lifts the given bans and resets the windows of the given sources.
    pub(super) fn free(&mut self, found: Blocked, by: &Requester, moment: Moment) -> Result<Freed, Problem> {
        let Blocked { within, bans, blocked } = found;
        let is_freed = |client: &IpNet| blocked.binary_search(client).is_ok();
        let mut told = 0;
        if !blocked.is_empty() {
            let ends = self.look_at_freed(is_freed, bans.len(), by, moment);
            self.forget_clients(&blocked).map_err(|error| not_freed(error, by))?;
            self.tell_freed(is_freed, &ends, moment);
            told = ends.len();
        }
        if let Some(within) = within {
            // Lifting all bans also removes expired ones, and with them the count of consecutive bans.
            self.datapath.lift_bans(within).map_err(|error| not_freed(error, by))?;
            reach(Point::Lifted);
        }
        self.closer.forget(within);
        self.watched.prefix_bans.forget(within);
        let untold = bans.len().saturating_sub(told);
        Ok(Freed { bans, blocked, untold })
    }

    /// Erases the usage of these clients, their bans, and what access logs have added.
    pub(super) fn forget_clients(&mut self, clients: &[IpNet]) -> Result<Removed, DatapathError> {
        let removed = self.datapath.forget_all(clients)?;
        self.access_logs.forget(clients);
        Ok(removed)
    }

    /// Reports an unblock, with the number of lifted denials.
    pub(super) fn tell_unblock(
        &mut self,
        prefix: Option<IpNet>,
        denials: usize,
        Freed { bans, blocked, untold }: &Freed,
        by: &Requester,
        moment: Moment,
    ) {
        let name_of = |ban: &Ban| self.enforced.desired.policy.rules.get(ban.rule).map(|rule| rule.name.clone());
        let rules = bans.iter().filter_map(name_of).collect();
        let (by, untold, freed) = (by.to_string(), *untold, blocked.len());
        self.journal.tell(Event::Unblock { prefix, by, denials, rules, untold, freed }, moment);
        self.statistics.outdate();
    }

    /// Sends the unblock to the other hosts: for bans if the fleet shares them, for denials if the command targets
    /// the fleet.
    fn spread_unblock(
        &mut self,
        prefix: Option<IpNet>,
        denied: &[IpNet],
        (reach, by): (Reach, &Requester),
        now: Nanos,
    ) -> Result<(), String> {
        let by = by.to_string();
        let meant = prefix.map_or_else(|| EVERYTHING.to_vec(), |prefix| vec![prefix]);
        let mut said = Vec::new();
        if reach == Reach::Fleet || self.spreads_bans() {
            said.extend(meant.iter().map(|prefix| (*prefix, What::Unblock { by: by.clone() })));
        }
        if reach == Reach::Fleet {
            // Each denied prefix is also named exactly, so that the act which denied it is not repeated.
            let denied = denied.iter().filter(|of| !meant.contains(of)).take(REMOVED_MAX);
            said.extend(meant.iter().chain(denied).map(|of| (*of, What::Undeny { by: by.clone() })));
        }
        if said.is_empty() { Ok(()) } else { self.spread(said, now) }
    }

    /// Lifts the command allowances within a prefix.
    pub(super) fn unallow(
        &mut self,
        target: Target,
        reach: Reach,
        by: &Requester,
        moment: Moment,
    ) -> Result<UnblockReport, Problem> {
        self.must_have_fleet(reach, moment)?;
        self.notice_trial();
        let clocks = self.clocks(moment)?;
        let ipv6_prefix = self.enforced.desired.policy.ipv6_prefix;
        let prefix = target.prefix(ipv6_prefix);
        let mut notes: Vec<String> = target.note(ipv6_prefix).into_iter().collect();
        let removed = self.take_off(Grant::Exempt, Some(prefix), clocks, &mut notes)?;
        let spread = if reach == Reach::Fleet {
            let others = removed.iter().map(|entry| entry.prefix).filter(|of| *of != prefix).take(REMOVED_MAX);
            let all = std::iter::once(prefix).chain(others);
            self.spread(all.map(|of| (of, What::Unallow { by: by.to_string() })), clocks.now)
        } else {
            Ok(())
        };
        notes.extend(self.fleet_note(reach, spread).or_else(|| self.kept_elsewhere(&removed, reach)));
        let again = |entry: &&Entry| removed.iter().any(|of| of.prefix == entry.prefix);
        let suspended =
            self.overrides.grants.ledger.entries().filter(|entry| entry.grant == Grant::Denied).filter(again);
        notes.extend(suspended.map(|entry| format!("{} holds again", whose(entry))));
        notes.extend(self.after_trial(Grant::Exempt, prefix, clocks));
        self.journal.tell(Event::Unallow { prefix, by: by.to_string(), removed: removed.len() }, moment);
        Ok(UnblockReport {
            schema: SCHEMA,
            prefix: prefix.to_string(),
            removed: removed.iter().take(REMOVED_MAX).map(|entry| Listed::of(entry, true, clocks)).collect(),
            removed_count: removed.len() as u64,
            freed: Vec::new(),
            freed_count: 0,
            still: self.still(Grant::Exempt, prefix, clocks),
            notes,
        })
    }

    /// Resets the usage and the bans of a source.
    pub(super) fn reset(
        &mut self,
        request: &SourceRequest,
        by: &Requester,
        moment: Moment,
    ) -> Result<ResetReport, Problem> {
        self.must_have_fleet(Reach::of(request.fleet), moment)?;
        let client = self.enforced.desired.policy.client(request.source.to_canonical());
        let mut report = self.reset_client(client, by, moment)?;
        if request.fleet || self.spreads_bans() {
            let now = self.clocks(moment)?.now;
            // A reset that a restart loses would be too old afterwards.
            let _is_kept = self.spread([(client, What::Reset { by: by.to_string() })], now);
        }
        report.notes.extend(self.reset_note(Reach::of(request.fleet)));
        let clocks = self.clocks(moment)?;
        report.notes.extend(self.group_note(client, clocks)?);
        Ok(report)
    }

    /// Resets the usage and the bans of a source on this host.
    pub(super) fn reset_client(
        &mut self,
        client: IpNet,
        by: &Requester,
        moment: Moment,
    ) -> Result<ResetReport, Problem> {
        let bans = self.datapath.bans_of(client).map_err(Problem::datapath)?.len();
        let ends = self.look_at_freed(|of| *of == client, bans, by, moment);
        let removed = self.forget_clients(&[client]).map_err(|error| not_freed(error, by))?;
        self.tell_freed(|of| *of == client, &ends, moment);
        let (windows, bans) = (removed.windows, removed.bans);
        self.journal.tell(Event::Reset { source: client, by: by.to_string(), windows, bans }, moment);
        self.statistics.outdate();
        Ok(ResetReport {
            schema: SCHEMA,
            source: client.to_string(),
            windows: windows as u64,
            limits: removed.limits as u64,
            bans: bans as u64,
            notes: Vec::new(),
        })
    }

    /// Removes the command grants within a prefix, or all of them.
    pub(super) fn take_off(
        &mut self,
        grant: Grant,
        within: Option<IpNet>,
        clocks: Clocks,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Entry>, Problem> {
        let mut after = self.overrides.grants.ledger.clone();
        let taken = after.take_off(grant, |of| within.is_none_or(|within| within.contains(&of.prefix)));
        if !taken.is_empty() {
            self.change_grants(clocks, notes, after)?;
        }
        Ok(taken)
    }

    /// Returns the bans within a prefix, or all bans.
    fn bans_within(&mut self, within: Option<IpNet>) -> Result<Vec<Ban>, Problem> {
        let client = within.filter(|within| self.enforced.desired.policy.client(within.addr()) == *within);
        let bans = match client {
            Some(client) => self.datapath.bans_of(client),
            None => self.datapath.bans(),
        };
        let mut bans = bans.map_err(Problem::datapath)?;
        bans.retain(|ban| within.is_none_or(|within| within.contains(&ban.client)));
        Ok(bans)
    }

    /// Returns the clients over a limit or a guard, whether or not the rule enforces it.
    fn over_within(&mut self, within: IpNet, clocks: Clocks) -> Result<Vec<IpNet>, Problem> {
        let clients = self.datapath.clients(within).map_err(Problem::datapath)?;
        let mut over = Vec::new();
        for clients in clients.chunks(CLIENTS_AT_ONCE) {
            let addresses: Vec<IpAddr> = clients.iter().map(IpNet::addr).collect();
            let windows = self.datapath.sources(&addresses).map_err(Problem::datapath)?;
            for ((client, address), windows) in clients.iter().zip(addresses).zip(windows) {
                let policy = &self.enforced.desired.policy;
                let report = CheckReport::build(policy, clocks.now, address, &windows);
                // A refusal for the source's group does not concern its own counters.
                let group = (policy.client(address) != *client).then(|| client.to_string());
                let limits = report.limits.iter().filter(|of| of.per == group);
                let guards = report.guard.iter().filter(|of| of.per == group);
                if limits.into_iter().any(|of| of.over && !of.never) || guards.into_iter().any(|of| of.over) {
                    over.push(*client);
                }
            }
        }
        Ok(over)
    }

    /// Returns the entries that still grant this to all or a part of the prefix.
    pub(super) fn still(&self, grant: Grant, prefix: IpNet, clocks: Clocks) -> Vec<Still> {
        let granting = granting(&self.enforced.desired.policy.access, grant, prefix, clocks.now);
        let named = granting.iter().take(NAMED_MAX);
        named.map(|access| self.still_by(&self.entry_of(access, clocks.now), prefix, clocks)).collect()
    }

    /// Returns a note if a rollback of the trial would grant again what nothing grants now.
    fn after_trial(&self, grant: Grant, prefix: IpNet, clocks: Clocks) -> Option<String> {
        if !granting(&self.enforced.desired.policy.access, grant, prefix, clocks.now).is_empty() {
            return None;
        }
        let before = self.overrides.access_of(&self.trials.pending.as_ref()?.before, clocks.now);
        let granting = granting(&before, grant, prefix, clocks.now);
        let (of, is) = (source_text(granting.first()?.prefix), granted(grant));
        Some(format!("{of} is {is} again if the file on trial is rolled back, by the configuration before it"))
    }

    fn still_by(&self, entry: &Entry, asked: IpNet, clocks: Clocks) -> Still {
        let (prefix, of) = (source_text(entry.prefix), source_text(asked));
        let place = match entry.by {
            By::Configuration => self.enforced.written(entry.prefix, entry.grant).into_iter().next(),
            By::Command { .. } | By::Safety => None,
        };
        let edit = || {
            let unknown = || format!("remove {prefix} from the configuration");
            place.as_ref().map_or_else(unknown, |place| place.edit(&prefix))
        };
        let lift = match (&entry.by, entry.grant) {
            (By::Command { .. }, Grant::Denied) => format!("ratelimitd unblock {prefix}"),
            (By::Command { .. }, Grant::Exempt) => format!("ratelimitd unallow {prefix}"),
            (By::Configuration, Grant::Denied) => format!("{}, or override it: ratelimitd allow {of}", edit()),
            (By::Configuration, Grant::Exempt) => edit(),
            (By::Safety, _) if entry.reason.as_deref() == Some(STORE) => {
                "it is the store in [fleet] of the configuration".to_owned()
            }
            (By::Safety, _) => "its key in [safety] of the configuration switches it off".to_owned(),
        };
        Still { entry: Listed::of(entry, true, clocks).written(place.as_ref()), lift }
    }

    /// Returns what still refuses the prefix: a limit of 0, which a reset does not help, or a group.
    fn never_within(&mut self, prefix: IpNet, clocks: Clocks) -> Result<Vec<Still>, Problem> {
        let windows = self.datapath.source(prefix.addr()).map_err(Problem::datapath)?;
        let report = CheckReport::build(&self.enforced.desired.policy, clocks.now, prefix.addr(), &windows);
        let drops = |of: &&CheckLimit| of.never && of.over && of.mode == Mode::Enforce;
        let never = report.limits.iter().find(drops).filter(|_| report.reason == "over_limit");
        let never = never.into_iter().map(|of| never_lifted(prefix, &of.rule, clocks));
        let group = refusing_group(&report, prefix).map(|of| group_still(of, prefix, clocks));
        Ok(never.chain(group).collect())
    }

    /// Returns a note if a group still refuses a client after its reset.
    fn group_note(&mut self, client: IpNet, clocks: Clocks) -> Result<Option<String>, Problem> {
        let windows = self.datapath.source(client.addr()).map_err(Problem::datapath)?;
        let report = CheckReport::build(&self.enforced.desired.policy, clocks.now, client.addr(), &windows);
        Ok(refusing_group(&report, client).map(|of| {
            let group = of.per.as_deref().unwrap_or_default();
            format!("{group} is over its limit by rule {}, and still refuses it; {}", of.rule, free_group(group))
        }))
    }
}

/// Returns the enforced group limit that refuses the whole prefix.
fn refusing_group(report: &CheckReport, prefix: IpNet) -> Option<&CheckLimit> {
    let is_around = |group: &str| group.parse::<IpNet>().map_or(true, |group| group.contains(&prefix));
    let refuses = |of: &&CheckLimit| of.over && of.mode == Mode::Enforce && of.per.as_deref().is_some_and(is_around);
    report.limits.iter().find(refuses).filter(|_| report.reason == "over_limit")
}

/// Explains how to free a group. A group of a list has no prefix that a command could name.
fn free_group(group: &str) -> String {
    match group.parse::<IpNet>() {
        Ok(prefix) => format!("to free it: ratelimitd unblock {prefix}"),
        Err(_) => "it passes again as its window frees, or with a higher limit".to_owned(),
    }
}

fn group_still(of: &CheckLimit, prefix: IpNet, clocks: Clocks) -> Still {
    let group = of.per.as_deref().unwrap_or_default();
    let denial = Entry::configured(&Access::denied(prefix));
    let entry = Listed {
        prefix: group.to_owned(),
        state: State::OverLimit,
        rule: Some(of.rule.clone()),
        reason: Some(format!("the group is over its limit: {} of {} used", of.used, of.limit)),
        ..Listed::of(&denial, true, clocks)
    };
    let lift = free_group(group);
    Still { entry, lift: lift.strip_prefix("to free it: ").unwrap_or(&lift).to_owned() }
}

/// Logs and returns the error of a command that was not carried out, or only in part.
fn not_freed(error: DatapathError, by: &Requester) -> Problem {
    let problem = Problem::datapath(error);
    tracing::error!("remove counters and bans, by command of {by}: {}", problem.message);
    problem
}

/// Returns the active entries that grant this to all or a part of the prefix. Among entries around the prefix, only
/// the longest counts.
fn granting(access: &[Access], grant: Grant, prefix: IpNet, now: Nanos) -> Vec<Access> {
    let holding = access.iter().filter(|of| of.until.is_none_or(|until| now < until)).copied();
    let (around, within): (Vec<Access>, Vec<Access>) = holding
        .filter(|of| of.prefix.contains(&prefix) || prefix.contains(&of.prefix))
        .partition(|of| of.prefix.contains(&prefix));
    let around = around.into_iter().max_by_key(|of| of.prefix.prefix_len());
    around.into_iter().chain(within).filter(|of| of.grant == grant).collect()
}

fn never_lifted(prefix: IpNet, rule: &str, clocks: Clocks) -> Still {
    let denial = Entry::configured(&Access::denied(prefix));
    let entry = Listed {
        state: State::OverLimit,
        rule: Some(rule.to_owned()),
        reason: Some("the limit is 0".to_owned()),
        ..Listed::of(&denial, true, clocks)
    };
    let lift = format!("raise the limit of rule {rule}, or: ratelimitd allow {}", entry.prefix);
    Still { entry, lift }
}
