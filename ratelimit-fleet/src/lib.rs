//! Limits shared by several hosts: each host reports its admissions to the others through Redis or Valkey.
//!
//! No packet and no command waits for the store. Each host enforces its limits locally and adds the admissions that
//! other hosts report. Those counts expire with their bucket. A host without reports from others enforces the full
//! limit N alone.
//!
//! # Stored data
//!
//! The store holds one register per host, source, limit and bucket. A register contains the host's id, a sequence
//! number and the count from the kernel's cell. Only a higher sequence of the same host replaces a register. Repeated,
//! late, reordered or lost reports therefore change nothing, or make the sum too small. One hash holds the registers of
//! a shard (one of 16) in one bucket. One EVALSHA stores a host's registers and returns the sums of the other hosts.
//! Field names are keyed hashes; bans, grants and the list of hosts are encrypted. The store therefore contains no
//! address, and forging bans, grants or hosts requires the fleet's secret. Anyone who can write to the store can forge
//! counts.
//!
//! # Bound
//!
//! With H hosts, each host reports at once when it has `N/2H` unreported admissions. A window therefore admits at most
//! `N + (H-1) * N/2H`, plus the packets sent while a report is in transit. Transit takes 0.1 s, longer if the store is
//! slow. [`Terms`](ratelimit_policy::fleet::Terms) prints the bound in words. Without a store the bound is `H * N`. For
//! lenient and fixed windows, the bound applies to the buckets that they sum, as on a single host.
//!
//! # Cost
//!
//! Measured in a release build next to other work on 2 CPUs (`tests/cost.rs`): 4 hosts, each with 10 000 sources that
//! send once a second, interval 1 s, one server. Per second, a host makes 32 calls, sends 334 kB and receives 185 kB.
//! It takes 5.0 % of a CPU, including the test's in-memory kernel. The server takes 16 % of a CPU and 6.5 MB.
//!
//! # Modules
//!
//! - Pure, with time and randomness as arguments: [`names`], [`wire`], [`clock`], [`trips`], [`tracked`], [`core`],
//!   [`acts`], [`hosts`] and [`store::pulse`].
//! - [`store`]: addresses and files, one connection, names of errors, the ACL line.
//! - [`run`]: the task that joins these modules, and the daemon's handle to it.

pub mod acts;
pub mod clock;
pub mod core;
pub mod hosts;
pub mod names;
pub mod run;
pub mod store;
pub mod tracked;
pub mod trips;
pub mod wire;
