//! Limits read off what is replayed: the windows that every source fills are observed as the daemon observes the
//! kernel's. Pure.

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

/// Amounts of requests and connections that are held against what was wanted, where no limit is said to begin with.
const AMOUNTS: [u64; 8] = [10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000];
/// Packets of a request, roughly, and bytes.
const PACKETS: u64 = 10;
const BYTES: u64 = 100_000;

/// `ratelimitd suggest --from --json`, schema 1.
#[derive(Debug, Serialize)]
pub struct Suggested {
    /// As a daemon would say it.
    #[serde(flatten)]
    pub report: SuggestReport,
    /// What was read.
    pub input: Input,
    /// In what respect the numbers may not be what they would be.
    pub warnings: Vec<String>,
}

/// What is observed while it is replayed.
pub(super) struct Observing {
    policy: Policy,
    present: Present,
    candidates: Vec<(String, Vec<Limit>)>,
    /// In rounds of so long.
    bucket_ns: u64,
    observer: Observer,
    /// The time of the newest that was charged.
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

    /// Time goes on to `now`: where a bucket ends, what came in it is observed.
    pub(super) fn advance(&mut self, now: Nanos, judge: &Judge) {
        match self.newest {
            None => self.observer.follow(&self.policy, &self.candidates, SOURCES_MAX, now),
            Some(newest) if newest.bucket(self.bucket_ns) != now.bucket(self.bucket_ns) => self.round(newest, judge),
            Some(_) => {}
        }
        self.newest = Some(now);
    }

    /// Something of a client was charged.
    pub(super) fn charged(&mut self, client: IpNet) {
        self.charged.insert(client);
    }

    fn round(&mut self, at: Nanos, judge: &Judge) {
        // Every charge since the last round is in a bucket that it saw, or in one of this round.
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

    /// What limits are proposed.
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
