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
use ratelimit_datapath::{Datapath, EventCounts, KernelEvent, Reading, Tallies};
use ratelimit_kernel::{Advance, Clock, Events, Kernel, Link, Merged, Options, Passed, ProgramSize, Steps};
use ratelimit_policy::config::{HookChoice, XdpModeChoice};
use ratelimit_policy::desired::{Limit, Per, Policy, Ports, Rule, WindowForm, slot};

/// Time of 10:00 on some day in 2026.
pub const TEN_O_CLOCK: Nanos = Nanos(29_700_600 * 60 * SECOND_NS);

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

/// Number of packets by verdict.
pub type Counts = BTreeMap<&'static str, u64>;

/// Verdict on a packet: its label, and the number of the rule that judged it.
pub type Verdict = (&'static str, Option<usize>);

/// Capacities of the program.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Maximum number of sources of each family.
    pub max_sources: u32,
    /// Number of windows of each source.
    pub windows_per_source: u32,
    /// Maximum number of new sources of one CPU in a period, before it samples them.
    pub insertions_max: u32,
}

impl Default for Room {
    fn default() -> Self {
        Self { max_sources: 4096, windows_per_source: 4, insertions_max: BUDGET_ANY }
    }
}

/// The program in the kernel, with a time set by the test.
pub struct Program {
    kernel: Kernel,
    /// Link type and merging of packets at TCX. `None` at XDP.
    skb: Option<(Link, Merged)>,
    now: Nanos,
    runs: u64,
    /// Number of runs and packets by verdict at the last query.
    counted: (u64, BTreeMap<Verdict, u64>),
}

/// Returns the options for loading the program.
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
    /// Loads the program, at ten o'clock.
    pub fn new(policy: &Policy) -> Self {
        Self::with_room(policy, Room::default())
    }

    /// Loads the program with these capacities, at ten o'clock.
    pub fn with_room(policy: &Policy, room: Room) -> Self {
        let mut program = Self::load(policy, Clock::Injected, room);
        program.set_now(TEN_O_CLOCK);
        program
    }

    /// Loads the program with its production clock, so that reading the clock costs its time.
    pub fn on_the_kernels_clock(policy: &Policy) -> Self {
        Self::load(policy, Clock::Kernel, Room::default())
    }

    /// Loads the program with its production clock, and with or without events, to measure the events' cost.
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
        // Frames seem to arrive on the loopback interface, to which nothing is attached.
        kernel.list_unattached("lo").expect("every namespace has a loopback interface");
        let mut program = Self { kernel, skb: None, now: TEN_O_CLOCK, runs: 0, counted: (0, BTreeMap::new()) };
        program.apply(policy);
        program
    }

    /// Returns the error of loading the program, or `None` if it loads.
    pub fn refusal(policy: &Policy) -> Option<String> {
        Kernel::load(&options(policy, Clock::Injected, Room::default())).err().map(|error| error.to_string())
    }

    /// Applies another policy.
    pub fn apply(&mut self, policy: &Policy) {
        self.kernel.apply(policy).expect("the policy is applied");
        // The rules have other numbers now.
        self.counted.1.clear();
    }

    /// Returns the kernel side, for queries that the daemon makes.
    pub fn kernel(&mut self) -> &mut Kernel {
        self.counted.1.clear();
        &mut self.kernel
    }

    /// Returns the program's current time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Sets the program's current time.
    pub fn set_now(&mut self, now: Nanos) {
        self.kernel.set_now(now).expect("the time is set");
        self.now = now;
        // A trial may have ended at that time.
        self.counted.1.clear();
    }

    /// Advances the time.
    pub fn advance(&mut self, nanos: u64) {
        self.set_now(Nanos(self.now.0 + nanos));
    }

    /// Sends one frame, and returns whether it passed.
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

    /// Makes all further frames arrive at TCX, over this link type and merged as stated.
    pub fn by_tcx(&mut self, link: Link, merged: Merged) {
        netlab::usual_bpffs().expect("maps can be shared");
        self.skb = Some((link, merged));
    }

    /// Sends one frame `times` times, and returns how often it passed.
    pub fn passed(&mut self, frame: &[u8], times: u64) -> u64 {
        (0..times).map(|_| u64::from(self.passes(frame))).sum()
    }

    /// Sends one frame `times` times in a row, and returns the time of one run.
    pub fn time(&mut self, frame: &[u8], times: u32) -> Duration {
        self.runs += u64::from(times);
        self.kernel.test_run(frame, times).expect("the frame is run").duration
    }

    /// Returns a runner for segments of a connection that continues.
    pub fn advancing(&mut self, steps: Steps) -> anyhow::Result<Advance> {
        Ok(self.kernel.advancing(steps)?)
    }

    /// Sends `times` segments of a continued connection in a row, and returns the time of one run.
    pub fn time_through(&mut self, advance: &mut Advance, frame: &[u8], times: u32) -> anyhow::Result<Duration> {
        self.runs += u64::from(times);
        Ok(advance.test_run(frame, times)?.duration)
    }

    /// Returns the size of the program at XDP.
    pub fn size(&mut self) -> ProgramSize {
        self.kernel.program_size().expect("the kernel tells")
    }

    /// Returns the size of the program at TCX.
    pub fn size_at_tcx(&mut self) -> ProgramSize {
        netlab::usual_bpffs().expect("maps can be shared");
        self.kernel.classifier_size().expect("the kernel tells")
    }

    /// Sends one frame and returns its verdict. Asserts that exactly one counter moved, and that it agrees with the
    /// action.
    pub fn verdict(&mut self, frame: &[u8]) -> &'static str {
        self.judged(frame).0
    }

    /// Sends one frame and returns its verdict with the rule. Asserts that exactly one counter moved.
    pub fn judged(&mut self, frame: &[u8]) -> Verdict {
        let before = if self.counted.0 == self.runs { std::mem::take(&mut self.counted.1) } else { BTreeMap::new() };
        let before = if before.is_empty() { self.tallies() } else { before };
        let passes = self.passes(frame);
        let after = self.tallies();
        let so_far = |verdict| before.get(verdict).copied().unwrap_or(0);
        let moved: Vec<_> = after.iter().filter(|(verdict, count)| so_far(verdict) != **count).collect();
        let [(&verdict, count)] = moved[..] else { panic!("one packet moved {moved:?}") };
        assert_eq!(*count, so_far(&verdict) + 1);
        // A reset is sent to the server in the client's name.
        assert_eq!(passes, is_pass(verdict.0) || verdict.0 == "reset", "{verdict:?}");
        self.counted = (self.runs, after);
        verdict
    }

    /// Returns the packets and bytes with this reason under the first rule.
    pub fn tally(&mut self, reason: Reason) -> (u64, u64) {
        let reading = self.kernel.read().expect("the counters are read");
        let tally = reading.interfaces[0].rules[0].of(reason);
        (tally.packets, tally.bytes)
    }

    /// Returns the events since the last call.
    pub fn events(&mut self) -> Vec<KernelEvent> {
        events(&mut self.kernel)
    }

    /// Returns the counts of events, by what became of them.
    pub fn event_counts(&mut self) -> EventCounts {
        self.kernel.read().expect("the counts are read").events
    }

    /// Returns the number of windows that were created so far.
    pub fn insertions(&mut self) -> u64 {
        self.admissions().iter().map(|cpu| cpu.insertions).sum()
    }

    /// Returns the sampling shift of the most overloaded CPU: one packet of unknown sources in 2^shift is sampled in.
    pub fn shift(&mut self) -> u32 {
        self.admissions().iter().map(|cpu| cpu.shift).max().unwrap_or(0)
    }

    fn admissions(&mut self) -> Vec<Admission> {
        self.kernel.admissions().expect("what is admitted is read")
    }

    /// Returns the number of packets within each rule's limits so far.
    pub fn admitted_by_rule(&mut self) -> Vec<u64> {
        let reading = self.kernel.read().expect("the counters are read");
        let of = |at: usize| reading.interfaces.iter().map(|read| read.rules[at].of(Reason::WithinLimit).packets).sum();
        (0..reading.interfaces[0].rules.len()).map(of).collect()
    }

    /// Returns the number of packets so far, by verdict. Asserts that each packet is counted once.
    pub fn counts(&mut self) -> Counts {
        let mut counts: Counts = Reason::ALL.iter().map(|reason| (reason.label(), 0)).collect();
        for ((word, _), count) in self.tallies() {
            *counts.entry(word).or_default() += count;
        }
        assert_eq!(counts.values().sum::<u64>(), self.runs, "received is what passed and what was dropped: {counts:?}");
        counts
    }

    /// Returns the number of packets so far, by verdict and rule.
    fn tallies(&mut self) -> BTreeMap<Verdict, u64> {
        let reading = self.kernel.read().expect("the counters are read");
        assert!(reading.faults.iter().all(|(_, count)| *count == 0), "{:?}", reading.faults);
        tallies(&reading)
    }
}

/// Returns the number of packets of a reading, by verdict and rule.
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

/// Returns all pending events of a datapath.
pub fn events(datapath: &mut dyn Datapath) -> Vec<KernelEvent> {
    let mut events = Vec::new();
    while datapath.events(&mut |event| events.push(event)).expect("the events are read") {}
    events
}

/// Returns whether a packet with this verdict passed.
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

/// Pins this thread to one CPU, because each CPU has its own budget.
pub fn on_one_cpu() {
    on_cpu(cpus()[0]);
}

/// Returns the CPUs that this thread may run on.
pub fn cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).expect("the CPUs are known");
    (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu) == Ok(true)).collect()
}

/// Pins this thread to this CPU.
pub fn on_cpu(cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu).expect("it is a CPU");
    sched_setaffinity(Pid::from_raw(0), &only).expect("the thread stays there");
}

/// Returns an enforced policy for TCP and UDP 80 and 443 with these limits, and prefixes of /32 and /64.
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

/// Returns a rule for TCP ports with a limit of `amount` connections in five minutes.
pub fn rule(name: &str, ports: &[u16], amount: u64) -> Rule {
    let of_rule = Limit {
        slot: slot(name, Unit::Connections, 60 * SECOND_NS),
        ..limit(amount, Unit::Connections, WindowForm::Strict)
    };
    let tcp = ports.iter().map(|&port| (port, port)).collect();
    Rule::new(name.into(), Ports { tcp, udp: Vec::new(), other_protocols: false }, vec![of_rule])
}

/// Returns a limit over five minutes in buckets of one minute.
pub fn limit(amount: u64, unit: Unit, form: WindowForm) -> Limit {
    limit_over(amount, unit, form, 5, 60 * SECOND_NS)
}

/// Returns a limit over this number of buckets.
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
