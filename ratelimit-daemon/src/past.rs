//! The daemon's side of the history. Records as `[history]` says, and answers queries on separate threads. The
//! limiter goes on whatever happens to the history.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::engine::Engine;
use super::moment::Moment;
use super::store::Store;
use ratelimit_control::proto::{Forget, ForgetReport, HistoryOf, Problem, ProblemKind, Series, Span, Worst};
use ratelimit_control::{Answer, Ask, Call, Defer};
use ratelimit_datapath::Datapath;
use ratelimit_history::{
    FILE_NAME, Filter, InForce, Judged, Mask, Period, Progress, QueryError, Reader, Recorder, Settings, Total,
};
use ratelimit_policy::config::history::History;
use ratelimit_report::event::Event;
use ratelimit_report::history::{Health, HealthState};
use ratelimit_report::snapshot::{SCHEMA, source_text};

/// Time that a stop waits for unwritten records.
pub(super) const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// Time that a user waits for a source to be erased.
const FORGET_WITHIN: Duration = Duration::from_secs(10);

/// Maximum number of events queued before the history is opened.
const EARLY_MAX: usize = 64;

/// Limit of two concurrent queries. Further ones wait.
static READERS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(2)));

/// Recorder of the history and its configuration.
#[derive(Debug)]
pub(super) struct Past {
    recorder: Recorder,
    by: Option<History>,
    /// Events from before the history was opened. Its thread must not start before the daemon has dropped its
    /// privileges.
    early: Vec<Event>,
}

impl Past {
    /// Creates a history that records nothing yet.
    pub(super) fn off() -> Self {
        Self { recorder: Recorder::off(), by: None, early: Vec::new() }
    }

    /// Opens the history as configured, or again after a change of the configuration. Earlier records are written
    /// under the old settings. Returns true if the history was opened, because it then knows nothing of what is in
    /// force.
    pub(super) fn follow(&mut self, history: &History, store: &Store) -> bool {
        if self.by.as_ref() == Some(history) {
            return false;
        }
        let before = std::mem::replace(&mut self.recorder, Recorder::off());
        self.recorder = before.replaced(history.enabled.then(|| settings(history, store)));
        self.by = Some(history.clone());
        std::mem::take(&mut self.early).into_iter().for_each(|event| self.record(event));
        true
    }

    /// Records what is enforced from a time on. Returns false if the record must be repeated. Without a history,
    /// returns true.
    pub(super) fn in_force(&self, of: InForce) -> bool {
        self.health().is_none() || self.recorder.in_force(of)
    }

    /// Records, after all queued records, that the filter was detached.
    pub(super) fn ends_detached(&self, time: Timestamp) {
        self.recorder.end_with(InForce { time, judged: Judged::Detached });
    }

    /// Writes queued records and stops recording.
    pub(super) fn close(&mut self, within: Duration) {
        self.by = None;
        if !std::mem::replace(&mut self.recorder, Recorder::off()).close(within) {
            tracing::warn!("the last records of the history are not written: it took longer than {within:?}");
        }
    }

    /// Records an event without waiting. An event that does not fit into the queue is counted.
    pub(super) fn record(&mut self, event: Event) {
        if self.by.is_some() {
            let _is_kept = self.recorder.record(event);
        } else if self.early.len() < EARLY_MAX {
            self.early.push(event);
        }
    }

    /// Records beginnings that the history may already know. Returns false if they are lost.
    pub(super) fn take_up(&self, events: Vec<Event>) -> bool {
        self.recorder.take_up(events)
    }

    /// Records the number of events lost between two times.
    pub(super) fn lost(&self, began: Timestamp, ended: Timestamp, events: u64) {
        self.recorder.lost(began, ended, events);
    }

    /// Records further refusals of a source. Returns false if the record may be repeated.
    pub(super) fn progress(&self, progress: Progress) -> bool {
        self.recorder.progress(progress)
    }

    /// Records the totals of a minute. Returns false if the record may be repeated.
    pub(super) fn totals(&self, minute: Timestamp, rows: Vec<Total>) -> bool {
        self.recorder.totals(minute, rows)
    }

    /// Returns the health of the history. None if the configuration disables it.
    pub(super) fn health(&self) -> Option<Health> {
        self.by.as_ref().filter(|by| by.enabled).map(|_| self.recorder.health())
    }

    /// Describes what is wrong with the history, if anything.
    pub(super) fn trouble(&self) -> Option<String> {
        let of = self.health().filter(|of| of.state != HealthState::Ok || of.detail.is_some())?;
        Some(of.detail.unwrap_or_else(|| "history is not written".to_owned()))
    }

    /// Returns the recorder's settings.
    #[cfg(test)]
    pub(super) const fn settings(&self) -> &Settings {
        self.recorder.settings()
    }

    /// Returns the path of the database. Fails if the history is disabled.
    fn path(&self) -> Result<PathBuf, Problem> {
        let is_kept = self.by.as_ref().is_some_and(|by| by.enabled);
        let off = || Problem::new(ProblemKind::NotFound, "history is off: `enabled = false` under [history]");
        is_kept.then(|| self.recorder.settings().path.clone()).ok_or_else(off)
    }
}

fn settings(history: &History, store: &Store) -> Settings {
    let path = history.path.clone().unwrap_or_else(|| store.path(FILE_NAME));
    Settings {
        keep: Duration::from_nanos(history.keep_ns),
        bytes_max: history.bytes_max,
        mask: Mask::new(history.mask_ipv4, history.mask_ipv6),
        ..Settings::at(path)
    }
}

impl<D: Datapath> Engine<D> {
    /// Answers a query on a thread of its own.
    fn look_up<C: Call>(
        &self,
        ask: Ask<C>,
        question: impl FnOnce(&Reader, C) -> Result<C::Report, QueryError> + Send + 'static,
    ) -> Answer {
        let path = self.journal.past.path();
        Answer::by(move || {
            tokio::spawn(async move {
                let Ask { call, reply, .. } = ask;
                let _place = READERS.acquire().await;
                let answer = match path {
                    Err(off) => Err(off),
                    Ok(path) => spawn_blocking(move || question(&Reader::open(&path)?, call))
                        .await
                        .map_err(|_| {
                            Problem::new(ProblemKind::Internal, "internal error: reading the history panicked")
                        })
                        .and_then(|answer| answer.map_err(|error| problem(&error))),
                };
                // The requester may be gone.
                drop(reply.send(answer));
            });
        })
    }
}

impl<D: Datapath> Defer<HistoryOf, Moment> for Engine<D> {
    fn defer(&mut self, ask: Ask<HistoryOf>, _: Moment) -> Answer {
        let of = match ask.call.of() {
            Ok(of) => of,
            Err(problem) => return Answer::by(move || drop(ask.reply.send(Err(problem)))),
        };
        self.look_up(ask, move |reader, HistoryOf { since, until, rule, reason, .. }| {
            reader.history(of, &Filter { since, until, rule, reason, rows: None })
        })
    }
}

impl<D: Datapath> Defer<Worst, Moment> for Engine<D> {
    fn defer(&mut self, ask: Ask<Worst>, moment: Moment) -> Answer {
        self.look_up(ask, move |reader, Worst { since, until, rule, reason }| {
            reader.worst(&Filter { since, until, rule, reason, rows: None }, moment.wall)
        })
    }
}

impl<D: Datapath> Defer<Series, Moment> for Engine<D> {
    fn defer(&mut self, ask: Ask<Series>, moment: Moment) -> Answer {
        self.look_up(ask, move |reader, Series { period }| {
            let period = match period {
                Span::FiveMinutes => Period::FiveMinutes,
                Span::Hour => Period::Hour,
                Span::Day => Period::Day,
                Span::Month => Period::Month,
            };
            reader.series(period, moment.wall)
        })
    }
}

impl<D: Datapath> Defer<Forget, Moment> for Engine<D> {
    fn defer(&mut self, ask: Ask<Forget>, _: Moment) -> Answer {
        let Ask { call: Forget { source }, by, reply } = ask;
        let client = self.enforced.whole_client(IpNet::from(source.to_canonical()));
        let events = self.journal.forget(client);
        let report = move |rows| ForgetReport { schema: SCHEMA, source: source_text(client), rows, events };
        if self.journal.past.path().is_err() {
            return Answer::by(move || drop(reply.send(Ok(report(0)))));
        }
        let (done, erased) = oneshot::channel();
        self.journal.past.recorder.forget(client, move |rows| {
            if let Ok(rows) = rows {
                // The source is not named, because it was to be erased.
                tracing::info!("{by} erased one source from the history: {rows} rows");
            }
            // The requester may no longer wait.
            drop(done.send(rows));
        });
        let why_late = self.journal.past.trouble();
        Answer::by(move || {
            tokio::spawn(async move {
                let rows = timeout(FORGET_WITHIN, erased).await.ok().and_then(Result::ok);
                let rows = rows
                    .unwrap_or_else(|| Err(late(why_late.as_deref())))
                    .map_err(|why| Problem::new(ProblemKind::Internal, format!("the history is not erased: {why}")));
                // The requester may be gone.
                drop(reply.send(rows.map(report)));
            });
        })
    }
}

fn late(trouble: Option<&str>) -> String {
    let trouble = trouble.map_or_else(|| "its disk is slow".to_owned(), str::to_owned);
    let seconds = FORGET_WITHIN.as_secs();
    format!(
        "not done within {seconds} s: {trouble}; it stays queued, so run the command again to see whether it is done"
    )
}

fn problem(error: &QueryError) -> Problem {
    let kind = match error {
        QueryError::Missing(_) => ProblemKind::NotFound,
        QueryError::Version(_) | QueryError::Database(_) => ProblemKind::Internal,
    };
    Problem::new(kind, error.to_string())
}
