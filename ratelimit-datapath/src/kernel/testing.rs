//! Running the program on made-up frames, without an interface (`BPF_PROG_TEST_RUN`).

use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use aya::maps::{HashMap, Map};
use aya::programs::Xdp;
use aya::programs::xdp::XdpMode;
use aya::{Ebpf, TestRun as _, TestRunOptions};
use ratelimit_common::conversation::Conversation;
use ratelimit_common::flow::Flow;
use ratelimit_common::layout::{ConversationKeyV4, ConversationKeyV6, FlowKeyV4, FlowKeyV6, map};
use ratelimit_common::time::Nanos;

use super::advance::{Advance, Steps};
use super::attach::Slot;
use super::{Kernel, interface, map_ref, program};
use crate::{Datapath as _, DatapathError, batch};

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// What the program returned: 1 is XDP_DROP, 2 is XDP_PASS.
    pub action: u32,
    /// Mean time of one run, in whole nanoseconds.
    pub duration: Duration,
}

/// The object that is loaded, an ELF file.
#[must_use]
pub const fn object() -> &'static [u8] {
    include_bytes!(concat!(env!("OUT_DIR"), "/ratelimit-ebpf"))
}

/// The empty program, which drops every frame unseen: what a run costs without the work.
pub struct Bare(Ebpf);

impl Bare {
    /// Loads it.
    ///
    /// # Errors
    /// Where privileges are missing.
    pub fn load() -> Result<Self, DatapathError> {
        let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/bare"));
        let mut bare = Self(Ebpf::load(object).context("read the empty program")?);
        bare.program()?.load().context("load the empty program")?;
        Ok(bare)
    }

    /// Attaches it in the driver of an interface of the calling thread's namespace, for as long as it lives.
    ///
    /// # Errors
    /// Where there is no such interface, it has a program already, or its driver takes none.
    pub fn attach(&mut self, interface: &str) -> Result<(), DatapathError> {
        let attached = self.program()?.attach(interface, XdpMode::Driver);
        attached.with_context(|| format!("attach the empty program to {interface}"))?;
        Ok(())
    }

    /// As [`Kernel::test_run`].
    ///
    /// # Errors
    /// Likewise.
    pub fn test_run(&mut self, frame: &[u8], repeat: u32) -> Result<TestRun, DatapathError> {
        run(self.program()?, frame, repeat)
    }

    /// As [`Kernel::advancing`].
    ///
    /// # Errors
    /// Likewise.
    pub fn advancing(&mut self, steps: Steps) -> Result<Advance, DatapathError> {
        Advance::before(self.program()?.fd().context("the empty program is loaded")?, steps)
    }

    fn program(&mut self) -> Result<&mut Xdp, DatapathError> {
        let program = self.0.program_mut("bare").context("find program bare")?;
        Ok(program.try_into().context("the empty program is no XDP program")?)
    }
}

impl Kernel {
    /// Sets the time of a program that was loaded with [`super::Clock::Injected`].
    ///
    /// # Errors
    /// Where the map cannot be written.
    pub fn set_now(&mut self, now: Nanos) -> Result<(), DatapathError> {
        Ok(self.array::<u64>(map::INJECTED_NOW)?.set(0, now.0, 0).context("write INJECTED_NOW")?)
    }

    /// Runs the program `repeat` times on `frame`, which seems to come in by `lo`.
    ///
    /// # Errors
    /// Where the kernel refuses: frames are 14 bytes at least.
    pub fn test_run(&mut self, frame: &[u8], repeat: u32) -> Result<TestRun, DatapathError> {
        run(program(&mut self.ebpf)?, frame, repeat)
    }

    /// Has this program run on a connection that goes on by such steps.
    ///
    /// # Errors
    /// Where privileges are missing, or the kernel takes no tail call to it.
    pub fn advancing(&mut self, steps: Steps) -> Result<Advance, DatapathError> {
        Advance::before(program(&mut self.ebpf)?.fd().context("the program is loaded")?, steps)
    }

    /// Lets so many new sources in, in so long, by one rule of what packets read.
    ///
    /// # Errors
    /// Where the map cannot be written.
    pub fn set_new_sources(&mut self, rule: usize, amount: u64, window_ns: u64) -> Result<(), DatapathError> {
        let (generation, mut words) = (self.active_generation()?, self.config_words()?);
        let rule = words.rules.get_mut(rule).with_context(|| format!("no rule {rule}"))?;
        (rule.new_sources, rule.new_sources_ns) = (amount, window_ns);
        self.write_config(generation, words)
    }

    /// How many UDP flows and how many TCP connections are remembered.
    ///
    /// # Errors
    /// Where the maps cannot be read.
    pub fn remembered(&self) -> Result<[usize; 2], DatapathError> {
        const FLOW: usize = size_of::<Flow>();
        const CONNECTION: usize = size_of::<Conversation>();
        let flows = self.entries::<{ size_of::<FlowKeyV4>() }, FLOW>(map::FLOWS_V4)?
            + self.entries::<{ size_of::<FlowKeyV6>() }, FLOW>(map::FLOWS_V6)?;
        let connections = self.entries::<{ size_of::<ConversationKeyV4>() }, CONNECTION>(map::CONVERSATIONS_V4)?
            + self.entries::<{ size_of::<ConversationKeyV6>() }, CONNECTION>(map::CONVERSATIONS_V6)?;
        Ok([flows, connections])
    }

    /// What is kept of packets while they are judged: the bytes of each CPU.
    ///
    /// # Errors
    /// Where the map cannot be read.
    pub fn kept_of_packets(&self) -> Result<Vec<u8>, DatapathError> {
        const OF_A_PACKET: [u8; 4] = [0; 4];
        let Map::PerCpuArray(data) = map_ref(&self.ebpf, map::DEFERRED)? else {
            return Err(anyhow!("{} is no array of each CPU's", map::DEFERRED).into());
        };
        let info = data.info().context("ask what the map is")?;
        let cpus = aya::util::nr_cpus().map_err(|(file, error)| anyhow!("read {file}: {error}"))?;
        let value_len = (info.value_size() as usize).next_multiple_of(8) * cpus;
        let mut kept = Vec::new();
        batch::visit(data.fd().as_fd(), OF_A_PACKET.len(), value_len, info.max_entries(), |key, value| {
            if key == OF_A_PACKET {
                kept.extend_from_slice(value);
            }
        })
        .with_context(|| format!("read {}", map::DEFERRED))?;
        Ok(kept)
    }

    fn entries<const KEY: usize, const VALUE: usize>(&self, name: &'static str) -> Result<usize, DatapathError> {
        let map: HashMap<_, [u8; KEY], [u8; VALUE]> =
            HashMap::try_from(map_ref(&self.ebpf, name)?).with_context(|| format!("open {name}"))?;
        let keys: Result<Vec<_>, _> = map.keys().collect();
        Ok(keys.with_context(|| format!("read {name}"))?.len())
    }

    /// Gives an interface a row of counters without attaching to it.
    ///
    /// # Errors
    /// Where there is no such interface.
    pub fn list_unattached(&mut self, name: &str) -> Result<(), DatapathError> {
        let found = interface::named(name).context("list the network interfaces")?;
        let found = found.with_context(|| format!("no interface {name}"))?;
        self.links.list_first(Slot::known(found.name, found.index));
        if let Some(policy) = self.generations.policy.clone() {
            self.apply(&policy)?;
        }
        Ok(())
    }
}

pub(super) fn run(program: &Xdp, frame: &[u8], repeat: u32) -> Result<TestRun, DatapathError> {
    let options = TestRunOptions { data_in: Some(frame), repeat, ..TestRunOptions::default() };
    let result = program.test_run(options).context("run the program")?;
    Ok(TestRun { action: result.return_value, duration: result.duration })
}
