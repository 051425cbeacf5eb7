//! Path from the sender to the receiver: namespaces, veth pairs between them, and the counters of the receiving end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netlab::{End, Namespace, veth};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use ratelimit_kernel::{Flood, Generator};

use super::stopwatch::Stopwatch;

/// Receiving interfaces, by pair.
pub const RECEIVING: [&str; 2] = ["s0", "s1"];
const SENDING: [&str; 2] = ["c0", "c1"];
/// The sender's IPv4 address on the first pair.
pub const CLIENT: &str = "192.0.2.2";
/// The receiver's IPv4 address on the first pair.
pub const SERVER: &str = "192.0.2.1";
const ADDRESSES: [[[&str; 2]; 2]; 2] = [
    [["192.0.2.2/24", "2001:db8::2/64"], ["192.0.2.1/24", "2001:db8::1/64"]],
    [["203.0.113.2/24", "2001:db8:113::2/64"], ["203.0.113.1/24", "2001:db8:113::1/64"]],
];
/// Maximum time for the receiver to take what is still queued when the sender is done.
const QUEUED_MAX: Duration = Duration::from_secs(1);
/// Maximum number of packets that an IPv6 interface receives by itself: multicast reports, duplicate address detection.
const UNASKED_MAX: u64 = 32;

/// Address family of a wire. Without IPv6 addresses, the wire carries nothing but the flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Only IPv4 addresses.
    V4,
    /// Only IPv6 addresses.
    V6,
}

/// Two namespaces and the pairs between them, removed on drop.
pub struct Wire {
    /// Namespace of the generators and the clients.
    pub sender: Namespace,
    /// Namespace of the receivers.
    pub receiver: Namespace,
    family: Family,
    cpus: Vec<usize>,
}

/// Size and duration of a run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Number of frames sent, and received.
    pub sent: u64,
    /// Time for sending and receiving, summed over all CPUs that sent.
    pub took: Duration,
}

impl Run {
    /// Returns the nanoseconds of CPU time per packet.
    pub fn ns(&self) -> f64 {
        self.took.as_secs_f64() * 1e9 / self.sent as f64
    }
}

impl Wire {
    /// Creates a wire of `pairs` pairs.
    pub fn new(family: Family, pairs: usize) -> Result<Self> {
        let (sender, receiver) = (Namespace::named("flood")?, Namespace::named("limited")?);
        let at = match family {
            Family::V4 => 0,
            Family::V6 => 1,
        };
        for pair in 0..pairs {
            let end = |namespace, interface, addresses| End { namespace, interface, addresses };
            let [ours, theirs] = &ADDRESSES[pair];
            veth(end(&sender, SENDING[pair], &ours[at..=at]), end(&receiver, RECEIVING[pair], &theirs[at..=at]))?;
            // With GRO, veth receives in NAPI, and so accepts live frames even without an XDP program.
            let output = receiver.run(&["ethtool", "-K", RECEIVING[pair], "gro", "on"])?;
            ensure!(output.status.success(), "ethtool -K gro on: {}", output.stderr.trim());
        }
        Ok(Self { sender, receiver, family, cpus: cpus()? })
    }

    /// Returns how many CPUs may send at once.
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Creates a generator for the sending end of a pair.
    pub fn generator(&self, pair: usize, flood: &Flood) -> Result<Generator> {
        let mut flood = flood.clone();
        flood.frame[..6].copy_from_slice(&self.link_address(pair)?);
        self.sender.inside(|| Ok(Generator::load(&flood, SENDING[pair])?))
    }

    /// Sends frames over the first pair, on one CPU.
    pub fn send(&self, generator: &mut Generator, frames: u32) -> Result<Run> {
        self.send_at_once(&mut [generator], frames)
    }

    /// Sends `frames` frames with each generator at once, each over its own pair and on its own CPU.
    pub fn send_at_once(&self, generators: &mut [&mut Generator], frames: u32) -> Result<Run> {
        ensure!(generators.len() <= self.cpus.len(), "{} generators need as many CPUs", generators.len());
        let pairs = generators.len();
        let before = self.received(pairs)?;
        let took = self.sender.inside(|| {
            std::thread::scope(|scope| {
                let both = generators.iter_mut().zip(self.cpus.iter().rev());
                let threads: Vec<_> =
                    both.map(|(generator, &cpu)| scope.spawn(move || timed(generator, cpu, frames))).collect();
                let took = threads.into_iter().map(|thread| thread.join().expect("a sender does not panic"));
                took.sum::<Result<Duration>>()
            })
        })?;
        let sent = u64::from(frames) * pairs as u64;
        let received = self.wait_for(pairs, before + sent)? - before;
        let unasked =
            received.checked_sub(sent).with_context(|| format!("{sent} frames were sent, {received} received"))?;
        let unasked_max = if self.family == Family::V4 { 0 } else { UNASKED_MAX };
        ensure!(unasked <= unasked_max, "{sent} frames were sent, {received} received");
        Ok(Run { sent, took })
    }

    fn wait_for(&self, pairs: usize, received: u64) -> Result<u64> {
        let deadline = Instant::now() + QUEUED_MAX;
        loop {
            let now = self.received(pairs)?;
            if now >= received || Instant::now() > deadline {
                return Ok(now);
            }
        }
    }

    /// Returns the number of packets that the receiving ends have taken so far.
    pub fn received(&self, pairs: usize) -> Result<u64> {
        Ok(self.statistics(pairs)?.values().filter_map(|of| of.get("xdp_packets")).sum())
    }

    /// Returns the number of packets that XDP programs on the first receiving end have dropped so far.
    pub fn dropped_by_xdp(&self) -> Result<u64> {
        Ok(self.statistics(1)?.values().filter_map(|of| of.get("xdp_drops")).sum())
    }

    /// Returns the driver's counters by receiving end. Their names lack veth's prefix with the queue.
    fn statistics(&self, pairs: usize) -> Result<BTreeMap<&'static str, BTreeMap<String, u64>>> {
        let of = |interface: &&'static str| {
            let output = self.receiver.run(&["ethtool", "-S", interface])?;
            ensure!(output.status.success(), "ethtool -S {interface}: {}", output.stderr.trim());
            let lines = output.stdout.lines().filter_map(|line| {
                let (name, count) = line.trim().split_once(": ")?;
                Some((name.strip_prefix("rx_queue_0_")?.to_owned(), count.parse().ok()?))
            });
            Ok((*interface, lines.collect()))
        };
        RECEIVING[..pairs].iter().map(of).collect()
    }

    fn link_address(&self, pair: usize) -> Result<[u8; 6]> {
        let shown = self.receiver.ip(&["-br", "link", "show", "dev", RECEIVING[pair]])?;
        let address = shown.split_whitespace().nth(2).context("an interface has a link address")?;
        let bytes: Vec<u8> = address
            .split(':')
            .map(|byte| u8::from_str_radix(byte, 16))
            .collect::<Result<_, _>>()
            .with_context(|| format!("read the link address {address}"))?;
        bytes.try_into().ok().with_context(|| format!("{address} is no link address"))
    }
}

/// Sends frames on one CPU, which also receives them, and returns the time that took.
fn timed(generator: &mut Generator, cpu: usize, frames: u32) -> Result<Duration> {
    pin(cpu)?;
    let clock = Stopwatch::start(cpu)?;
    generator.send(frames)?;
    clock.stop()
}

/// Returns the CPUs that this process may use.
fn cpus() -> Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0)).context("ask for the CPUs")?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect())
}

/// Pins this thread to the CPU that sends last, which does not send if there are two CPUs and one pair.
pub fn on_the_first_cpu() -> Result<()> {
    pin(*cpus()?.first().context("there is a CPU")?)
}

/// Pins this thread, and whatever it starts from now on, to the CPU that sends first.
pub fn on_the_last_cpu() -> Result<()> {
    pin(*cpus()?.last().context("there is a CPU")?)
}

fn pin(cpu: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu).context("name a CPU")?;
    sched_setaffinity(Pid::from_raw(0), &only).with_context(|| format!("stay on CPU {cpu}"))
}
