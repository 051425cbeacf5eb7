//! Thread that reads access logs. It knows no maps. It sends the number of requests per address, and the state of
//! each log.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, channel, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use nix::poll::{PollFd, PollFlags, poll};
use ratelimit_accesslog::{Event, Follower, Limits, Outcomes, Polled, Position, Source, State};
use ratelimit_policy::desired::{AccessLog, Condition, Limit};
use ratelimit_report::replay::Clock;
use ratelimit_report::replay::log::{Asked, Parser, mended};

/// Interval at which files are polled and batches are sent.
const IDLE: Duration = Duration::from_millis(10);
/// Maximum number of sources in one batch.
const SOURCES_MAX: usize = 4_096;
/// Maximum number of batches queued for the daemon. If the queue is full, reading stops and lines stay in the log.
const BATCHES_MAX: usize = 8;
/// Bounds of a single read.
const LIMITS: Limits = Limits::DEFAULT;
/// Interval at which a batch is sent for an idle log, so that the daemon knows that the log is read.
const SENT_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of addresses gathered for one log. Beyond it, reading stops.
const GATHERED_MAX: usize = 8_192;
/// Tolerance for the time in a line, which most formats give in seconds.
const RESOLUTION_NS: u64 = 1_000_000_000;
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

/// Selection of lines that are counted together: at most as old as the window of a limit, and meeting its condition
/// if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) condition: Option<Condition>,
    pub(super) window_ns: u64,
}

impl Counted {
    /// Returns the selection of lines that charge a limit. None if no log charges the limit.
    pub(super) fn of(limit: &Limit) -> Option<Self> {
        limit.is_logged().then_some(Self { condition: limit.condition, window_ns: limit.window_ns })
    }

    /// Returns true if a line of this age in nanoseconds may charge the limit.
    const fn has_age(&self, age_ns: u64) -> bool {
        age_ns <= self.window_ns.saturating_add(RESOLUTION_NS)
    }
}

/// Requests of one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Requests {
    pub(super) lines: u64,
    /// Number of lines in each of [`Wanted::counts`].
    counts: Vec<u64>,
}

impl Requests {
    /// Adds the requests of another address.
    pub(super) fn add(&mut self, other: &Self) {
        self.lines = self.lines.saturating_add(other.lines);
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count = count.saturating_add(*more));
    }

    /// Returns the number of lines that charge a limit. `counts` are those of the log.
    pub(super) fn of(&self, limit: &Limit, counts: &[Counted]) -> u64 {
        let at = Counted::of(limit).and_then(|of| counts.iter().position(|count| *count == of));
        at.and_then(|at| self.counts.get(at)).copied().unwrap_or(0)
    }
}

/// Lines of one log read in one period, summed by address.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) log: AccessLog,
    /// Selection of lines for each count in `requests`.
    pub(super) counts: Arc<[Counted]>,
    /// Requests by address.
    pub(super) requests: Vec<(IpAddr, Requests)>,
    /// Counts of lines that charge no address.
    pub(super) outcomes: Outcomes,
    /// Position after these lines, if known. If a batch is split, only the last part has it.
    pub(super) position: Option<Position>,
    pub(super) state: State,
    pub(super) events: Vec<Event>,
    /// Number of bytes written to the log but not read yet, if known.
    pub(super) behind_bytes: Option<u64>,
    /// True if the end of the log was reached.
    pub(super) is_at_end: bool,
}

/// Handle of the thread, and the receiver of its batches.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) wanted: Vec<Wanted>,
    batches: Receiver<Batch>,
    /// Receives one message after each log was polled once.
    opened: Receiver<()>,
    stop: SyncSender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Starts the thread, which reads each log on from its position.
    ///
    /// # Errors
    /// Fails if the thread cannot start.
    pub(super) fn start(wanted: Vec<Wanted>, positions: &BTreeMap<String, Position>) -> std::io::Result<Self> {
        let (sender, batches) = sync_channel(BATCHES_MAX);
        let (stop, stopped) = sync_channel(1);
        let (open, opened) = sync_channel(1);
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
    pub(super) fn finish(self) -> Vec<Batch> {
        let _full = self.stop.try_send(());
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
        let _full = self.stop.try_send(());
        // A thread that waits for queue space then finds the receiver gone.
        (_, self.batches) = channel();
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
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
    fn send(&mut self, sender: &SyncSender<Batch>) -> bool {
        if self.waiting.is_empty()
            && let Some(batch) = self.take_batch()
        {
            self.waiting.extend(parts(batch));
        }
        while let Some(batch) = self.waiting.pop_front() {
            match sender.try_send(batch) {
                Ok(()) => {}
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

/// Reads all logs until the daemon stops the thread or is gone, then sends the rest. Files are polled, and sockets
/// are awaited.
fn read_all(mut logs: Vec<Log>, sender: &SyncSender<Batch>, opened: &SyncSender<()>, stopped: &Receiver<()>) {
    while stopped.try_recv() == Err(TryRecvError::Empty) {
        let turn_ends = Instant::now() + IDLE;
        let mut is_busy = false;
        // Each log takes its turn in being the first to find queue space.
        let first = usize::from(!logs.is_empty());
        logs.rotate_left(first);
        for log in &mut logs {
            is_busy |= log.gather();
            if !log.send(sender) {
                return;
            }
        }
        // Only the first message fits.
        let _full = opened.try_send(());
        while !is_busy && wait_for_sockets(&logs, turn_ends) {
            for log in logs.iter_mut().filter(|log| log.follower.socket().is_some()) {
                is_busy |= log.gather();
            }
        }
    }
    for mut log in logs {
        let rest = log.take_batch().map(parts).unwrap_or_default();
        for batch in log.waiting.into_iter().chain(rest) {
            if sender.send(batch).is_err() {
                return;
            }
        }
    }
}

/// Waits until a socket is readable and returns true, or until the deadline and returns false.
fn wait_for_sockets(logs: &[Log], until: Instant) -> bool {
    let rest = until.saturating_duration_since(Instant::now());
    let sockets = logs.iter().filter(|log| log.has_room()).filter_map(|log| log.follower.socket());
    let mut sockets: Vec<PollFd<'_>> = sockets.map(|socket| PollFd::new(socket, PollFlags::POLLIN)).collect();
    // Rounding up avoids a busy loop within the last millisecond.
    let rest_ms = u16::try_from(rest.as_millis()).map_or(u16::MAX, |rest| rest.saturating_add(1));
    !rest.is_zero() && poll(&mut sockets, rest_ms).is_ok_and(|ready| ready > 0)
}

/// Splits a batch into parts of at most [`SOURCES_MAX`] addresses. Only the last part has the position.
fn parts(mut batch: Batch) -> Vec<Batch> {
    let mut parts = Vec::new();
    while batch.requests.len() > SOURCES_MAX {
        let rest = batch.requests.split_off(SOURCES_MAX);
        parts.push(Batch {
            log: batch.log.clone(),
            counts: batch.counts.clone(),
            requests: std::mem::replace(&mut batch.requests, rest),
            outcomes: std::mem::take(&mut batch.outcomes),
            position: None,
            state: batch.state.clone(),
            events: std::mem::take(&mut batch.events),
            behind_bytes: batch.behind_bytes,
            is_at_end: false,
        });
    }
    parts.push(batch);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_many_addresses_comes_in_parts_and_none_is_counted_twice() {
        let requests: Vec<_> = (0..10_000_u32)
            .map(|at| (IpAddr::from(at.to_be_bytes()), Requests { lines: at.into(), counts: vec![1] }))
            .collect();
        let batch = Batch {
            log: AccessLog::File("/log".into()),
            counts: Arc::new([]),
            requests: requests.clone(),
            outcomes: Outcomes { malformed: 7, ..Outcomes::default() },
            position: None,
            state: State::Following,
            events: Vec::new(),
            behind_bytes: Some(0),
            is_at_end: true,
        };
        let parts = parts(batch);
        assert_eq!(parts.iter().flat_map(|part| part.requests.clone()).collect::<Vec<_>>(), requests);
        assert!(parts.iter().all(|part| part.requests.len() <= SOURCES_MAX));
        assert_eq!(parts.iter().map(|part| part.outcomes.malformed).sum::<u64>(), 7);
        assert_eq!(parts.iter().map(|part| part.is_at_end).collect::<Vec<_>>(), [false, false, true]);
    }

    #[test]
    fn a_line_written_after_the_logs_were_opened_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        std::fs::write(&path, "a line from before the start\n").unwrap();
        for _ in 0..20 {
            let counts = vec![Counted { condition: None, window_ns: 60_000_000_000 }];
            let wanted = vec![Wanted { log: AccessLog::File(path.clone()), counts }];
            let reader = Reader::start(wanted, &BTreeMap::new()).unwrap();
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
