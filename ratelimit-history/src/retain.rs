//! Deletion of records when the history is too old or too large, starting with the most common and least informative
//! kinds. Each kind has a reserved share of the size, so a flood of one kind displaces only its own records.
//! Independent of the clock.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::book::Millis;
use crate::schema::Fault;
use crate::store::{SPANS, whole};

/// Size down to which records are deleted, in percent of the maximum. Otherwise each batch would delete again.
const SIZE_LOW: u64 = 95;

/// Kinds of records, in order of deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Totals. Minutes go before hours, and hours before days.
    Totals,
    /// Charges that applications made.
    Charges,
    /// Episodes shorter than a minute, without a ban.
    Brief,
    /// Longer episodes without a ban.
    Long,
    /// Episodes with a ban.
    Bans,
    /// Acts of users or the daemon, except charges.
    Acts,
}

/// Sizes of all kinds. They are counted on first use, and then updated with each written or deleted row.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    counted: Option<Counted>,
    /// Number of walks through the whole database.
    #[cfg(test)]
    pub(crate) walks: u32,
}

#[derive(Debug, PartialEq, Eq)]
struct Counted {
    sizes: Vec<Size>,
    /// Number of rows to delete before the next count. By then the remaining rows may be shorter or longer. This
    /// bounds the reading by the amount that was written.
    left: u64,
}

/// Size of one kind.
#[derive(Debug, PartialEq, Eq)]
struct Size {
    kind: Kind,
    rows: u64,
    /// Average bytes of a row, including its index entries.
    row_bytes: u64,
}

impl Kind {
    const ALL: [Self; 6] = [Self::Totals, Self::Charges, Self::Brief, Self::Long, Self::Bans, Self::Acts];

    /// Returns the reserved share of the size, in percent.
    const fn share(self) -> u64 {
        match self {
            Self::Totals | Self::Brief | Self::Long => 15,
            Self::Charges => 5,
            Self::Bans => 30,
            Self::Acts => 20,
        }
    }

    /// Returns the table, the column with the age, and the value of the column `worth`.
    const fn place(self) -> (&'static str, &'static str, i64) {
        match self {
            Self::Totals => ("totals", "start", 0),
            Self::Charges => ("acts", "time", 0),
            Self::Acts => ("acts", "time", 1),
            Self::Brief => ("episodes", "ended", 0),
            Self::Long => ("episodes", "ended", 1),
            Self::Bans => ("episodes", "ended", 2),
        }
    }
}

impl Sizes {
    /// Adds written rows of a table with this worth.
    pub(crate) fn written(&mut self, table: &str, worth: i64, rows: u64) {
        let is_of = |kind: Kind| (kind.place().0, kind.place().2) == (table, worth);
        let of = self.counted.iter_mut().flat_map(|counted| &mut counted.sizes).find(|of| is_of(of.kind));
        of.into_iter().for_each(|of| of.rows += rows);
    }

    /// Discards the sizes, so that they are counted again.
    pub(crate) fn forget(&mut self) {
        self.counted = None;
    }

    fn deleted(&mut self, kind: Kind, rows: u64) {
        let Some(counted) = &mut self.counted else { return };
        counted.left = counted.left.saturating_sub(rows);
        let of = counted.sizes.iter_mut().find(|of| of.kind == kind);
        of.into_iter().for_each(|of| of.rows = of.rows.saturating_sub(rows));
    }

    /// Returns the sizes, counted again if too much has changed.
    fn look(&mut self, connection: &Connection) -> Result<&[Size], Fault> {
        if self.counted.as_ref().is_none_or(|of| of.left == 0) {
            #[cfg(test)]
            {
                self.walks += 1;
            }
            self.counted = Some(count(connection)?);
        }
        Ok(self.counted.as_ref().map_or(&[], |of| &of.sizes))
    }
}

/// Deletes rows that ended too long ago. Each delete statement removes about `step` rows at most. Returns the number
/// of rows.
pub(crate) fn by_age(
    connection: &Connection,
    sizes: &mut Sizes,
    keep: Duration,
    now: Millis,
    step: u64,
) -> Result<u64, Fault> {
    let before = |keep: Duration| now.saturating_sub(Millis::try_from(keep.as_millis()).unwrap_or(Millis::MAX));
    let mut deleted = 0;
    let mut add = |kind, rows| {
        sizes.deleted(kind, rows);
        deleted += rows;
    };
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Totals) {
        add(kind, delete(connection, kind, before(keep), step)?);
    }
    // The table has at most 256 rows, so it belongs to no share.
    connection.execute("DELETE FROM losses WHERE ended <= ?1", [before(keep)])?;
    for (span, least) in SPANS {
        // Minutes are only needed for a day's chart, so a longer retention does not extend them.
        let keep = if span == 60 { least } else { least.max(keep) };
        add(Kind::Totals, delete_totals(connection, span, before(keep), step)?);
    }
    Ok(deleted)
}

/// Deletes rows from a database of `bytes` bytes that exceeds its maximum, about `step` rows at most. Each kind loses
/// its oldest rows, down to its share. Returns the number of rows.
pub(crate) fn by_size(
    connection: &Connection,
    sizes: &mut Sizes,
    bytes: u64,
    bytes_max: u64,
    step: u64,
) -> Result<u64, Fault> {
    if bytes <= bytes_max {
        return Ok(0);
    }
    let low = bytes_max / 100 * SIZE_LOW;
    let parts = too_much(sizes.look(connection)?, bytes, low);
    let mut deleted = 0;
    for (kind, rows) in parts {
        let rows = rows.min(step.saturating_sub(deleted));
        let gone = if rows > 0 { delete(connection, kind, Millis::MAX, rows)? } else { 0 };
        deleted += gone;
        if gone < rows {
            // Another writer has deleted the rows.
            sizes.forget();
        }
        sizes.deleted(kind, gone);
    }
    Ok(deleted)
}

/// Returns the number of rows of each kind above its share, for a database of `bytes` bytes that should have `low`.
fn too_much(sizes: &[Size], bytes: u64, low: u64) -> Vec<(Kind, u64)> {
    // Open episodes stay and belong to no share.
    let fixed = bytes.saturating_sub(sizes.iter().map(Size::bytes).sum());
    let shared = low.saturating_sub(fixed);
    let mut excess = bytes.saturating_sub(low);
    let part = |of: &Size| {
        let over = of.bytes().saturating_sub(shared / 100 * of.kind.share()).min(excess);
        excess -= over;
        (of.kind, over.div_ceil(of.row_bytes.max(1)))
    };
    sizes.iter().map(part).collect()
}

impl Size {
    const fn bytes(&self) -> u64 {
        self.rows.saturating_mul(self.row_bytes)
    }
}

/// Counts the whole database: the pages of each table and its indexes, and its rows by worth.
fn count(connection: &Connection) -> Result<Counted, Fault> {
    let mut statement = connection.prepare(
        "SELECT s.tbl_name, sum(d.pgsize) FROM dbstat AS d JOIN sqlite_schema AS s ON s.name = d.name WHERE d.aggregate = TRUE GROUP BY s.tbl_name",
    )?;
    let pages = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let pages = pages.collect::<Result<Vec<(String, i64)>, _>>()?;
    let mut statement = connection.prepare(
        "SELECT 'episodes', worth, count(*) FROM episodes GROUP BY worth \
         UNION ALL SELECT 'acts', worth, count(*) FROM acts GROUP BY worth \
         UNION ALL SELECT 'totals', 0, count(*) FROM totals",
    )?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let rows = rows.collect::<Result<Vec<(String, Option<i64>, i64)>, _>>()?;
    let of = |kind: Kind| {
        let (table, _, worth) = kind.place();
        let bytes: i64 = pages.iter().filter(|(name, _)| name == table).map(|(_, bytes)| bytes).sum();
        let all: i64 = rows.iter().filter(|(name, ..)| name == table).map(|(.., rows)| rows).sum();
        let rows = rows.iter().find(|(name, of, _)| name == table && *of == Some(worth)).map_or(0, |(.., rows)| *rows);
        let [rows, row_bytes] = [rows, bytes / all.max(1)].map(|of| u64::try_from(of).unwrap_or(0));
        Size { kind, rows, row_bytes }
    };
    let sizes: Vec<Size> = Kind::ALL.into_iter().map(of).collect();
    let left = sizes.iter().map(|of| of.rows).sum::<u64>().max(1);
    Ok(Counted { sizes, left })
}

/// Deletes the oldest rows of a kind up to a time. Returns the number of rows.
fn delete(connection: &Connection, kind: Kind, until: Millis, step: u64) -> Result<u64, Fault> {
    let (table, time, worth) = kind.place();
    if kind == Kind::Totals {
        let mut deleted = 0;
        for (span, _) in SPANS {
            if deleted < step {
                deleted += delete_totals(connection, span, until, step - deleted)?;
            }
        }
        return Ok(deleted);
    }
    let rows = connection.execute(
        &format!(
            "DELETE FROM {table} WHERE id IN \
             (SELECT id FROM {table} WHERE worth = ?1 AND {time} <= ?2 ORDER BY {time} LIMIT ?3)"
        ),
        params![worth, until, whole(step)],
    )?;
    Ok(rows as u64)
}

/// Deletes the oldest totals of a span. All rows with the same start go together.
fn delete_totals(connection: &Connection, span: i64, time: Millis, step: u64) -> Result<u64, Fault> {
    let last: Option<Millis> = connection
        .query_row(
            "SELECT max(start) FROM (SELECT start FROM totals WHERE span = ?1 AND start <= ?2 ORDER BY start LIMIT ?3)",
            params![span, time, whole(step)],
            |row| row.get(0),
        )
        .optional()?
        .flatten();
    let Some(last) = last else { return Ok(0) };
    let rows = connection.execute("DELETE FROM totals WHERE span = ?1 AND start <= ?2", params![span, last])?;
    Ok(rows as u64)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ratelimit_report::event::{Event, EventKind};
    use ratelimit_report::history::Outcome;

    use super::*;
    use crate::book::Book;
    use crate::record::Total;
    use crate::store::{Act, Retention, Store};

    const BYTES_MAX: u64 = 2_000_000;
    const KEEP: Duration = Duration::from_secs(20_000);

    /// A database with its book. One episode is open at a time; all others end at once.
    struct Kept {
        _directory: tempfile::TempDir,
        store: Store,
        book: Book,
        seconds: i64,
    }

    impl Kept {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let store = Store::open(&directory.path().join("history.db")).unwrap();
            Self { _directory: directory, store, book: Book::new(1), seconds: 1_767_225_600 }
        }

        fn event(&mut self, kind: EventKind, source: u32) {
            let time = Timestamp::from_second(self.seconds).unwrap();
            let mut event = Event::new(time, kind, String::new());
            event.until = (kind == EventKind::Ban).then_some(time);
            self.book.event(&event, Some(std::net::IpAddr::from(source.to_be_bytes()).into()));
        }

        /// Simulates a second of a flood: `sources` sources with a first refusal, and some records of every other
        /// kind.
        fn second(&mut self, sources: u32) {
            self.event(EventKind::Refused, 0);
            for source in 1..=sources {
                self.event(EventKind::Refused, source);
            }
            (1..=20).for_each(|source| self.event(EventKind::Ban, source));
            let time = self.seconds * 1_000;
            let act =
                |what| Act { time, what, source: None, rule: None, by: None, reason: None, detail: "x".repeat(99) };
            let acts: Vec<Act> = (0..40).map(|number| act(if number < 20 { "deny" } else { "charge" })).collect();
            let total = |rule: i64| Total {
                rule: rule.to_string(),
                reason: "over_limit".into(),
                outcome: Outcome::Dropped,
                packets: 5,
                bytes: 9,
            };
            let totals: Vec<_> = (0..20).map(|rule| (time, total(rule))).collect();
            self.seconds += 70;
            self.event(EventKind::Refused, 0);
            self.event(EventKind::Reset, 0);
            let rows = self.store.write(&mut self.book, &acts, &totals, &[]).unwrap();
            self.book.written();
            let of = Retention { keep: KEEP, bytes_max: BYTES_MAX };
            while self.store.retain(of, self.seconds * 1_000, rows).unwrap() {}
        }

        fn rows(&self) -> Vec<(Kind, u64)> {
            rows(self.store.sizes.counted.as_ref().unwrap())
        }
    }

    fn rows(of: &Counted) -> Vec<(Kind, u64)> {
        of.sizes.iter().map(|of| (of.kind, of.rows)).collect()
    }

    #[test]
    fn a_flood_at_the_limit_walks_the_database_no_oftener_than_rewriting_it() {
        let mut kept = Kept::new();
        while kept.store.sizes.walks == 0 {
            kept.second(2_000);
        }
        let there = kept.rows().iter().map(|(_, rows)| rows).sum::<u64>();
        kept.store.sizes.walks = 0;
        for _ in 0..100 {
            kept.second(2_000);
            assert!(kept.store.bytes().unwrap() <= BYTES_MAX);
        }
        let (walks, anew) = (kept.store.sizes.walks, 100 * 2_100 / there);
        println!("{walks} walks while {there} rows were written anew {anew} times");
        assert!(u64::from(walks) <= anew + 2, "{walks} walks, {there} rows written anew {anew} times");
    }

    #[test]
    fn reported_row_counts_match_the_database_for_every_kind() {
        let mut kept = Kept::new();
        for _ in 0..500 {
            kept.second(100);
            // This prevents a second count.
            kept.store.sizes.counted.iter_mut().for_each(|of| of.left = u64::MAX);
        }
        assert_eq!(kept.store.sizes.walks, 1);
        let told = kept.rows();
        assert_eq!(told, rows(&count(&kept.store.connection).unwrap()));
        assert!(told.iter().all(|(_, rows)| *rows > 0), "{told:?}");
    }
}
