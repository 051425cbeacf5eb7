//! The writing thread: it empties the queue, keeps the book of episodes, and passes a batch per second to the store.
//! Failures are reported and retried.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use jiff::Timestamp;
use ratelimit_crash::{Point, reach};
use ratelimit_report::event::Event;
use ratelimit_report::history::HealthState;

use crate::Settings;
use crate::book::{Book, Millis};
use crate::losses::{self, Lost};
use crate::record::{Message, Record, Shared, Total, Waiting};
use crate::schema::{self, Fault};
use crate::store::{Act, Retention, Store};

/// Maximum number of open episodes in memory. // 100000 x 0.3 KB = 30 MB
const OPEN_MAX: usize = 100_000;
/// Bytes of an episode in the database, with its index entries. A quarter of the maximum size is for open episodes.
const EPISODE_BYTES: u64 = 300;
/// Maximum number of rows that wait for the database. Beyond it the queue fills up. // 65536 x 0.7 KB = 46 MB, of
/// acts with long texts
pub(crate) const PENDING_MAX: usize = 65_536;
/// Number of written rows after which the next empty batch releases memory. // 4096 x 0.3 KB = 1.2 MB
const SHRINK_AFTER: u64 = 4_096;
/// Minimum step back of the clock that is reported, in milliseconds.
const STEP_BACK_MIN: Millis = 2_000;
/// Time for which a past problem is reported.
const TOLD_FOR: Duration = Duration::from_secs(3_600);

/// Intervals and clock of the thread.
#[derive(Clone)]
pub(crate) struct Pace {
    /// Interval between two batches.
    pub(crate) batch: Duration,
    /// Interval of retries after a failure of the database.
    pub(crate) retry: Duration,
    /// Interval of retention while nothing is written.
    pub(crate) upkeep: Duration,
    /// Wall clock, replaced in tests.
    pub(crate) clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Default for Pace {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { batch: seconds(1), retry: seconds(5), upkeep: seconds(60), clock: Arc::new(Timestamp::now) }
    }
}

pub(crate) struct Writer {
    settings: Settings,
    pace: Pace,
    shared: Arc<Shared>,
    book: Book,
    acts: Vec<Act>,
    totals: Vec<(Millis, Total)>,
    losses: Vec<Lost>,
    /// Records in `acts`, `totals` and the book that are not written yet.
    waiting: Waiting,
    store: Option<Store>,
    /// Set once the database was opened, so that the book has its row ids.
    is_resumed: bool,
    retry_at: Instant,
    upkeep_at: Instant,
    /// Rows written since memory was last released.
    rows_since_quiet: u64,
    /// Time of the last batch, by the monotonic and the wall clock.
    last: (Instant, Millis),
    /// Time and description of a past problem.
    told: Option<(Instant, String)>,
}

impl Writer {
    pub(crate) fn new(settings: Settings, pace: Pace, shared: Arc<Shared>) -> Self {
        let now = Instant::now();
        let wall = (pace.clock)().as_millisecond();
        let room = usize::try_from(settings.bytes_max / 4 / EPISODE_BYTES).unwrap_or(usize::MAX);
        let book = Book::new(room.min(OPEN_MAX));
        let waiting = Waiting::none(shared.clone());
        Self {
            settings,
            pace,
            shared,
            book,
            acts: Vec::new(),
            totals: Vec::new(),
            losses: Vec::new(),
            waiting,
            store: None,
            is_resumed: false,
            retry_at: now,
            upkeep_at: now,
            rows_since_quiet: 0,
            last: (now, wall),
            told: None,
        }
    }

    /// Runs until all senders are gone, or until the database turns out to be a newer program's.
    pub(crate) fn run(mut self, messages: &Receiver<Message>) {
        let mut next = Instant::now();
        loop {
            if Instant::now() >= next {
                if self.batch().is_break() {
                    return;
                }
                next = Instant::now() + self.pace.batch;
            }
            let wait = next.saturating_duration_since(Instant::now());
            if self.pending() >= PENDING_MAX && !self.shared.closing.load(Ordering::Relaxed) {
                thread::sleep(wait);
                continue;
            }
            match messages.recv_timeout(wait) {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.retry_at = Instant::now();
                    if let Some(last) = self.shared.last() {
                        self.book.in_force(&last);
                    }
                    _ = self.batch();
                    return;
                }
            }
        }
    }

    /// Returns the number of rows that wait for the database.
    fn pending(&self) -> usize {
        self.book.ended_len() + self.acts.len() + self.totals.len()
    }

    fn take(&mut self, message: Message) {
        let (record, waiting) = match message {
            Message::Forget(prefix, done) => return done.answer(self.forget(prefix)),
            Message::Record(record, waiting) => (record, waiting),
        };
        self.waiting.join(waiting);
        match record {
            Record::Event(event, source) => {
                self.book.event(&event, source);
                self.acts.extend(act(*event, source));
            }
            Record::Progress(of) => {
                self.book.progress(of.source, &of.rule, &of.limit, of.would, of.refused());
            }
            Record::TakenUp(events) => self.book.take_up(&events),
            Record::InForce(of) => self.book.in_force(&of),
            Record::Totals(minute, rows) => {
                self.totals.extend(rows.into_iter().map(|row| (minute.as_millisecond(), row)));
            }
        }
    }

    /// Writes the waiting rows. Breaks if the history is off from now on.
    fn batch(&mut self) -> std::ops::ControlFlow<()> {
        let now = (self.pace.clock)().as_millisecond();
        self.notice_clock(now);
        self.book.tick(now);
        let more = self.shared.take_losses();
        more.into_iter().for_each(|more| losses::add(&mut self.losses, more));
        if let Err(fault) = self.write(now) {
            if matches!(fault, Fault::Newer(_)) {
                let (path, remedy) = (self.settings.path.display(), remedy(&fault));
                self.tell(HealthState::Off, &format!("history is off: {path}: {fault}; {remedy}"));
                return std::ops::ControlFlow::Break(());
            }
            self.fail(&fault);
        }
        self.publish();
        std::ops::ControlFlow::Continue(())
    }

    fn write(&mut self, now: Millis) -> Result<(), Fault> {
        if self.store.is_some() && !self.settings.path.exists() {
            self.store = None;
            self.retry_at = Instant::now();
            self.over("the database was removed; a new one is created");
        }
        if self.store.is_none() {
            if Instant::now() < self.retry_at {
                return Ok(());
            }
            self.open()?;
        }
        let Some(store) = &mut self.store else { return Ok(()) };
        let rows = store.write(&mut self.book, &self.acts, &self.totals, &self.losses)?;
        self.book.written();
        self.acts.clear();
        self.totals.clear();
        self.losses.clear();
        self.waiting.are_written();
        self.rows_since_quiet = self.rows_since_quiet.saturating_add(rows);
        if rows == 0 && self.rows_since_quiet >= SHRINK_AFTER {
            // Memory that a flood used is released.
            self.rows_since_quiet = 0;
            self.book.shrink();
            (self.acts, self.totals) = (Vec::new(), Vec::new());
            store.shrink()?;
        }
        if rows > 0 || Instant::now() >= self.upkeep_at {
            let retention = Retention { keep: self.settings.keep, bytes_max: self.settings.bytes_max };
            let is_more = store.retain(retention, now, rows)?;
            self.upkeep_at = Instant::now() + if is_more { Duration::ZERO } else { self.pace.upkeep };
        }
        let bytes = store.bytes()?;
        self.shared.set(|health| health.bytes = bytes);
        Ok(())
    }

    /// Opens the database. A broken one is replaced by a new one.
    fn open(&mut self) -> Result<(), Fault> {
        let path = self.settings.path.clone();
        let opened = Store::open(&path).and_then(|store| {
            let left = store.left(&mut self.book)?;
            Ok((store, left))
        });
        let (store, left) = match opened {
            Err(fault @ Fault::Corrupt(_)) => {
                self.set_aside(&path, &fault)?;
                let store = Store::open(&path)?;
                let left = store.left(&mut self.book)?;
                (store, left)
            }
            opened => opened?,
        };
        if self.is_resumed {
            // The file may be another one than before, or may have lost its last rows.
            self.book.unwrite();
        } else {
            self.book.resume(left.open, left.next_id);
            self.is_resumed = true;
        }
        self.store = Some(store);
        reach(Point::HistoryOpened);
        Ok(())
    }

    fn set_aside(&mut self, path: &Path, fault: &Fault) -> Result<(), Fault> {
        self.store = None;
        let aside = schema::set_aside(path, (self.pace.clock)())?;
        self.over(&format!("{fault}; the database is renamed to {}, and a new one is created", aside.display()));
        Ok(())
    }

    fn fail(&mut self, fault: &Fault) {
        self.store = None;
        self.retry_at = Instant::now() + self.pace.retry;
        let path = self.settings.path.clone();
        if matches!(fault, Fault::Corrupt(_)) {
            // The damage was found while writing. No waiting row is lost.
            let renamed = self.set_aside(&path, fault);
            self.retry_at = Instant::now();
            if renamed.is_ok() {
                return;
            }
        }
        let remedy = remedy(fault);
        self.tell(HealthState::Failing, &format!("history is not written: {}: {fault}; {remedy}", path.display()));
    }

    fn forget(&mut self, prefix: IpNet) -> Result<u64, String> {
        let is_of = |source: IpNet| prefix.contains(&source) || source.contains(&prefix);
        self.book.forget(is_of);
        self.acts.retain(|act| !act.source.is_some_and(|source| prefix.contains(&source)));
        let path = self.settings.path.display().to_string();
        let in_words = |fault: Fault| {
            let done = "its records stay in the file; try again then";
            format!("{path}: {fault}; {}; {done}", remedy(&fault))
        };
        if self.store.is_none() {
            self.open().map_err(&in_words)?;
            self.book.forget(is_of);
        }
        let Some(store) = &mut self.store else { return Err("the database is not open".to_owned()) };
        let rows = store.forget(prefix).map_err(&in_words)?;
        // Broken files cannot be searched and may contain the source, so they are removed.
        schema::remove_set_aside(&self.settings.path).map_err(|error| format!("remove broken databases: {error}"))?;
        Ok(rows)
    }

    /// Compares the wall clock with the monotonic clock.
    fn notice_clock(&mut self, wall: Millis) {
        let (then, wall_then) = self.last;
        let now = Instant::now();
        self.last = (now, wall);
        let passed = Millis::try_from(now.duration_since(then).as_millis()).unwrap_or(Millis::MAX);
        let back = wall_then.saturating_add(passed).saturating_sub(wall);
        if back >= STEP_BACK_MIN {
            self.over(&format!("the clock went back by {} s: times before and after that overlap", back / 1_000));
        }
    }

    /// Reports a past problem for the next hour.
    fn over(&mut self, what: &str) {
        let what = format!("history: {what}");
        tracing::warn!("{what}");
        self.told = Some((Instant::now(), what));
    }

    /// Sets the current state, and logs it once.
    fn tell(&self, state: HealthState, detail: &str) {
        self.shared.set(|health| {
            if health.detail.as_deref() != Some(detail) {
                tracing::warn!("{detail}");
            }
            health.state = state;
            health.detail = Some(detail.to_owned());
        });
    }

    /// Reports that history is written, if it is.
    fn publish(&mut self) {
        if self.store.is_none() {
            return;
        }
        self.told.take_if(|(since, _)| since.elapsed() > TOLD_FOR);
        let told = self.told.as_ref().map(|(_, what)| what.clone());
        self.shared.set(|health| {
            if health.state != HealthState::Ok {
                tracing::info!("history is written again");
            }
            health.state = HealthState::Ok;
            health.detail = told;
        });
    }
}

/// Returns the remedy for a fault, or says what the daemon does about it.
const fn remedy(fault: &Fault) -> &'static str {
    match fault {
        Fault::Full => "it resumes by itself once there is room",
        Fault::ReadOnly(_) => "it resumes by itself once the directory can be written",
        Fault::Corrupt(_) => "remove the file",
        Fault::Newer(_) => "use the newer program, or move the file away and restart",
        Fault::Other(_) => "it is tried again",
    }
}

/// Converts an event to an act. None if the event is not an act.
fn act(event: Event, source: Option<IpNet>) -> Option<Act> {
    event.kind.is_act().then(|| Act {
        time: event.time.as_millisecond(),
        what: event.kind.label(),
        source,
        rule: event.rule,
        by: event.by,
        reason: event.reason,
        detail: event.detail,
    })
}
