//! How the program is loaded: what cannot be changed while it runs.

use std::path::{Path, PathBuf};

use ratelimit_common::admission;
use ratelimit_common::source::Family;

use super::{XDP_DROP, XDP_PASS};
use crate::pins;
use ratelimit_policy::config::{Config, HookChoice, OnExit, XdpModeChoice};

/// How a [`Kernel`] is set up; none of it can be changed while it runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where link and maps are pinned, so that they outlive the daemon; [`super::pins::ROOT`] on a host set up as
    /// usual.
    pub pins: Option<PathBuf>,
    /// Where to attach.
    pub hook: HookChoice,
    /// How to attach there, of XDP.
    pub xdp_mode: XdpModeChoice,
    /// Sources remembered of each family at least.
    pub max_sources: u32,
    /// Windows of each source, see [`Policy::windows_per_source`]. A policy that is applied later may need more: then
    /// fewer sources are remembered.
    pub windows_per_source: u32,
    /// Whether IPv6 sources need the wide keys, see [`Family::of_ipv6_prefix`].
    pub ipv6_family: Family,
    /// Where the program takes its time from.
    pub clock: Clock,
    /// New sources that a CPU remembers in 134 ms before it samples them, see [`ratelimit_common::admission`].
    pub insertions_max: u32,
    /// Insertions of all CPUs that first fill the maps, on no budget; none where the maps are pinned ones.
    pub insertions_free: u32,
    /// Where packets go that pass.
    pub passed: Passed,
    /// Whether events are sent.
    pub events: Events,
}

/// Whether events are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    /// Each that begins, on its budget.
    On,
    /// None, for a benchmark of what they cost.
    Off,
}

/// Where the program takes its time from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The kernel's monotonic clock, set to the wall clock once.
    Kernel,
    /// [`Kernel::set_now`], for tests.
    Injected,
}

/// Where packets go that pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// Up the network stack.
    On,
    /// Nowhere: they are counted as passed and dropped all the same, for a benchmark of the program without the stack.
    Nowhere,
}

impl Passed {
    pub(super) const fn action(self) -> u32 {
        match self {
            Self::On => XDP_PASS,
            Self::Nowhere => XDP_DROP,
        }
    }
}

impl From<&Config> for Options {
    fn from(config: &Config) -> Self {
        Self {
            pins: pins_root(config.on_exit).map(Path::to_owned),
            hook: config.hook,
            xdp_mode: config.xdp_mode,
            max_sources: config.max_sources,
            windows_per_source: config.policy.windows_per_source(),
            ipv6_family: Family::of_ipv6_prefix(config.policy.ipv6_prefix),
            clock: Clock::Kernel,
            insertions_max: admission::BUDGET,
            insertions_free: config.max_sources.saturating_mul(config.policy.windows_per_source()),
            passed: Passed::On,
            events: Events::On,
        }
    }
}

/// The directory of the pins, if there are any to speak of.
#[must_use]
pub fn pins_root(on_exit: OnExit) -> Option<&'static Path> {
    match on_exit {
        OnExit::Detach => None,
        OnExit::Keep => Some(Path::new(pins::ROOT)),
    }
}
