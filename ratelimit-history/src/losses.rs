//! Periods in which events were lost. Neighbouring periods are joined, and above a maximum number the nearest ones.
//! Independent of queue and clock.

use rusqlite::{Connection, params};

use crate::book::Millis;
use crate::store::whole;

/// Maximum number of losses that are kept.
pub(crate) const LOSSES_MAX: usize = 256;
/// Maximum pause between two losses that count as one, in milliseconds.
const PAUSE_MAX: Millis = 10_000;

/// A period in which events were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) began: Millis,
    pub(crate) ended: Millis,
    pub(crate) events: u64,
}

impl Lost {
    /// Returns the loss of `events` events between two times. If the clock went back, the period is a single instant.
    pub(crate) fn between(began: Millis, ended: Millis, events: u64) -> Self {
        Self { began: began.min(ended), ended, events }
    }

    const fn pause(&self, next: &Self) -> Millis {
        next.began.saturating_sub(self.ended)
    }

    fn join(&mut self, other: &Self) {
        self.began = self.began.min(other.began);
        self.ended = self.ended.max(other.ended);
        self.events = self.events.saturating_add(other.events);
    }
}

/// Adds a loss to a sorted list, which stays sorted. No event is counted twice, and no lost period is left out.
pub(crate) fn add(all: &mut Vec<Lost>, more: Lost) {
    // Almost always the new loss continues the newest one.
    if let Some(last) = all.last_mut()
        && last.began <= more.began
        && last.pause(&more) <= PAUSE_MAX
    {
        return last.join(&more);
    }
    let at = all.partition_point(|of| of.began <= more.began);
    all.insert(at, more);
    all.dedup_by(|next, before| {
        let is_one = before.pause(next) <= PAUSE_MAX;
        if is_one {
            before.join(next);
        }
        is_one
    });
    while all.len() > LOSSES_MAX {
        let nearest = (1..all.len()).min_by_key(|at| all[at - 1].pause(&all[*at]));
        let Some(nearest) = nearest else { break };
        let next = all.remove(nearest);
        all[nearest - 1].join(&next);
    }
}

/// Adds losses to those in the database, within the current transaction.
pub(crate) fn write(connection: &Connection, more: &[Lost]) -> rusqlite::Result<()> {
    if more.is_empty() {
        return Ok(());
    }
    // Writing before reading makes the statement wait for another writer.
    let mut statement = connection.prepare_cached("DELETE FROM losses RETURNING began, ended, events")?;
    let row = |row: &rusqlite::Row<'_>| {
        let events: i64 = row.get(2)?;
        Ok(Lost { began: row.get(0)?, ended: row.get(1)?, events: events.try_into().unwrap_or(0) })
    };
    let mut all = statement.query_map([], row)?.collect::<Result<Vec<_>, _>>()?;
    all.sort_unstable_by_key(|of| of.began);
    more.iter().for_each(|of| add(&mut all, *of));
    let mut statement = connection.prepare_cached("INSERT INTO losses (began, ended, events) VALUES (?1, ?2, ?3)")?;
    for of in all {
        statement.execute(params![of.began, of.ended, whole(of.events)])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn losses_close_in_time_merge_and_later_ones_are_separate() {
        let mut all = Vec::new();
        add(&mut all, Lost::between(0, 2_000, 5));
        add(&mut all, Lost::between(2_000, 4_000, 6));
        add(&mut all, Lost::between(4_000 + PAUSE_MAX, 14_500, 7));
        add(&mut all, Lost::between(24_501, 25_000, 1));
        let expected = [Lost { began: 0, ended: 14_500, events: 18 }, Lost { began: 24_501, ended: 25_000, events: 1 }];
        assert_eq!(all, expected);
        add(&mut all, Lost::between(14_600, 24_400, 1));
        assert_eq!(all, [Lost { began: 0, ended: 25_000, events: 20 }], "what lies between joins both");
        add(&mut all, Lost::between(9_000, 8_000, 1));
        assert_eq!(all, [Lost { began: 0, ended: 25_000, events: 21 }], "the clock went back");
    }

    proptest! {
        #[test]
        fn losses_are_bounded_and_cover_each_time_and_event(
            lost in proptest::collection::vec((0..20_000_000_i64, 0..50_000_i64, 1..99_u64), 1..400),
        ) {
            let mut all = Vec::new();
            for &(began, length, events) in &lost {
                add(&mut all, Lost::between(began, began + length, events));
                prop_assert!(all.len() <= LOSSES_MAX);
                prop_assert!(all.windows(2).all(|of| of[0].pause(&of[1]) > PAUSE_MAX));
            }
            for &(began, length, _) in &lost {
                prop_assert!(all.iter().any(|of| of.began <= began && began + length <= of.ended));
            }
            let sum = |of: &mut dyn Iterator<Item = u64>| of.sum::<u64>();
            prop_assert_eq!(sum(&mut all.iter().map(|of| of.events)), sum(&mut lost.iter().map(|of| of.2)));
        }
    }
}
