//! Event loop over messages, due work and answers.

mod heard;
mod publish;

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use ratelimit_common::time::Nanos;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::voice::Voice;
use super::{Kernel, Message, Status};
use crate::acts::{Act, Ledger};
use crate::core::{Core, after};
use crate::hosts::{self, GONE_AFTER, Hosts, Record};
use crate::names::Shard;
use crate::store::access::Access;
use crate::store::link::{Beat, ConnectError, Heard, Link};
use crate::store::pulse::{Pulse, StorePart};
use crate::store::trouble::Trouble;
use crate::trips::Trips;
use crate::wire::{Call, Said};

/// Maximum number of calls in flight, one per shard. Others wait here: a call that timed out in the store's queue would
/// be sent again, so a slow store would never catch up.
const CALLS_MAX: usize = 8;

/// Maximum number of messages taken in one turn of the loop.
const MESSAGES_AT_ONCE: usize = 1024;

/// Identity of this process for the other hosts.
pub(super) struct Me {
    pub(super) process: u64,
    pub(super) name: String,
    pub(super) machine: u64,
    pub(super) version: String,
}

enum Connection {
    None { next: Instant },
    Connecting,
    Up(Link),
}

enum Done {
    Connected(Result<Link, ConnectError>),
    Exchanged { generation: u64, waiting: Box<Waiting>, took: Duration, answer: Result<Vec<Said>, Trouble> },
    Beaten { generation: u64, asked: Nanos, acts: Vec<Act>, took: Duration, answer: Result<Heard, Trouble> },
}

/// Call, and the time at which its counts were read in the kernel.
#[derive(Clone)]
struct Waiting {
    read_at: Nanos,
    call: Call,
}

type UnderWay = FuturesUnordered<Pin<Box<dyn Future<Output = Done> + Send>>>;

pub(super) struct Task {
    core: Core,
    me: Me,
    access: Arc<Access>,
    interval: Duration,
    ledger: Ledger,
    hosts: Hosts,
    heard: String,
    pulse: Pulse,
    trips: Trips,
    voice: Voice,
    began_at: Instant,
    connection: Connection,
    /// Number of the connection. Results of an older connection do not count for this one.
    generation: u64,
    pending: UnderWay,
    /// Calls that wait to be sent. No round begins before the queue is empty.
    queue: VecDeque<Waiting>,
    /// Shards with a call in flight.
    busy: HashSet<Shard>,
    /// Shards that do not answer, with the time at which this was first noticed.
    silent: HashMap<Shard, Instant>,
    beats_at: Instant,
    is_beating: bool,
    has_beaten: bool,
    /// Time at which the store last listed the hosts.
    beaten_at: Instant,
    /// Time at which another process last claimed to be this host.
    doubled_at: Option<Instant>,
    /// True if this connection delivered an answer. A server that hangs accepts connections too.
    is_heard: bool,
    was_away: bool,
    outages: u64,
    admitted: u64,
    lost: Arc<AtomicU64>,
    /// Hashes of the limits, for this host's record.
    marks: Option<Vec<u32>>,
    acts: mpsc::Sender<Act>,
    status: Status,
    published: watch::Sender<Status>,
    random: SystemRandom,
}

impl Task {
    pub(super) fn new(
        core: Core,
        me: Me,
        access: Access,
        interval: Duration,
        lost: Arc<AtomicU64>,
        acts: mpsc::Sender<Act>,
        published: watch::Sender<Status>,
    ) -> Self {
        let marks = hosts::marks(core.limits());
        Self {
            core,
            marks,
            me,
            access: Arc::new(access),
            interval,
            ledger: Ledger::default(),
            hosts: Hosts::default(),
            heard: "0".to_owned(),
            pulse: Pulse::default(),
            trips: Trips::default(),
            voice: Voice::default(),
            began_at: Instant::now(),
            connection: Connection::None { next: Instant::now() },
            generation: 0,
            pending: FuturesUnordered::new(),
            queue: VecDeque::new(),
            busy: HashSet::new(),
            silent: HashMap::new(),
            beats_at: Instant::now(),
            is_beating: false,
            has_beaten: false,
            beaten_at: Instant::now(),
            doubled_at: None,
            is_heard: false,
            was_away: false,
            outages: 0,
            admitted: 0,
            lost,
            acts,
            status: Status::default(),
            published,
            random: SystemRandom::new(),
        }
    }

    pub(super) async fn run<K: Kernel>(
        mut self,
        mut kernel: K,
        mut inbox: mpsc::Receiver<Message>,
        now: impl Fn() -> Nanos + Send + Sync,
    ) {
        let mut messages = Vec::new();
        loop {
            let wakes_at = self.wakes_at(now());
            tokio::select! {
                count = inbox.recv_many(&mut messages, MESSAGES_AT_ONCE) => {
                    if count == 0 {
                        return;
                    }
                    messages.drain(..).for_each(|message| self.take(message, &mut kernel, now()));
                }
                Some(done) = self.pending.next() => {
                    let told = self.done(done, now());
                    if !told.is_empty() {
                        kernel.write(told).await;
                    }
                }
                () = sleep_until(wakes_at) => {}
            }
            self.connect();
            self.beat(now());
            let is_free = matches!(self.connection, Connection::Up(_)) && self.queue.is_empty();
            if is_free && now() >= self.core.wakes_at() {
                let read_at = now();
                let due = self.core.due(read_at);
                let read = if due.is_empty() { Vec::new() } else { kernel.read(due.clone()).await };
                let round = self.core.round(now(), &due, &read);
                self.queue.extend(round.calls.into_iter().map(|call| Waiting { read_at, call }));
                if !round.told.is_empty() {
                    kernel.write(round.told).await;
                }
            }
            self.exchange();
            self.publish(now());
        }
    }

    /// Returns the time of the next work that no message triggers.
    fn wakes_at(&self, now: Nanos) -> Instant {
        match &self.connection {
            Connection::None { next } => *next,
            // The attempt ends by itself.
            Connection::Connecting => Instant::now() + self.interval,
            Connection::Up(_) => {
                // The answer to a beat, or to a call that blocks others, wakes the loop by itself.
                let beats_at = if self.is_beating { Instant::now() + self.interval } else { self.beats_at };
                if !self.queue.is_empty() {
                    return beats_at;
                }
                let until = Duration::from_nanos(self.core.wakes_at().0.saturating_sub(now.0));
                (Instant::now() + until).min(beats_at)
            }
        }
    }

    fn take<K: Kernel>(&mut self, message: Message, kernel: &mut K, now: Nanos) {
        match message {
            Message::Crossed(subject, bucket) => self.core.crossed(subject, bucket, now),
            Message::CrossingsLost(count) => self.core.crossings_lost(count),
            Message::Act(begun) => {
                if matches!(begun.what, crate::acts::What::Reset { .. }) {
                    self.core.reset(begun.prefix);
                }
                self.status.acts_taken = self.status.acts_taken.max(begun.number);
                self.ledger.begin(self.core.host(), begun, now);
                // Publishes at once, unless a beat is in flight.
                self.beats_at = Instant::now();
            }
            Message::Admitted(count) => self.admitted = count,
            Message::Limits(limits) => {
                kernel.set_limits(&limits);
                self.core.set_limits(limits);
                self.marks = hosts::marks(self.core.limits());
            }
            // The requester may be gone.
            Message::Standing(subject, answer) => drop(answer.send(self.core.standing(subject, now))),
        }
    }

    fn connect(&mut self) {
        let Connection::None { next } = self.connection else {
            return;
        };
        if Instant::now() < next {
            return;
        }
        self.connection = Connection::Connecting;
        let access = Arc::clone(&self.access);
        self.pending.push(Box::pin(async move { Done::Connected(Link::connect(&access).await) }));
    }

    fn beat(&mut self, now: Nanos) {
        let Connection::Up(link) = &self.connection else {
            return;
        };
        if self.is_beating || Instant::now() < self.beats_at {
            return;
        }
        let acts = self.ledger.due(now);
        // One nonce for the record and one per act; none is used twice.
        let Some(nonces) = (0..=acts.len()).map(|_| self.nonce()).collect::<Option<Vec<_>>>() else {
            return;
        };
        let Some((nonce, nonces)) = nonces.split_first() else {
            return;
        };
        self.is_beating = true;
        self.beats_at = Instant::now() + self.interval;
        let names = self.core.names();
        let record = Record {
            name: self.me.name.clone(),
            version: self.me.version.clone(),
            ahead_ns: self.core.ahead_ns(),
            admitted_last_minute: self.admitted,
            outages: self.outages,
            process: self.me.process,
            hosts: self.core.hosts(),
            limits: self.marks.clone(),
            machine: self.me.machine,
            up_ms: Some(self.up_ms()),
            delay_ms: self.own_delay_ms(now),
        };
        let beat = Beat {
            keys: [names.hosts_key(), names.acts_key()],
            host: self.core.host().0,
            record: record.seal(self.core.host(), names, *nonce),
            heard: self.heard.clone(),
            acts: acts.iter().zip(nonces).map(|(act, nonce)| act.seal(names, *nonce)).collect(),
        };
        let (link, generation) = (link.clone(), self.generation);
        self.pending.push(Box::pin(async move {
            let began = Instant::now();
            let answer =
                link.beat(&beat, GONE_AFTER.as_millis(), crate::acts::KEPT.as_millis(), crate::acts::ROUND_MAX).await;
            Done::Beaten { generation, asked: now, acts, took: began.elapsed(), answer }
        }));
    }

    fn exchange(&mut self) {
        let Connection::Up(link) = &self.connection else {
            return;
        };
        while self.busy.len() < CALLS_MAX {
            let free = self.queue.iter().position(|waiting| !self.busy.contains(&waiting.call.shard));
            let Some(waiting) = free.and_then(|at| self.queue.remove(at)) else {
                return;
            };
            self.busy.insert(waiting.call.shard);
            let (link, generation) = (link.clone(), self.generation);
            self.pending.push(Box::pin(async move {
                let began = Instant::now();
                let answer = link.exchange(&waiting.call).await;
                Done::Exchanged { generation, waiting: Box::new(waiting), took: began.elapsed(), answer }
            }));
        }
    }

    /// Drops queued calls that match `is_lost`, and marks them as failed.
    fn give_up(&mut self, is_lost: impl Fn(&Call) -> bool, now: Nanos) {
        let (lost, kept) = std::mem::take(&mut self.queue).into_iter().partition(|waiting| is_lost(&waiting.call));
        let lost: VecDeque<Waiting> = lost;
        self.queue = kept;
        lost.iter().for_each(|waiting| self.core.failed(&waiting.call, now));
    }

    fn done(&mut self, done: Done, now: Nanos) -> Vec<crate::tracked::Told> {
        match done {
            Done::Connected(Ok(link)) => self.connected(link),
            Done::Connected(Err(error)) => {
                let (trouble, error, said) = match error {
                    ConnectError::Store(trouble, said) => (trouble, None, said),
                    ConnectError::Access(error) => (Trouble::Other, Some(error.to_string()), None),
                };
                (self.status.error, self.status.said) = (error, said);
                self.pulse.refused(trouble);
                self.status.failed(trouble);
                self.disconnect();
            }
            Done::Exchanged { generation, waiting, took, answer } => {
                let Waiting { read_at, call } = *waiting;
                self.busy.remove(&call.shard);
                match answer {
                    Ok(said) => {
                        // Counts that were not reported meanwhile belong to buckets that other hosts may consider
                        // final.
                        let silent = self.silent.remove(&call.shard);
                        self.was_away |= silent.is_some_and(|since| since.elapsed() >= self.interval);
                        let way = Duration::from_nanos(now.0.saturating_sub(read_at.0));
                        self.answered(generation, took, Some(way), now);
                        self.pulse.heard(StorePart::Shard(call.shard.0));
                        return self.core.answered(&call, &said, now);
                    }
                    Err(trouble) => {
                        self.silent.entry(call.shard).or_insert_with(Instant::now);
                        self.core.failed(&call, now);
                        self.give_up(|waiting| waiting.shard == call.shard, now);
                        self.failed(generation, StorePart::Shard(call.shard.0), trouble);
                        if !matches!(self.connection, Connection::Up(_)) {
                            self.give_up(|_| true, now);
                        }
                    }
                }
            }
            Done::Beaten { generation, asked, acts, took, answer } => {
                self.is_beating = false;
                match answer {
                    Ok(heard) => {
                        self.answered(generation, took, None, now);
                        self.pulse.heard(StorePart::Hosts);
                        self.ledger.said(&acts, now);
                        self.hear(&heard, asked, after(asked, took), now);
                    }
                    Err(trouble) => {
                        self.failed(generation, StorePart::Hosts, trouble);
                        if !matches!(self.connection, Connection::Up(_)) {
                            self.give_up(|_| true, now);
                        }
                    }
                }
            }
        }
        Vec::new()
    }

    fn connected(&mut self, link: Link) {
        self.generation += 1;
        self.connection = Connection::Up(link);
        self.status.connections += 1;
        self.status.error = None;
        self.is_heard = false;
        self.beats_at = Instant::now();
    }

    fn failed(&mut self, generation: u64, part: StorePart, trouble: Trouble) {
        self.status.failed(trouble);
        if generation != self.generation {
            return;
        }
        self.was_away |= part == StorePart::Hosts;
        let link = match &self.connection {
            Connection::Up(link) => Some(link),
            Connection::None { .. } | Connection::Connecting => None,
        };
        if let Some(said) = link.and_then(|link| link.words(trouble)) {
            self.status.said = Some(said);
        }
        // A broken connection to a single server never recovers; a cluster's does.
        let is_broken = link.is_some_and(|link| !link.is_cluster()) && trouble.ends_connection();
        if self.pulse.failed(part, trouble) || is_broken {
            self.disconnect();
        }
    }

    fn disconnect(&mut self) {
        self.was_away = true;
        self.generation += 1;
        let mut random = [0; 8];
        // Without randomness all hosts reconnect together, which only costs work.
        self.random.fill(&mut random).ok();
        let pause = self.pulse.pause(u64::from_be_bytes(random));
        self.connection = Connection::None { next: Instant::now() + pause };
    }

    fn answered(&mut self, generation: u64, took: Duration, way: Option<Duration>, now: Nanos) {
        if generation == self.generation {
            if !std::mem::replace(&mut self.is_heard, true) {
                self.pulse.connected();
                // Response times of another connection do not apply.
                self.trips.clear();
            }
            self.trips.learn(now, took, way);
        }
        if self.is_heard && std::mem::take(&mut self.was_away) {
            // Other hosts request counts again when they see the outage; this host requests what it missed.
            self.outages += 1;
            self.beats_at = Instant::now();
            self.core.rejoined(now);
        }
        self.status.answered(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), now);
    }

    fn nonce(&self) -> Option<[u8; 12]> {
        let mut nonce = [0; 12];
        self.random.fill(&mut nonce).ok().map(|()| nonce)
    }
}
