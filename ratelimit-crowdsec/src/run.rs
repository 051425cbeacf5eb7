//! Pulls decisions, and keeps the list file by them. It is never longer out of date than one interval: what is over is
//! taken out while the local API is away, too.

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

/// What a file with a key or password has at most.
const SECRET_BYTES_MAX: u64 = 4_096;

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the local API is.
    pub url: String,
    /// The file with the bouncer's key.
    pub key_file: PathBuf,
    /// Certificates to trust in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// The list file.
    pub out: PathBuf,
    /// Between two pulls.
    pub interval: Duration,
    /// The scopes that are asked for.
    pub scopes: Vec<String>,
    /// The origins that are asked for; all without any.
    pub origins: Vec<String>,
    /// The prefix of an IPv6 address that is denied.
    pub ipv6_prefix: u8,
    /// Prefixes in the file at most.
    pub most: usize,
    /// Pulls once.
    pub is_once: bool,
    /// The file with the machine's credentials, where bans are told.
    pub machine_file: Option<PathBuf>,
    /// The daemon whose bans are told.
    pub socket: PathBuf,
}

/// Why it ends, or cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL, or the certificates.
    #[error(transparent)]
    Base(#[from] BaseError),
    /// A file with a secret cannot be read.
    #[error("cannot read {0}: {1}")]
    Secret(PathBuf, io::Error),
    /// A file with a secret has none.
    #[error("{0} {1}")]
    NoSecret(PathBuf, &'static str),
    /// The list file is one of those that are read.
    #[error("{0} is to be read and to be written: name another file for the list")]
    Same(PathBuf),
    /// The list file cannot be written.
    #[error("cannot write {0}: {1}")]
    Write(PathBuf, io::Error),
    /// The one pull that was asked for came to nothing.
    #[error(transparent)]
    Pull(#[from] ClientError),
    /// Signals cannot be awaited.
    #[error("cannot await signals: {0}")]
    Signals(io::Error),
}

/// What kind of trouble it is, as exit codes tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// What was asked for cannot be: a URL that is none, a file that is not there.
    Usage,
    /// What a file says is not what belongs there.
    Config,
    /// This user may not, or the local API does not take the key.
    NotPermitted,
    /// The local API does not answer, or not as one.
    Unavailable,
    /// Anything else.
    Internal,
}

impl Error {
    /// What kind it is.
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

    /// What to do, a clause each.
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

/// Keeps the list file until a signal ends it, or once.
///
/// # Errors
/// What cannot be mended by trying again: a file, the URL. Of one pull alone also that.
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

/// How it stands with the local API.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Begins,
    Follows,
    /// Away, and what was said of that.
    Away(String),
}

/// Keeps the file.
struct Keeper<'a> {
    options: &'a Options,
    api: &'a Api,
    key: HeaderValue,
    book: &'a RefCell<Book>,
    /// What the file holds.
    written: Option<Denied>,
    left_out: usize,
    state: State,
}

impl Keeper<'_> {
    /// Goes on with what an earlier run has written.
    fn recall(&mut self) {
        match list::read(&self.options.out) {
            Ok(kept) => {
                self.written =
                    Some(Denied { prefixes: kept.clone(), left_out: 0 }).filter(|of| !of.prefixes.is_empty());
                self.book.borrow_mut().recall(kept);
            }
            Err(error) => tracing::warn!("read {}: {error}; it is written anew", self.options.out.display()),
        }
    }

    /// A configuration that names a file which is not there is refused, so there is one from the start.
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
        // What ended while no run kept the file.
        self.write(Timestamp::now())?;
        loop {
            ticks.tick().await;
            let (api, key, query, pull) = (self.api.clone(), self.key.clone(), self.query(), self.pull());
            let pull = async move { api.decisions(&key, &query, pull).await };
            tokio::pin!(pull);
            // A pull that hangs keeps nothing in force that is over.
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

    /// All of it first, and whenever an answer was lost: the local API counts changes from the last that it sent.
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
                    tracing::info!("decisions that were passed over: {ignored}");
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
                    tracing::warn!("{said}{help}; what is in force stays until it is over, and all is asked for again");
                }
                self.state = State::Away(said);
            }
        }
    }

    /// Writes the file, if it holds something else.
    fn write(&mut self, now: Timestamp) -> Result<(), Error> {
        let mut book = self.book.borrow_mut();
        book.expire(now);
        // Without an answer there is nothing to say, but what an earlier run has said, as long as it holds.
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

/// Words of a query, with commas between them.
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
