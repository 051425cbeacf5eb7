//! State of one reported source. Per bucket: the kernel's count, the count in the store, and the admissions of the
//! other hosts. Pure.

use ipnet::IpNet;
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_policy::fleet::{FleetLimit, Terms};

use crate::names::{Field, Names};
use crate::wire::{Said, Sequence};

/// Number of remembered buckets, indexed by the low bits of their number. Equal to the buckets of a kernel window.
const RING: usize = 8;

/// Id of a limit: its index in the fleet's list of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitId(pub u16);

/// Source under one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject {
    /// Limit that counts the source.
    pub limit: LimitId,
    /// Prefix that is counted as one source.
    pub source: IpNet,
}

/// Counts in one bucket of a source's window, as the kernel holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Bucket number.
    pub bucket: BucketIndex,
    /// Admissions of this host, without those of the others.
    pub own: u64,
    /// Admissions of the other hosts, rounded down to the kernel's unit.
    pub others: u64,
}

/// Admissions of other hosts that the kernel has to count in a bucket. Replaces the earlier value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Source and limit.
    pub subject: Subject,
    /// Bucket number.
    pub bucket: BucketIndex,
    /// Admissions of the other hosts in this bucket.
    pub others: u64,
}

/// Request for one bucket in the next exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) bucket: BucketIndex,
    /// Count to store. None if the store already has it.
    pub(crate) count: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Bucket number. 0 marks an unused slot.
    number: u64,
    own: u64,
    /// This host's count in the store, as far as the answers show.
    stored: Option<u64>,
    /// Admissions of the other hosts, from the last answer.
    others: u64,
    /// Sequence of the report that the last answer belongs to.
    said: Sequence,
    /// Admissions of the other hosts that the kernel counts. None if unknown.
    told: Option<u64>,
    /// True if no host can report more: the last answer came long enough after the end of the bucket.
    is_final: bool,
}

/// State of one source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracked {
    ring: [Bucket; RING],
    /// Time of the last exchange, successful or not.
    pub(crate) tried_at: Option<Nanos>,
    /// Day and field name of the source in the store.
    field: Option<(u64, Field)>,
    /// Time of the last answer about the other hosts.
    pub(crate) told_at: Option<Nanos>,
    /// True if the kernel signalled a crossed step since the last read.
    pub(crate) has_crossed: bool,
    /// True if the last exchange failed.
    pub(crate) has_failed: bool,
}

impl Tracked {
    /// Stores the kernel's counts. A lower or missing count means that the window was evicted or reset. The kernel then
    /// lost the other hosts' counts too, so all buckets are requested again.
    pub(crate) fn read(&mut self, limit: &FleetLimit, now: Nanos, counts: &[Count]) {
        self.has_crossed = false;
        let current = limit.bucket(now);
        let mut was_lost = false;
        for number in window(limit, current) {
            let count = counts.iter().find(|count| count.bucket.0 == number);
            let (own, others) = count.map_or((0, 0), |count| (count.own, count.others));
            let bucket = self.bucket(number);
            was_lost |= own < bucket.own;
            bucket.own = own;
            // An earlier write may have been lost or rejected by the kernel, so the value read counts.
            bucket.told = Some(others);
        }
        if was_lost {
            self.ask_all();
        }
    }

    /// Returns the field name of the source for a bucket. The name is constant within a day.
    pub(crate) fn field(&mut self, names: &Names, limit: &FleetLimit, bucket: BucketIndex, source: IpNet) -> Field {
        let day = Names::day(limit.bucket_ns, bucket);
        match self.field {
            Some((of, field)) if of == day => field,
            Some(_) | None => {
                let field = names.field(&limit.identity, limit.bucket_ns, bucket, source);
                self.field = Some((day, field));
                field
            }
        }
    }

    /// Returns the counts to store and the sums to request in the next exchange.
    pub(crate) fn needs(&mut self, limit: &FleetLimit, now: Nanos) -> Vec<Need> {
        let current = limit.bucket(now);
        let mut needs = Vec::new();
        for number in window(limit, current) {
            let bucket = self.bucket(number);
            let is_unsaid = bucket.own != bucket.stored.unwrap_or(0);
            if is_unsaid || !bucket.is_final {
                // A count that may still grow is sent again. The answer then shows whether the store lost it, and a
                // repeated report changes nothing.
                let count = (is_unsaid || (bucket.own > 0 && !bucket.is_final)).then_some(bucket.own);
                needs.push(Need { bucket: BucketIndex(number), count });
            }
        }
        needs
    }

    /// Evaluates an answer. Reports whether it was taken and whether the store had lost this host's register.
    pub(crate) fn said(&mut self, terms: Terms, sequence: Sequence, need: Need, said: Said, is_final: bool) -> Answer {
        let bucket = self.bucket(need.bucket.0);
        if bucket.number != need.bucket.0 || sequence < bucket.said {
            return Answer::Late;
        }
        bucket.said = sequence;
        let was_lost = bucket.stored.is_some_and(|stored| stored > 0) && !said.had_mine;
        if let Some(count) = need.count {
            bucket.stored = Some(count);
        } else if was_lost {
            bucket.stored = None;
        }
        if said.others > terms.believable() {
            return Answer::Garbage;
        }
        bucket.others = said.others;
        bucket.is_final = is_final;
        if was_lost { Answer::StoreLost } else { Answer::Taken }
    }

    /// Clears the knowledge about the store, so that all counts are reported again.
    pub(crate) fn store_lost(&mut self) {
        for bucket in &mut self.ring {
            bucket.stored = None;
            bucket.is_final = false;
        }
    }

    /// Requests every bucket once more.
    pub(crate) fn ask_all(&mut self) {
        self.ring.iter_mut().for_each(|bucket| bucket.is_final = false);
    }

    /// Removes the other hosts' counts after a fleet-wide reset. Counts that the other hosts still have are requested
    /// again.
    pub(crate) fn forget_others(&mut self) {
        for bucket in &mut self.ring {
            bucket.others = 0;
            bucket.told = None;
            bucket.is_final = false;
        }
    }

    /// Clears the record of counts written to the kernel, so that they are written again.
    pub(crate) fn tell_again(&mut self) {
        self.ring.iter_mut().for_each(|bucket| bucket.told = None);
    }

    /// Returns the counts of other hosts that the kernel must replace, compared in units of `unit`. Together they are
    /// at most `most`. The oldest bucket is first.
    pub(crate) fn tells(
        &mut self,
        subject: Subject,
        limit: &FleetLimit,
        now: Nanos,
        (most, unit): (u64, u64),
    ) -> Vec<Told> {
        let mut left = most;
        let mut tells = Vec::new();
        for number in window(limit, limit.bucket(now)) {
            let bucket = self.bucket(number);
            let others = bucket.others.min(left);
            left -= others;
            if bucket.told.is_none_or(|told| told / unit != others / unit) {
                bucket.told = Some(others);
                tells.push(Told { subject, bucket: BucketIndex(number), others });
            }
        }
        tells
    }

    /// Returns true if this host admitted something in the current or the previous bucket.
    pub(crate) fn is_active(&self, limit: &FleetLimit, now: Nanos) -> bool {
        let current = limit.bucket(now).0;
        self.ring.iter().any(|bucket| bucket.own > 0 && bucket.number <= current && bucket.number + 1 >= current)
    }

    /// Returns this host's admissions in the window, as of the last read.
    pub(crate) fn own(&self, limit: &FleetLimit, now: Nanos) -> u64 {
        self.sum(limit, now, |bucket| bucket.own)
    }

    /// Returns the other hosts' admissions in the window, as of the last answers.
    pub(crate) fn others(&self, limit: &FleetLimit, now: Nanos) -> u64 {
        self.sum(limit, now, |bucket| bucket.others)
    }

    /// Returns this host's admissions in the window that the store does not have.
    pub(crate) fn unsaid(&self, limit: &FleetLimit, now: Nanos) -> u64 {
        self.sum(limit, now, |bucket| bucket.own.saturating_sub(bucket.stored.unwrap_or(0)))
    }

    /// Returns true if a count in the store differs from the kernel's: lower, or higher after a reset.
    pub(crate) fn differs(&self, limit: &FleetLimit, now: Nanos) -> bool {
        let window = window(limit, limit.bucket(now));
        self.ring.iter().any(|bucket| window.contains(&bucket.number) && bucket.own != bucket.stored.unwrap_or(0))
    }

    fn sum(&self, limit: &FleetLimit, now: Nanos, part: impl Fn(&Bucket) -> u64) -> u64 {
        let has = |bucket: &&Bucket| window(limit, limit.bucket(now)).contains(&bucket.number);
        self.ring.iter().filter(has).map(part).fold(0, u64::saturating_add)
    }

    /// Returns the slot of a bucket, cleared if it held an older one. A later bucket stays in the slot, so callers
    /// compare the number.
    fn bucket(&mut self, number: u64) -> &mut Bucket {
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits are asked for")]
        let place = &mut self.ring[number as usize % RING];
        if place.number < number {
            *place = Bucket { number, ..Bucket::default() };
        }
        place
    }
}

/// Outcome of evaluating one entry of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Taken,
    /// A later answer was evaluated before.
    Late,
    /// The sum is larger than all hosts together can have admitted.
    Garbage,
    /// Taken, and the store had lost this host's register.
    StoreLost,
}

/// Returns the numbers of the buckets that one sum covers, oldest first.
pub(crate) fn window(limit: &FleetLimit, current: BucketIndex) -> std::ops::RangeInclusive<u64> {
    current.0.saturating_sub(u64::from(limit.full_buckets).min(RING as u64 - 1))..=current.0
}
