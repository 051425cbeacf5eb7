//! Names of hosts, for people, and what tells one machine from another.

use std::fs;

use ratelimit_fleet::hosts::machine_of;
use ratelimit_fleet::names::HostId;
use ratelimit_fleet::run::Status;
use ratelimit_policy::config::syntax::printable;

/// This host's name.
pub(super) fn own_name() -> String {
    nix::unistd::gethostname().map_or_else(|_| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Names this machine, whatever its state in the kernel. 0 where the system gives it no id.
pub(super) fn own_machine() -> u64 {
    fs::read("/etc/machine-id").map_or(0, |id| machine_of(id.trim_ascii()))
}

/// The name of a host, as it said it; its id where it has not been heard of.
pub(super) fn name_of(host: [u8; 8], status: &Status) -> String {
    let id = HostId(host);
    let known = status.hosts.iter().find(|host| host.id == id);
    known.map_or_else(|| id.to_string(), |host| printable(&host.record.name))
}
