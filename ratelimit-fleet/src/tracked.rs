//! What is remembered of one source that is reported: per bucket what the kernel says, what the store has, and what the
//! others admitted. Pure.

use ipnet::IpNet;
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_policy::fleet::{FleetLimit, Terms};

use crate::names::{Field, Names};
use crate::wire::{Said, Sequence};

/// Buckets of a window that are remembered, by the low bits of their number: as many as a window of the kernel has.
const RING: usize = 8;

/// Which limit, by its place in the list that the fleet was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitId(pub u16);

/// A source under a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject {
    /// The limit.
    pub limit: LimitId,
    /// The source: a prefix.
    pub source: IpNet,
}

/// A bucket of a source's window, as the kernel has it: what this host admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Which bucket.
    pub bucket: BucketIndex,
    /// Its own part, without the others'.
    pub own: u64,
    /// What it counts for the others, rounded down as it is there.
    pub others: u64,
}

/// What the kernel is to count for the others in a bucket; it replaces what it was told before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Which source and limit.
    pub subject: Subject,
    /// Which bucket.
    pub bucket: BucketIndex,
    /// What the others admitted in it.
    pub others: u64,
}

/// What a bucket of the window needs of the next exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) bucket: BucketIndex,
    /// To be stored; none where the store has it.
    pub(crate) count: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Its number; 0 is unused.
    number: u64,
    own: u64,
    /// What the store has of ours, as far as answers say.
    stored: Option<u64>,
    /// What the store said last of the others.
    others: u64,
    /// By which report.
    said: Sequence,
    /// What the kernel counts for them; none where that is not known.
    told: Option<u64>,
    /// No more can come: it was said long enough after its end.
    is_final: bool,
}

/// One source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracked {
    ring: [Bucket; RING],
    /// When it was exchanged last, or tried to be.
    pub(crate) tried_at: Option<Nanos>,
    /// What it is called in the store, on which day.
    field: Option<(u64, Field)>,
    /// When the others' part was said last.
    pub(crate) told_at: Option<Nanos>,
    /// Whether the kernel said that it crossed a step since it was looked up.
    pub(crate) has_crossed: bool,
    /// Whether the last exchange failed.
    pub(crate) has_failed: bool,
}

impl Tracked {
    /// Takes in what the kernel has. A bucket that went down, or was lost, was evicted or reset: what the kernel was
    /// told of the others is lost there too, so all is asked again.
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
            // What was written may have been lost there, or not have been taken.
            bucket.told = Some(others);
        }
        if was_lost {
            self.ask_all();
        }
    }

    /// What it is called in the store in a bucket: one name for a day.
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

    /// What the next exchange stores and asks.
    pub(crate) fn needs(&mut self, limit: &FleetLimit, now: Nanos) -> Vec<Need> {
        let current = limit.bucket(now);
        let mut needs = Vec::new();
        for number in window(limit, current) {
            let bucket = self.bucket(number);
            let is_unsaid = bucket.own != bucket.stored.unwrap_or(0);
            if is_unsaid || !bucket.is_final {
                // Said again as long as it may grow: a store that lost it says so, and one that has it changes nothing.
                let count = (is_unsaid || (bucket.own > 0 && !bucket.is_final)).then_some(bucket.own);
                needs.push(Need { bucket: BucketIndex(number), count });
            }
        }
        needs
    }

    /// Takes in an answer. Says whether the store had lost what it had stored of ours.
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

    /// Forgets what the store has: all of it is said again.
    pub(crate) fn store_lost(&mut self) {
        for bucket in &mut self.ring {
            bucket.stored = None;
            bucket.is_final = false;
        }
    }

    /// Asks for every bucket once more.
    pub(crate) fn ask_all(&mut self) {
        self.ring.iter_mut().for_each(|bucket| bucket.is_final = false);
    }

    /// Forgets what the others admitted, for a reset everywhere: what they still have is asked again.
    pub(crate) fn forget_others(&mut self) {
        for bucket in &mut self.ring {
            bucket.others = 0;
            bucket.told = None;
            bucket.is_final = false;
        }
    }

    /// Forgets what the kernel was told.
    pub(crate) fn tell_again(&mut self) {
        self.ring.iter_mut().for_each(|bucket| bucket.told = None);
    }

    /// What the kernel is to be told of the others, bucket by bucket, where it counts something else in its units of `unit`;
    /// at most `most` together, the oldest first.
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

    /// Whether this host admitted something in the current bucket or the one before it.
    pub(crate) fn is_active(&self, limit: &FleetLimit, now: Nanos) -> bool {
        let current = limit.bucket(now).0;
        self.ring.iter().any(|bucket| bucket.own > 0 && bucket.number <= current && bucket.number + 1 >= current)
    }

    /// What this host admitted in the window, by the last look.
    pub(crate) fn own(&self, limit: &FleetLimit, now: Nanos) -> u64 {
        self.sum(limit, now, |bucket| bucket.own)
    }

    /// What the others admitted in it, as last said.
    pub(crate) fn others(&self, limit: &FleetLimit, now: Nanos) -> u64 {
        self.sum(limit, now, |bucket| bucket.others)
    }

    /// What this host admitted in it that the store does not have.
    pub(crate) fn unsaid(&self, limit: &FleetLimit, now: Nanos) -> u64 {
        self.sum(limit, now, |bucket| bucket.own.saturating_sub(bucket.stored.unwrap_or(0)))
    }

    /// Whether the store has another count than the kernel: less, or more where that was reset.
    pub(crate) fn differs(&self, limit: &FleetLimit, now: Nanos) -> bool {
        let window = window(limit, limit.bucket(now));
        self.ring.iter().any(|bucket| window.contains(&bucket.number) && bucket.own != bucket.stored.unwrap_or(0))
    }

    fn sum(&self, limit: &FleetLimit, now: Nanos, part: impl Fn(&Bucket) -> u64) -> u64 {
        let has = |bucket: &&Bucket| window(limit, limit.bucket(now)).contains(&bucket.number);
        self.ring.iter().filter(has).map(part).fold(0, u64::saturating_add)
    }

    /// The bucket's place, emptied where it had an older one. A later one stays: who asks sees that by its number.
    fn bucket(&mut self, number: u64) -> &mut Bucket {
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits are asked for")]
        let place = &mut self.ring[number as usize % RING];
        if place.number < number {
            *place = Bucket { number, ..Bucket::default() };
        }
        place
    }
}

/// What became of an answer's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Taken,
    /// A later one was taken before.
    Late,
    /// More than all hosts together can have admitted.
    Garbage,
    /// Taken; the store had lost our register.
    StoreLost,
}

/// The numbers of the buckets of a sum, oldest first.
pub(crate) fn window(limit: &FleetLimit, current: BucketIndex) -> std::ops::RangeInclusive<u64> {
    current.0.saturating_sub(u64::from(limit.full_buckets).min(RING as u64 - 1))..=current.0
}
