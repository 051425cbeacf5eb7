//! One limit over many machines: what each admitted, told to the others through Redis or Valkey.
//!
//! No packet and no command waits for the store. Each host holds its limits by itself, counts what the others admitted
//! as soon as it hears of that, and forgets it with its bucket. A host that hears nothing goes on at N by itself.
//!
//! # What is stored
//!
//! A register for each host, source, limit and bucket: the host's id, a sequence, and the count as the kernel's cell
//! says it. It is replaced only by a higher sequence of the same host, so whatever is repeated, late, out of order or
//! lost changes nothing, or forgives. A hash has the registers of a shard (of 16) in a bucket; one EVALSHA stores a
//! host's and answers the sums of the others'. A field is a keyed hash; bans, grants and the list of hosts are sealed.
//! So nothing in the store names an address, and without the fleet's secret nobody can
//! forge bans, grants or hosts. Who may write to the store can forge counts.
//!
//! # The bound
//!
//! With H hosts each says at once when it has admitted `N/2H` that the others were not told, so a window admits at most
//! `N + (H-1) * N/2H`, and what is sent while a report is on its way: 0.1 s, and more where the store is slow. [`Terms`](ratelimit_policy::fleet::Terms) says it in words. Without
//! a store it is `H * N`. Lenient and fixed windows have it for the buckets that they sum, as they do on one host.
//!
//! # Cost
//!
//! Measured in a release build beside other work on 2 CPUs (`tests/cost.rs`): 4 hosts, each with 10 000 sources that send
//! once a second, interval 1 s, one server. A host has 32 calls, 334 kB up and 185 kB down a second, and takes 5.0 % of
//! a CPU, the kernel in memory of the test among it. The server takes 16 % of a CPU and 6.5 MB.
//!
//! # Who has what
//!
//! - Pure, with time and randomness as arguments: [`names`], [`wire`], [`clock`], [`trips`], [`tracked`], [`core`],
//!   [`acts`], [`hosts`], and of the store [`store::pulse`].
//! - [`store`]: addresses and files, one connection, names of what is wrong, the ACL line.
//! - [`run`]: the task that joins them, and what the daemon holds of it.

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
