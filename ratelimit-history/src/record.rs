//! What the daemon holds: a queue that never makes it wait, with addresses masked before anything is queued.

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

/// Records in the queue. // 32768 x 0.7 KB = 23 MB, when it is full of events with long texts
pub(crate) const QUEUE_LEN: usize = 32_768;
/// How long the thread before it may write before that is told.
const BEFORE_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of each text of an event that are kept.
pub(crate) const TEXT_LEN_MAX: usize = 256;

/// What was refused of a source since its last progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// When it was read.
    pub time: Timestamp,
    /// The source, as its event named it.
    pub source: IpNet,
    /// The rule's name.
    pub rule: String,
    /// The limit, as its event named it.
    pub limit: String,
    /// Whether nothing was dropped: dry run, or a shadow limit.
    pub would: bool,
    /// Packets refused since the progress before, or since the episode began.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Used of the limit now, in its unit.
    pub used: u64,
}

/// What became of packets in a minute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Total {
    /// The rule's name; empty where no rule judged.
    pub rule: String,
    /// The label of the reason.
    pub reason: String,
    /// What became of them.
    pub outcome: Outcome,
    /// Packets in this minute.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The history's end that takes. Dropped, it leaves the thread to write what waits.
#[derive(Debug)]
pub struct Recorder {
    queue: Option<SyncSender<Message>>,
    done: Option<Receiver<()>>,
    shared: Arc<Shared>,
    settings: Settings,
}

/// What the recorder and its thread both see.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) lost: AtomicU64,
    pub(crate) waiting: AtomicU64,
    pub(crate) closing: AtomicBool,
    health: Mutex<Health>,
    /// What is in force once everything that waits is taken in.
    last: Mutex<Option<Arc<InForce>>>,
    /// Losses that are not written yet.
    losses: Mutex<Vec<Lost>>,
}

/// What the thread is told.
pub(crate) enum Message {
    Record(Record, Waiting),
    Forget(IpNet, Erased),
}

/// What it is to keep.
pub(crate) enum Record {
    Event(Box<Event>, Option<IpNet>),
    Progress(Box<Progress>),
    TakenUp(Vec<(Event, IpNet)>),
    Totals(Timestamp, Vec<Total>),
    InForce(Arc<InForce>),
}

/// Records that wait. What is dropped before [it is written](Self::are_written) is counted as lost.
pub(crate) struct Waiting {
    shared: Arc<Shared>,
    records: u64,
}

/// Called with how many rows were erased, or why it could not be; also where the thread ends before it comes to that.
pub(crate) struct Erased(Option<Answer>);

type Answer = Box<dyn FnOnce(Result<u64, String>) + Send>;

/// The end of a recorder that takes nothing any more, and whose thread may still write.
#[derive(Debug)]
struct Ending(Option<Receiver<()>>);

impl Recorder {
    /// Begins to write. Whatever is wrong with the database is told by [`Self::health`] alone.
    pub fn start(settings: Settings) -> Self {
        Self::off().replaced(Some(settings))
    }

    /// Keeps nothing: `enabled = false`.
    pub fn off() -> Self {
        Self::off_after(Ending(None))
    }

    /// Keeps by these settings from here on, or nothing. At once, and what it is told is queued; but its thread does not touch a
    /// database before that of this one has ended. So no two write at a time.
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
            // Nobody may wait for it.
            let _ = is_done.send(());
        };
        match spawn(Box::new(run)) {
            // It waits for that.
            Ok(()) => drop(hand_over.send(before)),
            // What it is told is lost, and the next one waits for the thread before.
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

    /// Queues an event. False where it is lost, which is counted.
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

    /// Queues what else was refused of a source that has an open episode. False where it is lost; it may be told again with the next.
    pub fn progress(&self, mut progress: Progress) -> bool {
        progress.source = self.settings.mask.prefix(progress.source);
        let time = progress.time;
        self.send_or_miss(time, Record::Progress(Box::new(progress)))
    }

    /// Queues beginnings that may be known already: one opens an episode where none is open, and a ban where no ban is. False
    /// where they are lost.
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

    /// Has the history say that so many events between two times did not come to it. It always finds room.
    pub fn lost(&self, began: Timestamp, ended: Timestamp, events: u64) {
        if self.queue.is_some() && events > 0 {
            self.shared.add_loss(Lost::between(began.as_millisecond(), ended.as_millisecond(), events));
        }
    }

    /// Queues what became of packets in the minute that this time lies in. False where it is lost.
    pub fn totals(&self, minute: Timestamp, rows: Vec<Total>) -> bool {
        self.send(Record::Totals(minute, rows))
    }

    /// Queues what is enforced from a time on: episodes of anything else end then. False where it is lost; it must be told again.
    pub fn in_force(&self, of: InForce) -> bool {
        self.send(Record::InForce(Arc::new(self.named(of))))
    }

    /// Says what is in force after everything that was queued, however full the queue is.
    pub fn end_with(&self, of: InForce) {
        let of = Arc::new(self.named(of));
        *self.shared.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(of);
    }

    /// It, with the names that events have here.
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

    /// Erases a source, or all sources of a prefix; `done` is called by the history's thread, with the number of rows or why it could not.
    /// Where addresses are masked it erases the masked prefix. Waits for nothing; `done` comes late where the disk is slow.
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
                done.answer(Err(format!("too much waits to be written; ask again once less does{why}")));
            }
            Some(mpsc::TrySendError::Disconnected(Message::Forget(_, done))) => {
                done.answer(Err(self.health().detail.unwrap_or_else(|| "history is off".to_owned())));
            }
            None | Some(mpsc::TrySendError::Full(_) | mpsc::TrySendError::Disconnected(_)) => {}
        }
    }

    /// How it is.
    pub fn health(&self) -> Health {
        let mut health = self.shared.health.lock().unwrap_or_else(PoisonError::into_inner).clone();
        health.lost = self.shared.lost.load(Ordering::Relaxed);
        health.waiting = self.shared.waiting.load(Ordering::Relaxed);
        health
    }

    /// How it is kept.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Writes what waits, and ends. False where that took longer than `within`: the thread goes on by itself.
    pub fn close(self, within: Duration) -> bool {
        self.end().wait(within)
    }

    fn end(mut self) -> Ending {
        self.shared.closing.store(true, Ordering::Relaxed);
        self.queue = None;
        Ending(self.done.take())
    }

    /// Queues what the story of a source is made of. Where it finds no room, the history says that it is missing.
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

/// What a thread does.
pub(crate) type Run = Box<dyn FnOnce() + Send>;

fn spawn(run: Run) -> io::Result<()> {
    thread::Builder::new().name("history".to_owned()).spawn(run).map(drop)
}

impl Waiting {
    /// Of none yet.
    pub(crate) const fn none(shared: Arc<Shared>) -> Self {
        Self { shared, records: 0 }
    }

    fn one(shared: &Arc<Shared>) -> Self {
        shared.waiting.fetch_add(1, Ordering::Relaxed);
        Self { shared: shared.clone(), records: 1 }
    }

    /// Those wait here from now on.
    pub(crate) fn join(&mut self, mut more: Self) {
        self.records += std::mem::take(&mut more.records);
    }

    /// They wait no more.
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
    /// Whether its thread has ended by then.
    fn wait(&mut self, within: Duration) -> bool {
        // One that panicked has ended too.
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
            done(Err("the history ended before it came to that; ask again".to_owned()));
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

    /// Returns the losses that are not written yet, and forgets them.
    pub(crate) fn take_losses(&self) -> Vec<Lost> {
        std::mem::take(&mut self.losses.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is in force after everything that was queued.
    pub(crate) fn last(&self) -> Option<Arc<InForce>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The thread before this one has not ended.
    fn tell_that_it_waits(&self, path: &Path) {
        let detail = format!("history is not written: {}: what was kept before is still being written", path.display());
        tracing::warn!("{detail}");
        self.set(|health| (health.state, health.detail) = (HealthState::Failing, Some(detail)));
    }

    /// Changes what is told.
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

/// At most [`TEXT_LEN_MAX`] bytes of a text, in memory too.
fn shortened(text: &str) -> String {
    let end = (0..=text.len().min(TEXT_LEN_MAX)).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text[..end].to_owned()
}
