//! Writing of the database: batches in one transaction, retention, and erasing a source. Independent of queue and
//! clock.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use ratelimit_crash::{Point, reach};
use ratelimit_report::history::Outcome;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, Row, Statement, params};

use crate::book::{Book, Episode, Key, Millis};
use crate::in_force::EndCause;
use crate::losses::{self, Lost};
use crate::prefix;
use crate::record::Total;
use crate::retain::{self, Sizes};
use crate::schema::{self, Fault};

/// Spans of totals in seconds, with the minimum time for which each is kept. Minutes are never kept longer.
pub(crate) const SPANS: [(i64, Duration); 3] = [
    (60, Duration::from_secs(2 * 86_400)),
    (3_600, Duration::from_secs(31 * 86_400)),
    (86_400, Duration::from_secs(731 * 86_400)),
];

/// Minimum limit on the rows that one retention step deletes. Large batches raise the limit.
const STEP_ROWS: u64 = 2_000;
/// Maximum number of free pages that one step releases. // 4096 x 4 KB = 17 MB
const STEP_PAGES: i64 = 4_096;

/// An act in the form in which it is written.
pub(crate) struct Act {
    pub(crate) time: Millis,
    pub(crate) what: &'static str,
    pub(crate) source: Option<IpNet>,
    pub(crate) rule: Option<String>,
    pub(crate) by: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) detail: String,
}

/// Maximum age and size of the history.
#[derive(Clone, Copy)]
pub(crate) struct Retention {
    pub(crate) keep: Duration,
    pub(crate) bytes_max: u64,
}

/// An open database that is written.
pub(crate) struct Store {
    pub(crate) connection: Connection,
    pub(crate) sizes: Sizes,
    /// Set while erased data remains in the log, because a reader holds it.
    is_log_due: bool,
}

/// Data that an earlier daemon left in the database.
pub(crate) struct Left {
    /// Episodes without an end.
    pub(crate) open: Vec<(Key, Episode)>,
    /// Id after the last row.
    pub(crate) next_id: i64,
}

impl Store {
    /// Opens or creates the database.
    pub(crate) fn open(path: &Path) -> Result<Self, Fault> {
        Ok(Self { connection: schema::open(path)?, sizes: Sizes::default(), is_log_due: false })
    }

    /// Returns the open episodes of an earlier daemon, and the next free id.
    pub(crate) fn left(&self, book: &mut Book) -> Result<Left, Fault> {
        let next_id =
            self.connection.query_row("SELECT coalesce(max(id), 0) + 1 FROM episodes", [], |row| row.get(0))?;
        let mut statement = self.connection.prepare(
            "SELECT id, source, rule, \"limit\", reason, would, began, seen, packets, bytes, peak, window, until FROM episodes \
             WHERE ended IS NULL",
        )?;
        let mut rows = statement.query([])?;
        let mut open = Vec::new();
        while let Some(row) = rows.next()? {
            open.extend(episode(row, |name| book.name(name))?);
        }
        Ok(Left { open, next_id })
    }

    /// Writes a batch in one transaction and returns the number of rows. If a second writer has used an episode's row
    /// id, the episode gets a new one.
    pub(crate) fn write(
        &mut self,
        book: &mut Book,
        acts: &[Act],
        totals: &[(Millis, Total)],
        lost: &[Lost],
    ) -> Result<u64, Fault> {
        let Self { connection, sizes, .. } = self;
        let transaction = connection.transaction()?;
        reach(Point::HistoryBegun);
        let (mut statement, mut rows) = (transaction.prepare_cached(WRITE_EPISODE)?, 0);
        for (key, episode) in book.unwritten() {
            let worth = loop {
                if let Some(worth) = write_episode(&mut statement, key, episode)? {
                    break worth;
                }
                let last = "SELECT max(id) FROM episodes";
                episode.id = 1 + transaction.query_row(last, [], |row| row.get::<_, i64>(0))?;
            };
            worth.into_iter().for_each(|worth| sizes.written("episodes", worth, 1));
            rows += 1;
        }
        statement = transaction.prepare_cached(WRITE_ACT)?;
        for act in acts {
            sizes.written("acts", write_act(&mut statement, act)?, 1);
        }
        statement = transaction.prepare_cached(WRITE_TOTAL)?;
        for (at, total) in totals {
            sizes.written("totals", 0, write_total(&mut statement, *at, total)?);
        }
        drop(statement);
        losses::write(&transaction, lost)?;
        let all = rows + (acts.len() + totals.len() + lost.len()) as u64;
        if all > 0 {
            reach(Point::HistoryWritten);
        }
        transaction.commit()?;
        if all > 0 {
            reach(Point::HistoryCommitted);
        }
        Ok(all)
    }

    /// Runs one step of retention and returns true if another is due. `rows` is the number written since the last
    /// step, which deletion must keep up with.
    pub(crate) fn retain(&mut self, of: Retention, now: Millis, rows: u64) -> Result<bool, Fault> {
        let step = STEP_ROWS.max(rows.saturating_mul(2));
        let Self { connection, sizes, .. } = self;
        let transaction = connection.transaction()?;
        let mut deleted = retain::by_age(&transaction, sizes, of.keep, now, step)?;
        deleted += retain::by_size(&transaction, sizes, bytes(&transaction)?, of.bytes_max, step)?;
        transaction.commit()?;
        let free: i64 = self.connection.pragma_query_value(None, "freelist_count", |row| row.get(0))?;
        if free > 0 {
            // The statement frees one page for each row that is read from it.
            let mut statement = self.connection.prepare(&format!("PRAGMA incremental_vacuum({STEP_PAGES})"))?;
            let mut freed = statement.query([])?;
            while freed.next()?.is_some() {}
        }
        if self.is_log_due {
            self.truncate_log()?;
        }
        Ok(deleted >= step || free > STEP_PAGES)
    }

    /// Releases SQLite's cached pages and statements.
    pub(crate) fn shrink(&self) -> Result<(), Fault> {
        Ok(self.connection.execute_batch("PRAGMA shrink_memory")?)
    }

    /// Returns the bytes in use in the file.
    pub(crate) fn bytes(&self) -> Result<u64, Fault> {
        bytes(&self.connection)
    }

    /// Erases a prefix from every table and from the log, and returns the number of rows. Episodes of prefixes around
    /// it go too, because they may concern this prefix.
    pub(crate) fn forget(&mut self, of: IpNet) -> Result<u64, Fault> {
        let (first, last) = prefix::within(of);
        let transaction = self.connection.transaction()?;
        let mut rows = transaction.execute("DELETE FROM acts WHERE source BETWEEN ?1 AND ?2", params![first, last])?;
        rows += transaction.execute("DELETE FROM episodes WHERE source BETWEEN ?1 AND ?2", params![first, last])?;
        for source in prefix::around(of) {
            rows += transaction.execute("DELETE FROM episodes WHERE source = ?1", [source])?;
        }
        transaction.commit()?;
        self.sizes.forget();
        self.is_log_due = true;
        self.truncate_log()?;
        Ok(rows as u64)
    }

    /// Empties the log, unless a reader holds it.
    fn truncate_log(&mut self) -> Result<(), Fault> {
        let is_busy: bool = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        self.is_log_due = is_busy;
        Ok(())
    }
}

fn bytes(connection: &Connection) -> Result<u64, Fault> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (pages, free, size) = (pragma("page_count")?, pragma("freelist_count")?, pragma("page_size")?);
    Ok((pages - free).saturating_mul(size).try_into().unwrap_or(0))
}

const WRITE_EPISODE: &str = "
    INSERT INTO episodes (id, source, rule, \"limit\", reason, would, began, seen, ended, packets, bytes, peak, window, until, cause)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
    ON CONFLICT (id) DO UPDATE SET reason = ?5, seen = ?8, ended = ?9, packets = ?10, bytes = ?11, peak = ?12, until = ?14, cause = ?15
    WHERE source = ?2 AND rule = ?3 AND \"limit\" = ?4 AND would = ?6 AND began = ?7
    RETURNING worth";

const WRITE_ACT: &str = "INSERT INTO acts (time, what, source, rule, by, reason, detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) RETURNING worth";

/// Returns 1 for a new row.
const WRITE_TOTAL: &str = "
    INSERT INTO totals (span, start, rule, reason, outcome, packets, bytes) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
    ON CONFLICT (span, start, rule, reason, outcome) DO UPDATE
    SET packets = min(packets + ?6, 9223372036854775807), bytes = min(bytes + ?7, 9223372036854775807)
    RETURNING packets = ?6";

/// Writes an episode and returns its worth, which is None while it is open. The outer None means that the row belongs
/// to another episode.
fn write_episode(statement: &mut Statement<'_>, key: &Key, of: &Episode) -> rusqlite::Result<Option<Option<i64>>> {
    let values = params![
        of.id,
        prefix::key(key.source),
        &*key.rule,
        &*key.limit,
        &*of.reason,
        key.would,
        of.began,
        of.seen,
        of.ended,
        whole(of.packets),
        whole(of.bytes),
        whole(of.peak),
        of.window,
        of.until,
        of.cause.map(EndCause::label),
    ];
    statement.query_row(values, |row| row.get(0)).optional()
}

/// Writes an act and returns its worth.
fn write_act(statement: &mut Statement<'_>, of: &Act) -> rusqlite::Result<i64> {
    let source = of.source.map(prefix::key);
    let values = params![of.time, of.what, source, of.rule, of.by, of.reason, of.detail];
    statement.query_row(values, |row| row.get(0))
}

/// Adds a total to its minute, hour and day, so that no later aggregation is needed. Returns the number of new rows.
fn write_total(statement: &mut Statement<'_>, at: Millis, of: &Total) -> rusqlite::Result<u64> {
    let mut added = 0;
    for (span, _) in SPANS {
        let (start, outcome) = (start_of(at, span), outcome_code(of.outcome));
        let values = params![span, start, of.rule, of.reason, outcome, whole(of.packets), whole(of.bytes)];
        added += u64::from(statement.query_row(values, |row| row.get::<_, bool>(0))?);
    }
    Ok(added)
}

/// Returns the start of the span that contains a time.
pub(crate) const fn start_of(at: Millis, span_seconds: i64) -> Millis {
    at - at.rem_euclid(span_seconds * 1_000)
}

/// Returns the code of an outcome in the database.
pub(crate) const fn outcome_code(outcome: Outcome) -> i64 {
    match outcome {
        Outcome::Admitted => 0,
        Outcome::Dropped => 1,
        Outcome::Would => 2,
    }
}

/// Converts a count to SQLite's integer. Values above its maximum saturate.
pub(crate) fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Reads a count from a row. Negative values become 0.
pub(crate) fn count(row: &Row<'_>, name: &str) -> rusqlite::Result<u64> {
    row.get(name).map(|count: i64| count.try_into().unwrap_or(0))
}

/// Reads an open episode from a row. None if its source is invalid.
fn episode(row: &Row<'_>, mut name: impl FnMut(&str) -> Arc<str>) -> rusqlite::Result<Option<(Key, Episode)>> {
    let Value::Blob(source) = row.get("source")? else { return Ok(None) };
    let Some(source) = prefix::of_key(&source) else { return Ok(None) };
    let mut text = |column: &str| row.get(column).map(|text: String| name(&text));
    let key = Key { source, rule: text("rule")?, limit: text("limit")?, would: row.get("would")? };
    let episode = Episode {
        id: row.get("id")?,
        reason: text("reason")?,
        began: row.get("began")?,
        seen: row.get("seen")?,
        ended: None,
        cause: None,
        packets: count(row, "packets")?,
        bytes: count(row, "bytes")?,
        peak: count(row, "peak")?,
        window: row.get("window")?,
        until: row.get("until")?,
        is_new: false,
    };
    Ok(Some((key, episode)))
}
