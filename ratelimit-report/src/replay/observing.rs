//! Limits proposed from a replay. The windows of every source are observed as the daemon observes the kernel's. Pure.

use std::collections::HashSet;

use ipnet::IpNet;
use ratelimit_common::layout::Unit;
use ratelimit_common::time::Nanos;
use serde::Serialize;

use super::fared::{Judge, SOURCES_MAX};
use super::{Input, Present};
use crate::observe::Observer;
use crate::snapshot::SuggestReport;
use ratelimit_datapath::SourceReading;
use ratelimit_policy::config::lists::ListFile;
use ratelimit_policy::desired::{Limit, Policy};

/// Candidate amounts of requests and connections, if the user names no limit.
const AMOUNTS: [u64; 8] = [10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000];
/// Approximate number of packets per request.
const PACKETS: u64 = 10;
const BYTES: u64 = 100_000;

/// Output of `ratelimitd suggest --from --json`, schema 1.
#[derive(Debug, Serialize)]
pub struct Suggested {
    /// Report in the form of a daemon's.
    #[serde(flatten)]
    pub report: SuggestReport,
    /// Summary of the input.
    pub input: Input,
    /// Reasons why the numbers may differ from what would be observed live.
    pub warnings: Vec<String>,
}

/// Observation during a replay.
pub(super) struct Observing {
    policy: Policy,
    present: Present,
    candidates: Vec<(String, Vec<Limit>)>,
    /// Length of a round: the shortest bucket of the limits.
    bucket_ns: u64,
    observer: Observer,
    /// Time of the newest charged item.
    newest: Option<Nanos>,
    /// Clients that were charged since the last round.
    charged: HashSet<IpNet>,
}

impl Observing {
    pub(super) fn new(policy: &Policy, present: Present) -> Option<Self> {
        let rule = policy.rules.first()?;
        let of_amounts = |limit: &Limit| {
            let one = match limit.unit {
                Unit::Requests | Unit::Connections => 1,
                Unit::Packets => PACKETS,
                Unit::Bytes => BYTES,
            };
            let limit = *limit;
            AMOUNTS.map(|amount| Limit { amount: amount * one, ..limit })
        };
        let candidates = match present {
            Present::Said => Vec::new(),
            Present::Assumed => vec![(rule.name.clone(), rule.limits.iter().flat_map(of_amounts).collect())],
        };
        let bucket_ns = rule.limits.iter().map(|limit| limit.bucket_ns).min()?;
        Some(Self {
            policy: policy.clone(),
            present,
            candidates,
            bucket_ns,
            observer: Observer::default(),
            newest: None,
            charged: HashSet::new(),
        })
    }

    /// Advances the time to `now`. When a bucket ends, its contents are observed.
    pub(super) fn advance(&mut self, now: Nanos, judge: &Judge) {
        match self.newest {
            None => self.observer.follow(&self.policy, &self.candidates, SOURCES_MAX, now),
            Some(newest) if newest.bucket(self.bucket_ns) != now.bucket(self.bucket_ns) => self.round(newest, judge),
            Some(_) => {}
        }
        self.newest = Some(now);
    }

    /// Records that a client was charged.
    pub(super) fn charged(&mut self, client: IpNet) {
        self.charged.insert(client);
    }

    fn round(&mut self, at: Nanos, judge: &Judge) {
        // Every charge since the last round is in a bucket of that round or of this one.
        self.observer.nothing_until(at);
        let mut round = self.observer.round(at, &[]);
        for client in self.charged.drain() {
            for limit in judge.limits() {
                let Some(window) = judge.window(client, limit) else { continue };
                round.visit(&SourceReading {
                    prefix: client,
                    slot: limit.slot,
                    is_verified: false,
                    window: *window,
                    refused_until: None,
                    repeated: 0,
                });
            }
        }
        round.finish();
    }

    /// Ends the observation and returns the proposed limits.
    pub(super) fn finish(
        mut self,
        at: Nanos,
        judge: &Judge,
        input: Input,
        warnings: Vec<String>,
        lists: &[ListFile],
    ) -> Suggested {
        if self.newest.is_some() {
            self.round(at, judge);
        }
        let is_present = self.present == Present::Said;
        let report = SuggestReport::of_past(&self.policy, &self.observer, at, is_present, lists);
        Suggested { report, input, warnings }
    }
}
