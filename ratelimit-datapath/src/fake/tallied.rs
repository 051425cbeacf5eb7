//! Counts of the fake: packets by reason, and the usage of a guard.

use std::cell::Cell as Word;
use std::collections::BTreeMap;

use ratelimit_common::layout::{Source, Tally};
use ratelimit_common::time::BucketIndex;
use ratelimit_common::verdict::Reason;
use ratelimit_common::window::{self, Charge};

use crate::Tallies;

pub(super) fn charge_or_refuse(window: &mut Source, limit: window::Limit, bucket: BucketIndex, amount: u64) {
    let words = window.cells.map(Word::new);
    match window::charge(&words, limit, bucket, amount) {
        Charge::Admitted(_) => window.cells = words.map(Word::into_inner),
        Charge::Refused | Charge::Contended | Charge::Unsettled(_) => {
            window.refused = window.refused.and_one_in(bucket);
        }
    }
}

pub(super) fn add(row: &mut BTreeMap<Reason, Tally>, reason: Reason, tally: Tally) {
    let sum = row.entry(reason).or_default();
    sum.packets += tally.packets;
    sum.bytes += tally.bytes;
}

pub(super) fn tallies(row: &BTreeMap<Reason, Tally>) -> Tallies {
    Tallies(row.iter().map(|(reason, tally)| (*reason, *tally)).collect())
}
