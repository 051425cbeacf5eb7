//! Simulation of 2 to 32 hosts over the pure core, with a random network and random clocks from a seed.
//!
//! Each run checks four properties. No invention: no host counts more for the others than they admitted. Local limit:
//! each host admits at most N in every window. Convergence: after two quiet rounds, all hosts know all admissions.
//! Bound: if nothing is lost, the fleet's admissions in any real window stay within the bound that `check-config`
//! prints.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

mod support;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::env;
use std::thread;
use std::time::Duration;

use ipnet::IpNet;
use ratelimit_common::time::{BucketIndex, Nanos, SECOND_NS};
use ratelimit_fleet::core::{Core, Settings};
use ratelimit_fleet::names::{HostId, Names, Shard};
use ratelimit_fleet::tracked::{Count, LimitId, Subject};
use ratelimit_fleet::trips::Trips;
use ratelimit_fleet::wire::{Call, Said};
use ratelimit_policy::fleet::{DELAY, FleetLimit, Sum, Terms};
use support::trouble::{Trouble, ill, slow, well};
use support::{Chance, Reports, Store};

const MS: u64 = 1_000_000;
const BUCKET_NS: u64 = support::trouble::BUCKET_NS;
const START: u64 = 1_750_000_000 * SECOND_NS;
/// Maximum transit time of a call or an answer in ms, in runs that check the bound.
const WAY_MS: u64 = 30;
/// Maximum time from a crossing to the write in another kernel: the gap between reads, and two transits.
const DELAY_NS: u64 = (20 + 2 * WAY_MS + 2) * MS;
/// Maximum number of calls in flight per host, as in the task.
const CALLS_MAX: usize = 8;
const RUNS_IN_CI: u64 = 10_000; // within a minute on 2 CPUs
const RUNS: u64 = 500;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Offer { host: usize, source: usize },
    Wake { host: usize },
    AtStore(usize),
    Answer { host: usize, call: usize, answer: usize },
    Trouble,
}

/// One bucket of a source in a simulated kernel.
#[derive(Clone, Copy, Default)]
struct Cell {
    own: u64,
    others: u64,
}

struct Host {
    id: HostId,
    core: Core,
    kernel: HashMap<IpNet, BTreeMap<u64, Cell>>,
    offset_ns: i64,
    is_cut: bool,
    /// Time of the earliest scheduled wake event.
    wakes_at: u64,
    /// Number of the process. Answers to calls of an earlier process are dropped.
    process: u64,
    /// Queued calls, and the times at which their counts were read.
    queue: VecDeque<(u64, Call)>,
    busy: HashSet<Shard>,
    trips: Trips,
    /// Longest report delay that the printed bound used.
    delay: Duration,
}

/// Call that was sent.
struct Sent {
    host: usize,
    process: u64,
    call: Call,
    read_at: u64,
    sent_at: u64,
    is_answered: bool,
}

struct Fleet {
    chance: Chance,
    limit: FleetLimit,
    terms: Terms,
    trouble: Trouble,
    is_quiet: bool,
    hosts: Vec<Host>,
    sources: Vec<IpNet>,
    store: Store,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    events_made: u64,
    calls: Vec<Sent>,
    answers: Vec<Vec<Said>>,
    /// True admissions per source and bucket, by id of the kernel state.
    truth: HashMap<(IpNet, u64), HashMap<HostId, u64>>,
    /// Times of the fleet's admissions, by source.
    admitted: Vec<Vec<u64>>,
    offered: Vec<Vec<u64>>,
    ids: u64,
}

/// Description of a violated property.
type Wrong = String;

fn names() -> Names {
    Names::new("web", &[7; 32]).unwrap()
}

impl Fleet {
    fn new(seed: u64, reports: Reports, trouble: impl Fn(&mut Chance) -> Trouble) -> Self {
        let mut chance = Chance(seed);
        let count = chance.of(&[2, 2, 3, 4, 4, 8, 16, 32]);
        let amount = chance.of(&[1, 5, 20, 100, 300, 1000]);
        let sum = chance.of(&[Sum::Verified, Sum::All]);
        let full_buckets = chance.of(&[4, 5, 6, 7]);
        let limit = FleetLimit { identity: "l".to_owned(), amount, bucket_ns: BUCKET_NS, full_buckets, sum };
        let trouble = trouble(&mut chance);
        let terms = Terms::new(&limit, count);
        let sources =
            (1..=chance.between(1, 4)).map(|n| format!("192.0.2.{n}/32").parse().unwrap()).collect::<Vec<_>>();
        let mut fleet = Self {
            limit,
            terms,
            trouble,
            is_quiet: false,
            hosts: Vec::new(),
            store: Store::new(reports),
            events: BinaryHeap::new(),
            events_made: 0,
            calls: Vec::new(),
            answers: Vec::new(),
            truth: HashMap::new(),
            admitted: vec![Vec::new(); sources.len()],
            offered: vec![Vec::new(); sources.len()],
            ids: 0,
            sources,
            chance,
        };
        for _ in 0..count {
            let id = fleet.fresh_id();
            let core = fleet.core(id);
            let most = i64::try_from(trouble.offset_ms_max * MS).unwrap();
            let offset_ns = if most == 0 {
                0
            } else {
                i64::try_from(fleet.chance.next() % most.unsigned_abs()).unwrap() - most / 2
            };
            fleet.hosts.push(Host {
                id,
                core,
                kernel: HashMap::new(),
                offset_ns,
                is_cut: false,
                wakes_at: u64::MAX,
                process: 0,
                queue: VecDeque::new(),
                busy: HashSet::new(),
                trips: Trips::default(),
                delay: DELAY,
            });
        }
        for host in 0..fleet.hosts.len() {
            fleet.learn_time(host);
            fleet.at(START + fleet.hosts.len() as u64, Event::Wake { host });
        }
        fleet
    }

    fn fresh_id(&mut self) -> HostId {
        self.ids += 1;
        HostId(self.ids.to_be_bytes())
    }

    fn core(&self, id: HostId) -> Core {
        let settings = Settings { hosts: self.terms.hosts, interval: Duration::from_secs(1), ..Settings::default() };
        Core::new(id, names(), settings, vec![self.limit.clone()])
    }

    fn local(&self, host: usize, now: u64) -> Nanos {
        Nanos(now.checked_add_signed(self.hosts[host].offset_ns).unwrap())
    }

    fn learn_time(&mut self, host: usize) {
        let local = self.local(host, START);
        self.hosts[host].core.learn_time(local, local, Nanos(START));
    }

    fn at(&mut self, time: u64, event: Event) {
        self.events_made += 1;
        self.events.push(Reverse((time, self.events_made, event)));
    }

    /// Schedules the requests of one source in a randomly chosen pattern.
    fn offer(&mut self, source: usize, until: u64) {
        let window = u64::from(self.limit.full_buckets) * BUCKET_NS;
        let factor = self.chance.of(&[1, 2, 5, 20]);
        let requests = (self.limit.amount * factor / 2 + 5).min(4000);
        let is_burst = self.trouble.slow_ms.is_some() && self.chance.percent(80);
        let gap = if is_burst { self.chance.of(&[MS / 4, MS, 4 * MS]) } else { (window / requests).max(MS) };
        let requests = if is_burst { 4000 } else { requests };
        let manner = if is_burst { 0 } else { self.chance.between(0, 4) };
        let mut host = self.chance.between(0, self.hosts.len() as u64);
        let mut time = START + self.chance.between(0, 5 * SECOND_NS);
        for number in 0..requests * 2 {
            match manner {
                0 => host = number % self.hosts.len() as u64,
                1 => host = self.chance.between(0, self.hosts.len() as u64),
                2 if number % (requests / 3 + 1) == 0 => host = self.chance.between(0, self.hosts.len() as u64),
                _ => {}
            }
            // In manner 1, the requests come in bursts of 50.
            time += if manner == 1 && number % 50 == 0 { gap * 30 } else { self.chance.between(1, gap) };
            if time >= until {
                break;
            }
            self.at(time, Event::Offer { host: usize::try_from(host).unwrap(), source });
        }
    }

    fn run(&mut self, until: u64) -> Result<(), Wrong> {
        while let Some(Reverse((time, ..))) = self.events.peek() {
            if *time >= until {
                break;
            }
            let Some(Reverse((now, _, event))) = self.events.pop() else { break };
            match event {
                Event::Offer { host, source } => self.judge(host, source, now)?,
                Event::Wake { host } => self.wake(host, now),
                Event::AtStore(call) => self.arrive(call, now),
                Event::Answer { host, call, answer } => self.answered(host, call, answer, now)?,
                Event::Trouble => self.make_trouble(now),
            }
        }
        Ok(())
    }

    fn judge(&mut self, host: usize, source: usize, now: u64) -> Result<(), Wrong> {
        let address = self.sources[source];
        self.offered[source].push(now);
        let local = self.local(host, now);
        let (limit, terms) = (self.limit.clone(), self.terms);
        let bucket = limit.bucket(local).0;
        let from = bucket - u64::from(limit.full_buckets);
        let Host { id, core, kernel, .. } = &mut self.hosts[host];
        let cells = kernel.entry(address).or_default();
        let (own, others) =
            cells.range(from..=bucket).fold((0, 0), |(own, others), (_, cell)| (own + cell.own, others + cell.others));
        if own > limit.amount {
            return Err(format!("host {host} admitted {own} of {} by itself", limit.amount));
        }
        if own + others + 1 > limit.amount {
            return Ok(());
        }
        let cell = cells.entry(bucket).or_default();
        cell.own += 1;
        if cell.own.is_multiple_of(terms.step) {
            core.crossed(Subject { limit: LimitId(0), source: address }, BucketIndex(bucket), local);
        }
        *self.truth.entry((address, bucket)).or_default().entry(*id).or_default() += 1;
        self.admitted[source].push(now);
        self.wake_later(host, now);
        Ok(())
    }

    fn wake_later(&mut self, host: usize, now: u64) {
        let wakes = self.hosts[host].core.wakes_at().0;
        let wakes = wakes.checked_add_signed(-self.hosts[host].offset_ns).unwrap_or(0).max(now);
        if wakes < self.hosts[host].wakes_at {
            self.hosts[host].wakes_at = wakes;
            self.at(wakes, Event::Wake { host });
        }
    }

    fn wake(&mut self, host: usize, now: u64) {
        self.hosts[host].wakes_at = u64::MAX;
        if !self.hosts[host].queue.is_empty() {
            return;
        }
        let local = self.local(host, now);
        let due = self.hosts[host].core.due(local);
        let read: Vec<_> = due.iter().map(|subject| Some(self.look_up(host, *subject))).collect();
        let round = self.hosts[host].core.round(local, &due, &read);
        if self.trouble.slow_ms.is_some() {
            self.hosts[host].queue.extend(round.calls.into_iter().map(|call| (now, call)));
            self.send_waiting(host, now);
        } else {
            for call in round.calls {
                self.send(host, call, now, now);
            }
        }
        let unit = self.terms.unit(&self.limit);
        let kernel = &mut self.hosts[host].kernel;
        for told in round.told {
            if let Some(cells) = kernel.get_mut(&told.subject.source) {
                cells.entry(told.bucket.0).or_default().others = told.others / unit * unit;
            }
        }
        self.wake_later(host, now);
    }

    fn look_up(&self, host: usize, subject: Subject) -> Vec<Count> {
        let cells = self.hosts[host].kernel.get(&subject.source);
        let count =
            |(bucket, cell): (&u64, &Cell)| Count { bucket: BucketIndex(*bucket), own: cell.own, others: cell.others };
        cells.into_iter().flatten().map(count).collect()
    }

    fn send_waiting(&mut self, host: usize, now: u64) {
        let Host { queue, busy, .. } = &mut self.hosts[host];
        let mut calls = Vec::new();
        while busy.len() < CALLS_MAX {
            let free = queue.iter().position(|(_, call)| !busy.contains(&call.shard));
            let Some((read_at, call)) = free.and_then(|at| queue.remove(at)) else { break };
            busy.insert(call.shard);
            calls.push((read_at, call));
        }
        for (read_at, call) in calls {
            self.send(host, call, read_at, now);
        }
    }

    fn send(&mut self, host: usize, call: Call, read_at: u64, now: u64) {
        let is_lost = !self.is_quiet && (self.chance.percent(self.trouble.loss_percent) || self.hosts[host].is_cut);
        if is_lost {
            let local = self.local(host, now);
            self.hosts[host].core.failed(&call, local);
            return;
        }
        let copies = if !self.is_quiet && self.chance.percent(self.trouble.duplicate_percent) { 3 } else { 1 };
        for _ in 0..copies {
            let (process, call) = (self.hosts[host].process, call.clone());
            self.calls.push(Sent { host, process, call, read_at, sent_at: now, is_answered: false });
            let way = self.way();
            self.at(now + way, Event::AtStore(self.calls.len() - 1));
        }
    }

    /// Returns a random transit time. In runs without a promised bound, some take seconds and arrive out of order.
    fn way(&mut self) -> u64 {
        if let Some((shortest, longest)) = self.trouble.slow_ms {
            return self.chance.between(shortest * MS / 2, longest * MS / 2 + 1);
        }
        let is_late = !self.is_quiet && !self.trouble.keeps_bound() && self.chance.percent(5);
        if is_late { self.chance.between(0, 8 * SECOND_NS) } else { self.chance.between(0, WAY_MS * MS) }
    }

    fn arrive(&mut self, call: usize, now: u64) {
        let answer = self.store.take(&self.calls[call].call);
        let host = self.calls[call].host;
        self.answers.push(answer);
        if !self.is_quiet && self.chance.percent(self.trouble.loss_percent) {
            if self.calls[call].process == self.hosts[host].process {
                let call = self.calls[call].call.clone();
                let local = self.local(host, now);
                self.hosts[host].core.failed(&call, local);
            }
            return;
        }
        let way = self.way();
        self.at(now + way, Event::Answer { host, call, answer: self.answers.len() - 1 });
    }

    fn answered(&mut self, host: usize, call: usize, answer: usize, now: u64) -> Result<(), Wrong> {
        let local = self.local(host, now);
        // The kernel stores the count in units.
        let unit = self.terms.unit(&self.limit);
        let sent = &mut self.calls[call];
        let Host { id, core, kernel, process, busy, trips, delay, .. } = &mut self.hosts[host];
        if sent.process != *process {
            return Ok(());
        }
        if !std::mem::replace(&mut sent.is_answered, true) {
            busy.remove(&sent.call.shard);
            let since = |then: u64| Duration::from_nanos(now - then);
            trips.learn(local, since(sent.sent_at), Some(since(sent.read_at)));
            *delay = trips.reach(local).delay.unwrap_or_default().max(*delay);
        }
        let call = &sent.call;
        for told in core.answered(call, &self.answers[answer], local) {
            let truth = self.truth.get(&(told.subject.source, told.bucket.0));
            let others: u64 =
                truth.into_iter().flatten().filter(|(state, _)| *state != id).map(|(_, count)| count).sum();
            if told.others > others {
                return Err(format!(
                    "host {host} was told {} of {others} in bucket {}: invention",
                    told.others, told.bucket.0
                ));
            }
            if let Some(cells) = kernel.get_mut(&told.subject.source) {
                cells.entry(told.bucket.0).or_default().others = told.others / unit * unit;
            }
        }
        if self.trouble.slow_ms.is_some() {
            self.send_waiting(host, now);
            self.wake_later(host, now);
        }
        Ok(())
    }

    fn make_trouble(&mut self, now: u64) {
        let host = usize::try_from(self.chance.between(0, self.hosts.len() as u64)).unwrap();
        let (kept, anew) = (self.chance.percent(50), self.chance.percent(50));
        if self.trouble.restarts && kept {
            if anew {
                self.hosts[host].id = self.fresh_id();
                self.hosts[host].kernel.clear();
            }
            let core = self.core(self.hosts[host].id);
            self.hosts[host].core = core;
            self.hosts[host].process += 1;
            self.learn_time(host);
            self.at(now + MS, Event::Wake { host });
        }
        if self.trouble.evictions && anew {
            let source = self.chance.of(&self.sources);
            self.hosts[host].kernel.remove(&source);
        }
        if self.trouble.store_losses && self.chance.percent(20) {
            self.store.flush();
            if kept {
                for host in 0..self.hosts.len() {
                    let local = self.local(host, now);
                    self.hosts[host].core.store_lost(local);
                }
            }
        }
        if self.trouble.cuts {
            self.hosts[host].is_cut ^= true;
        }
    }

    /// Ends all faults. Every host reports a store loss and a rejoined host, runs two rounds, and must then have
    /// converged.
    fn quiet(&mut self, now: u64) -> Result<(), Wrong> {
        self.is_quiet = true;
        self.events.retain(|Reverse((.., event))| matches!(event, Event::Wake { .. }));
        for host in 0..self.hosts.len() {
            let local = self.local(host, now);
            self.hosts[host].is_cut = false;
            self.hosts[host].core.store_lost(local);
            self.hosts[host].core.rejoined(local);
            self.at(now, Event::Wake { host });
        }
        let end = now + 2 * SECOND_NS + 300 * MS;
        self.run(end)?;
        for (at, host) in self.hosts.iter().enumerate() {
            for source in &self.sources {
                self.converged(at, host, *source, now, end)?;
            }
        }
        Ok(())
    }

    fn converged(&self, at: usize, host: &Host, source: IpNet, since: u64, now: u64) -> Result<(), Wrong> {
        let subject = Subject { limit: LimitId(0), source };
        let local = self.local(at, now);
        let current = self.limit.bucket(local).0;
        let Some(cells) = host.kernel.get(&source) else { return Ok(()) };
        // A host that does not count the source now receives the sums at the first step.
        let is_active = cells.range(current - 1..=current).any(|(_, cell)| cell.own > 0);
        let Some(standing) = host.core.standing(subject, local) else { return Ok(()) };
        // A host that restarted from zero admits N again. A sum above hosts*N counts as implausible.
        let is_garbage = standing.elsewhere > self.terms.believable() || host.core.counters().garbage > 0;
        if !is_active || !host.core.not_summed().is_empty() || is_garbage {
            return Ok(());
        }
        let unit = self.terms.unit(&self.limit);
        // Buckets that began during the quiet time have not had two rounds.
        let last = self.limit.bucket(self.local(at, since)).0;
        for bucket in current - u64::from(self.limit.full_buckets)..=last {
            let said = |(other, state): (usize, &Host)| {
                let is_said = other != at
                    && state.core.standing(subject, self.local(other, now)).is_some()
                    && state.core.not_summed().is_empty()
                    // A host does not report buckets outside its own window.
                    && bucket + u64::from(self.limit.full_buckets) >= self.limit.bucket(self.local(other, now)).0;
                let count = state.kernel.get(&source).and_then(|cells| cells.get(&bucket)).map_or(0, |cell| cell.own);
                if is_said { count } else { 0 }
            };
            let expected: u64 = self.hosts.iter().enumerate().map(said).sum();
            let has = cells.get(&bucket).map_or(0, |cell| cell.others);
            if has < expected / unit * unit {
                return Err(format!("host {at} holds {has} of {expected} in bucket {bucket} after two quiet rounds"));
            }
        }
        Ok(())
    }

    /// Checks that in any real window the fleet admits at most the bound, plus the requests offered during a report's
    /// transit and the clock skew.
    fn bounded(&self) -> Result<(), Wrong> {
        let window = u64::from(self.limit.full_buckets) * BUCKET_NS;
        let keeps = self.trouble.keeps_bound();
        let printed = self.hosts.iter().map(|host| host.delay).max().unwrap_or(DELAY);
        let on_the_way =
            if self.trouble.slow_ms.is_some() { u64::try_from(printed.as_nanos()).unwrap() } else { DELAY_NS };
        let slack = on_the_way + self.trouble.offset_ms_max * MS;
        for source in 0..self.sources.len() {
            let most = if keeps {
                let during = most_within(&self.offered[source], slack);
                (self.terms.bound() + during).min(self.terms.bound_alone())
            } else if self.trouble.restarts || self.trouble.evictions {
                continue;
            } else {
                self.terms.bound_alone()
            };
            let admitted = most_within(&self.admitted[source], window);
            if admitted > most {
                return Err(format!("{admitted} in a window, at most {most}: {:?}", self.terms));
            }
        }
        Ok(())
    }
}

/// Returns the maximum number of instants that lie within one length of time.
fn most_within(times: &[u64], length: u64) -> u64 {
    let mut first = 0;
    let mut most = 0;
    for (last, time) in times.iter().enumerate() {
        while times[first] + length <= *time {
            first += 1;
        }
        most = most.max(last - first + 1);
    }
    most as u64
}

/// Runs one seed. Returns true if the fleet admitted more than the bound with a report delay of [`DELAY`] allows.
fn run(seed: u64, reports: Reports, trouble: impl Fn(&mut Chance) -> Trouble) -> Result<bool, Wrong> {
    let mut fleet = Fleet::new(seed, reports, trouble);
    let until = START + fleet.chance.between(20, 90) * SECOND_NS;
    for source in 0..fleet.sources.len() {
        fleet.offer(source, until);
    }
    for _ in 0..6 {
        let time = START + fleet.chance.between(0, until - START);
        fleet.at(time, Event::Trouble);
    }
    let outcome = fleet.run(until).and_then(|()| fleet.bounded()).and_then(|()| {
        fleet.hosts.iter_mut().for_each(|host| host.delay = DELAY);
        let is_above = fleet.bounded().is_err();
        if fleet.trouble.slow_ms.is_some() { Ok(is_above) } else { fleet.quiet(until).map(|()| is_above) }
    });
    outcome.map_err(|wrong| format!("seed {seed}: {wrong} ({:?}, {:?})", fleet.trouble, fleet.terms))
}

/// Returns the number of runs: `FLEET_RUNS` if set, otherwise [`RUNS_IN_CI`] in CI and [`RUNS`] elsewhere.
fn runs() -> u64 {
    let is_ci = env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"));
    let said = env::var("FLEET_RUNS").ok().and_then(|runs| runs.parse().ok());
    said.unwrap_or(if is_ci { RUNS_IN_CI } else { RUNS })
}

/// Runs all seeds. Even seeds have no faults, odd seeds do. Returns the violations.
fn sweep(reports: Reports, runs: u64) -> Vec<Wrong> {
    let one = |seed| if seed % 2 == 0 { run(seed, reports, well) } else { run(seed, reports, ill) };
    let threads = thread::available_parallelism().map_or(1, usize::from) as u64;
    let part =
        |first| (first..runs).step_by(usize::try_from(threads).unwrap()).filter_map(|seed| one(seed).err()).collect();
    thread::scope(|scope| {
        let parts: Vec<_> = (0..threads).map(|first| scope.spawn(move || part(first))).collect();
        parts.into_iter().flat_map(|part: thread::ScopedJoinHandle<Vec<Wrong>>| part.join().unwrap()).collect()
    })
}

#[test]
fn no_run_of_a_fleet_invents_a_count_passes_its_bound_or_stays_apart() {
    let wrong = sweep(Reports::Registers, runs());
    assert!(wrong.is_empty(), "{} runs failed, the first: {:#?}", wrong.len(), &wrong[..wrong.len().min(5)]);
}

#[test]
fn a_store_that_adds_increments_is_caught() {
    let wrong = sweep(Reports::Increments, runs().min(200));
    assert!(wrong.iter().any(|wrong| wrong.contains("invention")), "{} runs failed", wrong.len());
}

#[test]
fn no_run_behind_a_slow_store_exceeds_the_printed_bound() {
    let runs = runs() / 5;
    for slow_ms in [(10, 10), (100, 100), (400, 400), (20, 200), (5, 120)] {
        let outcomes: Vec<_> =
            (0..runs).map(|seed| run(seed, Reports::Registers, |chance| slow(chance, slow_ms))).collect();
        let wrong: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        assert!(wrong.is_empty(), "{} runs failed, the first: {:#?}", wrong.len(), &wrong[..wrong.len().min(5)]);
        let above = outcomes.iter().filter(|outcome| matches!(outcome, Ok(true))).count();
        println!("measured: {slow_ms:?} ms: {above} of {runs} runs above the bound of a near store");
        assert!(slow_ms.0 < 100 || above > 0, "a bound that does not know the round trip would do");
    }
}
