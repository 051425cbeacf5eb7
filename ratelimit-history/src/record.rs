//! The daemon's side of the history: a queue that never blocks. Addresses are masked before they are queued.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;
use ratelimit_report::event::Event;
use ratelimit_report::history::{Health, HealthState, Outcome};

use crate::book::Refused;
use crate::in_force::{InForce, Judged};
use crate::losses::{self, Lost};
use crate::writer::{Pace, Writer};
use crate::{Settings, mask};

/// Maximum number of records in the queue. // 32768 x 0.7 KB = 23 MB, when it is full of events with long texts
pub(crate) const QUEUE_LEN: usize = 32_768;
/// Time that the previous thread may take to finish before the wait is reported.
const BEFORE_WITHIN: Duration = Duration::from_secs(10);
/// Maximum length in bytes of each stored text of an event.
pub(crate) const TEXT_LEN_MAX: usize = 256;

/// Refused traffic of a source since its last progress record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Time at which the counters were read.
    pub time: Timestamp,
    /// Source, as its event named it.
    pub source: IpNet,
    /// Name of the rule.
    pub rule: String,
    /// Limit, as its event named it.
    pub limit: String,
    /// Set if nothing was dropped: dry run, or a shadow limit.
    pub would: bool,
    /// Packets refused since the last progress record, or since the episode began.
    pub packets: u64,
    /// Bytes of the refused packets.
    pub bytes: u64,
    /// Used part of the limit at this time, in its unit.
    pub used: u64,
}

/// Packets of one rule, reason and outcome in a minute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Total {
    /// Name of the rule. Empty if no rule judged the packets.
    pub rule: String,
    /// Label of the reason.
    pub reason: String,
    /// Outcome for the packets.
    pub outcome: Outcome,
    /// Number of packets in this minute.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
}

/// Sending end of the history. When it is dropped, the thread still writes what is queued.
#[derive(Debug)]
pub struct Recorder {
    queue: Option<SyncSender<Message>>,
    done: Option<Receiver<()>>,
    shared: Arc<Shared>,
    settings: Settings,
}

/// State shared by the recorder and its thread.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) lost: AtomicU64,
    pub(crate) waiting: AtomicU64,
    pub(crate) closing: AtomicBool,
    health: Mutex<Health>,
    /// Policy in force after all queued records.
    last: Mutex<Option<Arc<InForce>>>,
    /// Losses that are not written yet.
    losses: Mutex<Vec<Lost>>,
}

/// A message to the thread.
pub(crate) enum Message {
    Record(Record, Waiting),
    Forget(IpNet, Erased),
}

/// A record to store.
pub(crate) enum Record {
    Event(Box<Event>, Option<IpNet>),
    Progress(Box<Progress>),
    TakenUp(Vec<(Event, IpNet)>),
    Totals(Timestamp, Vec<Total>),
    InForce(Arc<InForce>),
}

/// Number of queued records. Those that are dropped before [they are written](Self::are_written) are counted as lost.
pub(crate) struct Waiting {
    shared: Arc<Shared>,
    records: u64,
}

/// Callback with the number of erased rows or an error. It is also called if the thread ends first.
pub(crate) struct Erased(Option<Answer>);

type Answer = Box<dyn FnOnce(Result<u64, String>) + Send>;

/// A closed recorder with a thread that may still be writing.
#[derive(Debug)]
struct Ending(Option<Receiver<()>>);

impl Recorder {
    /// Starts to record. Problems with the database are reported only by [`Self::health`].
    pub fn start(settings: Settings) -> Self {
        Self::off().replaced(Some(settings))
    }

    /// Returns a recorder that stores nothing: `enabled = false`.
    pub fn off() -> Self {
        Self::off_after(Ending(None))
    }

    /// Returns a recorder with new settings, or one that stores nothing. It takes records at once and queues them.
    /// Its thread opens the database only after the previous thread has ended, so no two threads write at a time.
    #[must_use]
    pub fn replaced(self, settings: Option<Settings>) -> Self {
        self.replaced_at(settings, Pace::default())
    }

    pub(crate) fn replaced_at(self, settings: Option<Settings>, pace: Pace) -> Self {
        match settings {
            Some(settings) => self.replaced_by(settings, pace, spawn),
            None => Self::off_after(self.end()),
        }
    }

    fn off_after(before: Ending) -> Self {
        let health = health(HealthState::Off, Some("history is off: `enabled = false`".to_owned()));
        Self { queue: None, done: before.0, shared: Shared::new(health), settings: Settings::at("".into()) }
    }

    pub(crate) fn replaced_by(self, settings: Settings, pace: Pace, spawn: impl FnOnce(Run) -> io::Result<()>) -> Self {
        let before = self.end();
        let shared = Shared::new(health(HealthState::Ok, None));
        let (queue, messages) = mpsc::sync_channel(QUEUE_LEN);
        let (is_done, done) = mpsc::sync_channel(1);
        let (hand_over, handed_over) = mpsc::sync_channel::<Ending>(1);
        let mut recorder = Self { queue: Some(queue), done: Some(done), shared, settings };
        let (settings, shared) = (recorder.settings.clone(), recorder.shared.clone());
        let run = move || {
            let Ok(mut before) = handed_over.recv() else { return };
            if !before.wait(BEFORE_WITHIN) {
                shared.tell_that_it_waits(&settings.path);
                before.wait(Duration::MAX);
            }
            Writer::new(settings, pace, shared).run(&messages);
            // The receiver may be gone already.
            let _ = is_done.send(());
        };
        match spawn(Box::new(run)) {
            // The new thread waits for this message.
            Ok(()) => drop(hand_over.send(before)),
            // Further records are lost, and the next recorder waits for the previous thread.
            Err(error) => {
                recorder.done = before.0;
                recorder.shared.set(|health| {
                    health.state = HealthState::Off;
                    health.detail = Some(format!("history is off: its thread cannot start: {error}"));
                });
            }
        }
        recorder
    }

    /// Queues an event. Returns false if it is lost, which is counted.
    pub fn record(&self, mut event: Event) -> bool {
        let source =
            event.source.take().and_then(|source| mask::parse(&source)).map(|source| self.settings.mask.prefix(source));
        let texts = [&mut event.rule, &mut event.limit, &mut event.reason, &mut event.by].into_iter().flatten();
        for text in texts.chain([&mut event.detail]) {
            *text = shortened(&self.settings.mask.text(text));
        }
        let time = event.time;
        self.send_or_miss(time, Record::Event(Box::new(event), source))
    }

    /// Queues further refusals of a source with an open episode. Returns false if they are lost; the caller may add
    /// them to the next record.
    pub fn progress(&self, mut progress: Progress) -> bool {
        progress.source = self.settings.mask.prefix(progress.source);
        let time = progress.time;
        self.send_or_miss(time, Record::Progress(Box::new(progress)))
    }

    /// Queues beginnings that may be known already. A refusal opens an episode unless one is open.
    /// A ban opens one unless the source's rule has one with a ban. Returns false if they are lost.
    pub fn take_up(&self, events: Vec<Event>) -> bool {
        let told = |mut event: Event| {
            let source = event.source.take().and_then(|source| mask::parse(&source))?;
            for text in [&mut event.rule, &mut event.limit, &mut event.reason].into_iter().flatten() {
                *text = shortened(&self.settings.mask.text(text));
            }
            Some((event, self.settings.mask.prefix(source)))
        };
        self.send(Record::TakenUp(events.into_iter().filter_map(told).collect()))
    }

    /// Records that `events` events between two times did not reach the history. There is always room for this.
    pub fn lost(&self, began: Timestamp, ended: Timestamp, events: u64) {
        if self.queue.is_some() && events > 0 {
            self.shared.add_loss(Lost::between(began.as_millisecond(), ended.as_millisecond(), events));
        }
    }

    /// Queues the packet totals of the minute that contains this time. Returns false if they are lost.
    pub fn totals(&self, minute: Timestamp, rows: Vec<Total>) -> bool {
        self.send(Record::Totals(minute, rows))
    }

    /// Queues the policy in force from a time on, which ends episodes that do not match it. Returns false if it is
    /// lost; the caller must repeat it.
    pub fn in_force(&self, of: InForce) -> bool {
        self.send(Record::InForce(Arc::new(self.named(of))))
    }

    /// Sets the policy in force after all queued records, even if the queue is full.
    pub fn end_with(&self, of: InForce) {
        let of = Arc::new(self.named(of));
        *self.shared.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(of);
    }

    /// Masks and shortens names as for events.
    fn named(&self, mut of: InForce) -> InForce {
        if let Judged::By { rules, .. } = &mut of.judged {
            let names = |rule: &mut crate::RuleInForce| {
                for name in rule.limits.iter_mut().chain(&mut rule.shadow_limits).chain([&mut rule.name]) {
                    *name = shortened(&self.settings.mask.text(name));
                }
            };
            rules.iter_mut().for_each(names);
        }
        of
    }

    /// Erases a source, or all sources of a prefix. With masked addresses it erases the masked prefix. Returns at
    /// once. The history's thread calls `done` with the number of rows or an error, late if the disk is slow.
    pub fn forget(&self, prefix: IpNet, done: impl FnOnce(Result<u64, String>) + Send + 'static) {
        let done = Erased(Some(Box::new(done)));
        let message = Message::Forget(self.settings.mask.prefix(prefix.trunc()), done);
        let unsent = match &self.queue {
            Some(queue) => queue.try_send(message).err(),
            None => Some(mpsc::TrySendError::Disconnected(message)),
        };
        match unsent {
            Some(mpsc::TrySendError::Full(Message::Forget(_, done))) => {
                let why = self.health().detail.map(|why| format!(": {why}")).unwrap_or_default();
                done.answer(Err(format!("too many records wait to be written; try again later{why}")));
            }
            Some(mpsc::TrySendError::Disconnected(Message::Forget(_, done))) => {
                done.answer(Err(self.health().detail.unwrap_or_else(|| "history is off".to_owned())));
            }
            None | Some(mpsc::TrySendError::Full(_) | mpsc::TrySendError::Disconnected(_)) => {}
        }
    }

    /// Returns the current health of the history.
    pub fn health(&self) -> Health {
        let mut health = self.shared.health.lock().unwrap_or_else(PoisonError::into_inner).clone();
        health.lost = self.shared.lost.load(Ordering::Relaxed);
        health.waiting = self.shared.waiting.load(Ordering::Relaxed);
        health
    }

    /// Returns the settings of the history.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Writes the queued records and ends. Returns false if that takes longer than `within`; the thread then
    /// continues alone.
    pub fn close(self, within: Duration) -> bool {
        self.end().wait(within)
    }

    fn end(mut self) -> Ending {
        self.shared.closing.store(true, Ordering::Relaxed);
        self.queue = None;
        Ending(self.done.take())
    }

    /// Queues a record of a source's history. If the queue is full, the history records a loss.
    fn send_or_miss(&self, time: Timestamp, record: Record) -> bool {
        let is_queued = self.send(record);
        if !is_queued {
            self.lost(time, time, 1);
        }
        is_queued
    }

    fn send(&self, record: Record) -> bool {
        let Some(queue) = &self.queue else { return false };
        queue.try_send(Message::Record(record, Waiting::one(&self.shared))).is_ok()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Relaxed);
    }
}

/// Body of a thread.
pub(crate) type Run = Box<dyn FnOnce() + Send>;

fn spawn(run: Run) -> io::Result<()> {
    thread::Builder::new().name("history".to_owned()).spawn(run).map(drop)
}

impl Waiting {
    /// Returns a count of no records.
    pub(crate) const fn none(shared: Arc<Shared>) -> Self {
        Self { shared, records: 0 }
    }

    fn one(shared: &Arc<Shared>) -> Self {
        shared.waiting.fetch_add(1, Ordering::Relaxed);
        Self { shared: shared.clone(), records: 1 }
    }

    /// Takes over the records of another count.
    pub(crate) fn join(&mut self, mut more: Self) {
        self.records += std::mem::take(&mut more.records);
    }

    /// Ends the waiting of all records, because they are written.
    pub(crate) fn are_written(&mut self) {
        self.shared.waiting.fetch_sub(std::mem::take(&mut self.records), Ordering::Relaxed);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.lost.fetch_add(self.records, Ordering::Relaxed);
        self.are_written();
    }
}

impl Ending {
    /// Waits for the thread. Returns true if it has ended in time.
    fn wait(&mut self, within: Duration) -> bool {
        // A thread that panicked has ended too.
        let is_over = |done: &mut Receiver<()>| done.recv_timeout(within) != Err(RecvTimeoutError::Timeout);
        self.0.take_if(is_over);
        self.0.is_none()
    }
}

impl Erased {
    pub(crate) fn answer(mut self, rows: Result<u64, String>) {
        if let Some(done) = self.0.take() {
            done(rows);
        }
    }
}

impl Drop for Erased {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(Err("the history stopped before this was done; try again".to_owned()));
        }
    }
}

impl Shared {
    fn new(health: Health) -> Arc<Self> {
        let (lost, waiting) = (AtomicU64::new(0), AtomicU64::new(0));
        let (closing, health, last) = (AtomicBool::new(false), Mutex::new(health), Mutex::new(None));
        Arc::new(Self { lost, waiting, closing, health, last, losses: Mutex::default() })
    }

    fn add_loss(&self, more: Lost) {
        losses::add(&mut self.losses.lock().unwrap_or_else(PoisonError::into_inner), more);
    }

    /// Removes and returns the losses that are not written yet.
    pub(crate) fn take_losses(&self) -> Vec<Lost> {
        std::mem::take(&mut self.losses.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes and returns the policy in force after all queued records.
    pub(crate) fn last(&self) -> Option<Arc<InForce>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Reports that the previous thread has not ended.
    fn tell_that_it_waits(&self, path: &Path) {
        let detail = format!("history is not written: {}: earlier records are still being written", path.display());
        tracing::warn!("{detail}");
        self.set(|health| (health.state, health.detail) = (HealthState::Failing, Some(detail)));
    }

    /// Changes the reported health.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Health)) {
        change(&mut self.health.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Progress {
    pub(crate) fn refused(&self) -> Refused {
        Refused { at: self.time.as_millisecond(), packets: self.packets, bytes: self.bytes, used: self.used }
    }
}

const fn health(state: HealthState, detail: Option<String>) -> Health {
    Health { state, detail, lost: 0, waiting: 0, bytes: 0 }
}

/// Returns at most [`TEXT_LEN_MAX`] bytes of a text, without spare capacity.
fn shortened(text: &str) -> String {
    let end = (0..=text.len().min(TEXT_LEN_MAX)).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text[..end].to_owned()
}
