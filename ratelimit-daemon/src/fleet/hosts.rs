//! Names of hosts for people, and identities of machines.

use std::fs;

use ratelimit_fleet::hosts::machine_of;
use ratelimit_fleet::names::HostId;
use ratelimit_fleet::run::Status;
use ratelimit_policy::config::syntax::printable;

/// Returns this host's name.
pub(super) fn own_name() -> String {
    nix::unistd::gethostname().map_or_else(|_| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Returns an identity of this machine that does not depend on kernel state. Returns 0 if the system has no machine
/// id.
pub(super) fn own_machine() -> u64 {
    fs::read("/etc/machine-id").map_or(0, |id| machine_of(id.trim_ascii()))
}

/// Returns the name that a host reported, or its id if the host is unknown.
pub(super) fn name_of(host: [u8; 8], status: &Status) -> String {
    let id = HostId(host);
    let known = status.hosts.iter().find(|host| host.id == id);
    known.map_or_else(|| id.to_string(), |host| printable(&host.record.name))
}
