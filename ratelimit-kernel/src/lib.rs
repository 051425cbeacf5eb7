//! The kernel side of ratelimitd, and the only crate that names aya. [`Kernel`] implements [`Datapath`] with the BPF
//! program that packets run.
//!
//! Knows the BPF objects, maps, pins, links, netlink and probes. Takes the policy as a value and decides nothing about
//! it. Everything above this crate but the command line and `doctor` works without it.

// The modules name the types of the datapath as `crate::NAME`.
use ratelimit_datapath::{
    Absent, Attachment, Ban, BanReading, BansPosition, Connection, Datapath, DatapathError, EVENTS_PART, Ended,
    EventCounts, Hook, InterfaceReading, KernelEvent, KernelStep, Lapse, Left, LimitAt, MULTIPLICITY_LASTS_NS, Orphans,
    PinnedLayout, Reading, Removed, STEPS_PART, SocketName, SourceReading, SourcesPosition, Tallies, Told, Trial,
    VisitedBans, VisitedSources, XdpMode, encode, memory, path,
};

mod alone;
mod batch;
mod bpf;
mod btf;
pub mod clock;
pub mod connections;
pub mod device;
mod generic_netlink;
pub mod heap;
mod interface;
mod kernel;
mod link_info;
mod netlink;
pub mod object;
pub mod orphans;
pub mod pins;
pub mod privileges;
pub mod probe;
mod routes;

pub use interface::{links, loses_answers, names as interface_names};
#[cfg(any(test, feature = "fixture"))]
pub use kernel::{
    Advance, Bare, Beside, Contents, Entries, Flood, Generator, Link, Merged, OpenConnection, OpenConnections, Order,
    ProgramSize, Sources, Steps, TestRun, classifier_object, dump, held_maps, linked, object, read_hostile, restore,
};
pub use kernel::{
    Clock, Events, Kernel, Options, Passed, Refusal, Verified, has_tcx, load_alone, pins_root, read_left,
};
pub use routes::default_gateways;
