//! Queries of the database, on a separate connection that cannot write.

use std::path::Path;

use ipnet::IpNet;
use jiff::Timestamp;
use ratelimit_report::history::{
    Act, Episode, HistoryReport, Line, Loss, Outcome, SeriesReport, WorstReport, WorstSource,
};
use ratelimit_report::snapshot::{SCHEMA, source_key};
use rusqlite::{Connection, OpenFlags, Row, named_params, params};

use crate::book::Millis;
use crate::prefix;
use crate::schema::{self, BUSY_TIMEOUT, VERSION};
use crate::store::{count, outcome_code, start_of, whole};

/// Default maximum number of episodes, acts or sources in an answer.
const ROWS_DEFAULT: usize = 1_000;
/// Default period of [`Reader::worst`], in milliseconds.
const DAY: Millis = 86_400_000;

/// Conditions of a query. Unset fields do not restrict the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Excludes records that ended before this time.
    pub since: Option<Timestamp>,
    /// Excludes records that began after this time.
    pub until: Option<Timestamp>,
    /// Name of the rule.
    pub rule: Option<String>,
    /// Reason: the label of an episode's reason, or the words of an act's.
    pub reason: Option<String>,
    /// Maximum number of episodes, of acts or of sources; 1000 if unset.
    pub rows: Option<usize>,
}

/// A period that ends now, divided into steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// 5 minutes, in steps of 1 minute.
    FiveMinutes,
    /// 1 hour, in steps of 1 minute.
    Hour,
    /// 24 hours, in steps of 15 minutes.
    Day,
    /// 30 days, in steps of 6 hours.
    Month,
}

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// Nothing was written yet, or history is off.
    #[error("there is no history yet: {0} does not exist")]
    Missing(String),
    /// Another version of the program wrote the database.
    #[error("the history has version {0}, and this program reads version {VERSION}")]
    Version(i64),
    /// The database cannot be read.
    #[error("read the history: {0}")]
    Database(#[from] rusqlite::Error),
}

/// A read-only connection to the database.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
}

impl Reader {
    /// Opens the database at a path.
    pub fn open(path: &Path) -> Result<Self, QueryError> {
        if !path.exists() {
            return Err(QueryError::Missing(path.display().to_string()));
        }
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        match schema::version(&connection)? {
            VERSION => Ok(Self { connection }),
            0 => Err(QueryError::Missing(path.display().to_string())),
            other => Err(QueryError::Version(other)),
        }
    }

    /// Returns all episodes and acts of an address or prefix, newest first. Sources within the prefix and prefixes
    /// around it are included.
    pub fn history(&self, of: IpNet, filter: &Filter) -> Result<HistoryReport, QueryError> {
        let of = of.trunc();
        let (episodes, more_episodes) = self.episodes(of, filter)?;
        let (acts, more_acts) = self.acts(of, filter)?;
        let more = more_episodes || more_acts;
        let millis = |time: Option<Timestamp>| time.map(Timestamp::as_millisecond);
        let losses = self.losses(millis(filter.since), millis(filter.until))?;
        let source = prefix::text(of);
        Ok(HistoryReport { schema: SCHEMA, source, episodes, acts, more, more_episodes, more_acts, losses })
    }

    /// Returns the sources with the most refused packets in a period. The default is the day before the period's end.
    pub fn worst(&self, filter: &Filter, now: Timestamp) -> Result<WorstReport, QueryError> {
        let until = filter.until.unwrap_or(now).as_millisecond();
        let since = filter.since.map_or(until - DAY, Timestamp::as_millisecond);
        let rows = filter.rows.unwrap_or(ROWS_DEFAULT);
        let matching = "FROM episodes WHERE (ended >= :since OR ended IS NULL) AND began <= :until \
                        AND (:rule IS NULL OR rule = :rule) AND (:reason IS NULL OR reason = :reason)";
        let parameters =
            named_params! { ":since": since, ":until": until, ":rule": filter.rule, ":reason": filter.reason };
        let sources: i64 = self.connection.query_row(
            &format!("SELECT count(*) FROM (SELECT 1 {matching} GROUP BY would, source)"),
            parameters,
            |row| row.get(0),
        )?;
        let mut statement = self.connection.prepare(&format!(
            "SELECT source, would, count(*) AS episodes, group_concat(DISTINCT rule) AS rules, group_concat(DISTINCT reason) AS reasons, \
             min(began) AS began, CASE WHEN count(*) = count(ended) THEN max(ended) END AS ended, \
             min(total(packets), 9e18) AS packets, min(total(bytes), 9e18) AS bytes \
             {matching} GROUP BY would, source ORDER BY would, packets DESC, episodes DESC, source LIMIT {rows}"
        ))?;
        let mut sources_listed = statement.query_map(parameters, worst_source)?.collect::<Result<Vec<_>, _>>()?;
        // The database compares texts, in which 192.0.2.10 precedes 192.0.2.9.
        sources_listed.sort_by(|a, b| {
            let key = |of: &WorstSource, packets, episodes| (of.would, packets, episodes);
            let order = key(a, b.packets, b.episodes).cmp(&key(b, a.packets, a.episodes));
            order.then_with(|| source_key(&a.source).cmp(&source_key(&b.source)))
        });
        let omitted = u64::try_from(sources).unwrap_or(0).saturating_sub(sources_listed.len() as u64);
        let losses = self.losses(Some(since), Some(until))?;
        let (since, until) = (time(since), time(until));
        Ok(WorstReport { schema: SCHEMA, since, until, sources: sources_listed, omitted, losses })
    }

    /// Returns the periods of lost events that overlap a period, newest first. Losses belong to no source.
    fn losses(&self, since: Option<Millis>, until: Option<Millis>) -> Result<Vec<Loss>, QueryError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT began, ended, events FROM losses WHERE (?1 IS NULL OR ended >= ?1) AND (?2 IS NULL OR began <= ?2) \
             ORDER BY began DESC",
        )?;
        let loss = |row: &Row<'_>| {
            Ok(Loss { began: time(row.get("began")?), ended: time(row.get("ended")?), events: count(row, "events")? })
        };
        Ok(statement.query_map(params![since, until], loss)?.collect::<Result<Vec<_>, _>>()?)
    }

    /// Returns traffic by rule, reason and outcome over a period. The period ends with the step that contains `now`.
    pub fn series(&self, period: Period, now: Timestamp) -> Result<SeriesReport, QueryError> {
        let (span, step, steps) = period.steps();
        let until = start_of(now.as_millisecond(), step) + step * 1_000;
        let since = until - step * 1_000 * whole(steps as u64);
        let mut statement = self.connection.prepare_cached(
            "SELECT rule, reason, outcome, (start - ?2) / ?4 AS step, min(total(packets), 9e18) AS packets, min(total(bytes), 9e18) AS bytes \
             FROM totals WHERE span = ?1 AND start >= ?2 AND start < ?3 GROUP BY rule, reason, outcome, step \
             ORDER BY rule, reason, outcome, step",
        )?;
        let mut rows = statement.query(params![span, since, until, step * 1_000])?;
        let mut lines: Vec<Line> = Vec::new();
        let mut is_recorded = vec![false; steps];
        while let Some(row) = rows.next()? {
            let (rule, reason, code): (String, String, i64) =
                (row.get("rule")?, row.get("reason")?, row.get("outcome")?);
            let Some(outcome) = Outcome::ALL.into_iter().find(|of| outcome_code(*of) == code) else { continue };
            let at = usize::try_from(row.get::<_, i64>("step")?).unwrap_or(usize::MAX);
            if lines.last().is_none_or(|last| (&last.rule, &last.reason, last.outcome) != (&rule, &reason, outcome)) {
                lines.push(Line { rule, reason, outcome, packets: vec![None; steps], bytes: vec![None; steps] });
            }
            if let (Some(line), Some(known)) = (lines.last_mut(), is_recorded.get_mut(at)) {
                *known = true;
                line.packets[at] = Some(sum(row, "packets")?);
                line.bytes[at] = Some(sum(row, "bytes")?);
            }
        }
        for line in &mut lines {
            for of in [&mut line.packets, &mut line.bytes] {
                of.iter_mut()
                    .zip(&is_recorded)
                    .filter(|(_, known)| **known)
                    .for_each(|(of, _)| _ = of.get_or_insert(0));
            }
        }
        let step_seconds = u64::try_from(step).unwrap_or(0);
        Ok(SeriesReport { schema: SCHEMA, since: time(since), until: time(until), step_seconds, lines })
    }

    fn episodes(&self, of: IpNet, filter: &Filter) -> Result<(Vec<Episode>, bool), QueryError> {
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT * FROM episodes WHERE {OF_SOURCE} \
             AND (?3 IS NULL OR ended >= ?3 OR ended IS NULL) AND (?4 IS NULL OR began <= ?4) \
             AND (?5 IS NULL OR rule = ?5) AND (?6 IS NULL OR reason = ?6) ORDER BY began DESC, id DESC LIMIT ?7",
            OF_SOURCE = of_source(of),
        ))?;
        self.page(&mut statement, of, filter, |row| {
            Ok(Episode {
                source: source(row)?.unwrap_or_default(),
                rule: row.get("rule")?,
                limit: row.get("limit")?,
                reason: row.get("reason")?,
                began: time(row.get("began")?),
                ended: row.get::<_, Option<Millis>>("ended")?.map(time),
                packets: count(row, "packets")?,
                bytes: count(row, "bytes")?,
                peak: count(row, "peak")?,
                would: row.get("would")?,
                cause: row.get("cause")?,
            })
        })
    }

    fn acts(&self, of: IpNet, filter: &Filter) -> Result<(Vec<Act>, bool), QueryError> {
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT * FROM acts WHERE {OF_SOURCE} AND (?3 IS NULL OR time >= ?3) AND (?4 IS NULL OR time <= ?4) \
             AND (?5 IS NULL OR rule = ?5) AND (?6 IS NULL OR reason = ?6) ORDER BY time DESC, id DESC LIMIT ?7",
            OF_SOURCE = of_source(of),
        ))?;
        self.page(&mut statement, of, filter, |row| {
            Ok(Act {
                time: time(row.get("time")?),
                what: row.get("what")?,
                source: source(row)?,
                by: row.get("by")?,
                reason: row.get("reason")?,
                detail: row.get("detail")?,
            })
        })
    }

    /// Returns the first rows, and whether there are more.
    fn page<T>(
        &self,
        statement: &mut rusqlite::Statement<'_>,
        of: IpNet,
        filter: &Filter,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<(Vec<T>, bool), QueryError> {
        let (first, last) = prefix::within(of);
        let millis = |time: Option<Timestamp>| time.map(Timestamp::as_millisecond);
        let rows_max = filter.rows.unwrap_or(ROWS_DEFAULT);
        let limit = whole(rows_max as u64).saturating_add(1);
        let parameters =
            params![first, last, millis(filter.since), millis(filter.until), filter.rule, filter.reason, limit];
        let mut rows = statement.query_map(parameters, read)?.collect::<Result<Vec<T>, _>>()?;
        let is_more = rows.len() > rows_max;
        rows.truncate(rows_max);
        Ok((rows, is_more))
    }
}

impl Period {
    /// All periods, shortest first.
    pub const ALL: [Self; 4] = [Self::FiveMinutes, Self::Hour, Self::Day, Self::Month];

    /// Returns the period as it is written: `5m`, `1h`, `24h`, `30d`.
    pub const fn label(self) -> &'static str {
        match self {
            Self::FiveMinutes => "5m",
            Self::Hour => "1h",
            Self::Day => "24h",
            Self::Month => "30d",
        }
    }

    /// Returns the span of the totals to read and the length of a step, in seconds, and the number of steps.
    const fn steps(self) -> (i64, i64, usize) {
        match self {
            Self::FiveMinutes => (60, 60, 5),
            Self::Hour => (60, 60, 60),
            Self::Day => (60, 900, 96),
            Self::Month => (3_600, 21_600, 120),
        }
    }
}

/// Returns an SQL condition for sources within a prefix, given by the parameters 1 and 2, or around it.
fn of_source(of: IpNet) -> String {
    let hex = |key: &Vec<u8>| format!("x'{}'", key.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let around = prefix::around(of).iter().map(hex).collect::<Vec<_>>().join(", ");
    format!("(source BETWEEN ?1 AND ?2 OR source IN ({around}))")
}

fn worst_source(row: &Row<'_>) -> rusqlite::Result<WorstSource> {
    let words = |name: &str| {
        let mut words: Vec<String> = row.get::<_, String>(name)?.split(',').map(str::to_owned).collect();
        words.sort_unstable();
        Ok::<_, rusqlite::Error>(words)
    };
    Ok(WorstSource {
        source: source(row)?.unwrap_or_default(),
        episodes: count(row, "episodes")?,
        rules: words("rules")?,
        reasons: words("reasons")?,
        began: time(row.get("began")?),
        ended: row.get::<_, Option<Millis>>("ended")?.map(time),
        packets: sum(row, "packets")?,
        bytes: sum(row, "bytes")?,
        would: row.get("would")?,
    })
}

fn source(row: &Row<'_>) -> rusqlite::Result<Option<String>> {
    let key: Option<Vec<u8>> = row.get("source")?;
    Ok(key.and_then(|key| prefix::of_key(&key)).map(prefix::text))
}

/// Reads a sum. SQLite computes it in floats, because an integer sum fails on overflow.
fn sum(row: &Row<'_>, name: &str) -> rusqlite::Result<u64> {
    let sum: f64 = row.get(name)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and no sum is below 0")]
    Ok(sum as u64)
}

/// Converts a time of the database. Times out of range become 1970.
fn time(at: Millis) -> Timestamp {
    Timestamp::from_millisecond(at).unwrap_or(Timestamp::UNIX_EPOCH)
}
