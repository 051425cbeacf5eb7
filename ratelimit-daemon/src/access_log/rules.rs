//! The reconcilers of rules with access logs: which rule judges a source, what the kernel counted of it, and what is
//! charged.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;
use ratelimit_accesslog::{Reconciler, Settings};
use ratelimit_common::time::Nanos;
use ratelimit_common::verification::Side;
use ratelimit_common::window::Cell;
use ratelimit_datapath::{Datapath, DatapathError, LimitAt};
use ratelimit_policy::desired::{AccessLog, Grant, Limit, Policy, Rule};

use super::Logged;

/// Number of windows that a charge goes to: that of verified traffic, and that of other traffic, such as QUIC. Counts are
/// their sum.
const CHARGED_IN: u64 = 2;

/// Reconcilers, by the name of their rule.
#[derive(Debug, Default)]
pub(super) struct Rules {
    by_name: HashMap<String, OfRule>,
}

/// Reconciler of one rule.
#[derive(Debug)]
struct OfRule {
    reconciler: Reconciler<IpNet>,
    /// Slot of the limit by whose buckets it counts.
    slot: u32,
    /// Number of requests that were charged from logs.
    added: u64,
}

/// Source with lines in a batch, and what the kernel counted of it.
#[derive(Debug)]
pub(super) struct Source {
    client: IpNet,
    pub(super) lines: u64,
    /// Number and count of each bucket in its windows.
    counts: Vec<(u64, u64)>,
}

impl Source {
    /// Returns whether it has a live window: something of it was counted within the rule's window.
    pub(super) fn is_peer(&self) -> bool {
        !self.counts.is_empty()
    }
}

/// Returns the limit by which a rule is reconciled, and its position. The one with the longest window is chosen, since
/// lines of slow requests are then matched for longest.
fn reconciled(rule: &Rule) -> Option<(usize, &Limit)> {
    let limits = rule.limits.iter().enumerate().filter(|(_, limit)| limit.is_reconciled());
    limits.max_by_key(|(_, limit)| limit.window_ns)
}

impl Rules {
    /// Returns the requests of a log by the index of the rule that judges them, without those of allowed sources.
    pub(super) fn by_rule(
        &self,
        policy: &Policy,
        log: &AccessLog,
        requests: &[Logged],
        now: Nanos,
    ) -> BTreeMap<usize, BTreeMap<IpNet, u64>> {
        let mut parts: BTreeMap<usize, BTreeMap<IpNet, u64>> = BTreeMap::new();
        for (source, lines) in requests.iter().copied() {
            if policy.grant(source, now).is_some_and(|access| access.grant == Grant::Exempt) {
                continue;
            }
            let rules = policy.rules_from(source, now);
            let judges = |(_, rule): &&(usize, &Rule)| rule.access_logs.contains(log) && reconciled(rule).is_some();
            if let Some((at, _)) = rules.iter().find(judges) {
                *parts.entry(*at).or_default().entry(policy.client(source)).or_default() += lines;
            }
        }
        parts
    }

    /// Reads what the kernel has counted of these sources.
    ///
    /// # Errors
    /// Fails if their windows cannot be read.
    pub(super) fn read<D: Datapath>(
        &mut self,
        datapath: &mut D,
        policy: &Policy,
        at: usize,
        sources: &BTreeMap<IpNet, u64>,
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
        let windows = verified.iter().zip(&others);
        let read = sources.iter().zip(windows).map(|((client, lines), (verified, others))| {
            let mut counts = live(verified);
            for (bucket, count) in live(others) {
                let sum = counts.entry(bucket).or_default();
                *sum = sum.saturating_add(count);
            }
            Source { client: *client, lines: *lines, counts: counts.into_iter().collect() }
        });
        Ok(read.collect())
    }

    /// Charges a source's lines as far as they exceed what was counted of it.
    ///
    /// # Errors
    /// Fails if the windows cannot be written. What was not charged is not charged later.
    pub(super) fn settle<D: Datapath>(
        &mut self,
        datapath: &mut D,
        policy: &Policy,
        at: usize,
        source: &Source,
        lines: u64,
        now: Nanos,
    ) -> Result<(), DatapathError> {
        let Some(rule) = policy.rules.get(at) else { return Ok(()) };
        let Some((_, limit)) = reconciled(rule) else { return Ok(()) };
        if lines == 0 {
            return Ok(());
        }
        let of = self.of_rule(rule, limit);
        of.reconciler.logged(source.client, now.0, lines, None);
        of.reconciler.counted(source.client, now.0, &source.counts);
        let amount = of.reconciler.settle(source.client, now.0);
        if amount == 0 {
            return Ok(());
        }
        let charged = datapath.charge_requests(source.client, at, amount);
        match charged {
            Ok(()) => of.added = of.added.saturating_add(amount),
            Err(_) => of.reconciler.not_charged(source.client, of.reconciler.bucket(now.0), amount),
        }
        charged
    }

    /// Returns how many requests logs have charged, by the name of each rule that has this log.
    pub(super) fn added_by(&self, policy: &Policy, log: &AccessLog) -> BTreeMap<String, u64> {
        let rules = policy.rules.iter().filter(|rule| rule.access_logs.contains(log));
        let added = |rule: &Rule| self.by_name.get(&rule.name).map_or(0, |of| of.added);
        rules.map(|rule| (rule.name.clone(), added(rule))).collect()
    }

    /// Returns a rule's reconciler. One of another limit is replaced.
    fn of_rule(&mut self, rule: &Rule, limit: &Limit) -> &mut OfRule {
        let settings =
            Settings { charged_in: CHARGED_IN, ..Settings::new(limit.bucket_ns, limit.arithmetic().full_buckets) };
        let empty = |added| OfRule { reconciler: Reconciler::new(settings), slot: limit.slot, added };
        let of = self.by_name.entry(rule.name.clone()).or_insert_with(|| empty(0));
        if of.slot != limit.slot {
            *of = empty(of.added);
        }
        of
    }
}
