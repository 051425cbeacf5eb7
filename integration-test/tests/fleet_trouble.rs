//! A fleet with a store that fails in every way. Meanwhile each host applies its limits alone, no good client loses a
//! request, and soon after the recovery everything is summed again.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "test code: where it cannot go on, the test fails")]

use std::thread::sleep;
use std::time::{Duration, Instant};

use integration_test::fleet::clients::{Client, greedy, innocent};
use integration_test::fleet::site::most_within;
use integration_test::fleet::store::{self, Kind};
use integration_test::fleet::{Fleet, client_of};
use integration_test::lab::once;
use netlab::needs_root;
use nix::sys::signal::Signal;

const HOSTS: u64 = 4;
/// Time of sending beyond a window, which covers the windows that start with any admission of the first second.
const PAST_THE_WINDOW: Duration = Duration::from_secs(3);
const GREEDY_PER_SECOND: u32 = 400;
/// Number of requests that are sent while a report is on its way.
const ON_THE_WAY: u64 = 40;
const RULES: &str = r#"
[[rule]]
name = "greedy"
ports = "80/tcp"
limits = ["200/20s requests"]
[[rule]]
name = "good"
ports = "81/tcp"
limits = ["200/20s requests"]
[[rule]]
name = "minute"
ports = "82/tcp"
limits = ["1000/1m requests"]
"#;

/// Limit and duration for the check of each state.
#[derive(Clone, Copy)]
struct Scale {
    rule: (&'static str, u16),
    limit: u64,
    window: Duration,
    /// The state lasts for a whole window of a source that keeps sending, instead of until the source is refused.
    lasts: bool,
}

/// Short scale, for every run.
const SHORT: Scale = Scale { rule: ("greedy", 80), limit: 200, window: Duration::from_secs(20), lasts: false };
/// A real minute in each state.
const MINUTE: Scale = Scale { rule: ("minute", 82), limit: 1000, window: Duration::from_secs(60), lasts: true };

/// A healthy fleet with active good clients.
struct Troubled {
    scale: Scale,
    fleet: Fleet,
    good: Vec<Client>,
    bound: u64,
    next: u8,
}

/// A client that started during a trouble.
struct Within {
    client: Client,
    name: String,
}

impl Troubled {
    fn new(kind: Kind, scale: Scale) -> Self {
        let mut fleet = Fleet::new(usize::try_from(HOSTS).unwrap(), kind);
        fleet.window = scale.window;
        fleet.configure("", &fleet.store.settings(), RULES);
        let (bound, alone) = fleet.hosts[0].printed_bound(scale.limit);
        assert_eq!(alone, HOSTS * scale.limit);
        fleet.start();
        let good = [1, 2, 3].map(|client| fleet.client(&client_of(client), 81, innocent(7)));
        let mut this = Self { scale, fleet, good: good.into(), bound, next: 10 };
        this.is_well("the start", &[]);
        this
    }

    /// Returns `count` unused addresses.
    fn fresh(&mut self, count: u8) -> Vec<String> {
        let first = self.next;
        self.next += count;
        (first..self.next).map(client_of).collect()
    }

    /// Waits until new sources of many shards and the old ones are summed. Then asserts that a new source is admitted
    /// at least its limit, and at most the bound.
    fn is_well(&mut self, cure: &str, old: &[&str]) {
        let probes = self.fresh(6);
        let Scale { rule, limit, .. } = self.scale;
        let took = self.fleet.whole_after(cure, rule, &probes, old);
        let one = self.fresh(1).remove(0);
        let admitted = self.fleet.admitted(&one, rule.1, GREEDY_PER_SECOND);
        println!("{cure}: {admitted} of {limit} admitted, the bound is {}", self.bound);
        println!("measured: whole: {cure} | {:.1} s | {admitted}", took.as_secs_f64());
        assert!((limit..=self.bound + ON_THE_WAY).contains(&admitted), "{cure}: {admitted}");
    }

    /// Starts a source that wants more than its limit.
    fn within(&mut self) -> Within {
        let name = self.fresh(1).remove(0);
        Within { client: self.fleet.client(&name, self.scale.rule.1, greedy(GREEDY_PER_SECOND)), name }
    }

    /// Stops a source once it has been admitted its limit, whatever the state of the store.
    fn stop(&self, state: &str, within: Within, most: u64) -> String {
        let Within { client, name } = within;
        let Scale { limit, window, lasts, .. } = self.scale;
        let times = || self.fleet.log.times(&name);
        once(|| (times().len() as u64 >= limit).then_some(())).expect("it is admitted its limit");
        if lasts {
            sleep((times()[0] + window + PAST_THE_WINDOW).saturating_duration_since(Instant::now()));
        } else {
            netlab::settled(|| Ok(client.answered())).unwrap();
        }
        client.stop();
        let times = times();
        let first = times.iter().filter(|at| **at < times[0] + window).count() as u64;
        let admitted = most_within(&times, window);
        println!("meanwhile: {admitted} of {limit} admitted, at most {most}");
        println!("measured: state: {state} | {first} | {admitted} | {most}");
        assert!(first >= limit, "{state}: {first} of {limit} are admitted");
        assert!(admitted <= most, "{state}: {admitted} of {limit} are admitted, at most {most}");
        name
    }

    /// Asserts that the fleet has recovered, also for the clients from the time of the trouble.
    fn cured(&mut self, cure: &str, old: &[&str]) {
        self.is_well(cure, old);
        self.fleet.wait_until_connected();
    }

    fn end(self) {
        for client in self.good {
            let tally = client.stop();
            println!("a good client: {tally:?}");
            assert_eq!((tally.answered, tally.lost), (tally.sent, 0));
        }
        assert_eq!(self.fleet.dropped_of("good"), 0, "of the good ones nobody lost anything");
    }
}

#[test]
fn a_store_flushed_cut_off_hung_or_killed_harms_no_client_and_is_refilled() {
    needs_root!(store::obstacle());
    one_server(SHORT);
}

#[test]
fn a_cluster_that_moves_slots_or_loses_masters_harms_no_client_and_heals() {
    needs_root!(store::obstacle());
    cluster(SHORT);
}

#[test]
#[ignore = "opt-in: cargo xtask test --tier fleet"]
fn every_state_of_a_single_store_admits_within_its_bound_over_a_minute() {
    needs_root!(store::obstacle());
    one_server(MINUTE);
}

#[test]
#[ignore = "opt-in: cargo xtask test --tier fleet"]
fn every_state_of_a_cluster_admits_within_its_bound_over_a_minute() {
    needs_root!(store::obstacle());
    cluster(MINUTE);
}

fn one_server(scale: Scale) {
    let (limit, alone) = (scale.limit, HOSTS * scale.limit);
    let mut of = Troubled::new(Kind::Single, scale);
    let all = of.fleet.all();

    let flushed = of.within();
    once(|| (flushed.client.answered() > limit / 2).then_some(())).unwrap();
    of.fleet.store.servers[0].tell("FLUSHALL");
    let name = of.stop("FLUSHALL", flushed, alone);
    of.cured("FLUSHALL", &[&name]);

    of.fleet.cut(&[0], true);
    of.fleet.wait_for_state(&[0], "away");
    of.fleet.wait_for_state(&[1, 2, 3], "connected");
    let cut = of.within();
    let name = of.stop("one host cut off", cut, limit + of.bound + ON_THE_WAY);
    of.fleet.cut(&[0], false);
    of.cured("one host cut off", &[&name]);

    of.fleet.cut(&all, true);
    of.fleet.wait_for_state(&all, "away");
    let cut = of.within();
    let name = of.stop("packets to the store lost", cut, alone);
    of.fleet.cut(&all, false);
    of.cured("packets to the store lost", &[&name]);

    of.fleet.store.servers[0].signal(Signal::SIGSTOP);
    of.fleet.wait_for_state(&all, "away");
    let stopped = of.within();
    let name = of.stop("a store stopped", stopped, alone);
    of.fleet.store.servers[0].signal(Signal::SIGCONT);
    of.cured("a store stopped", &[&name]);

    of.fleet.store.servers[0].kill();
    of.fleet.wait_for_state(&all, "away");
    let killed = of.within();
    let name = of.stop("a store killed", killed, alone);
    of.fleet.store.start_again();
    of.cured("a store killed, back empty", &[&name]);
    of.end();
}

fn cluster(scale: Scale) {
    let (limit, alone) = (scale.limit, HOSTS * scale.limit);
    let mut of = Troubled::new(Kind::Cluster, scale);
    let all = of.fleet.all();

    let moved = of.within();
    let mut slots = Vec::new();
    for shard in 0..16 {
        let slot: u64 = of.fleet.store.servers[0].ask(&format!("CLUSTER KEYSLOT {{web:{shard:x}}}")).unwrap();
        if slot <= 5460 {
            slots.push(slot);
        }
    }
    assert!(!slots.is_empty(), "the first master has no shard");
    for slot in slots {
        let before = moved.client.answered();
        of.fleet.store.move_slot(slot, || {
            once(|| {
                let is_refused = of.fleet.log.times(&moved.name).len() as u64 >= limit;
                (is_refused || moved.client.answered() > before + 20).then_some(())
            })
            .unwrap();
        });
    }
    let name = of.stop("slots moved", moved, alone);
    of.cured("slots moved", &[&name]);

    let promoted = of.within();
    of.fleet.store.servers[3].tell("CLUSTER FAILOVER");
    of.fleet.store.servers[3].wait_until_promoted();
    let name = of.stop("a replica promoted by hand", promoted, alone);
    of.cured("a replica promoted by hand", &[&name]);

    of.fleet.store.servers[1].kill();
    let killed = of.within();
    of.fleet.store.servers[4].wait_until_promoted();
    of.cured("a master killed, from the promotion", &[]);
    of.stop("a master killed", killed, alone);

    of.fleet.store.servers[2].signal(Signal::SIGSTOP);
    let stopped = of.within();
    of.fleet.store.servers[5].wait_until_promoted();
    of.cured("a master stopped, from the promotion", &[]);
    let name = of.stop("a master stopped", stopped, alone);
    of.fleet.store.servers[2].signal(Signal::SIGCONT);
    of.cured("a master goes on, as a replica", &[&name]);

    for at in [0, 2, 3, 4, 5] {
        of.fleet.store.servers[at].kill();
    }
    of.fleet.wait_for_state(&all, "away");
    let gone = of.within();
    let name = of.stop("all of a cluster gone", gone, alone);
    of.fleet.store.start_again();
    of.cured("all of a cluster gone and back", &[&name]);
    of.end();
}
