//! The database file: making, checking and upgrading it, setting a broken one aside. Writes no history.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

/// What makes each version of the last one. Only ever appended to.
const MIGRATIONS: &[&str] = &[include_str!("schema/1.sql"), include_str!("schema/2.sql"), include_str!("schema/3.sql")];
/// The version that this program writes.
pub(crate) const VERSION: i64 = MIGRATIONS.len() as i64;

/// What each version has.
const TABLES: [&str; 4] = ["episodes", "acts", "totals", "losses"];

/// How long another writer, or a reader that holds the log, is waited for.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// Broken files that are kept; the oldest goes.
const SET_ASIDE_MAX: usize = 2;
/// What stands in their names behind the database's.
const SET_ASIDE: &str = ".corrupt-";
/// Who was blocked is for root alone.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Why a database is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// A newer program wrote it; it was not touched.
    #[error("it is of version {0}, which a newer program wrote, and this one writes {VERSION}; it is left as it is")]
    Newer(i64),
    /// Its bytes are not those that were written.
    #[error("it is corrupt: {0}")]
    Corrupt(String),
    /// There is no room.
    #[error("the disk is full")]
    Full,
    /// It may not be written.
    #[error("it cannot be written: {0}")]
    ReadOnly(String),
    /// Something else, which may pass.
    #[error("{0}")]
    Other(String),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        // The statements are constant: one that SQLite does not take is for other tables.
        if let rusqlite::Error::SqlInputError { msg, .. } = error {
            return Self::Corrupt(msg);
        }
        match error.sqlite_error_code() {
            // A value that cannot be what was written.
            None | Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Corrupt(error.to_string()),
            Some(ErrorCode::DiskFull) => Self::Full,
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => Self::ReadOnly(error.to_string()),
            Some(_) => Self::Other(error.to_string()),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        let is_one_of = |kinds: [io::ErrorKind; 2]| kinds.contains(&error.kind());
        if is_one_of([io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded]) {
            Self::Full
        } else if is_one_of([io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::PermissionDenied]) {
            Self::ReadOnly(error.to_string())
        } else {
            Self::Other(error.to_string())
        }
    }
}

/// The database at a path, made or upgraded where it must be.
pub(crate) fn open(path: &Path) -> Result<Connection, Fault> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)?;
    }
    OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path)?;
    let mut connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // A newer program's file is closed without a change.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let version = version(&connection)?;
    if !(0..VERSION + 1_000).contains(&version) {
        return Err(Fault::Corrupt(format!("no program wrote version {version}")));
    }
    if version > VERSION {
        return Err(Fault::Newer(version));
    }
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    check(&connection)?;
    // Before the first page is written; later it has no effect.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // What is erased is overwritten, by retention too: `forget` would not find it later.
    connection.pragma_update(None, "secure_delete", true)?;
    connection.pragma_update(None, "journal_size_limit", 1 << 22)?;
    // In KiB: the pages that a batch of a flood changes.
    connection.pragma_update(None, "cache_size", -16_384)?;
    migrate(&mut connection)?;
    Ok(connection)
}

/// A database's version, 0 of an empty file.
pub(crate) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Whether its pages and rows are whole. // 256 MB: about a second, on the history's own thread
fn check(connection: &Connection) -> Result<(), Fault> {
    let said: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if said == "ok" { Ok(()) } else { Err(Fault::Corrupt(said)) }
}

fn migrate(connection: &mut Connection) -> Result<(), Fault> {
    // Another daemon may do so at the same time.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let from = version(&transaction)?;
    for (version, migration) in (1..).zip(MIGRATIONS).skip_while(|(version, _)| *version <= from) {
        transaction.execute_batch(migration).map_err(of_tables)?;
        transaction.pragma_update(None, "user_version", version)?;
    }
    transaction.commit()?;
    TABLES
        .iter()
        .try_for_each(|table| connection.prepare(&format!("SELECT 1 FROM {table}")).map(drop))
        .map_err(of_tables)
}

/// Tables that are not those of the version that the file says.
fn of_tables(error: rusqlite::Error) -> Fault {
    match error.sqlite_error_code() {
        Some(ErrorCode::Unknown) => Fault::Corrupt(error.to_string()),
        _ => error.into(),
    }
}

/// Renames a broken database and its log to `history.db.corrupt-TIME`, and says how it is called now.
pub(crate) fn set_aside(path: &Path, now: Timestamp) -> io::Result<PathBuf> {
    let at = now.strftime("%Y%m%dT%H%M%SZ");
    let named = |number: u32| {
        let number = if number == 0 { String::new() } else { format!(".{number}") };
        beside(path, &format!("{SET_ASIDE}{at}{number}"))
    };
    let aside = (0..100).map(named).find(|aside| !aside.exists()).unwrap_or_else(|| named(0));
    fs::rename(path, &aside)?;
    // The log belongs to the broken file; a new database must not meet it.
    for end in ["-wal", "-shm"] {
        match fs::rename(beside(path, end), beside(&aside, end)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    let kept = all_set_aside(path)?;
    kept.iter().rev().skip(SET_ASIDE_MAX).try_for_each(|old| remove(old))?;
    Ok(aside)
}

/// Removes what was set aside, and says how many files that were.
pub(crate) fn remove_set_aside(path: &Path) -> io::Result<usize> {
    let all = all_set_aside(path)?;
    all.iter().try_for_each(|old| remove(old))?;
    Ok(all.len())
}

/// The databases that were set aside, oldest first.
fn all_set_aside(path: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return Ok(Vec::new()) };
    let begin = format!("{}{SET_ASIDE}", name.to_string_lossy());
    let mut found: Vec<PathBuf> = fs::read_dir(directory)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(&begin) && !name.ends_with("-wal") && !name.ends_with("-shm"))
        .map(|name| directory.join(name))
        .collect();
    found.sort_unstable();
    Ok(found)
}

fn remove(database: &Path) -> io::Result<()> {
    for end in ["-wal", "-shm", ""] {
        match fs::remove_file(beside(database, end)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}
