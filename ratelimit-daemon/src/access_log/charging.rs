//! Charges for the lines of logs.

use std::sync::Arc;

use ipnet::IpNet;
use ratelimit_common::time::Nanos;
use ratelimit_datapath::{Datapath, DatapathError, KernelEvent};
use ratelimit_policy::desired::{AccessLog, Policy};

use super::AccessLogs;
use super::batch::{Batch, Counted, Requests};
use super::rules::{self, Source};
use super::shadows;
use super::waiting::Lines;
use crate::engine::Engine;
use crate::moment::Moment;

impl<D: Datapath> Engine<D> {
    /// Charges the requests of a batch that take a source beyond a limit. The others wait for
    /// [`Self::settle_waiting`]. Returns the first error, but charges the other sources regardless.
    pub(super) fn charge_batch(
        &mut self,
        batch: &Batch,
        charges_conditions: bool,
        moment: Moment,
    ) -> Result<(), DatapathError> {
        let Self { datapath, enforced, access_logs, .. } = self;
        let policy = &enforced.desired.policy;
        let now = datapath.now()?;
        let mut charged = Ok(());
        let mut begun = Vec::new();
        // The kernel's counts for old lines are final.
        let is_due = !charges_conditions;
        for (at, sources) in access_logs.rules.by_rule(policy, &batch.log, &batch.requests, now) {
            let of = Of { policy, at, log: &batch.log, counts: &batch.counts, charges_conditions, now };
            let clients: Vec<IpNet> = sources.keys().copied().collect();
            let read = access_logs.rules.read(datapath, policy, at, &clients, now).unwrap_or_else(|error| {
                charged = Err(error);
                Vec::new()
            });
            for (source, requests) in read.iter().zip(sources.values()) {
                let mut lines = access_logs.waiting.take(of.log, of.rule(), source.client);
                lines.unjudged.add(requests);
                charged = charged.and(access_logs.charge(datapath, of, source, lines, is_due, &mut begun));
            }
        }
        self.tell_events(&begun, moment).and(charged)
    }

    /// Charges all lines that wait. Returns the first error, but charges the other sources regardless.
    pub(super) fn settle_waiting(&mut self, moment: Moment) -> Result<(), DatapathError> {
        let Self { datapath, enforced, access_logs, .. } = self;
        let policy = &enforced.desired.policy;
        let now = datapath.now()?;
        let mut charged = Ok(());
        let mut begun = Vec::new();
        for ((log, rule), part) in access_logs.waiting.drain() {
            let Some(at) = policy.rules.iter().position(|of| of.name == rule && of.access_logs.contains(&log)) else {
                continue;
            };
            let charges_conditions = access_logs.logs.get(&log).is_some_and(|log| log.has_caught_up);
            let of = Of { policy, at, log: &log, counts: &part.counts, charges_conditions, now };
            let clients: Vec<IpNet> = part.lines.keys().copied().collect();
            let read = access_logs.rules.read(datapath, policy, at, &clients, now).unwrap_or_else(|error| {
                charged = Err(error);
                Vec::new()
            });
            for (source, lines) in read.iter().zip(part.lines.into_values()) {
                charged = charged.and(access_logs.charge(datapath, of, source, lines, true, &mut begun));
            }
        }
        self.tell_events(&begun, moment).and(charged)
    }
}

/// Rule and log of the lines to charge.
#[derive(Clone, Copy)]
struct Of<'a> {
    policy: &'a Policy,
    /// Index of the rule.
    at: usize,
    log: &'a AccessLog,
    /// Selection of lines for each count of the lines.
    counts: &'a Arc<[Counted]>,
    /// False if an earlier run may have charged the limits with conditions.
    charges_conditions: bool,
    now: Nanos,
}

impl<'a> Of<'a> {
    fn rule(&self) -> &'a str {
        self.policy.rules.get(self.at).map_or("", |rule| &rule.name)
    }
}

impl AccessLogs {
    /// Charges the lines of a source, or lets them wait if they take it beyond no limit and are not due.
    ///
    /// Limits with conditions never wait, since only lines charge them. But lines of a source without a counted request
    /// wait as a whole: its first request may be about to be counted.
    fn charge<D: Datapath>(
        &mut self,
        datapath: &mut D,
        of: Of<'_>,
        source: &Source,
        lines: Lines,
        is_due: bool,
        begun: &mut Vec<KernelEvent>,
    ) -> Result<(), DatapathError> {
        let Of { policy, at, log, counts, charges_conditions, now } = of;
        let is_due = is_due || self.waiting.is_full(log, of.rule());
        if !is_due && !source.is_peer() {
            self.waiting.put(log, of.rule(), counts, source.client, lines);
            return Ok(());
        }
        let Lines { unjudged, mut judged } = lines;
        let charging = unjudged.at_most(self.judged(log, source, unjudged.lines));
        let mut charged = Ok(());
        if charging.lines > 0 && charges_conditions {
            charged = rules::charge_conditions(datapath, policy, at, source.client, (&charging, counts));
            let of_rule = (policy, at);
            let shadows = shadows::charge(datapath, of_rule, source.client, (&charging, counts), now, begun);
            charged = charged.and(shadows);
        }
        judged.add(&charging);
        if !is_due && !self.rules.would_exceed(policy, at, source, (&judged, counts), now) {
            let lines = Lines { unjudged: Requests::default(), judged };
            self.waiting.put(log, of.rule(), counts, source.client, lines);
            return charged;
        }
        charged.and(self.rules.settle(datapath, policy, at, source, (&judged, counts), now))
    }
}

#[cfg(test)]
mod tests;
