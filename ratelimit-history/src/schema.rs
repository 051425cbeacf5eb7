//! The database file: creation, check and upgrade, and setting a broken one aside. Writes no history.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

/// First schema version that is released.
const FIRST: i64 = 3;
/// Migrations, each from the previous version to the next. The first one makes the tables of version [`FIRST`]. New ones
/// are only appended.
const MIGRATIONS: &[&str] = &[include_str!("schema/3.sql")];
/// Schema version that this program writes.
pub(crate) const VERSION: i64 = FIRST - 1 + MIGRATIONS.len() as i64;

/// Tables that a migrated database must have.
const TABLES: [&str; 4] = ["episodes", "acts", "totals", "losses"];

/// Maximum wait for another writer, or for a reader that holds the log.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of broken files that are kept. The oldest is removed first.
const SET_ASIDE_MAX: usize = 2;
/// Part of a broken file's name after the database's name.
const SET_ASIDE: &str = ".corrupt-";
/// Only root may see who was blocked.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Reason why a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// A newer program wrote the database, which was not changed.
    #[error("it is of version {0}, which a newer program wrote, and this one writes {VERSION}; it is not changed")]
    Newer(i64),
    /// The database is damaged.
    #[error("it is corrupt: {0}")]
    Corrupt(String),
    /// The disk is full.
    #[error("the disk is full")]
    Full,
    /// The database must not be written.
    #[error("it cannot be written: {0}")]
    ReadOnly(String),
    /// Another error, which may be temporary.
    #[error("{0}")]
    Other(String),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        // The statements are constant, so an SQL error means that the tables are wrong.
        if let rusqlite::Error::SqlInputError { msg, .. } = error {
            return Self::Corrupt(msg);
        }
        match error.sqlite_error_code() {
            // No error code: a stored value has the wrong type or range.
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

/// Opens the database at a path. Creates or upgrades it if necessary.
pub(crate) fn open(path: &Path) -> Result<Connection, Fault> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)?;
    }
    OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path)?;
    let mut connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // This leaves a newer program's file unchanged on close.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let version = version(&connection)?;
    if version != 0 && !(FIRST..VERSION + 1_000).contains(&version) {
        return Err(Fault::Corrupt(format!("no released program wrote version {version}")));
    }
    if version > VERSION {
        return Err(Fault::Newer(version));
    }
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    check(&connection)?;
    // The setting has an effect only before the first page is written.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // Erased data is overwritten, even by retention, because `forget` could not find it later.
    connection.pragma_update(None, "secure_delete", true)?;
    connection.pragma_update(None, "journal_size_limit", 1 << 22)?;
    // The unit is KiB. This is enough for the pages that one batch of a flood changes.
    connection.pragma_update(None, "cache_size", -16_384)?;
    migrate(&mut connection)?;
    Ok(connection)
}

/// Returns the database's version, 0 for an empty file.
pub(crate) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Checks that pages and rows are intact. // 256 MB: about a second, on the history's own thread
fn check(connection: &Connection) -> Result<(), Fault> {
    let said: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if said == "ok" { Ok(()) } else { Err(Fault::Corrupt(said)) }
}

fn migrate(connection: &mut Connection) -> Result<(), Fault> {
    // Another daemon may migrate at the same time.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let from = version(&transaction)?;
    for (version, migration) in (FIRST..).zip(MIGRATIONS).skip_while(|(version, _)| *version <= from) {
        transaction.execute_batch(migration).map_err(of_tables)?;
        transaction.pragma_update(None, "user_version", version)?;
    }
    transaction.commit()?;
    TABLES
        .iter()
        .try_for_each(|table| connection.prepare(&format!("SELECT 1 FROM {table}")).map(drop))
        .map_err(of_tables)
}

/// Converts an SQL error that shows tables of another version to [`Fault::Corrupt`].
fn of_tables(error: rusqlite::Error) -> Fault {
    match error.sqlite_error_code() {
        Some(ErrorCode::Unknown) => Fault::Corrupt(error.to_string()),
        _ => error.into(),
    }
}

/// Renames a broken database and its log to `history.db.corrupt-TIME`. Returns the new path.
pub(crate) fn set_aside(path: &Path, now: Timestamp) -> io::Result<PathBuf> {
    let at = now.strftime("%Y%m%dT%H%M%SZ");
    let named = |number: u32| {
        let number = if number == 0 { String::new() } else { format!(".{number}") };
        beside(path, &format!("{SET_ASIDE}{at}{number}"))
    };
    let aside = (0..100).map(named).find(|aside| !aside.exists()).unwrap_or_else(|| named(0));
    fs::rename(path, &aside)?;
    // The log belongs to the broken file, and must not be applied to a new database.
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

/// Removes all broken files. Returns their number.
pub(crate) fn remove_set_aside(path: &Path) -> io::Result<usize> {
    let all = all_set_aside(path)?;
    all.iter().try_for_each(|old| remove(old))?;
    Ok(all.len())
}

/// Returns the broken databases, oldest first.
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
