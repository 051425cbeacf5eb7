//! Options of loading, which cannot be changed while the program runs.

use std::path::{Path, PathBuf};

use ratelimit_common::admission;
use ratelimit_common::source::Family;

use super::{XDP_DROP, XDP_PASS};
use crate::pins;
use ratelimit_policy::config::{Config, HookChoice, OnExit, XdpModeChoice};

/// Options of a [`Kernel`]. None can be changed while the program runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory in which links and maps are pinned, so that they outlive the daemon. [`super::pins::ROOT`] on a host
    /// with the usual setup.
    pub pins: Option<PathBuf>,
    /// Choice of the hook.
    pub hook: HookChoice,
    /// Choice of the XDP mode.
    pub xdp_mode: XdpModeChoice,
    /// Minimum number of tracked sources of each address family.
    pub max_sources: u32,
    /// Number of windows of each source, see [`Policy::windows_per_source`]. If a later policy needs more, fewer
    /// sources are tracked.
    pub windows_per_source: u32,
    /// True if IPv6 sources need the wide keys, see [`Family::of_ipv6_prefix`].
    pub ipv6_family: Family,
    /// Time source of the program.
    pub clock: Clock,
    /// Number of new sources that a CPU admits in 134 ms before it samples them, see [`ratelimit_common::admission`].
    pub insertions_max: u32,
    /// Number of insertions on all CPUs that first fill the maps without a budget. None are free if the maps were
    /// pinned.
    pub insertions_free: u32,
    /// Destination of passed packets.
    pub passed: Passed,
    /// True if events are sent.
    pub events: Events,
}

/// Setting of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    /// Each event is sent within its budget.
    On,
    /// No event is sent, to measure the cost of events.
    Off,
}

/// Time source of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The kernel's monotonic clock, set once to the wall clock.
    Kernel,
    /// The time set by [`Kernel::set_now`], for tests.
    Injected,
}

/// Destination of passed packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// Up the network stack.
    On,
    /// Packets count as passed but are dropped, for a benchmark of the program without the stack.
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

/// Returns the directory of the pins, or none if nothing is kept at exit.
#[must_use]
pub fn pins_root(on_exit: OnExit) -> Option<&'static Path> {
    match on_exit {
        OnExit::Detach => None,
        OnExit::Keep => Some(Path::new(pins::ROOT)),
    }
}
