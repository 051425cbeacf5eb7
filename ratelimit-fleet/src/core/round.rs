//! A round: from what the kernel says to calls, and from answers to what the kernel is told.

use std::collections::BTreeMap;
use std::time::Duration;

use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_policy::fleet::{FleetLimit, Terms};

use super::{Core, RETRY, after};
use crate::names::Shard;
use crate::tracked::{Answer, Count, Need, Subject, Told, Tracked};
use crate::wire::{Call, ENTRIES_MAX, Entry, Group, Said, Sequence};

/// What goes to the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// A call or more for each shard that is asked.
    pub calls: Vec<Call>,
    /// What the kernel does not count for the others, though it was told.
    pub told: Vec<Told>,
}

/// The hash of an entry, in the order in which calls have them.
type Place = (Shard, u64, BucketIndex);

impl Core {
    /// The calls for what [`Core::due`] named and `read` looked up, in the same order. Where `read` has an empty list of a
    /// source, the kernel has nothing; where it has none, it could not be looked up, and is due again.
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
            // Kept until no window of any form, on a host whose clock is behind, takes it in: 8 buckets and a half.
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

    /// Takes in what the store answered to a call. The result goes to the kernel.
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

    /// Nothing came of a call: its sources are tried again by and by.
    pub fn failed(&mut self, call: &Call, now: Nanos) {
        let is_of_these_limits = call.sequence > self.outdated;
        for entry in call.entries().filter(|_| is_of_these_limits) {
            if let Some(known) = self.tracked.get_mut(&entry.subject) {
                known.has_failed = true;
            }
        }
        self.retry_at.get_or_insert(after(now, RETRY));
    }

    /// What one shard had is gone: a replica that had less was promoted, or it was emptied.
    fn shard_lost(&mut self, shard: Shard, now: Nanos) {
        self.counters.store_lost += 1;
        self.unsettle(now);
        for (subject, known) in &mut self.tracked {
            let Some((limit, _)) = self.limits.get(usize::from(subject.limit.0)) else {
                continue;
            };
            // The name changes with the day alone, so that of today's shard says enough.
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
    /// Whether it is exchanged without waiting for the interval.
    fn is_urgent(&self, limit: &FleetLimit, terms: Terms, now: Nanos) -> bool {
        let unsaid = self.unsaid(limit, now);
        let sum = self.own(limit, now).saturating_add(self.others(limit, now));
        unsaid > 0 && !self.has_failed && (terms.is_urgent(unsaid) || terms.is_hot(sum))
    }

    /// Whether it is exchanged at a tick: it has something to say, admits now, or is near its limit.
    fn is_due(&self, limit: &FleetLimit, terms: Terms, now: Nanos) -> bool {
        let sum = self.own(limit, now).saturating_add(self.others(limit, now));
        self.has_failed || self.differs(limit, now) || self.is_active(limit, now) || terms.is_hot(sum)
    }
}

/// What the others may take of a limit at most: all, but for what no store can take; none where their sum is garbage.
fn most_of_others(known: &Tracked, (limit, terms): (&FleetLimit, Terms), floor_percent: u8, now: Nanos) -> Option<u64> {
    let is_garbage = known.others(limit, now) > terms.believable();
    (!is_garbage).then_some(match floor_percent {
        // Also what is above the limit: the kernel has room for twice of it, and a window that rises may want it.
        0 => u64::MAX,
        percent => terms.amount - terms.floor(percent),
    })
}

/// When no host has more to say of a bucket: those that are behind by a quarter of it have ended it, and have said so.
fn final_at(limit: &FleetLimit, bucket: BucketIndex, interval: Duration) -> Nanos {
    let end = BucketIndex(bucket.0.saturating_add(1)).start(limit.bucket_ns);
    after(Nanos(end.0.saturating_add(limit.bucket_ns / 2)), interval * 2)
}
