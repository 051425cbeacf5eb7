//! Charges for the lines of logs.

use std::collections::BTreeMap;

use ipnet::IpNet;
use ratelimit_common::time::Nanos;
use ratelimit_datapath::{Datapath, DatapathError, KernelEvent};
use ratelimit_policy::desired::{AccessLog, Policy};

use super::AccessLogs;
use super::batch::{Batch, Requests};
use super::rules::{self, Source};
use super::shadows;
use super::waiting::{Lines, Part};
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
            let of = Of { policy, at, log: &batch.log, charges_conditions, now };
            let mut waiting = std::mem::take(&mut access_logs.waiting);
            let part = waiting.part(of.log, of.rule(), &batch.counts);
            charged = charged.and(access_logs.charge_sources(datapath, of, &sources, part, is_due, &mut begun));
            access_logs.waiting = waiting;
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
        for ((log, rule), mut part) in access_logs.waiting.drain() {
            let Some(at) = policy.rules.iter().position(|of| of.name == rule && of.access_logs.contains(&log)) else {
                continue;
            };
            let charges_conditions = access_logs.logs.get(&log).is_some_and(|log| log.has_caught_up);
            let of = Of { policy, at, log: &log, charges_conditions, now };
            let sources = part.lines.keys().map(|client| (*client, Requests::default())).collect();
            charged = charged.and(access_logs.charge_sources(datapath, of, &sources, &mut part, true, &mut begun));
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
    /// Charges new lines of sources, with those of `part` that wait. Returns the first error, but charges the other
    /// sources regardless.
    fn charge_sources<D: Datapath>(
        &mut self,
        datapath: &mut D,
        of: Of<'_>,
        sources: &BTreeMap<IpNet, Requests>,
        part: &mut Part,
        is_due: bool,
        begun: &mut Vec<KernelEvent>,
    ) -> Result<(), DatapathError> {
        let clients: Vec<IpNet> = sources.keys().copied().collect();
        let read = self.rules.read(datapath, of.policy, of.at, &clients, of.now)?;
        let mut charged = Ok(());
        for (source, requests) in read.iter().zip(sources.values()) {
            let mut lines = part.lines.remove(&source.client).unwrap_or_default();
            lines.unjudged.add(requests);
            charged = charged.and(self.charge(datapath, of, source, lines, is_due, (part, begun)));
        }
        charged
    }

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
        (part, begun): (&mut Part, &mut Vec<KernelEvent>),
    ) -> Result<(), DatapathError> {
        let Of { policy, at, log, charges_conditions, now } = of;
        let is_due = is_due || part.is_full();
        if !is_due && !source.is_peer() {
            part.lines.insert(source.client, lines);
            return Ok(());
        }
        let counts = &part.counts;
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
            part.lines.insert(source.client, lines);
            return charged;
        }
        charged.and(self.rules.settle(datapath, policy, at, source, (&judged, counts), now))
    }
}

#[cfg(test)]
mod tests;
