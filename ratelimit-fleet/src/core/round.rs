//! One round: turns the kernel's counts into calls, and the answers into counts for the kernel.

use std::collections::BTreeMap;
use std::time::Duration;

use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_policy::fleet::{FleetLimit, Terms};

use super::{Core, RETRY, after};
use crate::names::Shard;
use crate::tracked::{Answer, Count, Need, Subject, Told, Tracked};
use crate::wire::{Call, ENTRIES_MAX, Entry, Group, Said, Sequence};

/// Output of one round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Calls to the store, one or more per shard.
    pub calls: Vec<Call>,
    /// Counts of other hosts that the kernel lacks although they were written before.
    pub told: Vec<Told>,
}

/// Position of an entry in the store. Calls list their entries in this order.
type Place = (Shard, u64, BucketIndex);

impl Core {
    /// Builds the calls for the sources that [`Core::due`] returned. `read` holds their counts in the same order. An
    /// empty list means that the kernel has no counts. None means that the lookup failed, and the source is retried.
    pub fn round(&mut self, now: Nanos, due: &[Subject], read: &[Option<Vec<Count>>]) -> Round {
        let mut entries: BTreeMap<Place, Vec<Entry>> = BTreeMap::new();
        let mut exchanged = 0;
        let mut lacking = Vec::new();
        for (subject, counts) in due.iter().zip(read) {
            let Some((limit, terms)) = self.limits.get(usize::from(subject.limit.0)) else {
                continue;
            };
            let Some(known) = self.tracked.get_mut(subject) else {
                continue;
            };
            let Some(counts) = counts else {
                known.has_failed = true;
                self.retry_at.get_or_insert(after(now, RETRY));
                continue;
            };
            known.read(limit, now, counts);
            let needs = known.needs(limit, now);
            if known.own(limit, now) == 0 && needs.iter().all(|need| need.count.is_none()) {
                self.tracked.remove(subject);
                continue;
            }
            if !limit.is_summed_at(self.skew.certain()) {
                continue;
            }
            if let Some(most) = most_of_others(known, (limit, *terms), self.settings.floor_percent, now) {
                lacking.append(&mut known.tells(*subject, limit, now, (most, terms.unit(limit))));
            }
            let wants = if self.is_tick {
                known.is_due(limit, *terms, now)
            } else {
                (known.has_failed && self.is_retry) || known.is_urgent(limit, *terms, now)
            };
            if !wants || needs.is_empty() {
                continue;
            }
            if exchanged == self.settings.round_max {
                self.counters.reports_lost += 1;
                continue;
            }
            exchanged += 1;
            known.tried_at = Some(now);
            for Need { bucket, count } in needs {
                let field = known.field(&self.names, limit, bucket, subject.source);
                let place = (Shard::of(field), limit.bucket_ns, bucket);
                entries.entry(place).or_default().push(Entry { subject: *subject, bucket, field, count });
            }
        }
        if !entries.is_empty() {
            self.sequence = Sequence((now.0 / 1000).max(self.sequence.0 + 1));
        }
        Round { calls: self.calls(entries), told: lacking }
    }

    fn calls(&self, entries: BTreeMap<Place, Vec<Entry>>) -> Vec<Call> {
        let mut calls: Vec<Call> = Vec::new();
        let mut room = 0;
        for ((shard, bucket_ns, bucket), entries) in entries {
            let key = self.names.bucket_key(shard, bucket_ns, bucket);
            // Lifetime: 8.5 buckets. After that no window of any form includes the bucket, even on a host whose clock
            // is behind.
            let expiry_ms = bucket_ns / 1_000_000 * 17 / 2 + 1000;
            let mut rest = entries.as_slice();
            while !rest.is_empty() {
                if room == 0 || calls.last().is_none_or(|call| call.shard != shard) {
                    calls.push(Call { host: self.host, sequence: self.sequence, shard, groups: Vec::new() });
                    room = ENTRIES_MAX;
                }
                let (now, later) = rest.split_at(rest.len().min(room));
                room -= now.len();
                rest = later;
                if let Some(call) = calls.last_mut() {
                    call.groups.push(Group { key: key.clone(), expiry_ms, entries: now.to_vec() });
                }
            }
        }
        calls
    }

    /// Evaluates the store's answer to a call. Returns the counts to write to the kernel.
    pub fn answered(&mut self, call: &Call, said: &[Said], now: Nanos) -> Vec<Told> {
        if call.sequence <= self.outdated {
            self.counters.late += call.entries().count() as u64;
            return Vec::new();
        }
        let mut subjects: Vec<Subject> = Vec::new();
        let mut store_lost = false;
        for (entry, said) in call.entries().zip(said) {
            let Some((limit, terms)) = self.limits.get(usize::from(entry.subject.limit.0)) else {
                continue;
            };
            if entry.count.is_some() {
                self.counters.reports += 1;
            }
            let Some(known) = self.tracked.get_mut(&entry.subject) else {
                continue;
            };
            known.has_failed = false;
            let need = Need { bucket: entry.bucket, count: entry.count };
            let final_at = final_at(limit, entry.bucket, self.settings.interval);
            let is_final = now >= final_at.max(self.unsettled_until);
            match known.said(*terms, call.sequence, need, *said, is_final) {
                Answer::Taken => {}
                Answer::StoreLost => store_lost = true,
                Answer::Garbage => {
                    self.counters.garbage += 1;
                    continue;
                }
                Answer::Late => {
                    self.counters.late += 1;
                    continue;
                }
            }
            known.told_at = Some(now);
            subjects.push(entry.subject);
        }
        if store_lost {
            self.shard_lost(call.shard, now);
        }
        subjects.sort_unstable();
        subjects.dedup();
        subjects.into_iter().flat_map(|subject| self.tells(subject, now)).collect()
    }

    /// Records that a call failed. Its sources are tried again after [`RETRY`].
    pub fn failed(&mut self, call: &Call, now: Nanos) {
        let is_of_these_limits = call.sequence > self.outdated;
        for entry in call.entries().filter(|_| is_of_these_limits) {
            if let Some(known) = self.tracked.get_mut(&entry.subject) {
                known.has_failed = true;
            }
        }
        self.retry_at.get_or_insert(after(now, RETRY));
    }

    /// Records that the store lost the data of one shard. A replica with less data was promoted, or the shard was
    /// emptied.
    fn shard_lost(&mut self, shard: Shard, now: Nanos) {
        self.counters.store_lost += 1;
        self.unsettle(now);
        for (subject, known) in &mut self.tracked {
            let Some((limit, _)) = self.limits.get(usize::from(subject.limit.0)) else {
                continue;
            };
            // The field name changes only once a day, so the shard of today's name is sufficient.
            let field = self.names.field(&limit.identity, limit.bucket_ns, limit.bucket(now), subject.source);
            if Shard::of(field) == shard {
                known.store_lost();
            }
        }
    }

    fn tells(&mut self, subject: Subject, now: Nanos) -> Vec<Told> {
        let Some((limit, terms)) = self.limits.get(usize::from(subject.limit.0)) else {
            return Vec::new();
        };
        let Some(known) = self.tracked.get_mut(&subject) else {
            return Vec::new();
        };
        let most = most_of_others(known, (limit, *terms), self.settings.floor_percent, now);
        if most.is_none() {
            self.counters.garbage += 1;
        }
        known.tells(subject, limit, now, (most.unwrap_or(0), terms.unit(limit)))
    }
}

impl Tracked {
    /// Returns true if the source is exchanged without waiting for the interval.
    fn is_urgent(&self, limit: &FleetLimit, terms: Terms, now: Nanos) -> bool {
        let unsaid = self.unsaid(limit, now);
        let sum = self.own(limit, now).saturating_add(self.others(limit, now));
        unsaid > 0 && !self.has_failed && (terms.is_urgent(unsaid) || terms.is_hot(sum))
    }

    /// Returns true if the source is exchanged at a tick: it has unreported counts, is active, or is near its limit.
    fn is_due(&self, limit: &FleetLimit, terms: Terms, now: Nanos) -> bool {
        let sum = self.own(limit, now).saturating_add(self.others(limit, now));
        self.has_failed || self.differs(limit, now) || self.is_active(limit, now) || terms.is_hot(sum)
    }
}

/// Returns the maximum that counts of other hosts may take of a limit: all except the local floor. None if their sum is
/// implausible.
fn most_of_others(known: &Tracked, (limit, terms): (&FleetLimit, Terms), floor_percent: u8, now: Nanos) -> Option<u64> {
    let is_garbage = known.others(limit, now) > terms.believable();
    (!is_garbage).then_some(match floor_percent {
        // No cap at 0 percent, not even the limit: the kernel has room for twice the limit, and a window whose limit is
        // raised may need it.
        0 => u64::MAX,
        percent => terms.amount - terms.floor(percent),
    })
}

/// Returns the time at which no host has more to report for a bucket. Even a host that is behind by a quarter of a
/// bucket has ended and reported it by then.
fn final_at(limit: &FleetLimit, bucket: BucketIndex, interval: Duration) -> Nanos {
    let end = BucketIndex(bucket.0.saturating_add(1)).start(limit.bucket_ns);
    after(Nanos(end.0.saturating_add(limit.bucket_ns / 2)), interval * 2)
}
