//! The real program, run on frames without an interface, at a time that the test sets.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use ratelimit_common::admission::{Admission, BUDGET_ANY};
use ratelimit_common::layout::Unit;
use ratelimit_common::source::Family;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_common::verdict::Reason;
use ratelimit_datapath::kernel::{Advance, Clock, Events, Kernel, Link, Merged, Options, Passed, ProgramSize, Steps};
use ratelimit_datapath::{Datapath, EventCounts, KernelEvent, Reading, Tallies};
use ratelimit_policy::config::{HookChoice, XdpModeChoice};
use ratelimit_policy::desired::{Limit, Per, Policy, Ports, Rule, WindowForm, slot};

/// 10:00 of some day in 2026.
pub const TEN_O_CLOCK: Nanos = Nanos(29_700_600 * 60 * SECOND_NS);

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

/// Packets by the word for what became of them.
pub type Counts = BTreeMap<&'static str, u64>;

/// What became of a packet: the word for it, and the number of the rule that judged it.
pub type Verdict = (&'static str, Option<usize>);

/// The capacities of the program.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Sources of each family.
    pub max_sources: u32,
    /// Windows of each of them.
    pub windows_per_source: u32,
    /// New sources of one CPU in a period, before it samples them.
    pub insertions_max: u32,
}

impl Default for Room {
    fn default() -> Self {
        Self { max_sources: 4096, windows_per_source: 4, insertions_max: BUDGET_ANY }
    }
}

/// The program in the kernel.
pub struct Program {
    kernel: Kernel,
    /// Where packets are buffers of the stack's: what comes before them, and what each was put together of.
    skb: Option<(Link, Merged)>,
    now: Nanos,
    runs: u64,
    /// What had become of how many, when it was asked last.
    counted: (u64, BTreeMap<Verdict, u64>),
}

/// How it is loaded.
pub fn options(policy: &Policy, clock: Clock, room: Room) -> Options {
    Options {
        pins: None,
        hook: crate::hook(),
        xdp_mode: XdpModeChoice::Auto,
        max_sources: room.max_sources,
        windows_per_source: room.windows_per_source,
        insertions_max: room.insertions_max,
        insertions_free: 0,
        ipv6_family: Family::of_ipv6_prefix(policy.ipv6_prefix),
        clock,
        passed: Passed::On,
        events: Events::On,
    }
}

impl Program {
    /// Loads it, at ten o'clock.
    pub fn new(policy: &Policy) -> Self {
        Self::with_room(policy, Room::default())
    }

    /// Loads it with as much room, at ten o'clock.
    pub fn with_room(policy: &Policy, room: Room) -> Self {
        let mut program = Self::load(policy, Clock::Injected, room);
        program.set_now(TEN_O_CLOCK);
        program
    }

    /// Loads it with the clock that it has in production, whose reading takes its time.
    pub fn on_the_kernels_clock(policy: &Policy) -> Self {
        Self::load(policy, Clock::Kernel, Room::default())
    }

    /// Likewise, and has it send events or not: what they cost is the difference.
    pub fn with_events(policy: &Policy, room: Room, events: Events) -> Self {
        Self::of(policy, &Options { events, ..options(policy, Clock::Kernel, room) })
    }

    fn load(policy: &Policy, clock: Clock, room: Room) -> Self {
        Self::of(policy, &options(policy, clock, room))
    }

    fn of(policy: &Policy, options: &Options) -> Self {
        if options.hook == HookChoice::Tcx {
            netlab::usual_bpffs().expect("maps can be shared");
        }
        let mut kernel = Kernel::load(options).expect("the program loads");
        // Frames seem to come in by the loopback interface; to it nothing is attached.
        kernel.list_unattached("lo").expect("every namespace has a loopback interface");
        let mut program = Self { kernel, skb: None, now: TEN_O_CLOCK, runs: 0, counted: (0, BTreeMap::new()) };
        program.apply(policy);
        program
    }

    /// Why it does not load, if it does not.
    pub fn refusal(policy: &Policy) -> Option<String> {
        Kernel::load(&options(policy, Clock::Injected, Room::default())).err().map(|error| error.to_string())
    }

    /// Judges by another policy from now on.
    pub fn apply(&mut self, policy: &Policy) {
        self.kernel.apply(policy).expect("the policy is applied");
        // The rules have other numbers now.
        self.counted.1.clear();
    }

    /// The kernel side, to ask of it what the daemon asks.
    pub fn kernel(&mut self) -> &mut Kernel {
        self.counted.1.clear();
        &mut self.kernel
    }

    /// What time it is.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Sets the time.
    pub fn set_now(&mut self, now: Nanos) {
        self.kernel.set_now(now).expect("the time is set");
        self.now = now;
        // A trial may have ended by that.
        self.counted.1.clear();
    }

    /// Lets time pass.
    pub fn advance(&mut self, nanos: u64) {
        self.set_now(Nanos(self.now.0 + nanos));
    }

    /// Sends one frame, and says whether it passed.
    pub fn passes(&mut self, frame: &[u8]) -> bool {
        self.runs += 1;
        let run = match self.skb {
            None => self.kernel.test_run(frame, 1),
            Some((link, merged)) => self.kernel.test_run_skb(frame, link, merged, 1),
        };
        match run.expect("the frame is run").action {
            XDP_PASS => true,
            XDP_DROP => false,
            other => panic!("the program returned {other}"),
        }
    }

    /// From now on frames come in at TCX, by such a link, and each was put together of this.
    pub fn by_tcx(&mut self, link: Link, merged: Merged) {
        netlab::usual_bpffs().expect("maps can be shared");
        self.skb = Some((link, merged));
    }

    /// Sends one frame many times, and says how often it passed.
    pub fn passed(&mut self, frame: &[u8], times: u64) -> u64 {
        (0..times).map(|_| u64::from(self.passes(frame))).sum()
    }

    /// Sends one frame many times in a row, and says how long one of them took.
    pub fn time(&mut self, frame: &[u8], times: u32) -> Duration {
        self.runs += u64::from(times);
        self.kernel.test_run(frame, times).expect("the frame is run").duration
    }

    /// What has this program run on a connection that goes on.
    pub fn advancing(&mut self, steps: Steps) -> anyhow::Result<Advance> {
        Ok(self.kernel.advancing(steps)?)
    }

    /// Sends so many segments of such a connection in a row, and says how long one of them took.
    pub fn time_through(&mut self, advance: &mut Advance, frame: &[u8], times: u32) -> anyhow::Result<Duration> {
        self.runs += u64::from(times);
        Ok(advance.test_run(frame, times)?.duration)
    }

    /// How large the program is.
    pub fn size(&mut self) -> ProgramSize {
        self.kernel.program_size().expect("the kernel tells")
    }

    /// The same of the program at TCX.
    pub fn size_at_tcx(&mut self) -> ProgramSize {
        netlab::usual_bpffs().expect("maps can be shared");
        self.kernel.classifier_size().expect("the kernel tells")
    }

    /// Sends one frame, and says what became of it: the one counter that moved, which must agree with the action.
    pub fn verdict(&mut self, frame: &[u8]) -> &'static str {
        self.judged(frame).0
    }

    /// Likewise, and by which rule.
    pub fn judged(&mut self, frame: &[u8]) -> Verdict {
        let before = if self.counted.0 == self.runs { std::mem::take(&mut self.counted.1) } else { BTreeMap::new() };
        let before = if before.is_empty() { self.tallies() } else { before };
        let passes = self.passes(frame);
        let after = self.tallies();
        let so_far = |verdict| before.get(verdict).copied().unwrap_or(0);
        let moved: Vec<_> = after.iter().filter(|(verdict, count)| so_far(verdict) != **count).collect();
        let [(&verdict, count)] = moved[..] else { panic!("one packet moved {moved:?}") };
        assert_eq!(*count, so_far(&verdict) + 1);
        // A reset goes on to the server, in the client's name.
        assert_eq!(passes, is_pass(verdict.0) || verdict.0 == "reset", "{verdict:?}");
        self.counted = (self.runs, after);
        verdict
    }

    /// Packets and bytes of this reason by the first rule.
    pub fn tally(&mut self, reason: Reason) -> (u64, u64) {
        let reading = self.kernel.read().expect("the counters are read");
        let tally = reading.interfaces[0].rules[0].of(reason);
        (tally.packets, tally.bytes)
    }

    /// What has begun since it was asked last.
    pub fn events(&mut self) -> Vec<KernelEvent> {
        events(&mut self.kernel)
    }

    /// What became of all that has begun.
    pub fn event_counts(&mut self) -> EventCounts {
        self.kernel.read().expect("the counts are read").events
    }

    /// Windows that were made so far.
    pub fn insertions(&mut self) -> u64 {
        self.admissions().iter().map(|cpu| cpu.insertions).sum()
    }

    /// Of packets of unknown sources one in 2^this is sampled in, on the CPU that is overloaded most.
    pub fn shift(&mut self) -> u32 {
        self.admissions().iter().map(|cpu| cpu.shift).max().unwrap_or(0)
    }

    fn admissions(&mut self) -> Vec<Admission> {
        self.kernel.admissions().expect("what is admitted is read")
    }

    /// Packets within the limits of each rule so far.
    pub fn admitted_by_rule(&mut self) -> Vec<u64> {
        let reading = self.kernel.read().expect("the counters are read");
        let of = |at: usize| reading.interfaces.iter().map(|read| read.rules[at].of(Reason::WithinLimit).packets).sum();
        (0..reading.interfaces[0].rules.len()).map(of).collect()
    }

    /// What has become of all packets so far. Every one is in there once.
    pub fn counts(&mut self) -> Counts {
        let mut counts: Counts = Reason::ALL.iter().map(|reason| (reason.label(), 0)).collect();
        for ((word, _), count) in self.tallies() {
            *counts.entry(word).or_default() += count;
        }
        assert_eq!(counts.values().sum::<u64>(), self.runs, "received is what passed and what was dropped: {counts:?}");
        counts
    }

    /// Likewise, by rule.
    fn tallies(&mut self) -> BTreeMap<Verdict, u64> {
        let reading = self.kernel.read().expect("the counters are read");
        assert!(reading.faults.iter().all(|(_, count)| *count == 0), "{:?}", reading.faults);
        tallies(&reading)
    }
}

/// What has become of how many packets, as it was read.
pub fn tallies(reading: &Reading) -> BTreeMap<Verdict, u64> {
    let mut counts = BTreeMap::new();
    let mut add = |rule, tallies: &Tallies| {
        for (reason, tally) in tallies.0.iter().filter(|(_, tally)| tally.packets != 0) {
            *counts.entry((reason.label(), rule)).or_default() += tally.packets;
        }
    };
    for interface in &reading.interfaces {
        interface.rules.iter().enumerate().for_each(|(at, tallies)| add(Some(at), tallies));
        add(None, &interface.unruled);
    }
    add(None, &reading.unlisted);
    counts
}

/// Everything that a datapath has to tell.
pub fn events(datapath: &mut dyn Datapath) -> Vec<KernelEvent> {
    let mut events = Vec::new();
    while datapath.events(&mut |event| events.push(event)).expect("the events are read") {}
    events
}

/// Whether a packet with this word passed.
pub fn is_pass(word: &str) -> bool {
    ![
        "over_limit",
        "contended",
        "banned",
        "denied",
        "new_source_budget",
        "too_many_tags",
        "guard",
        "too_many_headers",
        "reset",
        "page",
    ]
    .contains(&word)
}

/// Has this thread run on one CPU from now on: each CPU has a budget of its own.
pub fn on_one_cpu() {
    on_cpu(cpus()[0]);
}

/// The CPUs that this thread may run on.
pub fn cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).expect("the CPUs are known");
    (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu) == Ok(true)).collect()
}

/// Has this thread run on this CPU from now on.
pub fn on_cpu(cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu).expect("it is a CPU");
    sched_setaffinity(Pid::from_raw(0), &only).expect("the thread stays there");
}

/// A policy for TCP and UDP 80 and 443 with these limits: strict unless they say otherwise, enforced, /32 and /64.
pub fn policy(limits: &[Limit]) -> Policy {
    let web = vec![(80, 80), (443, 443)];
    Policy {
        ipv4_prefix: 32,
        ipv6_prefix: 64,
        access: Vec::new(),
        rules: vec![Rule::new(
            "default".into(),
            Ports { tcp: web.clone(), udp: web, other_protocols: false },
            limits.to_vec(),
        )],
    }
}

/// A rule for TCP ports that admits so many connections in five minutes.
pub fn rule(name: &str, ports: &[u16], amount: u64) -> Rule {
    let of_rule = Limit {
        slot: slot(name, Unit::Connections, 60 * SECOND_NS),
        ..limit(amount, Unit::Connections, WindowForm::Strict)
    };
    let tcp = ports.iter().map(|&port| (port, port)).collect();
    Rule::new(name.into(), Ports { tcp, udp: Vec::new(), other_protocols: false }, vec![of_rule])
}

/// A limit over five minutes in buckets of one.
pub fn limit(amount: u64, unit: Unit, form: WindowForm) -> Limit {
    limit_over(amount, unit, form, 5, 60 * SECOND_NS)
}

/// A limit over this many buckets.
pub fn limit_over(amount: u64, unit: Unit, form: WindowForm, buckets: u8, bucket_ns: u64) -> Limit {
    let seconds = u32::try_from(bucket_ns / (SECOND_NS / 10)).expect("a bucket of at most years");
    let slot = seconds * 4 + u32::from(unit as u8);
    Limit {
        amount,
        unit,
        window_ns: u64::from(buckets) * bucket_ns,
        buckets,
        bucket_ns,
        form,
        burst: None,
        slot,
        shared: None,
        per: Per::Source,
        condition: None,
    }
}
