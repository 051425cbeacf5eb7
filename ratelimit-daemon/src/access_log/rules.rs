//! Reconcilers of rules with access logs. They determine the rule that judges a source, the kernel's count for it,
//! and the amount to charge.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use ipnet::IpNet;
use ratelimit_accesslog::{Reconciler, Settings};
use ratelimit_common::layout::Unit;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_common::verification::Side;
use ratelimit_common::window::Cell;
use ratelimit_datapath::{Datapath, DatapathError, LimitAt, MULTIPLICITY_LASTS_NS};
use ratelimit_policy::desired::{AccessLog, Grant, Limit, Policy, Rule};
use ratelimit_report::snapshot::CheckLimit;

use super::Logged;
use super::batch::{Counted, Requests};

/// Number of windows that a charge goes to: one for verified traffic, one for other traffic such as QUIC. Counts are
/// their sum.
const CHARGED_IN: u64 = 2;

/// Reconcilers by rule name.
#[derive(Debug, Default)]
pub(super) struct Rules {
    by_name: HashMap<String, OfRule>,
}

/// Reconciler of one rule.
#[derive(Debug)]
struct OfRule {
    reconciler: Reconciler<IpNet>,
    /// Slot of the limit that provides the buckets.
    slot: u32,
    settings: Settings,
    /// Number of requests charged from logs.
    added: u64,
    /// Multiplicities other than 1 that the kernel reads, by client.
    written: HashMap<IpNet, Written>,
}

/// Multiplicity that the kernel reads.
#[derive(Clone, Copy, Debug)]
struct Written {
    requests: u16,
    until: Nanos,
}

/// Remaining lifetime in nanoseconds at which a multiplicity is written again.
const RENEWED_BEFORE_NS: u64 = 4 * SECOND_NS;

impl OfRule {
    /// Writes the multiplicity of a client for the rule at index `at`. Writes nothing if the kernel already has it.
    fn write<D: Datapath>(
        &mut self,
        datapath: &mut D,
        at: usize,
        client: IpNet,
        now: Nanos,
    ) -> Result<(), DatapathError> {
        let requests = self.reconciler.multiplicity(client, now.0);
        let is_usual = requests == 1;
        let written = self.written.get(&client).copied();
        if is_usual && written.is_none() {
            return Ok(());
        }
        let holds = |of: &Written| of.requests == requests && of.until.0 > now.0.saturating_add(RENEWED_BEFORE_NS);
        if written.as_ref().is_some_and(holds) {
            return Ok(());
        }
        datapath.set_multiplicity(at, client, requests)?;
        if is_usual {
            self.written.remove(&client);
        } else {
            self.written
                .insert(client, Written { requests, until: Nanos(now.0.saturating_add(MULTIPLICITY_LASTS_NS)) });
        }
        Ok(())
    }
}

/// Source with lines in a batch, and the kernel's counts for it.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) client: IpNet,
    pub(super) requests: Requests,
    /// Index and count of each bucket in the source's windows.
    counts: Vec<(u64, u64)>,
    /// True if a window of a limit with conditions is not empty.
    has_met: bool,
}

impl Source {
    /// Returns true if the source has a live window, with something counted within the rule's window.
    pub(super) fn is_peer(&self) -> bool {
        self.has_met || !self.counts.is_empty()
    }
}

/// Charges a source's requests that meet conditions to the limits with these conditions. `counts` are those of the
/// log.
///
/// # Errors
/// Fails if a window cannot be written.
pub(super) fn charge_conditions<D: Datapath>(
    datapath: &mut D,
    policy: &Policy,
    at: usize,
    source: &Source,
    counts: &[Counted],
) -> Result<(), DatapathError> {
    let limits = policy.rules.get(at).into_iter().flat_map(|rule| &rule.limits);
    let met = limits.filter(|limit| limit.condition.is_some()).map(|limit| (limit, source.requests.of(limit, counts)));
    charge_limits(datapath, source.client, at, met)
}

/// Charges each limit of the rule at index `at` its amount. Returns the first error, but charges the other limits
/// regardless.
fn charge_limits<'a, D: Datapath>(
    datapath: &mut D,
    client: IpNet,
    at: usize,
    amounts: impl Iterator<Item = (&'a Limit, u64)>,
) -> Result<(), DatapathError> {
    let mut charged = Ok(());
    for (limit, amount) in amounts.filter(|(_, amount)| *amount > 0) {
        charged = charged.and(datapath.charge_limit(client, at, limit.slot, amount));
    }
    charged
}

/// Charges `amount` of `lines`, those without a counted packet, to the rule's request limits. A limit with a shorter
/// window is charged only for its young lines. The youngest lines are taken to be the counted ones.
///
/// # Errors
/// Fails if a window cannot be written.
fn charge_requests<D: Datapath>(
    datapath: &mut D,
    (rule, at): (&Rule, usize),
    source: &Source,
    (lines, amount): (u64, u64),
    counts: &[Counted],
) -> Result<(), DatapathError> {
    if amount == 0 {
        return Ok(());
    }
    let limits = || rule.limits.iter().filter(|limit| limit.is_reconciled());
    let young = |limit: &Limit| source.requests.of(limit, counts).min(lines).saturating_sub(lines - amount);
    if limits().all(|limit| young(limit) == amount) {
        return datapath.charge_requests(source.client, at, amount);
    }
    charge_limits(datapath, source.client, at, limits().map(|limit| (limit, young(limit))))
}

/// Returns the limit that reconciles a rule, and its index. The longest window is chosen, because lines of slow
/// requests can then be matched for longest.
fn reconciled(rule: &Rule) -> Option<(usize, &Limit)> {
    let limits = rule.limits.iter().enumerate().filter(|(_, limit)| limit.is_reconciled());
    limits.max_by_key(|(_, limit)| limit.window_ns)
}

impl Rules {
    /// Groups the requests of a log by the index of the rule that judges them. Skips allowed sources.
    pub(super) fn by_rule(
        &self,
        policy: &Policy,
        log: &AccessLog,
        requests: &[Logged],
        now: Nanos,
    ) -> BTreeMap<usize, BTreeMap<IpNet, Requests>> {
        let mut parts: BTreeMap<usize, BTreeMap<IpNet, Requests>> = BTreeMap::new();
        for (source, requests) in requests {
            let source = *source;
            if policy.grant(source, now).is_some_and(|access| access.grant == Grant::Exempt) {
                continue;
            }
            let rules = policy.rules_from(source, now);
            let judges = |(_, rule): &&(usize, &Rule)| rule.access_logs.contains(log) && reconciled(rule).is_some();
            if let Some((at, _)) = rules.iter().find(judges) {
                parts.entry(*at).or_default().entry(policy.client(source)).or_default().add(requests);
            }
        }
        parts
    }

    /// Reads the kernel's counts for these sources.
    ///
    /// # Errors
    /// Fails if the windows cannot be read.
    pub(super) fn read<D: Datapath>(
        &mut self,
        datapath: &mut D,
        policy: &Policy,
        at: usize,
        sources: &BTreeMap<IpNet, Requests>,
        now: Nanos,
    ) -> Result<Vec<Source>, DatapathError> {
        let Some((position, limit)) = policy.rules.get(at).and_then(reconciled) else { return Ok(Vec::new()) };
        let clients: Vec<IpNet> = sources.keys().copied().collect();
        let side = |side| LimitAt { rule: at, limit: position, side };
        let verified = datapath.admitted(side(Side::Verified), &clients)?;
        let others = datapath.admitted(side(Side::Unverified), &clients)?;
        let current = now.bucket(limit.bucket_ns).0;
        let oldest = current.saturating_sub(u64::from(limit.arithmetic().full_buckets));
        let live = |cells: &[Cell]| -> BTreeMap<u64, u64> {
            let live = cells.iter().filter(|cell| cell.count > 0 && cell.bucket.0 >= oldest);
            live.map(|cell| (cell.bucket.0, cell.count)).collect()
        };
        let mut has_met = vec![false; clients.len()];
        for (position, limit) in policy.rules[at].limits.iter().enumerate().filter(|(_, of)| of.condition.is_some()) {
            let oldest = now.bucket(limit.bucket_ns).0.saturating_sub(limit.full_buckets().into());
            let met = datapath.admitted(LimitAt { rule: at, limit: position, side: Side::Unverified }, &clients)?;
            let is_live = |cells: &[Cell]| cells.iter().any(|cell| cell.count > 0 && cell.bucket.0 >= oldest);
            has_met.iter_mut().zip(&met).for_each(|(has_met, cells)| *has_met |= is_live(cells));
        }
        let windows = verified.iter().zip(&others).zip(has_met);
        let read = sources.iter().zip(windows).map(|((client, requests), ((verified, others), has_met))| {
            let mut counts = live(verified);
            for (bucket, count) in live(others) {
                let sum = counts.entry(bucket).or_default();
                *sum = sum.saturating_add(count);
            }
            Source { client: *client, requests: requests.clone(), counts: counts.into_iter().collect(), has_met }
        });
        Ok(read.collect())
    }

    /// Charges the lines of a source beyond its counted requests. At most `lines` of them may charge. `counts` are
    /// those of the log.
    ///
    /// # Errors
    /// Fails if the windows cannot be written. Failed charges are not repeated.
    pub(super) fn settle<D: Datapath>(
        &mut self,
        datapath: &mut D,
        policy: &Policy,
        at: usize,
        source: &Source,
        (lines, counts): (u64, &[Counted]),
        now: Nanos,
    ) -> Result<(), DatapathError> {
        let Some(rule) = policy.rules.get(at) else { return Ok(()) };
        let Some((_, limit)) = reconciled(rule) else { return Ok(()) };
        let lines = source.requests.of(limit, counts).min(lines);
        if lines == 0 {
            return Ok(());
        }
        let of = self.of_rule(rule, limit);
        let amount = of.reconciler.settle(source.client, now.0, lines, &source.counts);
        let charged = charge_requests(datapath, (rule, at), source, (lines, amount), counts);
        match charged {
            Ok(()) => of.added = of.added.saturating_add(amount),
            Err(_) => of.reconciler.not_charged(source.client, of.reconciler.bucket(now.0), amount),
        }
        charged.and(of.write(datapath, at, source.client, now))
    }

    /// Removes clients after their windows were erased.
    pub(super) fn forget(&mut self, clients: &[IpNet]) {
        for of in self.by_name.values_mut() {
            for client in clients {
                of.reconciler.forget(*client);
            }
        }
    }

    /// Removes rules that the policy no longer has.
    pub(super) fn retain(&mut self, policy: &Policy) {
        self.by_name.retain(|name, _| policy.rules.iter().any(|rule| rule.name == *name));
    }

    /// Writes multiplicities again that changed or expire soon.
    ///
    /// # Errors
    /// Fails if one cannot be written. The next call retries those that were not written.
    pub(super) fn renew_multiplicities<D: Datapath>(
        &mut self,
        datapath: &mut D,
        policy: &Policy,
        now: Nanos,
    ) -> Result<(), DatapathError> {
        for (at, rule) in policy.rules.iter().enumerate().filter(|(_, rule)| !rule.access_logs.is_empty()) {
            let Some(of) = self.by_name.get_mut(&rule.name) else { continue };
            let clients: Vec<IpNet> = of.written.keys().copied().collect();
            for client in clients {
                of.write(datapath, at, client, now)?;
            }
        }
        Ok(())
    }

    /// Returns the number of requests in a client's window that were charged from logs. None if `limit` is not the
    /// one that reconciles the rule.
    pub(super) fn added_to(&self, rule: &Rule, limit: &CheckLimit, client: IpNet, now: Nanos) -> Option<u64> {
        let (_, of) = reconciled(rule)?;
        let window_seconds = Duration::from_nanos(of.window_ns).as_secs_f64();
        let is_it = limit.per.is_none()
            && limit.condition.is_none()
            && limit.unit == Unit::Requests.into()
            && (limit.limit, limit.window_seconds) == (of.amount, window_seconds);
        let of = self.by_name.get(&rule.name).filter(|_| is_it && !rule.access_logs.is_empty())?;
        Some(of.reconciler.corrected(client, now.0))
    }

    /// Returns the highest multiplicity of any source, by the name of each rule that has this log.
    pub(super) fn turns_by(&self, policy: &Policy, log: &AccessLog) -> BTreeMap<String, u64> {
        let highest = |of: &OfRule| of.written.values().map(|written| u64::from(written.requests)).max();
        self.of_log(policy, log, |of| of.and_then(highest).unwrap_or(1))
    }

    /// Returns the number of requests charged from logs, by the name of each rule that has this log.
    pub(super) fn added_by(&self, policy: &Policy, log: &AccessLog) -> BTreeMap<String, u64> {
        self.of_log(policy, log, |of| of.map_or(0, |of| of.added))
    }

    /// Returns a number for each rule that has this log, by the rule's name. A rule without lines has no reconciler.
    fn of_log(
        &self,
        policy: &Policy,
        log: &AccessLog,
        number: impl Fn(Option<&OfRule>) -> u64,
    ) -> BTreeMap<String, u64> {
        let rules = policy.rules.iter().filter(|rule| rule.access_logs.contains(log));
        rules.map(|rule| (rule.name.clone(), number(self.by_name.get(&rule.name)))).collect()
    }

    /// Returns a rule's reconciler. Replaces one of another limit.
    fn of_rule(&mut self, rule: &Rule, limit: &Limit) -> &mut OfRule {
        // A request charged beyond a limit's amount would never be admitted.
        let requests = rule.limits.iter().filter(|limit| limit.is_guardable());
        let requests = requests.map(|limit| limit.amount).min();
        let most = u16::try_from(requests.unwrap_or(1)).unwrap_or(u16::MAX);
        let of_window = Settings::new(limit.bucket_ns, limit.arithmetic().full_buckets);
        let settings = Settings {
            charged_in: CHARGED_IN,
            amount: limit.amount,
            multiplicity_max: of_window.multiplicity_max.min(most),
            ..of_window
        };
        let empty = |added| OfRule {
            reconciler: Reconciler::new(settings),
            slot: limit.slot,
            settings,
            added,
            written: HashMap::new(),
        };
        let of = self.by_name.entry(rule.name.clone()).or_insert_with(|| empty(0));
        if (of.slot, of.settings) != (limit.slot, settings) {
            *of = empty(of.added);
        }
        of
    }
}
