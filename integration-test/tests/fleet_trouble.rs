//! A fleet whose store fails in every way: while it does each host holds its limits by itself, no good client loses a
//! request, and all is summed again soon after the cure.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "test code: where it cannot go on, the test fails")]

use std::time::Duration;

use integration_test::fleet::clients::{Client, greedy, innocent};
use integration_test::fleet::site::most_within;
use integration_test::fleet::store::{self, Kind};
use integration_test::fleet::{Fleet, client_of};
use integration_test::lab::once;
use netlab::needs_root;
use nix::sys::signal::Signal;

const HOSTS: u64 = 4;
const LIMIT: u64 = 200;
const WINDOW: Duration = Duration::from_secs(20);
const GREEDY_PER_SECOND: u32 = 400;
/// What is sent while a report is on its way.
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
"#;
/// The rule of who is told of.
const RULE: (&str, u16) = ("greedy", 80);

/// A fleet that is well, with good clients at work.
struct Troubled {
    fleet: Fleet,
    good: Vec<Client>,
    bound: u64,
    next: u8,
}

/// Who began in a trouble.
struct Within {
    client: Client,
    name: String,
}

impl Troubled {
    fn new(kind: Kind) -> Self {
        let mut fleet = Fleet::new(usize::try_from(HOSTS).unwrap(), kind);
        fleet.configure("", &fleet.store.settings(), RULES);
        let (bound, alone) = fleet.hosts[0].printed_bound(LIMIT);
        assert_eq!(alone, HOSTS * LIMIT);
        fleet.start();
        let good = [1, 2, 3].map(|client| fleet.client(&client_of(client), 81, innocent(7)));
        let mut this = Self { fleet, good: good.into(), bound, next: 10 };
        this.is_well("the start", &[]);
        this
    }

    /// Addresses of which none was used before.
    fn fresh(&mut self, count: u8) -> Vec<String> {
        let first = self.next;
        self.next += count;
        (first..self.next).map(client_of).collect()
    }

    /// Waits until new sources of many shards are summed, and these; then a new one is admitted its limit, and no more
    /// than the bound.
    fn is_well(&mut self, cure: &str, old: &[&str]) {
        let probes = self.fresh(6);
        self.fleet.whole_after(cure, RULE, &probes, old);
        let one = self.fresh(1).remove(0);
        let admitted = self.fleet.admitted(&one, RULE.1, GREEDY_PER_SECOND);
        println!("{cure}: {admitted} of {LIMIT} admitted, the bound is {}", self.bound);
        assert!((LIMIT..=self.bound + ON_THE_WAY).contains(&admitted), "{cure}: {admitted}");
    }

    /// A source that begins now, and wants more than its limit.
    fn within(&mut self) -> Within {
        let name = self.fresh(1).remove(0);
        Within { client: self.fleet.client(&name, RULE.1, greedy(GREEDY_PER_SECOND)), name }
    }

    /// Once it has had its limit it is stopped, however the store does.
    fn stop(&self, within: Within, most: u64) -> String {
        let Within { client, name } = within;
        once(|| (self.fleet.log.times(&name).len() as u64 >= LIMIT).then_some(())).expect("it is admitted its limit");
        netlab::settled(|| Ok(client.answered())).unwrap();
        client.stop();
        let admitted = most_within(&self.fleet.log.times(&name), WINDOW);
        println!("meanwhile: {admitted} of {LIMIT} admitted, at most {most}");
        assert!(admitted <= most, "{admitted} of {LIMIT} are admitted, at most {most}");
        name
    }

    /// It is well again; for the clients that were there in the trouble, too.
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
fn a_store_that_is_flushed_cut_off_hung_or_killed_makes_nobody_lose_anything_and_is_filled_again() {
    needs_root!(store::obstacle());
    const ALONE: u64 = HOSTS * LIMIT;
    let mut of = Troubled::new(Kind::Single);
    let all = of.fleet.all();

    let flushed = of.within();
    once(|| (flushed.client.answered() > LIMIT / 2).then_some(())).unwrap();
    of.fleet.store.servers[0].tell("FLUSHALL");
    let name = of.stop(flushed, ALONE);
    of.cured("FLUSHALL", &[&name]);

    of.fleet.cut(&[0], true);
    of.fleet.wait_for_state(&[0], "away");
    of.fleet.wait_for_state(&[1, 2, 3], "connected");
    let cut = of.within();
    let name = of.stop(cut, LIMIT + of.bound + ON_THE_WAY);
    of.fleet.cut(&[0], false);
    of.cured("one host cut off", &[&name]);

    of.fleet.cut(&all, true);
    of.fleet.wait_for_state(&all, "away");
    let cut = of.within();
    let name = of.stop(cut, ALONE);
    of.fleet.cut(&all, false);
    of.cured("packets to the store lost", &[&name]);

    of.fleet.store.servers[0].signal(Signal::SIGSTOP);
    of.fleet.wait_for_state(&all, "away");
    let stopped = of.within();
    let name = of.stop(stopped, ALONE);
    of.fleet.store.servers[0].signal(Signal::SIGCONT);
    of.cured("a store stopped", &[&name]);

    of.fleet.store.servers[0].kill();
    of.fleet.wait_for_state(&all, "away");
    let killed = of.within();
    let name = of.stop(killed, ALONE);
    of.fleet.store.start_again();
    of.cured("a store killed, back empty", &[&name]);
    of.end();
}

#[test]
fn a_cluster_whose_slots_move_and_whose_masters_fail_makes_nobody_lose_anything_and_is_whole_again() {
    needs_root!(store::obstacle());
    const ALONE: u64 = HOSTS * LIMIT;
    let mut of = Troubled::new(Kind::Cluster);
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
                let is_refused = of.fleet.log.times(&moved.name).len() as u64 >= LIMIT;
                (is_refused || moved.client.answered() > before + 20).then_some(())
            })
            .unwrap();
        });
    }
    let name = of.stop(moved, ALONE);
    of.cured("slots moved", &[&name]);

    let promoted = of.within();
    of.fleet.store.servers[3].tell("CLUSTER FAILOVER");
    of.fleet.store.servers[3].wait_until_promoted();
    let name = of.stop(promoted, ALONE);
    of.cured("a replica promoted by hand", &[&name]);

    of.fleet.store.servers[1].kill();
    let killed = of.within();
    of.fleet.store.servers[4].wait_until_promoted();
    of.cured("a master killed, from the promotion", &[]);
    of.stop(killed, ALONE);

    of.fleet.store.servers[2].signal(Signal::SIGSTOP);
    let stopped = of.within();
    of.fleet.store.servers[5].wait_until_promoted();
    of.cured("a master stopped, from the promotion", &[]);
    let name = of.stop(stopped, ALONE);
    of.fleet.store.servers[2].signal(Signal::SIGCONT);
    of.cured("a master goes on, as a replica", &[&name]);

    for at in [0, 2, 3, 4, 5] {
        of.fleet.store.servers[at].kill();
    }
    of.fleet.wait_for_state(&all, "away");
    let gone = of.within();
    let name = of.stop(gone, ALONE);
    of.fleet.store.start_again();
    of.cured("all of a cluster gone and back", &[&name]);
    of.end();
}
