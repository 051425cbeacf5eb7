//! Main loop: pulls decisions and updates the list file. The file is at most one interval out of date. Expired
//! decisions are removed even while the local API is away.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::HeaderValue;
use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use crate::book::{Book, Denied, Pull};
use crate::client::{Api, BaseError, ClientError};
use crate::list;
use crate::report::{self, Machine, Reporter};

/// Maximum size in bytes of a file with a key or password.
const SECRET_BYTES_MAX: u64 = 4_096;

/// Settings of `ratelimitd crowdsec`.
#[derive(Clone, Debug)]
pub struct Options {
    /// URL of the local API.
    pub url: String,
    /// File with the bouncer's key.
    pub key_file: PathBuf,
    /// Certificates that replace the system's trusted ones.
    pub ca_file: Option<PathBuf>,
    /// List file to write.
    pub out: PathBuf,
    /// Interval between two pulls.
    pub interval: Duration,
    /// Scopes of decisions to request, such as `ip` and `range`.
    pub scopes: Vec<String>,
    /// Origins of decisions to request. Empty requests all.
    pub origins: Vec<String>,
    /// Length in bits of the prefix that is denied for an IPv6 address.
    pub ipv6_prefix: u8,
    /// Maximum number of prefixes in the list file.
    pub most: usize,
    /// Exits after one pull.
    pub is_once: bool,
    /// File with the machine's credentials. None disables the reporting of bans.
    pub machine_file: Option<PathBuf>,
    /// Control socket of the daemon that reports bans.
    pub socket: PathBuf,
}

/// Failure that ends the run, or prevents its start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL is wrong or the certificates cannot be read.
    #[error(transparent)]
    Base(#[from] BaseError),
    /// A file with a secret cannot be read.
    #[error("cannot read {0}: {1}")]
    Secret(PathBuf, io::Error),
    /// A file with a secret lacks one.
    #[error("{0} {1}")]
    NoSecret(PathBuf, &'static str),
    /// The list file is also one of the files to read.
    #[error("{0} would be both read and written: name another file for the list")]
    Same(PathBuf),
    /// The list file cannot be written.
    #[error("cannot write {0}: {1}")]
    Write(PathBuf, io::Error),
    /// The single requested pull failed.
    #[error(transparent)]
    Pull(#[from] ClientError),
    /// Signals cannot be awaited.
    #[error("cannot await signals: {0}")]
    Signals(io::Error),
}

/// Class of an error, which decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The request is impossible, for example due to a malformed URL or a missing file.
    Usage,
    /// A file has the wrong content.
    Config,
    /// This user lacks a permission, or the local API refuses the key.
    NotPermitted,
    /// The local API does not answer, or answers with something else.
    Unavailable,
    /// Any other failure.
    Internal,
}

impl Error {
    /// Returns the class of the error.
    #[expect(clippy::wildcard_enum_match_arm, reason = "a few of some forty kinds are the user's to mend")]
    pub fn trouble(&self) -> Trouble {
        let of_file = |error: &io::Error| match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Trouble::NotPermitted,
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory => Trouble::Usage,
            _ => Trouble::Internal,
        };
        match self {
            Self::Base(BaseError::Url(_)) => Trouble::Usage,
            Self::Base(BaseError::Certificates(..)) | Self::NoSecret(..) => Trouble::Config,
            Self::Secret(_, error) | Self::Write(_, error) => of_file(error),
            Self::Pull(ClientError::Refused(_)) => Trouble::NotPermitted,
            Self::Pull(
                ClientError::Unreachable(..)
                | ClientError::TimedOut(_)
                | ClientError::Status(..)
                | ClientError::Unintelligible(_),
            ) => Trouble::Unavailable,
            Self::Same(_) => Trouble::Usage,
            Self::Signals(_) => Trouble::Internal,
        }
    }

    /// Returns the remedies for the error, one clause each.
    pub fn help(&self) -> Vec<String> {
        match self {
            Self::Secret(..) => vec!["this user must be able to read it".to_owned()],
            Self::Write(path, _) => {
                vec![format!("this user must be able to write into the directory of {}", path.display())]
            }
            Self::Pull(error) => help_of(error).into_iter().collect(),
            Self::Base(_) | Self::NoSecret(..) | Self::Same(_) | Self::Signals(_) => Vec::new(),
        }
    }
}

fn help_of(error: &ClientError) -> Option<String> {
    match error {
        ClientError::Refused(_) => Some("`cscli bouncers add ratelimitd` makes a key".to_owned()),
        ClientError::Unreachable(..) | ClientError::TimedOut(_) => {
            Some("`cscli lapi status` on its host says whether it runs".to_owned())
        }
        ClientError::Status(..) | ClientError::Unintelligible(_) => None,
    }
}

/// Maintains the list file until a signal arrives, or for one pull.
///
/// # Errors
/// Fails on errors that a retry cannot mend, such as an unusable file or URL. A single pull also fails if the local
/// API does.
pub async fn run(options: &Options) -> Result<(), Error> {
    if [Some(&options.key_file), options.machine_file.as_ref()].contains(&Some(&options.out)) {
        return Err(Error::Same(options.out.clone()));
    }
    let api = Api::new(&options.url, options.ca_file.as_deref())?;
    let no_key = "has no key: write the one that `cscli bouncers add ratelimitd` prints into it";
    let mut key = HeaderValue::from_bytes(secret(&options.key_file)?.trim_ascii())
        .ok()
        .filter(|key| !key.is_empty())
        .ok_or_else(|| Error::NoSecret(options.key_file.clone(), no_key))?;
    key.set_sensitive(true);
    if api.is_in_the_clear() {
        tracing::warn!("the key goes to {api:?} in the clear: use https");
    }
    let machine = options.machine_file.as_deref().map(machine).transpose()?;
    let book = RefCell::new(Book::default());
    let mut keeper = Keeper { options, api: &api, key, book: &book, written: None, left_out: 0, state: State::Begins };
    keeper.recall();
    if options.is_once {
        keeper.pull_once().await?;
        return keeper.write(Timestamp::now());
    }
    keeper.begin()?;
    let covers = |prefix: &ipnet::IpNet| book.borrow().covers(prefix, options.ipv6_prefix);
    let reporting = async {
        match machine {
            Some(machine) => report::run(Reporter::new(api.clone(), machine), &options.socket, covers).await,
            None => std::future::pending().await,
        }
    };
    let mut terminated = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    tokio::select! {
        ended = keeper.run() => ended,
        () = reporting => Ok(()),
        interrupted = tokio::signal::ctrl_c() => interrupted.map_err(Error::Signals),
        _ = terminated.recv() => Ok(()),
    }
}

fn secret(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |error| Error::Secret(path.to_owned(), error);
    ratelimit_policy::files::read_of_anyone(path, SECRET_BYTES_MAX).map_err(failed)
}

fn machine(path: &Path) -> Result<Machine, Error> {
    let text = String::from_utf8_lossy(&secret(path)?).into_owned();
    let wrong = "has no lines `login: NAME` and `password: TEXT`, as `cscli machines add NAME --auto` writes";
    Machine::read(&text).ok_or_else(|| Error::NoSecret(path.to_owned(), wrong))
}

/// State of the connection to the local API.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Begins,
    Follows,
    /// The local API is away. Holds the error that was logged.
    Away(String),
}

/// Maintainer of the list file.
struct Keeper<'a> {
    options: &'a Options,
    api: &'a Api,
    key: HeaderValue,
    book: &'a RefCell<Book>,
    /// Content of the file. None if nothing was written yet.
    written: Option<Denied>,
    left_out: usize,
    state: State,
}

impl Keeper<'_> {
    /// Resumes with the content that an earlier run wrote.
    fn recall(&mut self) {
        match list::read(&self.options.out) {
            Ok(kept) => {
                self.written =
                    Some(Denied { prefixes: kept.clone(), left_out: 0 }).filter(|of| !of.prefixes.is_empty());
                self.book.borrow_mut().recall(kept);
            }
            Err(error) => tracing::warn!("read {}: {error}; it is rewritten", self.options.out.display()),
        }
    }

    /// Creates the list file if there is none, because the daemon refuses a configuration that names a missing file.
    fn begin(&self) -> Result<(), Error> {
        let out = &self.options.out;
        if out.exists() {
            return Ok(());
        }
        list::write(out, &Denied::default()).map_err(|error| Error::Write(out.clone(), error))
    }

    async fn run(&mut self) -> Result<(), Error> {
        let mut ticks = tokio::time::interval(self.options.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Removes decisions that expired while no run maintained the file.
        self.write(Timestamp::now())?;
        loop {
            ticks.tick().await;
            let (api, key, query, pull) = (self.api.clone(), self.key.clone(), self.query(), self.pull());
            let pull = async move { api.decisions(&key, &query, pull).await };
            tokio::pin!(pull);
            // A hanging pull must not keep expired decisions in force.
            let pulled = loop {
                tokio::select! {
                    pulled = &mut pull => break pulled,
                    _ = ticks.tick() => self.write(Timestamp::now())?,
                }
            };
            self.take(pulled);
            self.write(Timestamp::now())?;
        }
    }

    async fn pull_once(&mut self) -> Result<(), ClientError> {
        let delta = self.api.decisions(&self.key, &self.query(), self.pull()).await?;
        self.take(Ok(delta));
        Ok(())
    }

    fn pull(&self) -> Pull {
        if self.state == State::Follows { Pull::Changes } else { Pull::All }
    }

    /// Returns the query of the next pull. Requests all decisions first, and after each lost answer, because the
    /// local API counts changes from the last answer it sent.
    fn query(&self) -> String {
        let mut query = format!("startup={}&scopes={}", self.pull() == Pull::All, escaped(&self.options.scopes));
        if !self.options.origins.is_empty() {
            query += &format!("&origins={}", escaped(&self.options.origins));
        }
        query
    }

    fn take(&mut self, pulled: Result<crate::decision::Delta, ClientError>) {
        match pulled {
            Ok(delta) => {
                let (new, deleted) = (delta.new.len(), delta.deleted.len());
                if let Some(ignored) = delta.ignored.words() {
                    tracing::info!("ignored decisions: {ignored}");
                }
                self.book.borrow_mut().take(delta, self.pull(), Timestamp::now());
                if self.state != State::Follows {
                    tracing::info!("{new} decisions of {:?}; changes follow", self.api);
                } else if new + deleted > 0 {
                    tracing::debug!("{new} new decisions, {deleted} deleted");
                }
                self.state = State::Follows;
            }
            Err(error) => {
                let said = error.to_string();
                if self.state != State::Away(said.clone()) {
                    let help = help_of(&error).map_or_else(String::new, |help| format!("; {help}"));
                    tracing::warn!(
                        "{said}{help}; decisions in force stay until they expire, and all decisions are requested again"
                    );
                }
                self.state = State::Away(said);
            }
        }
    }

    /// Removes expired decisions, and writes the file if its content changed.
    fn write(&mut self, now: Timestamp) -> Result<(), Error> {
        let mut book = self.book.borrow_mut();
        book.expire(now);
        // Before the first answer, only the content of an earlier run is worth writing.
        if self.state != State::Follows && self.written.is_none() {
            return Ok(());
        }
        let denied = book.denied(self.options.ipv6_prefix, self.options.most);
        if denied.left_out != self.left_out {
            self.left_out = denied.left_out;
            if denied.left_out > 0 {
                tracing::warn!(
                    "{} of {} prefixes are left out: --most is {}",
                    denied.left_out,
                    book.len(),
                    self.options.most
                );
            }
        }
        if self.written.as_ref() != Some(&denied) {
            list::write(&self.options.out, &denied).map_err(|error| Error::Write(self.options.out.clone(), error))?;
            self.written = Some(denied);
        }
        Ok(())
    }
}

/// Joins words with commas and percent-encodes them for a query.
fn escaped(words: &[String]) -> String {
    let mut query = String::new();
    for byte in words.join(",").bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b',' => query.push(char::from(byte)),
            _ => query += &format!("%{byte:02X}"),
        }
    }
    query
}
