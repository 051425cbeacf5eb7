//! Thread that reads access logs. It knows no maps. It sends the number of requests per address, and the state of
//! each log.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{PipeReader, PipeWriter};
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, channel, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use ratelimit_accesslog::{Event, Follower, Limits, Outcomes, Polled, Position, Source, State};
use ratelimit_policy::desired::AccessLog;
use ratelimit_report::replay::Clock;
use ratelimit_report::replay::log::{Asked, Parser, mended};
use tokio::sync::Notify;

use super::batch::{Batch, Counted, Requests, parts};

/// Interval at which files are polled that report no writes, such as a FIFO.
const POLLED_EVERY: Duration = Duration::from_millis(10);
/// Interval at which all files are polled. A file that takes a log's name is found that much later.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(100);
/// Pause after the first lines, before more are read. Each further pause is twice as long, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_micros(100);
/// Maximum pause while lines arrive. It bounds the number of batches, and so the CPU time for a busy log. After as long
/// without lines, the pauses are short again.
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// Maximum number of batches queued for the daemon. If the queue is full, reading stops and lines stay in the log.
const BATCHES_MAX: usize = 8;
/// Bounds of a single read.
const LIMITS: Limits = Limits::DEFAULT;
/// Interval at which a batch is sent for an idle log, so that the daemon knows that the log is read.
const SENT_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of addresses gathered for one log. Beyond it, reading stops.
const GATHERED_MAX: usize = 8_192;
/// Maximum time by which a line may be ahead of this host's clock. Later lines charge nobody.
const AHEAD_MAX_NS: u64 = 5_000_000_000;
/// Time after which the host's time zone is looked up again. Its offset changes with the season.
const PARSER_LASTS: Duration = Duration::from_secs(3_600);
/// Maximum time that a start waits for its logs to be opened. A file system that hangs takes longer.
const OPENED_WITHIN: Duration = Duration::from_millis(500);

/// Log to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) log: AccessLog,
    /// Counts that the rules need, without duplicates.
    pub(super) counts: Vec<Counted>,
}

/// Handle of the thread, and the receiver of its batches.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) wanted: Vec<Wanted>,
    batches: Receiver<Batch>,
    /// Receives one message after each log was polled once.
    opened: Receiver<()>,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

/// Sender of the order to end the thread.
#[derive(Debug)]
struct Stop {
    order: SyncSender<()>,
    /// Closed to end the thread's wait.
    wake: Option<PipeWriter>,
}

impl Stop {
    /// Orders the thread to end.
    fn send(&mut self) {
        let _full = self.order.try_send(());
        self.wake = None;
    }
}

/// Receiver of the order to end the thread.
struct Stopped {
    order: Receiver<()>,
    /// Readable once the order was sent.
    wake: PipeReader,
}

impl Reader {
    /// Starts the thread, which reads each log on from its position. It notifies `arrived` after each batch.
    ///
    /// # Errors
    /// Fails if the thread cannot start.
    pub(super) fn start(
        wanted: Vec<Wanted>,
        positions: &BTreeMap<String, Position>,
        arrived: Arc<Notify>,
    ) -> std::io::Result<Self> {
        let (batches_to, batches) = sync_channel(BATCHES_MAX);
        let sender = Sender { batches: batches_to, arrived };
        let (open, opened) = sync_channel(1);
        let (order, ordered) = sync_channel(1);
        let (awoken, wake) = std::io::pipe()?;
        let (stop, stopped) = (Stop { order, wake: Some(wake) }, Stopped { order: ordered, wake: awoken });
        let logs: Vec<_> = wanted.iter().map(|of| Log::new(of, positions.get(&of.log.to_string()).cloned())).collect();
        let thread =
            Builder::new().name("access-log".into()).spawn(move || read_all(logs, &sender, &open, &stopped))?;
        Ok(Self { wanted, batches, opened, stop, thread: Some(thread) })
    }

    /// Waits until each log was polled once, at most [`OPENED_WITHIN`]. A new log is read from the end that it had at
    /// its first poll.
    pub(super) fn wait_until_opened(&self) {
        let _late_or_gone = self.opened.recv_timeout(OPENED_WITHIN);
    }

    /// Returns the next batch, if any.
    pub(super) fn next(&self) -> Option<Batch> {
        self.batches.try_recv().ok()
    }

    /// Stops the thread, and returns the batches of what it has read.
    pub(super) fn finish(mut self) -> Vec<Batch> {
        self.stop.send();
        // The thread ends once it has sent them.
        self.batches.iter().collect()
    }

    /// Returns true if the thread has ended, which it never does on its own.
    pub(super) fn is_gone(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.send();
        // A thread that waits for queue space then finds the receiver gone.
        (_, self.batches) = channel();
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Queue of batches to the daemon.
struct Sender {
    batches: SyncSender<Batch>,
    /// Notified after each batch, so that the daemon charges it at once.
    arrived: Arc<Notify>,
}

/// Log that is being read.
struct Log {
    wanted: AccessLog,
    counts: Arc<[Counted]>,
    follower: Follower,
    parser: Parser,
    parser_since: Instant,
    /// State in the last batch.
    told: Option<State>,
    /// Time of the last batch.
    sent: Instant,
    gathered: Gathered,
    /// Batches that do not fit into the queue yet, oldest first.
    waiting: VecDeque<Batch>,
}

/// Lines of one log read since its last batch.
#[derive(Debug, Default)]
struct Gathered {
    requests: HashMap<IpAddr, Requests>,
    outcomes: Outcomes,
    events: Vec<Event>,
    state: Option<State>,
    behind_bytes: Option<u64>,
    /// True if the last poll left unread data.
    has_more: bool,
    is_new: bool,
}

impl Log {
    fn new(wanted: &Wanted, position: Option<Position>) -> Self {
        let source = match &wanted.log {
            AccessLog::File(path) => Source::File(path.clone()),
            AccessLog::Socket { path, group } => Source::Socket { path: path.clone(), group: group.clone() },
        };
        Self {
            wanted: wanted.log.clone(),
            counts: wanted.counts.clone().into(),
            follower: Follower::new(source, position, LIMITS),
            parser: parser(),
            parser_since: Instant::now(),
            told: None,
            sent: Instant::now(),
            gathered: Gathered::default(),
            waiting: VecDeque::new(),
        }
    }

    /// Returns true if more lines may be gathered.
    fn has_room(&self) -> bool {
        self.gathered.requests.len() < GATHERED_MAX
    }

    /// Returns true if new lines were gathered since the last batch, or a batch waits for queue space.
    fn has_unsent(&self) -> bool {
        self.gathered.is_new || !self.waiting.is_empty()
    }

    /// Reads the new lines, if there is room for them. Returns true if more are ready.
    fn gather(&mut self) -> bool {
        if !self.has_room() {
            return false;
        }
        if self.parser_since.elapsed() > PARSER_LASTS {
            (self.parser, self.parser_since) = (parser(), Instant::now());
        }
        let now = now_ns();
        let Self { follower, parser, counts, gathered, .. } = self;
        let has_conditions = counts.iter().any(|of| of.condition.is_some());
        let Gathered { requests, outcomes, .. } = gathered;
        let polled = follower.poll(now, &mut |line| {
            let mut text = line.trim_ascii();
            let mut read = parser.direct(text);
            // Its client made the line so long that it was cut.
            let whole = Some(line).filter(|line| line.len() >= LIMITS.line_max && read.is_err()).and_then(mended);
            if let Some(whole) = &whole {
                text = whole;
                read = parser.direct(text);
            }
            match read {
                _ if text.is_empty() => {}
                Ok(None) => {}
                Err(_) => outcomes.malformed += 1,
                Ok(Some(of)) if of.at.0 > now.saturating_add(AHEAD_MAX_NS) => outcomes.in_future += 1,
                Ok(Some(of)) => {
                    let age_ns = now.saturating_sub(of.at.0);
                    if !counts.iter().any(|of| of.has_age(age_ns)) {
                        outcomes.too_old += 1;
                        return;
                    }
                    let requests = requests.entry(of.source.to_canonical()).or_default();
                    requests.lines += 1;
                    requests.counts.resize(counts.len(), 0);
                    // The missing part of a cut line counts as meeting conditions. Otherwise clients could control
                    // what is read of their lines.
                    let asked = if has_conditions {
                        Asked::of(text).cut(line.len() >= LIMITS.line_max)
                    } else {
                        Asked::default()
                    };
                    for (count, of) in requests.counts.iter_mut().zip(counts.iter()) {
                        let is_met = of.condition.is_none_or(|condition| asked.meets(&condition));
                        *count += u64::from(is_met && of.has_age(age_ns));
                    }
                }
            }
        });
        let Polled { lines: read, skipped_lines, skipped_bytes, lag, state, more, events, .. } = polled;
        gathered.outcomes.too_long += skipped_lines;
        gathered.outcomes.skipped_bytes += skipped_bytes;
        gathered.is_new |= read > 0 || skipped_lines > 0 || skipped_bytes > 0 || !events.is_empty();
        gathered.events.extend(events);
        (gathered.state, gathered.behind_bytes, gathered.has_more) = (Some(state), lag, more);
        more
    }

    /// Sends gathered lines while the queue has room. Returns false if the daemon is gone.
    fn send(&mut self, sender: &Sender) -> bool {
        if self.waiting.is_empty()
            && let Some(batch) = self.take_batch()
        {
            self.waiting.extend(parts(batch));
        }
        while let Some(batch) = self.waiting.pop_front() {
            match sender.batches.try_send(batch) {
                Ok(()) => sender.arrived.notify_one(),
                Err(TrySendError::Disconnected(_)) => return false,
                Err(TrySendError::Full(batch)) => {
                    self.waiting.push_front(batch);
                    return true;
                }
            }
        }
        true
    }

    /// Returns the gathered lines. None if nothing is new and the last batch is recent.
    fn take_batch(&mut self) -> Option<Batch> {
        let state = self.gathered.state.clone()?;
        let is_told = !self.gathered.is_new && self.told.as_ref() == Some(&state) && !self.gathered.has_more;
        if is_told && self.sent.elapsed() < SENT_EVERY {
            return None;
        }
        (self.told, self.sent) = (Some(state.clone()), Instant::now());
        let Gathered { requests, outcomes, events, behind_bytes, has_more, .. } = std::mem::take(&mut self.gathered);
        Some(Batch {
            log: self.wanted.clone(),
            counts: self.counts.clone(),
            requests: requests.into_iter().collect(),
            outcomes,
            position: self.follower.position(),
            state,
            events,
            behind_bytes,
            is_at_end: !has_more,
        })
    }
}

fn parser() -> Parser {
    Parser::new(Clock { zone: TimeZone::system(), now: Timestamp::now() })
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads all logs until the daemon stops the thread or is gone, then sends the rest. Waits for writes, and polls files
/// at an interval too.
fn read_all(mut logs: Vec<Log>, sender: &Sender, opened: &SyncSender<()>, stopped: &Stopped) {
    let mut pause = PAUSE_MIN;
    let mut is_written = false;
    while stopped.order.try_recv() == Err(TryRecvError::Empty) {
        let begins = Instant::now();
        let mut has_more = false;
        // Each log takes its turn in being the first to find queue space.
        let first = usize::from(!logs.is_empty());
        logs.rotate_left(first);
        for log in &mut logs {
            has_more |= log.gather();
            is_written |= log.has_unsent();
            if !log.send(sender) {
                return;
            }
        }
        // Only the first message fits.
        let _full = opened.try_send(());
        if is_written {
            has_more |= gather_sockets(&mut logs, begins + pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
        is_written = has_more || logs.iter().any(Log::has_unsent);
        if is_written {
            continue;
        }
        let waits_from = Instant::now();
        let is_polled = logs.iter().any(|log| log.follower.is_unreported());
        let until = begins + if is_polled { POLLED_EVERY } else { LOOKED_AT_EVERY };
        let written = logs.iter().filter_map(|log| log.follower.written());
        is_written = wait(written.chain([stopped.wake.as_fd()]), until);
        if waits_from.elapsed() >= PAUSE_MAX {
            pause = PAUSE_MIN;
        }
    }
    for mut log in logs {
        let rest = log.take_batch().map(parts).unwrap_or_default();
        for batch in log.waiting.into_iter().chain(rest) {
            if sender.batches.send(batch).is_err() {
                return;
            }
        }
    }
}

/// Gathers the lines of sockets as they arrive, until the given time. Sockets queue few lines. Returns true if more are
/// ready.
fn gather_sockets(logs: &mut [Log], until: Instant) -> bool {
    let mut has_more = false;
    while !has_more && wait(logs.iter().filter(|log| log.has_room()).filter_map(|log| log.follower.socket()), until) {
        for log in logs.iter_mut().filter(|log| log.follower.socket().is_some()) {
            has_more |= log.gather();
        }
    }
    has_more
}

/// Waits until a descriptor is readable and returns true, or until the deadline and returns false.
fn wait<'a>(descriptors: impl Iterator<Item = BorrowedFd<'a>>, until: Instant) -> bool {
    let rest = until.saturating_duration_since(Instant::now());
    let mut descriptors: Vec<PollFd<'_>> = descriptors.map(|of| PollFd::new(of, PollFlags::POLLIN)).collect();
    !rest.is_zero() && ppoll(&mut descriptors, Some(TimeSpec::from_duration(rest)), None).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write as _;

    use super::*;

    #[tokio::test]
    async fn each_batch_is_announced_as_lines_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        let mut log = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let counts = vec![Counted { condition: None, window_ns: 3_600_000_000_000 }];
        let wanted = Wanted { log: AccessLog::File(path), counts };
        let arrived = Arc::new(Notify::new());
        let reader = Reader::start(vec![wanted], &BTreeMap::new(), arrived.clone()).unwrap();
        let mut line = |address: &str| {
            let time = Timestamp::now().strftime("%d/%b/%Y:%H:%M:%S +0000");
            writeln!(log, "{address} - - [{time}] \"GET / HTTP/2.0\" 200 3 \"-\" \"-\"").unwrap();
        };
        arrived.notified().await;
        assert_eq!(reader.next().unwrap().state, State::Following);
        line("192.0.2.7");
        let batch = loop {
            arrived.notified().await;
            match reader.next() {
                Some(batch) if !batch.requests.is_empty() => break batch,
                Some(_) | None => {}
            }
        };
        assert_eq!((batch.requests[0].0.to_string(), batch.requests[0].1.lines), ("192.0.2.7".to_owned(), 1));
        assert!(!reader.is_gone());
    }

    #[test]
    fn a_line_written_after_the_logs_were_opened_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        std::fs::write(&path, "a line from before the start\n").unwrap();
        for _ in 0..20 {
            let counts = vec![Counted { condition: None, window_ns: 60_000_000_000 }];
            let wanted = vec![Wanted { log: AccessLog::File(path.clone()), counts }];
            let reader = Reader::start(wanted, &BTreeMap::new(), Arc::default()).unwrap();
            reader.wait_until_opened();
            let time = Timestamp::now().strftime("%d/%b/%Y:%H:%M:%S +0000");
            let line = format!("192.0.2.1 - - [{time}] \"GET / HTTP/1.1\" 200 3 \"-\" \"-\"\n");
            std::io::Write::write_all(&mut std::fs::File::options().append(true).open(&path).unwrap(), line.as_bytes())
                .unwrap();
            let lines = std::iter::from_fn(|| reader.batches.recv_timeout(Duration::from_secs(2)).ok())
                .map(|batch| batch.requests.iter().map(|(_, requests)| requests.lines).sum::<u64>());
            assert_eq!(lines.take(10).find(|lines| *lines > 0), Some(1));
        }
    }
}
