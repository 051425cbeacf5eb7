//! What goes where history is too old or too large: first what there is most of and what says least. Each kind has a share of the size that no other kind takes from it,
//! so that a flood of one kind pushes out its own alone. Knows no clock.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::book::Millis;
use crate::schema::Fault;
use crate::store::{SPANS, whole};

/// Below what size it stops, in hundredths of the most: else each batch would begin it again.
const SIZE_LOW: u64 = 95;

/// What there is, in the order in which it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Totals, minutes before hours before days.
    Totals,
    /// What applications charged.
    Charges,
    /// Episodes of less than a minute, without a ban.
    Brief,
    /// Longer ones, without a ban.
    Long,
    /// Episodes with a ban.
    Bans,
    /// What a user or the daemon did.
    Acts,
}

/// How much there is of a kind.
struct Size {
    kind: Kind,
    rows: u64,
    bytes: u64,
}

impl Kind {
    const ALL: [Self; 6] = [Self::Totals, Self::Charges, Self::Brief, Self::Long, Self::Bans, Self::Acts];

    /// What no other kind takes from it, in hundredths of the size.
    const fn share(self) -> u64 {
        match self {
            Self::Totals | Self::Brief | Self::Long => 15,
            Self::Charges => 5,
            Self::Bans => 30,
            Self::Acts => 20,
        }
    }

    /// Its table, the column by which it is old, and its worth there.
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

/// Deletes what ended too long ago, at most some `step` rows; says how many.
pub(crate) fn by_age(connection: &Connection, keep: Duration, now: Millis, step: i64) -> Result<i64, Fault> {
    let before = |keep: Duration| now.saturating_sub(Millis::try_from(keep.as_millis()).unwrap_or(Millis::MAX));
    let mut deleted = 0;
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Totals) {
        deleted += delete(connection, kind, before(keep), step)?;
    }
    for (span, least) in SPANS {
        // Minutes are for a day's chart, however long all else is kept.
        let keep = if span == 60 { least } else { least.max(keep) };
        deleted += delete_totals(connection, span, before(keep), step)?;
    }
    Ok(deleted)
}

/// Deletes what is too much of a database of so many bytes, at most some `step` rows; says how many. Of each kind the
/// oldest goes, down to its share.
pub(crate) fn by_size(connection: &Connection, bytes: u64, bytes_max: u64, step: i64) -> Result<i64, Fault> {
    if bytes <= bytes_max {
        return Ok(0);
    }
    let sizes = sizes(connection)?;
    let low = bytes_max / 100 * SIZE_LOW;
    // What is open stays, and is nobody's share.
    let fixed = bytes.saturating_sub(sizes.iter().map(|of| of.bytes).sum());
    let shared = low.saturating_sub(fixed);
    let (mut excess, mut deleted) = (bytes.saturating_sub(low), 0);
    for Size { kind, rows, bytes } in sizes {
        let over = bytes.saturating_sub(shared / 100 * kind.share()).min(excess);
        let part = u128::from(rows) * u128::from(over);
        let part = i64::try_from(part.div_ceil(u128::from(bytes.max(1)))).unwrap_or(i64::MAX).min(step - deleted);
        if part > 0 {
            deleted += delete(connection, kind, Millis::MAX, part)?;
        }
        excess -= over;
    }
    Ok(deleted)
}

/// Of each kind, by the pages of its table and of that table's indexes.
fn sizes(connection: &Connection) -> Result<Vec<Size>, Fault> {
    let mut pages = connection.prepare(
        "SELECT s.tbl_name, sum(d.pgsize) FROM dbstat AS d JOIN sqlite_schema AS s ON s.name = d.name WHERE d.aggregate = TRUE GROUP BY s.tbl_name",
    )?;
    let tables = pages.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let tables = tables.collect::<Result<Vec<(String, i64)>, _>>()?;
    let bytes_of = |name: &str| tables.iter().find(|(table, _)| table == name).map_or(0, |(_, bytes)| *bytes);
    Kind::ALL.into_iter().map(|kind| size(connection, kind, bytes_of(kind.place().0))).collect()
}

fn size(connection: &Connection, kind: Kind, table_bytes: i64) -> Result<Size, Fault> {
    let (table, _, worth) = kind.place();
    let count = |condition: &str| {
        connection.query_row(&format!("SELECT count(*) FROM {table} WHERE {condition}"), [], |row| row.get::<_, i64>(0))
    };
    let all = count("TRUE")?;
    let rows = if kind == Kind::Totals { all } else { count(&format!("worth = {worth}"))? };
    let [table_bytes, all, rows] = [table_bytes, all, rows].map(|of| u64::try_from(of).unwrap_or(0));
    let bytes = u128::from(table_bytes) * u128::from(rows) / u128::from(all.max(1));
    Ok(Size { kind, rows, bytes: u64::try_from(bytes).unwrap_or(u64::MAX) })
}

/// Deletes the oldest of a kind up to a time; says how many rows.
fn delete(connection: &Connection, kind: Kind, until: Millis, step: i64) -> Result<i64, Fault> {
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
        params![worth, until, step],
    )?;
    Ok(whole(rows as u64))
}

/// Deletes the totals of whole points in time, oldest first.
fn delete_totals(connection: &Connection, span: i64, time: Millis, step: i64) -> Result<i64, Fault> {
    let last: Option<Millis> = connection
        .query_row(
            "SELECT max(start) FROM (SELECT start FROM totals WHERE span = ?1 AND start <= ?2 ORDER BY start LIMIT ?3)",
            params![span, time, step],
            |row| row.get(0),
        )
        .optional()?
        .flatten();
    let Some(last) = last else { return Ok(0) };
    let rows = connection.execute("DELETE FROM totals WHERE span = ?1 AND start <= ?2", params![span, last])?;
    Ok(whole(rows as u64))
}
